"""Ctrl-C at a time of a test's choice."""

from __future__ import annotations

import signal
from contextlib import contextmanager


@contextmanager
def interrupted_after(milliseconds: float, again: float = 0):
    """KeyboardInterrupt in the main thread, once, by a signal; or every `again` milliseconds."""

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000, again / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
