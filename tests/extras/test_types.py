"""What type checkers make of the module: of right and wrong uses, of the documented examples, and
whether every name has a type."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import documents
import pytest
from conftest import ROOT

USES = Path(__file__).with_name("typed_uses.py")
PYTHON = ROOT / "python"
# Their types are nobody's: commands, and what they are made of.
COMMANDS = ("heads.server", "heads.evaluate", "heads.exporter", "heads.__main__")


def mypy(file: Path) -> dict[int, str]:
    """What is wrong with a file, by its lines."""
    # Of the module itself, as of any that is installed, no errors are wanted.
    command = ["-m", "mypy", "--strict", "--follow-imports=silent", "--no-incremental", str(file)]
    env = {**os.environ, "MYPYPATH": str(PYTHON)}
    done = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 1), done.stderr
    return {int(n): says for n, says in re.findall(r":(\d+): error: (.*)", done.stdout)}


def pyright(file: Path, *options: str) -> dict:
    (file.parent / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(PYTHON)]}))
    env = {**os.environ, "PYTHONPATH": str(PYTHON)}
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", *(options or [str(file)])],
        env=env,
        cwd=file.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def pyright_errors(file: Path) -> dict[int, str]:
    return {
        x["range"]["start"]["line"] + 1: x["message"]
        for x in pyright(file)["generalDiagnostics"]
        if x["severity"] == "error"
    }


@pytest.mark.parametrize("check", [mypy, pyright_errors])
def test_wrong_uses_are_refused_and_right_ones_taken(check, tmp_path):
    text = USES.read_text()
    (tmp_path / USES.name).write_text(text)
    wrong = {i for i, line in enumerate(text.splitlines(), 1) if line.endswith("  # wrong")}
    found = check(tmp_path / USES.name)
    assert set(found) == wrong and len(wrong) >= 20, found


@pytest.mark.parametrize("check", [mypy, pyright_errors])
def test_documented_examples_are_taken(check, tmp_path):
    examples = documents.python_blocks(ROOT / "docs" / "python.md")
    for i, example in enumerate(examples):
        (tmp_path / f"example_{i}.py").write_text(example)
        assert check(tmp_path / f"example_{i}.py") == {}, example
    assert len(examples) > 1


def test_every_public_name_has_a_type(tmp_path):
    (tmp_path / "x.py").touch()
    report = pyright(tmp_path / "x.py", "--verifytypes", "heads", "--ignoreexternal")
    symbols = [
        x
        for x in report["typeCompleteness"]["symbols"]
        if x["isExported"] and not x["name"].startswith(COMMANDS)
    ]
    names = {x["name"] for x in symbols}
    assert {"heads.model.Model.score", "heads.session.Session.feed"} <= names
    lacking = [x["name"] for x in symbols if not x["isTypeKnown"] or x["isTypeAmbiguous"]]
    assert not lacking
