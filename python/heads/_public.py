"""What help() and errors say of the public classes: their names, and not how they are made."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

Public = TypeVar("Public", bound=type)
OF_CLASSES = ("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__")


def own(cls: Public) -> Public:
    """The class with what its bases define as its own, and without the bases."""
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        members.update((k, v) for k, v in vars(base).items() if k not in OF_CLASSES)
    for value in members.values():
        of_property = (value.fget, value.fset) if isinstance(value, property) else ()
        for function in (value, *of_property):
            if isinstance(function, FunctionType):
                function.__qualname__ = f"{cls.__name__}.{function.__name__}"
    return type(cls)(cls.__name__, (), {**members, "__doc__": cls.__doc__, "__module__": "heads"})
