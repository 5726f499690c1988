"""README.md and docs/ as tests read them: commands, links, and samples of the program's output.

python tests/support/documents.py      renews the samples
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = 100


def pages() -> list[Path]:
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "models/README.md")
    return [ROOT / name for name in names] + sorted((ROOT / "docs").glob("*.md"))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Command(NamedTuple):
    page: str
    line: int
    text: str
    runs: bool  # it stands in a block of its own; otherwise in a sentence

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


FENCE = re.compile(r"^```(\w*)$")
SPAN = re.compile(r"`([^`\n]+)`")
PROGRAMS = (
    "./run ",
    "python ",
    "python3 ",
    ".venv/bin/python ",
    "make ",
    "pip ",
    "cc ",
    "./batch ",
    "docker ",
    ".ci/run",
)


def blocks(text: str) -> list[tuple[int, str, list[str]]]:
    """Fenced blocks: the number of the fence's line, the language, and the lines."""
    found, start = [], None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if start is None and fence:
            start = (number, fence[1])
        elif start and line == "```":
            found.append((*start, lines[start[0] : number - 1]))
            start = None
    assert start is None, f"the block of line {start} has no end"
    return found


def python_blocks(page: Path) -> list[str]:
    found = blocks(page.read_text(encoding="utf-8"))
    return ["\n".join(lines) for _, language, lines in found if language == "python"]


def prose(text: str) -> str:
    """The text with its blocks blanked out, so that lines keep their numbers."""
    lines = text.splitlines()
    for start, _, block in blocks(text):
        lines[start - 1 : start + len(block) + 1] = [""] * (len(block) + 2)
    return "\n".join("" if line.startswith("    ") else line for line in lines)


def commands(page: Path) -> list[Command]:
    text, name = page.read_text(encoding="utf-8"), name_of(page)
    found = [
        Command(name, start + i, re.sub(r"\s+# .*$", "", line), True)
        for start, language, lines in blocks(text)
        for i, line in enumerate(lines, 1)
        if language == "sh" and line.strip() and not line.startswith("#")
    ]
    return found + [
        Command(name, number, span, False)
        for number, line in enumerate(prose(text).splitlines(), 1)
        for span in SPAN.findall(line)
        if span.startswith(PROGRAMS)
    ]


def spans(page: Path) -> set[str]:
    return set(SPAN.findall(prose(page.read_text(encoding="utf-8"))))


# ---- links ----


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = 0
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.add(name)
    return found


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8")))


def broken_links(page: Path) -> list[str]:
    """Links to files that are not there, or to headings that their page does not have."""
    broken = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(link)
        elif anchor and anchor not in anchors(target):
            broken.append(link)
    return broken


# ---- samples of output ----

SAMPLE = re.compile(
    r"^<!-- output: (\./run [^|]*?)(?: \| ([\w ]+))? -->\n```text\n(.*?)```$",
    re.MULTILINE | re.DOTALL,
)


def output_of(command: str) -> str:
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    words = [program, *shlex.split(command)[1:]]
    return subprocess.run(
        words,
        cwd=ROOT,
        check=True,
        timeout=60,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ).stdout


def wrapped(text: str) -> list[str]:
    return [
        part
        for line in text.splitlines()
        for part in (textwrap.wrap(line, COLUMNS - 4) if len(line) > COLUMNS else [line])
    ]


def shown(output: str, part: str) -> str:
    """What a page shows of an output: all of it, five lines of a story, or the report's table."""
    lines = wrapped(output)
    if part == "five lines":
        fifth = [i for i, line in enumerate(lines) if line][4]
        return "\n".join(lines[: fifth + 1]) + " ...\n"
    if part == "table":
        return re.search(r"^ +scheme .*?(?=\n\n)", output, re.MULTILINE | re.DOTALL)[0] + "\n"
    assert not part, part
    return "\n".join(lines) + "\n"


# What code makes: a table between two comments that name its maker, or a sample.
MADE = re.compile(
    r"<!-- (python [^>]*|lab): (?:begin|\w+) -->\n(.*?)<!-- (?:python [^>]*: )?end -->", re.DOTALL
)


def words(page: str) -> int:
    """Of a page, but for what code makes."""
    return len(SAMPLE.sub("", MADE.sub("", page)).split())


def renewed(sample: re.Match) -> str:
    head = sample[0][: sample.start(3) - sample.start()]
    return head + shown(output_of(sample[1]), sample[2]) + "```"


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = SAMPLE.sub(renewed, text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{name_of(page)}: new samples")
