"""Copies of golden checkpoints that a test may change, what their export makes, and what a refused
one says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from conftest import ROOT
from safetensors.numpy import load_file, save_file

import export
from exporter.checkpoint import Checkpoint

GOLDEN = ROOT / "tests" / "golden"


def copy(tmp_path: Path, name: str) -> Path:
    """A golden checkpoint that a test may change."""
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def edit_config(directory: Path, **changes) -> None:
    config = json.loads((directory / "config.json").read_text())
    config.update(changes)
    (directory / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v != "ABSENT"})
    )


def edit_tensors(directory: Path, edit) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def exported(source: Path, *options: str) -> Checkpoint:
    out = source.parent / "exported.bin"
    assert export.main([str(source), str(out), "--dtype", "f32", *options]) == 0
    return Checkpoint(str(out))


def same(a: Checkpoint, b: Checkpoint) -> bool:
    knobs = {k for k in {**a.metadata, **b.metadata} if k.startswith(("model.", "layer."))}
    return (
        a.tensors.keys() == b.tensors.keys()
        and all(np.array_equal(a.tensor(n), b.tensor(n)) for n in a.tensors)
        and all(np.array_equal(a.metadata.get(k), b.metadata.get(k)) for k in knobs)
    )


def refusal(capsys, *args) -> str:
    """What an export that must fail says; it must be one line."""
    capsys.readouterr()
    assert export.main([str(a) for a in args]) == 1
    said = capsys.readouterr().err.strip().split("\n")
    assert said[-1].startswith("export: ") and "Traceback" not in "".join(said)
    return said[-1]
