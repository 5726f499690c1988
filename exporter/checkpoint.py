"""The container of docs/format.md: written tensor by tensor, and read back for tests and tools."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import struct
import threading
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, Callable, Iterator, Mapping, Sequence

import numpy as np

from .quantize.kept import SOURCES, keep, kept_numbers
from .quantize.panels import DTYPES, LANES, NAMES, pack, panel_bytes, square_sum, unpack
from .tensor import ExportError, Tensor

MAGIC, VERSION = b"heads.c\0", 2
HEADER = struct.Struct("<8sIIQQQII16x")
ALIGN = 64
META_TYPES = {1: np.dtype("<u1"), 2: np.dtype("<i4"), 3: np.dtype("<f4")}
AHEAD = 2 * (os.cpu_count() or 1)  # slabs that are read before the first is written
SLAB = 1 << 18  # weights packed at a time: few enough to stay in the processor's cache


@dataclass(frozen=True)
class Entry:
    """A tensor of the file to be: a matrix if `tensor` has two axes, a float32 vector if it has
    one."""

    name: str
    dtype: str
    tensor: Tensor

    @property
    def rows(self) -> int:
        return self.tensor.shape[0] if len(self.tensor.shape) == 2 else 1

    @property
    def cols(self) -> int:
        return self.tensor.shape[-1]

    @property
    def moved(self) -> bool:
        """Whether it has the blocks of a GGUF, in another order."""
        blocks = self.tensor.blocks
        return blocks is not None and self.dtype == SOURCES[self.tensor.stored].dtype

    @property
    def data(self) -> tuple[str, int]:
        """A key that is equal for entries with the same data."""
        return self.dtype, id(self.tensor)

    @property
    def bytes(self) -> int:
        return data_bytes(self.dtype, self.rows, self.cols, len(self.tensor.shape) == 2)


# Matrices of so few rows stay f32: their rounding decides much.
SMALL = ("router", "shared_gate", "delta_beta", "delta_decay", "delta_decay_down", "ssm_step")
READOUTS = ("classes.", "pooling.")
KEEP = "keep"  # the dtype of a file whose matrices keep their numbers


def dtype_of(name: str, tensor: Tensor, dtype: str) -> str:
    """The dtype that a tensor is written in: vectors, learned positions and small matrices in f32,
    and the embeddings and the output of a q4 file in q8, because their rounding reaches the logits
    directly, or all that an encoder makes of a source; a readout's steps do so too. KEEP: in the
    type that its numbers have, and in f16, which loses least, where they were computed."""
    small = name.endswith(("embed_pos", *SMALL)) or name.startswith(READOUTS)
    if len(tensor.shape) == 1 or small:
        return "f32"
    if dtype == KEEP:
        return SOURCES[tensor.stored].dtype if tensor.blocks else tensor.stored or "f16"
    return "q8" if dtype == "q4" and name in ("embed", "source_embed", "output") else dtype


def entries(
    tensors: Mapping[str, Tensor], dtype: str, types: Mapping[str, str] = {}
) -> list[Entry]:
    """The tensors of a file whose matrices are of that dtype, but for those that have `types`."""
    return [
        Entry(name, types.get(name) or dtype_of(name, tensor, dtype), tensor)
        for name, tensor in tensors.items()
    ]


@dataclass
class Stats:
    """What was written: the file's bytes, the tensors' bytes and weights, per dtype the sums of
    squares of the weights and of their rounding errors, and the types of matrices where these were
    chosen, for people; and from costs that were measured, bytes of matrices and their costs, in
    `unit`."""

    file_bytes: int = 0
    data_bytes: int = 0
    n_weights: int = 0
    squares: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    types: str = ""
    curve: Sequence[tuple[int, float]] = ()
    unit: str = ""

    def count(self, dtype: str, data: bytes, n_weights: int, square: float, error: float) -> bytes:
        """Adds what was packed. Returns the data."""
        self.data_bytes += len(data)
        self.n_weights += n_weights
        self.squares[dtype] = self.squares.get(dtype, 0.0) + square
        self.errors[dtype] = self.errors.get(dtype, 0.0) + error
        return data

    def relative_error(self, dtype: str) -> float:
        """RMS of the rounding error over RMS of the weights, of all tensors of that dtype."""
        squares = self.squares.get(dtype, 0.0)
        return (self.errors[dtype] / squares) ** 0.5 if squares else 0.0


def data_bytes(dtype: str, rows: int, cols: int, matrix: bool) -> int:
    """Bytes of a tensor's data, without the padding after it."""
    return -(-rows // LANES) * panel_bytes(dtype, cols) if matrix else 4 * cols


def file_bytes(metadata: Mapping[str, object], entries: Sequence[Entry]) -> int:
    """Of the checkpoint that write_checkpoint() would write."""
    return _layout(metadata, entries)[2]


def write_checkpoint(
    path: str,
    metadata: Mapping[str, object],
    entries: Sequence[Entry],
    progress: Callable[[int], None] = lambda n: None,
) -> Stats:
    """Writes a checkpoint to `path`, by way of a temporary file beside it that is removed if
    anything fails.

    metadata: key -> str, bytes or uint8 array (u8), int or ints (i32), float or floats (f32).
    progress(n) is called with the number of tensor bytes as they are written. Peak memory is what
    one tensor's `load` keeps, and a few slabs. Errors: ExportError for a weight that is not finite or
    too large for its dtype, OSError for what writing may meet."""
    meta, table, size = _layout(metadata, entries)
    stats = Stats(file_bytes=size)
    crc = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool, replacing(path) as file:

        def put(data: bytes) -> None:
            nonlocal crc
            file.write(data)
            crc = zlib.crc32(data, crc)

        file.write(bytes(HEADER.size))
        put(meta)
        put(table)
        for entry in _distinct(entries):
            for data in _data(entry, pool, stats):
                put(data)
                progress(len(data))
            put(bytes(-entry.bytes % ALIGN))
        assert file.tell() == size, f"wrote {file.tell()} bytes, laid out {size}"
        file.seek(0)
        counts = (len(meta), len(table), len(metadata), len(entries))
        file.write(HEADER.pack(MAGIC, VERSION, crc, size, *counts))
    return stats


def write_shape(path: str, metadata: Mapping[str, object], entries: Sequence[Entry]) -> Stats:
    """Writes the same without the tensors' data, which says what the checkpoint would be. The
    result counts what it would have. Errors: OSError."""
    meta, table, size = _layout(metadata, entries)
    crc = zlib.crc32(meta + table)
    counts = (len(meta), len(table), len(metadata), len(entries))
    with replacing(path) as file:
        file.write(HEADER.pack(MAGIC, VERSION, crc, HEADER.size + len(meta + table), *counts))
        file.write(meta + table)
    data_bytes = sum(entry.bytes for entry in entries)
    return Stats(size, data_bytes, sum(entry.rows * entry.cols for entry in entries))


def output_file(path: str) -> str:
    """The file that a result named `path` replaces: where a link leads, else `path` itself, whether
    it is there or not. Errors: ExportError if it is neither a file nor a directory."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return os.path.realpath(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ExportError(f"{path} is a link that leads to itself; name a file") from None
        raise
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return os.path.realpath(path)
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise ExportError(f"{path} is {kind}, which a file cannot replace; name a file")


def _with_mode(mode: int) -> Callable[[str, int], int]:
    """An opener of new files that nobody else may read, if nobody may read what they replace."""
    return lambda name, flags: os.open(name, flags, mode)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a write, which name no file


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of output_file(path) once it is whole and on the disk.
    It has the permissions of the file whose place it takes. If anything fails before, it is
    removed. Errors: ExportError; OSError, which names the file."""
    target = output_file(path)
    mode = stat.S_IMODE(os.stat(target).st_mode) & 0o777 if os.path.isfile(target) else None
    temporary = f"{target}.{os.getpid()}-{threading.get_ident()}.tmp"  # nobody else's
    try:
        with open(temporary, "wb", opener=_with_mode(0o666 if mode is None else mode)) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # whatever the umask took away
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:  # Ctrl-C too, from the moment that the file is there
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        if isinstance(error, OSError) and error.errno in FULL and not error.filename:
            error.filename = path
        raise
    directory = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        os.fsync(directory)  # the new name
    finally:
        os.close(directory)


def _layout(metadata, entries) -> tuple[bytes, bytes, int]:
    """The bytes of the metadata and of the tensor table, and the size of the file."""
    meta = b"".join(_meta_entry(key, value) for key, value in metadata.items())
    meta += bytes(-len(meta) % ALIGN)
    table_bytes = sum(40 + _padded(len(e.name), 8) for e in entries)
    offset = HEADER.size + len(meta) + _padded(table_bytes, ALIGN)
    table = b""
    places: dict[tuple[str, int], int] = {}
    for e in entries:
        place = places.setdefault(e.data, offset)
        table += struct.pack(
            "<IIQQQQ", DTYPES[e.dtype].code, len(e.name), e.rows, e.cols, place, e.bytes
        )
        table += _pad(e.name.encode("ascii"), 8)
        offset += _padded(e.bytes, ALIGN) if place == offset else 0
    return meta, table + bytes(-len(table) % ALIGN), offset


def _distinct(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries whose data are to be written: layers may share a tensor."""
    seen: set[tuple[str, int]] = set()
    for entry in entries:
        if entry.data not in seen:
            seen.add(entry.data)
            yield entry


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to


def _pad(data: bytes, to: int) -> bytes:
    return data + bytes(-len(data) % to)


def _meta_entry(key: str, value: object) -> bytes:
    if isinstance(value, str):
        value = value.encode("utf-8", "replace")  # JSON may hold half a surrogate pair
    if isinstance(value, (bytes, bytearray)):
        array = np.frombuffer(bytes(value), np.uint8)
    else:
        array = np.atleast_1d(np.asarray(value))
        if array.dtype.kind in "iub" and array.dtype != np.uint8:
            if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
                raise ExportError(f"{key}: {array.max()} does not fit in 32 bits")
            array = array.astype("<i4")
        elif array.dtype.kind == "f":
            array = array.astype("<f4")
    number = next((n for n, t in META_TYPES.items() if t == array.dtype), None)
    if number is None:
        raise TypeError(f"metadata {key}: no type for {value!r}")
    name = key.encode("ascii")
    return (
        struct.pack("<IIQ", number, len(name), array.size)
        + _pad(name, 8)
        + _pad(array.tobytes(), 8)
    )


def _slabs(entry: Entry) -> Iterator[tuple[int, np.ndarray]]:
    """The tensor's float32 values, or the bytes of what is kept, some panels at a time, and the row
    where they begin."""
    read = entry.tensor.blocks() if entry.moved else entry.tensor.load()
    if len(entry.tensor.shape) == 1:
        yield 0, read(0, entry.cols)
        return
    step = max(LANES, SLAB // max(1, entry.cols) // LANES * LANES)
    for begin in range(0, entry.rows, step):
        yield begin, read(begin, min(begin + step, entry.rows))


def _data(entry: Entry, pool: ThreadPoolExecutor, stats: Stats) -> Iterator[bytes]:
    """The tensor's bytes, counted in stats. Slabs are packed while others are read and written."""
    packing: deque[Future] = deque()
    for first, slab in _slabs(entry):
        packing.append(pool.submit(_pack_slab, entry, first, slab))
        if len(packing) > AHEAD:
            yield stats.count(entry.dtype, *packing.popleft().result())
    while packing:
        yield stats.count(entry.dtype, *packing.popleft().result())


def _pack_slab(entry: Entry, first: int, slab: np.ndarray) -> tuple[bytes, int, float, float]:
    """The bytes of a slab that begins at row `first`, how many weights it has, the sum of their
    squares, and the sum of the squares of what rounding changed; none of these, if it is kept."""
    if entry.moved:
        return keep(slab, entry.tensor.stored), len(slab) * entry.cols, 0.0, 0.0
    if not np.isfinite(slab).all():
        what = "NaN" if np.isnan(slab).any() else "infinite"
        raise ExportError(
            f"tensor {entry.tensor.name}: a weight is {what}; the checkpoint is damaged, or its "
            "training diverged"
        )
    try:
        if slab.ndim == 1:
            data, error = slab.astype("<f4").tobytes(), 0.0
        elif entry.tensor.packed:
            data, error = entry.tensor.packed(entry.dtype, first, first + len(slab))
        else:
            data, error = pack(slab, entry.dtype)
    except OverflowError:
        raise ExportError(
            f"tensor {entry.tensor.name}: a weight of magnitude {np.abs(slab).max():.3g} is too "
            "large for "
            f"{entry.dtype}; use --dtype f32"
        ) from None
    return data, slab.size, square_sum(slab), error


class Checkpoint:
    """A checkpoint read back: `metadata` maps keys to arrays (u8 as bytes), `tensors` names to
    (dtype, rows, cols, offset, bytes).

    Made for tests and tools; it trusts the file but for its magic, version, size and checksum.
    Errors: ExportError."""

    def __init__(self, path: str):
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        if len(self.data) < HEADER.size or self.data[:8] != MAGIC:
            raise ExportError(f"{path} is not a heads.c checkpoint")
        _, version, crc, size, meta_size, table_size, n_meta, n_tensors = HEADER.unpack_from(
            self.data
        )
        if (
            version != VERSION
            or size != len(self.data)
            or crc != zlib.crc32(memoryview(self.data)[64:])
        ):
            raise ExportError(f"{path}: wrong version, size or checksum")
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, tuple[str, int, int, int, int]] = {}
        at = HEADER.size
        for _ in range(n_meta):
            number, key_len, count = struct.unpack_from("<IIQ", self.data, at)
            key = self.data[at + 16 : at + 16 + key_len].decode()
            at += 16 + _padded(key_len, 8)
            values = np.frombuffer(self.data, META_TYPES[number], count, at)
            self.metadata[key] = values.tobytes() if number == 1 else values
            at += _padded(values.nbytes, 8)
        at = HEADER.size + meta_size
        for _ in range(n_tensors):
            number, name_len, rows, cols, offset, n_bytes = struct.unpack_from(
                "<IIQQQQ", self.data, at
            )
            self.tensors[self.data[at + 40 : at + 40 + name_len].decode()] = (
                NAMES[number],
                rows,
                cols,
                offset,
                n_bytes,
            )
            at += 40 + _padded(name_len, 8)

    def tensor(self, name: str) -> np.ndarray:
        """The float32 values of a tensor: [cols] if it has one row and f32 data of just that size,
        else [rows, cols]."""
        dtype, rows, cols, offset, n_bytes = self.tensors[name]
        data = self.data[offset : offset + n_bytes]
        if rows == 1 and n_bytes == 4 * cols:
            return np.frombuffer(data, np.float32)
        kept = DTYPES[dtype].scales and not DTYPES[dtype].rounded
        return (kept_numbers if kept else unpack)(data, dtype, rows, cols)
