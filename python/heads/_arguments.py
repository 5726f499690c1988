"""What callers give: each function returns its argument in the form that the engine takes, or raises
an InputError that names it."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Set
from numbers import Real
from operator import index
from typing import Any, Dict, Literal, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from ._native import HeadsError, InputError

Prompt = Union[str, Sequence[int]]  # a text, or its ids
KvType = Literal["f16", "f32", "q8", "q4"]
Schema = Union[Dict[str, Any], str, bool]  # a JSON schema, as a value or as JSON
Schemas = Union[Schema, Sequence[Optional[Schema]]]  # of all prompts, or of each
Failed = Dict[int, HeadsError]  # by the places of what failed
Path = Union[str, "os.PathLike[str]"]
Adapters = Union[Path, Sequence[Path], Mapping[Path, float]]  # paths of adapters, or their scales
Floats = NDArray[np.float32]
MAX_INT = 2**31
LARGEST = float(np.finfo(np.float32).max)


def refusal(name: str, expected: str, found) -> InputError:
    return InputError(f"{name}: expected {expected}, found {reprlib.repr(found)}")


def whole(name: str, value, low: int, high: int = MAX_INT - 1) -> int:
    """A whole number from low to high."""
    try:
        number = index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise refusal(name, f"a whole number from {low} to {high}", value)
    return number


def default_or_whole(name: str, value: int | None) -> int:
    """For an option of which 0 means the default, as None does here."""
    return 0 if value is None else whole(name, value, 0)


def number(name: str, value, low: float, high: float) -> float:
    if not isinstance(value, Real) or not low <= value <= high:
        raise refusal(name, f"a number from {low} to {high}", value)
    return float(value)


def flag(name: str, value) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise refusal(name, "True or False", value)
    return bool(value)


def failed(value, stream: bool = False) -> Failed | None:
    if not isinstance(value, (dict, type(None))):
        raise refusal("failed", "a dict", value)
    if stream and value is not None:
        raise InputError("failed: a stream raises what fails")
    return value


def utf8(name: str, value) -> bytes:
    """The bytes of a text."""
    if not isinstance(value, str):
        raise refusal(name, "a text", value)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise refusal(name, "a text without halves of surrogate pairs", value) from None


def c_string(name: str, value) -> bytes:
    """The bytes of a text that C reads up to its first zero byte."""
    data = utf8(name, value)
    if b"\0" in data:
        raise refusal(name, "a text without zero bytes", value)
    return data


def path(name: str, value) -> str:
    """A path that the operating system can be asked for."""
    try:
        text = os.fspath(value)
        if isinstance(text, str) and text and b"\0" not in os.fsencode(text):
            return text
    except (TypeError, UnicodeEncodeError):
        pass
    raise refusal(name, "a path, as a str or an os.PathLike", value)


def adapters(value) -> list[tuple[str, float | None]]:
    """Paths and scales; None: what the path says."""
    if isinstance(value, Mapping):
        return [
            (path("adapters", p), number("adapters", s, -LARGEST, LARGEST))
            for p, s in value.items()
        ]
    if isinstance(value, (str, os.PathLike)):
        value = [value]
    expected = "a path, several, or scales by their paths"
    return [(path("adapters", p), None) for p in _items("adapters", value, expected)]


def _items(name: str, value, expected: str) -> list:
    """What several may be given in: not the letters of a text, nor the keys of a dict."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        raise refusal(name, expected, value)
    try:
        return list(value)
    except TypeError:  # an array of no dimension
        raise refusal(name, expected, value) from None


def id_list(name: str, ids) -> list[int]:
    try:
        found = [index(id) for id in _items(name, ids, "a text or a list of ids")]
    except TypeError:
        raise refusal(name, "a text or a list of ids", ids) from None
    for id in found:
        if not 0 <= id < MAX_INT:
            raise InputError(f"{name}: {id} is no token of a model")
    return found


def prompts(name: str, value) -> list[Prompt] | None:
    """Several prompts; None: this is one, a text or its ids."""
    if isinstance(value, str):
        return None
    several = _items(name, value, "a text or a list of ids, or several of these")
    return None if several and isinstance(several[0], (int, np.integer)) else several


def pairs(first: str, firsts, second: str, seconds) -> list[tuple[Prompt, Prompt]]:
    """As many prompts of both."""
    expected = "a list of texts or of lists of ids"
    firsts, seconds = _items(first, firsts, expected), _items(second, seconds, expected)
    if len(firsts) != len(seconds):
        raise InputError(
            f"score: {len(firsts)} {first} and {len(seconds)} {second}; expected as many of both"
        )
    return list(zip(firsts, seconds))


def language(lang) -> bytes | None:
    return None if lang is None else c_string("lang", lang) or None


def with_languages(items: list, lang) -> list[tuple]:
    """Each with the language of its text."""
    if lang is None or isinstance(lang, str):
        return [(item, lang) for item in items]
    langs = _items("lang", lang, "a language, or a list of them")
    if len(langs) != len(items):
        raise InputError(f"lang: {len(langs)} languages for {len(items)} prompts")
    return list(zip(items, langs))


def of_each(name: str, value, n: int) -> list:
    """The one of each of n texts: a list's, or the same for all."""
    if not isinstance(value, (list, tuple)):
        return [value] * n
    if len(value) != n:
        raise InputError(f"{name}: {len(value)} of them for {n} prompts")
    return list(value)


def stops(stop) -> list[bytes]:
    if stop is None:
        return []
    several = [stop] if isinstance(stop, str) else _items("stop", stop, "a text, or a list of them")
    if "" in several:
        raise InputError("stop: a stop string cannot be empty")
    return [utf8("stop", s) for s in several]


def messages(value) -> list[tuple[bytes, bytes]]:
    """The role and the content of each message of a conversation."""
    expected = "a list of messages, each a dict with a role and a content"
    found = []
    for message in _items("messages", value, expected):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise refusal("messages", expected, message)
        role = c_string("messages: role", message["role"])
        found.append((role, utf8("messages: content", message["content"])))
    return found
