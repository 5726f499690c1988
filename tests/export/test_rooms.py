"""The rooms of exporter/: each is installed, files are short, and none need each other in circles."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

from conftest import ROOT
from sources import circles

from exporter.families.registry import FAMILIES

FILES = sorted((ROOT / "exporter").rglob("*.py"))
SHARED = {"__init__", "__main__", "common", "encoder", "encoder_decoder", "experts", "multimodal"}
SHARED |= {"classes", "guesses", "refused", "registry"}


def imported(path) -> set[str]:
    """The files of exporter/ that a file imports, as paths without the suffix."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1]
            if node.module:
                folder = folder.joinpath(*node.module.split("."))
            files = [folder] if node.module else []
            files += [folder / alias.name for alias in node.names]
            found |= {str(f.relative_to(ROOT)) for f in files if f.with_suffix(".py").is_file()}
    return found


def test_every_room_is_installed():
    rooms = {path.parent.relative_to(ROOT) for path in FILES}
    packages = re.search(
        r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )
    listed = set(re.findall(r'"heads\.([\w.]+)"', packages[1]))
    listed = {name for name in listed if name.split(".")[0] == "exporter"}
    assert {str(room).replace("/", ".") for room in rooms} == listed


def test_a_family_is_found_by_its_name():
    """Its function is in a file of families/ that holds its kin alone."""
    files = {function.__module__.rpartition(".")[2] for function, _ in FAMILIES.values()}
    found = {PurePosixPath(path).stem for path in FILES if path.parent.name == "families"}
    assert files == found - SHARED


def test_files_are_short_and_need_each_other_in_no_circle():
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert max(lengths.values()) <= 650
    needs = {str(path.relative_to(ROOT).with_suffix("")): imported(path) for path in FILES}
    assert sum(map(len, needs.values())) > 200 and circles(needs) == []
