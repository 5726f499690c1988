"""Weights in fp8 and mxfp4: a checkpoint with them gives the same file as one that holds what they
stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import export
from exporter.huggingface import open_safetensors
from exporter.lowbits import fp8_blocks
from exporter.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden"
NAMES = {
    np.dtype("<f4"): "F32",
    np.dtype("u1"): "U8",
    np.dtype("i1"): "F8_E4M3",
}  # i1 stands for fp8 here


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
    header, data = {}, b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {
            "dtype": NAMES[values.dtype],
            "shape": list(values.shape),
            "data_offsets": offsets,
        }
        data += raw
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
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


def test_fp8(tmp_path):
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
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]
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
        (
            dict(quant_method="gptq"),
            "quant_method is 'gptq', which is not supported; supported: fp8, mxfp4",
        ),
        (dict(weight_block_size=None), "weight_block_size is None, expected two sizes"),
        (dict(fmt="e5m2"), "fmt is 'e5m2'"),
        (dict(ignored_layers=["x"]), "ignored_layers (['x']) is unknown"),
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
