"""How far an export is: a bar on stderr, or a caller's function."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import tqdm

# None: a bar where stderr is a terminal. True: a bar. False: nothing. A function gets the phase
# ("q8", "texts", ..) and how much of the whole is done, from 0 to 1.
Progress = Optional[Union[bool, Callable[[str, float], None]]]


class Told:
    """A caller's function, as the bar that it takes the place of."""

    def __init__(self, tell: Callable[[str, float], None], total: float, phase: str):
        self.tell, self.total, self.n, self.phase = tell, total, 0.0, phase

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def set_description_str(self, phase: str, refresh: bool) -> None:
        self.phase = phase

    def update(self, step: float) -> None:
        self.n += step
        self.tell(self.phase, min(1.0, self.n / self.total) if self.total else 1.0)

    def close(self) -> None:
        pass


def bar(progress: Progress, total: float, phase: str = "", **form: Any) -> Any:
    """form: what tqdm takes."""
    if callable(progress):
        return Told(progress, total, phase)
    hidden = None if progress is None else not progress
    return tqdm.tqdm(total=total, desc=phase, disable=hidden, **form)
