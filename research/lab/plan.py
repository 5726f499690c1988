"""How much the laboratory trains and measures, and where it keeps that: the full plan, and the
smallest, with which the whole road takes a minute or two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from research import ROOT
from research.lab import texts
from research.lab.variants import VARIANTS

HEADS = (1, 2, 4, 8, 16)  # of the copy task's models


@dataclass(frozen=True)
class Plan:
    results: Path  # the CSV files, and the floors
    work: Path  # checkpoints
    steps: int
    copy_steps: int
    seeds: int
    held_out: int
    variants: tuple[str, ...]
    heads: tuple[int, ...]
    speed_rounds: int
    speed_context: int

    @property
    def uptraining_steps(self) -> int:
        return max(1, self.steps // 20)


FULL = Plan(
    ROOT / "research" / "lab" / "results",
    ROOT / "build" / "lab",
    steps=400,
    copy_steps=400,
    seeds=3,
    held_out=texts.HELD_OUT,
    variants=tuple(VARIANTS),
    heads=HEADS,
    speed_rounds=3,
    speed_context=4112,
)
SMALLEST = Plan(
    ROOT / "build" / "lab-smallest" / "results",
    ROOT / "build" / "lab-smallest",
    steps=20,
    copy_steps=20,
    seeds=2,
    held_out=8,
    variants=tuple(VARIANTS),
    heads=HEADS,
    speed_rounds=1,
    speed_context=1040,
)
