"""Tensors that are read when they are needed, so that an export holds one of them at a time and not
the model."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import BinaryIO, Callable, Sequence

import numpy as np


class ExportError(Exception):
    """A fault of the checkpoint, the destination or an option, as a sentence for the user."""


@dataclass(frozen=True)
class Tensor:
    """A float32 tensor yet to be read. `load()` opens it and returns `rows(a, b)`, which gives rows
    a..b-1 of the first axis as a new array that the caller owns; what `load` had to keep in memory
    lives as long as `rows`. `name` is the checkpoint's name for it, for messages. Errors:
    ExportError from either. `packed(dtype, a, b)`, if there is one, gives what quantize.panels.pack
    makes of these rows, at less cost; a is a multiple of 16. `raw` has the bytes of the file, of
    a number of several bytes as a last axis; `load` refuses to read them unless they are `floats`,
    floating-point numbers. `stored` is the type that the numbers have in the file, if they are as
    there: "f32", "bf16", "f16", or one of quantize.kept's SOURCES, and then `blocks()` is as
    `load()` and gives rows as bytes. `turned` is the matrix that this one is the transpose of."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Callable[[int, int], np.ndarray]]
    packed: Callable[[str, int, int], tuple[bytes, float]] | None = None
    raw: Tensor | None = None
    floats: bool = False
    stored: str | None = None
    blocks: Callable[[], Callable[[int, int], np.ndarray]] | None = None
    turned: Tensor | None = None

    def array(self) -> np.ndarray:
        """The whole tensor."""
        return self.load()(0, self.shape[0])

    def slice(self, begin: int, end: int) -> "Tensor":
        """Rows begin..end-1."""

        def part(load):
            rows = load()
            return lambda a, b: rows(begin + a, begin + b)

        return self.moved((end - begin, *self.shape[1:]), part)

    def moved(self, shape: tuple[int, ...], move) -> "Tensor":
        """Rows in another order, of which `move(load)` gives what `load()` would: of the numbers,
        and of the bytes that hold them."""
        blocks = self.blocks and functools.partial(move, self.blocks)
        load = functools.partial(move, self.load)
        return Tensor(self.name, shape, load, stored=self.stored, blocks=blocks)

    def matrices(self) -> list["Tensor"]:
        """Of three axes: the matrices along the first."""

        def one(i: int, load):
            matrix = load()(i, i + 1)[0]
            return lambda a, b: matrix[a:b]

        return [self.moved(self.shape[1:], functools.partial(one, i)) for i in range(self.shape[0])]

    def map(
        self, function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...] | None = None
    ) -> "Tensor":
        """`function` of the whole tensor, which is in memory while it is written. `shape` is the
        result's, if it differs."""

        def load():
            whole = function(self.array())
            return lambda a, b: whole[a:b]

        return Tensor(self.name, self.shape if shape is None else shape, load)


def transposed(matrix: Tensor) -> Tensor:
    """The transpose; of a transpose the matrix that it was made of, with its blocks."""
    if matrix.turned:
        return matrix.turned
    other = matrix.map(lambda w: np.ascontiguousarray(w.T), matrix.shape[::-1])
    return replace(other, turned=matrix)


class Tensors(dict):
    """The tensors of a checkpoint by name. One that is asked for and missing is a fault of the
    checkpoint: ExportError from `tensors[name]` and `tensors.pop(name)`."""

    last = "none"  # the name that was asked for last

    @contextlib.contextmanager
    def odd_shapes(self):
        """What a tensor of an odd shape makes fail inside becomes a sentence about the tensor that
        was asked for last."""
        try:
            yield
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ExportError(
                f"the shape of tensor {self.last}, or of one that goes with it, is not what "
                f"config.json makes it: {error}"
            ) from error

    def __missing__(self, name: str):
        raise ExportError(f"the checkpoint lacks the tensor {name}")

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __getitem__(self, name: str) -> Tensor:
        self.last = name
        return super().__getitem__(name)

    def pop(self, name: str, *default):
        self.last = name
        return super().pop(name, *default) if default or name in self else self[name]


def read_into(file: BinaryIO, array: np.ndarray) -> int:
    """Fills the array with what comes next in the file; returns how many bytes there were. (Ctrl-C
    in numpy's fromfile becomes a TypeError.)"""
    return file.readinto(array.view(np.uint8))


def from_file(
    path: str, name: str, shape: tuple[int, ...], offset: int, dtype: str, bf16: bool = False
) -> Tensor:
    """Numbers that lie in a file as they are, from byte `offset` on; bf16 as `dtype` "<u2"."""
    row = int(np.prod(shape[1:], dtype=np.int64))

    def load():
        file = open(path, "rb")

        def rows(a: int, b: int) -> np.ndarray:
            file.seek(offset + a * row * np.dtype(dtype).itemsize)
            raw = np.empty((b - a) * row, dtype)
            if read_into(file, raw) != raw.nbytes:
                raise ExportError(f"{path} ends inside tensor {name}")
            values = (
                (raw.astype(np.uint32) << 16).view(np.float32) if bf16 else raw.astype(np.float32)
            )
            return values.reshape(b - a, *shape[1:])

        return rows

    stored = "bf16" if bf16 else {"<f4": "f32", "<f2": "f16"}.get(dtype)
    return Tensor(name, shape, load, stored=stored)


CONSTANT = "constant"  # the name of what is in no file


def constant(values: np.ndarray) -> Tensor:
    """A tensor that is in no file."""
    return Tensor(CONSTANT, values.shape, lambda: lambda a, b: values[a:b].copy())


def without_numbers(*shape: int) -> Tensor:
    """A tensor of which nothing but the shape is known."""

    def refuse():
        raise ExportError("a shape has no weights")

    return Tensor("of a shape", shape, refuse)


LANES = 16


def stack_rows(n: int, rows: int) -> int:
    """The rows of a stack of n matrices: each but the last is filled up to whole panels."""
    return (n - 1) * -(-rows // LANES) * LANES + rows


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """A stack of tensors of one shape, read one at a time."""
    rows, step = tensors[0].shape[0], stack_rows(2, tensors[0].shape[0]) - tensors[0].shape[0]
    return _at_rows(tensors, range(0, step * len(tensors), step), stack_rows(len(tensors), rows))


def below(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors, one tensor's below the other's, read one at a time."""
    ends = np.cumsum([tensor.shape[0] for tensor in tensors]).tolist()
    return _at_rows(tensors, [0, *ends[:-1]], ends[-1])


def _at_rows(tensors: Sequence[Tensor], begins: Sequence[int], n_rows: int) -> Tensor:
    """Tensors as one of n_rows, in which each begins at a row of its own; zeros between them."""
    shape = (n_rows, *tensors[0].shape[1:])

    def reader(loads):
        open_tensor, read = -1, None

        def take(a: int, b: int) -> np.ndarray:
            nonlocal open_tensor, read
            out = None
            for i, (at, tensor) in enumerate(zip(begins, tensors)):
                begin, end = max(a, at), min(b, at + tensor.shape[0])
                if begin >= end:
                    continue
                if i != open_tensor:
                    open_tensor, read = i, loads[i]()
                part = read(begin - at, end - at)
                if out is None:
                    out = np.zeros((b - a, *part.shape[1:]), part.dtype)
                out[begin - a : end - a] = part
            return np.zeros((b - a, *shape[1:]), np.float32) if out is None else out

        return take

    kinds = {tensor.stored for tensor in tensors}
    stored = kinds.pop() if len(kinds) == 1 else None
    blocks = [tensor.blocks for tensor in tensors]
    return Tensor(
        tensors[0].name,
        shape,
        lambda: reader([tensor.load for tensor in tensors]),
        stored=stored,
        blocks=(lambda: reader(blocks)) if stored and all(blocks) else None,
    )


def expect(tensor: Tensor, *shape: int) -> Tensor:
    """The tensor, if it has that shape. Errors: ExportError."""
    if tuple(tensor.shape) != shape:
        raise ExportError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, config.json makes it "
            f"{list(shape)}"
        )
    return tensor


def pick(tensor: Tensor, rows: np.ndarray) -> Tensor:
    """The rows of that index, in its order."""

    def picked(load):
        whole = load()(0, tensor.shape[0])[rows]
        return lambda a, b: whole[a:b]

    return tensor.moved((len(rows), *tensor.shape[1:]), picked)


def times(tensor: Tensor, factors: np.ndarray) -> Tensor:
    """The rows times a factor each, or all by one."""
    if np.all(factors == 1):
        return tensor
    return tensor.map(lambda w: w * factors.reshape(-1, *[1] * (w.ndim - 1)))


def modules(left: dict[str, Tensor], name: str) -> list[str]:
    """The modules that have such a tensor: names that end in `.name`, without it."""
    return [key[: -len(name) - 1] for key in list(left) if key.endswith("." + name)]
