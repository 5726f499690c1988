"""Classes of texts, and documents ranked for a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import byref, c_size_t
from typing import Any, NamedTuple

import numpy as np

from . import _arguments as arguments
from ._arguments import Floats
from ._checkpoint import Checkpoint
from ._native import InputError, calls
from ._reading import Reading, Truncate, check_cut, is_pair, pair_reading, read_out, reading


class Label(NamedTuple):
    """A class and its probability (of a regression: the number), for a text or for one token."""

    label: str
    score: float
    token: str = ""


class Ranked(NamedTuple):
    """A document's place in the list that was given, and its score."""

    index: int
    score: float


def labels(model: Checkpoint) -> list[str]:
    size, found = c_size_t(), []
    for i in range(model.shape.n_labels):
        text = calls.label(model._handles.model, i, byref(size))
        found.append(bytes(text[: size.value]).decode("utf-8", "replace"))
    return found


def scores(model: Checkpoint, texts: Sequence[Reading]) -> Floats:
    """[rows][n_labels]: a row for each text, or for each of its tokens."""
    texts = [Reading(*text) for text in texts]
    rows = sum(len(text.ids) for text in texts) if model.shape.token_classes else len(texts)
    room = np.empty((rows, model.shape.n_labels), np.float32)
    read_out(model, calls.classify, texts, room)
    return room


def classify(model: Checkpoint, texts: Any, truncate: Truncate) -> list[Label] | list[list[Label]]:
    several = None if is_pair(texts) else arguments.prompts("texts", texts)
    given = [reading(model, text) for text in ([texts] if several is None else several)]
    check_cut(model, given, truncate)
    found, names = scores(model, given), labels(model)
    if model.shape.token_classes:
        rows = iter(found)
        results = [[_best(model, id, next(rows), names) for id in text.ids] for text in given]
    else:
        results = [_sorted(row, names) for row in found]
    return results[0] if several is None else results


def _best(model: Checkpoint, id: int, row: Floats, names: list[str]) -> Label:
    best = int(row.argmax())
    return Label(names[best], float(row[best]), model.token_text(id))


def _sorted(row: Floats, names: list[str]) -> list[Label]:
    order = np.argsort(-row, kind="stable")
    return [Label(names[i], float(row[i])) for i in order]


def rank(
    model: Checkpoint, query: str, documents: Iterable[str], truncate: Truncate
) -> list[Ranked]:
    refusal = no_ranks(model)
    if refusal:
        raise InputError(refusal)
    pairs = [pair_reading(model, (query, text)) for text in documents]
    check_cut(model, pairs, truncate)
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
