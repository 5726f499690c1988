"""An adapter that is ready to be merged: what every reader of this folder gives."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

from ..tensor import ExportError
from .changes import Change


@dataclass
class Adapter:
    """An adapter. `path` is what it is called; `kind` says what it is, for people; `files` must not
    be overwritten; `directory` has its tokenizer, if it brings one; `task` is peft's, such as
    SEQ_CLS; `architecture` is a GGUF adapter's, whose names are GGUF's, None for peft's; `apart`
    takes it instead of the base, if it is to be kept apart (apart.py)."""

    path: str
    scale: float
    kind: str
    changes: list[Change]
    files: list[str]
    directory: str | None = None
    task: str | None = None
    architecture: str | None = None
    apart: object | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def described(self) -> str:
        """As info.adapters has it."""
        name = os.path.basename(os.path.abspath(self.path))
        scale = "" if self.scale == 1 else f":{self.scale:g}"
        return f"{name}{scale} ({self.kind})"


def with_scale(given: str) -> tuple[str, float]:
    """DIR or DIR:SCALE. Errors: ExportError."""
    path, colon, end = given.rpartition(":")
    if not colon or not path or os.path.exists(given):
        return given, 1.0
    try:
        scale = float(end)
    except ValueError:
        return given, 1.0
    if not math.isfinite(scale):
        raise ExportError(f"--adapter {given}: the scale is {end}, expected a finite number")
    return path, scale


def of_rank(kind: str, ranks: set[int]) -> str:
    """An adapter's kind and its ranks, for people."""
    if not ranks:
        return kind
    ends = sorted({min(ranks), max(ranks)})
    return f"{kind}, rank {' to '.join(map(str, ends))}"
