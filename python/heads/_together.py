"""Texts that the tasks of an event loop wait for, as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from ._batch import Batch, GenerateJob
from ._native import HeadsError

PARALLEL = 16  # texts at a time
Make = Callable[[], "list[GenerateJob]"]


class Writer(Protocol):
    """What a runner asks of a heads.Model."""

    def _batch(self, jobs: Sequence[GenerateJob], parallel: int) -> Batch: ...


class _Runner:
    """The batch of one event loop and one model. It lives while there are texts to write; passes,
    which take long, are a thread's."""

    def __init__(self, model: Writer):
        self.model = model
        self.batch: Batch | None = None
        self.waiting: dict[GenerateJob, asyncio.Event] = {}  # who is told after a pass
        self.new: list[GenerateJob] = []
        self.gone: list[GenerateJob] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "heads-passes")
        try:
            while self.new or (self.batch and self.batch.jobs):
                new, gone, self.new, self.gone = self.new, self.gone, [], []
                await loop.run_in_executor(thread, self._pass, new, gone)
                for told in self.waiting.values():
                    told.set()
        except Exception as error:  # the model was closed, or a pass failed
            self._end(error)
        finally:
            del _runners[loop, self.model]
            self._end(HeadsError("the event loop has ended"))
            thread.shutdown(wait=False)
            if self.batch:
                self.batch.close()

    def _pass(self, new: list[GenerateJob], gone: list[GenerateJob]) -> None:
        self.batch = self.batch or self.model._batch([], PARALLEL)
        for job in new:
            try:
                self.batch.submit(job)
            except HeadsError as error:
                job.fail(error)
        for job in gone:
            self.batch.cancel(job)
        self.batch.step()

    def _end(self, error: Exception) -> None:
        for job, told in self.waiting.items():
            if not job.done:
                job.fail(error)
            told.set()


_runners: dict[tuple[asyncio.AbstractEventLoop, Writer], _Runner] = {}


@contextmanager
def _at_work(model: Writer, jobs: list[GenerateJob]) -> Generator[asyncio.Event, None, None]:
    """The event is set after each pass. What is not done at the end gives its place back."""
    told, key = asyncio.Event(), (asyncio.get_running_loop(), model)
    runner = _runners.get(key) or _runners.setdefault(key, _Runner(model))
    runner.new += jobs
    runner.waiting.update(dict.fromkeys(jobs, told))
    try:
        yield told
    finally:
        runner.gone += [job for job in jobs if not job.done]
        for job in jobs:
            del runner.waiting[job]


async def _passed(jobs: list[GenerateJob], told: asyncio.Event) -> bool:
    """Waits for a pass; whether all are done."""
    await told.wait()
    told.clear()
    done = all(job.done for job in jobs)
    for job in jobs:
        if job.error:
            raise job.error
    return done


async def _whole(model: Writer, make: Make, one: bool) -> Any:
    jobs = await asyncio.to_thread(make)
    with _at_work(model, jobs) as told:
        while jobs and not await _passed(jobs, told):
            pass
    texts = [job.completion() for job in jobs]
    return texts[0] if one else texts


async def _pieces(model: Writer, make: Make) -> AsyncGenerator[tuple[int, str], None]:
    jobs = await asyncio.to_thread(make)
    with _at_work(model, jobs) as told:
        done = not jobs
        while not done:
            done = await _passed(jobs, told)
            for index, job in enumerate(jobs):
                piece = job.new_text()
                if piece:
                    yield index, piece


async def _of_one(pieces: AsyncGenerator[tuple[int, str], None]) -> AsyncGenerator[str, None]:
    try:
        async for _, piece in pieces:
            yield piece
    finally:
        await pieces.aclose()


def asked(model: Writer, make: Make, stream: bool, one: bool) -> Any:
    """What a task awaits, or goes through if it is a stream. make: the jobs, which takes a while;
    one: the first alone is wanted."""
    if not stream:
        return _whole(model, make, one)
    return _of_one(_pieces(model, make)) if one else _pieces(model, make)
