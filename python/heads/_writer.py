"""The texts that a model writes: whole or in pieces, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import _arguments as arguments
from . import _grammars as grammars
from . import _together as together
from ._adapters import Adapter, Adapters
from ._arguments import Failed, Prompt, Schema, Schemas
from ._batch import CHANCES, Batch, Completion, GenerateJob, Job, Sampling
from ._checkpoint import Checkpoint
from ._native import HeadsError
from ._steering import Steering, Steerings

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class Options(TypedDict, total=False):
        """What generate and chat take by name."""

        stop: str | Sequence[str] | None
        top_k: int | None
        top_p: float | None
        min_p: float | None
        repeat_penalty: float | None

    class ChatOptions(Options, total=False):
        schema: Schema | None
        steer: Steering | None
        adapter: Adapter | None

    class TextOptions(Options, total=False):
        lang: str | Sequence[str | None] | None
        schema: Schemas | None
        steer: Steerings
        adapter: Adapters


Several = Iterable[Prompt]
Messages = Sequence[Mapping[str, str]]
Item = TypeVar("Item")
AnyJob = TypeVar("AnyJob", bound=Job)


def _with_bar(items: Iterable[Item], n: int, progress: bool) -> Iterable[Item]:
    if not progress:
        return items
    from tqdm import tqdm

    return tqdm(items, total=n, unit="text")


def _given(**options: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def fail(failed: Failed | None, place: int, error: HeadsError) -> None:
    """Notes the error of what has this place, or raises it."""
    if failed is None:
        raise error
    failed[place] = error


def made(makers: Iterable[Callable[[], AnyJob]], failed: Failed | None) -> list[AnyJob | None]:
    """The jobs that these make; None: it failed."""
    jobs: list[AnyJob | None] = []
    for place, make in enumerate(makers):
        try:
            jobs.append(make())
        except HeadsError as error:
            fail(failed, place, error)
            jobs.append(None)
    return jobs


class Writer(Checkpoint):
    """What heads.Model writes."""

    @overload
    def generate(
        self,
        prompts: Prompt,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[False] = False,
        parallel: int = 16,
        progress: bool = False,
        **options: Unpack[TextOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Several,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[False] = False,
        parallel: int = 16,
        progress: bool = False,
        failed: Failed | None = None,
        **options: Unpack[TextOptions],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompts: Prompt,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[True],
        **options: Unpack[TextOptions],
    ) -> Generator[str, None, None]: ...

    @overload
    def generate(
        self,
        prompts: Several,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[True],
        parallel: int = 16,
        **options: Unpack[TextOptions],
    ) -> Generator[tuple[int, str], None, None]: ...

    def generate(
        self,
        prompts: Prompt | Several,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stop: str | Sequence[str] | None = None,
        parallel: int = 16,
        stream: bool = False,
        progress: bool = False,
        failed: Failed | None = None,
        lang: str | Sequence[str | None] | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        schema: Schemas | None = None,
        steer: Steerings = None,
        adapter: Adapters = None,
    ) -> Any:
        """What the model adds to a prompt (a Completion), or to each of several (a list), up to
        `parallel` of them at a time. top_k, top_p, min_p, repeat_penalty: as in ./run. Each prompt
        gives what `./run -s SEED` gives for it alone. schema: a JSON schema, as a dict or as JSON,
        that each text keeps to (llguidance), or a list of them, one for each prompt. steer:
        vectors that are added to the stream after layers, or a list likewise. adapter: what
        Model.adapter opened, or a list likewise, with None for the model alone. stream: a
        generator of pieces of text, or of (index, piece) for several prompts. progress: a bar on
        stderr. failed: a dict that takes the error of each prompt that has one, by its place; its
        text is empty and `stopped` "error". Without it the first error is raised.

        An encoder-decoder reads the prompt and writes another text, in the language `lang`, or from
        one to another, "FROM:TO"; or in a list's, one for each prompt. temperature: ./run's, 0
        where the checkpoint says so."""
        stream, progress = arguments.flag("stream", stream), arguments.flag("progress", progress)
        parallel = arguments.whole("parallel", parallel, 1)
        chances = _given(top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty)
        several = arguments.prompts("prompts", prompts)
        each = [prompts] if several is None else several
        failed = arguments.failed(failed, stream)
        makers = self._texts(
            each, max_tokens, temperature, seed, chances, stop, lang, schema, steer, adapter
        )
        if stream:
            pieces = self._stream([make() for make in makers], parallel)
            return (piece for _, piece in pieces) if several is None else pieces
        jobs = made(makers, failed)
        self._run(jobs, parallel, progress, failed)
        texts = [job.completion() if job else Completion.of("", [], "error") for job in jobs]
        return texts[0] if several is None else texts

    @overload
    def agenerate(
        self,
        prompts: Prompt,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[False] = False,
        **options: Unpack[TextOptions],
    ) -> Coroutine[Any, Any, Completion]: ...

    @overload
    def agenerate(
        self,
        prompts: Several,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[False] = False,
        **options: Unpack[TextOptions],
    ) -> Coroutine[Any, Any, list[Completion]]: ...

    @overload
    def agenerate(
        self,
        prompts: Prompt,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[True],
        **options: Unpack[TextOptions],
    ) -> AsyncGenerator[str, None]: ...

    @overload
    def agenerate(
        self,
        prompts: Several,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[True],
        **options: Unpack[TextOptions],
    ) -> AsyncGenerator[tuple[int, str], None]: ...

    def agenerate(
        self,
        prompts: Prompt | Several,
        max_tokens: int = 256,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        lang: str | Sequence[str | None] | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        schema: Schemas | None = None,
        steer: Steerings = None,
        adapter: Adapters = None,
    ) -> Any:
        """generate for asyncio: `await` it, or with stream=True go through it by `async for`. What
        the tasks of an event loop wait for runs as one batch, up to 16 texts at a time; a task that
        is cancelled, or leaves a stream, gives its place back."""
        chances = _given(top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty)
        stream, several = arguments.flag("stream", stream), arguments.prompts("prompts", prompts)
        each = [prompts] if several is None else several

        def make() -> list[GenerateJob]:
            options = (max_tokens, temperature, seed, chances, stop, lang, schema, steer)
            return [make() for make in self._texts(each, *options, adapter)]

        return together.asked(self, make, stream, several is None)

    def _sampling(
        self, answer: bool, temperature: float | None, seed: int, chances: dict[str, Any]
    ) -> Sampling:
        given = {**_given(temperature=temperature), **chances}
        if self.shape.greedy and not given.keys() & CHANCES:
            given["temperature"] = 0.0
        return Sampling.usual(answer, seed=seed, **given)

    def _texts(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int,
        temperature: float | None,
        seed: int,
        chances: dict[str, Any],
        stop: str | Sequence[str] | None,
        lang: str | Sequence[str | None] | None,
        schema: Schemas | None,
        steer: Steerings,
        adapter: Adapters,
    ) -> list[Callable[[], GenerateJob]]:
        """What makes the job of each prompt."""
        self._must_continue()
        sampling = self._sampling(False, temperature, seed, chances)
        most, stops = arguments.whole("max_tokens", max_tokens, 1), arguments.stops(stop)
        sampling.options()
        with_codes, matchers = arguments.with_languages(prompts, lang), {}

        def make(
            prompt: Prompt,
            code: str | None,
            one: Schema | None,
            by: Steering | None,
            adapter: Adapter | None,
        ) -> GenerateJob:
            ids, source = self._begin(self._ids("prompts", prompt), code)
            grammar = None if one is None else grammars.of_schema(one)
            if grammar is not None and grammar not in matchers:
                matchers[grammar] = grammars.matcher(self, grammar)
            copy = grammar and matchers[grammar].deep_copy()
            own = dict(source=source, matcher=copy, steer=by, adapter=adapter)
            return GenerateJob(self, ids, most, sampling, stops, **own)

        n = len(prompts)
        of_texts = {"schema": schema, "steer": steer, "adapter": adapter}
        each = zip(with_codes, *(arguments.of_each(name, x, n) for name, x in of_texts.items()))
        return [partial(make, *text, *own) for text, *own in each]

    @overload
    def chat(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[False] = False,
        no_think: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[True],
        no_think: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Generator[str, None, None]: ...

    def chat(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        no_think: bool = False,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        schema: Schema | None = None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> Any:
        """The answer to a conversation, [{"role": "user", "content": "Hello"}, ..], by the
        checkpoint's chat template, as `./run --messages -s SEED` writes it; temperature=1, top_p=1,
        repeat_penalty=1: by the model's own distribution. schema, steer, adapter: as in generate.
        Errors: the model has none, or it cannot write these."""
        stream = arguments.flag("stream", stream)
        chances = _given(top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty)
        sampling = self._sampling(True, temperature, seed, chances)
        job = self._answer(messages, max_tokens, sampling, stop, no_think, schema, steer, adapter)
        if stream:
            return (piece for _, piece in self._stream([job], 1))
        self._run([job], 1, False)
        return job.completion()

    @overload
    def achat(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[False] = False,
        no_think: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Coroutine[Any, Any, Completion]: ...

    @overload
    def achat(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stream: Literal[True],
        no_think: bool = False,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[str, None]: ...

    def achat(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        temperature: float | None = None,
        seed: int = 0,
        *,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        no_think: bool = False,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        schema: Schema | None = None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> Any:
        """chat for asyncio, as agenerate is generate."""
        chances = _given(top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty)
        sampling = self._sampling(True, temperature, seed, chances)

        def make() -> list[GenerateJob]:
            options = (stop, no_think, schema, steer, adapter)
            return [self._answer(messages, max_tokens, sampling, *options)]

        return together.asked(self, make, arguments.flag("stream", stream), True)

    def _answer(
        self,
        messages: Messages,
        max_tokens: int,
        sampling: Sampling,
        stop: str | Sequence[str] | None,
        no_think: bool,
        schema: Schema | None,
        steer: Steering | None = None,
        adapter: Adapter | None = None,
    ) -> GenerateJob:
        most, stops = arguments.whole("max_tokens", max_tokens, 1), arguments.stops(stop)
        ids = self.chat_ids(messages, no_think=no_think)
        self._check_prompt(ids)
        matcher = self._matcher(schema)
        own = dict(is_chat=True, matcher=matcher, steer=steer, adapter=adapter)
        return GenerateJob(self, ids, most, sampling, stops, **own)

    def _matcher(self, schema: Schema | None) -> Any:
        return None if schema is None else grammars.matcher(self, grammars.of_schema(schema))

    def _batch(self, jobs: Sequence[Job], parallel: int) -> Batch:
        places = min(parallel, self.chunk)
        batch = Batch(self, places, keep=places if self.shape.source_vocab else 0)
        for job in jobs:
            batch.submit(job)
        return batch

    def _run(
        self,
        jobs: Sequence[Job | None],
        parallel: int,
        progress: bool,
        failed: Failed | None = None,
    ) -> None:
        """Runs jobs of heads._batch to their end, up to `parallel` of them at a time. failed: takes
        their errors, by their places; without it the first is raised."""
        there = [job for job in jobs if job]
        with closing(self._batch(there, parallel)) as batch:
            for _ in _with_bar(batch.run(), len(there), progress):
                pass
        for place, job in enumerate(jobs):
            if job and job.error:
                fail(failed, place, job.error)

    def _stream(
        self, jobs: Sequence[GenerateJob], parallel: int
    ) -> Generator[tuple[int, str], None, None]:
        with closing(self._batch(jobs, parallel)) as batch:
            while not all(job.done for job in jobs):
                batch.step()
                for index, job in enumerate(jobs):
                    piece = job.new_text()
                    if job.error:
                        raise job.error
                    if piece:
                        yield index, piece
