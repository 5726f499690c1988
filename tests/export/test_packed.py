"""Checkpoints that other tools have packed mean what their formats say; those in fp8 and mxfp4 give
the same file as one that holds what they stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import export
from exporter.checkpoint import Checkpoint
from exporter.sources.huggingface import open_safetensors
from exporter.packed.floats import fp8_blocks
from exporter.tensor import ExportError, Tensor
from packed_files import module_weight, unpacked, words, write_safetensors, zero_words

GOLDEN = ROOT / "tests" / "golden"


def fp8(byte: int) -> float:
    """The number of a byte of E4M3."""
    sign, exponent, mantissa = (-1) ** (byte >> 7), byte >> 3 & 15, byte & 7
    return sign * (
        mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2 ** (exponent - 7)
    )


def fp4(code: int) -> float:
    """The number of four bits of E2M1."""
    sign, exponent, mantissa = (-1) ** (code >> 3), code >> 1 & 3, code & 1
    return sign * (mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1))


def save(directory: Path, tensors: dict[str, np.ndarray], quantization: dict | None) -> Path:
    """A copy of a golden checkpoint with these tensors and that quantization_config."""
    write_safetensors(directory / "model.safetensors", tensors)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps({**config, "quantization_config": quantization})
    )
    return directory


def exported(
    tmp_path: Path, golden: str, tensors: dict[str, np.ndarray], quantization: dict | None
) -> bytes:
    directory = tmp_path / "model"  # the same name, which the file repeats
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(GOLDEN / golden, directory)
    save(directory, tensors, quantization)
    assert export.main([str(directory), str(tmp_path / "out.bin"), "--dtype", "f32"]) == 0
    return (tmp_path / "out.bin").read_bytes()


def tensors_of(golden: str) -> dict[str, np.ndarray]:
    return {
        name: t.array().astype("<f4")
        for name, t in open_safetensors(str(GOLDEN / golden / "model.safetensors")).items()
    }


def test_mxfp4(tmp_path):
    rng = np.random.default_rng(1)
    plain, packed = tensors_of("gpt_oss"), tensors_of("gpt_oss")
    for name in [
        name for name in plain if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    ]:
        n, n_in, n_out = plain[name].shape
        blocks = rng.integers(0, 256, (n, n_out, n_in // 32, 16), np.uint8)
        scales = rng.integers(118, 130, (n, n_out, n_in // 32), np.uint8)
        codes = np.stack([blocks % 16, blocks // 16], -1).reshape(n, n_out, n_in // 32, 32)
        values = np.vectorize(lambda code: fp4(int(code)))(codes) * 2.0 ** (
            scales[..., None].astype(int) - 127
        )
        plain[name] = values.reshape(n, n_out, n_in).transpose(0, 2, 1).astype("<f4")
        del packed[name]
        packed[name + "_blocks"], packed[name + "_scales"] = blocks, scales
    quantization = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    assert exported(tmp_path, "gpt_oss", packed, quantization) == exported(
        tmp_path, "gpt_oss", plain, None
    )


@pytest.mark.parametrize("fmt", ["e4m3", "float8_e4m3fn"])
def test_fp8(fmt, tmp_path):
    rng = np.random.default_rng(2)
    plain, packed = tensors_of("deepseek_v3"), tensors_of("deepseek_v3")
    for name in [name for name in plain if name.endswith("_proj.weight")]:
        weight = rng.integers(0, 256, plain[name].shape, np.uint8)
        weight[weight % 128 == 127] = 0  # NaN
        scale = np.float32(rng.uniform(0.001, 0.01))
        plain[name] = np.vectorize(lambda byte: fp8(int(byte)))(weight).astype("<f4") * scale
        packed[name] = weight.view(np.int8)
        packed[name + "_scale_inv"] = np.full((1, 1), scale, "<f4")
    quantization = dict(
        quant_method="fp8", fmt=fmt, activation_scheme="dynamic", weight_block_size=[128, 128]
    )
    assert exported(tmp_path, "deepseek_v3", packed, quantization) == exported(
        tmp_path, "deepseek_v3", plain, None
    )


@pytest.mark.parametrize("rows", [(0, 300), (120, 260), (128, 129)])
def test_fp8_blocks_are_whole_but_for_the_last(rows):
    rng = np.random.default_rng(3)
    weight, scales = (
        rng.integers(0, 127, (300, 200), np.uint8),
        rng.uniform(0.5, 2, (3, 2)).astype(np.float32),
    )

    def tensor(values: np.ndarray, raw: Tensor | None = None) -> Tensor:
        return Tensor(
            "t", values.shape, lambda: lambda a, b: values[a:b].astype(np.float32), raw=raw
        )

    got = fp8_blocks(tensor(weight, tensor(weight)), tensor(scales), 128, 128).load()(*rows)
    a, b = rows
    want = [
        [np.float32(fp8(int(weight[i, j]))) * scales[i // 128, j // 128] for j in range(200)]
        for i in range(a, b)
    ]
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(quant_method="aqlm"), "quant_method is 'aqlm', which is not supported; supported: "),
        (dict(weight_block_size=[128]), "weight_block_size is [128], expected two sizes"),
        (dict(fmt="e5m2"), "fmt is 'e5m2'"),
        (dict(rotation=["x"]), "rotation (['x']) is unknown"),
        (dict(weight_block_size=[16, 16]), "has shape [1, 1], its weight [22, 36]"),
    ],
)
def test_other_ways_of_fp8_are_refused(changes, said, tmp_path, capsys):
    tensors = tensors_of("deepseek_v3")
    name = "model.layers.0.self_attn.q_a_proj.weight"
    tensors[name] = np.zeros(tensors[name].shape, np.int8)
    tensors[name + "_scale_inv"] = np.ones((1, 1), "<f4")
    directory = tmp_path / "model"
    shutil.copytree(GOLDEN / "deepseek_v3", directory)
    quantization = dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]
    )
    save(directory, tensors, {**quantization, **changes})
    assert export.main([str(directory), str(tmp_path / "out.bin")]) == 1
    assert said in capsys.readouterr().err


# ---- whole numbers of a few bits, packed here number by number ----


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form, less", [("gptq", 1), ("gptq_v2", 0)])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("size", [16, 32])
def test_gptq(tmp_path, bits, form, less, ordered, size):
    rng = np.random.default_rng(bits)
    n_in, n_out = 64, 32
    codes = rng.integers(0, 1 << bits, (n_out, n_in))
    zeros = rng.integers(0, 1 << bits, (n_in // size, n_out))
    scales = rng.uniform(0.1, 1, zeros.shape).astype("<f2")
    group = rng.permutation(n_in) // size if ordered else np.arange(n_in) // size
    tensors = {
        "qweight": words(codes, bits).T,
        "qzeros": zero_words(zeros, bits, less),
        "scales": scales,
    }
    if ordered:
        tensors["g_idx"] = group.astype("<i4")
    found = unpacked(
        tmp_path,
        tensors,
        quant_method="gptq",
        bits=bits,
        group_size=size,
        checkpoint_format=form,
        desc_act=ordered,
        sym=False,
    )
    assert np.array_equal(found, (codes - zeros.T[:, group]) * scales.astype("<f4").T[:, group])


@pytest.mark.parametrize("stored, form", [(7, "gptq"), (8, "gptq"), (8, "gptq_v2"), (3, "gptq")])
def test_symmetric_gptq(tmp_path, stored, form):
    """Its zero points are in the middle, whether or not the tool that wrote them counted down."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (32, 64))
    tensors = {
        "qweight": words(codes, 4).T,
        "qzeros": words(np.full((4, 32), stored), 4),
        "scales": np.full((4, 32), 0.5, "<f2"),
    }
    says = dict(quant_method="gptq", bits=4, group_size=16, checkpoint_format=form, sym=True)
    if stored == 3:
        with pytest.raises(ExportError, match="sym is true, so that zero points are 8"):
            unpacked(tmp_path, tensors, **says)
    else:
        assert np.array_equal(unpacked(tmp_path, tensors, **says), (codes - 8) * 0.5)


ROWS, COLUMNS = 32, 64
GPTQ4, SYMMETRIC = dict(quant_method="gptq", bits=4, group_size=32), {"sym": True}
BITNET = dict(quant_method="bitnet", linear_class="autobitlinear", quantization_mode="offline")


CHANNELS = {"num_bits": 8, "strategy": "channel"}


def gptq_tensors(bits: int, zero: int | None = None, scale: np.ndarray | None = None) -> dict:
    rng = np.random.default_rng(1)
    zeros = rng.integers(0, 1 << bits, (2, ROWS)) if zero is None else np.full((2, ROWS), zero)
    return {
        "qweight": words(rng.integers(0, 1 << bits, (ROWS, COLUMNS)), bits).T,
        "qzeros": zero_words(zeros, bits, 1),
        "scales": rng.uniform(0.1, 1, zeros.shape).astype("<f2") if scale is None else scale,
    }


def bitnet_tensors(columns: int = COLUMNS) -> dict:
    codes = np.random.default_rng(1).integers(0, 3, (4, ROWS // 4, columns))
    packed = sum(codes[i] << 2 * i for i in range(4)).astype("u1")
    return {"weight": packed, "weight_scale": np.array([0x3F9D], "<u2")}


def int8_tensors() -> dict:
    codes = np.arange(ROWS * COLUMNS).astype("i1").reshape(ROWS, COLUMNS)
    return {"weight": codes, "weight_scale": np.full((ROWS, 1), 0.25, "<f2")}


@pytest.mark.parametrize(
    "kept, tensors, quantization",
    [
        ("Q5_0", gptq_tensors(4), GPTQ4),
        ("Q4_0", gptq_tensors(4, zero=8), GPTQ4 | SYMMETRIC),
        ("Q4_0", gptq_tensors(2), GPTQ4 | {"bits": 2}),
        ("Q8_0", gptq_tensors(8, zero=128), GPTQ4 | SYMMETRIC | {"bits": 8}),
        (None, gptq_tensors(8), GPTQ4 | {"bits": 8}),  # numbers from -255 to 255
        (None, gptq_tensors(4), GPTQ4 | {"desc_act": True}),
        ("Q4_0", bitnet_tensors(), BITNET),
        ("TQ2_0", bitnet_tensors(512), BITNET),
        (None, bitnet_tensors(), BITNET | {"linear_class": "bitlinear"}),  # which divides
        (
            "Q8_0",
            int8_tensors(),
            dict(
                quant_method="compressed-tensors",
                format="int-quantized",
                config_groups={"all": {"targets": ["Linear"], "weights": CHANNELS}},
            ),
        ),
    ],
)
def test_numbers_are_kept(tmp_path, kept, tensors, quantization):
    if quantization.get("desc_act"):
        tensors = {**tensors, "g_idx": np.repeat([0, 1], 32)[::-1].astype("<i4")}
    assert module_weight(tmp_path, tensors, **quantization).stored == kept
    unpacked(tmp_path, tensors, **quantization)


def test_what_no_type_keeps_is_a_sentence(tmp_path):
    tensors = gptq_tensors(4, scale=np.full((2, ROWS), 1 / 3, "<f4"))
    assert module_weight(tmp_path, tensors, **GPTQ4).blocks is None
    tensors = gptq_tensors(4, scale=np.full((2, ROWS), 1, "<u2"))  # bf16 below all f16
    with pytest.raises(ExportError, match="m: a scale is not one of f16; give --dtype bf16"):
        module_weight(tmp_path, tensors, **GPTQ4).blocks()
    tensors = {**gptq_tensors(4), "g_idx": np.repeat([1, 0], 32)[::-1].astype("<i4")}
    tensors["g_idx"][0] = 1
    with pytest.raises(ExportError, match="in another order, though desc_act is false"):
        module_weight(tmp_path, tensors, **GPTQ4).blocks()


def test_a_checkpoint_keeps_mxfp4(tmp_path):
    """gpt-oss' experts, whose rows of gate and up are taken apart."""
    tensors = tensors_of("gpt_oss")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        n, n_in, n_out = tensors.pop(name).shape
        codes = np.random.default_rng(n_in).integers(0, 256, (n, n_out, n_in // 32, 16), np.uint8)
        tensors[name + "_blocks"] = codes
        tensors[name + "_scales"] = np.full(codes.shape[:3], 122, np.uint8)
    quantization = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    exported(tmp_path, "gpt_oss", tensors, quantization)
    plain = Checkpoint(str(tmp_path / "out.bin"))
    kept_file = str(tmp_path / "kept.bin")
    assert export.main([str(tmp_path / "model"), kept_file, "--dtype", "keep"]) == 0
    kept = Checkpoint(kept_file)
    experts = [n for n in kept.tensors if n.endswith(("expert_gate", "expert_up", "expert_down"))]
    assert {kept.tensors[name][0] for name in experts} == {"mxfp4"}
    assert all(np.array_equal(kept.tensor(name), plain.tensor(name)) for name in experts)


def test_awq(tmp_path):
    rng = np.random.default_rng(1)
    codes, zeros = rng.integers(0, 16, (48, 40)), rng.integers(0, 16, (3, 40))
    scales = rng.uniform(0.1, 1, zeros.shape).astype("<f2")
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the eight columns in a word
    tensors = {
        "qweight": words(codes.reshape(48, 5, 8)[..., order].reshape(48, 40), 4),
        "qzeros": words(zeros.reshape(3, 5, 8)[..., order].reshape(3, 40), 4),
        "scales": scales,
    }
    found = unpacked(tmp_path, tensors, quant_method="awq", bits=4, group_size=16, version="gemm")
    group = np.arange(48) // 16
    assert np.array_equal(found, ((codes - zeros[group]) * scales.astype("<f4")[group]).T)


def compressed(**weights) -> dict:
    return dict(
        quant_method="compressed-tensors",
        format="pack-quantized",
        config_groups={"group_0": {"targets": ["Linear"], "weights": {"type": "int", **weights}}},
    )


def test_compressed_tensors(tmp_path):
    rng = np.random.default_rng(1)
    codes, zeros = rng.integers(0, 16, (37, 48)), rng.integers(0, 16, (37, 3))
    scales = rng.uniform(0.1, 1, zeros.shape).astype("<f2")
    tensors = {
        "weight_packed": words(codes, 4),
        "weight_scale": scales,
        "weight_shape": np.array([37, 48], "<i8"),
        "weight_zero_point": words(zeros.T, 4).T,
    }
    scheme = dict(num_bits=4, strategy="group", group_size=16)
    found = unpacked(tmp_path, tensors, **compressed(symmetric=False, **scheme))
    wide = scales.astype("<f4")[:, np.arange(48) // 16]
    assert np.array_equal(found, (codes - zeros[:, np.arange(48) // 16]) * wide)
    found = unpacked(tmp_path, tensors, **compressed(symmetric=True, **scheme))
    assert np.array_equal(found, (codes - 8) * wide)


def four_bits(state: dict, **tensors) -> dict[str, np.ndarray]:
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return {**tensors, "weight.quant_state.bitsandbytes__nf4": text}


@pytest.mark.parametrize("storage", ["u1", "i1", "<u2", "<f2", "<f4", "<f8"])
def test_quant_storage_of_bitsandbytes(tmp_path, storage):
    """The bytes may be called numbers of another type: here all bytes, which make NaNs too."""
    table = np.linspace(-1, 1, 16).astype("<f4")
    byte = np.random.default_rng(1).permutation(256).astype(np.uint8)
    packed = {"weight": byte.view(storage)[:, None], "weight.quant_map": table}
    packed["weight.absmax"] = np.ones(8, "<f4")
    found = unpacked(
        tmp_path,
        four_bits(dict(blocksize=64, shape=[16, 32]), **packed),
        quant_method="bitsandbytes",
        bnb_4bit_quant_storage="bfloat16",
    )
    codes = np.stack([byte >> 4, byte & 15], -1).reshape(16, 32)
    assert np.array_equal(found, table[codes])


def test_bitsandbytes(tmp_path):
    rng = np.random.default_rng(1)
    codes, table = rng.integers(0, 16, 9 * 14), rng.uniform(-1, 1, 16).astype("<f4")
    largest, of_256 = rng.uniform(1, 2, 2).astype("<f4"), rng.uniform(0, 1, 256).astype("<f4")
    packed = (codes[::2] * 16 + codes[1::2]).astype(np.uint8)[:, None]
    state = dict(blocksize=64, shape=[9, 14], quant_type="nf4", dtype="float32")
    tensors = {"weight": packed, "weight.quant_map": table}
    block = np.arange(9 * 14) // 64
    found = unpacked(
        tmp_path,
        four_bits(state, **tensors, **{"weight.absmax": largest}),
        quant_method="bitsandbytes",
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
    )
    assert np.array_equal(found, (table[codes] * largest[block]).reshape(9, 14))
    nested = {
        "weight.absmax": np.array([7, 200], np.uint8),
        "weight.nested_absmax": np.array([3], "<f4"),
        "weight.nested_quant_map": of_256,
    }
    state |= dict(nested_blocksize=256, nested_offset=0.5, nested_dtype="float32")
    found = unpacked(tmp_path, four_bits(state, **tensors, **nested), quant_method="bitsandbytes")
    largest = of_256[[7, 200]] * np.float32(3) + np.float32(0.5)
    assert np.array_equal(found, (table[codes] * largest[block]).reshape(9, 14))


GPTQ = dict(quant_method="gptq", bits=4, group_size=16, desc_act=False)
WHOLE = {
    "qweight": np.zeros((4, 8), "<i4"),
    "qzeros": np.zeros((2, 1), "<i4"),
    "scales": np.ones((2, 8), "<f2"),
}
STATE = dict(blocksize=64, shape=[4, 16])
FOUR = {
    "weight": np.zeros((32, 1), np.uint8),
    "weight.quant_map": np.zeros(16, "<f4"),
    "weight.absmax": np.ones(1, "<f4"),
}


@pytest.mark.parametrize(
    "tensors, quantization, said",
    [
        (WHOLE, {**GPTQ, "bits": 5}, "bits is 5, which is not supported; supported: 2, 3, 4, 8"),
        (WHOLE, {**GPTQ, "bits": 1 << 40}, "bits is 1099511627776, expected a whole number"),
        (WHOLE, {**GPTQ, "group_size": 8}, "m.scales has shape [2, 8], expected [4, 8]"),
        (WHOLE, {**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"qweight": WHOLE["qweight"]}, GPTQ, "the checkpoint lacks the tensor m.scales"),
        ({**WHOLE, "qweight": np.zeros((4, 8), "<f4")}, GPTQ, "is not stored in bytes"),
        ({**WHOLE, "qweight": np.zeros((4, 8), "u1")}, GPTQ, "not stored in numbers of 32 bits"),
        ({**WHOLE, "qzeros": np.zeros((2, 1), "<i8")}, GPTQ, "not stored in numbers of 32 bits"),
        ({**WHOLE, "qweight": np.zeros(8, "<i4")}, GPTQ, "expected [any, any]"),
        ({**WHOLE, "g_idx": np.full(32, 2, "<i4")}, GPTQ, "a column is of group 2, of 2"),
        ({**WHOLE, "g_idx": np.full(32, -1, "<i4")}, GPTQ, "a column is of group -1, of 2"),
        (WHOLE, dict(quant_method="awq", bits=4, version="gemv"), "version is 'gemv'"),
        (
            four_bits({**STATE, "shape": [4, 17]}, **FOUR),
            dict(quant_method="bitsandbytes"),
            "68 numbers",
        ),
        (
            four_bits({**STATE, "shape": [4, -16]}, **FOUR),
            dict(quant_method="bitsandbytes"),
            "its sizes",
        ),
        (four_bits({}, **FOUR), dict(quant_method="bitsandbytes"), "does not say what is packed"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, tensors, quantization, said):
    with pytest.raises(ExportError) as caught:
        unpacked(tmp_path, tensors, **quantization)
    assert said in str(caught.value)
