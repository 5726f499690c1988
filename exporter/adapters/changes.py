"""What an adapter makes of a matrix of the base, a few rows at a time, as peft 0.21.2 merges it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np

from ..tensor import ExportError, Tensor

Read = Callable[[int, int], np.ndarray]  # rows a..b-1 of the base's matrix
# (a, b, rows) -> these rows, which other adapters may have changed, after the change.
Step = Callable[[int, int, np.ndarray], np.ndarray]
CHUNK = 256  # rows of the base that are read at a time for a norm


@functools.lru_cache(maxsize=8)
def numbers(tensor: Tensor) -> np.ndarray:
    """A tensor of an adapter. Errors: ExportError if a number in it is not finite."""
    values = tensor.array()
    if not np.isfinite(values).all():
        what = "NaN" if np.isnan(values).any() else "infinite"
        raise ExportError(f"tensor {tensor.name} of the adapter: a number is {what}")
    return values


@dataclass(frozen=True)
class Change:
    """A change of one parameter of the base. `parameter`: the adapter's name for it; `tensor`: the
    adapter's, for messages; `count`: how many matrices the parameter has; `turned`: the adapter has
    them transposed."""

    parameter: str
    tensor: Tensor
    count = 1
    turned = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether it can change a matrix, or a vector, of this shape."""
        return True

    def step(self, read: Read, shape: tuple[int, ...], part: int, turned: bool) -> Step:
        """How rows change. read: the base's, of this shape; part: which of its matrices it is;
        turned: the base has the transposed matrix."""
        raise NotImplementedError


@dataclass(frozen=True)
class Low(Change):
    """LoRA: scale * b @ a is added. With magnitudes, DoRA (Liu et al. 2024): each row, of the sum
    with the base's, then gets that length. a [rank, n_in], b [n_out, rank]; of several matrices
    a [count, rank, n_in] and b [count, n_out, rank], or as peft has them, a [count * rank, n_in] and
    b [n_out, rank * count]."""

    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None = None
    diagonal: Tensor | None = None  # AdaLoRA's, [rank, 1]: a's rows are multiplied by it
    count: int = 1
    turned: bool = False

    def fits(self, shape):
        return shape == (self.b.shape[-2], self.a.shape[-1])

    def factors(self, part: int, turned: bool) -> tuple[np.ndarray, np.ndarray]:
        """The left and the right one, for the orientation that the base has."""
        a, b = numbers(self.a), numbers(self.b)
        if a.ndim == 3:
            a, b = a[part], b[part]
        elif self.count != 1:
            a = a.reshape(self.count, -1, a.shape[1])[part]
            b = b.reshape(b.shape[0], -1, self.count)[:, :, part]
        if self.diagonal:
            a = a * numbers(self.diagonal).reshape(-1, 1)
        b = b * np.float32(self.scale)
        return (a.T, b.T) if turned else (b, a)

    def step(self, read, shape, part, turned):
        left, right = (np.ascontiguousarray(m) for m in self.factors(part, turned))

        def added(a: int, b: int, rows: np.ndarray) -> np.ndarray:
            return rows + left[a:b] @ right

        if not self.magnitude:
            return added
        length = numbers(self.magnitude).reshape(-1)
        if not turned:

            def scaled(a: int, b: int, rows: np.ndarray) -> np.ndarray:
                by = length[a:b] / np.linalg.norm(added(a, b, read(a, b)), axis=1)
                return by[:, None] * added(a, b, rows)

            return scaled
        squares = np.zeros(shape[1], np.float64)
        for a in range(0, shape[0], CHUNK):
            b = min(a + CHUNK, shape[0])
            squares += np.square(added(a, b, read(a, b)), dtype=np.float64).sum(0)
        columns = (length / np.sqrt(squares)).astype(np.float32)
        return lambda a, b, rows: columns * added(a, b, rows)


@dataclass(frozen=True)
class Bias(Change):
    """scale * its numbers are added to a bias."""

    scale: float

    def fits(self, shape):
        return shape == self.tensor.shape

    def step(self, read, shape, part, turned):
        more = numbers(self.tensor) * np.float32(self.scale)
        return lambda a, b, rows: rows + more[a:b]


@dataclass(frozen=True)
class Product(Change):
    """What `make` makes of several tensors is added: LoHa and LoKr, whose whole matrix is in memory
    while it is written."""

    size: tuple[int, int]
    make: Callable[[], np.ndarray]

    def fits(self, shape):
        return shape == self.size

    def step(self, read, shape, part, turned):
        whole = self.make()
        whole = whole.T if turned else whole
        return lambda a, b, rows: rows + whole[a:b]


@dataclass(frozen=True)
class Factors(Change):
    """IA3 (Liu et al. 2022): rows are multiplied by a number each, [n_out, 1], or columns, [1, n_in]."""

    @property
    def of_columns(self) -> bool:
        return self.tensor.shape[0] == 1

    def fits(self, shape):
        return shape[-1 if self.of_columns else 0] == max(self.tensor.shape)

    def step(self, read, shape, part, turned):
        by = numbers(self.tensor).reshape(-1)
        if len(shape) > 1 and self.of_columns != turned:
            return lambda a, b, rows: rows * by
        return lambda a, b, rows: (rows.T * by[a:b]).T


@dataclass(frozen=True)
class Rows(Change):
    """Some rows of an embedding are replaced."""

    index: tuple[int, ...]

    def fits(self, shape):
        return shape[1:] == self.tensor.shape[1:] and max(self.index, default=0) < shape[0]

    def step(self, read, shape, part, turned):
        new = numbers(self.tensor)

        def replaced(a: int, b: int, rows: np.ndarray) -> np.ndarray:
            rows = rows.copy()
            for row, at in enumerate(self.index):
                if a <= at < b:
                    rows[at - a] = new[row]
            return rows

        return replaced


@dataclass(frozen=True)
class Whole(Change):
    """The parameter is replaced. apart: if it is tied to another one, that one stays as it was."""

    apart: bool = False

    def fits(self, shape):
        return shape == self.tensor.shape


@dataclass(frozen=True)
class Place:
    """Where rows of a change lie in the base: from row `at` on in the tensor `name`, of three axes
    in its matrix `matrix`. They are rows first.. of the change's matrix `part`. turned: the base
    has the transposed matrix."""

    name: str
    rows: int
    at: int = 0
    first: int = 0
    matrix: int = 0
    part: int = 0
    turned: bool = False


def changed(tensor: Tensor, pieces: Sequence[tuple[Change, Place]]) -> Tensor:
    """The tensor after these changes, one after the other. Nothing is read before it is loaded, and
    then the base row by row."""
    stacked = len(tensor.shape) == 3

    def load():
        read = tensor.load()

        def of_matrix(matrix: int) -> list[tuple[Place, Step]]:
            return [_opened(read, tensor.shape, *p) for p in pieces if p[1].matrix == matrix]

        flat = [] if stacked else of_matrix(0)

        def rows(a: int, b: int) -> np.ndarray:
            values = read(a, b)
            if not stacked:
                return _apply(flat, values, a, b)
            after = [_apply(of_matrix(i), values[i - a], 0, tensor.shape[1]) for i in range(a, b)]
            return np.stack(after)

        return rows

    return Tensor(tensor.name, tensor.shape, load)


def _opened(read: Read, shape: tuple[int, ...], change: Change, place: Place) -> tuple[Place, Step]:
    begin, in_three = place.at - place.first, len(shape) == 3

    def base(a: int, b: int) -> np.ndarray:
        rows = read(place.matrix, place.matrix + 1)[0] if in_three else read
        return rows[begin + a : begin + b] if in_three else rows(begin + a, begin + b)

    return place, change.step(base, shape[1:] if in_three else shape, place.part, place.turned)


def _apply(steps: list[tuple[Place, Step]], values: np.ndarray, a: int, b: int) -> np.ndarray:
    """Rows a..b-1 of a matrix after the steps."""
    values = values.copy()
    for place, step in steps:
        begin, end = max(a, place.at), min(b, place.at + place.rows)
        if begin < end:
            move = place.first - place.at
            rows = values[begin - a : end - a]
            values[begin - a : end - a] = step(begin + move, end + move, rows)
    return values
