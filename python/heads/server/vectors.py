"""Vectors and scores of texts for the server: texts of several requests run side by side."""

from __future__ import annotations

import numpy as np

from .. import _classes as classes
from .._classes import Ids
from .._native import HeadsError
from ..model import Model

TEXTS = 64  # of a step, after which others get their turn


class VectorJob:
    """The vectors that one request wants, of texts that are ids; scores: their classes' scores."""

    def __init__(self, texts: list[Ids], width: int, scores: bool = False):
        self.texts, self.vectors = texts, np.empty((len(texts), width), np.float32)
        self.scores = scores
        self.n_done = 0
        self.error: HeadsError | None = None

    def fail(self, error: HeadsError) -> None:
        self.error = error

    @property
    def done(self) -> bool:
        return self.error is not None or self.n_done == len(self.texts)


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
        parts = [(job, job.texts[job.n_done : job.n_done + share]) for job in self.waiting[:TEXTS]]
        try:
            self._run(parts)
        except HeadsError:  # it does not say whose fault it was
            for part in parts:
                try:
                    self._run([part])
                except HeadsError as error:
                    part[0].fail(error)
        self.waiting = [job for job in self.waiting if not job.done]

    def _run(self, parts: list[tuple[VectorJob, list[Ids]]]) -> None:
        for read in (classes.vectors, classes.scores):
            own = [part for part in parts if part[0].scores == (read is classes.scores)]
            if not own:
                continue
            rows, at = read(self.model, [text for _, texts in own for text in texts]), 0
            for job, texts in own:
                job.vectors[job.n_done : job.n_done + len(texts)] = rows[at : at + len(texts)]
                job.n_done += len(texts)
                at += len(texts)
