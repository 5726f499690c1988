"""Runs a function in a process of its own, whose time and memory end: a chat template is a program,
and a call inside jinja2, such as 'x' * 10**10, cannot be stopped from the same process."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import warnings
from typing import Callable

SECONDS = 120  # of computing; the templates of published models take a few
BYTES = 1 << 30  # of memory, beyond what the exporter has


class TooMuch(Exception):
    """The function would not end within its bounds; the text says which."""


def bounded(function: Callable, *arguments):
    """function(*arguments), which must not change anything, and whose result can be pickled.
    Errors: the function's own; TooMuch."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # Python warns of other threads: the child uses none
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(writing, function, arguments)
    os.close(writing)
    try:
        with open(reading, "rb") as file:
            data = file.read()
    except BaseException:  # Ctrl-C
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        raise TooMuch(f"it takes more than {SECONDS} seconds to try")
    if status or not data:
        raise TooMuch("trying it broke off")
    result, error = pickle.loads(data)
    if error is not None:
        raise error
    return result


def _answer(writing: int, function: Callable, arguments: tuple) -> None:
    """The child: writes the pair of result and error, and ends."""
    status = 1
    try:
        _limit()
        try:
            answer = function(*arguments), None
        except MemoryError:
            answer = None, TooMuch(f"it takes more than {BYTES >> 20} MB of memory to try")
        except Exception as error:
            answer = None, error
        with open(writing, "wb") as file:
            file.write(pickle.dumps(answer))
        status = 0
    finally:
        os._exit(status)


def limit_memory() -> None:
    """To BYTES beyond what this process has."""
    with contextlib.suppress(OSError):  # no /proc: memory stays unbounded
        with open("/proc/self/statm") as file:
            has = int(file.read().split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, has + BYTES)


def _limit() -> None:
    limit_memory()
    _lower(resource.RLIMIT_CPU, SECONDS)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(limit: int, to: int) -> None:
    soft, hard = resource.getrlimit(limit)
    known = [n for n in (soft, hard, to) if n != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), hard))
