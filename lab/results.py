"""Results on disk, and what may be concluded from them."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from statistics import mean, stdev

# Half of the central 95 % of Student's t, for 1 to 9 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Row = dict[str, str]


class Table:
    """A CSV file, whole at any time. What made a row is in its first columns, `key` of them."""

    def __init__(self, path: Path, columns: list[str], key: int):
        self.path, self.columns, self.key = path, columns, key
        self.rows = read(path) if path.exists() else []

    def has(self, *key: object) -> bool:
        return any([row[c] for c in self.columns[: self.key]] == [str(k) for k in key]
                   for row in self.rows)  # fmt: skip

    def add(self, *rows: dict[str, object]) -> None:
        """Adds rows, all of them or none."""
        self.rows += [{column: str(row[column]) for column in self.columns} for row in rows]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        with open(partial, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)


def read(path: Path) -> list[Row]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows: list[Row], column: str, **where: object) -> list[float]:
    """A column of the rows that are as `where` says."""
    return [float(row[column]) for row in rows
            if all(row[k] == str(v) for k, v in where.items())]  # fmt: skip


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
