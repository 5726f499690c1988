"""Adapters kept apart from their base: a file with two small matrices, a and b, for each matrix of a
checkpoint that the adapter changes. A family renames, splits and sorts the base's tensors, and b's
rows have to go the same way: the family gets stand-ins, whose rows say which ones they are."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Sequence

import numpy as np

from ..checkpoint import Checkpoint, Entry, Stats, write_checkpoint
from ..knobs import Knobs
from ..model import Model
from ..tensor import LANES, ExportError, Tensor, constant, stack, transposed
from .changes import CHUNK, Change, Low, Place

STAND_IN = "stand-in"  # Tensor.stored of one
DTYPES = ("f32", "bf16", "f16")
# What the numbers of stand-ins are: zeros; ones, in all or in those that the adapter changes; the
# numbers of rows; of columns.
NONE, ONES, TOUCHED, ROWS, COLUMNS = range(5)
LOOKED_UP = ("embed", "embed_pos", "source_embed", "source_embed_pos", "ple_table")
BY_HEAD = ("attn_k_up", "attn_v_up", "attn_pos_k", "attn_pos_q", "lru_decay", "lru_input")
MERGE = "so it cannot be kept apart; merge it: export.py BASE OUT --adapter DIR"
Pair = tuple[np.ndarray, np.ndarray]  # a [rank, n_in] and b [n_out, rank], float32


def check_kinds(path: str, changes: Sequence[Change]) -> None:
    """Errors: ExportError for a change that is no product of two small matrices."""
    for change in changes:
        if not isinstance(change, Low) or change.magnitude:
            what = "has a length for each row" if isinstance(change, Low) else "is no product b a"
            raise ExportError(f"{path}: tensor {change.tensor.name} {what}, {MERGE}")


@dataclass
class Source:
    """A tensor of the base, whose rows have the numbers first .. first + rows - 1, in_one of them
    in each matrix. flipped: the stand-in is the transpose of what the base has."""

    first: int
    rows: int
    in_one: int
    pieces: list[tuple[Change, Place]]
    flipped: bool

    def factors(self, rows: np.ndarray) -> list[Pair]:
        """What is added to these rows of it, -1 being none: a pair for each change of some."""
        found = []
        for change, place in self.pieces:
            n, at = (self.rows, 0) if self.flipped else (place.rows, place.at)
            own = np.where(rows < 0, -1, rows - place.matrix * self.in_one - at)
            mine = (own >= 0) & (own < n)
            if mine.any():
                left, right = change.factors(place.part, place.turned != self.flipped)
                b = np.zeros((len(rows), left.shape[1]), np.float32)
                b[mine] = left[place.first + own[mine]]
                found.append((np.ascontiguousarray(right, np.float32), b))
        return found


@dataclass
class StandIns:
    """The stand-ins of a base's matrices."""

    mode: int = NONE
    sources: list[Source] = field(default_factory=list)
    end: int = 1  # the next row's number; what is no source's row has 0

    def put(self, left: dict[str, Tensor], pieces: dict[str, list], tables: Sequence[str]) -> None:
        """Puts one in the place of each matrix but of tables that no adapter changes."""
        for name, tensor in left.items():
            if len(tensor.shape) in (2, 3) and (name in pieces or name not in tables):
                left[name] = self.stand_in(tensor, pieces.get(name, []), name not in tables)

    def stand_in(self, tensor: Tensor, pieces: list[tuple[Change, Place]], may_flip) -> Tensor:
        flipped = may_flip and len(tensor.shape) == 2 and bool(pieces) and pieces[0][1].turned
        shape = tensor.shape[::-1] if flipped else tensor.shape
        n = int(np.prod(shape[:-1]))
        numbers = np.arange(self.end, self.end + n).reshape(shape[:-1])
        self.sources.append(Source(self.end, n, shape[-2], pieces, flipped))
        self.end += n

        def blocks():
            return lambda a, b: np.ascontiguousarray(numbers[a:b, ..., None]).view(np.uint8)

        def load():
            return lambda a, b: self.read(numbers[a:b], shape[-1], bool(pieces))

        found = Tensor(tensor.name, shape, load, stored=STAND_IN, blocks=blocks)
        return transposed(found) if flipped else found

    def read(self, numbers: np.ndarray, n_columns: int, touched: bool) -> np.ndarray:
        ones = np.ones((*numbers.shape, n_columns))  # float64, for the numbers of rows
        if self.mode == ROWS:
            return ones * numbers[..., None]
        if self.mode == COLUMNS:
            return ones * np.arange(1, n_columns + 1)
        return ones if self.mode == ONES or self.mode == TOUCHED and touched else 0 * ones

    def factors(self, numbers: np.ndarray) -> list[Pair]:
        """What is added to rows of these numbers."""
        owner = np.searchsorted([source.first for source in self.sources], numbers, "right") - 1
        found = []
        for i in np.unique(owner[owner >= 0]):
            source = self.sources[i]
            found += source.factors(np.where(owner == i, numbers - source.first, -1))
        return found

    def seen(self, tensor: Tensor, mode: int, begin: int, end: int) -> np.ndarray:
        self.mode = mode
        with np.errstate(all="ignore"):
            return np.asarray(tensor.load()(begin, end), np.float64)

    def differ(self, tensor: Tensor, modes: tuple[int, int], begin: int, end: int) -> bool:
        one, other = (self.seen(tensor, mode, begin, end) for mode in modes)
        return not np.array_equal(one, other, equal_nan=True)

    def touches(self, tensor: Tensor, begin: int, end: int) -> bool:
        parts = ((a, min(a + CHUNK, end)) for a in range(begin, end, CHUNK))
        return any(self.differ(tensor, (NONE, TOUCHED), *part) for part in parts)

    def computed(self, tensor: Tensor, begin: int, end: int) -> list[Pair] | None:
        """The same of rows begin..end-1 of what the family has computed; None if that is not the
        rows of a source, or its columns, times numbers."""
        if not self.touches(tensor, begin, end):
            return []
        by = self.seen(tensor, ONES, begin, end)
        if self.seen(tensor, NONE, begin, end).any() or not by.all():
            return None
        rows = np.rint(self.seen(tensor, ROWS, begin, end) / by).astype(np.int64)
        columns = np.rint(self.seen(tensor, COLUMNS, begin, end) / by).astype(np.int64) - 1
        by_row, by_column = by[:, :1], by[:1] / by[0, 0]
        if not np.allclose(by, by_row * by_column, rtol=1e-6):
            return None
        if (rows == rows[:, :1]).all() and (columns == columns[:1]).all():
            pairs = [(a[:, columns[0]], b) for a, b in self.factors(rows[:, 0])]
        elif (rows == rows[:1]).all() and (columns == columns[:, :1]).all():
            pairs = [(b.T, a[:, columns[:, 0]].T) for a, b in self.factors(rows[0])]
        else:
            return None
        return [(np.float32(a * by_column), np.float32(b * by_row)) for a, b in pairs]


def _count(knobs: Knobs, kind: str) -> int:
    """How many matrices such a tensor has."""
    part = knobs.part_of(kind)
    return part.n if kind.startswith("expert_") else part.heads if kind in BY_HEAD else 1


def _joined(pairs: list[Pair], n_out: int, n_in: int) -> Pair:
    """One pair that adds what all of them add."""
    if not pairs:
        return np.zeros((0, n_in), np.float32), np.zeros((n_out, 0), np.float32)
    return np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], 1)


def _pair_of(
    stand_ins: StandIns, name: str, tensor: Tensor, n: int
) -> tuple[Tensor, Tensor] | None:
    """a and b of a canonical tensor of n matrices, None if it is not changed. Errors:
    ExportError."""
    apart = -(-tensor.shape[0] // LANES) // n * LANES if n > 1 else 0  # from a matrix to the next
    n_out, n_in = tensor.shape[0] - (n - 1) * apart, tensor.shape[1]
    pairs: list[Pair] = []
    whole = tensor.stored == STAND_IN and tensor.blocks
    numbers = whole and whole()(0, tensor.shape[0]).view(np.int64).reshape(-1)
    for i in range(n):
        begin, end = i * apart, i * apart + n_out
        found = (
            stand_ins.factors(numbers[begin:end])
            if whole
            else stand_ins.computed(tensor, begin, end)
        )
        if found is None:
            raise ExportError(f"it changes {name} of the file, which is computed from it, {MERGE}")
        pairs.append(_joined(found, n_out, n_in))
    rank = max(len(a) for a, _ in pairs)
    if not rank:
        return None
    a = [np.pad(a, ((0, rank - len(a)), (0, 0))) for a, _ in pairs]
    b = [np.pad(b, ((0, 0), (0, rank - b.shape[1]))) for _, b in pairs]
    return stack([constant(m) for m in a]), stack([constant(m) for m in b])


def vectors_sum(base: Checkpoint) -> int:
    """A checksum of what all files of one base have alike, whatever their matrices are rounded to:
    its vectors."""
    crc = 0
    for dtype, rows, cols, offset, size in base.tensors.values():
        if rows == 1 and dtype == "f32" and size == 4 * cols:
            crc = zlib.crc32(base.data[offset : offset + size], crc)
    return crc


def _check_base(model: Model, stand_ins: StandIns, base: Checkpoint, path: str) -> None:
    """Errors: ExportError, if the checkpoint is not of this model."""

    def refuse(why: str) -> ExportError:
        return ExportError(f"{path} was not made of {model.name}: {why}")

    if any(offset + size > len(base.data) for _, _, _, offset, size in base.tensors.values()):
        raise ExportError(f"{path} is a shape, which has no weights")
    for name, tensor in model.tensors.items():
        if name not in base.tensors:
            near = get_close_matches(name, base.tensors, 1, 0.0)
            raise refuse(f"it has no tensor {name}; the nearest is {near[0]}")
        rows, cols = base.tensors[name][1:3]
        expected = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[-1])
        if (rows, cols) != expected:
            raise refuse(f"its {name} is ({rows}, {cols}), and the model's {expected}")
        if len(tensor.shape) == 2:
            continue
        n = tensor.shape[0]
        if stand_ins.touches(tensor, 0, n):
            raise ExportError(f"it changes {name} of the file, a vector, {MERGE}")
        computed = stand_ins.differ(tensor, (NONE, ONES), 0, n)  # from matrices
        if not computed and not np.array_equal(tensor.array(), base.tensor(name)):
            raise refuse(f"its {name} has other numbers")
    for name in base.tensors:
        if name not in model.tensors:
            raise refuse(f"it has the tensor {name}, which that one lacks")


def write_adapter(model: Model, stand_ins: StandIns, base_path: str, out: str, dtype: str) -> Stats:
    """Writes the adapter that the model's stand-ins show, for the base in base_path. Errors:
    ExportError, OSError."""
    base = Checkpoint(base_path)
    _check_base(model, stand_ins, base, base_path)
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.tensors.items():
        if len(tensor.shape) != 2 or id(tensor) in seen:
            continue
        seen.add(id(tensor))  # layers may share a tensor
        kind = name.split(".")[-1]
        table = kind in LOOKED_UP
        if table and tensor.stored != STAND_IN:
            continue
        pair = _pair_of(stand_ins, name, tensor, _count(model.knobs, kind))
        if pair and table:
            raise ExportError(
                f"it changes {name} of the file, in which rows are looked up, {MERGE}"
            )
        if pair:
            found[f"{name}.a"], found[f"{name}.b"] = pair
    if not found:
        raise ExportError("nothing of the adapter reaches the checkpoint")
    meta = {
        "adapter.base": np.array([vectors_sum(base)], np.uint32).view(np.int32),
        **{
            f"adapter.{k}": base.metadata[f"model.{k}"]
            for k in ("n_layers", "n_embd", "vocab_size")
        },
        "info.source": model.adapters,
        "info.base": os.path.basename(base_path),
        "info.family": model.family,
        "info.dtype": dtype,
    }
    return write_checkpoint(out, meta, [Entry(n, dtype, t) for n, t in found.items()])
