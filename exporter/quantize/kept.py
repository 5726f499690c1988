"""Blocks of GGUF as panels of docs/format.md: the numbers stay, only their order changes. Layouts:
ggml's ggml-common.h, as the `gguf` package reads them."""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple

import numpy as np

from ..tensor import ExportError, Tensor
from .panels import BLOCK, DTYPES, LANES, fold, panel_bytes, unfold


class Parts(NamedTuple):
    """Rows of blocks, taken apart: codes uint8 [rows][n_in]; what each 32 columns have, uint16 or
    int8 [rows][n_in / 32] each; what each 256 share, uint16 [rows][n_in / 256] each."""

    codes: np.ndarray
    scales: tuple[np.ndarray, ...]
    shared: tuple[np.ndarray, ...] = ()


def _f16(blocks: np.ndarray, at: int) -> np.ndarray:
    """The f16 at byte `at` of each block, as bits."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.uint16)[..., 0]


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The lower halves of some bytes, then their upper halves."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _rows(codes: np.ndarray) -> np.ndarray:
    """[rows][blocks].. codes, a row's side by side."""
    return codes.reshape(len(codes), -1)


def _fifth_bits(blocks: np.ndarray) -> np.ndarray:
    """The bits of a little-endian number of 32, as bit 4 of 32 codes."""
    return np.unpackbits(blocks, axis=-1, bitorder="little") << 4


def _q8_0(b):
    return Parts(_rows(b[..., 2:34] ^ 128), (_f16(b, 0),))


def _four(b):
    return Parts(_rows(_nibbles(b[..., 2:18])), (_f16(b, 0),))


def _q4_1(b):
    return Parts(_rows(_nibbles(b[..., 4:20])), (_f16(b, 0), _f16(b, 2)))


def _q5_0(b):
    return Parts(_rows(_nibbles(b[..., 6:22]) | _fifth_bits(b[..., 2:6])), (_f16(b, 0),))


def _q5_1(b):
    codes = _nibbles(b[..., 8:24]) | _fifth_bits(b[..., 4:8])
    return Parts(_rows(codes), (_f16(b, 0), _f16(b, 2)))


def _mxfp4(b):
    """The scale 2^(e - 128) as f16. Errors: ExportError, where it is none and a number not 0."""
    codes, exponent = _nibbles(b[..., 1:17]), b[..., 0].astype(np.int32) - 128
    scale = np.ldexp(np.float32(1), exponent)
    f16 = scale.astype(np.float16)
    if ((f16 != scale) & (codes & 7).any(-1)).any():
        raise ExportError("a scale of MXFP4 lies outside of f16; give --dtype bf16")
    return Parts(_rows(codes), (np.where(f16 == scale, f16, np.float16(0)).view(np.uint16),))


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima of eight parts from 12 bytes (ggml's get_scale_min_k4)."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    return _rows(scales).view(np.int8), _rows(minima).view(np.int8)


def _sixty_fours(packed: np.ndarray) -> np.ndarray:
    """128 bytes, whose 32s have 32 codes in their lower halves and the next 32 in the upper."""
    return _nibbles(packed.reshape(*packed.shape[:-1], 4, 32)).reshape(*packed.shape[:-1], 256)


def _q4_k(b):
    codes = _sixty_fours(b[..., 16:144])
    return Parts(_rows(codes), _six_bits(b[..., 4:16]), (_f16(b, 0), _f16(b, 2)))


def _q5_k(b):
    fifth = b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _sixty_fours(b[..., 48:176]) | fifth.reshape(*fifth.shape[:-2], 256) << 4
    return Parts(_rows(codes), _six_bits(b[..., 4:16]), (_f16(b, 0), _f16(b, 2)))


def _halves(sixteens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales of 16 columns each: of the first halves of 32, and of the second ones."""
    scales = _rows(sixteens)
    return scales[:, 0::2], scales[:, 1::2]


def _q6_k(b):
    low = b[..., 0:128].reshape(*b.shape[:-1], 2, 64)
    high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
    high = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = _nibbles(low) | high.reshape(*low.shape[:-1], 128) << 4
    return Parts(_rows(codes), _halves(b[..., 192:208].view(np.int8)), (_f16(b, 208),))


def _q3_k(b):
    """As Q6_K, which has the same scales."""
    third = b[..., None, 0:32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    two = b[..., 32:96].reshape(*b.shape[:-1], 2, 1, 32)
    two = two >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = two.reshape(*b.shape[:-1], 256) + third.reshape(*b.shape[:-1], 256) * 4 + (32 - 4)
    packed, upper = b[..., 96:104], b[..., 104:108]
    low = np.concatenate([packed & 15, packed >> 4], -1)
    high = np.concatenate([upper >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    return Parts(_rows(codes.astype(np.uint8)), _halves(scales), (_f16(b, 108),))


def _iq4_xs(b):
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], -1).reshape(*b.shape[:-1], 8)
    high = _f16(b, 2)[..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    codes = _nibbles(b[..., 8:136].reshape(*b.shape[:-1], 8, 16))
    none = np.zeros_like(scales)
    d = _f16(b, 0)
    return Parts(_rows(codes), (_rows(scales), _rows(none)), (d, np.zeros_like(d)))


def _ternary(codes: np.ndarray, d: np.ndarray) -> Parts:
    """Codes 0, 1, 2 for -1, 0, 1 of 256 columns: of 128 parts of twice d each number has 64."""
    codes = _rows(codes)
    halves = np.full((len(codes), codes.shape[1] // BLOCK), 64, np.int8)
    return Parts(codes, (halves,), ((d.view(np.float16) * np.float16(2)).view(np.uint16),))


def _tq2_0(b):
    codes = (
        b[..., 0:64].reshape(*b.shape[:-1], 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    )
    return _ternary((codes & 3).reshape(*b.shape[:-1], 256), _f16(b, 64))


def _tq1_0(b):
    """Five numbers in a byte, as the fractions of 256 whose digits in base three they are."""

    def digits(packed: np.ndarray, n: int) -> np.ndarray:
        powers = np.array([1, 3, 9, 27, 81][:n], np.uint8)[:, None]
        digits = (packed[..., None, :] * powers).astype(np.uint16) * 3 >> 8
        return digits.astype(np.uint8).reshape(*packed.shape[:-1], -1)

    codes = [digits(b[..., 0:32], 5), digits(b[..., 32:48], 5), digits(b[..., 48:52], 4)]
    return _ternary(np.concatenate(codes, -1), _f16(b, 52))


class Source(NamedTuple):
    """A type of GGUF: columns and bytes of a block, the type that keeps its numbers, and how a
    block is taken apart."""

    columns: int
    bytes: int
    dtype: str
    parts: Callable[[np.ndarray], Parts]


SOURCES = {
    "Q8_0": Source(32, 34, "q8_0", _q8_0),
    "Q4_0": Source(32, 18, "q4_0", _four),
    "Q4_1": Source(32, 20, "q4_1", _q4_1),
    "Q5_0": Source(32, 22, "q5_0", _q5_0),
    "Q5_1": Source(32, 24, "q5_1", _q5_1),
    "IQ4_NL": Source(32, 18, "iq4_nl", _four),
    "MXFP4": Source(32, 17, "mxfp4", _mxfp4),
    "Q4_K": Source(256, 144, "q4_k", _q4_k),
    "Q5_K": Source(256, 176, "q5_k", _q5_k),
    "Q6_K": Source(256, 210, "q6_k", _q6_k),
    "IQ4_XS": Source(256, 136, "iq4_xs", _iq4_xs),
    "Q3_K": Source(256, 110, "q6_k", _q3_k),
    "TQ1_0": Source(256, 54, "tq2_0", _tq1_0),
    "TQ2_0": Source(256, 66, "tq2_0", _tq2_0),
}


def pick_columns(matrix: Tensor, columns: np.ndarray) -> Tensor:
    """The columns of that index, in its order. Blocks go along where that moves whole ones."""
    source = SOURCES.get(matrix.stored)

    def picked(load, index: np.ndarray, width: int):
        """The columns, or the blocks of so many bytes, of that index."""
        rows = load()
        return lambda a, b: rows(a, b).reshape(b - a, -1, width)[:, index].reshape(b - a, -1)

    blocks = None
    if source and matrix.blocks:
        first = columns[:: source.columns] // source.columns
        whole = first[:, None] * source.columns + np.arange(source.columns)
        if np.array_equal(columns, whole.reshape(-1)):
            blocks = functools.partial(picked, matrix.blocks, first, source.bytes)
    return Tensor(
        matrix.name,
        (matrix.shape[0], len(columns)),
        functools.partial(picked, matrix.load, columns, 1),
        stored=None if source and not blocks else matrix.stored,
        blocks=blocks,
    )


def keep(rows: np.ndarray, kind: str) -> bytes:
    """The panels that hold rows of a type of SOURCES, uint8 [rows][bytes of a row]; the last one is
    filled up with zeros. Errors: ExportError."""
    source = SOURCES[kind]
    rows = np.pad(rows, ((0, -len(rows) % LANES), (0, 0)))
    parts = source.parts(rows.reshape(len(rows), -1, source.bytes))
    if not all(
        np.isfinite(f.view(np.float16)).all()
        for f in parts.scales + parts.shared
        if f.itemsize == 2
    ):
        raise ExportError(f"a scale of {kind} is not finite; the file is damaged")
    panels, n_in = len(rows) // LANES, parts.codes.shape[1]
    out = np.zeros((panels, panel_bytes(source.dtype, n_in)), np.uint8)
    at = 0
    for piece in (_codes(parts.codes, DTYPES[source.dtype].bits), *_side_by_side(parts)):
        piece = piece.reshape(panels, -1)
        out[:, at : at + piece.shape[1]] = piece
        at += -(-piece.shape[1] // 64) * 64
    return out.tobytes()


def _codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [16 P][32 B] -> the bytes of P panels. Four neighbours of a row are a word."""
    words = np.ascontiguousarray(codes).view("<u4").reshape(-1, LANES, codes.shape[1] // BLOCK, 8)
    words = np.ascontiguousarray(words.transpose(0, 2, 3, 1))  # [P][B][8][16]
    return fold(words.view(np.uint8).reshape(*words.shape, 4), bits)


def _side_by_side(parts: Parts) -> list[np.ndarray]:
    """What each block has, and what blocks share, of 16 rows side by side."""

    def panels(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        together = np.stack(arrays, -1)  # [16 P][B][parts]
        together = together.reshape(-1, LANES, *together.shape[1:]).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(together).view(np.uint8).reshape(len(together), -1)

    return [panels(arrays) for arrays in (parts.scales, parts.shared) if arrays]


# What code 0 means, or what each code does, of the types that keep numbers (docs/format.md).
LEAST = {"q8_0": -128, "q4_0": -8, "q5_0": -16, "q6_k": -32, "tq2_0": -1}
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], "f4")
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], "f4")
NUMBERS = {"iq4_nl": IQ4, "iq4_xs": IQ4, "mxfp4": E2M1}


def kept_numbers(data: bytes, dtype: str, n_out: int, n_in: int) -> np.ndarray:
    """The float32 weights [n_out, n_in] that panels of such a type stand for."""
    kind, panels, blocks = DTYPES[dtype], -(-n_out // LANES), -(-n_in // BLOCK)
    raw = np.frombuffer(data, np.uint8).reshape(panels, -1)
    at, after = 64 * kind.bits * blocks, kind.scales * (blocks + blocks % 2)

    def of_blocks(part: np.ndarray, n: int, type: str) -> list[np.ndarray]:
        """[16 P][n, 1] for each of what n blocks have."""
        values = np.ascontiguousarray(part).view(type).astype(np.float32)
        values = values.reshape(panels, n, -1, LANES).transpose(2, 0, 3, 1)
        return [v.reshape(-1, n)[..., None] for v in values]

    scales = of_blocks(
        raw[:, at : at + kind.scales * blocks], blocks, "i1" if kind.shared else "<f2"
    )
    if kind.shared:
        shared = raw[:, at + after :][:, : -(-blocks // 8) * kind.shared]
        shared = of_blocks(shared, -(-blocks // 8), "<f2")
        shared = [np.repeat(s, 8, 1)[:, :blocks] for s in shared]
        if kind.scales == 16:  # in parts of 128
            scales = [scales[0] / 128 * shared[0]]
        elif kind.shared == 32:  # of 16 columns
            scales = [np.repeat(np.concatenate(scales, -1), BLOCK // 2, -1) * shared[0]]
        else:
            scales = [scales[0] * shared[0], -(scales[1] * shared[1])]
    codes = _columns(raw[:, :at].reshape(panels, blocks, -1), kind.bits)
    numbers = NUMBERS[dtype][codes] if dtype in NUMBERS else codes.astype(np.float32)
    weights = (numbers + np.float32(LEAST.get(dtype, 0))) * scales[0]
    weights = weights + scales[1] if scales[1:] else weights
    return np.ascontiguousarray(weights.reshape(panels * LANES, -1)[:n_out, :n_in])


def _columns(blocks: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of _codes: [P][B][bytes of a block] -> uint8 [16 P][B][32]."""
    words = np.ascontiguousarray(unfold(blocks, bits)).view("<u4")[..., 0]  # [P][B][8][16]
    words = np.ascontiguousarray(words.transpose(0, 3, 1, 2))  # [P][16][B][8]
    return words.view(np.uint8).reshape(-1, blocks.shape[1], BLOCK)
