"""Chooses the matrices of a four-bit file that keep eight bits, those whose rounding costs most a
byte; and of a mixed file, the type of each matrix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, Sequence

from ..checkpoint import dtype_of
from ..tensor import ExportError, Tensor

# Bits a weight that the matrices of layers may have together, scales included.
BITS = {"q4": 4.69, "q4m": 5.65}
LEAST, MOST = 4.5, 8.5  # of q4 and q8
MIXED = "mixed"  # a file of which each matrix has a type of its own
# The types of a mixed file: bits a weight, and the mean square of what rounding changes, of normal
# weights. Each buys less for a bit than the one before it.
WIDTHS = {
    "q2": (2.3125, 0.1),
    "q3": (3.3125, 0.0233),
    "q4": (4.5, 0.0053),
    "q5": (5.3125, 0.0016),
    "q6": (6.3125, 0.0004),
    "q8": (8.5, 0.000024),
}
LEAST_MIXED = 2.6
# The cost of rounding a kind to four bits, as divergence a weight, where nothing was measured: on
# two real models attn_v costs ten times what others do (docs/accuracy.md).
PRIOR = {"attn_v": 20.0, "attn_v_up": 20.0, "attn_k": 3.0, "ffn_down": 2.5, "expert_down": 2.5}


@dataclass(frozen=True)
class Rounding:
    """How matrices are rounded: to `dtype`, q4, q8 or mixed; but for q8, the bits that they may have
    a weight; and whether codes and costs come from running texts, the model's own or a file's."""

    dtype: str
    bits: float = MOST
    calibrated: bool = False
    text: str | None = None


def rounding_of(
    dtype: str, bits: float | None = None, calibrated: bool = False, text: str | None = None
) -> Rounding | None:
    """How a --dtype rounds; None: all matrices to the nearest numbers of one type."""
    if dtype == MIXED:
        return Rounding(MIXED, bits, calibrated, text or None)
    if dtype in BITS:
        return Rounding("q4", BITS[dtype] if bits is None else bits, calibrated, text or None)
    return Rounding(dtype, calibrated=True, text=text or None) if calibrated else None


def same_matrices(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each tensor the first with the same data."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def rounded_matrices(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, str]:
    """The matrices that a q4, q8 or mixed file holds in that type, and for each the first with the
    same data."""
    rounded = {n: t for n, t in tensors.items() if dtype_of(n, t, dtype) == dtype}
    return same_matrices(rounded)


def sizes_of(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, int]:
    """Weights of the matrices that are held in it, those with the same data once."""
    return {
        name: tensors[name].shape[0] * tensors[name].shape[1]
        for name in dict.fromkeys(rounded_matrices(tensors, dtype).values())
    }


def prior(sizes: Mapping[str, int]) -> dict[str, float]:
    """Costs of matrices by what such ones cost in other models."""
    return {name: PRIOR.get(name.split(".")[-1], 1.0) * size for name, size in sizes.items()}


def eight_bits(sizes: Mapping[str, int], costs: Mapping[str, float], bits: float) -> frozenset[str]:
    """The matrices that get eight bits, given sizes and costs of rounding to four, so
    that all have at most `bits` a weight: the most costly for their size first. Errors:
    ExportError."""
    if not LEAST <= bits <= MOST:
        raise ExportError(f"--bits {bits:g}: expected {LEAST:g} (all q4) to {MOST:g} (all q8)")
    left = (bits - LEAST) / (MOST - LEAST) * sum(sizes.values())
    chosen = set()
    for name in sorted(sizes, key=lambda name: -costs[name] / sizes[name]):
        if sizes[name] <= left:
            left -= sizes[name]
            chosen.add(name)
    return frozenset(chosen)


def widths(sizes: Mapping[str, int], costs: Mapping[str, float], bits: float) -> dict[str, str]:
    """The type of each matrix, so that all have at most `bits` a weight and what they cost together
    is least; given sizes and costs in q4, which grow with the square of what rounding changes.
    Errors: ExportError."""
    if not LEAST_MIXED <= bits <= MOST:
        raise ExportError(
            f"--bits {bits:g}: expected {LEAST_MIXED:g} (most of it q2) to {MOST:g} (all q8)"
        )
    left = (bits - WIDTHS["q2"][0]) * sum(sizes.values())
    chosen = dict.fromkeys(sizes, "q2")
    steps = []  # what a step to the next type saves for each bit of the file, at most first
    for lower, upper in zip(list(WIDTHS), list(WIDTHS)[1:]):
        more = WIDTHS[upper][0] - WIDTHS[lower][0]
        saved = (WIDTHS[lower][1] - WIDTHS[upper][1]) / WIDTHS["q4"][1]
        steps += [(saved * costs[n] / (more * sizes[n]), n, lower, upper, more) for n in sizes]
    for _, name, lower, upper, more in sorted(steps, key=lambda step: -step[0]):
        # One that did not fit leaves its matrix where it is.
        if chosen[name] == lower and more * sizes[name] <= left:
            left -= more * sizes[name]
            chosen[name] = upper
    return chosen


def described(names: Sequence[str]) -> str:
    """Matrices of layers by kind: "attn_v; ffn_down of layers 1, 3-5"."""
    kinds: dict[str, list[int]] = {}
    for name in names:
        found = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        kinds.setdefault(found[2] if found else name, []).append(int(found[1]) if found else -1)
    return "; ".join(
        kind if layers == [-1] else f"{kind} of layers {_ranges(sorted(layers))}"
        for kind, layers in sorted(kinds.items())
    )


def _ranges(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
