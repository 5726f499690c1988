"""Results on disk: CSV files that grow row by row, and all of them together for a report."""

from __future__ import annotations

import csv
import hashlib
import os
from pathlib import Path

from research.lab.intervals import Interval
from research.lab.variants import VARIANTS, Variant

Row = dict[str, str]


class Table:
    """A CSV file, whole at any time. Its first `key` columns say what made a row."""

    def __init__(self, path: Path, columns: list[str], key: int):
        self.path, self.columns, self.key = path, columns, key
        self.rows = read(path) if path.exists() else []

    def has(self, *key: object) -> bool:
        return any(
            [row[c] for c in self.columns[: self.key]] == [str(k) for k in key] for row in self.rows
        )

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
    return [float(row[column]) for row in rows if all(row[k] == str(v) for k, v in where.items())]


class Results:
    """All that was measured."""

    def __init__(self, folder: Path):
        self.runs, self.copies, self.speed, floors = (
            read(folder / f"{name}.csv") for name in ("runs", "copy", "speed", "floors")
        )
        self.floor = {row["kind"]: float(row["nats"]) for row in floors}
        chosen = {row["variant"] for row in self.runs}
        self.variants = [variant for variant in VARIANTS.values() if variant.name in chosen]

    def values(self, variant: Variant, column: str, stage: str = "start") -> list[float]:
        """A column of a variant's runs, a value a seed."""
        return numbers(self.runs, column, variant=variant.name, stage=stage)

    def one(self, variant: Variant, column: str, stage: str = "start") -> int:
        """What is the same for all seeds."""
        (value,) = set(self.values(variant, column, stage))
        return int(value)

    def above_floor(self, variant: Variant, kind: str, stage: str = "start") -> Interval:
        """Nats a token above what the documents hold, with the cache in f16."""
        values = self.values(variant, f"{kind}_f16", stage)
        return Interval([value - self.floor[kind] for value in values])

    def rate(self, variant: Variant, dtype: str, depth: int) -> float:
        """Tokens a second, the fastest of the rounds."""
        return max(
            numbers(self.speed, "tokens_per_second", variant=variant.name, dtype=dtype, depth=depth)
        )

    @property
    def depths(self) -> list[int]:
        return sorted({int(row["depth"]) for row in self.speed})


def source(r: Results) -> str:
    """What the pictures are drawn from, as a hash that each of them carries."""
    return hashlib.sha256(repr([r.runs, r.copies, r.speed, r.floor]).encode()).hexdigest()
