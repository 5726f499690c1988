"""A sequence's logits have the bits that they have when it runs alone, whatever runs beside it.

tests/c/sequences.c runs random texts in random pieces, with rewinds, forks and saved copies in between, and
compares every row; here it meets every golden family (all mixers, windows, ropes and experts), every KV dtype
and 1 to 33 sequences.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

import export
from conftest import ROOT

GOLDEN = ROOT / "tests" / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
CACHES = list(itertools.product(["f32", "f16", "q8", "q4"], repeat=2))
COUNTS = [33, 5, 1]


def run_side_by_side(model: Path, keys: str, values: str, n: int, seed: int) -> dict[str, int]:
    """What was done, by name."""
    programs = Path(os.environ.get("HEADS_TESTS_C", ROOT / "build" / "tests" / "c"))
    done = subprocess.run(
        [programs / "sequences", model, keys, values, str(n), str(seed)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout.startswith("ok: "), done.stdout + done.stderr
    return {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", done.stdout)}


@pytest.mark.parametrize("name", NAMES)
def test_alone_and_among_others(exported, name):
    """Each family with three pairs of KV dtypes; all sixteen pairs over the families."""
    model, turn = exported(name), NAMES.index(name)
    done: dict[str, int] = {}
    for i, n in enumerate(COUNTS):
        keys, values = CACHES[(turn * len(COUNTS) + i) % len(CACHES)]
        for what, count in run_side_by_side(model, keys, values, n, seed=100 * turn + i).items():
            done[what] = done.get(what, 0) + count
    assert done["rows"] > 100 and done["passes"] > 10 and done["saved"] > 0


@pytest.mark.parametrize(("keys", "values"), CACHES, ids=["-".join(c) for c in CACHES])
def test_forks_share_memory(exported, keys, values):
    done = run_side_by_side(exported("llama"), keys, values, 16, seed=7)
    assert done["rewinds"] > 0 and done["forks"] > 0 and done["shared"] > 0


FORGETFUL = ["mistral", "lfm3", "llama4", "qwen3_next", "mamba2", "falcon_mamba"]
FORGETFUL += ["falcon_h1-norm", "recurrent_gemma", "zamba2"]


@pytest.mark.parametrize("name", FORGETFUL)
def test_windows_and_states_refuse_to_go_back(exported, name):
    """They have forgotten: a rewind or fork far back is an error, and nothing changes."""
    assert (
        sum(run_side_by_side(exported(name), "f16", "f16", 8, seed)["refused"] for seed in range(3))
        > 0
    )


DAMAGED = ["llama", "gemma3", "lfm3", "encoder_decoders/bart"]


@pytest.mark.parametrize("turn, name", list(enumerate(DAMAGED)))
def test_damaged_sessions(tmp_path, turn, name):
    """Swapped, repeated, moved and cut bytes: refused, or exactly the text that was saved."""
    model = tmp_path / "model.bin"
    assert export.main([str(GOLDEN / name), str(model), "--dtype", "q8"]) == 0
    programs = Path(os.environ.get("HEADS_TESTS_C", ROOT / "build" / "tests" / "c"))
    command = [programs / "fuzz_session", model, str(turn), str(3 - turn), "300", str(turn)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("ok: 300 tried"), done.stdout + done.stderr
    refused, when_used, same = (int(n) for n in re.findall(r", (\d+)", done.stdout)[:3])
    assert refused > 100 and when_used > 20 and same > 5


# Windows, latent attention, states of several kinds, rope that depends on the length, sources.
IN_CONTEXTS = ["llama", "mistral", "gemma3", "gpt_oss", "deepseek_v2", "lfm3", "qwen3_next"]
IN_CONTEXTS += ["mamba2", "falcon_h1-norm", "phi3-longer", "encoder_decoders/bart"]
IN_CONTEXTS += ["encoder_decoders/t5", "falcon_mamba", "recurrent_gemma", "zamba2"]


@pytest.mark.parametrize("name", IN_CONTEXTS)
def test_a_saved_sequence_goes_on_in_any_context(tmp_path, name):
    """Random pairs of contexts, 400 over all of these; each pair of KV types in turn."""
    model, turn = tmp_path / "model.bin", IN_CONTEXTS.index(name)
    assert export.main([str(GOLDEN / name), str(model), "--dtype", "q8"]) == 0
    programs = Path(os.environ.get("HEADS_TESTS_C", ROOT / "build" / "tests" / "c"))
    command = [programs / "contexts", model, str(turn % 4), str(turn // 3 % 4), "34", str(turn)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("ok: 34 pairs"), done.stdout + done.stderr
