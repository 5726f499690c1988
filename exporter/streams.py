"""Descriptors 0, 1 and 2 of a program."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TextIO


class Output:
    """A stream. What cannot be written, to a full disk or a terminal that has gone, is an OSError
    with this name; without one, it is lost."""

    def __init__(self, stream: TextIO, name: str | None = None):
        self.stream, self.name = stream, name

    def __getattr__(self, key: str):
        return getattr(self.stream, key)

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, call, *given: str) -> None:
        try:
            call(*given)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())  # what it still holds
            if self.name:
                raise OSError(error.errno, error.strerror, self.name) from None


def open_streams() -> None:
    """To be called first. Where 0, 1 or 2 is closed, no file gets its number, and what is said
    there is lost; programs that take this one's place find it closed. Characters that stdout's
    encoding lacks are escaped there, as Python does on stderr."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = sys.stderr or open(os.devnull, "w")
