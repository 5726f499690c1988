"""Bent GGUF files: one or two of their fields changed, or the file cut short."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import NamedTuple

from exporter.convert import convert, open_model
from exporter.tensor import ExportError

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
SHOWN = 3  # elements of an array that are places


class Place(NamedTuple):
    """Where a field lies. kind: what it is; "text" and "key" follow their length of 8 bytes."""

    kind: str
    at: int
    size: int


class _Walk:
    def __init__(self, data: bytes):
        self.data, self.at, self.places = data, 0, []

    def field(self, kind: str, size: int) -> int:
        self.places.append(Place(kind, self.at, size))
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def string(self, kind: str) -> None:
        self.field(kind, self.field("length", 8))

    def element(self, kind: int) -> None:
        self.string("text") if kind == STRING else self.field("value", WIDTHS[kind])

    def value(self) -> None:
        kind = self.field("type", 4)
        if kind != ARRAY:
            return self.element(kind)
        kind, n = self.field("type", 4), self.field("count", 8)
        for i in range(n):
            shown = len(self.places)
            self.element(kind)
            if SHOWN <= i < n - 1:
                del self.places[shown:]


def places(data: bytes) -> list[Place]:
    """The fields of a GGUF file, of long arrays the first ones and the last."""
    walk = _Walk(data)
    for kind, size in (("magic", 4), ("version", 4)):
        walk.field(kind, size)
    n_tensors, n_values = walk.field("count", 8), walk.field("count", 8)
    for _ in range(n_values):
        walk.string("key")
        walk.value()
    for _ in range(n_tensors):
        walk.string("name")
        for _ in range(walk.field("count", 4)):
            walk.field("dim", 8)
        walk.field("tensor type", 4)
        walk.field("offset", 8)
    walk.places.append(Place("data", walk.at, len(data) - walk.at))
    return walk.places


def _number(old: int, size: int, rng: random.Random) -> bytes:
    top = 1 << 8 * size
    near = [old + 1, old - 1, 2 * old, old // 2, old ^ 1 << rng.randrange(8 * size), -old]
    fixed = [0, 1, 2, 3, rng.randrange(45), top - 1, top // 2, top // 2 - 1, 1 << 31, 1 << 40]
    floats = [float("nan"), float("inf"), -1.0, 0.5, 1e30]
    if size in (4, 8) and rng.random() < 0.2:
        return struct.pack("<f" if size == 4 else "<d", rng.choice(floats))
    return (rng.choice(near + fixed) % top).to_bytes(size, "little")


def _bytes(old: bytes, rng: random.Random) -> bytes:
    """Some bytes of a text or of the numbers changed, as many as before."""
    out, n = bytearray(old), rng.choice((1, 2, 4, 64))
    at = rng.randrange(max(1, len(out)))
    fill = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\x7c", None))
    part = rng.randbytes(n) if fill is None else fill * n
    out[at : at + n] = part[: len(out) - at]
    return bytes(out)


def mutant(data: bytes, fields: list[Place], rng: random.Random) -> bytes:
    """Another file. Every kind of field is as likely as any."""
    out = bytearray(data)
    kinds = sorted({place.kind for place in fields})
    chosen = [
        rng.choice([place for place in fields if place.kind == kind])
        for kind in rng.choices(kinds, k=rng.choice((1, 1, 2)))
    ]
    for place in sorted(
        chosen, key=lambda place: -place.at
    ):  # what grows moves only what is behind
        _bend(out, place, fields, rng)
    if rng.random() < 0.1:
        del out[rng.randrange(len(out)) :]
    return bytes(out)


def _bend(out: bytearray, place: Place, fields: list[Place], rng: random.Random) -> None:
    kind, at, size = place
    old = bytes(out[at : at + size])
    if kind in ("key", "name", "text") and rng.random() < 0.5:
        other = rng.choice([field for field in fields if field.kind == kind])
        new = rng.choice((bytes(out[other.at : other.at + other.size]), b"", b"\xff", old + b"x"))
        out[at - 8 : at + size] = len(new).to_bytes(8, "little") + new
    elif kind in ("key", "name", "text", "data", "magic"):
        out[at : at + size] = _bytes(old, rng)
    else:
        out[at : at + size] = _number(int.from_bytes(old, "little"), size, rng)


def sentence(folder: Path, data: bytes, dtype: str = "keep") -> str:
    """Why a file is refused, empty if it is exported. Any other exception is a fault."""
    path, out = folder / "x.gguf", folder / "x.bin"
    path.write_bytes(data)
    try:
        convert(open_model(str(path), None, None, False), str(out), dtype, False, lambda note: None)
    except ExportError as error:
        assert str(error).strip(), "a refusal says nothing"
        return str(error)
    return ""
