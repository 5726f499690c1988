"""A text in its KV cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p, string_at

import numpy as np

from . import _arguments as arguments
from . import _steering as steering
from ._arguments import Floats, Prompt
from ._batch import read_source
from ._checkpoint import Checkpoint, Opened
from ._native import ContextError, Handle, HeadsError, InputError, NotCopied, calls, int_array
from ._public import own
from ._steering import Steering


@own
class Session(NotCopied):
    """A text in its KV cache, which can be fed, forked, rewound and saved. One thread at a time.
    Model.session makes one."""

    _copied_by: str = "fork() makes another that begins alike, and save() writes it to a file"

    def __init__(
        self, model: Checkpoint, opened: Opened, sequence: int, start: list[int] | None = None
    ):
        if not isinstance(opened, Opened):
            raise TypeError("a heads.Session is made by heads.Model.session")
        self.model: Checkpoint = model
        self._opened = opened
        self._sequence = Handle(sequence, calls.sequence_free, opened.workspace)
        self._start = start  # of an encoder-decoder, what its text begins with
        opened.users.add(self)

    def _handle(self) -> Handle:
        sequence = self._sequence
        if not sequence or self._opened is not self.model._opened:
            raise HeadsError("this session is closed, or its model is")
        return sequence

    @contextmanager
    def _turn(self) -> Iterator[Handle]:
        with self.model._turn():
            yield self._handle()

    def _read(self, source: list[int]) -> None:
        read_source(self._opened.workspace, self._handle(), source)

    def feed(self, text: Prompt, all_rows: bool = False) -> Floats:
        """Runs more of the text; what the model expects next, float32 [vocab_size], or after each
        of the tokens, [tokens][vocab_size]. A text is cut into tokens by itself, with BOS only at
        the beginning of a session; there, what an encoder-decoder's texts begin with. Errors,
        before anything runs: ContextError, InputError."""
        all_rows = arguments.flag("all_rows", all_rows)
        with self._turn() as sequence:
            return self._run(sequence, self._ids(text), all_rows)

    def _ids(self, text: Prompt) -> list[int]:
        model, begins = self.model, len(self) == 0
        if isinstance(text, str) and model.shape.source_vocab:
            ids = [*(self._first() if begins else []), *model._target("text", text)]
        elif isinstance(text, str):
            ids = model._encoded("text", text, special=begins)
        else:
            ids = arguments.id_list("text", text)
        model._check_prompt(ids)
        if len(self) + len(ids) > model.context:
            raise ContextError(
                f"{len(ids)} tokens after {len(self)} do not fit into a context of {model.context}"
            )
        return ids

    def _run(self, sequence: Handle, ids: list[int], all_rows: bool) -> Floats:
        model, rows = self.model, []
        if len(self) == 0:
            calls.sequence_expect(sequence, len(ids))
        n_run = 0
        for piece in model._passes(ids):
            n_run += len(piece)
            n = len(piece) if all_rows else int(n_run == len(ids))
            logits = calls.forward(sequence, int_array(piece), len(piece), n)
            if n:
                array = np.ctypeslib.as_array(logits, (n, model.stride))
                rows.append(array[:, : model.shape.vocab_size].copy())
        return np.concatenate(rows) if all_rows else rows[0][0]

    def fork(self, n: int | None = None) -> Session:
        """Another session that begins with the first n tokens of this one (all of them)."""
        n = None if n is None else arguments.whole("n", n, 0)
        with self._turn() as sequence:
            n = len(self) if n is None else n
            return Session(self.model, self._opened, calls.sequence_fork(sequence, n), self._start)

    def _first(self) -> list[int]:
        if self._start is None:
            raise InputError("a saved session does not say in which language it began; give ids")
        return self._start

    def rewind(self, n: int) -> None:
        """Forgets all tokens but the first n. Errors: a sliding window or a mixer's state has
        forgotten what comes next; forks share more."""
        n = arguments.whole("n", n, 0)
        with self._turn() as sequence:
            calls.sequence_rewind(sequence, n)

    def steer(self, steer: Steering | None) -> None:
        """What is added to the stream after layers from the next token on, in the place of what
        was; None: nothing. What has run stays. Errors: no such layer, another width."""
        with self._turn() as sequence:
            steering.steers(steer, self.model.shape)
            for layer in range(self.model.shape.n_layers):
                calls.sequence_steer(sequence, layer, None, 0)
            self._steer(steer)

    def _steer(self, steer: Steering | None) -> None:
        for vector in steering.steers(steer, self.model.shape):
            calls.sequence_steer(self._handle(), vector.layer, vector.vector, vector.scale)

    def to_bytes(self) -> bytes:
        """What save writes, in memory; Model.session takes it, too."""
        found, size = c_void_p(), c_size_t()
        with self._turn() as sequence:
            calls.sequence_bytes(sequence, byref(found), byref(size))
        data = string_at(found, size.value)
        calls.free(found)
        return data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the tokens and their cache to a file that Model.session maps."""
        path = os.fsencode(arguments.path("path", path))
        with self._turn() as sequence:
            calls.sequence_save(sequence, path)

    @property
    def tokens(self) -> list[int]:
        """The ids that it holds."""
        with self._turn() as sequence:
            return calls.sequence_tokens(sequence)[: len(self)]

    def __len__(self) -> int:
        return calls.sequence_length(self._handle())

    def close(self) -> None:
        """Frees the cache."""
        self._sequence = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            n = f"{len(self)} of {self.model.context} tokens"
        except HeadsError:
            n = "closed"
        return f"<heads.Session of {self.model.path!r}, {n}>"
