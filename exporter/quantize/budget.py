"""Chooses the type of each matrix of a file, so that what rounding costs is least for the bytes
that all may have together: q4 or q8 in a four-bit file, any in a mixed one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Sequence

from ..checkpoint import data_bytes, dtype_of
from ..tensor import ExportError, Tensor

# Bits a weight that the matrices of layers may have together, scales included.
BITS = {"q4": 4.69, "q4m": 5.65}
MIXED = "mixed"  # a file of which each matrix has a type of its own
# Bits a weight, and the mean square of what rounding changes, of normal weights.
WIDTHS = {
    "q2": (2.3125, 0.1),
    "q3": (3.3125, 0.0233),
    "q4": (4.5, 0.0053),
    "q5": (5.3125, 0.0016),
    "q6": (6.3125, 0.0004),
    "q8": (8.5, 0.000024),
}
CHOICES = {"q4": ("q4", "q8"), "q8": ("q8",), MIXED: tuple(WIDTHS)}  # the types in a file of one
POINTS = 8  # of a curve
# The cost of rounding a kind to four bits, as divergence a weight, where nothing was measured: on
# two real models attn_v costs ten times what others do (docs/accuracy.md).
PRIOR = {"attn_v": 20.0, "attn_v_up": 20.0, "attn_k": 3.0, "ffn_down": 2.5, "expert_down": 2.5}


Shapes = Mapping[str, "tuple[int, int]"]


@dataclass(frozen=True)
class Rounding:
    """How matrices are rounded: to `dtype`, q4, q8 or mixed; the bits that they may have a weight,
    or the bytes that the file or ./run may take; and whether codes and costs come from running
    texts, the model's own or a file's."""

    dtype: str
    bits: float | None = None
    size: int | None = None
    memory: int | None = None
    calibrated: bool = False
    text: str | None = None


def rounding_of(
    dtype: str,
    bits: float | None = None,
    calibrated: bool = False,
    text: str | None = None,
    size: int | None = None,
    memory: int | None = None,
) -> Rounding | None:
    """How a --dtype rounds; None: all matrices to the nearest numbers of one type."""
    if dtype == MIXED or dtype in BITS:
        if bits is size is memory is None:
            bits = BITS[dtype]
        kind = MIXED if dtype == MIXED else "q4"
        return Rounding(kind, bits, size, memory, calibrated, text or None)
    if not calibrated:
        return None
    return Rounding(dtype, WIDTHS[dtype][0], calibrated=True, text=text or None)


def same_matrices(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each tensor the first with the same data."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def rounded_matrices(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, str]:
    """The matrices that a q4, q8 or mixed file holds in that type, and for each the first with the
    same data."""
    rounded = {n: t for n, t in tensors.items() if dtype_of(n, t, dtype) == dtype}
    return same_matrices(rounded)


def shapes_of(tensors: Mapping[str, Tensor], dtype: str) -> Shapes:
    """The shapes of the matrices that are held in it, those with the same data once."""
    found = dict.fromkeys(rounded_matrices(tensors, dtype).values())
    return {name: tuple(map(int, tensors[name].shape)) for name in found}


def prior(shapes: Shapes) -> dict[str, float]:
    """Costs of matrices in four bits by what such ones cost in other models."""
    return {n: PRIOR.get(n.split(".")[-1], 1.0) * rows * cols for n, (rows, cols) in shapes.items()}


class Step(NamedTuple):
    """A matrix in a wider type."""

    name: str
    lower: str
    upper: str
    bytes: int
    nats: float  # that it saves


def bytes_of(shapes: Shapes, chosen: Mapping[str, str]) -> int:
    return sum(data_bytes(chosen[name], *shape, True) for name, shape in shapes.items())


def room_of(shapes: Shapes, dtype: str, bits: float) -> int:
    """The bytes of so many bits a weight. Errors: ExportError."""
    least, most = (CHOICES[dtype][end] for end in (0, -1))
    if not WIDTHS[least][0] <= bits <= WIDTHS[most][0]:
        raise ExportError(
            f"--bits {bits:g}: expected {WIDTHS[least][0]:g} (all {least}) to "
            f"{WIDTHS[most][0]:g} (all {most})"
        )
    # As far from all in the narrowest as of numbers that fill their panels.
    low, high = (bytes_of(shapes, dict.fromkeys(shapes, width)) for width in (least, most))
    way = bits - WIDTHS[least][0], max(WIDTHS[most][0] - WIDTHS[least][0], 1)
    return low + int((high - low) * way[0] / way[1])


def steps(shapes: Shapes, costs: Mapping[str, float], dtype: str) -> list[Step]:
    """From the narrowest type of all matrices to the widest, what saves most for its bytes first;
    given costs in q4, which grow with the square of what rounding changes."""
    types = CHOICES[dtype]

    def of_matrix(name: str) -> Iterator[Step]:
        at = types[0]
        while wider := types[types.index(at) + 1 :]:
            found = []
            for to in wider:
                more = data_bytes(to, *shapes[name], True) - data_bytes(at, *shapes[name], True)
                saved = (WIDTHS[at][1] - WIDTHS[to][1]) / WIDTHS["q4"][1] * costs[name]
                found.append(Step(name, at, to, more, saved))
            yield max(found, key=worth)
            at = max(found, key=worth).upper

    def worth(step: Step) -> float:
        return step.nats / max(step.bytes, 1)

    return sorted((step for name in shapes for step in of_matrix(name)), key=lambda s: -worth(s))


def choose(shapes: Shapes, costs: Mapping[str, float], dtype: str, room: int) -> dict[str, str]:
    """The type of each matrix, so that all have at most so many bytes, and cost least together."""
    chosen = dict.fromkeys(shapes, CHOICES[dtype][0])
    left = room - bytes_of(shapes, chosen)
    for name, lower, upper, more, _ in steps(shapes, costs, dtype):
        # One that did not fit leaves its matrix where it is.
        if chosen[name] == lower and more <= left:
            left -= more
            chosen[name] = upper
    return chosen


def curve(shapes: Shapes, costs: Mapping[str, float], dtype: str) -> list[tuple[int, float]]:
    """What matrices would cost together in so many bytes, at POINTS of all that can be chosen."""
    taken = steps(shapes, costs, dtype)
    held = bytes_of(shapes, dict.fromkeys(shapes, CHOICES[dtype][0]))
    nats, found, apart = sum(step.nats for step in taken), [], sum(step.bytes for step in taken)
    wanted = [held + apart * i // (POINTS - 1) for i in range(POINTS)]
    for step in taken:
        while held + step.bytes > wanted[len(found)]:
            found.append((wanted[len(found)], nats))
        held, nats = held + step.bytes, nats - step.nats
    return [*found, (held, nats)]


def described(names: Sequence[str]) -> str:
    """Matrices of layers by kind: "attn_v; ffn_down of layers 1, 3-5"."""
    kinds: dict[str, list[int]] = {}
    for name in names:
        found = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        kinds.setdefault(found[2] if found else name, []).append(int(found[1]) if found else -1)
    return "; ".join(
        kind if layers == [-1] else f"{kind} of layer{'s'[: len(layers) - 1]} {_ranges(layers)}"
        for kind, layers in sorted(kinds.items())
    )


def _ranges(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
