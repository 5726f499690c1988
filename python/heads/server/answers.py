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
from .. import _vectors as vectors
from .._native import InputError
from .._reading import Reading, in_parts, pair_reading, reading, with_special
from ..model import Model
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


class ReadAnswer(Asked):
    """What is read out of texts, which the request's `field` has."""

    field = "input"

    def __init__(self, engine: Engine, texts: list[Reading], kind: str, truncate: bool):
        super().__init__(engine)
        for text in texts:
            self.model._check_prompt(text.ids)
        self.n_cut = sum(text.cut > 0 for text in texts)
        if self.n_cut and not truncate:
            place = next(i for i, text in enumerate(texts) if text.cut)
            n = len(texts[place].ids)
            raise Refused(
                f"{self.field}[{place}] has {n + texts[place].cut} tokens and this model reads {n}",
                self.field,
                code="context_length_exceeded",
            )
        self.job = VectorJob(texts, kind, engine.adapter)

    def all_jobs(self) -> list:
        return [self.job]

    def spent(self) -> tuple[int, int]:
        return sum(len(text.ids) for text in self.job.texts), 0

    def head(self) -> dict:
        """The model, tokens, and how many texts were cut, if any was."""
        n, _ = self.spent()
        usage = {"prompt_tokens": n, "total_tokens": n}
        cut = {"truncated": self.n_cut} if self.n_cut else {}
        return {"model": self.engine.model_name, "usage": usage, **cut}


def _reading_of(model: Model, text: str | list[int]) -> Reading:
    """Clients' ids have no special tokens, or have them."""
    if isinstance(text, str):
        return reading(model, text)
    return with_special(model, model.text_ids(text))


class TextAnswer(ReadAnswer):
    """What is read out of each text by itself."""

    kind: str

    def __init__(self, engine: Engine, request: VectorRequest):
        refusal = engine.refusals[self.kind]
        if refusal:
            raise InputError(refusal)
        texts = self.readings(engine.model, request)
        super().__init__(engine, texts, self.kind, request.truncate)
        self.request = request

    def readings(self, model: Model, request: VectorRequest) -> list[Reading]:
        return [_reading_of(model, text) for text in request.texts]


class VectorAnswer(TextAnswer):
    """Vectors of texts, or of the parts of one."""

    kind = "vectors"

    def readings(self, model: Model, request: VectorRequest) -> list[Reading]:
        if model.shape.token_vectors:
            raise InputError("this model gives each token a vector: ask /pooling")
        if request.dimensions and request.dimensions > model.shape.vector:
            raise Refused(f"dimensions: vectors have {model.shape.vector}", "dimensions")
        if request.late_chunking:
            return [in_parts(model, request.texts)]
        return super().readings(model, request)

    def whole(self) -> dict:
        r = self.request
        found = np.concatenate(self.job.rows)
        if r.dimensions:
            found = vectors.shortened(self.model, found, r.dimensions)
        found = vectors.quantized(found, None if r.form in ("float", "base64") else r.form)
        data = [
            {"object": "embedding", "index": i, "embedding": _written(vector, r.form)}
            for i, vector in enumerate(found)
        ]
        return {"object": "list", "data": data, **self.head()}


def _written(vector: np.ndarray, form: str) -> str | list[float]:
    if form == "base64":
        return b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


class TokenAnswer(TextAnswer):
    """Vectors of tokens, as vLLM has them."""

    kind = "tokens"

    def whole(self) -> dict:
        data = [
            {"object": "pooling", "index": i, "data": rows.tolist()}
            for i, rows in enumerate(self.job.rows)
        ]
        head = {"id": f"pool-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
        return {**head, "data": data, **self.head()}


class SparseAnswer(TextAnswer):
    """Weights of words, as text-embeddings-inference has them."""

    kind, field = "words", "inputs"

    def whole(self) -> list:
        return [
            [{"index": id, "value": value} for id, value in found.items()]
            for rows in self.job.rows
            for found in rows
        ]


class PairAnswer(ReadAnswer):
    """Scores of pairs of texts, by a cross-encoder."""

    def __init__(self, engine: Engine, request: PairRequest):
        refusal = classes.no_ranks(engine.model)
        if refusal:
            raise InputError(refusal)
        texts = [pair_reading(engine.model, pair) for pair in request.pairs]
        super().__init__(engine, texts, "scores", request.truncate)
        self.request = request

    def scores(self) -> np.ndarray:
        return np.concatenate(self.job.rows)[:, 0]

    def _head(self, kind: str) -> dict:
        return {"id": f"{kind}-{uuid.uuid4().hex}", **self.head()}


class ScoreAnswer(PairAnswer):
    field = "text_2"

    def whole(self) -> dict:
        data = [
            {"index": i, "object": "score", "score": float(score)}
            for i, score in enumerate(self.scores())
        ]
        head = self._head("score")
        return {**head, "object": "list", "created": int(time.time()), "data": data}


class RankAnswer(PairAnswer):
    field = "documents"

    def whole(self) -> dict:
        scores = self.scores()
        results = []
        for i in np.argsort(-scores, kind="stable")[: self.request.top_n].tolist():
            result = {"index": i, "relevance_score": float(scores[i])}
            if self.request.with_texts:
                result["document"] = {"text": self.request.pairs[i][1]}
            results.append(result)
        return {**self._head("rerank"), "results": results}
