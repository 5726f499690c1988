"""heads: runs language models on a CPU, from Python.

import heads
with heads.Model("model.bin") as m:
    print(m.generate("Once upon a time"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._attention import Attention
    from ._batch import Completion
    from ._adapters import Adapter
    from ._classes import Label, Ranked
    from ._experiments import Attribution, HeadParts
    from ._export import export
    from ._native import ContextError, FileError, HeadsError, InputError
    from ._steering import Steering
    from .model import Model
    from .session import Session

    __version__: str

# Imported when they are asked for: the command `heads` begins without numpy and the library.
_HOMES = {
    "Adapter": "_adapters",
    "Attention": "_attention",
    "Attribution": "_experiments",
    "Completion": "_batch",
    "ContextError": "_native",
    "FileError": "_native",
    "HeadParts": "_experiments",
    "HeadsError": "_native",
    "InputError": "_native",
    "Label": "_classes",
    "Model": "model",
    "Ranked": "_classes",
    "Session": "session",
    "Steering": "_steering",
    "export": "_export",
}
__all__ = [
    "Adapter",
    "Attention",
    "Attribution",
    "Completion",
    "ContextError",
    "FileError",
    "HeadParts",
    "HeadsError",
    "InputError",
    "Label",
    "Model",
    "Ranked",
    "Session",
    "Steering",
    "export",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        found = import_module("._native", __name__).calls.version().decode()
    elif name in _HOMES:
        found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
