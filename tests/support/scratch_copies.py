"""A copy of the sources with the changes that a page of docs/ shows: lines that begin with a blank
are there, with - go, with + are new; `@@ FILE` says where."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from conftest import ROOT


def hunks(page: str) -> list[tuple[str, list[str]]]:
    """The page's changes: a file, and lines that begin with a blank, + or -."""
    code = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    found: list[tuple[str, list[str]]] = []
    for line in code:
        if line.startswith("@@ "):
            found.append((line[3:], []))
        else:
            found[-1][1].append(line)
    return found


def change(text: str, lines: list[str]) -> str:
    old = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
    new = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
    assert text.count(old) == 1 or not text, f"the page changes what is not there:\n{old}"
    return text.replace(old, new) if text else new


def build(folder: Path, page: str) -> None:
    """./run-scalar and the exporter with the page's changes."""
    for path in ROOT.iterdir():
        rooms = ("exporter", "browser")
        sources = path.is_dir() and (any(path.glob("*.c")) or path.name in rooms)
        if sources and path.name != "build":
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.suffix in (".c", ".h") or path.name in ("Makefile", "export.py"):
            shutil.copy2(path, folder)
    (folder / "models").mkdir()
    shutil.copy2(ROOT / "models" / "stories.bin", folder / "models")
    for name, lines in hunks(page):
        path = folder / name
        path.write_text(change(path.read_text() if path.exists() else "", lines))
    subprocess.run(
        ["make", "-s", "-j2", "SCALAR=1", "WERROR=1", "CFLAGS=-O0", "run-scalar"],
        cwd=folder,
        check=True,
    )
