"""Experiments: what heads give, changed (heads_probe.mixed). tests/reference/live_models.py compares
them with transformers."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import numpy as np
import pytest

import export
import heads
from heads._native import Mixed, Probe, TakeInput, TakeMixed, byref, calls, int_array
from test_golden import GOLDEN

IDS = [3, 17, 9, 9, 21, 3, 17, 30]


# ---- the probe ----


def rows_of(given) -> np.ndarray:
    """[tokens][heads][width], where the pass has them."""
    rows = np.ctypeslib.as_array(given.rows, (given.n, given.stride))
    return rows[:, : given.n_heads * given.width].reshape(given.n, given.n_heads, given.width)


@contextmanager
def passes(path):
    """A function from ids, a probe and heads that are off to the logits of a pass."""
    with heads.Model(path) as model, model._turn() as opened:

        def run(ids, off=None, **probe) -> np.ndarray:
            s = calls.sequence_new(opened.workspace, False)
            calls.sequence_off(s, off)
            calls.workspace_probe(opened.workspace, byref(Probe(**probe)) if probe else None)
            logits = calls.forward(s, int_array(ids), len(ids), len(ids))
            calls.workspace_probe(opened.workspace, None)
            found = np.ctypeslib.as_array(logits, (len(ids), model.stride)).copy()
            calls.sequence_free(s)
            return found

        yield run


# The mixers of a family, in order, as numbers of the first head and of heads.
MIXERS = {
    "llama": [(0, 4), (0, 4)],
    "deepseek_v2": [(0, 4), (0, 4)],
    "qwen3_next": [(0, 6), (0, 6)],
    "kimi_linear": [(0, 3), (0, 4), (0, 3)],
    "mamba2": [(0, 6), (0, 6)],
    "falcon_h1-norm": [(0, 6), (6, 6), (0, 6), (6, 6)],
    "zamba2": [(0, 2), (2, 4), (0, 4), (0, 2), (2, 4)],
    "falcon_mamba": [(0, 1), (0, 1)],
    "recurrent_gemma": [(0, 1), (0, 3), (0, 1)],
    "lfm2-bias": [(0, 1), (0, 6)],
}


@pytest.mark.parametrize("name", MIXERS)
def test_what_heads_give_goes_into_the_output_matrix(name, exported):
    """As the probe left it; seen without a change, no bit changes."""
    seen, inputs = [], []
    with passes(exported(name)) as run:
        whole = run(IDS)

        def look(_, given):
            seen.append((given[0].layer, given[0].head, rows_of(given[0]).copy()))

        def change(_, given):
            rows_of(given[0])[1:, -1] = 0.25
            look(_, given)

        def note(_, given):
            x = given[0]
            rows = np.ctypeslib.as_array(x.rows, (x.n, x.stride))[:, : x.width]
            inputs.append(rows.copy())

        assert np.array_equal(run(IDS, mixed=TakeMixed(look)), whole)
        found = [(head, rows.shape[1]) for _, head, rows in seen]
        assert found == MIXERS[name]
        assert [layer for layer, _, _ in seen] == sorted(layer for layer, _, _ in seen)
        seen.clear()
        changed = run(IDS, mixed=TakeMixed(change), product=TakeInput(note))
        assert np.array_equal(changed[0], whole[0])
        assert (changed[1:] != whole[1:]).any(1).all()
        given = {rows.tobytes() for rows in inputs}
        assert all(rows.tobytes() in given for _, _, rows in seen)
    assert ctypes.sizeof(Mixed) == 40


@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3", "gemma2", "bitnet", "gpt_oss"])
def test_zeros_are_a_head_that_is_off(name, exported):
    """A norm of all heads, as BitNet has, comes after both."""
    with passes(exported(name)) as run:

        def zero(_, given):
            if given[0].layer == 1:
                rows_of(given[0])[:, 2] = 0

        assert np.array_equal(run(IDS, mixed=TakeMixed(zero)), run(IDS, off=b"1.2"))


def test_heads_that_look_at_a_source_are_numbered_after_the_others(tmp_path):
    """An encoder's layers come first."""
    path, seen = tmp_path / "t5.bin", []
    assert export.main([str(GOLDEN / "encoder_decoders" / "t5"), str(path)]) == 0

    def look(_, given):
        seen.append((given[0].layer, given[0].head, given[0].n, given[0].n_heads))

    with heads.Model(path) as model:
        session = model.session(source=IDS)
        calls.workspace_probe(model._opened.workspace, byref(Probe(mixed=TakeMixed(look))))
        model.session(source=IDS)
        session.feed([1, 2])
        calls.workspace_probe(model._opened.workspace, None)
    assert seen[:2] == [(0, 0, 8, 3), (1, 0, 8, 3)]
    assert seen[2:6] == [(2, 0, 2, 3), (2, 3, 2, 3), (3, 0, 2, 3), (3, 3, 2, 3)]
