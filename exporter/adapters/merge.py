"""Merging: a base's tensors become the fine-tuned model's, before a family renames, splits or stacks
them."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from ..config import Config
from ..families.multimodal import text_name
from ..knobs import Knobs
from ..tensor import ExportError, Tensor
from .adapter import Adapter
from .changes import Change, Factors, Place, Rows, Whole, changed
from .places import Base, Named, one_tied

CLASSES = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
HEADS = ("output", "head_dense", "head_norm")  # of a model that writes, which classes replace


def merge(adapters: Sequence[Adapter], base: Named) -> list[str]:
    """Puts into base.left what the adapters make of it, and returns remarks. Nothing is read.
    Errors: ExportError."""
    pieces: dict[str, list[tuple[Change, Place]]] = {}
    whole: dict[str, str] = {}  # tensors that were replaced -> by which adapter
    rows: dict[tuple[str, int], str] = {}  # of an embedding -> by which adapter
    remarks = [remark for adapter in adapters for remark in adapter.remarks]
    for adapter in adapters:
        try:
            left_out = ""
            for change in adapter.changes:
                name = change.parameter if adapter.architecture else text_name(change.parameter)
                if name is None:
                    left_out = left_out or change.tensor.name
                elif isinstance(change, Whole):
                    _replace(base, replace(change, parameter=name), adapter.path, whole)
                else:
                    for place in _placed(base, replace(change, parameter=name)):
                        pieces.setdefault(place.name, []).append((change, place))
                        _check_rows(change, place, adapter.path, rows)
        except ExportError as error:
            raise ExportError(f"{adapter.path}: {error}") from error
        if left_out:
            remarks.append(
                f"{adapter.path}: {left_out} is left out, which is for pictures or sounds"
            )
    if adapters and adapters[0].apart:
        adapters[0].apart.put(base.left, pieces, base.tables)
        return remarks
    for name, of_tensor in pieces.items():
        base.left[name] = changed(base.left[name], of_tensor)
    return remarks


def _placed(base: Named, change: Change) -> list[Place]:
    places = base.places(change.parameter)
    if change.turned:
        places = [replace(place, turned=not place.turned) for place in places]
    if places:
        base.check(change, places)
    elif not (isinstance(change, Factors) and change.parameter.endswith(".bias")):
        raise base.refuse(change)
    return places


def _check_rows(change: Change, place: Place, path: str, rows: dict) -> None:
    """Errors: ExportError, if another adapter replaces the same row."""
    for token in change.index if isinstance(change, Rows) else ():
        first = rows.setdefault((place.name, token), path)
        if first != path:
            raise ExportError(f"{first} too replaces the row of token {token} of {place.name}")


def _replace(base: Named, change: Whole, path: str, whole: dict[str, str]) -> None:
    """Puts the adapter's tensor in the base's place. What was trained apart from the tensor that it
    is tied to parts from it."""
    places = base.places(change.parameter)
    if not places:
        raise base.refuse(change)
    base.check(change, places)
    name = places[0].name
    if len(places) > 1 or places[0].rows != base.left[name].shape[0]:
        raise ExportError(f"{change.tensor.name} replaces a part of {name}, which is not supported")
    output = base.output_tied_to(name) if change.apart else None
    if output:
        base.left[output] = base.left[name]
        base.names[base.key(output)] = output
        if base.key(change.parameter) == base.key(output):
            name = output
    if whole.setdefault(name, path) != path:
        raise ExportError(f"{whole[name]} too replaces {name}, which only one adapter can")
    base.left[name] = replace(change.tensor, name=name)


def merge_checkpoint(
    adapters: Sequence[Adapter],
    c: Config,
    family: str,
    knobs: Knobs,
    left: dict[str, Tensor],
    table: dict[str, str | None],
) -> list[str]:
    """Merges into the tensors of a Hugging Face checkpoint, which have their own names still.
    Returns remarks. Errors: ExportError."""
    if knobs.tied:
        one_tied(left, table)
    base = Base(family, left, knobs, table)
    _give_head(adapters, c, base, table)
    return merge(adapters, base)


def widen(
    adapters: Sequence[Adapter], c: Config, left: dict[str, Tensor], table: dict[str, str | None]
) -> None:
    """Makes vocab_size what an adapter's own embedding and output have, where it was trained with
    tokens that the base lacks. Errors: ExportError, if it has one of the two alone."""
    size = c.get("vocab_size")
    names = [
        f"{n}.weight" for key in ("embed", "output") for n in (table.get(key) or "").split("|")
    ]
    new = {}
    for adapter in adapters:
        for change in adapter.changes:
            name, shape = text_name(change.parameter), change.tensor.shape
            if isinstance(change, Whole) and name in names and len(shape) == 2 and shape[0] != size:
                new[name] = replace(change.tensor, name=name)
                held = left.get(name) or left.get(names[0])
                if held is None or held.shape != (size, shape[1]):
                    return  # of another base, which merge() tells
                wider, both = shape[0], change.apart
    if not new:
        return
    alone = [name for name in names if name in left and name not in new]
    if alone or both and len(new) < 2 or len({t.shape for t in new.values()}) > 1:
        raise ExportError(
            f"{adapters[0].path}: it has {wider} rows for {next(iter(new))}, of {size} that the "
            f"base has, and not for {(alone or ['the output'])[0]}: its tokens have no logits"
        )
    c.values = {**c.values, "vocab_size": wider}
    left.update(new)


def _give_head(
    adapters: Sequence[Adapter], c: Config, base: Base, table: dict[str, str | None]
) -> None:
    """Where an adapter brings a head for classes, which its base has not: the model has that one,
    not the base's."""
    names = [str(name) for name in c.get("architectures") or []]
    for adapter in adapters:
        ends = CLASSES.get(adapter.task or "")
        new = [change for change in adapter.changes if isinstance(change, Whole)]
        new = [change for change in new if not base.places(change.parameter)]
        if not ends or not new or names and names[0].endswith(tuple(CLASSES.values())):
            continue
        c.values = {**c.values, "architectures": ["Model" + ends]}
        labels = c.get("id2label")
        if isinstance(labels, dict) and len(labels) not in {t.tensor.shape[0] for t in new}:
            c.values = {**c.values, "id2label": None}
        # ModernBERT's classes read `head` too.
        heads = {(table.get(key) or "").split(".")[0] + "." for key in HEADS} - {".", "head."}
        for name in [name for name in base.left if name.startswith(tuple(heads))]:
            del base.left[name]
        for change in new:
            name = change.parameter
            base.left[name] = replace(change.tensor, name=name)
            base.names[base.key(name)] = name
