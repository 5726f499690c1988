"""What the heads look at, by the library's probe."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, memmove
from dataclasses import dataclass

import numpy as np

from ._native import InputError, Look, Probe, calls, int_array


@dataclass
class Attention:
    """weights[layer, head, i, j]: what token i takes from token j, float32, after the softmax; zero
    where it cannot look, and in layers without attention. sinks[layer, head, i]: what the layer's
    sink takes of token i. With it a row sums to 1."""

    tokens: list[int]
    weights: np.ndarray
    sinks: np.ndarray


def attention(model, ids: list[int], max_bytes: int) -> Attention:
    """Whoever calls holds the model's lock."""
    sequence = calls.sequence_new(model.workspace, False)
    try:
        calls.sequence_expect(sequence, len(ids))
        heads: set[int] = set()
        _watch(model, sequence, ids[:1], lambda _, row, __: heads.add(row[0].head))
        n_layers, n_heads, n = model.shape.n_layers, max(heads, default=-1) + 1, len(ids)
        n_bytes = 4 * n_layers * n_heads * n * n
        if n_bytes > max_bytes:
            raise InputError(f"attention: {n_layers} layers of {n_heads} heads over {n} tokens "
                             f"take {n_bytes:,} bytes, and max_bytes is {max_bytes:,}; give less "
                             "text, or a larger max_bytes")  # fmt: skip
        found = Attention(ids, np.zeros((n_layers, n_heads, n, n), np.float32),
                          np.zeros((n_layers, n_heads, n), np.float32))  # fmt: skip
        calls.sequence_rewind(sequence, 0)
        _watch(model, sequence, ids, _writer(found))
    finally:
        calls.sequence_free(sequence)
    return found


def _watch(model, sequence: int, ids: list[int], look) -> None:
    """Runs the ids while look(context, row, thread) sees their rows. In a thread of its own, since
    an exception such as KeyboardInterrupt would be lost in a callback."""
    probe = Probe(Look(look), None)
    calls.workspace_probe(model.workspace, byref(probe))
    try:
        with ThreadPoolExecutor(1) as thread:
            for at in range(0, len(ids), model.chunk):
                piece = ids[at : at + model.chunk]
                thread.submit(calls.forward, sequence, int_array(piece), len(piece), 0).result()
    finally:
        calls.workspace_probe(model.workspace, None)


def _writer(found: Attention):
    _, n_heads, n = found.sinks.shape
    address = found.weights.ctypes.data

    def look(_, pointer, __) -> None:
        row = pointer[0]
        place = ((row.layer * n_heads + row.head) * n + row.position) * n + row.first
        memmove(address + 4 * place, row.weights, 4 * row.n)
        if row.sink:
            found.sinks[row.layer, row.head, row.position] = row.sink

    return look
