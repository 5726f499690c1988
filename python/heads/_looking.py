"""What a text's tokens are followed by, and what each layer would say, by the library's probe."""

from __future__ import annotations

from ctypes import memmove
from math import exp

import numpy as np

from ._native import FLOATS, InputError, LikelyToken, Probe, TakeLens, apart, calls, watched


def likeliest(model, session, ids: list[int], k: int) -> list[list[tuple[int, float]]]:
    """For each of the ids, which the session runs, the k likeliest next tokens."""
    found, top = [], (LikelyToken * k)()
    with session._turn() as sequence:
        for row in session._run(sequence, ids, True):
            logits = np.ascontiguousarray(row, np.float32)
            pointer = logits.ctypes.data_as(FLOATS)
            n = calls.likeliest(model._opened.workspace, pointer, top, k)
            found.append([(x.id, exp(x.log_probability)) for x in top[:n]])
    return found


def lens(model, session, ids: list[int], max_bytes: int) -> np.ndarray:
    """[tokens][layers][vocab_size], of a session that runs the ids."""
    layers: dict[int, int] = {}  # the layers that give logits, in order

    def note(_, row) -> None:
        layers.setdefault(row[0].layer, len(layers))

    _watch(model, session, ids[:1], note)
    shape = (len(ids), len(layers), model.shape.vocab_size)
    n_bytes = 4 * int(np.prod(shape, dtype=object))
    if n_bytes > max_bytes:
        raise InputError(
            f"lens: {len(ids)} tokens, {len(layers)} layers and a vocabulary of {shape[2]} take "
            f"{n_bytes:,} bytes, and max_bytes is {max_bytes:,}; give less text, or a larger "
            "max_bytes"
        )
    said = np.empty(shape, np.float32)

    def keep(_, row) -> None:
        to = said[row[0].position, layers[row[0].layer]]
        memmove(to.ctypes.data, row[0].logits, to.nbytes)

    _watch(model, session, ids, keep)
    return said


def _watch(model, session, ids: list[int], take) -> None:
    """Runs the ids from the beginning while take(context, row) sees what each layer would say."""
    with session._turn() as sequence:
        calls.sequence_rewind(sequence, 0)
        with watched(model._opened.workspace, Probe(lens=TakeLens(take))):
            apart(session._run, sequence, ids, True)
