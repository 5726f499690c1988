"""Continuous batching by the scheduler of heads.h (heads_batch_*); its requests are jobs here. A
result does not depend on the jobs beside it, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, string_at
from dataclasses import dataclass, field
from typing import Any

from . import _adapters as adapters
from . import _arguments as arguments
from . import _grammars as grammars
from . import _steering as steering
from ._native import DONE, FAILED, BatchOptions, Bias, Event, Handle, HeadsError, NotCopied, Request
from ._native import Run, SamplerOptions, Stop, apart, calls, int_array

# A sampler's options: kind, least, most.
BOUNDS = {
    "temperature": (float, 0, 1000),
    "top_k": (int, 0, 10**9),
    "top_p": (float, 1e-6, 1),
    "min_p": (float, 0, 1),
    "repeat_penalty": (float, 1e-3, 1000),
    "seed": (int, 0, 2**63 - 1),
}
CHANCES = ("temperature", "top_k", "top_p", "min_p")  # what asks for chance


@dataclass
class Sampling:
    """How tokens are chosen."""

    temperature: float = 1.0  # 0: the most likely token
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    min_p: float = 0.0  # 0: all
    repeat_penalty: float = 1.0  # 1: none
    seed: int = 0
    frequency_penalty: float = 0.0  # subtracted from a logit for each time that it was generated
    presence_penalty: float = 0.0  # and once if it was
    logit_bias: dict[int, float] = field(default_factory=dict)  # added

    @staticmethod
    def usual(answer: bool, **given: Any) -> Sampling:
        """As ./run chooses where nothing is given: for an answer in a conversation, or for a text
        that goes on."""
        found = calls.sampler_defaults(answer)
        # A float32 is said by the fewest digits that give it.
        usual = {name: kind(f"{getattr(found, name):.7g}") for name, (kind, *_) in BOUNDS.items()}
        return Sampling(**{**usual, **given})

    def options(self) -> SamplerOptions:
        checked = {
            name: (arguments.whole if kind is int else arguments.number)(
                name, getattr(self, name), low, high
            )
            for name, (kind, low, high) in BOUNDS.items()
        }
        biases = (Bias * len(self.logit_bias))(*self.logit_bias.items())
        return SamplerOptions(
            repeat_last=64,
            biases=biases,
            n_biases=len(biases),
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            **checked,
        )


@dataclass
class Likely:
    """How likely a token was where it stands, and the most likely ones there: (id, natural
    logarithm of the probability)."""

    id: int
    log_probability: float
    top: list[tuple[int, float]]

    @staticmethod
    def of(event: Event) -> Likely:
        top = [(x.id, x.log_probability) for x in event.top[: event.n_top]]
        return Likely(event.id, event.log_probability, top)


class Job:
    """A text on its way. `prompt` has to run. `source`: what an encoder reads before; the prompt is
    then how the text begins."""

    mask = None  # a callback, if the text follows a grammar
    adapted: adapters.Adapted = (None, 0.0)

    def __init__(self, prompt: list[int], n_top: int | None, source: list[int] | None):
        self.prompt, self.source = prompt, source
        self.n_top = n_top  # None: no list of Likely
        self.likely: list[Likely] = []
        self.number: int | None = None  # in its batch
        self.error: HeadsError | None = None
        self.stopped: str | None = None
        self.done = False

    def request(self, ids: list[int]) -> Request:
        """For heads_batch_add, which copies it."""
        request = Request(ids=int_array(ids), n=len(ids), n_top=self.n_top or 0)
        if self.source:
            request.source, request.n_source = int_array(self.source), len(self.source)
        adapter, request.adapter_scale = self.adapted
        request.adapter = adapter and adapter.pointer
        return request

    def fail(self, error: HeadsError) -> None:
        self.error, self.done = error, True

    def take(self, event: Event) -> None:
        """One of its events."""
        if event.kind == FAILED:
            self.fail(HeadsError(event.error.decode("utf-8", "replace")))
        elif event.kind == DONE:
            self.stopped = event.stopped.decode()
        else:
            if self.n_top is not None:
                self.likely.append(Likely.of(event))
            self.take_token(event)
        self.done |= event.kind == DONE


class ScoreJob(Job):
    """How likely the last n_scored tokens of a text are. Result: log_probabilities and, for each,
    whether it was the most likely one."""

    FAILED = (float("nan"), False)  # its score then

    def __init__(
        self,
        ids: list[int],
        n_scored: int,
        n_top: int | None = None,
        source: list[int] | None = None,
    ):
        super().__init__(ids[:-1], n_top, source)
        self.ids, self.n_scored = ids, n_scored
        self.log_probabilities: list[float] = []
        self.greedy: list[bool] = []

    def score(self) -> tuple[float, bool]:
        """The log-probability of all that was scored, and whether it is greedy."""
        return self.FAILED if self.error else (sum(self.log_probabilities), all(self.greedy))

    def request(self) -> Request:
        request = super().request(self.ids)
        request.n_scored = self.n_scored
        return request

    def take_token(self, event: Event) -> None:
        self.log_probabilities.append(event.log_probability)
        self.greedy.append(event.id == event.best)


class Completion(str):
    """What a model added to a prompt: a str that also knows its `tokens` (ids) and why it
    `stopped`: "eos", "max_tokens", "stop", "context", or "error" where generate's `failed` has
    one."""

    tokens: list[int]
    stopped: str

    @staticmethod
    def of(text: str, tokens: list[int], stopped: str) -> Completion:
        made = Completion(text)
        made.tokens, made.stopped = tokens, stopped
        return made


class GenerateJob(Job):
    """What a model adds to a prompt. Results: bytes, tokens (ids), and stopped: "eos",
    "max_tokens", "stop" (the text ends before the stop string) or "context"."""

    def __init__(
        self,
        model,
        prompt: list[int],
        max_tokens: int,
        sampling: Sampling,
        stops: list[bytes],
        is_chat: bool = False,
        n_top: int | None = None,
        source: list[int] | None = None,
        matcher=None,  # of a grammar
        steer=None,  # a Steering
        adapter=None,  # an Adapter
    ):
        super().__init__(prompt, n_top, source)
        # What follows the first token counts, and one token is always generated.
        self.max_tokens = max(max_tokens, len(prompt) if source else 1)
        self.lookup = model._lookup
        self.steers = steering.steers(steer, model.shape)
        self.adapted = adapters.of(model, adapter)
        self.sampling, self.options, self.stops = sampling, sampling.options(), stops
        self.matcher = matcher
        self.mask = grammars.mask(matcher, model.shape.vocab_size) if matcher else None
        self.is_chat, self.end = is_chat, model.chat_end() if is_chat else -1
        self.tokens: list[int] = []
        self.bytes = b""
        self.handed_out = 0  # bytes of the text

    def request(self) -> Request:
        request = super().request(self.prompt)
        request.max_tokens, request.sampler = self.max_tokens, self.options
        request.lookup = self.lookup
        request.steers, request.n_steers = self.steers, len(self.steers)
        request.answer, request.likely = self.is_chat, self.n_top is not None
        request.stops = (Stop * len(self.stops))(*(Stop(s, len(s)) for s in self.stops))
        request.n_stops = len(self.stops)
        request.stop_ids, request.n_stop_ids = int_array([self.end]), int(self.end >= 0)
        if self.mask:
            request.mask = self.mask
        return request

    def fail(self, error: HeadsError) -> None:
        if self.matcher and self.matcher.is_error():
            error = HeadsError(f"the grammar: {self.matcher.get_error()}"[:600])
        super().fail(error)

    def take_token(self, event: Event) -> None:
        self.tokens.append(event.id)
        if event.len:
            self.bytes += string_at(event.text, event.len)

    def new_text(self) -> str:
        """What was not handed out before."""
        piece = self.bytes[self.handed_out :]
        self.handed_out += len(piece)
        return piece.decode("utf-8", "replace")

    def completion(self) -> Completion:
        if self.error:
            return Completion.of("", [], "error")
        text = self.bytes.decode("utf-8", "replace")
        return Completion.of(text, self.tokens, self.stopped or "")


def read_source(workspace: Handle, sequence: Handle, ids: list[int]) -> None:
    """Has the encoder read ids, for a sequence that is empty."""
    run = Run(sequence.pointer, int_array(ids), len(ids), 0)
    calls.read_sources(workspace, byref(run), 1)


class Batch(NotCopied):
    """Up to `parallel` jobs at work on a model, in the order in which they were submitted; the
    caches of `keep` that are done are kept for those that come later and begin alike. One thread at
    a time may call it; other passes of the model wait during a pass only. It ends when the model is
    closed."""

    def __init__(self, model, parallel: int, keep: int = 0):
        self.model, self.parallel = model, parallel
        self.jobs: dict[int, Job] = {}  # by their numbers
        self.running = self.waiting = 0  # of them
        self.drafted = self.accepted = 0  # guesses
        with model._turn() as opened:
            tokenizer = opened.tokenizer
            text, draft = (h.pointer if h else None for h in (tokenizer, opened.draft))
            options = BatchOptions(parallel, keep, text, draft)
            batch = calls.batch_new(opened.workspace, byref(options))
            needs = (opened.workspace, tokenizer, opened.draft)
            self._batch = Handle(batch, calls.batch_free, *needs)
            self._opened = opened
            opened.users.add(self)

    @contextmanager
    def _turn(self) -> Iterator[Handle]:
        with self.model._turn() as opened:
            batch = self._batch
            if batch is None or opened is not self._opened:
                raise HeadsError(
                    "the model was closed, or the process forked, before this was done"
                )
            yield batch

    def _count(self, batch: Handle) -> None:
        counts = calls.batch_count(batch)
        self.running, self.waiting = counts.running, counts.waiting
        self.drafted, self.accepted = counts.drafted, counts.accepted

    def submit(self, job: Job) -> None:
        self.model._check_prompt(job.prompt)
        with self._turn() as batch:
            job.number = calls.batch_add(batch, byref(job.request()))
            self.jobs[job.number] = job
            self._count(batch)

    def cancel(self, job: Job) -> None:
        with self._turn() as batch:
            if self.jobs.pop(job.number, None):
                calls.batch_cancel(batch, job.number)
                self._count(batch)

    def step(self) -> list[Job]:
        """One pass; returns the jobs that are done."""
        events, done = POINTER(Event)(), []
        with self._turn() as batch:
            if any(job.mask for job in self.jobs.values()):
                n = apart(calls.batch_step, batch, byref(events))
            else:
                n = calls.batch_step(batch, byref(events))
            for event in events[:n]:
                job = self.jobs[event.request]
                try:
                    job.take(event)
                except MemoryError:
                    job.fail(HeadsError("no memory for what the model wrote"))
                if job.done and job not in done:
                    done.append(job)
            for job in done:
                self.cancel(job)
            self._count(batch)
        return done

    def run(self):
        """All that was submitted; yields each job when it is done."""
        while self.jobs:
            yield from self.step()

    def close(self) -> None:
        """Frees it. Its jobs stay: they are not done, which a step then says."""
        self._batch = None
        self.running = self.waiting = 0
