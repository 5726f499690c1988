"""Continuous batching: texts come and go, and each pass takes the next token of all that generate
and as much of the waiting prompts as fits. What a text gives does not depend on the others
(heads.h), so none of this changes a bit."""

from __future__ import annotations

from collections import deque
from ctypes import byref, c_double, c_int, c_size_t, c_void_p, string_at
from dataclasses import dataclass, field

import numpy as np

from ._native import FLOATS, HeadsError, InputError, Run, SamplerOptions, calls, int_array

MIN_SHARED = 32  # tokens that are worth a fork
MAPPED_FROM = 256  # prompts of this length get a cache that forks map instead of copying


# Of a sampler's options: kind, least, most.
BOUNDS = {
    "temperature": (float, 0, 1000), "top_k": (int, 0, 10**9), "top_p": (float, 1e-6, 1),
    "min_p": (float, 0, 1), "repeat_penalty": (float, 1e-3, 1000), "seed": (int, 0, 2**63 - 1),
}  # fmt: skip


@dataclass
class Sampling:
    """How tokens are chosen; the defaults are those of ./run."""

    temperature: float = 0.8  # 0: the most likely token
    top_k: int = 0  # 0: all
    top_p: float = 0.95  # 1: all
    min_p: float = 0.0  # 0: all
    repeat_penalty: float = 1.0  # 1: none
    seed: int = 0

    def options(self) -> SamplerOptions:
        for name, (_, low, high) in BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{name} is {value!r}, expected {low} to {high}")
        return SamplerOptions(self.temperature, self.top_k, self.top_p, self.min_p,
                              self.repeat_penalty, 64, self.seed)  # fmt: skip


class Decoder:
    """From ids to text, one at a time: what is handed out never ends inside a character."""

    def __init__(self, model, skip_special: bool):
        self._decoder = calls.decoder_new(model.tokenizer, skip_special)

    def push(self, id: int) -> bytes:
        return self._text(calls.decoder_push, id)

    def finish(self) -> bytes:
        return self._text(calls.decoder_finish)

    def _text(self, call, *id: int) -> bytes:
        text, size = c_void_p(), c_size_t()
        call(self._decoder, *id, byref(text), byref(size))
        return string_at(text, size.value) if size.value else b""

    def close(self) -> None:
        calls.decoder_free(self._decoder)
        self._decoder = None


@dataclass
class Likely:
    """How likely a token was where it stands, and the most likely ones there: (id, natural
    logarithm of the probability)."""

    id: int
    log_probability: float
    top: list[tuple[int, float]]

    @staticmethod
    def of(id: int, row: np.ndarray, n_top: int) -> Likely:
        shifted = row - row.max()
        log_probabilities = shifted - np.log(np.exp(shifted, dtype=np.float64).sum())
        ids = np.argsort(-row, kind="stable")[:n_top].tolist()
        return Likely(id, float(log_probabilities[id]),
                      [(i, float(log_probabilities[i])) for i in ids])  # fmt: skip


class Job:
    """A text on its way. `prompt` has to run; of its last `n_rows` tokens logits are wanted.
    `source`: what an encoder reads before; the prompt is then how the text begins."""

    def __init__(self, prompt: list[int], n_rows: int, source: list[int] | None = None):
        self.prompt, self.n_rows = np.asarray(prompt, dtype=np.intc), n_rows
        self.source = source
        self.sequence: int | None = None  # in the engine
        self.length = 0  # tokens that it holds
        self.alone = False  # runs in passes of its own: its neighbours' pass failed
        self.error: HeadsError | None = None
        self.done = False

    def text(self) -> np.ndarray:
        """The tokens so far."""
        return self.prompt

    def start_over(self) -> None:
        self.length = 0

    def close(self) -> None:
        """Gives back all but the sequence."""


class ScoreJob(Job):
    """How likely the last n_rows tokens of a text are. Result: log_probabilities and, for each,
    whether it was the most likely one."""

    def __init__(self, ids: list[int], n_scored: int, n_top: int | None = None,
                 source: list[int] | None = None):  # fmt: skip
        super().__init__(ids[:-1], n_scored, source)
        self.n_top = n_top  # None: no list of Likely
        self.targets = list(ids[len(ids) - n_scored :])
        self.start_over()

    def start_over(self) -> None:
        super().start_over()
        self.log_probabilities: list[float] = []
        self.greedy: list[bool] = []
        self.likely: list[Likely] = []

    def next_targets(self, n: int) -> list[int]:
        begin = len(self.log_probabilities)
        return self.targets[begin : begin + n]

    def take(self, log_probabilities: list[float], best: list[int], rows: np.ndarray) -> None:
        targets = self.next_targets(len(best))
        if self.n_top is not None:
            self.likely += [Likely.of(id, row, self.n_top) for id, row in zip(targets, rows)]
        self.log_probabilities += log_probabilities
        self.greedy += [a == b for a, b in zip(targets, best)]
        self.done = len(self.log_probabilities) == len(self.targets)


class GenerateJob(Job):
    """What a model adds to a prompt. Results: text, tokens (ids), and stopped: "eos",
    "max_tokens", "stop" (the text ends before the stop string) or "context"."""

    def __init__(self, model, prompt: list[int], max_tokens: int, sampling: Sampling,
                 stop: list[str], is_chat: bool = False, n_top: int | None = None,
                 source: list[int] | None = None):  # fmt: skip
        self.sampler = self.decoder = None
        super().__init__(prompt, 1, source)
        self.n_top = n_top  # None: no list of Likely
        self.model, self.max_tokens, self.options = model, max_tokens, sampling.options()
        self.stops = [s.encode() for s in stop]
        if source:  # what follows the first token counts, as transformers counts it
            self.max_tokens = max(1, min(max_tokens + 1, model.context + 1) - len(prompt))
            self.options.most = len(prompt) + self.max_tokens
        self.is_chat, self.end = is_chat, model.chat_end() if is_chat else -1
        self.handed_out = 0  # bytes of the text
        self.start_over()

    def start_over(self) -> None:
        super().start_over()
        self.close()
        self.tokens: list[int] = []
        self.likely: list[Likely] = []  # of each token
        self.bytes = b""
        self.stopped: str | None = None
        self.sampler = calls.sampler_new(self.model.workspace, byref(self.options))
        if self.model.tokenizer:
            self.decoder = Decoder(self.model, skip_special=not self.is_chat)
        for id in self.prompt.tolist():
            calls.sampler_accept(self.sampler, id)
            if self.decoder and not self.is_chat and not self.source:
                self.decoder.push(id)

    def close(self) -> None:
        if self.sampler:
            calls.sampler_free(self.sampler)
        if self.decoder:
            self.decoder.close()
        self.sampler = self.decoder = None

    def __del__(self) -> None:
        self.close()

    def text(self) -> np.ndarray:
        return np.concatenate([self.prompt, np.asarray(self.tokens, dtype=np.intc)])

    def take(self, id: int, row: np.ndarray) -> None:
        """The token that was picked, from a row of logits."""
        if self.n_top is not None:
            self.likely.append(Likely.of(id, row, self.n_top))
        calls.sampler_accept(self.sampler, id)
        self.tokens.append(id)
        eos = id == self.end or (self.model.tokenizer and calls.is_eos(self.model.tokenizer, id))
        if not eos and self.decoder and self._append(self.decoder.push(id)):
            self.stopped = "stop"
        elif eos:
            self.stopped = "eos"
        elif len(self.tokens) == self.max_tokens:
            self.stopped = "max_tokens"
        elif self.length == self.model.context:
            self.stopped = "context"
        if not self.stopped:
            return
        if self.decoder and self.stopped != "stop" and self._append(self.decoder.finish()):
            self.stopped = "stop"
        self.done = True

    def new_text(self) -> str:
        """What was not handed out before, but for what may turn out to begin a stop string or a
        character."""
        done, text = self.done, self.bytes  # in this order: another thread may append
        begun = 0 if done else max((_begun(text, stop) for stop in self.stops), default=0)
        piece = text[self.handed_out : len(text) - begun].decode("utf-8", "ignore")
        self.handed_out += len(piece.encode())
        return piece

    def _append(self, text: bytes) -> bool:
        """Whether a stop string is in the text now, before which it then ends."""
        old = len(self.bytes)
        self.bytes += text
        found = [self.bytes.find(s, max(0, old - len(s) + 1)) for s in self.stops if text]
        at = min((f for f in found if f >= 0), default=-1)
        if at >= 0:
            self.bytes = self.bytes[:at]
        return at >= 0


def _begun(text: bytes, stop: bytes) -> int:
    """How much of the end of a text may be the beginning of a stop string."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


@dataclass
class Kept:
    """The sequence of a text that is done, from which others may fork."""

    sequence: int
    tokens: np.ndarray
    source: list[int] | None


def read_source(workspace: int, sequence: int, ids: list[int]) -> None:
    """Has the encoder read ids, for a sequence that is empty."""
    run = Run(sequence, int_array(ids), len(ids), 0)
    calls.read_sources(workspace, byref(run), 1)


@dataclass(eq=False)
class Batch:
    """Up to `parallel` jobs at work on a model, in the order in which they were submitted. One
    thread at a time may call it; the model's lock is held during a pass only. It ends when the
    model is closed."""

    model: object
    parallel: int
    waiting: deque = field(default_factory=deque)
    busy: list = field(default_factory=list)
    kept: deque = field(default_factory=deque)

    def __post_init__(self):
        self.workspace = self.model.workspace
        self.model.users.add(self)

    def submit(self, job: Job) -> None:
        self.model.check_prompt(job.prompt)
        self.waiting.append(job)

    def cancel(self, job: Job) -> None:
        if job in self.waiting:
            self.waiting.remove(job)
        elif job in self.busy:
            self.busy.remove(job)
            self._leave(job)

    def step(self) -> list[Job]:
        """One pass; returns the jobs that are done."""
        with self.model.lock:
            if not self.model.is_of(self.workspace):
                raise HeadsError("the model was closed, or the process forked, before this was done")
            while len(self.busy) < self.parallel and self.waiting:
                self.busy.append(self.waiting.popleft())
            self._run_pass([job for job in self.busy if not job.alone])
            for job in [job for job in self.busy if job.alone]:
                self._run_pass([job])
            done = [job for job in self.busy if job.done]
            self.busy = [job for job in self.busy if not job.done]
            for job in done:
                self._leave(job)
        return done

    def run(self):
        """All that was submitted; yields each job when it is done."""
        left = len(self.waiting) + len(self.busy)
        while left:
            done = self.step()
            left -= len(done)
            yield from done

    def close(self) -> None:
        with self.model.lock:
            jobs = [*self.busy, *self.waiting]
            for job in jobs:
                job.close()
            if self.model.is_of(self.workspace):
                for holder in (*jobs, *self.kept):
                    calls.sequence_free(holder.sequence)
            self.busy, self.waiting, self.kept = [], deque(), deque()

    # ---- sequences ----

    def _leave(self, job: Job) -> None:
        job.close()
        if job.sequence:
            self.kept.append(Kept(job.sequence, job.text()[: job.length], job.source))
            job.sequence = None
        while len(self.kept) > self.parallel:
            calls.sequence_free(self.kept.popleft().sequence)

    def _shared(self, job: Job) -> tuple[int, int | None, bool]:
        """The longest beginning of a prompt that another sequence holds, that sequence, and
        whether to wait because one at work will soon hold more of it. With a source, only another
        sequence of the same source will do, and that alone is worth a fork."""
        head = job.prompt[: len(job.prompt) - job.n_rows]
        longest, parent, later = -1 if job.source else MIN_SHARED - 1, None, 0
        for kept in self.kept:
            n = common_length(head, kept.tokens)
            if n > longest and kept.source == job.source:
                longest, parent = n, kept.sequence
        for other in self.busy:
            if not other.sequence or other is job or other.alone or other.source != job.source:
                continue
            n = common_length(head, other.text())
            later = max(later, n)
            if min(n, other.length) > longest:
                longest, parent = min(n, other.length), other.sequence
        return longest, parent, later >= longest + MIN_SHARED

    def _begin(self, job: Job) -> bool:
        """Gives a job its sequence; False: later."""
        n, parent, wait = (0, None, False) if job.alone else self._shared(job)
        if wait:
            return False
        try:
            if parent:
                job.sequence, job.length = calls.sequence_fork(parent, n), n
        except HeadsError:  # a window or a state has forgotten what follows the first n tokens
            pass
        if not job.sequence:
            # A mapped source could not be replaced by another text's as long as forks share it.
            mapped = len(job.prompt) >= MAPPED_FROM and not job.source
            job.sequence = self._empty_sequence(mapped)
            if job.source:
                read_source(self.workspace, job.sequence, job.source)
        calls.sequence_expect(job.sequence, len(job.prompt))
        return True

    def _empty_sequence(self, mapped: bool) -> int:
        if not mapped and len(self.kept) == self.parallel:
            kept = self.kept.popleft()
            try:
                calls.sequence_rewind(kept.sequence, 0)
                return kept.sequence
            except HeadsError:  # forks share it
                calls.sequence_free(kept.sequence)
        return calls.sequence_new(self.workspace, mapped)

    # ---- a pass ----

    def _plan(self, jobs: list[Job]) -> list[tuple[Job, np.ndarray, int]]:
        """What to run: (job, its next tokens, how many of their logits are wanted). First those
        that generate, then prompts whose last token is picked from, then the rest."""
        tokens, prompts, room = [], [], self.model.chunk
        for job in jobs:
            if job.sequence and job.length >= len(job.prompt):
                tokens.append((job, np.asarray(job.tokens[-1:], dtype=np.intc), 1))
        room = max(room - len(tokens), 1)
        for job in jobs:
            if room == 0 or (job.sequence and job.length >= len(job.prompt)):
                continue
            if not job.sequence and not self._begin(job):
                continue
            piece = job.prompt[job.length : job.length + room]
            room -= len(piece)
            end = job.length + len(piece)
            wanted = min(len(piece), max(0, end - (len(job.prompt) - job.n_rows)))
            prompts.append((job, piece, wanted))
        prompts.sort(key=lambda run: not (isinstance(run[0], GenerateJob) and run[2]))
        return tokens + prompts

    def _run_pass(self, jobs: list[Job]) -> None:
        plan = self._plan(jobs)
        if not plan:
            return
        runs = (Run * len(plan))()
        arrays = [int_array(tokens.tolist()) for _, tokens, _ in plan]
        for run, (job, tokens, wanted), array in zip(runs, plan, arrays):
            run.sequence, run.tokens, run.n, run.n_logits = job.sequence, array, len(array), wanted
        try:
            logits = calls.forward_runs(self.workspace, runs, len(plan))
        except HeadsError as error:
            self._after_error([job for job, _, _ in plan], error)
            return
        for job, tokens, _ in plan:
            job.length += len(tokens)
        n_rows = sum(n for _, _, n in plan)
        if n_rows == 0:
            return
        rows = np.ctypeslib.as_array(logits, (n_rows, self.model.stride))
        picking = [job for job, _, n in plan if n and isinstance(job, GenerateJob)]
        self._pick(logits, rows, picking)
        self._score(rows[len(picking) :], [r for r in plan if r[2] and isinstance(r[0], ScoreJob)])

    def _pick(self, logits, rows: np.ndarray, jobs: list[GenerateJob]) -> None:
        n = len(jobs)
        ids = (c_int * n)()
        samplers = (c_void_p * n)(*(job.sampler for job in jobs))
        calls.sampler_pick_each(self.workspace, samplers, n, logits, ids)
        for job, id, row in zip(jobs, ids, rows):
            job.take(id, row[: self.model.shape.vocab_size])

    def _score(self, rows: np.ndarray, runs: list) -> None:
        targets = [id for job, _, wanted in runs for id in job.next_targets(wanted)]
        n = len(targets)
        log_probabilities, best = (c_double * n)(), (c_int * n)()
        calls.log_probabilities(self.workspace, rows.ctypes.data_as(FLOATS),
                                int_array(targets), n, log_probabilities, best)  # fmt: skip
        begin = 0
        for job, _, wanted in runs:
            part = slice(begin, begin + wanted)
            job.take(log_probabilities[part], best[part],
                     rows[part, : self.model.shape.vocab_size])  # fmt: skip
            begin += wanted

    def _after_error(self, jobs: list[Job], error: HeadsError) -> None:
        """The engine does not say whose fault it was: each runs again by itself, and the one that
        fails then gets the error."""
        for job in jobs:
            if job.alone:
                job.error, job.done = error, True
            else:
                job.alone = True
                job.start_over()
            calls.sequence_free(job.sequence)
            job.sequence = None
