"""--heads: attention weights against transformers, the scores against their formulas in numpy,
roles of heads made by hand, the page, and that looking changes nothing."""

from __future__ import annotations

import ctypes
import json
import math
from pathlib import Path

import numpy as np
import pytest

import export
import head_files
from conftest import ROOT
from head_files import array_of, attention_layers, heads_of
from test_golden import GOLDEN, NAMES

TOLERANCE = 1e-5  # of a weight
SUM = 2e-5        # of a row, of six digits a weight
F32_CACHE = ("-ctk", "f32", "-ctv", "f32")


def in_f32(name: str, folder: Path) -> Path:
    path = folder / f"{name}.bin"
    assert export.main([str(GOLDEN / name), str(path), "--dtype", "f32"]) == 0
    return path


def prompt_of(name: str) -> str:
    return " ".join(map(str, json.loads((GOLDEN / name / "golden.json").read_text())["prompt"]))


def rows_of(head: dict) -> np.ndarray:
    """What each row and its sink add up to."""
    return array_of(head).sum(1) + np.array(head.get("sink", 0.0))


# ---- weights ----


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_transformers(name, tmp_path, run):
    golden = np.load(GOLDEN / name / "attention.npz")
    assert json.loads(str(golden["made"]))["transformers"] == "5.23.0"
    model, prompt = in_f32(name, tmp_path), prompt_of(name)
    data = heads_of(model, tmp_path / "x.json", "--tokens", prompt, *F32_CACHE)
    layers = attention_layers(data)
    assert len(layers) == len(golden.files) - 2  # "made" and "positions"
    for i, found in enumerate(layers):
        assert np.abs(found[:, golden["positions"]] - golden[str(i)]).max() <= TOLERANCE
    for layer in data["layers"]:
        for head in layer.get("heads", []):
            assert np.abs(rows_of(head) - 1).max() <= SUM


def test_what_it_says_of_layers(tmp_path, run):
    """Mixers, windows, shared keys, sinks, and which query heads share a KV head."""
    found = {}
    for name in ("lfm3", "qwen3_next", "deepseek_v3", "gemma4", "gpt_oss"):
        model = in_f32(name, tmp_path)
        found[name] = heads_of(model, tmp_path / "x.json", "--tokens", prompt_of(name))["layers"]
    assert [layer["mixer"] for layer in found["lfm3"]] == ["short convolution"] + ["attention"] * 2
    assert found["lfm3"][0].keys() == {"layer", "mixer"}
    assert [layer["window"] for layer in found["lfm3"][1:]] == [0, 9]
    assert found["qwen3_next"][0]["mixer"] == "gated DeltaNet"
    assert found["deepseek_v3"][0]["mixer"] == "latent attention"
    assert found["deepseek_v3"][0]["n_kv_heads"] == 1
    assert [layer.get("kv_source") for layer in found["gemma4"]] == [None, None, 0, 1]
    heads = found["gpt_oss"][1]["heads"]
    assert [head["kv_head"] for head in heads] == [0, 0, 0, 1, 1, 1]
    assert min(min(head["sink"]) for head in heads) > 0
    assert not any("sink" in head for head in found["gemma4"][0]["heads"])


@pytest.mark.parametrize("name", ["gpt_oss", "gemma4", "deepseek_v3", "bloom", "qwen3_next"])
def test_the_same_bytes_for_any_threads_and_chunk(name, tmp_path, run):
    model, prompt = in_f32(name, tmp_path), ("--tokens", prompt_of(name))
    want = heads_of(model, tmp_path / "x.json", *prompt, "-t", 1, "-b", 128)
    for threads, chunk in ((3, 7), (2, 1), (3, 64)):
        assert heads_of(model, tmp_path / "x.json", *prompt, "-t", threads, "-b", chunk) == want


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("types", [F32_CACHE, (), ("-ctk", "q8", "-ctv", "q8")])
def test_a_long_text(window, types, tmp_path, run):
    """Rows of several tiles of positions, cut into parts and not; their sums come from elsewhere
    than they."""
    model, n = tmp_path / "model.bin", 600
    model.write_bytes(head_files.checkpoints.random_model(context=1024, window=window))
    ids = " ".join(str(i * i % 299) for i in range(n))
    found = []
    for threads, chunk in ((1, 512), (3, 1)):
        found.append(heads_of(model, tmp_path / "x.json", "--tokens", ids, "-t", threads, "-b",
                              chunk, *types))  # fmt: skip
    assert found[0] == found[1]
    for layer in found[0]["layers"]:
        for head in layer["heads"]:
            assert np.abs(rows_of(head) - 1).max() <= SUM
            assert not array_of(head)[~head_files.sees(n, window)].any()


@pytest.mark.parametrize("name", ["gpt_oss", "mistral", "deepseek_v2", "phi3-longer", "falcon"])
def test_looking_changes_no_bit(name, tmp_path, run):
    model, out = in_f32(name, tmp_path), tmp_path / "logits"
    found = []
    for heads in ([], ["--heads", tmp_path / "x.json"], ["--heads", tmp_path / "x.html"]):
        done = run(model, "--tokens", prompt_of(name), "--logits", out, "-b", 40, *heads)
        assert done.returncode == 0, done.stderr
        found.append(out.read_bytes())
    assert found[0] == found[1] == found[2]


# ---- scores and roles ----


def check_scores(data: dict, tolerance: float = 1e-5) -> None:
    ids = [token["id"] for token in data["tokens"]]
    for layer in data["layers"]:
        if "heads" not in layer:
            continue
        seen = head_files.sees(len(ids), layer["window"])
        equal = head_files.scores_of(seen / seen.sum(1, keepdims=True), ids, layer["window"])
        about = head_files.targets(ids, layer["window"])
        assert layer["rows"] == {role: int(mask.any(1).sum()) for role, mask in about.items()}
        assert_scores(layer["uniform"], {role: equal[role] for role in about}, tolerance)
        for head in layer["heads"]:
            weights = array_of(head)
            scores = head_files.scores_of(weights, ids, layer["window"])
            assert_scores(head["scores"], scores, tolerance)
            assert head["role"] == head_files.role_of(scores, equal)
            want = head_files.pairs_of(weights)
            assert len(head["pairs"]) == len(want)
            for found, pair in zip(head["pairs"], want):
                assert found[2] == pytest.approx(pair[2], abs=1e-6)
                assert weights[found[0], found[1]] == pytest.approx(found[2], abs=1e-6)


def assert_scores(found: dict, want: dict, tolerance: float) -> None:
    assert found.keys() == want.keys()
    for name, value in want.items():
        if math.isnan(value):
            assert found[name] is None, name
        else:
            assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "deepseek_v2", "lfm3", "gemma4"])
def test_scores_are_those_of_the_formulas(name, tmp_path, run):
    model = in_f32(name, tmp_path)
    check_scores(heads_of(model, tmp_path / "x.json", "--tokens", prompt_of(name), "-b", 40))


@pytest.mark.parametrize("ids", ["5", "5 5", "5 6 7", "1 2 3 4 5 6 7 8 9 10 11"])
def test_scores_of_short_texts(ids, tmp_path, bare, run):
    """Where some have no rows."""
    data = heads_of(bare, tmp_path / "x.json", "--tokens", ids)
    check_scores(data)
    heads = [head for layer in data["layers"] for head in layer["heads"]]
    assert (heads[0]["scores"]["duplicate"] is None) == (ids != "5 5")
    assert (heads[0]["scores"]["entropy"] is None) == (ids == "5")


def repeated(n: int) -> list[int]:
    """A first token, and n others twice (as in Olsson et al.)."""
    return [0, *([*(1 + np.random.default_rng(7).permutation(399)[:n])] * 2)]


@pytest.mark.parametrize("n", [50, 280])
def test_heads_made_by_hand_get_their_roles(n, tmp_path, run):
    """The longer text has three tiles of positions."""
    model = tmp_path / "model.bin"
    model.write_bytes(head_files.handmade())
    ids = repeated(n)
    data = heads_of(model, tmp_path / "x.json", "--tokens", " ".join(map(str, ids)))
    roles = [[head["role"] for head in layer["heads"]] for layer in data["layers"]]
    assert roles == head_files.HANDMADE_ROLES
    previous, _, _, equal = data["layers"][0]["heads"]
    induction, duplicate, first, _ = data["layers"][1]["heads"]
    assert previous["scores"]["previous"] > 0.99 and previous["scores"]["distance"] < 0.2
    assert equal["scores"]["entropy"] == pytest.approx(1) == equal["scores"]["distance"]
    assert induction["scores"]["induction"] > 0.9 and first["scores"]["first"] > 0.99
    assert 0.4 < duplicate["scores"]["duplicate"] < 0.6  # half of it is on the token itself
    assert np.abs(array_of(equal) - np.tri(len(ids)) / np.arange(1, len(ids) + 1)[:, None]).max() < 1e-6
    check_scores(data)


def test_heads_made_by_hand_behind_a_window(tmp_path, run):
    """What lies outside of it is nobody's to see: few rows have an earlier token, one the first."""
    model, n, window = tmp_path / "model.bin", 50, 30
    model.write_bytes(head_files.handmade(window=window))
    data = heads_of(model, tmp_path / "x.json", "--tokens", " ".join(map(str, repeated(n))))
    roles = [[head["role"] for head in layer["heads"]] for layer in data["layers"]]
    assert roles == [["previous", None, None, None], [None, None, "first", None]]
    rows = data["layers"][1]["rows"]
    assert rows == {"previous": 2 * n, "duplicate": 0, "induction": 0, "first": window - 1}
    check_scores(data)
