"""The words that a story chooses once and must then keep to: names, colours and the like.

They are few and the hardest to learn, since the choice to be copied lies far back. The loss counts
them more, or learning would stop at "his mother" where the story began with an uncle.
"""

from __future__ import annotations

import numpy as np

from research.grammar import TABLES

COMMON = "a an the in on of by to two some".split()
RECALL_WEIGHT = 6  # how much more a recalled word counts than any other


def memorable(tokenizer) -> np.ndarray:
    """The tokens of these words."""
    fields = "name kind colour part loan one".split()
    words = {
        word
        for slot, rows in TABLES.items()
        if slot != "home"
        for row in rows
        for field in fields
        for word in row.get(field, "").split()
    }
    ids = (tokenizer.token_to_id("\u0120" + word) for word in words if word not in COMMON)
    return np.array([i for i in ids if i is not None])


def recalled(ids: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Which of a story's tokens are among `words` and have been in it before: booleans."""
    _, first = np.unique(ids, return_index=True)
    again = np.ones(len(ids), bool)
    again[first] = False
    return again & np.isin(ids, words)
