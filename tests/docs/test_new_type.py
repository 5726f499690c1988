"""docs/types.md: its type of 4 bits, added to a copy of the sources, is exported and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import scratch_copies
from conftest import ROOT, takes_long

pytestmark = takes_long  # the sources are compiled once more
PAGE = (ROOT / "docs" / "types.md").read_text(encoding="utf-8")
LLAMA = ROOT / "tests" / "golden" / "llama"
TOKENS = "5 6 7 8 9 10 11 12"


@pytest.fixture(scope="session")
def copy(made_once) -> Path:
    return made_once("type", lambda folder: scratch_copies.build(folder, PAGE))


def export(copy: Path, path: Path, dtype: str) -> Path:
    subprocess.run(
        [sys.executable, copy / "export.py", LLAMA, path, "--dtype", dtype],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return path


@pytest.fixture(scope="module")
def models(copy, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("types")
    return {kind: export(copy, folder / f"{kind}.bin", kind) for kind in ("f32", "q8", "q4i", "q4")}


def logits(copy: Path, model: Path, *options: object) -> np.ndarray:
    out = model.with_suffix(".logits")
    command = [copy / "run-scalar", model, "--tokens", TOKENS, "--logits", out, *options]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return np.fromfile(out, "<f4").reshape(len(TOKENS.split()), -1)


def test_its_error_is_that_of_four_bits(copy, models):
    exact = logits(copy, models["f32"])
    error = {k: np.abs(logits(copy, models[k]) - exact).max() for k in ("q8", "q4i", "q4")}
    print(error)
    assert 2 * error["q8"] < error["q4i"] < 2 * error["q4"]


def test_it_gives_the_same_bits_on_every_road(copy, models):
    first = logits(copy, models["q4i"], "-t", 1)
    for options in (("-t", 2), ("-t", 1, "-b", 3), ("-t", 2, "-ctk", "q8", "-b", 2)):
        again = logits(copy, models["q4i"], *options)
        assert (again == first).all() or "-ctk" in options
    assert np.isfinite(first).all()


def test_what_it_says_of_itself(copy, models):
    told = subprocess.run(
        [copy / "run-scalar", models["q4i"], "--info", "--json"], check=True, stdout=-1
    ).stdout
    kinds = {t["name"]: t for t in json.loads(told)["tensors"]}
    up = kinds["layers.0.ffn_up"]
    assert up["dtype"] == "q4i"
    blocks = -(-up["cols"] // 32)
    scales = 16 * (blocks + blocks % 2) + 32 * -(-blocks // 8)
    assert up["bytes"] == -(-up["rows"] // 16) * (256 * blocks + 64 * -(-scales // 64))


def test_its_bytes_come_back(copy):
    """The engine's reading of a row is numpy's: so the embedding's is that of products."""
    script = (
        "import numpy as np; from exporter.quantize.panels import pack, unpack;"
        "w = np.random.default_rng(1).normal(0, 1, (20, 64)).astype(np.float32);"
        "data, error = pack(w, 'q4i'); back = unpack(data, 'q4i', 20, 64);"
        "assert np.abs(back - w).max() < 0.5 and abs(((back - w) ** 2).sum() - error) < 1e-3 * error + 1e-9"
    )
    subprocess.run([sys.executable, "-c", script], cwd=copy, check=True)
