"""What is read out of texts for the server: texts of several requests run side by side."""

from __future__ import annotations

from typing import Any

from .. import _adapters as adapters
from .. import _classes as classes
from .. import _vectors as vectors
from .._native import HeadsError
from .._reading import Reading
from ..model import Model

TEXTS = 64  # of a step, after which others get their turn
# What is read out: how, and how many rows a text has.
READ = {
    "vectors": (vectors.vectors, vectors.rows_of),
    "tokens": (vectors.each_token, lambda model, text: len(text.ids)),
    "words": (vectors.weights, lambda model, text: 1),
    "scores": (classes.scores, lambda model, text: 1),
}


class VectorJob:
    """What one request wants of texts, READ[kind]. rows: of each text that is done."""

    def __init__(
        self,
        texts: list[Reading],
        kind: str = "vectors",
        adapter: adapters.Adapter | None = None,
    ):
        self.texts, self.kind, self.adapter = texts, kind, adapter
        self.rows: list[Any] = []
        self.error: HeadsError | None = None

    def fail(self, error: HeadsError) -> None:
        self.error = error

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.rows) == len(self.texts)


class VectorQueue:
    """Requests at work on a model. One thread at a time may call it."""

    def __init__(self, model: Model):
        self.model = model
        self.waiting: list[VectorJob] = []

    def submit(self, job: VectorJob) -> None:
        self.waiting.append(job)

    def cancel(self, job: VectorJob) -> None:
        self.waiting.remove(job)

    def step(self) -> None:
        """Some texts of every request."""
        if not self.waiting:
            return
        share = max(1, TEXTS // len(self.waiting))
        parts = [
            (job, job.texts[len(job.rows) : len(job.rows) + share]) for job in self.waiting[:TEXTS]
        ]
        try:
            self._run(parts)
        except HeadsError:  # it does not say whose fault it was
            for part in parts:
                try:
                    self._run([part])
                except HeadsError as error:
                    part[0].fail(error)
        self.waiting = [job for job in self.waiting if not job.done]

    def _run(self, parts: list[tuple[VectorJob, list[Reading]]]) -> None:
        there = [part for part in parts if not part[0].done]
        for kind, adapter in dict.fromkeys((job.kind, job.adapter) for job, _ in there):
            own = [part for part in there if (part[0].kind, part[0].adapter) == (kind, adapter)]
            read, rows_of = READ[kind]
            with adapters.turn(self.model, adapter):
                rows, at = read(self.model, [text for _, texts in own for text in texts]), 0
            for job, texts in own:
                for text in texts:
                    n = rows_of(self.model, text)
                    job.rows.append(rows[at : at + n])
                    at += n
