"""The exporter and the engine against transformers: small random checkpoints of every family, with logits and greedy tokens
that transformers computed from the same files (tests/make_golden.py made them)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import export

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
TOLERANCE = 1e-4  # of the reference's largest logit, at every position


def measure(directory: Path, binary: Path, run) -> tuple[float, list[int], list[int]]:
    """Runs the prompt of a golden directory through `binary`: the largest difference of a logit over the largest logit, the
    greedy tokens, and those expected. `run` is that of conftest.py."""
    golden = json.loads((directory / "golden.json").read_text())
    expected = np.load(directory / "logits.npy")
    prompt = ["--tokens", " ".join(map(str, golden["prompt"])), "-ctk", "f32", "-ctv", "f32"]
    logits_file = binary.with_suffix(".logits")
    done = run(binary, *prompt, "--logits", logits_file)
    assert done.returncode == 0, done.stderr
    logits = np.fromfile(logits_file, "<f4").reshape(expected.shape)
    done = run(binary, *prompt, "--temp", 0, "-n", len(golden["greedy"]))
    assert done.returncode == 0, done.stderr
    ids = list(map(int, done.stdout.split()))
    assert ids[: len(golden["prompt"])] == golden["prompt"]
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    return float(error), ids[len(golden["prompt"]) :], golden["greedy"]


def test_every_family_is_compared():
    """With a committed checkpoint or with fresh ones (tests/ci_live.py)."""
    import make_golden
    from exporter.families import FAMILIES

    assert NAMES == sorted(make_golden.COMMITTED)
    assert {kind for kind, _ in {**make_golden.MODELS, **make_golden.MORE}.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path, run):
    binary = tmp_path / "model.bin"
    assert export.main([str(GOLDEN / name), str(binary), "--dtype", "f32"]) == 0
    error, greedy, expected = measure(GOLDEN / name, binary, run)
    assert error <= TOLERANCE
    assert greedy == expected
