"""The n-th allocation, system call or thread fails, in every verb and in the library: a sample of
what tests/campaigns/faults.py tries. SQLite's "anomaly testing" is the model."""

from __future__ import annotations

import re

import faults
import pytest
from conftest import ROOT, on_linux

pytestmark = on_linux

RUNS = 24  # of a case
SLOW = {"bench"}  # a run takes seconds


@pytest.mark.parametrize("name", sorted(faults.CASES.keys() - SLOW))
def test_a_call_that_fails(name, fault_models, tmp_path):
    """Exit 0 with the same results, or a sentence, and old files whole."""
    ladder = faults.Ladder(name, fault_models, tmp_path)
    problems, stride = [], max(1, 2 * ladder.calls // RUNS)
    for again in (0, 1):
        for n in range(1 + again * stride // 2, ladder.calls + 1, stride):
            problems.append(ladder.step(n, again))
    ladder.close()
    assert not [problem for problem in problems if problem]
    assert len(problems) >= min(RUNS, ladder.calls)


def test_the_library_leaves_nothing(fault_models, tmp_path):
    """No memory, no descriptor, no mapping; and neighbours in a batch keep their results."""
    done = faults.library_ladder(fault_models, tmp_path, 3)
    lines = done.stdout.splitlines()
    assert not [line for line in lines if not line.startswith("ok ")], done.stdout + done.stderr
    assert done.returncode == 0 and len(lines) == 8


ALLOCATION = r"\b(malloc|calloc|realloc|strn?dup|v?asprintf|open_memstream|getline|getdelim) ?\("


def test_the_command_line_allocates_in_one_place():
    """input.c's calls end with a sentence; maps.c's has advice of its own."""
    allowed = {"input.c", "maps.c"}
    found = {
        path.name
        for path in (ROOT / "cli").rglob("*.[ch]")
        if re.search(ALLOCATION, re.sub(r"//.*", "", path.read_text(encoding="utf-8")))
    }
    assert found == allowed
