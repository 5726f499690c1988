"""Classes for Ray Data's map_batches, and for whatever else maps a callable over batches of rows
(Dask's map_partitions, Spark's mapInPandas; docs/batch.md).

    ds = ray.data.read_json("prompts.jsonl")
    ds.map_batches(heads.ray.Generate, fn_constructor_args=["model.bin"], num_cpus=1,
                   compute=ray.data.ActorPoolStrategy(size=2), batch_size=64).write_parquet("out")

A batch is a dict of columns, or a pandas DataFrame, and the result a dict of columns. Processes on
one machine share the mapped checkpoint. A row's result depends on that row alone, whatever the
partitions, so blocks that run again after a failure, or elsewhere, give the same bytes. A row that
cannot be done has nulls, and a sentence in the column `error`, which is null elsewhere. Nothing here
imports ray."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._arguments import Failed
from ._native import HeadsError
from .model import Model


class _OnModel:
    """Opens the checkpoint once in each worker. nulls: a row without a text (None, NaN) has nulls
    and no error. model: what heads.Model takes besides the path."""

    _reads: tuple[str, ...]  # columns of texts
    _adds: dict[str, type]  # columns of results

    def __init__(self, path: str | os.PathLike[str], *, nulls: bool = False, **model: Any):
        self.model: Model = Model(path, **model)
        self.nulls = nulls

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        columns = {name: list(batch[name]) for name in batch}
        n = len(columns[self._reads[0]])
        errors = [
            self._lacks({name: columns[name][row] for name in self._reads}) for row in range(n)
        ]
        rows = [row for row, error in enumerate(errors) if error is None]
        failed: Failed = {}
        given = {name: [column[row] for row in rows] for name, column in columns.items()}
        found = self._results(given, failed) if rows else []
        results: list[Sequence[Any]] = [[None] * len(self._adds)] * n
        for place, row in enumerate(rows):
            if place in failed:
                errors[row] = str(failed[place])
            else:
                results[row] = found[place]
        added = {
            name: _column([result[i] for result in results], kind)
            for i, (name, kind) in enumerate(self._adds.items())
        }
        # Ray gives a block without any text as NaN, which would be a column of numbers.
        texts = {
            name: _column([None if _is_missing(x) else x for x in columns[name]], object)
            for name in self._reads
        }
        told = _column([error or None for error in errors], object)
        return {**batch, **texts, **added, "error": told}

    def _lacks(self, texts: dict[str, Any]) -> str | None:
        """Why a row cannot be done: a column that holds no text. "": no error is wanted of it."""
        for name, value in texts.items():
            if not isinstance(value, str):
                wanted = self.nulls and _is_missing(value)
                return "" if wanted else f"{name}: expected a text, found {reprlib.repr(value)}"
        return None

    def _results(self, given: dict[str, list], failed: Failed) -> list:
        """What each row adds, of columns of texts. failed: takes the errors, by the rows' places."""
        raise NotImplementedError


class Generate(_OnModel):
    """Adds the columns `text`, `tokens` and `stopped` for the column `prompt` and, if there are
    such, `lang` and `schema`. options: what Model.generate takes."""

    _reads: tuple[str, ...] = ("prompt",)
    _adds: dict[str, type] = {"text": object, "tokens": object, "stopped": object}

    def __init__(
        self, path: str | os.PathLike[str], options: dict[str, Any] | None = None, **model: Any
    ):
        super().__init__(path, **model)
        self.options: dict[str, Any] = options or {}

    def _results(self, given: dict[str, list], failed: Failed) -> list:
        options = {**self.options, **_languages(given)}
        if "schema" in given:
            kinds = (str, dict, bool)
            options["schema"] = [s if isinstance(s, kinds) else None for s in given["schema"]]
        texts = self.model.generate(given["prompt"], failed=failed, **options)
        return [(str(text), text.tokens, text.stopped) for text in texts]


class Score(_OnModel):
    """Adds `log_probability` and `greedy` for the columns `context`, `continuation` and, if there
    is one, `lang`."""

    _reads: tuple[str, ...] = ("context", "continuation")
    _adds: dict[str, type] = {"log_probability": np.float64, "greedy": np.bool_}

    def _results(self, given: dict[str, list], failed: Failed) -> list:
        contexts, continuations = (given[name] for name in self._reads)
        return self.model.score(contexts, continuations, failed=failed, **_languages(given))


class Embed(_OnModel):
    """Adds `embedding`, a list of float32 numbers, for the column `text`. The model is an encoder,
    or says otherwise how a text's vector is made."""

    _reads: tuple[str, ...] = ("text",)
    _adds: dict[str, type] = {"embedding": object}

    def __init__(self, path: str | os.PathLike[str], **model: Any):
        super().__init__(path, **model)
        self.model.embed([])  # refuses a model that makes no vectors

    def _results(self, given: dict[str, list], failed: Failed) -> list:
        try:
            return [(vector,) for vector in self.model.embed(given["text"])]
        except HeadsError:  # it does not say whose fault it was
            return [self._vector(*pair, failed) for pair in enumerate(given["text"])]

    def _vector(self, place: int, text: str, failed: Failed) -> tuple:
        try:
            return (self.model.embed(text),)
        except HeadsError as error:
            failed[place] = error
            return (None,)


def _is_missing(value: Any) -> bool:
    """None, NaN, or pandas' NA, of which nobody may ask whether it is equal to something."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True
    except ValueError:  # an array
        return False


def _languages(given: dict[str, list]) -> dict[str, Any]:
    """What generate() and score() take for the column `lang`, whose rows may be empty."""
    if "lang" not in given:
        return {}
    return {"lang": [lang if isinstance(lang, str) else None for lang in given["lang"]]}


def _column(values: list, kind: type) -> np.ndarray:
    """A column, of objects if any is None."""
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column if any(value is None for value in values) else column.astype(kind)
