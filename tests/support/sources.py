"""The C files of the repository: where they are, and which of them need which others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def c_files() -> list[Path]:
    """All .c and .h files, of every folder that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h"],
        cwd=ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
    return sorted(ROOT / name for name in set(listed.split()) if (ROOT / name).exists())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- who needs whom ----

# What is no code: comments, strings, characters, and the preprocessor's lines.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
# At the left edge: a function with its body, or data with its value. A type stands before the name.
FUNCTION = re.compile(r"^([A-Za-z_][\w \t\n*]*?)\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
DATA = re.compile(r"^([A-Za-z_][\w \t*]*?)\b(\w+)(?:\[[^\]\n]*\])*\s*=", re.MULTILINE)
# Functions and data that a header declares and another file defines.
DECLARATION = re.compile(r"^(?:extern [^;{}]*|[A-Za-z_][\w \t\n*]*\([^;{}]*\));", re.MULTILINE)
# A name, no member of a struct: alone, or called.
NAMED = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")
CALLED = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*(?=\()")


def defined(form: re.Pattern, code: str, header: bool) -> set[str]:
    """What other files may use of this one: of a header, inline functions too."""
    found = form.findall(code)
    return {name for before, name in found if header or "static" not in before.split()}


def uses(texts: dict[str, str]) -> dict[str, set[str]]:
    """From each file to those that define the functions that it calls and the data that it names.
    texts: names of files and what they hold. x.c and x.h of a folder are one file, x."""
    code = {name: DECLARATION.sub("", NO_CODE.sub(" ", text)) for name, text in texts.items()}
    graph: dict[str, set[str]] = {name[:-2]: set() for name in code}
    for form, used in ((FUNCTION, CALLED), (DATA, NAMED)):
        owner = {
            word: name[:-2] for name in code for word in defined(form, code[name], name[-1] == "h")
        }
        for name, text in code.items():
            # A static function hides another file's of the same name.
            words = set(used.findall(text)) - defined(form, text, True)
            graph[name[:-2]] |= {owner[word] for word in words if word in owner} - {name[:-2]}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Files that all reach each other, as groups of two or more."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            for name in graph[ahead.pop()] - found:
                found.add(name)
                ahead.append(name)
        return found

    reach = {name: reached(name) for name in graph}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph
    }
    return sorted(list(group) for group in groups if len(group) > 1)
