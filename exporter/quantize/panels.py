"""Weights to the panels of docs/format.md and back: 16 output rows side by side, the input
dimension outermost.

`pack` and `unpack` take any number of rows and columns; the last panel and the last block are
filled up."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Callable, NamedTuple, Sequence

import numpy as np

from ..native import native

LANES, BLOCK = 16, 32
SHARING = 8  # blocks that share an f16
F16_MAX = 65504.0
LEAST_SHARED = np.float32(
    2**-14
)  # below it f16 has no 11 bits, and 127 times it is not found again
# The file holds this much of H w; the engine's H x / 8 makes up for the rest of H H = 32.
TURNED_W = np.float32(0.25)


class Rounded(NamedTuple):
    """How turned weights over their scale become codes, which share a scale in blocks of 32."""

    nearest: Callable[[np.ndarray], np.ndarray]  # the values that the type has
    codes: Callable[[np.ndarray], np.ndarray]  # of values
    values: Callable[[np.ndarray], np.ndarray]  # of codes
    trials: tuple[float, ...]  # values that the largest weight of a block is tried as
    signed: bool = True  # the largest weight with its sign


def _integers(zero: int, most: int, trials: tuple[float, ...], signed: bool = True) -> Rounded:
    """The integers from -zero, or -most, to most; code `zero` is 0."""
    least = -zero if signed else -most
    return Rounded(
        nearest=lambda numbers: np.clip(np.rint(numbers), least, most),
        codes=lambda values: values + zero,
        values=lambda codes: codes.astype(np.float32) - zero,
        trials=trials,
        signed=signed,
    )


def _listed(numbers: tuple[int, ...], trials: tuple[float, ...]) -> Rounded:
    """Code c is numbers[c]. A weight over its scale is doubled, rounded and looked up: the limits
    between codes are halves, so doubling loses nothing but ties."""
    table = np.array(numbers, np.float32)
    nearest = np.searchsorted((table[1:] + table[:-1]) / 2, np.arange(-256, 257) / 2)
    nearest = nearest.astype(np.uint8)
    value = table[nearest]

    def place(numbers: np.ndarray) -> np.ndarray:
        return (np.rint(np.clip(2 * numbers, -256, 256)) + 256).astype(np.intp)

    return Rounded(
        nearest=lambda numbers: value[place(numbers)],
        codes=lambda values: nearest[place(values)],
        values=lambda codes: table[codes],
        trials=trials,
    )


class Dtype(NamedTuple):
    """A type of numbers: a row of the engine's table, math/dtypes.c."""

    code: int  # in a checkpoint
    bits: int  # of a number, without scales
    block: int  # a row's numbers are padded to a multiple of it
    scales: int = 0  # bytes that a block of 16 rows has beside its codes
    shared: int = 0  # bytes that 256 columns of 16 rows have beside those
    rounded: Rounded | None = None  # of a type that weights are rounded to in blocks


DTYPES = {
    "f32": Dtype(0, 32, 1),
    "bf16": Dtype(1, 16, BLOCK),
    "q8": Dtype(
        2,
        8,
        BLOCK,
        32,
        rounded=_integers(128, 127, (127.4, 127.0, 126.5, 126.0, 125.5, 125.0, 124.5), False),
    ),
    "q4": Dtype(
        3,
        4,
        BLOCK,
        32,
        rounded=_listed(
            (-127, -95, -74, -58, -44, -31, -20, -8, 4, 16, 29, 42, 56, 72, 91, 114),
            (-127.0, -118.0, -110.0, -136.0, -146.0, 114.0, 106.0, 99.0, 122.0, 131.0),
        ),
    ),
    "f16": Dtype(4, 16, 1),
    # GGUF's types, whose numbers are kept (kept.py).
    "q8_0": Dtype(5, 8, BLOCK, 32),
    "q4_0": Dtype(6, 4, BLOCK, 32),
    "q4_1": Dtype(7, 4, BLOCK, 64),
    "q5_0": Dtype(8, 5, BLOCK, 32),
    "q5_1": Dtype(9, 5, BLOCK, 64),
    "iq4_nl": Dtype(10, 4, BLOCK, 32),
    "mxfp4": Dtype(11, 4, BLOCK, 32),
    "q4_k": Dtype(12, 4, BLOCK, 32, 64),
    "q5_k": Dtype(13, 5, BLOCK, 32, 64),
    "q6_k": Dtype(14, 6, BLOCK, 32, 32),
    "iq4_xs": Dtype(15, 4, BLOCK, 32, 64),
    # 256 columns share an f16, of which each 32 have an int8.
    "q2": Dtype(
        16,
        2,
        BLOCK,
        16,
        32,
        rounded=_listed(
            (-30, -10, 5, 22), (-30.0, -28.0, -26.0, -32.0, -34.0, 22.0, 20.5, 19.0, 23.5, 25.0)
        ),
    ),
    "q3": Dtype(
        17,
        3,
        BLOCK,
        16,
        32,
        rounded=_listed(
            (-29, -17, -10, -4, 2, 8, 15, 24),
            (-29.0, -27.0, -25.0, -31.0, -33.5, 24.0, 22.5, 21.0, 25.5, 27.5),
        ),
    ),
    "q5": Dtype(
        18,
        5,
        BLOCK,
        16,
        32,
        rounded=_integers(16, 15, (-16.0, -15.4, -14.8, -16.6, 15.0, 14.4, 13.8, 15.6)),
    ),
    "q6": Dtype(19, 6, BLOCK, 16, 32, rounded=_integers(32, 31, (-32.0, -30.5, 31.0, 29.5))),
    "tq2_0": Dtype(20, 2, BLOCK, 16, 32),  # GGUF's
}
NAMES = {kind.code: name for name, kind in DTYPES.items()}
WEIGHTS = ("f32", "bf16", "q8", "q6", "q5", "q4", "q3", "q2")  # that any weights can be rounded to


def block_bytes(dtype: str) -> int:
    """Bytes of a block of 16 rows, without their scales."""
    return LANES * BLOCK * DTYPES[dtype].bits // 8


def panel_bytes(dtype: str, n_in: int) -> int:
    """Bytes of one panel of 16 rows with n_in columns."""
    kind = DTYPES[dtype]
    columns, blocks = -(-n_in // kind.block) * kind.block, -(-n_in // BLOCK)
    scales = (blocks + blocks % 2) * kind.scales + -(-blocks // SHARING) * kind.shared
    return LANES * columns * kind.bits // 8 + -(-scales // 64) * 64


def value_bytes(dtype: str, width: int) -> int:
    """Bytes of one cached value of `width` numbers, padded to whole blocks of scaled types."""
    kind = DTYPES[dtype]
    blocks = -(-width // BLOCK)
    return blocks * (BLOCK * kind.bits // 8 + 2) if kind.scales else width * kind.bits // 8


def pack(weights: np.ndarray, dtype: str) -> tuple[bytes, float]:
    """float32 weights [n_out, n_in] as panels of `dtype`, and the sum of squares of what rounding
    changed. The library makes types of `rounded` where it is built, and numpy all else: the same bytes.

    Errors: OverflowError if a weight is larger than the dtype holds."""
    weights = np.ascontiguousarray(weights, np.float32)
    library = _library() if DTYPES[dtype].rounded else None
    if not library:
        return pack_numpy(weights, dtype)
    panels = np.empty(-(-len(weights) // LANES) * panel_bytes(dtype, weights.shape[1]), np.uint8)
    error = ctypes.c_double()
    given = (weights.ctypes.data, *weights.shape, panels.ctypes.data, panels.size)
    try:
        library.calls.pack(dtype.encode(), *given, ctypes.byref(error))
    except library.InputError:  # a weight is too large, or the library lacks the type
        return pack_numpy(weights, dtype)
    return panels.tobytes(), error.value


@functools.lru_cache(maxsize=None)
def _library():
    try:
        return native()
    except ImportError:
        return None


def pack_numpy(weights: np.ndarray, dtype: str) -> tuple[bytes, float]:
    """As pack(), without the library."""
    weights = _pad(weights, dtype)
    if dtype == "f32":
        return _interleave(weights, 1).tobytes(), 0.0
    if dtype == "f16":
        halves = _to_f16(weights)
        return _interleave(halves.astype(np.float16), 1).tobytes(), square_sum(halves - weights)
    if dtype == "bf16":
        bits = _to_bf16(weights)
        return _interleave(bits, 2).tobytes(), square_sum(_from_bf16(bits) - weights)
    with np.errstate(over="ignore", invalid="ignore"):  # too large is found below
        turned = (hadamard(weights.reshape(-1, BLOCK)) * TURNED_W).reshape(weights.shape)
    blocks = quantize_blocks(turned, dtype)
    error = square_sum(blocks.weights() - turned) / (BLOCK * TURNED_W**2)
    return pack_blocks(blocks, dtype), error


@dataclass(frozen=True)
class Blocks:
    """Turned weights in blocks of 32: `values` float32 [n_out, n_in], numbers that a type has, and
    `scale` float32 [n_out, blocks], which it can hold. Values of all types are values of q8 too."""

    values: np.ndarray
    scale: np.ndarray

    def weights(self) -> np.ndarray:
        return self.values * np.repeat(self.scale, BLOCK, 1)


def quantize_blocks(turned: np.ndarray, dtype: str) -> Blocks:
    """Turned weights [n_out, n_in], n_in a multiple of 32, as the closest to them of a type of
    `rounded`. Errors: OverflowError."""
    kind, blocks = DTYPES[dtype].rounded, turned.reshape(-1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)[:, 0]

    def numbers(per_scale):
        return kind.nearest(blocks * per_scale[:, None])

    scale = _best_scale(blocks, largest if kind.signed else np.abs(largest), kind.trials, numbers)
    scale = held_scale(scale.reshape(len(turned), -1), dtype)
    return Blocks(numbers(inverse(scale.reshape(-1))).reshape(turned.shape), scale)


def held_scale(scale: np.ndarray, dtype: str) -> np.ndarray:
    """The scales [n_out, blocks] nearest to these, each exact in f16, that a type can hold."""
    if not DTYPES[dtype].shared:
        return scale
    integers, shared = _of_shared(scale)
    return integers * np.repeat(shared / np.float32(128), SHARING, 1)[:, : scale.shape[1]]


def _of_shared(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales as integers times f16s over 128, which SHARING blocks of a row share: of scales that
    held_scale() gave, the same ones."""
    filled = np.pad(scale, ((0, 0), (0, -scale.shape[1] % SHARING)))
    groups = filled.reshape(len(scale), -1, SHARING)
    shared = _to_f16(np.abs(groups).max(2) * np.float32(128 / 127))
    shared = np.maximum(shared, LEAST_SHARED)
    integers = np.clip(np.rint(groups * inverse(shared / 128)[..., None]), -127, 127)
    return integers.reshape(filled.shape)[:, : scale.shape[1]], shared


def rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """The values of a type nearest to numbers, which are turned weights by their scale."""
    return DTYPES[dtype].rounded.nearest(numbers)


def pack_blocks(blocks: Blocks, dtype: str) -> bytes:
    """The bytes of the panels that hold them; the last one is filled up."""
    fill = ((0, -len(blocks.values) % LANES), (0, 0))
    values, scale = np.pad(blocks.values, fill), np.pad(blocks.scale, fill)
    codes = DTYPES[dtype].rounded.codes(values)
    return _pack_codes(codes.astype(np.uint8), scale, dtype)


def hadamard(blocks: np.ndarray) -> np.ndarray:
    """float32 [n][32] times the 32 x 32 Hadamard matrix, whose square is 32 (docs/format.md:
    transformed blocks)."""
    for stride in (16, 8, 4, 2, 1):
        pairs = blocks.reshape(-1, 2, stride)
        blocks = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1)
    return blocks.reshape(-1, BLOCK)


def unpack(data: bytes, dtype: str, n_out: int, n_in: int) -> np.ndarray:
    """The float32 weights [n_out, n_in] that panels of `dtype` stand for; the inverse of `pack`."""
    panels = -(-n_out // LANES)
    if dtype == "f32":
        weights = _deinterleave(np.frombuffer(data, np.float32), panels, 1)
    elif dtype == "f16":
        weights = _deinterleave(np.frombuffer(data, np.float16).astype(np.float32), panels, 1)
    elif dtype == "bf16":
        weights = _from_bf16(_deinterleave(np.frombuffer(data, np.uint16), panels, 2))
    else:
        turned = unpack_blocks(data, dtype, n_out, n_in).weights()
        weights = hadamard(turned.reshape(-1, BLOCK)).reshape(turned.shape) / (BLOCK * TURNED_W)
        return np.ascontiguousarray(weights[:, :n_in])
    return np.ascontiguousarray(weights.reshape(panels * LANES, -1)[:n_out, :n_in])


def unpack_blocks(data: bytes, dtype: str, n_out: int, n_in: int) -> Blocks:
    """The blocks in panels of a type of `rounded`, without the rows that fill them up; the inverse of
    `pack_blocks`."""
    panels, blocks = -(-n_out // LANES), -(-n_in // BLOCK)
    raw = np.frombuffer(data, np.uint8).reshape(panels, -1)
    kind, at = DTYPES[dtype], block_bytes(dtype) * blocks
    codes = unfold(raw[:, :at].reshape(panels, blocks, -1), kind.bits)

    def of_blocks(at: int, n: int, dtype: str) -> np.ndarray:
        """float32 [16 P][n] of what n blocks have from there on."""
        held = raw[:, at : at + n * LANES * np.dtype(dtype).itemsize]
        held = np.ascontiguousarray(held).view(dtype).astype(np.float32)
        return held.reshape(panels, n, LANES).transpose(0, 2, 1).reshape(-1, n)

    scale = of_blocks(at, blocks, "i1" if kind.shared else "<f2")
    if kind.shared:
        at += (blocks + blocks % 2) * kind.scales
        shared = of_blocks(at, -(-blocks // SHARING), "<f2") / np.float32(128)
        scale = scale * np.repeat(shared, SHARING, 1)[:, :blocks]
    values = kind.rounded.values(codes)
    values = values.transpose(0, 3, 1, 2, 4).reshape(panels * LANES, -1)
    return Blocks(values[:n_out], scale[:n_out])


def _pad(weights: np.ndarray, dtype: str) -> np.ndarray:
    n_out, n_in = weights.shape
    down, right = -n_out % LANES, -n_in % DTYPES[dtype].block
    return np.pad(weights, ((0, down), (0, right))) if down or right else weights


def _interleave(rows: np.ndarray, width: int) -> np.ndarray:
    """[16 P][K] -> [P][K / width][16][width]."""
    return rows.reshape(-1, LANES, rows.shape[1] // width, width).transpose(0, 2, 1, 3)


def _deinterleave(values: np.ndarray, panels: int, width: int) -> np.ndarray:
    return values.reshape(panels, -1, LANES, width).transpose(0, 2, 1, 3)


def square_sum(x: np.ndarray) -> float:
    return float(
        np.square(x, dtype=np.float64).sum()
    )  # no BLAS, whose threads spin after a product


def _to_bf16(weights: np.ndarray) -> np.ndarray:
    """The upper half of each float32, rounded to nearest even."""
    bits = weights.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if ((rounded & 0x7FFF) == 0x7F80).any():
        raise OverflowError
    return rounded


def _from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _best_scale(blocks, largest, trials, numbers) -> np.ndarray:
    """The f16 scale s [n] of each block w that brings s q closest to w, where q = numbers(1 / s).

    For given q the best s is w.q / q.q, and leaves an error of w.w - (w.q)^2 / q.q. Each trial is a
    number that the largest weight becomes. The best trial is the one
    whose q has the largest (w.q)^2 / q.q; its s gives a last q, and that gives the final s."""
    if not (np.abs(largest) <= 127 * F16_MAX).all():
        raise OverflowError

    def fit(per_scale):
        q = numbers(per_scale)
        product, norm = _dots(blocks, q), np.maximum(_dots(q, q), np.float32(1))
        return product / norm, product * product / norm

    per_largest = inverse(largest)
    best = np.full(len(blocks), -1, np.float32)
    scale = np.zeros(len(blocks), np.float32)
    for trial in trials:
        s, gain = fit(np.float32(trial) * per_largest)
        better = gain > best
        best[better], scale[better] = gain[better], s[better]
    return _to_f16(fit(inverse(_to_f16(scale)))[0])


def _dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The products of rows of 32. Every machine has the same sums: four, each of which takes the
    later of four products first."""
    products = (a * b).reshape(-1, 2, 4, 4)
    sums = np.zeros((len(a), 4), np.float32)
    for half in (0, 1):
        for group in (3, 2, 1, 0):
            sums += products[:, half, group]
    return (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])


def _to_f16(scale: np.ndarray) -> np.ndarray:
    if not (np.abs(scale) <= F16_MAX).all():
        raise OverflowError
    return scale.astype(np.float16).astype(np.float32)


def inverse(x: np.ndarray) -> np.ndarray:
    """1 / x, and 0 where x is so small that a scale of it is none."""
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=np.abs(x) > np.float32(2**-100))


def _pack_codes(codes: np.ndarray, scale: np.ndarray, dtype: str) -> bytes:
    """codes uint8 [16 P][32 B], scale float32 [16 P][B] -> the bytes of P panels."""
    kind, panels, n_blocks = DTYPES[dtype], codes.shape[0] // LANES, scale.shape[1]
    # [P][B][8][16][4]
    groups = codes.reshape(panels, LANES, n_blocks, 8, 4).transpose(0, 2, 3, 1, 4)
    out, at = np.zeros((panels, panel_bytes(dtype, n_blocks * BLOCK)), np.uint8), 0

    def add(piece: np.ndarray) -> None:
        nonlocal at
        piece = np.ascontiguousarray(piece).reshape(panels, -1).view(np.uint8)
        out[:, at : at + piece.shape[1]] = piece
        at += piece.shape[1]

    def side_by_side(held: np.ndarray) -> np.ndarray:
        return held.reshape(panels, LANES, -1).transpose(0, 2, 1)  # [P][B][16]

    add(fold(groups, kind.bits))
    if kind.shared:
        integers, shared = _of_shared(scale)
        integers = np.pad(integers, ((0, 0), (0, n_blocks % 2)))
        add(side_by_side(integers.astype(np.int8)))
        add(side_by_side(shared.astype(np.float16)))
    else:
        add(side_by_side(scale.astype(np.float16)))
    return out.tobytes()


def _planes(bits: int) -> Sequence[int]:
    """The widths of the parts that codes are cut into, the lowest bits first: each divides 8."""
    return [width for width in (8, 4, 2, 1) if bits & width]


def fold(codes: np.ndarray, bits: int) -> np.ndarray:
    """The codes [..][8][16][4] of blocks as their bytes [..][8 bits][16][4] (docs/format.md)."""
    pieces = []
    for width in _planes(bits):
        part = codes & np.uint8((1 << width) - 1)
        part = part.reshape(*part.shape[:-3], width, 8 // width, LANES, 4)
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None, None]
        pieces.append(np.bitwise_or.reduce(part << shifts, -3))
        codes = codes >> width if width < 8 else codes
    return np.concatenate(pieces, -3)


def unfold(data: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of fold, of bytes [..][block_bytes]."""
    rows, codes, at = data.reshape(*data.shape[:-1], bits, 1, LANES, 4), np.uint8(0), 0
    for width in _planes(bits):
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None, None]
        part = rows[..., at : at + width, :, :, :] >> shifts & np.uint8((1 << width) - 1)
        codes = codes | part.reshape(*data.shape[:-1], 8, LANES, 4) << at
        at += width
    return codes
