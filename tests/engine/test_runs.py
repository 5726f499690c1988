"""Runs that a workspace refuses, by the library's calls."""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import byref
from pathlib import Path

import pytest
from test_encoder_decoders import GOLDEN as TRANSLATORS
from test_encoder_decoders import exported as export_to
from test_encoders import GOLDEN as ENCODERS

from heads._native import HeadsError, Run, WorkspaceOptions, calls, int_array


@contextmanager
def opened(path: Path, n: int = 1, **options):
    """Workspaces of a model, and a sequence of the last."""
    model = calls.model_open(str(path).encode())
    made = []
    try:
        for _ in range(n):
            made.append(calls.workspace_new(model, byref(WorkspaceOptions(n_threads=1, **options))))
        sequence = calls.sequence_new(made[-1], 0)
        yield made[0], sequence
        calls.sequence_free(sequence)
    finally:
        for workspace in made:
            calls.workspace_free(workspace)
        calls.model_close(model)


def refused(message: str, workspace: int, *runs: Run, read: bool = False) -> None:
    call = calls.read_sources if read else calls.forward_runs
    with pytest.raises(HeadsError, match=message):
        call(workspace, (Run * len(runs))(*runs), len(runs))


def test_runs_that_cannot_be(bare, exported, tmp_path):
    ids = int_array([5, 6, 7])
    with opened(bare, 2, logit_rows=2) as (other, s):
        refused("a sequence of another workspace", other, Run(s, ids, 3, 1))
    with opened(bare, logit_rows=2) as (w, s):
        refused("a sequence stands in two runs", w, Run(s, ids, 1, 1), Run(s, ids, 1, 1))
        refused("more than the 2 rows of logits", w, Run(s, ids, 3, 3))
        refused("no encoder to read a source with", w, Run(s, ids, 3, 0), read=True)
        refused("-1 tokens with 1 rows of logits asked for", w, Run(s, ids, -1, 1))
        assert calls.forward(s, ids, 3, 2)  # nothing has happened to the sequence
    with pytest.raises(HeadsError, match="learned positions for 192 tokens only"):
        with opened(exported("gpt2"), context=193):
            pass


def test_runs_of_encoders(tmp_path):
    ids = int_array([5, 6, 7])
    with opened(export_to(ENCODERS / "bert", tmp_path / "encoder.bin"), hidden=1) as (w, s):
        assert calls.forward(s, ids, 3, 3)
        refused("runs a text as a whole", w, Run(s, ids, 3, 3))
        with pytest.raises(HeadsError, match="keeps nothing of a text that has run"):
            calls.sequence_rewind(s, 2)
        with pytest.raises(HeadsError, match="an encoder, which keeps no keys and values, has"):
            calls.sequence_save(s, str(tmp_path / "s").encode())
    with opened(export_to(TRANSLATORS / "t5", tmp_path / "both.bin")) as (w, s):
        refused("looks at a source, and this sequence has none yet", w, Run(s, ids, 3, 1))
        assert calls.read_sources(w, (Run * 1)(Run(s, ids, 3, 0)), 1) == 0
        assert calls.forward(s, ids, 3, 1)
        refused("a sequence of 3 tokens cannot get another", w, Run(s, ids, 3, 0), read=True)
