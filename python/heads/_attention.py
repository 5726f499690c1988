"""What the heads look at, by the library's probe."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, memmove
from dataclasses import dataclass

import numpy as np

from ._batch import read_source
from ._native import InputError, Look, Probe, calls, int_array


@dataclass
class Attention:
    """weights[layer, head, i, j]: what token i takes from token j, float32, after the softmax; zero
    where it cannot look, and in layers without attention. sinks[layer, head, i]: what the layer's
    sink takes of token i. With it a row sums to 1.

    Of an encoder-decoder these are the decoder's; source: the ids that the encoder read; encoder:
    the encoder's weights; cross: what token i takes from token j of the source. In both a row sums
    to 1."""

    tokens: list[int]
    weights: np.ndarray
    sinks: np.ndarray
    source: list[int] | None = None
    encoder: np.ndarray | None = None
    cross: np.ndarray | None = None


def attention(model, source: list[int], ids: list[int], max_bytes: int) -> Attention:
    """source is empty but for an encoder-decoder. Whoever calls holds the model's lock."""
    sequence = calls.sequence_new(model.workspace, False)
    try:
        layers, heads = _shape(model, sequence, source[:1], ids[:1])
        encoder, decoder = layers
        n, n_source = len(ids), len(source)
        shapes = [(encoder, heads, n_source, n_source), (decoder, heads, n, n),
                  (decoder if source else 0, heads, n, n_source)]  # fmt: skip
        n_bytes = sum(4 * int(np.prod(shape)) for shape in shapes)
        if n_bytes > max_bytes:
            raise InputError(f"attention: {encoder + decoder} layers of {heads} heads over "
                             f"{n_source + n} tokens take {n_bytes:,} bytes, and max_bytes is "
                             f"{max_bytes:,}; give less text, or a larger max_bytes")  # fmt: skip
        maps = [np.zeros(shape, np.float32) for shape in shapes]
        sinks = np.zeros((decoder, heads, n), np.float32)
        calls.sequence_rewind(sequence, 0)
        calls.sequence_expect(sequence, n)
        _watch(model, sequence, source, ids, _writer(maps, sinks, encoder))
    finally:
        calls.sequence_free(sequence)
    if not source:
        return Attention(ids, maps[1], sinks)
    return Attention(ids, maps[1], sinks, source, maps[0], maps[2])


def _shape(model, sequence: int, source: list[int], ids: list[int]) -> tuple[tuple[int, int], int]:
    """Layers that read the source and others, and the most heads that one has."""
    rows: set[tuple[int, int]] = set()
    _watch(model, sequence, source, [], lambda _, row, __: rows.add((row[0].layer, row[0].head)))
    encoder = len({layer for layer, _ in rows})
    _watch(model, sequence, [], ids, lambda _, row, __: rows.add((row[0].layer, row[0].head)))
    heads = max((head for _, head in rows), default=-1) + 1
    return (encoder, model.shape.n_layers - encoder), heads


def _watch(model, sequence: int, source: list[int], ids: list[int], look) -> None:
    """Reads the source and runs the ids while look(context, row, thread) sees their rows."""
    probe = Probe(Look(look), None)
    calls.workspace_probe(model.workspace, byref(probe))
    try:
        # In a thread of its own, since an exception such as KeyboardInterrupt would be lost in a
        # callback.
        with ThreadPoolExecutor(1) as thread:
            if source:
                thread.submit(read_source, model.workspace, sequence, source).result()
            chunk = max(1, len(ids)) if model.shape.encoder else model.chunk
            for at in range(0, len(ids), chunk):
                piece = ids[at : at + chunk]
                thread.submit(calls.forward, sequence, int_array(piece), len(piece), 0).result()
    finally:
        calls.workspace_probe(model.workspace, None)


def _writer(maps: list[np.ndarray], sinks: np.ndarray, encoder: int):
    """Writes rows into the maps of the encoder, the decoder and its attention to the source."""

    def look(_, pointer, __) -> None:
        row = pointer[0]
        to = maps[0 if row.layer < encoder else 2 if row.of_source else 1]
        layer = row.layer if row.layer < encoder else row.layer - encoder
        _, n_heads, n_rows, n = to.shape
        place = ((layer * n_heads + row.head) * n_rows + row.position) * n + row.first
        memmove(to.ctypes.data + 4 * place, row.weights, 4 * row.n)
        if row.sink:
            sinks[layer, row.head, row.position] = row.sink

    return look
