"""docs/mixers.md: its mixer, added to a copy of the sources, works, and every report names it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import checkpoints
import scratch_copies
from conftest import ROOT, takes_long

pytestmark = takes_long  # the sources are compiled once more
PAGE = (ROOT / "docs" / "mixers.md").read_text(encoding="utf-8")
N_EMBD, N_LAYERS, D_FF, VOCAB = 40, 3, 72, 300
MEANS = (0, 2)  # layers of the tiny model that have it
MEAN = int(re.search(r"`layer.mixer` \((\d+) here\)", PAGE)[1])


@pytest.fixture(scope="session")
def program(made_once) -> Path:
    made = made_once("mixer", lambda folder: scratch_copies.build(folder, PAGE))
    return made / "run-scalar"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Three layers, of which the first and the last have the mean in place of attention."""
    meta, tensors = checkpoints.parse(
        checkpoints.random_model(n_embd=N_EMBD, n_layers=N_LAYERS, d_ff=D_FF, vocab=VOCAB)
    )
    rng = np.random.default_rng(1)
    for i in MEANS:
        for name in "qkvo":
            del tensors[f"layers.{i}.attn_{name}"]
        for name in ("mix_in", "mix_out"):
            weights = rng.normal(0, N_EMBD**-0.5, (N_EMBD, N_EMBD))
            tensors[f"layers.{i}.{name}"] = checkpoints.matrix(weights)
    kinds = np.array([MEAN if i in MEANS else 0 for i in range(N_LAYERS)], "<i4")
    meta["layer.mixer"] = checkpoints.Meta(checkpoints.I32, N_LAYERS, kinds.tobytes())
    path = tmp_path_factory.mktemp("mean") / "mean.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    return path


def ask(program: Path, *arguments: object) -> str:
    done = subprocess.run([program, *map(str, arguments)], stdout=-1, stderr=-1, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_info_names_it(program, model):
    layers = re.findall(r"layer (\d) +([^;,]*)", ask(program, model, "--info"))
    assert layers == [("0", "running mean"), ("1", "6 query heads"), ("2", "running mean")]


def test_heads_name_it(program, model, tmp_path):
    path = tmp_path / "heads.json"
    ask(program, model, "--tokens", "1 2 3 4", "--heads", path)
    mixers = [layer["mixer"] for layer in json.loads(path.read_text())["layers"]]
    assert mixers == ["running mean", "attention", "running mean"]


def test_bench_counts_its_matrices(program, model):
    report = json.loads(ask(program, model, "--bench", "--json", "-c", 32, "-t", 1))
    feed_forward = 3 * N_LAYERS * N_EMBD * D_FF
    attention = 2 * N_EMBD * 6 * 16 + 2 * N_EMBD * 2 * 16
    weights = feed_forward + attention + len(MEANS) * 2 * N_EMBD**2
    prompt = report["prefill"][0]
    operations = 2 * (weights + VOCAB * N_EMBD / prompt["tokens"])
    assert prompt["gflop_s"] * 1e9 / prompt["tok_s"] == pytest.approx(operations, rel=1e-4)


def test_kv_counts_its_state(program, model):
    report = json.loads(ask(program, model, "--kv", "--json", "-t", 1))
    assert report["state_bytes"] == len(MEANS) * 48 * 4  # 40 numbers, in lanes of 16
    assert report["rows"][0]["scheme"] == "MHA"
    assert "bytes of other mixers than attention" in ask(program, model, "--kv", "-t", 1)


def test_it_is_the_mean(program, model, tmp_path):
    """Of one chunk or several the same bits, and other than without the tokens before."""
    logits = []
    for tokens, chunk in (("7 8 9 10 11", 128), ("7 8 9 10 11", 2), ("3 8 9 10 11", 128)):
        path = tmp_path / "logits"
        ask(program, model, "--tokens", tokens, "--logits", path, "-b", chunk, "-t", 2)
        logits.append(np.fromfile(path, "<f4").reshape(5, VOCAB))
    assert (logits[0] == logits[1]).all() and np.isfinite(logits[0]).all()
    assert (logits[0][1:] != logits[2][1:]).all(axis=1).all()
