"""Adapters beside a model: what fine-tuning changed, for the texts that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional, Tuple, Union

from . import _arguments as arguments
from ._arguments import LARGEST
from ._checkpoint import Checkpoint, Opened
from ._native import Handle, HeadsError, InputError, NotCopied, calls
from ._public import own

Adapted = Tuple[Optional[Handle], float]  # what the library takes: an adapter and its scale


@own
class Adapter(NotCopied):
    """An adapter (LoRA) of a model, which Model.adapter opens, for the `adapter` of Model.generate,
    chat, session and others. `with` or close() frees it, when the sessions and requests that have
    it are done."""

    _copied_by: str = "scaled() gives the same with another scale"

    def __init__(self, opened: Opened, path: str, handle: Handle, scale: float = 1.0):
        if not isinstance(opened, Opened):
            raise TypeError("a heads.Adapter is made by heads.Model.adapter")
        self.path: str = path
        self.scale: float = scale  # what its part of the products is multiplied by
        self._opened = opened
        self._adapter: Handle | None = handle
        opened.users.add(self)

    def scaled(self, scale: float) -> Adapter:
        """The same times a number, 0.5 or -1; `scale` is the product. It is closed by itself."""
        scale = self.scale * arguments.number("scale", scale, -LARGEST, LARGEST)
        arguments.number("scale", scale, -LARGEST, LARGEST)
        return Adapter(self._opened, self.path, self._handle(), scale)

    def _handle(self) -> Handle:
        if not self._adapter:
            raise HeadsError(f"the adapter {self.path!r} is closed, or its model is")
        return self._adapter

    def close(self) -> None:
        """Sessions and requests that have it go on with it."""
        self._adapter = None

    def __enter__(self) -> Adapter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._adapter else ", closed"
        return f"<heads.Adapter {self.path!r}, scale {self.scale:g}{closed}>"


Adapters = Union[Adapter, Sequence[Optional[Adapter]], None]  # of all texts, or of each


def read(model: Checkpoint, path: str | os.PathLike[str]) -> Adapter:
    name, opened = arguments.path("path", path), model._handles
    pointer = calls.adapter_open(opened.model, os.fsencode(name))
    return Adapter(opened, name, Handle(pointer, calls.adapter_close, opened.model))


def of(model: Checkpoint, adapter: Any) -> Adapted:
    """What the library takes for a text of this model. A scale of 0 is none at all."""
    if adapter is None:
        return None, 0.0
    if not isinstance(adapter, Adapter):
        raise arguments.refusal("adapter", "a heads.Adapter, which Model.adapter opens", adapter)
    handle = adapter._handle()
    if adapter._opened is not model._handles:
        raise InputError(
            f"adapter: {adapter.path!r} was opened for another model, or before a fork; "
            "open it by this one's adapter()"
        )
    return (handle, adapter.scale) if adapter.scale else (None, 0.0)


@contextmanager
def turn(model: Checkpoint, adapter: Any) -> Iterator[Opened]:
    """The model's turn, in which sequences that it makes, loads and reads have the adapter."""
    with model._turn() as opened:
        before, opened.adapted = opened.adapted, of(model, adapter)
        try:
            calls.workspace_adapter(opened.workspace, *opened.adapted)
            yield opened
        finally:
            opened.adapted = before
            calls.workspace_adapter(opened.workspace, *before)
