"""The shape of the C sources: lines, functions, white space, and how much of it there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import ROOT

COLUMNS = 100
FUNCTION_LINES = 60
# Of code, without comments and blank lines, outside the folders below.
TOTAL_LINES = 13_150
NOT_COUNTED = ("kernels/", "tests/", "examples/")
FOLDERS = [".", "cli", "text", "kernels", "tests/c", "examples"]
GENERATED = ROOT / "text" / "unicode_tables.h"
SOURCES = sorted(
    {path for folder in FOLDERS for path in (ROOT / folder).glob("*.[ch]")} - {GENERATED}
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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


def test_the_check_itself():
    body = "    x++;\n" * (FUNCTION_LINES - 2)
    assert faults("static int f(int x) {\n" + body + "}\n") == []
    assert faults("static int f(int x) {\n    x++;\n" + body + "}\n") == [
        "1: a function of 61 lines"
    ]
    assert faults("int f(int x,\n      int y) {\n" + body + "}\n") == ["1: a function of 61 lines"]
    assert faults("int f(int x);\n\nint table[] = {\n" + body + body + "};\n") == []
    assert faults("x" * (COLUMNS + 1)) == ["1: 101 columns", "1: no end of line"]
    assert code_lines("int x;  // y\n\n// z\n    // z\n}\n") == 2
    assert faults("\tx \n") == ["1: a tab", "1: trailing blanks"]


def code_lines(text: str) -> int:
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("//") for line in text.splitlines()
    )


def test_total():
    """How large the program is, for a reader who wants to know all of it."""
    texts = [
        path.read_text(encoding="utf-8")
        for path in SOURCES
        if not name_of(path).startswith(NOT_COUNTED)
    ]
    code, lines = sum(map(code_lines, texts)), sum(len(text.splitlines()) for text in texts)
    print(f"{lines} lines of C in {len(texts)} files, {code} of them code")
    assert 0 < code <= TOTAL_LINES
