"""The teacher's texts on disk: shards that generate.py writes and train.py reads, without torch."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np

from research.training.loops import repeats, sound_length

HELD_OUT = 64  # one text in so many is not trained on
SHINGLE, ALIKE = 6, 0.4  # tokens; of a text's shingles, how many may be in earlier texts
SKETCH = 8  # one shingle in so many is compared
CIRCLES, SHORTEST = 0.06, 40  # of trigrams, how many may be repeats; tokens
FACTORS = np.random.default_rng(1).integers(2**63, size=SHINGLE, dtype=np.uint64) * 2 + 1


def unfinished(path: Path) -> Path:
    """Where a file is written before it gets its name, which says that it is whole."""
    return path.with_name(path.name + ".part")


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(unfinished(path), "wb") as file:
        np.savez(file, **arrays)
    os.replace(unfinished(path), path)


def shards_of(data: Path) -> list[Path]:
    return sorted(data.glob("*.npz"))


def shingles(tokens: np.ndarray) -> set[int]:
    """Hashes of a part of a text's runs of SHINGLE tokens, the same part in every text."""
    runs = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64), SHINGLE)
    hashes = (runs * FACTORS).sum(1, dtype=np.uint64)
    return set(hashes[hashes < 2**64 // SKETCH].tolist())


class TeachersTexts:
    """What generate.py kept, without near duplicates, each up to where it begins to go round in
    circles: rows of tokens, the teacher's best choices, their log-probabilities, and the number of
    tokens that were given to it."""

    def __init__(self, data: Path):
        self.training, self.held_out = [], []
        self.tokens, self.dropped = 0, {"alike": 0, "short": 0}
        seen = set()
        for path in shards_of(data):
            with np.load(path) as shard:
                ends = np.cumsum(shard["lengths"])[:-1]
                parts = [np.split(shard[name], ends) for name in ("tokens", "best", "log_p")]
                for row in zip(*parts, shard["given"]):
                    self._add(*row, seen)

    def _add(self, tokens, best, log_p, given, seen: set[int]) -> None:
        n = sound_length(repeats(tokens.tolist()), CIRCLES)
        if n < max(SHORTEST, given + SHORTEST // 2):
            self.dropped["short"] += 1
            return
        new = shingles(tokens[:n])
        if len(new & seen) > ALIKE * len(new):
            self.dropped["alike"] += 1
            return
        seen |= new
        number = len(self.training) + len(self.held_out)
        side = self.held_out if number % HELD_OUT == 0 else self.training
        side.append((tokens[:n].astype(np.int64), best[:n], log_p[:n], given))
        self.tokens += n


@functools.lru_cache(maxsize=2)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(n)


def in_order(n: int, seed: int, start: int, count: int) -> list[int]:
    """`count` of the numbers below n, from the one at `start` on in an endless row that has all of
    them again and again, each time in another order."""
    places = range(start, start + count)
    return [int(_permutation(n, seed, place // n)[place % n]) for place in places]
