"""Texts that are read as a whole: their ids, where they are cut, and what is read out of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from ctypes import byref, c_int
from typing import Any, NamedTuple, Optional, Tuple, Union


from . import _arguments as arguments
from ._arguments import Floats, Prompt
from ._checkpoint import Checkpoint
from ._native import FLOATS, INTS, ContextError, InputError, Text, calls, int_array, taken

Pair = Tuple[str, str]  # two texts that are read as one
Truncate = Optional[bool]  # whether long texts are cut; None: with a warning


class Reading(NamedTuple):
    """The ids of a text, as heads_text has them. cut: how many more the text had."""

    ids: Sequence[int]
    second: int = 0
    bounds: Sequence[int] = ()  # of parts that have a vector each
    cut: int = 0


def read_out(
    model: Checkpoint, call: Callable[..., Any], texts: Sequence[Reading], room: Floats
) -> None:
    """Fills room by heads_embed or heads_classify, in a workspace like the model's."""
    arrays = [(int_array(t.ids), int_array(t.bounds) if t.bounds else None) for t in texts]
    array = (Text * len(texts))(
        *(
            Text(ids, len(ids), text.second, bounds, max(0, len(text.bounds) - 1))
            for text, (ids, bounds) in zip(texts, arrays)
        )
    )
    with model._turn() as opened:
        options = model._options_beside(None, opened)
        options.chunk = model.chunk
        data = room.ctypes.data_as(FLOATS)
        call(opened.model, byref(options), array, len(array), data)


# ---- ids ----


def is_pair(text: object) -> bool:
    return isinstance(text, tuple) and len(text) == 2 and all(isinstance(t, str) for t in text)


def reading(model: Checkpoint, text: Union[Prompt, Pair]) -> Reading:
    if is_pair(text):
        return pair_reading(model, text)  # type: ignore[arg-type]
    ids = model.text_ids(text)  # type: ignore[arg-type]
    if not isinstance(text, str) or len(ids) < model.shape.most_read:
        return Reading(ids)
    return Reading(ids, cut=len(model.encode(text)) - len(ids))


def pair_reading(model: Checkpoint, pair: Pair) -> Reading:
    ids, second = _pair_ids(model, pair)
    if len(ids) < model.shape.most_read:
        return Reading(ids, second)
    special = len(_pair_ids(model, ("", ""))[0])
    whole = special + sum(len(model.encode(text, special=False)) for text in pair)
    return Reading(ids, second, cut=whole - len(ids))


def _pair_ids(model: Checkpoint, pair: Pair) -> tuple[list[int], int]:
    first, second = (arguments.utf8("texts", text) for text in pair)
    ids, at, opened = INTS(), c_int(), model._handles
    given = (first, len(first), second, len(second))
    n = calls.pair_ids(opened.model, model._text(), *given, byref(ids), byref(at))
    return taken(ids, n), at.value


def special_ids(model: Checkpoint) -> tuple[list[int], list[int]]:
    """What stands before and after the ids of a text."""
    empty, text = model.encode(""), model.encode("a")
    n = 0
    while n < len(empty) and empty[n] == text[n]:
        n += 1
    return empty[:n], empty[n:]


def with_special(model: Checkpoint, ids: list[int]) -> Reading:
    """Ids as a text has them: between special tokens, which may be there, and cut where texts are."""
    before, after = special_ids(model)
    if before + after and ids[: len(before)] == before and ids[len(ids) - len(after) :] == after:
        ids = ids[len(before) : len(ids) - len(after)]
    most = max(0, model.shape.most_read - len(before) - len(after))
    return Reading([*before, *ids[:most], *after], cut=max(0, len(ids) - most))


def in_parts(model: Checkpoint, texts: Sequence[Prompt]) -> Reading:
    """Several texts as the parts of one. Errors: one has no ids, or all are too long together."""
    (ids, after), bounds = special_ids(model), []
    for text in texts:
        bounds.append(len(ids))
        ids += model.encode(text, special=False) if isinstance(text, str) else model.text_ids(text)
        if len(ids) == bounds[-1]:
            raise InputError(f"texts: part {len(bounds) - 1} is empty")
    bounds.append(len(ids))
    ids += after
    if len(ids) > model.shape.most_read:
        raise ContextError(
            f"texts: the parts have {len(ids)} tokens together, and this model reads at most "
            f"{model.shape.most_read} of a text; give fewer parts"
        )
    return Reading(ids, bounds=bounds)


def check_cut(model: Checkpoint, texts: Sequence[Reading], truncate: Truncate) -> None:
    """Refuses texts that are cut, or warns of the first. Called by what a public call calls."""
    n = sum(text.cut > 0 for text in texts)
    if truncate is not None:
        truncate = arguments.flag("truncate", truncate)
    if not n or truncate:
        return
    says = f"{n} of {len(texts)} texts have more than the {model.shape.most_read} tokens that this "
    says += "model reads of one"
    if truncate is False:
        raise ContextError(f"texts: {says}; truncate=True cuts them")
    if not model._warned:
        model._warned = True
        says += ", and are cut: truncate=True says that this is meant, False refuses them"
        warnings.warn(says, stacklevel=4)
