"""The GGUF container: metadata and tensors. The `gguf` package dequantizes."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass, replace

import numpy as np

from ..quantize.kept import SOURCES
from ..tensor import ExportError, Tensor, read_into, without_numbers
from .kinds import MAGIC, PART
from .pointers import refuse_pointer

SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING, ARRAY = 8, 9
# Types that the package dequantizes, and those whose numbers a checkpoint can keep.
DEQUANTIZED = (
    *("F32", "F16", "BF16", *SOURCES, "Q2_K", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"),
    *("IQ2_S", "IQ3_XXS", "IQ3_S"),
)
STORED = ("F32", "F16", "BF16", *SOURCES)


@dataclass(frozen=True)
class File:
    """A GGUF file: its metadata, and its tensors as float32 yet to be read; or without numbers, if
    it is only the shape that is wanted. parts: the files that it lies in."""

    path: str
    values: dict[str, object]
    tensors: dict[str, Tensor]
    shape_only: bool = False
    parts: tuple[str, ...] = ()


class _Cursor:
    """Reads what lies in a file one after the other. Errors: ValueError, where the file ends too
    soon."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise ValueError(
                f"{n} bytes are expected at byte {self.at}, where the file has "
                f"{len(self.data) - self.at} more"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def numbers(self, dtype: str, n: int) -> list:
        return np.frombuffer(self.take(n * np.dtype(dtype).itemsize), dtype).tolist()

    def number(self, dtype: str):
        return self.numbers(dtype, 1)[0]

    def string(self) -> str:
        return self.take(int.from_bytes(self.take(8), "little")).decode()

    def value(self) -> object:
        """A value after its type."""
        kind = self.number("<u4")
        if kind != ARRAY:
            return self.string() if kind == STRING else self.number(_scalar(kind))
        kind, n = self.number("<u4"), self.number("<u8")
        return (
            [self.string() for _ in range(n)] if kind == STRING else self.numbers(_scalar(kind), n)
        )


def _scalar(kind: int) -> str:
    if kind not in SCALARS:
        raise ValueError(f"a value has type {kind}, which is not known")
    return SCALARS[kind]


def read_gguf(path: str, shape_only: bool = False) -> File:
    """Reads the metadata and the tensor table; what follows them may be missing if only the shape
    is wanted. A file that is a part of a model brings the others, which lie beside it. Errors:
    ExportError."""
    file = _read(path, shape_only)
    count = file.values.get("split.count", 0)
    if not isinstance(count, int):
        raise ExportError(f"{path}: split.count is {count!r}, expected a whole number")
    return _joined(file, count) if count > 1 else replace(file, parts=(path,))


def _joined(file: File, count: int) -> File:
    """The model of which a file is one of `count` parts. The first has the metadata."""
    folder, name = os.path.split(file.path)
    match = PART.fullmatch(name)
    if not match or int(match[3]) != count:
        raise ExportError(
            f"{file.path} is a part of a model in {count} files; give it back the name that "
            f"llama-gguf-split gave it, such as model-00001-of-{count:05d}.gguf"
        )
    paths = [
        os.path.join(folder, f"{match[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)
    ]
    missing = next((path for path in paths if not os.path.isfile(path)), None)
    if missing:
        raise ExportError(
            f"{file.path} is part {int(match[2])} of {count} of a model; {os.path.basename(missing)} "
            "is missing beside it"
        )
    parts, tensors = [], {}
    for number, path in enumerate(paths):
        refuse_pointer(path)
        parts.append(file if path == file.path else _read(path, file.shape_only))
        if parts[-1].values.get("split.no") != number or tensors.keys() & parts[-1].tensors.keys():
            raise ExportError(
                f"{path} is not part {number + 1} of the model that {file.path} is of"
            )
        tensors |= parts[-1].tensors
    total = parts[0].values.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ExportError(f"{file.path}: all parts have {len(tensors)} tensors, expected {total}")
    return replace(parts[0], tensors=tensors, parts=tuple(paths))


def _read(path: str, shape_only: bool) -> File:
    """Reads one file. The package could, but it makes several objects of every token: for a
    vocabulary of 128,000 that is half a minute and 700 MB."""
    try:
        import gguf
    except ImportError:
        raise ExportError(f"reading {path} needs the gguf package; pip install gguf") from None
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            c = _Cursor(data)
            if c.take(4) != MAGIC or (version := c.number("<u4")) not in (2, 3):
                if version in (2 << 24, 3 << 24):
                    raise ExportError(
                        f"{path} is big-endian; convert it: gguf-convert-endian {path} little (of "
                        "the gguf package)"
                    )
                raise ValueError(f"it is of version {version}; supported: 2 and 3")
            n_tensors, n_values = c.numbers("<u8", 2)
            values = dict((c.string(), c.value()) for _ in range(n_values))
            table = [
                (c.string(), c.numbers("<u8", c.number("<u4")), c.number("<u4"), c.number("<u8"))
                for _ in range(n_tensors)
            ]
            align = values.get("general.alignment", 32)
            if not isinstance(align, int) or align < 1:
                raise ValueError(f"general.alignment is {align!r}")
            begin = -(-c.at // align) * align
            if shape_only:
                tensors = {name: without_numbers(*reversed(dims)) for name, dims, _, _ in table}
                return File(path, values, tensors, shape_only)
            tensors = [
                _tensor(gguf, path, len(data), name, dims, kind, begin + at)
                for name, dims, kind, at in table
            ]
            return File(path, values, {tensor.name: tensor for tensor in tensors})
    except (ValueError, OverflowError, MemoryError) as error:
        raise ExportError(f"{path} is no GGUF file, or is damaged: {error}") from None


def _tensor(
    gguf, path: str, size: int, name: str, dims: list[int], number: int, offset: int
) -> Tensor:
    """A tensor of the file, its rows dequantized as they are read. `dims` has the innermost
    first."""
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    name_of = names.get(number, f"type {number}")
    if name_of not in DEQUANTIZED:
        raise ExportError(
            f"{path}: tensor {name} is stored as {name_of}, which is not supported; supported: "
            + ", ".join(DEQUANTIZED)
        )
    kind = gguf.GGMLQuantizationType(number)
    block, width = gguf.GGML_QUANT_SIZES[kind]
    if (
        not dims
        or block > 1 == len(dims)
        or dims[0] % block
        or offset + math.prod(dims) // block * width > size
    ):
        raise ValueError(
            f"tensor {name} of {dims} numbers lies outside the file, or is not made of rows of whole "
            "blocks"
        )
    shape = tuple(reversed(dims))
    row = math.prod(shape[1:]) // block * width

    def blocks():
        file = open(path, "rb")

        def rows(a: int, b: int) -> np.ndarray:
            file.seek(offset + a * row)
            data = np.empty((b - a) * row, np.uint8)
            if read_into(file, data) != data.nbytes:
                raise ExportError(f"{path} ends inside tensor {name}")
            return data.reshape(b - a, *shape[1:-1], -1)

        return rows

    def load():
        rows = blocks()

        def numbers(a: int, b: int) -> np.ndarray:
            with np.errstate(all="ignore"):  # convert() refuses what is no number
                data = gguf.dequantize(rows(a, b).reshape(-1), kind)
            return np.asarray(data, np.float32).reshape(b - a, *shape[1:])

        return numbers

    if kind.name not in STORED:
        return Tensor(name, shape, load)
    return Tensor(
        name,
        shape,
        load,
        stored=kind.name if kind.name in SOURCES else kind.name.lower(),
        blocks=blocks if kind.name in SOURCES and len(shape) > 1 else None,
    )
