"""Classes for Ray Data's map_batches, and for whatever else maps a callable over batches of rows
(Dask's map_partitions, Spark's mapInPandas; docs/batch.md).

    ds = ray.data.read_json("prompts.jsonl")
    ds.map_batches(heads.ray.Generate, fn_constructor_args=["model.bin"], concurrency=2,
                   num_cpus=1, batch_size=64).write_parquet("out")

A batch is a dict of columns, or a pandas DataFrame, and the result a dict of columns. Processes on
one machine share the mapped checkpoint. A row's result depends on that row alone, whatever the
partitions, so blocks that run again after a failure, or elsewhere, give the same bytes. Nothing
here imports ray."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .model import Model


class _OnModel:
    """Opens the checkpoint once in each worker. model: what heads.Model takes besides the path."""

    def __init__(self, path: str | os.PathLike[str], **model: Any):
        self.model: Model = Model(path, **model)


class Generate(_OnModel):
    """Adds the columns `text`, `tokens` and `stopped` for the column `prompt` and, if there are
    such, `lang` and `schema`. options: what Model.generate takes."""

    def __init__(
        self, path: str | os.PathLike[str], options: dict[str, Any] | None = None, **model: Any
    ):
        super().__init__(path, **model)
        self.options: dict[str, Any] = options or {}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        options = {**self.options, **_languages(batch)}
        if "schema" in batch:
            kinds = (str, dict, bool)
            options["schema"] = [s if isinstance(s, kinds) else None for s in batch["schema"]]
        texts = self.model.generate([str(p) for p in batch["prompt"]], **options)
        return {
            **batch,
            "text": _objects(map(str, texts)),
            "tokens": _objects(t.tokens for t in texts),
            "stopped": _objects(t.stopped for t in texts),
        }


class Score(_OnModel):
    """Adds `log_probability` and `greedy` for the columns `context`, `continuation` and, if there
    is one, `lang`."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        scores = self.model.score(
            [str(c) for c in batch["context"]],
            [str(c) for c in batch["continuation"]],
            **_languages(batch),
        )
        return {
            **batch,
            "log_probability": np.array([s for s, _ in scores], np.float64),
            "greedy": np.array([g for _, g in scores], bool),
        }


class Embed(_OnModel):
    """Adds `embedding`, a list of float32 numbers, for the column `text`. The model is an encoder,
    or says otherwise how a text's vector is made."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {**batch, "embedding": _objects(self.model.embed([str(t) for t in batch["text"]]))}


def _languages(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What generate() and score() take for the column `lang`, whose rows may be empty."""
    if "lang" not in batch:
        return {}
    return {"lang": [lang if isinstance(lang, str) else None for lang in batch["lang"]]}


def _objects(values: Iterable) -> np.ndarray:
    """A column of anything."""
    values = list(values)
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column
