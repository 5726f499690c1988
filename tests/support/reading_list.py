"""What the core takes from other files: the proof that its reading list hides nothing.

A file can name only what its includes declare. So a file of the core is compared with every header
that it includes, itself or by another header: which of the header's names does it use, and which of
the header's structs does it open?"""

from __future__ import annotations

import re
from typing import NamedTuple

from sources import CALLED, DATA, DECLARATION, FUNCTION, NAMED, NO_CODE, ROOT, defined

CORE = ROOT / "tests" / "core.txt"
DOORS = ROOT / "tests" / "doors.txt"
PUBLIC = "heads.h"  # one door, whatever of it is used

INCLUDE = re.compile(r'^#include "(.*)"', re.MULTILINE)
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
STRUCT = re.compile(
    r"^(?:typedef )?(?:struct|union)(?: (\w+))? \{((?:[^{}]|\{[^{}]*\})*)\}(?: (\w+))?;",
    re.MULTILINE,
)
ENUM = re.compile(r"\benum\b[^{};()]*\{([^}]*)\}(?: (\w+))?")
TYPEDEF = re.compile(r"^typedef\b[^;{}]*?\b(\w+)(?:\([^;{}]*\))?;", re.MULTILINE)
DATA_NAME = re.compile(r"\b(\w+)(?:\[\w*\])*(?=[,;])")  # of `extern const Kernels a, b;`
OPENED = re.compile(r"(?:(?<!\.)\.|->)([A-Za-z_]\w*)")


class Door(NamedTuple):
    name: str
    file: str
    promise: str


class Names(NamedTuple):
    """What a file has for those that include it."""

    types: set[str]
    values: set[str]  # functions and data, of a header declared ones too
    constants: set[str]  # macros, values of enums
    members: dict[str, set[str]]  # of each struct

    def opened(self) -> set[str]:
        return {member for members in self.members.values() for member in members}


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and line[0] != "#"]


def core() -> list[str]:
    """The files of the core, in reading order."""
    return _lines(CORE.read_text(encoding="utf-8"))


def doors() -> list[Door]:
    return [Door(*line.split(None, 2)) for line in _lines(DOORS.read_text(encoding="utf-8"))]


def _members(body: str) -> set[str]:
    found = set()
    for line in re.sub(r"[{}]", ";", body).split(";"):
        pointer = re.match(r".*?\(\*(\w+)", line, re.DOTALL)
        line = re.sub(r"\[[^\]]*\]", "", line).strip()
        found |= {pointer[1]} if pointer else set(re.findall(r"(\w+)\s*(?=,|$)", line))
    return found


def _declared(code: str) -> set[str]:
    """The functions and data that a header leaves to another file."""
    found = set()
    for text in DECLARATION.findall(code):
        function = re.search(r"\b(\w+)\(", text)
        if "typedef" not in text:
            found |= {function[1]} if function else set(DATA_NAME.findall(text))
    return found


def names_of(text: str) -> Names:
    code = NO_CODE.sub(" ", text)
    structs = {tag or name: _members(body) for tag, body, name in STRUCT.findall(code)}
    enums = ENUM.findall(code)
    return Names(
        types={*structs, *TYPEDEF.findall(code), *(name for _, name in enums)} - {""},
        values=defined(FUNCTION, code, True) | defined(DATA, code, True) | _declared(code),
        constants={one.split("=")[0].strip() for body, _ in enums for one in body.split(",")}
        | set(MACRO.findall(text)) - {""},
        members=structs,
    )


def _included(name: str, texts: dict[str, str]) -> set[str]:
    """The headers that a file includes, and those that they include."""
    found, ahead = set(), [name]
    while ahead:
        file = ahead.pop()
        for header in INCLUDE.findall(texts[file]):
            path = header if header in texts else f"{file.rpartition('/')[0]}/{header}"
            if path not in found:
                found.add(path)
                ahead.append(path)
    return found


def taken(texts: dict[str, str], inside: list[str]) -> dict[str, set[str]]:
    """From each name that the core uses and does not define to the files that use it. A struct is
    used where it is named, and where a member is opened that no struct of the core has.
    texts: names of files and what they hold, heads.h among them; inside: the core's."""
    code = {name: NO_CODE.sub(" ", texts[name]) for name in inside}
    names = {name: names_of(text) for name, text in texts.items()}
    mine = [names[name] for name in inside] + [names[PUBLIC]]
    types = {word for file in mine for word in file.types}
    members = {word for file in mine for word in file.opened()}
    own = {
        w for text in code.values() for form in (FUNCTION, DATA) for w in defined(form, text, True)
    }
    found: dict[str, set[str]] = {}
    for name in inside:
        header = name.endswith(".h")  # its declarations use types, but call nothing
        text = DECLARATION.sub(" ", code[name]) if header else code[name]
        used = set((CALLED if header else NAMED).findall(text))
        for other in _included(name, texts) - {PUBLIC}:
            far = names[other]
            words = (far.values - own) & used
            if other not in inside:
                words |= far.constants & used | (far.types - types) & set(NAMED.findall(code[name]))
                opened = set(OPENED.findall(text)) - members
                words |= {struct for struct, has in far.members.items() if has & opened}
            for word in words:
                found.setdefault(word, set()).add(name)
    return found
