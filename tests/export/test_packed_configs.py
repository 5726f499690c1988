"""What configs of packed weights say of single modules, and where they say it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from golden_copies import copy, edit_config, exported, refusal, same
from packed_files import words, write_safetensors, zero_words
from safetensors.numpy import load_file

from exporter.config import Config
from exporter.packed.methods import dequantize
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError

SHAPE = (32, 64)  # of a weight: rows and columns


def gptq_module(seed: int, bits: int, size: int, less: int = 1, shape: tuple = SHAPE):
    """The parts of a matrix of GPTQ's, and what they stand for."""
    rng, (n_out, n_in) = np.random.default_rng(seed), shape
    codes = rng.integers(0, 1 << bits, shape)
    zeros = rng.integers(bits == 3, 1 << bits, (n_in // size, n_out))
    scales = rng.uniform(0.1, 1, zeros.shape).astype("<f2")
    group = np.arange(n_in) // size
    want = (codes - zeros.T[:, group]) * scales.astype("<f4").T[:, group]
    qzeros = zero_words(zeros, bits, less)
    return {"qweight": words(codes, bits).T, "qzeros": qzeros, "scales": scales}, want


def awq_module(seed: int, size: int, shape: tuple = SHAPE):
    """The same of AWQ's."""
    rng, (n_out, n_in) = np.random.default_rng(seed), shape
    codes, zeros = rng.integers(0, 16, (n_in, n_out)), rng.integers(0, 16, (n_in // size, n_out))
    scales = rng.uniform(0.1, 1, zeros.shape).astype("<f2")
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the eight columns in a word

    def packed(numbers: np.ndarray) -> np.ndarray:
        return words(numbers.reshape(len(numbers), -1, 8)[..., order].reshape(numbers.shape), 4)

    group = np.arange(n_in) // size
    want = ((codes - zeros[group]) * scales.astype("<f4")[group]).T
    return {"qweight": packed(codes), "qzeros": packed(zeros), "scales": scales}, want


def check(tmp_path: Path, modules: dict[str, tuple], **quantization) -> None:
    """These modules, and a plain one, are unpacked to what they stand for."""
    path, plain = tmp_path / "model.safetensors", np.ones((2, 3), "<f4")
    tensors = {
        f"{m}.{part}": value for m, (parts, _) in modules.items() for part, value in parts.items()
    }
    write_safetensors(path, {"plain.weight": plain, **tensors})
    left = open_safetensors(str(path))
    dequantize(Config({"quantization_config": quantization}), left)
    want = {"plain": plain, **{name: want for name, (_, want) in modules.items()}}
    assert set(left) == {f"{name}.weight" for name in want}
    assert all(np.array_equal(left[f"{name}.weight"].array(), want[name]) for name in want)


LAYER = "model.layers."
GPTQ = dict(quant_method="gptq", bits=4, group_size=32, sym=False, desc_act=False)


def test_dynamic(tmp_path):
    """GPTQModel's rules of dynamic_get: the first expression that matches from the beginning on,
    after those with a minus; what it does not say is as for all."""
    modules = {
        f"{LAYER}18.mlp.gate_proj": gptq_module(1, 4, 16),
        f"{LAYER}19.mlp.gate_proj": gptq_module(2, 8, 64),
        f"{LAYER}19.mlp.up_proj": gptq_module(3, 2, 32),
        f"{LAYER}1.self_attn.q_proj": gptq_module(4, 3, 32),
        f"{LAYER}20.mlp.gate_proj": gptq_module(5, 4, 32),
        "lm_head": gptq_module(6, 8, 32),
    }
    dynamic = {
        r"+:.*\.18\..*gate.*": {"bits": 4, "group_size": 16, "desc_act": True, "mse": 2.4},
        r".*\.19\..*gate.*": {"bits": 8, "group_size": 64},
        r"+:.*\.19\.": {"bits": 2},
        r"^model\.layers\.1\.self_attn": {"bits": 3},
        r"layers\.20\.": {"bits": 8},  # matches nothing: not from the beginning on
        r"-:.*down.*": {},
        "lm_head": {"bits": 8},
    }
    check(tmp_path, modules, **GPTQ, lm_head=True, method="gptq", dynamic=dynamic)


@pytest.mark.parametrize(
    "dynamic, said",
    [
        ({"+:m.*": {"bits": 8}, "-:m$": {}}, "dynamic: -:m$ says that m is not packed"),
        ({"+:m": {"bits": 5}}, "dynamic: +:m: bits is 5, which is not supported"),
        ({"+:m": {"rotation": "hadamard"}}, "dynamic: +:m: rotation ('hadamard') is unknown"),
        ({"+:m": {"bits": 8}}, "tensor m.scales has shape [2, 32], expected [1, 32]"),
        ({"+:(": {}}, "dynamic: '+:(' is no regular expression"),
        ({"m": 8}, "dynamic: m is 8, expected an object"),
        ([1], "dynamic is [1], expected an object"),
    ],
)
def test_dynamic_that_does_not_fit(tmp_path, dynamic, said):
    with pytest.raises(ExportError) as caught:
        check(tmp_path, {"m": gptq_module(1, 4, 32)}, **GPTQ, dynamic=dynamic)
    assert said in str(caught.value)


AUTO_ROUND = dict(
    quant_method="auto-round", bits=4, group_size=32, sym=False, data_type="int", iters=200,
    autoround_version="0.16.1", enable_quanted_input=True, block_name_to_quantize="model.layers",
)  # fmt: skip


@pytest.mark.parametrize(
    "says, less",
    [
        (dict(packing_format="auto_round:auto_gptq"), 1),
        (dict(packing_format="auto_round:gptq"), 1),
        (dict(packing_format="auto_round"), 0),
        (dict(packing_format="auto_round:gptqmodel", backend="auto"), 0),
        (dict(), 1),
        (dict(backend="auto"), 1),
        (dict(quant_method="intel/auto-round", backend="auto_round:gptq:exllamav2"), 1),
        (dict(quant_method="intel/auto-round", backend="autoround:exllamav2"), 0),
        (dict(quant_method="intel/auto-round", backend="gptq:exllamav2", act_bits=16), 1),
    ],
)
def test_auto_round(tmp_path, says, less):
    """Its own packing has zero points as they are (qlinear_torch.py), AutoGPTQ's has them one less
    (qlinear_torch_zp.py). Names come before expressions, which match anywhere."""
    modules = {
        f"{LAYER}0.a": gptq_module(1, 4, 32, less),
        f"{LAYER}0.b": gptq_module(2, 8, 32, less),
        f"{LAYER}1.b": gptq_module(3, 2, 16, less),
        "lm_head": gptq_module(4, 8, 64, less),
    }
    extra = {
        r".*\.b.*": {"bits": 2, "group_size": 16},
        r"0\.b$": {"bits": 3},
        f"{LAYER}0.b": {"bits": 8},
        f"{LAYER}0.c": {"bits": 16, "data_type": "float"},
        "head": {"bits": 8, "group_size": 64, "sym": False, "data_type": "int", "act_bits": 16},
    }
    check(tmp_path, modules, **{**AUTO_ROUND, **says}, extra_config=extra)


@pytest.mark.parametrize("method", ["rtn", "autoround"])
def test_neural_compressor(tmp_path, method):
    """INCWeightOnlyLinear.pack: each zero point is counted down by itself, within its bits."""
    parts, want = gptq_module(1, 4, 32)
    rng = np.random.default_rng(1)
    rng.integers(0, 16, SHAPE)
    zeros = rng.integers(0, 16, (2, 32))
    assert (zeros == 0).any()
    parts["qzeros"] = words((zeros - 1) % 16, 4)
    parts["scale_bf16_to_fp8"] = np.zeros(1, "<f4")
    says = dict(bits=4, group_size=32, sym=False, weight_dtype="int4_clip", scale_dtype="fp32")
    says |= dict(compute_dtype="fp32", use_ipex=False, llm_int8_skip_modules=["lm_head"])
    check(tmp_path, {"m": (parts, want)}, quant_method=method, **says)


@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_round:awq"])
def test_auto_round_as_awq(tmp_path, packing):
    """It stores zero points of symmetric weights too."""
    modules = {"a": awq_module(1, 32), "b": awq_module(2, 16)}
    extra = {"b": {"group_size": 16}}
    check(tmp_path, modules, **{**AUTO_ROUND, "packing_format": packing}, extra_config=extra)
    awq = dict(
        quant_method="awq", bits=4, group_size=32, zero_point=False, version="gemm", sym=True
    )
    check(tmp_path, {"a": modules["a"]}, **awq, provider="auto-round", iters=200)


@pytest.mark.parametrize(
    "says, said",
    [
        (dict(packing_format="auto_round:fp8_static"), "packing_format is 'auto_round:fp8_static'"),
        (dict(backend="gptq:marlin"), "backend is 'gptq:marlin', which is not supported"),
        (dict(data_type="mx_fp"), "data_type is 'mx_fp', which is not supported"),
        (dict(act_bits=8), "act_bits is 8, expected a whole number from 16 to 32"),
        (dict(super_bits=4), "super_bits (4) is unknown"),
        (dict(rotation_config={"a": 1}), "rotation_config ({'a': 1}) is unknown"),
        (dict(extra_config={"m": {"bits": 16}}), "extra_config: m says that m is not packed"),
        (dict(extra_config={"m": {"data_type": "fp"}}), "extra_config: m: data_type is 'fp'"),
        (dict(extra_config={"[": {"bits": 8}}), "'[' is no regular expression"),
    ],
)
def test_other_ways_of_auto_round_are_refused(tmp_path, says, said):
    with pytest.raises(ExportError) as caught:
        check(tmp_path, {"m": gptq_module(1, 4, 32)}, **{**AUTO_ROUND, **says})
    assert said in str(caught.value)


# ---- a file of its own ----

OLD = dict(bits=4, group_size=8, damp_percent=0.01, desc_act=False, sym=False, true_sequential=True)
AWQ_OLD = dict(zero_point=True, q_group_size=8, w_bit=4, version="GEMM")


def attention_packed(directory: Path, module, stem: str) -> Path:
    """A copy in which the attention's matrices are packed; in the checkpoint itself are what they
    stand for. stem: of the file of weights."""
    packed = Path(shutil.copytree(directory, directory.parent / "packed" / directory.name))
    plain, parts = load_file(directory / "model.safetensors"), {}
    for i, name in enumerate(name for name in plain if ".self_attn." in name):
        found, want = module(i, plain[name].shape)
        parts |= {f"{name[: -len('weight')]}{part}": value for part, value in found.items()}
        plain[name] = np.ascontiguousarray(want.astype("<f4"))
    write_safetensors(directory / "model.safetensors", plain)
    left = {name: value for name, value in plain.items() if ".self_attn." not in name}
    (packed / "model.safetensors").unlink()
    write_safetensors(packed / f"{stem}.safetensors", {**left, **parts})
    return packed


@pytest.mark.parametrize("stem", ["model", "gptq_model-4bit-8g", "own"])
def test_quantize_config_alone(tmp_path, stem):
    """AutoGPTQ's folders: config.json says nothing, and the file of weights has a name of its
    own."""
    directory = copy(tmp_path, "llama")
    packed = attention_packed(directory, lambda i, shape: gptq_module(i, 4, 8, 1, shape), stem)
    says = {**OLD, "model_file_base_name": "own"} if stem == "own" else OLD
    (packed / "quantize_config.json").write_text(json.dumps(says))
    assert same(exported(directory), exported(packed))


def test_quant_config_alone(tmp_path):
    """AutoAWQ's."""
    directory = copy(tmp_path, "llama")
    packed = attention_packed(directory, lambda i, shape: awq_module(i, 8, shape), "model")
    (packed / "quant_config.json").write_text(json.dumps(AWQ_OLD))
    assert same(exported(directory), exported(packed))


def test_where_a_quantize_config_counts(tmp_path, capsys):
    """Beside packed weights that config.json says nothing of; faults name the file."""
    directory = copy(tmp_path, "llama")
    packed = attention_packed(directory, lambda i, shape: gptq_module(i, 4, 8, 1, shape), "model")
    out, beside = tmp_path / "x.bin", packed / "quantize_config.json"
    assert "lacks the tensor model.layers.0.self_attn.q_proj.weight" in refusal(capsys, packed, out)
    beside.write_text(json.dumps({**OLD, "bits": 5}))
    assert "quantize_config.json: bits is 5" in refusal(capsys, packed, out)
    edit_config(packed, quantization_config={**OLD, "quant_method": "gptq"})
    assert same(exported(directory), exported(packed))  # what config.json says counts
    (directory / "quantize_config.json").write_text("no JSON")
    assert same(exported(directory), exported(packed))
