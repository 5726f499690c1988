"""The shape of the C sources: lines, functions, files and white space; and sentences in comments, of
Python too."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize

import pytest

from conftest import ROOT, in_part
from sources import c_files, name_of

COLUMNS = 100
FUNCTION_LINES = 60
GENERATED = ROOT / "text" / "unicode_tables.h"
SOURCES = [path for path in c_files() if path != GENERATED]

# No file is longer, outside the kernels; heads.h says all that programs may ask for.
FILE_LINES, HEADER_LINES = 650, 750


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


@in_part(1)  # of every file: what is not drawn here fails in somebody else's run
@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_source(path):
    found = faults(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(f"{name_of(path)}:{fault}" for fault in found)


def test_no_file_is_long():
    lengths = {name_of(path): path.read_bytes().count(b"\n") for path in SOURCES}
    longer = {
        name
        for name, length in lengths.items()
        if length > (HEADER_LINES if name == "heads.h" else FILE_LINES)
        and not name.startswith("kernels/")
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


# ---- sentences that must be read twice ----

# As in "the rows of one and those of another": the reader has to look for what the word means.
HIDDEN = re.compile(r"\b(?:those|that) of\b", re.IGNORECASE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def c_comments(text: str) -> list[str]:
    """A comment of several lines is one."""
    joined = re.sub(r"\n[ \t]*//", " ", text)
    return C_COMMENT.findall(joined)


def python_comments(text: str) -> list[str]:
    """Comments, one of several lines too, and docstrings."""
    found, last = [], None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if last == (token.start[0] - 1, token.start[1]):
                found[-1] += token.string[1:]
            else:
                found.append(token.string)
            last = token.start
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    return found + [ast.get_docstring(node) or "" for node in nodes]


def hidden_subjects(comments: list[str]) -> list[str]:
    return [c for c in comments if HIDDEN.search(re.sub(r"\s+", " ", c))]


def test_comments_have_their_subjects():
    """In C, and in Python outside the tests."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", ":!tests"],
        cwd=ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout.split()
    found = {
        path: hidden_subjects(of((ROOT / path).read_text(encoding="utf-8")))
        for of, paths in ((c_comments, map(name_of, SOURCES)), (python_comments, listed))
        for path in paths
        if (ROOT / path).exists()
    }
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_the_check_of_subjects_itself():
    assert hidden_subjects(c_comments("int a;  // rows, and those\n// of another\nint b;\n"))
    assert hidden_subjects(c_comments("/* That of the embedding */ int those_of;"))
    assert not hidden_subjects(c_comments("f(those of);  // the rows of another"))
    for text in (
        "a = 1  # that of b\n",
        "# those\n# of b\n",
        'def f():\n    """Those\n    of b."""\n',
    ):
        assert hidden_subjects(python_comments(text)), text
    assert not hidden_subjects(python_comments('a = "those of b"  # the others\n'))
