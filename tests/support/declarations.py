"""heads.h as ctypes: its calls, read from the header itself, so that a new one cannot be forgotten."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import NamedTuple

HEADER = Path(__file__).resolve().parents[2] / "heads.h"
NUMBERS = {
    "int": ctypes.c_int,
    "long": ctypes.c_long,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "char": ctypes.c_char,
}


class Parameter(NamedTuple):
    type: str  # without const: "heads_model *", "int **"
    name: str

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")


class Call(NamedTuple):
    result: str
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def can_fail(self) -> bool:
        return any(p.type == "heads_error *" for p in self.parameters)


def _source() -> str:
    return re.sub(r"//.*", "", HEADER.read_text())


def _declared(text: str) -> Parameter:
    """A type and a name: "const int *const *x" is Parameter("int **", "x")."""
    text = re.sub(r"(\w+)\[\w*\]", r"*\1", re.sub(r"\bconst\b", " ", text))  # an array is a pointer
    type_, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", text, re.S).groups()
    stars = type_.count("*")
    return Parameter(type_.replace("*", " ").strip() + (" " + "*" * stars if stars else ""), name)


def calls() -> list[Call]:
    found = []
    for head, parameters in re.findall(r"(?m)^HEADS_API ([^;]*?)\(([^;]*?)\);", _source()):
        result, name = _declared(head)
        names = [] if parameters.strip() == "void" else parameters.split(",")
        found.append(Call(result, name, tuple(map(_declared, names))))
    return found


def structs() -> dict[str, type[ctypes.Structure]]:
    """Its structs with members, as ctypes."""
    found: dict[str, type[ctypes.Structure]] = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", _source(), re.S):
        members = [one for line in body.split(";") for one in _members(line, found)]
        found[name] = type(name, (ctypes.Structure,), {"_fields_": members})
    return found


def _members(line: str, known: dict[str, type]) -> list[tuple[str, type]]:
    if not line.strip():
        return []
    function = re.search(r"\(\*(\w+)\)\(", line)
    if function:
        return [(function[1], ctypes.c_void_p)]
    array = re.search(r"(\w+) (\w+)\[(\d+)\]", line)
    if array:
        return [(array[2], NUMBERS[array[1]] * int(array[3]))]
    first, *more = line.split(",")
    type_, name = _declared(first)
    pairs = [(name, type_)]
    for other in more:
        base = type_.replace("*", "").strip()
        pairs.append((other.replace("*", "").strip(), base + " *" * other.count("*")))
    return [(name, of_type(type_, known)) for name, type_ in pairs]


def of_type(type_: str, known: dict[str, type]) -> type | None:
    """The ctypes type of a C type; enums are int."""
    if type_ == "void":
        return None
    if type_.endswith("*"):
        return ctypes.c_void_p
    if type_ in known:
        return known[type_]
    return NUMBERS[type_] if type_ in NUMBERS else ctypes.c_int
