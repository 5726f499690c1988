"""A checkpoint that is open: its handles, whose turn it is, and its texts as ids."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p, create_string_buffer, string_at
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import _arguments as arguments
from ._arguments import KvType, Prompt
from ._export import checkpoint_of
from ._native import (
    INTS,
    TYPES,
    BatchOptions,
    ChatOptions,
    ContextError,
    FileError,
    Handle,
    HeadsError,
)
from ._native import InputError, Message, WorkspaceOptions, calls, int_array, taken

Opener = TypeVar("Opener", bound="Checkpoint")


def _threads_of_environment() -> int:
    """What schedulers such as Ray set, so that their workers do not spin on each other's cores."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(first) if first.isdecimal() and int(first) < arguments.MAX_INT else 0


class Decoder:
    """From ids to text, one at a time: what is handed out never ends inside a character."""

    def __init__(self, tokenizer: Handle, skip_special: bool):
        decoder = calls.decoder_new(tokenizer, skip_special)
        self._decoder = Handle(decoder, calls.decoder_free, tokenizer)

    def push(self, id: int) -> bytes:
        return self._text(calls.decoder_push, id)

    def finish(self) -> bytes:
        return self._text(calls.decoder_finish)

    def _text(self, call, *id: int) -> bytes:
        text, size = c_void_p(), c_size_t()
        call(self._decoder, *id, byref(text), byref(size))
        return string_at(text, size.value) if size.value else b""


GUESSES = 3  # of a pass, by layers that the model has for it, as ./run


@dataclass(eq=False)
class Opened:
    """The handles of an open model, and the lock that passes take. users: sessions, batches
    and adapters."""

    model: Handle
    tokenizer: Handle | None
    workspace: Handle
    chat: Handle | None = None
    draft: Handle | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    users: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    adapted: tuple[Handle | None, float] = (
        None,
        0.0,
    )  # of what is read in this turn: _adapters.turn


def _check_ids(ids: Sequence[int], size: int) -> None:
    for id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= id < size:
            raise InputError(f"{id} is no token of this model; its ids are 0 to {size - 1}")


class Checkpoint:
    """What heads.Model says of opening, sharing and closing, and its texts as ids."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: int | None = None,
        kv: KvType | tuple[KvType, KvType] = "f16",
        context: int | None = None,
        chunk: int = 128,
        isa: str | None = None,
        lookup: int = 0,
        draft: str | os.PathLike[str] | None = None,
        guess: int | None = None,
    ):
        self.path: str = arguments.path("path", path)
        file = checkpoint_of(self.path)
        self.file: str = os.path.abspath(file)  # the checkpoint, wherever the process goes
        if draft is not None:
            draft = os.path.abspath(checkpoint_of(arguments.path("draft", draft)))
        self._options = (threads, kv, context, chunk, isa, lookup, draft, guess)
        self._open(file)
        _open_models.add(self)

    def _open(self, path: str | None = None) -> None:
        """path: as it was given, which errors then say."""
        threads, _, context, chunk, isa, lookup, draft, guess = self._options
        self._opened: Opened | None = None
        self._warned = False  # of a text that was cut
        self._why_closed = f"heads.Model({self.path!r}) is closed"
        options = self._workspace_options(context)
        self.chunk: int = arguments.whole("chunk", chunk, 1)
        options.chunk = options.logit_rows = self.chunk
        options.n_threads = arguments.default_or_whole("threads", threads)
        options.n_threads = options.n_threads or _threads_of_environment()
        self._lookup = arguments.whole("lookup", lookup, 0)
        options.isa = None if isa is None else arguments.c_string("isa", isa)
        model = Handle(calls.model_open(os.fsencode(path or self.file)), calls.model_close)
        self.shape: Any = calls.model_shape(model)
        if self.shape.encoder:  # a text is one pass, whatever its length
            options.logit_rows = max(self.chunk, options.context or self.shape.context)
        tokenizer = None
        try:
            tokenizer = Handle(calls.tokenizer_new(model), calls.tokenizer_free, model)
        except FileError as error:
            self._no_tokenizer = str(error)
        workspace = calls.workspace_new(model, byref(options))
        workspace = Handle(workspace, calls.workspace_free, model)
        self.context: int = calls.workspace_context(workspace)
        self.stride: int = calls.logit_stride(workspace)  # floats from a row of logits to the next
        if guess is None:
            guess = 0 if lookup or draft is not None or not calls.guess_layers(model) else GUESSES
        calls.workspace_guess(workspace, arguments.whole("guess", guess, 0))
        self._opened = Opened(model, tokenizer, workspace)
        if draft is not None:
            self._opened.draft = self._open_draft(draft, workspace)

    def _open_draft(self, path: str, workspace: Handle) -> Handle:
        """A workspace of the draft model. Errors: it has other tokens."""
        options = self._workspace_options(self.context)
        options.threads_of, options.logit_rows = workspace.pointer, 1
        options.isa = calls.workspace_isa(workspace)
        model = Handle(calls.model_open(os.fsencode(path)), calls.model_close)
        options.context = min(self.context, calls.model_shape(model).context)
        found = calls.workspace_new(model, byref(options))
        found = Handle(found, calls.workspace_free, model, workspace)
        tried = BatchOptions(1, 0, None, found.pointer)
        Handle(calls.batch_new(workspace, byref(tried)), calls.batch_free, workspace, found)
        return found

    def _workspace_options(self, context: int | None) -> WorkspaceOptions:
        kv = self._options[1]
        kinds = (kv, kv) if isinstance(kv, str) else kv
        pair = isinstance(kinds, (tuple, list)) and len(kinds) == 2
        if not pair or not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
            raise arguments.refusal("kv", "f16, f32, q8 or q4, or a pair of these", kv)
        k_type, v_type = (TYPES[kind] for kind in kinds)
        context = arguments.default_or_whole("context", context)
        return WorkspaceOptions(context=context, k_type=k_type, v_type=v_type)

    def _options_beside(self, context: int | None, opened: Opened) -> WorkspaceOptions:
        """Of a workspace for one call, which has the threads and kernels of the model's own."""
        options = self._workspace_options(context)
        options.threads_of = opened.workspace.pointer
        options.isa = calls.workspace_isa(opened.workspace)
        return options

    def close(self) -> None:
        """Frees the model, when the passes and calls of other threads have ended. It, its sessions
        and its streams raise HeadsError from then on."""
        opened = self._opened
        if opened:
            with opened.lock:
                for user in list(opened.users):
                    user.close()
                self._opened = None
        _open_models.discard(self)

    @property
    def _handles(self) -> Opened:
        """The handles, which live on while a call has them, even if the model is closed."""
        opened = self._opened
        if not opened:
            raise HeadsError(self._why_closed)
        return opened

    @contextmanager
    def _turn(self) -> Iterator[Opened]:
        """The handles, for a pass: while it goes on, no other does, and nobody closes the model."""
        opened = self._handles
        with opened.lock:
            if opened is not self._opened:
                raise HeadsError(self._why_closed)
            yield opened

    def __enter__(self: Opener) -> Opener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self: Opener) -> Opener:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)  # which waits for a pass

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, *self._options)

    def __repr__(self) -> str:
        closed = "" if self._opened else ", closed"
        return f"<heads.Model {self.path!r}{closed}>"

    # ---- text and ids ----

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        """The ids of a text; special: with BOS and the like around it, where the model wants
        them."""
        data = text if isinstance(text, bytes) else arguments.utf8("text", text)
        special, ids = arguments.flag("special", special), INTS()
        return taken(ids, calls.encode(self._text(), data, len(data), special, byref(ids)))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids; skip_special: tokens such as BOS give none."""
        decoder = Decoder(self._text(), arguments.flag("skip_special", skip_special))
        pieces = [decoder.push(self._known(id)) for id in arguments.id_list("ids", ids)]
        return b"".join([*pieces, decoder.finish()]).decode()

    def eos_ids(self) -> list[int]:
        """The ids that end a text."""
        tokenizer = self._text()
        return [id for id in range(self.shape.vocab_size) if calls.is_eos(tokenizer, id)]

    def end_ids(self) -> list[int]:
        """The same, and the one that ends an answer."""
        ends = self.eos_ids()
        try:
            end = self.chat_end()
        except HeadsError:  # it has no chat template
            return ends
        return ends if end in (-1, *ends) else [*ends, end]

    def token_text(self, id: int, skip_special: bool = False) -> str:
        """A token inside of a text, with the space that may belong to it."""
        text = self.token_bytes(id).decode("utf-8", "replace")
        return "" if arguments.flag("skip_special", skip_special) and self.is_special(id) else text

    def token_bytes(self, id: int) -> bytes:
        """The same as bytes, of which a character may need several tokens'."""
        id, room = self._known(arguments.whole("id", id, 0)), create_string_buffer(64)
        n = calls.token_bytes(self._text(), id, room, len(room))
        if n > len(room):
            room = create_string_buffer(n)
            calls.token_bytes(self._text(), id, room, n)
        return room.raw[:n]

    def is_special(self, id: int) -> bool:
        """Whether a token is special, such as BOS."""
        id = self._known(arguments.whole("id", id, 0))
        return bool(calls.is_special(self._text(), id))

    def _known(self, id: int) -> int:
        """An id of the model or of its tokenizer, which may have more. Errors: it is of neither."""
        if not calls.token_bytes(self._text(), id, None, 0):  # or it has no text
            _check_ids([id], max(self.shape.vocab_size, self.shape.source_vocab))
        return id

    def _texts_of(self, ids: Sequence[int]) -> list[str]:
        """For people: each token's text, or its number where the model has no tokenizer."""
        known = self._handles.tokenizer is not None
        return [self.token_text(id) if known else str(id) for id in ids]

    def _text(self) -> Handle:
        tokenizer = self._handles.tokenizer
        if not tokenizer:
            raise FileError(self._no_tokenizer)
        return tokenizer

    def _ids(self, name: str, prompt: Prompt) -> list[int]:
        text = isinstance(prompt, str)
        ids = self._encoded(name, prompt) if text else arguments.id_list(name, prompt)
        self._check_prompt(ids, self.shape.source_vocab)
        return ids

    def text_ids(self, text: Prompt) -> list[int]:
        """The ids of a text for embed or classify, cut where the checkpoint says."""
        if not isinstance(text, str):
            ids = arguments.id_list("texts", text)
            _check_ids(ids, self.shape.source_vocab or self.shape.vocab_size)
            return ids
        ids, data, opened = INTS(), arguments.utf8("texts", text), self._handles
        n = calls.text_ids(opened.model, self._text(), data, len(data), byref(ids))
        return taken(ids, n)

    def _encoded(self, name: str, text: str, special: bool = True) -> list[int]:
        return self.encode(arguments.utf8(name, text), special)

    def _check_prompt(self, ids: Sequence[int], vocab_size: int = 0) -> None:
        """Raises InputError for what cannot be run. vocab_size: 0, the model's."""
        vocab_size = vocab_size or self.shape.vocab_size
        if len(ids) == 0:
            raise InputError("the prompt is empty, and nothing is put before it")
        if len(ids) > self.context:
            raise ContextError(
                f"the prompt has {len(ids)} tokens and the context has room for {self.context}"
            )
        _check_ids(ids, vocab_size)

    def _passes(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """The pieces that a text runs in; an encoder's text runs whole."""
        size = max(1, len(ids)) if self.shape.encoder else self.chunk
        return (ids[at : at + size] for at in range(0, len(ids), size))

    def _must_continue(self) -> None:
        """Raises InputError if the model is an encoder."""
        if self.shape.encoder:
            raise InputError(
                "this model is an encoder: it reads texts as a whole and continues "
                "none; it is there for their vectors"
            )

    def _must_have_one_text(self, what: str) -> None:
        """Raises InputError if the model is an encoder, or reads one text and writes another."""
        self._must_continue()
        if self.shape.source_vocab:
            raise InputError(
                "this model is an encoder-decoder: it reads a text and writes another, "
                f"so {what} means nothing for it"
            )

    # ---- conversations ----

    def chat_ids(
        self, messages: Sequence[Mapping[str, str]], answer: bool = True, no_think: bool = False
    ) -> list[int]:
        """The ids of a conversation, and of the beginning of an answer."""
        self._must_have_one_text("a conversation")
        given = arguments.messages(messages)
        array = (Message * len(given))(*(Message(r, text, len(text)) for r, text in given))
        clock = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
        if not clock:
            clock = int(time.time()) + time.localtime().tm_gmtoff
        ids = INTS()
        answer, no_think = arguments.flag("answer", answer), arguments.flag("no_think", no_think)
        options = ChatOptions(answer, no_think, clock)
        template, text = self._template(), self._text()
        n = calls.chat_encode(template, text, array, len(array), byref(options), byref(ids))
        return taken(ids, n)

    def chat_end(self) -> int:
        """The id that ends an answer besides EOS; -1: none."""
        end = calls.chat_end(self._template(), self._text())
        if end < -1:
            raise HeadsError("no memory to find what ends an answer")
        return end

    def _template(self) -> Handle:
        opened = self._handles
        if not opened.chat:
            opened.chat = Handle(calls.chat_new(opened.model), calls.chat_free)
        return opened.chat

    # ---- models that read one text and write another ----

    def _must_fit_source(self, source: Prompt | None) -> None:
        """Raises InputError where an encoder-decoder has none, or another model one."""
        if source is None and self.shape.source_vocab:
            raise InputError("this model is an encoder-decoder, so it needs a source")
        if source is not None and not self.shape.source_vocab:
            raise InputError("this model is no encoder-decoder, so source means nothing for it")

    def _begin(self, ids: list[int], lang: str | None = None) -> tuple[list[int], list[int] | None]:
        """What a text begins with after a prompt, and what an encoder reads before: the prompt and
        None, or the first tokens of an encoder-decoder's text and the prompt."""
        code = arguments.language(lang)
        if not self.shape.source_vocab:
            if code:
                raise InputError("this model is no encoder-decoder, so lang means nothing for it")
            return ids, None
        source, start, opened = int_array(ids), INTS(), self._handles
        calls.source_language(opened.model, opened.tokenizer, code, source, len(ids))
        n = calls.start_tokens(opened.model, opened.tokenizer, code, byref(start))
        return taken(start, n), list(source)

    def _target(self, name: str, text: Prompt) -> list[int]:
        """The ids of a text that an encoder-decoder writes, without those that it begins with."""
        if isinstance(text, str) and self.shape.target_ids:
            raise InputError(
                "what this model writes has ids of its own, which its tokenizer cannot "
                "make of a text; give ids"
            )
        if isinstance(text, str):
            return self._encoded(name, text, special=False)
        return arguments.id_list(name, text)


_open_models: weakref.WeakSet[Checkpoint] = weakref.WeakSet()


def _reopen_in_child() -> None:
    """A child of fork() has none of the threads and must leave its parent's workspaces alone."""
    for model in list(_open_models):
        try:
            model._open()
        except HeadsError as error:
            model._why_closed += f": after a fork, {error}"


os.register_at_fork(after_in_child=_reopen_in_child)
