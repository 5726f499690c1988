"""What the heads look at, by the library's probe."""

from __future__ import annotations

from ctypes import memmove
from dataclasses import dataclass, field
from math import prod

import numpy as np

from . import _html as html
from ._arguments import Floats
from ._batch import read_source
from ._native import Handle, InputError, Look, Probe, apart, calls, int_array, watched


@dataclass(repr=False)
class Attention:
    """weights[layer, head, i, j]: what token i takes from token j, float32, after the softmax; zero
    where it cannot look, and in layers without attention. sinks[layer, head, i]: what the layer's
    sink takes of token i. With it a row sums to 1.

    Of an encoder-decoder these are the decoder's; source: the ids that the encoder read; encoder:
    the encoder's weights; cross: what token i takes from token j of the source. In both a row sums
    to 1.

    texts: of the tokens, and source_texts of the source's. A notebook shows each head's weights as
    a small picture."""

    tokens: list[int]
    weights: Floats
    sinks: Floats
    source: list[int] | None = None
    encoder: Floats | None = None
    cross: Floats | None = None
    texts: list[str] = field(default_factory=list)
    source_texts: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        layers, heads, n, _ = self.weights.shape
        return f"<heads.Attention: {layers} layers of {heads} heads, {n} tokens>"

    def _repr_html_(self) -> str:
        if self.cross is None or self.encoder is None:
            return html.maps("Attention", self.weights) + html.words(self.texts)
        return (
            html.maps("Attention of the decoder", self.weights)
            + html.words(self.texts)
            + html.maps("Attention to the source", self.cross)
            + html.maps("Attention of the encoder", self.encoder)
            + html.words(self.source_texts)
        )


def attention(
    model, workspace: Handle, source: list[int], ids: list[int], max_bytes: int
) -> Attention:
    """source: empty, unless the model is an encoder-decoder. It is the caller's turn."""
    sequence = Handle(calls.sequence_new(workspace, False), calls.sequence_free, workspace)
    n_read, n_own, heads = _shape(model, workspace, sequence, source[:1], ids[:1])
    n, n_source = len(ids), len(source)
    shapes = [
        (n_read, heads, n_source, n_source),
        (n_own, heads, n, n),
        (n_own if source else 0, heads, n, n_source),
    ]
    n_bytes = sum(4 * prod(shape) for shape in shapes)
    if n_bytes > max_bytes:
        raise InputError(
            f"attention: {n_read + n_own} layers of {heads} heads over "
            f"{n_source + n} tokens take {n_bytes:,} bytes, and max_bytes is "
            f"{max_bytes:,}; give less text, or a larger max_bytes"
        )
    maps = [np.zeros(shape, np.float32) for shape in shapes]
    sinks = np.zeros((n_own, heads, n), np.float32)
    calls.sequence_rewind(sequence, 0)
    calls.sequence_expect(sequence, n)
    _watch(model, workspace, sequence, source, ids, _writer(maps, sinks, n_read))
    texts = model._texts_of(ids)
    if not source:
        return Attention(ids, maps[1], sinks, texts=texts)
    read = model._texts_of(source)
    return Attention(ids, maps[1], sinks, source, maps[0], maps[2], texts, read)


def _shape(
    model, workspace: Handle, sequence: Handle, source: list[int], ids: list[int]
) -> tuple[int, int, int]:
    """Layers that read the source, the others, and the most heads that one has."""
    rows: set[tuple[int, int]] = set()

    def note(_, row, __) -> None:
        rows.add((row[0].layer, row[0].head))

    _watch(model, workspace, sequence, source, [], note)
    n_read = len({layer for layer, _ in rows})
    _watch(model, workspace, sequence, [], ids, note)
    heads = max((head for _, head in rows), default=-1) + 1
    return n_read, model.shape.n_layers - n_read, heads


def _watch(
    model, workspace: Handle, sequence: Handle, source: list[int], ids: list[int], look
) -> None:
    """Reads the source and runs the ids while look(context, row, thread) sees their rows."""
    with watched(workspace, Probe(Look(look), None)):
        if source:
            apart(read_source, workspace, sequence, source)
        for piece in model._passes(ids):
            apart(calls.forward, sequence, int_array(piece), len(piece), 0)


def _writer(maps: list[Floats], sinks: Floats, encoder: int):
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
