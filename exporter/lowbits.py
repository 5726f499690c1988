"""Weights that a checkpoint holds in fewer bits than a number of its own: fp8 in blocks (DeepSeek),
mxfp4 (gpt-oss), ternary ones (BitNet)."""

from __future__ import annotations

import numpy as np

from .config import Config
from .tensor import ExportError, Tensor

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
BLOCK = 32  # mxfp4 numbers that share a scale


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


def dequantize(c: Config, left: dict[str, Tensor]) -> None:
    """Replaces the tensors that quantization_config speaks of by what they stand for. Errors:
    ExportError."""
    values = c.get("quantization_config")
    if values is None:
        return
    if not isinstance(values, dict):
        raise ExportError(f"{c.where}: quantization_config is {values!r}, expected an object")
    q = Config(values, f"{c.where}: quantization_config")
    q.choice("quant_method", {"fp8": _fp8, "mxfp4": _mxfp4, "bitnet": _bitnet})(q, left)
    q.ignore("modules_to_not_convert")  # they have no scales
    q.finish()


def _fp8(q: Config, left: dict[str, Tensor]) -> None:
    # The latter rounds activations, which nothing forces us to do.
    q.require(fmt="e4m3", activation_scheme="dynamic")
    block = q.get("weight_block_size")
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(n) is int and n > 0 for n in block)
    ):
        raise ExportError(f"{q.where}: weight_block_size is {block!r}, expected two sizes")
    for name in [name for name in left if name.endswith(".weight_scale_inv")]:
        weight = name[: -len("_scale_inv")]
        if weight not in left:
            raise ExportError(f"the checkpoint lacks the tensor {weight}, whose scales it has")
        left[weight] = fp8_blocks(left[weight], left.pop(name), *block)


def _mxfp4(q: Config, left: dict[str, Tensor]) -> None:
    for name in [name for name in left if name.endswith("_blocks")]:
        scales = name[: -len("blocks")] + "scales"
        if scales not in left:
            raise ExportError(f"the checkpoint lacks the tensor {scales}")
        left[name] = mxfp4(left[name], left.pop(scales))


def _bitnet(q: Config, left: dict[str, Tensor]) -> None:
    """Only matrices that were packed; the reference also rounds what they multiply to int8, which
    nothing forces us to do."""
    kind = q.choice("linear_class", {k: k for k in ("bitlinear", "autobitlinear")}, "bitlinear")
    q.require(quantization_mode="offline", use_rms_norm=False)
    q.ignore("rms_norm_eps")  # of the norm that is not there
    for name in [name for name in left if name.endswith(".weight_scale")]:
        weight = name[: -len("_scale")]
        if weight not in left:
            raise ExportError(f"the checkpoint lacks the tensor {weight}, whose scale it has")
        left[weight] = ternary(left[weight], left.pop(name), divide=kind == "bitlinear")


def ternary(packed: Tensor, scale: Tensor, divide: bool) -> Tensor:
    """A matrix of -1, 0 and 1 times (or divided by) one scale: byte (i, k) of R / 4 rows has two
    bits, plus one, for each of the rows i, i + R / 4, i + 2 R / 4, i + 3 R / 4, the lowest
    first."""
    quarter, *rest = packed.shape
    raw = _bytes_of(packed)

    def load():
        rows = raw.load()
        factor = np.float32(scale.array().reshape(-1)[0])
        factor = np.float32(1) / factor if divide else factor

        def unpack(a: int, b: int) -> np.ndarray:
            parts = []
            for j in range(a // quarter, -(-b // quarter)):
                begin, end = max(a, j * quarter), min(b, (j + 1) * quarter)
                bits = rows(begin - j * quarter, end - j * quarter).astype(np.uint8) >> (2 * j) & 3
                parts.append((bits.astype(np.float32) - 1) * factor)
            return np.concatenate(parts)

        return unpack

    return Tensor(packed.name, (4 * quarter, *rest), load)


def _bytes_of(tensor: Tensor) -> Tensor:
    if tensor.raw is None:
        raise ExportError(
            f"tensor {tensor.name} is not stored in bytes, though quantization_config says so"
        )
    return tensor.raw


def fp8_blocks(weight: Tensor, scales: Tensor, height: int, width: int) -> Tensor:
    """E4M3 numbers [n_out, n_in], times the scale of their block of height x width; the last ones
    may be partial."""
    n_out, n_in = weight.shape if len(weight.shape) == 2 else (0, 0)
    if tuple(scales.shape) != (-(-n_out // height), -(-n_in // width)):
        raise ExportError(
            f"tensor {scales.name} has shape {list(scales.shape)}, its weight {list(weight.shape)}"
        )
    raw = _bytes_of(weight)

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
    codes, powers = _bytes_of(blocks), _bytes_of(scales)
    shape = (*blocks.shape[:-2], blocks.shape[-2] * BLOCK)

    def load():
        rows, scale = codes.load(), powers.load()

        def take(a: int, b: int) -> np.ndarray:
            byte = rows(a, b).astype(np.uint8)
            values = FP4[np.stack([byte & 15, byte >> 4], -1)].reshape(*byte.shape[:-1], BLOCK)
            return np.ldexp(values, scale(a, b).astype(np.int32)[..., None] - 127).reshape(
                b - a, *shape[1:]
            )

        return take

    return Tensor(blocks.name, shape, load)
