"""A model, and what one can ask it."""

from __future__ import annotations

import os
import reprlib
import threading
import time
import weakref
from contextlib import closing
from ctypes import byref
from operator import index
from typing import Iterable, Iterator, Sequence, Union

import numpy as np

from ._attention import Attention, attention
from ._batch import Batch, Decoder, GenerateJob, Sampling, ScoreJob, read_source
from ._native import FLOATS, INTS, TYPES, ChatOptions, ContextError, FileError, HeadsError
from ._native import InputError, KvPlan, Message, Text, WorkspaceOptions, calls, int_array, taken

Prompt = Union[str, Sequence[int]]  # a text, or its ids
MAX_INT = 2**31


class Completion(str):
    """What a model added to a prompt: a str that also knows its `tokens` (ids) and why it
    `stopped`: "eos", "max_tokens", "stop" or "context"."""

    tokens: list[int]
    stopped: str


def _are_several(prompts) -> bool:
    """Whether these are prompts, and not a text or the ids of one."""
    ids = isinstance(prompts, (list, tuple, np.ndarray)) and len(prompts) and isinstance(
        prompts[0], (int, np.integer))  # fmt: skip
    return isinstance(prompts, Iterable) and not isinstance(prompts, str) and not ids


def _id_list(ids) -> list[int]:
    try:
        found = [index(id) for id in ids]
    except TypeError:
        raise InputError(f"expected a text or a list of ids, found {reprlib.repr(ids)}") from None
    for id in found:
        if not 0 <= id < MAX_INT:
            raise InputError(f"{id} is no token of a model")
    return found


def _c_int(name: str, value: int | None) -> int:
    """For an option of which 0 means the default, as None does here."""
    if not 0 <= (value or 0) < MAX_INT:
        raise InputError(f"{name} is {value}, expected 1 to {MAX_INT - 1}")
    return value or 0


def _positive(n: int) -> int:
    if n < 1:
        raise InputError(f"expected a whole number from 1, found {n}")
    return int(n)


def _each(lang: str | Sequence[str] | None, n: int) -> list[str | None]:
    """The language of each of n texts."""
    langs = [lang] * n if lang is None or isinstance(lang, str) else list(lang)
    if len(langs) != n:
        raise InputError(f"lang: {len(langs)} languages for {n} prompts")
    return langs


def _stops(stop: str | Sequence[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else list(stop or [])
    if "" in stops:
        raise InputError("stop: a stop string cannot be empty")
    return stops


def _threads_of_environment() -> int:
    """What schedulers such as Ray set, so that their workers do not spin on each other's cores."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(first) if first.isdigit() else 0


def _with_bar(items: Iterable, n: int, progress: bool) -> Iterable:
    if not progress:
        return items
    from tqdm import tqdm

    return tqdm(items, total=n, unit="text")


def completion(job: GenerateJob) -> Completion:
    text = Completion(job.bytes.decode("utf-8", "replace"))
    text.tokens, text.stopped = job.tokens, job.stopped
    return text


class Model:
    """A checkpoint that `heads.export` or export.py made, mapped, with threads to run it on.

    threads: the physical cores that this process may use, or OMP_NUM_THREADS. kv: the type of the
    cached keys and values, "f16", "f32", "q8" or "q4", or a pair of them. context: positions of
    each text; the model's. chunk: most tokens of a pass. isa: kernels ("scalar", "avx2", ..); the
    best.

    Any number of threads may use it; they take turns, a pass each. It can be pickled (as its path
    and options) and used after a fork(), where it opens the file again. `with` or close() frees it.
    What a text gives has the bits of ./run. Errors are a HeadsError with the engine's sentence:
    FileError (the checkpoint), ContextError (too long a text), InputError (what is refused).
    """

    def __init__(self, path: str | os.PathLike, threads: int | None = None,
                 kv: str | tuple[str, str] = "f16", context: int | None = None, chunk: int = 128,
                 isa: str | None = None):  # fmt: skip
        self.path = os.fspath(path)
        self._options = (threads, kv, context, chunk, isa)
        self._open()
        _open_models.add(self)

    def _open(self) -> None:
        threads, _, context, self.chunk, isa = self._options
        self.lock = threading.RLock()
        self.users: weakref.WeakSet = weakref.WeakSet()  # sessions and batches, which end before it
        self._model = self.tokenizer = self._workspace = self._chat = None
        options = self._workspace_options(context)
        options.chunk = options.logit_rows = _c_int("chunk", self.chunk)
        options.n_threads = _c_int("threads", threads) or _threads_of_environment()
        options.isa = isa.encode() if isa else None
        self._model = calls.model_open(os.fsencode(self.path))
        self.shape = calls.model_shape(self.model)
        try:
            self.tokenizer = calls.tokenizer_new(self.model)
        except FileError as error:
            self._no_tokenizer = error
        try:
            self._workspace = calls.workspace_new(self.model, byref(options))
        except HeadsError:
            self.close()
            raise
        self.context = calls.workspace_context(self.workspace)
        self.stride = calls.logit_stride(self.workspace)  # floats from a row of logits to the next

    def _workspace_options(self, context: int | None) -> WorkspaceOptions:
        kv = self._options[1]
        k_type, v_type = (kv, kv) if isinstance(kv, str) else kv
        for kind in (k_type, v_type):
            if kind not in TYPES:
                raise InputError(f"kv: {kind!r} is no type of a cache, expected f16, f32, q8 or q4")
        return WorkspaceOptions(context=_c_int("context", context), k_type=TYPES[k_type],
                                v_type=TYPES[v_type])  # fmt: skip

    def close(self) -> None:
        """Frees the model. It, its sessions and its streams raise HeadsError from then on."""
        with self.lock:
            for user in list(self.users):
                user.close()
            calls.chat_free(self._chat)
            calls.workspace_free(self._workspace)
            calls.tokenizer_free(self.tokenizer)
            calls.model_close(self._model)
            self._model = self.tokenizer = self._workspace = self._chat = None
        _open_models.discard(self)

    @property
    def model(self) -> int:
        """heads.h's handle, as is `workspace`."""
        return self._handle(self._model)

    @property
    def workspace(self) -> int:
        return self._handle(self._workspace)

    def _handle(self, handle: int | None) -> int:
        if not handle:
            raise HeadsError(f"{self!r} is closed")
        return handle

    def is_of(self, workspace: int) -> bool:
        """Whether the workspace is this model's still: no close() and no fork() came between."""
        return workspace == self._workspace

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_workspace", None):
            self.close()

    def __reduce__(self):
        return Model, (self.path, *self._options)

    def __repr__(self) -> str:
        return f"heads.Model({self.path!r})"

    # ---- text and ids ----

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        """The ids of a text; special: with BOS and the like around it, where the model wants
        them."""
        data = text.encode() if isinstance(text, str) else text
        ids = INTS()
        n = calls.encode(self._text(), data, len(data), special, byref(ids))
        return taken(ids, n)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids; skip_special: tokens such as BOS give none."""
        self._text()
        with closing(Decoder(self, skip_special)) as decoder:
            return b"".join([*map(decoder.push, _id_list(ids)), decoder.finish()]).decode()

    def eos_ids(self) -> list[int]:
        """The ids that end a text."""
        tokenizer = self._text()
        return [id for id in range(self.shape.vocab_size) if calls.is_eos(tokenizer, id)]

    def token_text(self, id: int, skip_special: bool = False) -> str:
        """A token inside of a text, with the space that may belong to it."""
        self._text()
        with closing(Decoder(self, skip_special)) as decoder:
            decoder.push(id)  # the first one of a text may lose its space
            return (decoder.push(id) + decoder.finish()).decode()

    def _text(self) -> int:
        if self.model and not self.tokenizer:
            raise self._no_tokenizer
        return self.tokenizer

    def _ids(self, prompt: Prompt) -> list[int]:
        ids = self.encode(prompt) if isinstance(prompt, str) else _id_list(prompt)
        self.check_prompt(ids, self.shape.source_vocab)
        return ids

    def check_prompt(self, ids, vocab_size: int = 0) -> None:
        """Raises InputError for what cannot be run. vocab_size: 0, the model's."""
        vocab_size = vocab_size or self.shape.vocab_size
        if len(ids) == 0:
            raise InputError("the prompt is empty, and nothing is put before it")
        if len(ids) > self.context:
            raise ContextError(f"the prompt has {len(ids)} tokens and the context has room for "
                               f"{self.context}")  # fmt: skip
        for id in (min(ids), max(ids)):
            if not 0 <= id < vocab_size:
                raise InputError(f"{id} is no token of this model; its ids are 0 to "
                                 f"{vocab_size - 1}")  # fmt: skip

    def must_continue(self) -> None:
        """Raises InputError if the model is an encoder."""
        if self.shape.encoder:
            raise InputError("this model is an encoder: it reads texts as a whole and continues "
                             "none; it is there for their vectors")  # fmt: skip

    def must_have_one_text(self, what: str) -> None:
        """Raises InputError if the model is an encoder, or reads one text and writes another."""
        self.must_continue()
        if self.shape.source_vocab:
            raise InputError("this model is an encoder-decoder: it reads a text and writes another, "
                             f"so {what} means nothing for it")  # fmt: skip

    # ---- models that read one text and write another ----

    def must_fit_source(self, source: Prompt | None) -> None:
        """Raises InputError where an encoder-decoder has none, or another model one."""
        if source is None and self.shape.source_vocab:
            raise InputError("this model is an encoder-decoder, so it needs a source")
        if source is not None and not self.shape.source_vocab:
            raise InputError("this model is no encoder-decoder, so source means nothing for it")

    def begin(self, ids: list[int], lang: str | None = None) -> tuple[list[int], list[int] | None]:
        """What a text begins with after a prompt, and what an encoder reads before: the prompt and
        None, or the first tokens of an encoder-decoder's text and the prompt."""
        if not self.shape.source_vocab:
            if lang:
                raise InputError("this model is no encoder-decoder, so lang means nothing for it")
            return ids, None
        source, start = int_array(ids), INTS()
        code = lang.encode() if lang else None
        calls.source_language(self.model, self.tokenizer, code, source, len(ids))
        n = calls.start_tokens(self.model, self.tokenizer, code, byref(start))
        return taken(start, n), list(source)

    def target(self, text: Prompt) -> list[int]:
        """The ids of a text that an encoder-decoder writes, without those that it begins with."""
        if isinstance(text, str) and self.shape.target_ids:
            raise InputError("what this model writes has ids of its own, which its tokenizer cannot "
                             "make of a text; give ids")  # fmt: skip
        return self.encode(text, special=False) if isinstance(text, str) else _id_list(text)

    # ---- generation ----

    def generate(self, prompts: Prompt | Iterable[Prompt], max_tokens: int = 64,
                 temperature: float | None = None, seed: int = 0,
                 stop: str | Sequence[str] | None = None, parallel: int = 16,
                 stream: bool = False, progress: bool = False,
                 lang: str | Sequence[str] | None = None, **sampling):  # fmt: skip
        """What the model adds to a prompt (a Completion), or to each of several (a list), up to
        `parallel` of them at a time. sampling: top_k, top_p, min_p, repeat_penalty, as in ./run.
        Each prompt gives what `./run -s SEED` gives for it alone. stream: a generator of pieces of
        text, or of (index, piece) for several prompts. progress: a bar on stderr.

        An encoder-decoder reads the prompt and writes another text, in the language `lang`, or from
        one to another, "FROM:TO"; or in those of a list, one for each prompt. temperature: 0.8, or
        0 where the checkpoint says so."""
        self.must_continue()
        several = _are_several(prompts)
        if temperature is None:
            temperature = 0.0 if self.shape.greedy and not sampling else 0.8
        chosen = Sampling(temperature=temperature, seed=seed, **sampling)
        prompts = list(prompts) if several else [prompts]
        jobs = [self._generate_job(p, _positive(max_tokens), chosen, _stops(stop), code)
                for p, code in zip(prompts, _each(lang, len(prompts)))]  # fmt: skip
        if stream:
            pieces = self._stream(jobs, parallel)
            return pieces if several else (piece for _, piece in pieces)
        self.run(jobs, parallel, progress)
        texts = [completion(job) for job in jobs]
        return texts if several else texts[0]

    def _generate_job(self, prompt: Prompt, max_tokens: int, sampling: Sampling, stop: list[str],
                      lang: str | None) -> GenerateJob:  # fmt: skip
        ids, source = self.begin(self._ids(prompt), lang)
        return GenerateJob(self, ids, max_tokens, sampling, stop, source=source)

    def chat(self, messages: list[dict], max_tokens: int = 1024, temperature: float = 0.8,
             seed: int = 0, stop: str | Sequence[str] | None = None, stream: bool = False,
             no_think: bool = False, **sampling):  # fmt: skip
        """The answer to a conversation, [{"role": "user", "content": "Hello"}, ..], by the
        checkpoint's chat template. Errors: the model has none, or it cannot write these."""
        chosen = Sampling(temperature=temperature, seed=seed, **sampling)
        ids = self.chat_ids(messages, no_think=no_think)
        self.check_prompt(ids)
        job = GenerateJob(self, ids, _positive(max_tokens), chosen, _stops(stop), is_chat=True)
        if stream:
            return (piece for _, piece in self._stream([job], 1))
        self.run([job], 1, False)
        return completion(job)

    def chat_ids(self, messages: list[dict], answer: bool = True,
                 no_think: bool = False) -> list[int]:  # fmt: skip
        """The ids of a conversation, and of the beginning of an answer."""
        self.must_have_one_text("a conversation")
        array = (Message * len(messages))()
        for slot, message in zip(array, messages):
            if set(message) != {"role", "content"}:
                raise InputError(f"a message has a role and a content, found {sorted(message)}")
            content = message["content"].encode()
            slot.role, slot.content = message["role"].encode(), content
            slot.content_len = len(content)
        clock = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
        if not clock:
            clock = int(time.time()) + time.localtime().tm_gmtoff
        ids = INTS()
        options = ChatOptions(answer, no_think, clock)
        n = calls.chat_encode(self._template(), self._text(), array, len(array), byref(options),
                              byref(ids))  # fmt: skip
        return taken(ids, n)

    def chat_end(self) -> int:
        """The id that ends an answer besides EOS; -1: none."""
        return calls.chat_end(self._template(), self._text())

    def _template(self) -> int:
        with self.lock:
            if not self._chat:
                self._chat = calls.chat_new(self.model)
        return self._chat

    def _batch(self, jobs: list, parallel: int) -> Batch:
        batch = Batch(self, min(_positive(parallel), self.chunk))
        for job in jobs:
            batch.submit(job)
        return batch

    def run(self, jobs: list, parallel: int, progress: bool) -> None:
        """Runs jobs of heads._batch to their end, up to `parallel` of them at a time. Errors: the
        first that a job has."""
        with closing(self._batch(jobs, parallel)) as batch:
            for _ in _with_bar(batch.run(), len(jobs), progress):
                pass
        for job in jobs:
            if job.error:
                raise job.error

    def _stream(self, jobs: list, parallel: int) -> Iterator[tuple[int, str]]:
        with closing(self._batch(jobs, parallel)) as batch:
            while not all(job.done for job in jobs):
                batch.step()
                for index, job in enumerate(jobs):
                    piece = job.new_text()
                    if job.error:
                        raise job.error
                    if piece:
                        yield index, piece

    # ---- what it says of texts that are given ----

    def score(self, contexts: Sequence[Prompt], continuations: Sequence[Prompt],
              parallel: int = 16, progress: bool = False,
              lang: str | Sequence[str] | None = None) -> list[tuple[float, bool]]:  # fmt: skip
        """For each pair, the natural logarithm of the probability of the continuation after its
        context, and whether each of its tokens was the most likely one. Contexts that begin alike
        are run once. Texts are cut into tokens together; ids are taken as they are.

        An encoder-decoder reads the context, and the continuation is what it writes, after the
        tokens that its texts begin with; no token is put after it. lang: as in generate."""
        self.must_continue()
        if len(contexts) != len(continuations):
            raise InputError(f"score: {len(contexts)} contexts and {len(continuations)} "
                             "continuations; expected as many of both")  # fmt: skip
        jobs = [self._score_job(*pair) for pair in
                zip(contexts, continuations, _each(lang, len(contexts)))]  # fmt: skip
        self.run(jobs, parallel, progress)
        return [(sum(job.log_probabilities), all(job.greedy)) for job in jobs]

    def _score_job(self, context: Prompt, continuation: Prompt, lang: str | None) -> ScoreJob:
        if not self.shape.source_vocab and not lang:
            return ScoreJob(*self._pair(context, continuation))
        start, source = self.begin(self._ids(context), lang)
        ids = self.target(continuation)
        if not ids:
            raise InputError("score: a continuation has at least one token")
        self.check_prompt(start + ids[:-1])
        self.check_prompt(ids[-1:])
        return ScoreJob(start + ids, len(ids), source=source)

    def _pair(self, context: Prompt, continuation: Prompt) -> tuple[list[int], int]:
        """The ids of both, and how many of them are the continuation's."""
        if isinstance(context, str) != isinstance(continuation, str):
            raise InputError("score: a context and its continuation are both texts or both ids")
        if isinstance(context, str):
            begin = self.encode(context.rstrip())  # the space belongs to the next token
            ids = self.encode(context + continuation)
        else:
            begin = _id_list(context)
            ids = begin + _id_list(continuation)
        if not begin or len(ids) <= len(begin):
            raise InputError("score: a context and a continuation have at least one token each")
        self.check_prompt(ids[:-1])
        self.check_prompt(ids[-1:])
        return ids, len(ids) - len(begin)

    def logits(self, ids: Prompt, source: Prompt | None = None,
               lang: str | None = None) -> np.ndarray:  # fmt: skip
        """float32 [tokens][vocab_size]: row i is what the model expects after token i. source,
        lang: as in session."""
        with self.session(source=source, lang=lang) as session:
            return session.feed(ids, all_rows=True)

    def perplexity(self, text: str) -> float:
        """As ./run --ppl: in windows of the context, each begun with the tokenizer's BOS."""
        self.must_have_one_text("perplexity")
        begin, ids = self.encode(""), self.encode(text, special=False)
        size = self.context - len(begin)
        windows = [begin + ids[at : at + size] for at in range(0, len(ids), size)]
        jobs = [ScoreJob(w, len(w) - max(1, len(begin))) for w in windows
                if len(w) > max(1, len(begin))]  # fmt: skip
        if not jobs:
            raise InputError("perplexity: at least two tokens are needed")
        self.run(jobs, 1, False)
        scores = [x for job in jobs for x in job.log_probabilities]
        return float(np.exp(-np.mean(scores)))

    def attention(self, text: Prompt, max_bytes: int = 1 << 30, source: Prompt | None = None,
                  lang: str | None = None) -> Attention:  # fmt: skip
        """What each token of a text, or of ids, looks at in every head: see Attention. The weights
        are those of ./run --heads, and take 4 n_layers n_heads n^2 bytes for n tokens. source,
        lang: as in session; a text then begins as the model's texts do, and ids with the first
        token. Errors: more than max_bytes."""
        self.must_fit_source(source)
        start, read = self.begin([] if source is None else self._ids(source), lang)
        if isinstance(text, str):
            text = self.encode(text) if source is None else start + self.target(text)
        ids = _id_list(text)
        self.check_prompt(ids)
        with self.lock:
            return attention(self, read or [], ids, max_bytes)

    # ---- vectors of texts ----

    def embed(self, texts: Prompt | Iterable[Prompt]) -> np.ndarray:
        """The vector of a text, float32 [n_embd], or of each of several, [texts][n_embd]: pooled
        as the checkpoint says, as by ./run --embed. Errors: it does not say how."""
        several = _are_several(texts)
        arrays = [int_array(self.text_ids(t)) for t in (texts if several else [texts])]
        array = (Text * len(arrays))(*(Text(ids, len(ids)) for ids in arrays))
        vectors = np.empty((len(arrays), self.shape.n_embd), np.float32)
        options = self._workspace_options(None)
        options.chunk, options.isa = self.chunk, calls.workspace_isa(self.workspace)
        with self.lock:
            options.threads_of = self.workspace
            calls.embed(self.model, byref(options), array, len(array),
                        vectors.ctypes.data_as(FLOATS))  # fmt: skip
        return vectors if several else vectors[0]

    def text_ids(self, text: Prompt) -> list[int]:
        """The ids of a text of which a vector is wanted, cut where the checkpoint says."""
        if not isinstance(text, str):
            return _id_list(text)
        ids, data = INTS(), text.encode()
        n = calls.text_ids(self.model, self._text(), data, len(data), byref(ids))
        return taken(ids, n)

    # ---- the model ----

    def kv(self, context: int | None = None) -> dict:
        """Bytes that a text's cache takes: per token (until a sliding window is full), the state
        that does not grow, and all that is reserved for the context."""
        plan, options = KvPlan(), self._workspace_options(context or self.context)
        calls.model_kv_plan(self.model, byref(options), byref(plan))
        return {"context": options.context, "bytes_per_token": plan.bytes_per_token,
                "state": plan.state, "reserved": plan.reserved}  # fmt: skip

    def info(self) -> dict:
        """The model's shape, and how it is run."""
        shape = {name: getattr(self.shape, name) for name, _ in self.shape._fields_}
        return {"path": self.path, **shape, "encoder": bool(self.shape.encoder),
                "context": self.context, "threads": calls.workspace_threads(self.workspace),
                "isa": calls.workspace_isa(self.workspace).decode()}  # fmt: skip

    def session(self, path: str | os.PathLike | None = None, source: Prompt | None = None,
                lang: str | None = None) -> Session:  # fmt: skip
        """An empty text, or the one that Session.save wrote to a file. An encoder-decoder first
        reads a source, which the file has too; lang: as in generate."""
        if path is not None:
            if source is not None or lang:
                raise InputError("a saved session has its source and its language")
            with self.lock:
                return Session(self, calls.sequence_load(self.workspace, os.fsencode(path)))
        self.must_fit_source(source)
        start, ids = self.begin([] if source is None else self._ids(source), lang)
        with self.lock:
            session = Session(self, calls.sequence_new(self.workspace, True), start)
            if ids:
                read_source(self.workspace, session._handle(), ids)
        return session


class Session:
    """A text in its KV cache, which can be fed, forked, rewound and saved. One thread at a time."""

    def __init__(self, model: Model, sequence: int, start: list[int] | None = None):
        self.model, self._sequence, self._workspace = model, sequence, model.workspace
        self._start = start  # of an encoder-decoder, what its text begins with
        model.users.add(self)

    def _handle(self) -> int:
        if not self._sequence or not self.model.is_of(self._workspace):
            raise HeadsError("this session is closed, or its model is")
        return self._sequence

    def feed(self, text: Prompt, all_rows: bool = False) -> np.ndarray:
        """Runs more of the text; what the model expects next, float32 [vocab_size], or after each
        of the tokens, [tokens][vocab_size]. A text is cut into tokens by itself, with BOS only at
        the beginning of a session; there, what an encoder-decoder's texts begin with. Errors,
        before anything runs: ContextError, InputError."""
        if isinstance(text, str) and self.model.shape.source_vocab:
            text = [*(self._first() if len(self) == 0 else []), *self.model.target(text)]
        elif isinstance(text, str):
            text = self.model.encode(text, special=len(self) == 0)
        ids = _id_list(text)
        self.model.check_prompt(ids)
        if len(self) + len(ids) > self.model.context:
            raise ContextError(f"{len(ids)} tokens after {len(self)} do not fit into a context of "
                               f"{self.model.context}")  # fmt: skip
        model, rows = self.model, []
        with model.lock:
            if len(self) == 0:
                calls.sequence_expect(self._handle(), len(ids))
            for at in range(0, len(ids), model.chunk):
                piece = ids[at : at + model.chunk]
                n = len(piece) if all_rows else int(at + len(piece) == len(ids))
                logits = calls.forward(self._handle(), int_array(piece), len(piece), n)
                if n:
                    array = np.ctypeslib.as_array(logits, (n, model.stride))
                    rows.append(array[:, : model.shape.vocab_size].copy())
        return np.concatenate(rows) if all_rows else rows[0][0]

    def fork(self, n: int | None = None) -> Session:
        """Another session that begins with the first n tokens of this one (all of them)."""
        with self.model.lock:
            n = len(self) if n is None else n
            return Session(self.model, calls.sequence_fork(self._handle(), n), self._start)

    def _first(self) -> list[int]:
        if self._start is None:
            raise InputError("a saved session does not say in which language it began; give ids")
        return self._start

    def rewind(self, n: int) -> None:
        """Forgets all tokens but the first n. Errors: a sliding window or a mixer's state has
        forgotten what comes next; forks share more."""
        with self.model.lock:
            calls.sequence_rewind(self._handle(), n)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokens and their cache to a file that Model.session maps."""
        with self.model.lock:
            calls.sequence_save(self._handle(), os.fsencode(path))

    @property
    def tokens(self) -> list[int]:
        with self.model.lock:
            return calls.sequence_tokens(self._handle())[: len(self)]

    def __len__(self) -> int:
        return calls.sequence_length(self._handle())

    def close(self) -> None:
        """Frees the cache."""
        with self.model.lock:
            if self._sequence and self.model.is_of(self._workspace):
                calls.sequence_free(self._sequence)
            self._sequence = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


_open_models: weakref.WeakSet[Model] = weakref.WeakSet()


def _reopen_in_child() -> None:
    """A child of fork() has none of the threads and must leave its parent's workspaces alone."""
    for model in _open_models:
        model._open()


os.register_at_fork(after_in_child=_reopen_in_child)
