"""The shape of the C sources: lines, functions, files and white space."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from sources import c_files, name_of

COLUMNS = 100
FUNCTION_LINES = 60
GENERATED = ROOT / "text" / "unicode_tables.h"
SOURCES = [path for path in c_files() if path != GENERATED]

# No file is longer, outside the kernels.
FILE_LINES = 650


def long_functions(lines: list[str]) -> list[str]:
    """A function ends with the first closing brace at the left edge after the line that opens it:
    one that starts there, is no declaration of data, and ends with an opening brace."""
    found, start = [], None
    for i, line in enumerate(lines, 1):
        if start is None and re.match(r"[A-Za-z_].*\(", line):
            start = i
        if start and line.endswith(";") and not line.startswith((" ", "}")):
            start = None  # a prototype
        if start and line.startswith("}"):
            if i - start + 1 > FUNCTION_LINES:
                found.append(f"{start}: a function of {i - start + 1} lines")
            start = None
    return found


def faults(text: str) -> list[str]:
    lines = text.splitlines()
    found = [f"{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > COLUMNS]
    found += [f"{i}: a tab" for i, line in enumerate(lines, 1) if "\t" in line]
    found += [f"{i}: trailing blanks" for i, line in enumerate(lines, 1) if line != line.rstrip()]
    if text and not text.endswith("\n"):
        found.append(f"{len(lines)}: no end of line")
    return found + long_functions(lines)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_source(path):
    found = faults(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(f"{name_of(path)}:{fault}" for fault in found)


def test_no_file_is_long():
    lengths = {name_of(path): path.read_bytes().count(b"\n") for path in SOURCES}
    longer = {
        name
        for name, length in lengths.items()
        if length > FILE_LINES and not name.startswith("kernels/")
    }
    assert not longer


def test_the_check_itself():
    body = "    x++;\n" * (FUNCTION_LINES - 2)
    assert faults("static int f(int x) {\n" + body + "}\n") == []
    assert faults("static int f(int x) {\n    x++;\n" + body + "}\n") == [
        "1: a function of 61 lines"
    ]
    assert faults("int f(int x,\n      int y) {\n" + body + "}\n") == ["1: a function of 61 lines"]
    assert faults("int f(int x);\n\nint table[] = {\n" + body + body + "};\n") == []
    assert faults("x" * (COLUMNS + 1)) == ["1: 101 columns", "1: no end of line"]
    assert faults("\tx \n") == ["1: a tab", "1: trailing blanks"]
