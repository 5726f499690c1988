"""The bundled model's training data: the teacher's stories, which generate.py kept, and
the grammar's, mixed into batches.

From the teacher's stories the model learns the teacher's probabilities of each next token, from
the grammar's the token itself.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch

from research import stories
from research.stories import END
from research.training.recall import RECALL_WEIGHT, memorable, recalled
from research.training.shards import TeachersTexts, in_order
from research.training.writer import KEPT

TARGET_TEMPERATURE = 0.7  # the teacher's distributions are sharpened to this
GRAMMARS_SHARE = 0.25  # of stories; the grammar's are longer
POOL = 16  # batches drawn together and sorted by length, so that rows need little padding


class Story:
    """Tokens, and for each of them KEPT tokens to be predicted with their weights."""

    def __init__(self, tokens: np.ndarray, targets: np.ndarray, weights: np.ndarray):
        self.tokens, self.targets, self.weights = tokens, targets, weights


class TeachersStories(TeachersTexts):
    """Those that generate.py kept."""

    @staticmethod
    def story(row: tuple) -> Story:
        """The beginning, which was given to the teacher, is not to be predicted."""
        tokens, best, log_p, given = row
        p = np.exp((log_p - log_p.max(1, keepdims=True)).astype(np.float32) / TARGET_TEMPERATURE)
        p /= p.sum(1, keepdims=True)
        p[:given] = 0
        return Story(tokens, best.astype(np.int64), p)


class GrammarsStories:
    """Stories that stories.py makes up as it goes."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.memorable = memorable(tokenizer)

    def story(self, rng: random.Random) -> Story:
        ids = np.array(self.tokenizer.encode(stories.story(rng) + END).ids)
        targets = np.zeros((len(ids), KEPT), np.int64)
        weights = np.zeros((len(ids), KEPT), np.float32)
        targets[:, 0] = ids
        weights[:, 0] = 1 + (RECALL_WEIGHT - 1) * recalled(ids, self.memorable)
        return Story(ids, targets, weights)


def collate(rows: list[Story]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input tokens [rows][width], targets and weights [rows * width][KEPT].

    A row begins with BEGIN and is padded at its right, where causal attention cannot see it; what
    is padding has weight 0.
    """
    width = max(len(story.tokens) for story in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)  # BEGIN is 0
    targets = torch.zeros(len(rows), width, KEPT, dtype=torch.long)
    weights = torch.zeros(len(rows), width, KEPT)
    for i, story in enumerate(rows):
        n = len(story.tokens)
        tokens[i, 1:n] = torch.from_numpy(story.tokens[:-1])
        targets[i, :n] = torch.from_numpy(story.targets)
        weights[i, :n] = torch.from_numpy(story.weights)
    return tokens, targets.view(-1, KEPT), weights.view(-1, KEPT)


def batches(teachers: TeachersStories, grammars: GrammarsStories, seed: int, size: int, first=0):
    """Endless batches of `size` stories from number `first` on, a fixed share of them the grammar's.
    A batch depends on seed, size and number alone."""
    own = round(GRAMMARS_SHARE * POOL * size)
    theirs = POOL * size - own
    for number in itertools.count(first // POOL):
        rng = random.Random(f"{seed} {number}")
        rows = in_order(len(teachers.training), seed, number * theirs, theirs)
        pool = [teachers.story(teachers.training[row]) for row in rows]
        pool += [grammars.story(rng) for _ in range(own)]
        pool.sort(key=lambda story: len(story.tokens))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from map(collate, groups[max(0, first - number * POOL) :])
