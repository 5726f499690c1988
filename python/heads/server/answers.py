"""Answers in the shapes of OpenAI's protocol: what they share, and those with vectors."""

from __future__ import annotations

import asyncio
import time
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import numpy as np

from .. import _classes as classes
from .._native import InputError
from .messages import Refused
from .requests import PairRequest, VectorRequest
from .vectors import VectorJob

if TYPE_CHECKING:
    from .engine import Engine


class Asked:
    """What one request asks for, on its way."""

    stream = False
    first: float | None = None  # when it had its first token

    def __init__(self, engine: Engine):
        self.engine, self.model = engine, engine.model

    def spent(self) -> tuple[int, int]:
        """Tokens of the prompts, and tokens that were generated."""
        return 0, 0

    def all_jobs(self) -> list:
        raise NotImplementedError

    def whole(self) -> dict:
        """The answer, after the last of passes()."""
        raise NotImplementedError

    def start(self) -> None:
        self.wake = asyncio.Event()
        self.engine.submit(self.all_jobs(), self.engine.waker(self.wake), self.stream)

    def end(self) -> None:
        """Cancels what is not done. Whoever calls start() calls it, whatever happens."""
        self.engine.cancel(self.all_jobs())

    def failure(self, job) -> Refused:
        return Refused(str(job.error), status=503 if self.engine.closing else 500)

    async def passes(self) -> AsyncIterator[None]:
        """Yields after each pass, and when all is done."""
        jobs = self.all_jobs()
        done = False
        while not done:
            if jobs:
                await self.wake.wait()
            self.wake.clear()
            done = all(job.done for job in jobs)
            if self.first is None and self.spent()[1]:
                self.first = time.perf_counter()
            for job in jobs:
                if job.error:
                    raise self.failure(job)
            yield


class VectorAnswer(Asked):
    """Vectors of texts."""

    def __init__(self, engine: Engine, request: VectorRequest):
        super().__init__(engine)
        if engine.no_vectors:
            raise InputError(engine.no_vectors)
        texts = [(self.model.text_ids(text), 0) for text in request.texts]
        for ids, _ in texts:
            self.model._check_prompt(ids)
        cut = [self.model._n_cut(text, ids) for text, (ids, _) in zip(request.texts, texts)]
        self.n_cut = sum(n > 0 for n in cut)
        if self.n_cut and not request.truncate:
            place = next(i for i, n in enumerate(cut) if n > 0)
            n = len(texts[place][0])
            raise Refused(
                f"input[{place}] has {n + cut[place]} tokens and this model reads {n}",
                "input",
                code="context_length_exceeded",
            )
        self.job, self.base64 = VectorJob(texts, self.model.shape.vector), request.base64

    def all_jobs(self) -> list:
        return [self.job]

    def spent(self) -> tuple[int, int]:
        return sum(len(ids) for ids, _ in self.job.texts), 0

    def whole(self) -> dict:
        data = [
            {"object": "embedding", "index": i, "embedding": self._written(vector)}
            for i, vector in enumerate(self.job.vectors)
        ]
        n, _ = self.spent()
        cut = {"truncated": self.n_cut} if self.n_cut else {}
        return {
            "object": "list",
            **cut,
            "data": data,
            "model": self.engine.model_name,
            "usage": {"prompt_tokens": n, "total_tokens": n},
        }

    def _written(self, vector: np.ndarray) -> str | list[float]:
        return (
            b64encode(vector.astype("<f4").tobytes()).decode() if self.base64 else vector.tolist()
        )


class PairAnswer(Asked):
    """Scores of pairs of texts, by a cross-encoder."""

    def __init__(self, engine: Engine, request: PairRequest):
        super().__init__(engine)
        refusal = classes.no_ranks(self.model)
        if refusal:
            raise InputError(refusal)
        self.request = request
        texts = [classes.pair_ids(self.model, pair) for pair in request.pairs]
        self.job = VectorJob(texts, 1, scores=True)

    def all_jobs(self) -> list:
        return [self.job]

    def spent(self) -> tuple[int, int]:
        return sum(len(ids) for ids, _ in self.job.texts), 0

    def _head(self, kind: str) -> dict:
        n, _ = self.spent()
        usage = {"prompt_tokens": n, "total_tokens": n}
        return {"id": f"{kind}-{uuid.uuid4().hex}", "model": self.engine.model_name, "usage": usage}


class ScoreAnswer(PairAnswer):
    def whole(self) -> dict:
        data = [
            {"index": i, "object": "score", "score": float(score)}
            for i, score in enumerate(self.job.vectors[:, 0])
        ]
        head = self._head("score")
        return {**head, "object": "list", "created": int(time.time()), "data": data}


class RankAnswer(PairAnswer):
    def whole(self) -> dict:
        scores = self.job.vectors[:, 0]
        results = []
        for i in np.argsort(-scores, kind="stable")[: self.request.top_n].tolist():
            result = {"index": i, "relevance_score": float(scores[i])}
            if self.request.with_texts:
                result["document"] = {"text": self.request.pairs[i][1]}
            results.append(result)
        return {**self._head("rerank"), "results": results}
