"""MLX's weights stand for what mlx itself says of them, single modules and experts too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import ROOT
from golden_copies import copy, edit_config, edit_tensors, exported, refusal, same
from packed_files import words, write_safetensors
from safetensors.numpy import load_file

from exporter.config import Config
from exporter.packed.methods import dequantize
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError

GOLDEN = json.loads((ROOT / "tests" / "golden" / "mlx.json").read_text())
FORMS = {"{mode}-{group_size}-{bits}".format(**form["says"]): form for form in GOLDEN["forms"]}


def parts_of(form: dict) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A matrix in a form, and what it stands for."""

    def rows(name: str, dtype: str) -> np.ndarray:
        return np.frombuffer(bytes.fromhex(form[name]), dtype).reshape(GOLDEN["rows"], -1)

    scale = "<f2" if "biases" in form else "u1"
    parts = {"weight": rows("weight", "<u4"), "scales": rows("scales", scale)}
    if "biases" in form:
        parts["biases"] = rows("biases", scale)
    return parts, rows("stands for", "<f4")


def unpack(
    tmp_path,
    modules: dict[str, dict],
    key: str = "quantization",
    family: str = "qwen3_moe",
    **says,
) -> dict:
    """What the exporter makes of a file with these modules."""
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path,
        {f"{m}.{part}": value for m, parts in modules.items() for part, value in parts.items()},
    )
    left = open_safetensors(str(path))
    dequantize(Config({"model_type": family, key: says}), left)
    return left


@pytest.mark.parametrize("name", FORMS)
def test_forms(tmp_path, name):
    parts, want = parts_of(FORMS[name])
    left = unpack(tmp_path, {"m": parts, "norm": {"weight": want}}, **FORMS[name]["says"])
    assert set(left) == {"m.weight", "norm.weight"}
    assert left["m.weight"].shape == want.shape
    assert np.array_equal(left["m.weight"].array(), want)
    assert np.array_equal(left["m.weight"].load()(1, 3), want[1:3])


def test_single_modules(tmp_path):
    """What is said of one counts for it alone, with what its mode makes of the rest (mlx's
    to_quantized)."""
    forms = {"a": "affine-64-4", "b": "affine-32-6", "c": "mxfp4-32-4", "d": "affine-64-8"}
    parts = {name: parts_of(FORMS[form]) for name, form in forms.items()}
    left = unpack(
        tmp_path,
        {name: p for name, (p, _) in parts.items()},
        group_size=64,
        bits=4,
        a=True,
        b={"group_size": 32, "bits": 6},
        c={"mode": "mxfp4"},
        d={"bits": 8},
        lm_head=False,
    )
    assert all(np.array_equal(left[f"{n}.weight"].array(), want) for n, (_, want) in parts.items())


@pytest.mark.parametrize(
    "stack, names",
    [
        ("mlp.switch_mlp.up_proj", ["mlp.experts.0.up_proj", "mlp.experts.1.up_proj"]),
        ("block_sparse_moe.switch_mlp.down_proj", ["block_sparse_moe.experts.0.w2"]),
    ],
)
def test_experts_in_a_stack(tmp_path, stack, names):
    parts, want = parts_of(FORMS["affine-64-4"])
    both = {name: np.stack([part, part[::-1]]) for name, part in parts.items()}
    left = unpack(tmp_path, {stack: both}, group_size=64, bits=4)
    assert len(left) == 2 and all(left[f"{name}.weight"].shape == want.shape for name in names)
    assert np.array_equal(left[f"{names[0]}.weight"].array(), want)
    assert np.array_equal(
        left[f"{names[-1]}.weight"].array()[:1], want[-len(names) + 1 or None :][:1]
    )


def test_convolutions(tmp_path):
    kernel = np.arange(12, dtype="<f4").reshape(4, 3, 1)
    parts, _ = parts_of(FORMS["affine-64-4"])
    left = unpack(tmp_path, {"m": parts, "conv1d": {"weight": kernel}}, group_size=64, bits=4)
    assert np.array_equal(left["conv1d.weight"].array(), kernel.transpose(0, 2, 1))
    assert left["conv1d.weight"].shape == (4, 1, 3)


def test_norms_that_hold_their_one(tmp_path):
    """qwen3_next.py of mlx_lm adds 1 to all norms but linear attention's own, where it turns
    convolutions; auto-round writes MLX's words and does neither."""
    parts, _ = parts_of(FORMS["affine-64-4"])
    norm = {"weight": np.array([1.5, 0.25, 1], "<f4")}
    names = ["model.norm", "a.input_layernorm", "a.q_norm", "a.linear_attn.norm"]
    kernel = np.arange(12, dtype="<f4").reshape(4, 3, 1)
    modules = {"m": parts, **dict.fromkeys(names, norm), "conv1d": {"weight": kernel}}
    cases = [("qwen3_next", 1, kernel), ("qwen3_5_text", 1, kernel), ("qwen3", 0, kernel)]
    for family, shift, kernel in [*cases, ("qwen3_next", 0, kernel.reshape(4, 1, 3))]:
        modules["conv1d"] = {"weight": kernel}
        left = unpack(tmp_path, modules, family=family, group_size=64, bits=4)
        found = [left[f"{name}.weight"].array() for name in names]
        assert np.array_equal(found, [norm["weight"] - shift] * 3 + [norm["weight"]])
        assert np.array_equal(left["conv1d.weight"].array(), kernel.reshape(4, 1, 3))


def test_experts_of_gpt_oss(tmp_path):
    """gpt_oss.py of mlx_lm takes every other row for the gate, from the first on."""
    parts, want = parts_of(FORMS["mxfp4-32-4"])
    modules = {}
    for i, name in enumerate(("gate_proj", "up_proj", "down_proj")):
        stacks = {part: np.stack([np.roll(w, i, 0), w[::-1]]) for part, w in parts.items()}
        stacks["bias"] = np.arange(6, dtype="<f4").reshape(2, 3) + 10 * i
        modules[f"mlp.experts.{name}"] = stacks
    says = FORMS["mxfp4-32-4"]["says"]
    left = unpack(tmp_path, modules, family="gpt_oss", **says)
    assert set(left) == {
        f"mlp.experts.{n}_{part}"
        for n in ("gate_up_proj", "down_proj")
        for part in ("blocks", "bias")
    }
    both = left["mlp.experts.gate_up_proj_blocks"]
    assert both.shape == (2, 6, want.shape[1]) == both.array().shape
    assert np.array_equal(both.array()[0, 0::2], want)
    assert np.array_equal(both.array()[0, 1::2], np.roll(want, 1, 0))
    assert np.array_equal(left["mlp.experts.gate_up_proj_bias"].array()[0], [0, 10, 1, 11, 2, 12])
    assert np.array_equal(left["mlp.experts.down_proj_blocks"].array()[0], np.roll(want, 2, 0))


def test_metal(tmp_path):
    """transformers' own for the same processors."""
    parts, want = parts_of(FORMS["affine-64-4"])
    parts["qbiases"] = parts.pop("biases")
    says = dict(quant_method="metal", bits=4, group_size=64, modules_to_not_convert=["lm_head"])
    left = unpack(tmp_path, {"m": parts}, "quantization_config", **says)
    assert np.array_equal(left["m.weight"].array(), want)


def test_checkpoints(tmp_path, capsys):
    """Embeddings are packed too; quantization_config repeats what quantization says."""
    directory = copy(tmp_path, "llama")
    plain, parts = load_file(directory / "model.safetensors"), {}
    rng = np.random.default_rng(1)
    for name in [name for name in plain if name.endswith(("_proj.weight", "embed_tokens.weight"))]:
        n_out, n_in = plain[name].shape
        size = n_in // 2
        codes, (scale, offset) = rng.integers(0, 16, (n_out, n_in)), rng.random((2, n_out, 2)) / 8
        group = np.arange(n_in) // size
        if n_in % 8:
            continue
        scale, offset = scale.astype("<f2"), offset.astype("<f2")
        plain[name] = codes.astype("<f4") * scale[:, group] + offset[:, group]
        parts |= {name: words(codes, 4).view("<u4")}
        parts |= {name[:-6] + "scales": scale, name[:-6] + "biases": offset}
    packed = copy(tmp_path / "packed", "llama")
    edit_tensors(directory, lambda tensors: tensors.update(plain))
    write_safetensors(packed / "model.safetensors", {**plain, **parts})
    says = {"group_size": 20, "bits": 4}
    edit_config(packed, quantization=says, quantization_config=says)
    assert len(parts) == 3 * 13 and same(exported(directory), exported(packed))
    edit_config(packed, model_type="gpt2")
    assert "what MLX makes of a 'gpt2' is not known" in refusal(capsys, packed, tmp_path / "x.bin")


FOUR = {"group_size": 64, "bits": 4}
MX = {"mode": "mxfp4"}


@pytest.mark.parametrize(
    "change, says, said",
    [
        ({}, {**FOUR, "bits": 7}, "7 bits in groups of 64 of mode affine are not supported"),
        ({}, {**FOUR, "mode": "mxfp4"}, "4 bits in groups of 64 of mode mxfp4"),
        ({}, {**FOUR, "mode": "int"}, "mode is 'int', which is not supported"),
        ({}, {**FOUR, "bits": 8}, "tensor m.scales has shape [3, 2], its weight [3, 16]"),
        ({}, {**FOUR, "group_size": 48}, "of 4 bits in groups of 48"),
        ({}, {**FOUR, "m": False}, "quantization: m is false, but the checkpoint has its scales"),
        ({}, {**FOUR, "m": {"bits": 4, "x": 1}}, "quantization: m: x (1) is unknown"),
        ({}, {**FOUR, "y": 1}, "y (1) is unknown"),
        ({"biases": None}, FOUR, "the checkpoint lacks the tensor m.biases"),
        ({"weight": None}, FOUR, "the checkpoint lacks the tensor m.weight"),
        ({"biases": np.zeros((3, 3), "<f2")}, FOUR, "tensor m.biases has shape [3, 3]"),
        ({"scales": np.zeros((3, 2), "u1")}, FOUR, "tensor m.scales is stored as U8"),
        ({"weight": np.zeros((3, 16), "u1")}, FOUR, "is not stored in numbers of 32 bits"),
        ({"scales": np.zeros((3, 4), "<i4")}, MX, "m.scales is not stored in numbers of 8 bits"),
        ({"weight": np.zeros((3, 16), "<f4")}, FOUR, "is not stored in bytes"),
        ({"weight": np.zeros((), "<u4")}, FOUR, "its weight [1]"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, says, said):
    parts = {**parts_of(FORMS["affine-64-4"])[0], **change}
    parts = {name: part for name, part in parts.items() if part is not None}
    with pytest.raises(ExportError) as caught:
        unpack(tmp_path, {"m": parts}, **says)["m.weight"].array()
    assert said in str(caught.value)
