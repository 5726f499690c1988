"""Weights in floating-point numbers of eight or four bits, and in ternary ones: fp8, mxfp4, nvfp4,
BitNet's."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..config import Config
from ..tensor import ExportError, Tensor
from .stored import (
    BLOCK,
    Module,
    as_ternary,
    as_whole,
    bytes_of,
    halved,
    modules_with,
    scales_of,
    spread,
)

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _e4m3() -> np.ndarray:
    """float32 [256]: sign, 4 bits of exponent with bias 7, 3 bits of mantissa; no infinity, and one
    NaN a sign."""
    bits = np.arange(128)
    exponent, mantissa = bits >> 3, bits & 7
    positive = np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    )
    positive[127] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)


E4M3 = _e4m3()


def fp8(q: Config, left: dict[str, Tensor]) -> None:
    """DeepSeek's: a scale for each block of weights, or one for the matrix."""
    if q.get("fmt") != "float8_e4m3fn":  # torch's name of e4m3
        q.require(fmt="e4m3")
    q.require(scale_fmt="float", expert_dtype="fp8")
    q.choice("activation_scheme", {"dynamic": None, "static": None}, "dynamic")
    q.ignore("modules_to_not_convert", "modules_to_convert", "ignored_layers", "dequantize")
    block = block_of(q.get("weight_block_size"), f"{q.where}: weight_block_size")
    for module in modules_with(left, "weight_scale_inv"):
        module.drop("activation_scale")
        scaled_fp8(module, "weight_scale_inv", block)


def block_of(sizes, where: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None: of no blocks. Errors: ExportError."""
    if sizes is None:
        return None
    whole = isinstance(sizes, list) and all(type(n) is int and n > 0 for n in sizes)
    if not whole or len(sizes) != 2:
        raise ExportError(f"{where} is {sizes!r}, expected two sizes")
    return tuple(sizes)


def fbgemm_fp8(q: Config, left: dict[str, Tensor]) -> None:
    """A scale for each row."""
    q.ignore("activation_scale_ub", "modules_to_not_convert")
    for module in modules_with(left, "weight_scale"):
        module.drop("input_scale", "input_scale_ub")
        scaled_fp8(module, "weight_scale", None)


def scaled_fp8(module: Module, name: str, block: tuple[int, int] | None) -> None:
    """E4M3 numbers times the scale of their block, or of their row or matrix."""
    weight = module.take("weight", -1, -1)
    if block:
        module.left[f"{module.name}.weight"] = fp8_blocks(weight, module.take(name, -1, -1), *block)
        return
    raw, scale = bytes_of(weight), scales_of(module, name, weight.shape[0], 1)

    def load():
        rows, factors = raw.load(), spread(scale.array(), weight.shape[0], 1)
        return lambda a, b: E4M3[rows(a, b).astype(np.uint8)] * factors[a:b]

    module.left[f"{module.name}.weight"] = Tensor(weight.name, weight.shape, load)


def modelopt(q: Config, left: dict[str, Tensor]) -> None:
    """NVIDIA's: fp8 with a scale for the matrix, or nvfp4."""
    q.choice("quant_algo", {"FP8": None, "NVFP4": None})
    q.ignore("ignore", "exclude_modules", "producer", "config_groups", "group_size", "targets")
    q.ignore("kv_cache_scheme", "kv_cache_quant_algo")
    for module in modules_with(left, "weight_scale"):
        module.drop("input_scale")
        if f"{module.name}.weight_scale_2" in left:
            nvfp4(module, "weight", "weight_scale_2", divides=False)
        else:
            scaled_fp8(module, "weight_scale", None)
    for module in modules_with(left, "k_scale") + modules_with(left, "v_scale"):
        module.drop("k_scale", "v_scale")


def nvfp4(module: Module, name: str, of_all: str, divides: bool) -> None:
    """E2M1 numbers, two a byte and the lower four bits first, times an E4M3 scale for 16 of them,
    which is multiplied, or divided, by one number for the matrix."""
    packed = module.take(name, -1, -1)
    n_out, n_in = packed.shape[0], 2 * packed.shape[1]
    scale, one = module.take("weight_scale", n_out, -(-n_in // 16)), module.take(of_all, 1)
    codes, scales = bytes_of(packed), bytes_of(scale)

    def load():
        rows, of_rows, factor = codes.load(), scales.load(), one.array()

        def take(a: int, b: int) -> np.ndarray:
            factors = E4M3[of_rows(a, b).astype(np.uint8)]
            factors = factors / factor if divides else factors * factor
            return _fp4(rows(a, b)) * np.repeat(factors, 16, 1)[:, :n_in]

        return take

    module.left[f"{module.name}.weight"] = Tensor(packed.name, (n_out, n_in), load)


def _fp4(rows: np.ndarray) -> np.ndarray:
    """The numbers of bytes that hold two each, along the last axis."""
    byte = rows.astype(np.uint8)
    return FP4[np.stack([byte & 15, byte >> 4], -1)].reshape(*byte.shape[:-1], -1)


def _mxfp4_blocks(codes: Tensor, powers: Tensor) -> Callable[[], Callable]:
    """A tensor's `blocks`, of bytes [.., n / 2] or [.., n / 32, 16] and of powers [.., n / 32]."""

    def blocks():
        rows, of_rows = codes.load(), powers.load()

        def take(a: int, b: int) -> np.ndarray:
            byte, power = (read(a, b).astype(np.uint8) for read in (rows, of_rows))
            pairs = np.stack([byte & 15, byte >> 4], -1).reshape(*power.shape, BLOCK)
            found = np.concatenate([power[..., None], halved(pairs)], -1)
            return found.reshape(*power.shape[:-1], -1)

        return take

    return blocks


def mxfp4_experts(q: Config, left: dict[str, Tensor]) -> None:
    """gpt-oss: the matrices of all experts."""
    q.ignore("modules_to_not_convert", "dequantize")
    for name in [name for name in left if name.endswith("_blocks")]:
        scales = name[: -len("blocks")] + "scales"
        if scales not in left:
            raise ExportError(f"the checkpoint lacks the tensor {scales}")
        left[name] = mxfp4(left[name], left.pop(scales))


def mxfp4_rows(module: Module) -> None:
    """compressed-tensors' mxfp4-pack-quantized: rows of bytes."""
    packed = module.take("weight_packed", -1, -1)
    n_out, n_in = packed.shape[0], 2 * packed.shape[1]
    codes, powers = (
        bytes_of(packed),
        bytes_of(module.take("weight_scale", n_out, -(-n_in // BLOCK))),
    )

    def load():
        rows, of_rows = codes.load(), powers.load()

        def take(a: int, b: int) -> np.ndarray:
            power = np.repeat(of_rows(a, b).astype(np.int32) - 127, BLOCK, 1)[:, :n_in]
            return np.ldexp(_fp4(rows(a, b)), power)

        return take

    kept = {} if n_in % BLOCK else {"stored": "MXFP4", "blocks": _mxfp4_blocks(codes, powers)}
    module.left[f"{module.name}.weight"] = Tensor(packed.name, (n_out, n_in), load, **kept)


def bitnet(q: Config, left: dict[str, Tensor]) -> None:
    """Only matrices that were packed; the reference also rounds what they multiply to int8, which
    nothing forces us to do."""
    kind = q.choice("linear_class", {k: k for k in ("bitlinear", "autobitlinear")}, "bitlinear")
    q.require(quantization_mode="offline", use_rms_norm=False)
    q.ignore("rms_norm_eps", "modules_to_not_convert")  # eps: of the norm that is not there
    for module in modules_with(left, "weight_scale"):
        weight, scale = module.take("weight", -1, -1), module.find("weight_scale")
        module.left[f"{module.name}.weight"] = ternary(weight, scale, divide=kind == "bitlinear")


def ternary(packed: Tensor, scale: Tensor, divide: bool) -> Tensor:
    """A matrix of -1, 0 and 1 times (or divided by) one scale: byte (i, k) of R / 4 rows has two
    bits, plus one, for each of the rows i, i + R / 4, i + 2 R / 4, i + 3 R / 4, the lowest
    first."""
    quarter, *rest = packed.shape
    raw = bytes_of(packed)

    def numbers():
        rows = raw.load()

        def unpack(a: int, b: int) -> np.ndarray:
            parts = []
            for j in range(a // quarter, -(-b // quarter)):
                begin, end = max(a, j * quarter), min(b, (j + 1) * quarter)
                bits = rows(begin - j * quarter, end - j * quarter).astype(np.uint8) >> (2 * j) & 3
                parts.append(bits.astype(np.int8) - np.int8(1))
            return np.concatenate(parts)

        return unpack

    def load():
        rows, factor = numbers(), np.float32(scale.array().reshape(-1)[0])
        factor = np.float32(1) / factor if divide else factor
        return lambda a, b: rows(a, b).astype(np.float32) * factor

    def blocks():
        rows, factor = numbers(), scale.array().reshape(-1)[0]

        def kept(a: int, b: int) -> np.ndarray:
            scales = np.full((b - a, rest[0] // columns), factor, np.float32)
            if columns == BLOCK:
                return as_whole(packed.name, stored, rows(a, b), scales)
            return as_ternary(packed.name, rows(a, b), scales)

        return kept

    stored, columns = ("Q4_0", BLOCK) if rest[-1] % 256 else ("TQ2_0", 256)
    # What divides is no f16.
    whole = not divide and len(rest) == 1 and rest[0] % BLOCK == 0
    kept = {"stored": stored, "blocks": blocks} if whole else {}
    return Tensor(packed.name, (4 * quarter, *rest), load, **kept)


def fp8_blocks(weight: Tensor, scales: Tensor, height: int, width: int) -> Tensor:
    """E4M3 numbers [n_out, n_in], times the scale of their block of height x width; the last ones
    may be partial."""
    n_out, n_in = weight.shape if len(weight.shape) == 2 else (0, 0)
    if tuple(scales.shape) != (-(-n_out // height), -(-n_in // width)):
        raise ExportError(
            f"tensor {scales.name} has shape {list(scales.shape)}, its weight {list(weight.shape)}"
        )
    raw = bytes_of(weight)

    def load():
        rows, scale = raw.load(), scales.array()

        def take(a: int, b: int) -> np.ndarray:
            of_rows = scale[np.arange(a, b) // height]
            return E4M3[rows(a, b).astype(np.uint8)] * np.repeat(of_rows, width, 1)[:, :n_in]

        return take

    return Tensor(weight.name, weight.shape, load)


def mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """E2M1 numbers, two a byte and the lower four bits first, [.., n / 32, 16 bytes], times a power
    of two a block, [.., n / 32] with bias 127: [.., n]."""
    if blocks.shape[:-1] != scales.shape or blocks.shape[-1] != BLOCK // 2:
        raise ExportError(
            f"tensor {scales.name} has shape {list(scales.shape)}, its blocks {list(blocks.shape)}"
        )
    codes, powers = bytes_of(blocks), bytes_of(scales)
    shape = (*blocks.shape[:-2], blocks.shape[-2] * BLOCK)

    def load():
        rows, scale = codes.load(), powers.load()

        def take(a: int, b: int) -> np.ndarray:
            power = scale(a, b).astype(np.int32)[..., None] - 127
            return np.ldexp(_fp4(rows(a, b)), power).reshape(b - a, *shape[1:])

        return take

    return Tensor(blocks.name, shape, load, stored="MXFP4", blocks=_mxfp4_blocks(codes, powers))
