"""Texts read out: their vectors, their classes, and documents ranked for a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_int, c_size_t
from typing import Any, NamedTuple, Union

import numpy as np

from . import _arguments as arguments
from ._arguments import Floats, Prompt
from ._checkpoint import Checkpoint
from ._native import FLOATS, INTS, InputError, Text, calls, int_array, taken

Pair = tuple[str, str]  # two texts that are read as one
Ids = tuple[Sequence[int], int]  # and where the second text begins, or 0


class Label(NamedTuple):
    """A class and its probability (of a regression: the number), for a text or for one token."""

    label: str
    score: float
    token: str = ""


class Ranked(NamedTuple):
    """A document's place in the list that was given, and its score."""

    index: int
    score: float


def read_out(
    model: Checkpoint, call: Callable[..., Any], texts: Sequence[Ids], room: Floats
) -> None:
    """Fills room by heads_embed or heads_classify, in a workspace like the model's."""
    arrays = [int_array(ids) for ids, _ in texts]
    array = (Text * len(texts))(
        *(Text(ids, len(ids), second) for ids, (_, second) in zip(arrays, texts))
    )
    options = model._workspace_options(None)
    with model._turn() as opened:
        options.chunk, options.isa = model.chunk, calls.workspace_isa(opened.workspace)
        options.threads_of = opened.workspace.pointer
        data = room.ctypes.data_as(FLOATS)
        call(opened.model, byref(options), array, len(array), data)


def vectors(model: Checkpoint, texts: Sequence[Ids]) -> Floats:
    room = np.empty((len(texts), model.shape.vector or model.shape.n_embd), np.float32)
    read_out(model, calls.embed, texts, room)
    return room


def labels(model: Checkpoint) -> list[str]:
    size, found = c_size_t(), []
    for i in range(model.shape.n_labels):
        text = calls.label(model._handles.model, i, byref(size))
        found.append(bytes(text[: size.value]).decode("utf-8", "replace"))
    return found


def pair_ids(model: Checkpoint, pair: Pair) -> Ids:
    first, second = (arguments.utf8("texts", text) for text in pair)
    ids, at, opened = INTS(), c_int(), model._handles
    given = (first, len(first), second, len(second))
    n = calls.pair_ids(opened.model, model._text(), *given, byref(ids), byref(at))
    return taken(ids, n), at.value


def _is_pair(text: object) -> bool:
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(t, str) for t in text)


def _ids(model: Checkpoint, text: Union[Prompt, Pair]) -> Ids:
    if _is_pair(text):
        return pair_ids(model, text)  # type: ignore[arg-type]
    return model.text_ids(text), 0  # type: ignore[arg-type]


def scores(model: Checkpoint, texts: Sequence[Ids]) -> Floats:
    """[rows][n_labels]: a row for each text, or for each of its tokens."""
    rows = sum(len(ids) for ids, _ in texts) if model.shape.token_classes else len(texts)
    room = np.empty((rows, model.shape.n_labels), np.float32)
    read_out(model, calls.classify, texts, room)
    return room


def classify(model: Checkpoint, texts: Any) -> list[Label] | list[list[Label]]:
    several = None if _is_pair(texts) else arguments.prompts("texts", texts)
    given = [_ids(model, text) for text in ([texts] if several is None else several)]
    found, names = scores(model, given), labels(model)
    if model.shape.token_classes:
        rows = iter(found)
        results = [[_best(model, id, next(rows), names) for id in ids] for ids, _ in given]
    else:
        results = [_sorted(row, names) for row in found]
    return results[0] if several is None else results


def _best(model: Checkpoint, id: int, row: Floats, names: list[str]) -> Label:
    best = int(row.argmax())
    return Label(names[best], float(row[best]), model.token_text(id))


def _sorted(row: Floats, names: list[str]) -> list[Label]:
    order = np.argsort(-row, kind="stable")
    return [Label(names[i], float(row[i])) for i in order]


def rank(model: Checkpoint, query: str, documents: Iterable[str]) -> list[Ranked]:
    refusal = no_ranks(model)
    if refusal:
        raise InputError(refusal)
    pairs = [pair_ids(model, (query, text)) for text in documents]
    row = scores(model, pairs)[:, 0]
    return [Ranked(int(i), float(row[i])) for i in np.argsort(-row, kind="stable")]


def no_ranks(model: Checkpoint) -> str | None:
    """Why the model cannot rank, if it cannot."""
    found, of_tokens = model.shape.n_labels, bool(model.shape.token_classes)
    if found == 1 and not of_tokens:
        return None
    has = f"{found} classes" + " of each token" * of_tokens if found else "none"
    return (
        f"{model.path} cannot rank documents: that needs a cross-encoder's head, which gives a "
        f"single score for a pair of texts, and the checkpoint has {has}"
    )
