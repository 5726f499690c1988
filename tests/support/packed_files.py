"""Files of packed weights for the tests: numbers become words one by one, and what the exporter
makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from exporter.config import Config
from exporter.packed.methods import dequantize
from exporter.quantize.kept import SOURCES, keep, kept_numbers
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import Tensor

NAMES = {
    np.dtype("<f4"): "F32",
    np.dtype("<f2"): "F16",
    np.dtype("u1"): "U8",
    np.dtype("<i4"): "I32",
    np.dtype("<u4"): "U32",
    np.dtype("<i8"): "I64",
    np.dtype("i1"): "F8_E4M3",  # stands for fp8 here
    np.dtype("<u2"): "BF16",
    np.dtype("<f8"): "F64",
}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
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
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def module_weight(tmp_path: Path, tensors: dict[str, np.ndarray], **quantization) -> Tensor:
    """The weight of the module m, from a file."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {f"m.{name}": values for name, values in tensors.items()})
    left = open_safetensors(str(path))
    dequantize(Config({"quantization_config": quantization}), left)
    assert list(left) == ["m.weight"]
    return left["m.weight"]


def check_kept(weight: Tensor, whole: np.ndarray) -> None:
    """If a type keeps these numbers, they are the same to the bit."""
    if weight.blocks:
        panels = keep(weight.blocks()(0, weight.shape[0]), weight.stored)
        dtype = SOURCES[weight.stored].dtype
        assert np.array_equal(kept_numbers(panels, dtype, *weight.shape), whole)


def unpacked(tmp_path: Path, tensors: dict[str, np.ndarray], **quantization) -> np.ndarray:
    """The numbers of that weight."""
    weight = module_weight(tmp_path, tensors, **quantization)
    whole = weight.array()
    assert weight.shape == whole.shape and np.array_equal(weight.load()(3, 5), whole[3:5])
    check_kept(weight, whole)
    return whole


def words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """int32 [rows, words] of [rows, n]: the numbers of a row, from its lowest bit on."""
    packed = []
    for row in numbers:
        stream = sum(int(number) << (i * bits) for i, number in enumerate(row))
        packed.append(
            np.frombuffer(stream.to_bytes(-(-len(row) * bits // 32) * 4, "little"), "<i4")
        )
    return np.array(packed)


def zero_words(zeros: np.ndarray, bits: int, less: int) -> np.ndarray:
    """int32 words of zero points, of which GPTQ's first format takes one from each number by a
    subtraction of whole words: a number that is 0 borrows from the next one (GPTQModel's
    convert_gptq_v2_to_v1_format)."""
    if bits == 3:  # numbers do not fill words: GPTQModel counts each down alone, 0 to 7
        return words((zeros - less) & 7, bits)
    ones = sum(1 << at for at in range(0, 32, bits))
    return (words(zeros, bits).view("<u4") - np.uint32(less * ones)).view("<i4")
