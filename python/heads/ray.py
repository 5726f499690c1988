"""Classes for Ray Data's map_batches, and for whatever else maps a callable over batches of rows
(Dask's map_partitions, Spark's mapInPandas; docs/batch.md).

    ds = ray.data.read_json("prompts.jsonl")
    ds.map_batches(heads.ray.Generate, fn_constructor_args=["model.bin"], concurrency=2,
                   num_cpus=2, batch_size=64).write_parquet("out")

A batch is a dict of columns. Processes on one machine share the mapped checkpoint. What a row gives
depends on the row alone, whatever the partitions, so blocks that are run again after a failure, or
elsewhere, give the same bytes. Nothing here imports ray."""

from __future__ import annotations

import os

import numpy as np

from .model import Model


class _OnModel:
    """Opens the checkpoint once in each worker. model: what heads.Model takes besides the path."""

    def __init__(self, path: str | os.PathLike, **model):
        self.model = Model(path, **model)


class Generate(_OnModel):
    """Adds the columns `text`, `tokens` and `stopped` for the column `prompt`. options: what
    Model.generate takes."""

    def __init__(self, path: str | os.PathLike, options: dict | None = None, **model):
        super().__init__(path, **model)
        self.options = options or {}

    def __call__(self, batch: dict) -> dict:
        texts = self.model.generate([str(p) for p in batch["prompt"]], **self.options)
        tokens = np.empty(len(texts), dtype=object)
        tokens[:] = [t.tokens for t in texts]
        return {**batch, "text": np.array([str(t) for t in texts], dtype=object),
                "tokens": tokens, "stopped": np.array([t.stopped for t in texts])}  # fmt: skip


class Score(_OnModel):
    """Adds `log_probability` and `greedy` for the columns `context` and `continuation`."""

    def __call__(self, batch: dict) -> dict:
        pairs = zip(batch["context"], batch["continuation"])
        contexts, continuations = zip(*((str(a), str(b)) for a, b in pairs))
        scores = self.model.score(contexts, continuations)
        return {**batch, "log_probability": np.array([s for s, _ in scores]),
                "greedy": np.array([g for _, g in scores])}  # fmt: skip
