"""How much of a text says again what it has said."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

LOOPING = 0.2  # a text that repeats more of its trigrams goes round in circles


def repeats(items: Sequence[Hashable]) -> list[int]:
    """For each item, how many of the trigrams that end with it or before have been there before."""
    counts, seen = [], set()
    for i in range(len(items)):
        trigram = tuple(items[i - 2 : i + 1]) if i > 1 else None
        counts.append((counts[-1] if counts else 0) + (trigram in seen))
        if trigram:
            seen.add(trigram)
    return counts


def repeated_share(text: str) -> float:
    """The share of a text's trigrams of words that have been there before."""
    words = text.split()
    return repeats(words)[-1] / (len(words) - 2) if len(words) > 2 else 0.0


def sound_length(counts: list[int], most: float) -> int:
    """The length of the longest beginning with at most this share of repeats, given `repeats`."""
    return max((n for n, count in enumerate(counts, 1) if count <= most * n), default=0)
