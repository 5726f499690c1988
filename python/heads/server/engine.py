"""The server's thread that owns the batch."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Union

from .._adapters import Adapter
from .._batch import Batch, Job
from .._native import HeadsError
from ..model import Model
from .messages import Refused
from .vectors import VectorJob, VectorQueue

AnyJob = Union[Job, VectorJob]
ENDED = "the engine has stopped; the server has to be started again"
CLOSED = "the server is shutting down"
CUT = "the model's file was cut short while it was served; start again with the whole file"


class Bell:
    """Wakes what waits in an event loop, all that a pass wakes by one call: each writes to a
    socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop, self.rings = loop, False
        self.waiting: list[asyncio.Event] = []

    def ring(self, event: asyncio.Event) -> None:
        """From another thread. Errors: RuntimeError, the loop is closed."""
        self.waiting.append(event)
        if self.rings:
            return
        self.rings = True
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            self.rings = False
            raise

    def _wake(self) -> None:
        self.rings = False
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.set()


def _why_not(call: Callable[..., object], texts: list) -> str | None:
    try:
        call(texts)
    except HeadsError as error:
        return str(error)
    return None


class Engine(threading.Thread):
    """Owns the batch: takes jobs, runs passes, and tells who waits after each. What a pass cannot
    do fails its request alone. If the thread ends, what waits and what comes gets an error."""

    adapter: Adapter | None = None  # of an Adapted

    def __init__(
        self,
        model: Model,
        parallel: int,
        queue: int,
        name: str | None = None,
        adapters: dict[str, Adapter] | None = None,
    ):
        super().__init__(name="heads-engine", daemon=True)
        self.model, self.queue_limit = model, queue
        self.model_name = name or Path(model.path).name.removesuffix(".bin")
        self.adapters = adapters or {}  # by their names
        self.batch, self.vectors = Batch(model, parallel, keep=parallel), VectorQueue(model)
        # Why the model does not give what VectorJob.kind names, if it does not.
        no_vectors = _why_not(model.embed, [])
        self.refusals = {"vectors": no_vectors, "tokens": no_vectors}
        self.refusals["words"] = _why_not(model.sparse, [[0]])
        self.listeners: dict[AnyJob, Callable[[], None]] = {}
        self.quiet: dict[AnyJob, bool] = {}  # not `each`: whether its first token was told
        self.bell: Bell | None = None
        self.new: list[AnyJob] = []
        self.gone: list[AnyJob] = []
        self.joining = 0  # jobs on their way from `new` to a queue
        self.closing = self.ended = self.cut = False
        self.file = os.stat(model.file)
        self.wake = threading.Condition()
        self.counts: Counter = Counter()

    @property
    def waiting(self) -> int:
        return self.batch.waiting + len(self.vectors.waiting) + len(self.new) + self.joining

    def check(self) -> None:
        """Raises Refused (503) if the thread has ended, or if the model cannot be read."""
        if self.ended or self.closing or not self._is_whole():
            raise Refused(self.why_not(), status=503)

    def waker(self, event: asyncio.Event) -> Callable[[], None]:
        """A listener that sets an event of the loop that runs."""
        loop = asyncio.get_running_loop()
        if self.bell is None or self.bell.loop is not loop:
            self.bell = Bell(loop)
        return partial(self.bell.ring, event)

    def submit(self, jobs: list[AnyJob], listener, each: bool = True) -> None:
        """listener() is called after each pass, until the jobs are done; not `each`: when one of
        them has its first token or is done. Errors: Refused (429, 503). Jobs that come when none
        waits and a place is free may be any number."""
        with self.wake:
            self.check()
            free = self.batch.parallel - self.batch.running
            waiting = self.waiting
            if (waiting or free < 1) and waiting + len(jobs) > self.queue_limit + free:
                raise Refused("the queue is full; try again later", status=429, code="queue_full")
            for job in jobs:
                self.listeners[job] = listener
                if not each:
                    self.quiet[job] = False
            self.new += jobs
            self.wake.notify()

    def cancel(self, jobs: list[AnyJob]) -> None:
        with self.wake:
            self.gone += [job for job in jobs if job in self.listeners]
            self.wake.notify()

    def close(self) -> None:
        """Ends all jobs, with an error, after the pass that runs."""
        with self.wake:
            self.closing = True
            self.wake.notify()

    def stop(self) -> None:
        self.close()
        self.join()

    def run(self) -> None:
        try:
            while self._take_orders() and self._is_whole():
                self.batch.step()
                self.vectors.step()
                self._tell()
        finally:  # an exception is printed by the thread's hook
            with self.wake:
                self.ended = True
            for job in self.listeners:
                if not job.done:
                    job.fail(HeadsError(self.why_not()))
            self._tell()
            self.batch.close()

    def why_not(self) -> str:
        return CLOSED if self.closing else CUT if self.cut else ENDED

    def _is_whole(self) -> bool:
        """What a mapped file has lost ends the process when it is read: most files that become
        shorter do so while nothing is."""
        try:
            now = os.stat(self.model.file)
        except OSError:  # deleted or renamed, it is still mapped
            return True
        cut = os.path.samestat(now, self.file) and now.st_size < self.file.st_size
        if cut and not self.cut:
            print(f"heads: {self.model_name}: {CUT}", file=sys.stderr, flush=True)
        self.cut |= cut
        return not self.cut

    def _tell(self) -> None:
        told = list(self.listeners.items())
        for listener in {listener for job, listener in told if self._has_news(job)}:
            try:
                listener()
            except RuntimeError:  # nobody listens any more: the event loop is closed
                self.cancel([job for job, its in told if its is listener])
        for job, _ in told:
            if job.done:
                self._count(job)
                self._forget(job)

    def _has_news(self, job: AnyJob) -> bool:
        if job.done or job not in self.quiet:
            return True
        first = not self.quiet[job] and bool(getattr(job, "tokens", None))
        self.quiet[job] |= first
        return first

    def _forget(self, job: AnyJob) -> bool:
        """Whether it was known."""
        self.quiet.pop(job, None)
        return self.listeners.pop(job, None) is not None

    def _queue_of(self, job: AnyJob) -> Union[Batch, VectorQueue]:
        return self.vectors if isinstance(job, VectorJob) else self.batch

    def _take_orders(self) -> bool:
        """Waits for something to do; False: the end."""
        with self.wake:
            while not (
                self.new or self.gone or self.closing or self.batch.jobs or self.vectors.waiting
            ):
                self.wake.wait()
            new, gone, self.joining = self.new, self.gone, len(self.new)
            self.new, self.gone = [], []
        for job in new:  # without the lock, which the event loop takes
            try:
                self._queue_of(job).submit(job)
            except HeadsError as error:
                job.fail(error)
            except MemoryError:
                job.fail(HeadsError("no memory for the request"))
            self.joining -= 1
        for job in gone:
            if self._forget(job):
                self._queue_of(job).cancel(job)
                self.counts["cancelled"] += 1
        return not self.closing

    def _count(self, job: AnyJob) -> None:
        if isinstance(job, VectorJob):
            texts = [text.ids for text in job.texts]
        else:
            texts = [job.source or job.prompt]
        self.counts["texts"] += len(texts)
        self.counts["prompt_tokens"] += sum(map(len, texts))
        self.counts["generated_tokens"] += len(getattr(job, "tokens", ()))


class Adapted:
    """An engine under the name of one of its adapters, which all that comes this way has."""

    def __init__(self, engine: Engine, name: str):
        self.engine, self.adapter = engine, engine.adapters[name]
        self.model_name = f"{engine.model_name}:{name}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def by_names(engines: list[Engine]) -> dict[str, Engine | Adapted]:
    """What a request's `model` chooses from."""
    found: dict[str, Engine | Adapted] = {}
    for engine in engines:
        found[engine.model_name] = engine
        for adapted in (Adapted(engine, name) for name in engine.adapters):
            found[adapted.model_name] = adapted
    return found
