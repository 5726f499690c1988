"""What may be concluded from a few runs: 95 % confidence intervals, and verdicts on two of them."""

from __future__ import annotations

import math
from statistics import mean, stdev

# Half of the central 95 % of Student's t, for 1 to 9 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Interval:
    """The mean of some runs and the half-width of its 95 % confidence interval, by Student's t."""

    def __init__(self, values: list[float]):
        if not 2 <= len(values) <= len(T_95) + 1:
            raise ValueError(f"an interval takes 2 to {len(T_95) + 1} runs, found {len(values)}")
        self.n, self.mean = len(values), mean(values)
        self.half = T_95[len(values) - 2] * stdev(values) / math.sqrt(len(values))

    def overlaps(self, other: Interval) -> bool:
        return abs(self.mean - other.mean) <= self.half + other.half

    def __str__(self):
        return f"{self.mean:.4f} ± {self.half:.4f}"


def verdict(interval: Interval, reference: Interval) -> str:
    """What may be said of two losses."""
    if interval.overlaps(reference):
        return "overlap"
    return "higher" if interval.mean > reference.mean else "lower"
