"""Answers in the shapes of OpenAI's protocol, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ._batch import GenerateJob, Job, Likely, ScoreJob
from ._requests import Refused, Request, VectorRequest
from ._vectors import VectorJob
from .model import Model

if TYPE_CHECKING:
    from .serve import Engine


class Asked:
    """What one request asks for, on its way."""

    stream = False

    def __init__(self, engine: Engine):
        self.engine, self.model, self.wake = engine, engine.model, asyncio.Event()

    def all_jobs(self) -> list:
        raise NotImplementedError

    def whole(self) -> dict:
        """The answer, after the last of passes()."""
        raise NotImplementedError

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.engine.submit(self.all_jobs(), lambda: loop.call_soon_threadsafe(self.wake.set))

    async def passes(self) -> AsyncIterator[None]:
        """Yields after each pass, and when all is done; what is given up is cancelled."""
        jobs = self.all_jobs()
        try:
            done = False
            while not done:
                if jobs:
                    await self.wake.wait()
                self.wake.clear()
                done = all(job.done for job in jobs)
                for job in jobs:
                    if job.error:
                        raise Refused(str(job.error), status=500)
                yield
        finally:
            self.engine.cancel(jobs)


class Answer(Asked):
    """Texts."""

    def __init__(self, engine: Engine, request: Request):
        super().__init__(engine)
        self.model.must_continue()
        self.request, self.stream = request, request.stream
        kind = "chatcmpl" if request.is_chat else "cmpl"
        self.head = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()),
                     "model": model_name(engine.model)}  # fmt: skip
        if request.echo:
            self.model.must_have_one_text("echo")
        self.prompts = [self._prompt_ids(prompt) for prompt in request.prompts]
        begun = [self.model.begin(ids, request.lang) for ids in self.prompts]
        self.jobs = [self._job(*pair, i) for pair in begun for i in range(request.n)]
        # What the model says of the prompts, where that is asked for.
        scored = request.echo and request.n_top is not None
        self.scores = [ScoreJob(ids, len(ids) - 1, request.n_top)
                       for ids in self.prompts if scored and len(ids) > 1]  # fmt: skip
        self.reported = [0] * len(self.jobs)  # tokens whose log-probabilities were sent
        self.offsets = [0] * len(self.jobs)  # characters of these

    def _prompt_ids(self, prompt) -> list[int]:
        if self.request.is_chat:
            ids = self.model.chat_ids(prompt, no_think=self.request.no_think)
        else:
            ids = self.model.encode(prompt) if isinstance(prompt, str) else prompt
        self.model.check_prompt(ids, self.model.shape.source_vocab)
        return ids

    def _job(self, ids: list[int], source: list[int] | None, choice: int) -> GenerateJob:
        r = self.request
        most = self.model.context if r.max_tokens is None else r.max_tokens
        sampling = replace(r.sampling, seed=(r.sampling.seed + choice) % 2**63)
        if self.model.shape.greedy and not r.by_chance:
            sampling.temperature = 0.0
        return GenerateJob(self.model, ids, most, sampling, r.stop, r.is_chat, r.n_top, source)

    def all_jobs(self) -> list[Job]:
        return [*self.scores, *(self.jobs if self.request.max_tokens != 0 else [])]

    # ---- what is sent ----

    def finish_reason(self, job: GenerateJob) -> str | None:
        if self.request.max_tokens == 0:
            return "length"
        return {None: None, "eos": "stop", "stop": "stop"}.get(job.stopped, "length")

    def usage(self) -> dict:
        prompt = sum(map(len, self.prompts))
        new = sum(len(job.tokens) for job in self.jobs)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    def echoed(self, index: int) -> str:
        prompt = self.request.prompts[index // self.request.n]
        if not self.request.echo:
            return ""
        return prompt if isinstance(prompt, str) else self.model.decode(prompt)

    def log_probabilities(self, index: int, whole: bool) -> dict | None:
        """Of the tokens that were not sent yet."""
        if self.request.n_top is None:
            return None
        job = self.jobs[index]
        likely = job.likely[self.reported[index] :]
        self.reported[index] += len(likely)
        if self.request.is_chat:
            return {"content": [self._of_chat(x) for x in likely]}
        prompt = self.prompts[index // self.request.n] if self.request.echo and whole else []
        first = [Likely(id, float("nan"), []) for id in prompt[:1]]
        rest = self.scores[index // self.request.n].likely if len(prompt) > 1 else []
        return self._of_text(index, [*first, *rest, *likely])

    def _of_chat(self, x: Likely) -> dict:
        def entry(id: int, value: float) -> dict:
            text = self.model.token_text(id)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        return {**entry(x.id, x.log_probability), "top_logprobs": [entry(*t) for t in x.top]}

    def _of_text(self, index: int, likely: list[Likely]) -> dict:
        texts = [self.model.token_text(x.id) for x in likely]
        offsets = []
        for x in likely:
            offsets.append(self.offsets[index])
            self.offsets[index] += len(self.model.token_text(x.id, skip_special=True))
        known = [None if x.log_probability != x.log_probability else x for x in likely]
        return {
            "tokens": texts,
            "token_logprobs": [x and x.log_probability for x in known],
            "top_logprobs": [x and {self.model.token_text(i): p for i, p in x.top} for x in known],
            "text_offset": offsets,
        }

    def whole(self) -> dict:
        choices = []
        for i, job in enumerate(self.jobs):
            text = self.echoed(i) + job.new_text()
            said = {"message": {"role": "assistant", "content": text}} if self.request.is_chat \
                else {"text": text}  # fmt: skip
            choices.append({"index": i, **said, "logprobs": self.log_probabilities(i, True),
                            "finish_reason": self.finish_reason(job)})  # fmt: skip
        kind = "chat.completion" if self.request.is_chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": self.usage()}

    def chunk(self, choices: list[dict], **more) -> str:
        kind = "chat.completion.chunk" if self.request.is_chat else "text_completion"
        chunk = {**self.head, "object": kind, "choices": choices, **more}
        return f"data: {json.dumps(chunk)}\n\n"

    def piece(self, index: int, text: str, whole: bool, reason: str | None) -> str:
        said = {"delta": {"content": text} if text else {}} if self.request.is_chat \
            else {"text": text}  # fmt: skip
        return self.chunk([{"index": index, **said, "finish_reason": reason,
                            "logprobs": self.log_probabilities(index, whole)}])  # fmt: skip

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: pieces of text as they come."""
        ended = [False] * len(self.jobs)
        if self.request.is_chat:
            role = {"role": "assistant", "content": ""}
            for i in range(len(self.jobs)):
                yield self.chunk([{"index": i, "delta": role, "finish_reason": None}])
        begun = [not self.request.echo] * len(self.jobs)
        try:
            async for _ in self.passes():
                for i, job in enumerate(self.jobs):
                    over = job.done or self.request.max_tokens == 0
                    if ended[i] or not all(score.done for score in self.scores):
                        continue
                    text, reason = job.new_text(), self.finish_reason(job) if over else None
                    if not (text or reason):
                        continue
                    text = text if begun[i] else self.echoed(i) + text
                    yield self.piece(i, text, not begun[i], reason)
                    begun[i], ended[i] = True, reason is not None
        except Refused as error:
            yield f"data: {json.dumps(error.body)}\n\n"
            return
        if self.request.usage_in_stream:
            yield self.chunk([], usage=self.usage())
        yield "data: [DONE]\n\n"


class VectorAnswer(Asked):
    """Vectors of texts."""

    def __init__(self, engine: Engine, request: VectorRequest):
        super().__init__(engine)
        if engine.no_vectors:
            raise engine.no_vectors
        texts = [self.model.text_ids(text) for text in request.texts]
        for ids in texts:
            self.model.check_prompt(ids)
        self.job, self.base64 = VectorJob(texts, self.model.shape.n_embd), request.base64

    def all_jobs(self) -> list:
        return [self.job]

    def whole(self) -> dict:
        data = [{"object": "embedding", "index": i, "embedding": self._written(vector)}
                for i, vector in enumerate(self.job.vectors)]  # fmt: skip
        n = sum(map(len, self.job.texts))
        return {"object": "list", "data": data, "model": model_name(self.model),
                "usage": {"prompt_tokens": n, "total_tokens": n}}  # fmt: skip

    def _written(self, vector: np.ndarray) -> str | list[float]:
        return b64encode(vector.astype("<f4").tobytes()).decode() if self.base64 else \
            vector.tolist()  # fmt: skip


def model_name(model: Model) -> str:
    return Path(model.path).name.removesuffix(".bin")
