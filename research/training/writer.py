"""How the teacher writes stories: many side by side, token by token, in a given vocabulary, with
what it thought of each token; and how it reads what another model has written. A story depends on
nothing but its number, and on that model."""

from __future__ import annotations

import random

import heads
import numpy as np

from research.training.beginnings import KINDS, beginning
from research.training.loops import sound_length
from research.training.teacher import Teacher
from research.training.vocabulary import Vocabulary

AT_A_TIME, READ_AT_A_TIME = 64, 4
SHORTEST, LONGEST = 50, 250  # tokens
USUAL = 60, 150  # tokens, drawn for each story
WISH_TO_END = 0.05  # nats a token beyond what is usual
TEMPERATURE, TOP_P, CANDIDATES, KEPT = 0.55, 0.95, 40, 20
REPEATED = 3  # tokens
CIRCLES, HOPELESS = 0.1, 0.15  # of all runs of three tokens, how many may be repeats
FREE_TOKENS, FREE_TEMPERATURE = 7, 0.9  # after a stub


class Story:
    """A story being written: its tokens, and the teacher's KEPT best choices for each of them."""

    def __init__(self, number: int, writer: Writer):
        self.rng = random.Random(f"story {number}")
        self.number = number
        self.beginning, self.kind, self.is_stub = beginning(self.rng)
        self.tokens = writer.vocabulary.encode(self.beginning)
        self.n_given = len(self.tokens)
        self.best, self.log_p = [], []
        request, last = self.rng.choice(writer.requests[self.kind.name])
        self.usual = self.rng.randint(*USUAL)
        self.session = request.fork()
        self.feed = [last, *writer.vocabulary.teachers[self.tokens].tolist()]
        self.followers = {}  # what came after each run of REPEATED - 1 tokens
        self.triples = set()
        self.repeats = [0] * self.n_given  # of three tokens, up to and with each token

    def temperature(self) -> float:
        free = self.is_stub and len(self.tokens) < self.n_given + FREE_TOKENS
        return FREE_TEMPERATURE if free else TEMPERATURE

    def repeated(self) -> list[int]:
        """Tokens that would repeat REPEATED tokens of the story."""
        return self.followers.get(tuple(self.tokens[1 - REPEATED :]), [])

    def append(self, token: int, best: np.ndarray, log_p: np.ndarray) -> None:
        self.followers.setdefault(tuple(self.tokens[1 - REPEATED :]), []).append(token)
        self.tokens.append(token)
        self.best.append(best)
        self.log_p.append(log_p)
        triple = tuple(self.tokens[-3:])
        self.repeats.append((self.repeats or [0])[-1] + (triple in self.triples))
        self.triples.add(triple)

    def is_finished(self) -> bool:
        n = len(self.tokens)
        hopeless = n > SHORTEST and self.repeats[-1] > HOPELESS * n
        return self.tokens[-1:] == [1] or n >= LONGEST or hopeless

    def n_good(self) -> int:
        """Tokens up to where the story begins to go round in circles."""
        return sound_length(self.repeats, CIRCLES)


class Writer:
    """Writes many stories side by side."""

    def __init__(self, teacher: Teacher, vocabulary: Vocabulary, against_repeating: float = 2.0):
        """against_repeating: nats, for tokens that would come again after the same two."""
        self.teacher, self.vocabulary = teacher, vocabulary
        self.against_repeating = against_repeating
        self.requests = {
            kind.name: [teacher.request(kind.system, text) for text in kind.requests]
            for kind in KINDS
        }
        self.mask = np.where(vocabulary.may_be_written, 0, -np.inf).astype(np.float32)
        self.continues_word = np.array(
            [vocabulary.text(i)[:1].isalpha() for i in range(len(vocabulary.tokens))]
        )
        ends = [vocabulary.text(i)[-1:] in '.!?"' for i in range(len(vocabulary.tokens))]
        self.ends_sentence = np.array(ends)

    def write(self, numbers: list[int]) -> list[Story]:
        """The stories of these numbers, in the order in which they end."""
        waiting, running, finished = list(numbers)[::-1], [], []
        while waiting or running:
            while waiting and len(running) < AT_A_TIME:
                running.append(Story(waiting.pop(), self))
            self._step(running)
            done = [story for story in running if story.is_finished()]
            for story in done:
                story.session.close()
            running = [story for story in running if not story.is_finished()]
            finished += done
        return finished

    def read(self, numbers: list[int], model: heads.Model) -> list[Story]:
        """The stories that `model` tells from the beginnings of these numbers, with what the
        teacher thinks of each token."""
        stories = [Story(number, self) for number in numbers]
        told = model.generate(
            [story.beginning for story in stories], LONGEST, seed=numbers[0], parallel=AT_A_TIME
        )
        for i in range(0, len(stories), READ_AT_A_TIME):
            self._read(stories[i : i + READ_AT_A_TIME], told[i : i + READ_AT_A_TIME])
        return stories

    def _read(self, stories: list[Story], told: list[str]) -> None:
        texts = [[*self.vocabulary.encode(text), 1] for text in told]
        for story, text in zip(stories, texts):
            story.feed += self.vocabulary.teachers[text[:-1]].tolist()
        logits = self._logits(stories)
        ends = np.cumsum([len(story.feed) for story in stories])
        for story, text, rows in zip(stories, texts, np.split(logits, ends[:-1])):
            self._given(story, rows[: story.n_given])
            for token, row in zip(text, rows[story.n_given :]):
                if story.is_finished():
                    break
                self._bias(story, row)
                best, log_p = best_of(row[None])
                story.append(token, best[0, :KEPT], log_p[0, :KEPT])
            story.session.close()

    def _logits(self, stories: list[Story]) -> np.ndarray:
        """Feeds each story's session, and returns the logits of the tokens that may be written."""
        fed = [(story.session, story.feed) for story in stories]
        return self.teacher.forward(fed)[:, self.vocabulary.teachers] + self.mask

    def _bias(self, story: Story, logits: np.ndarray) -> None:
        """Against repeating the story, and for its end."""
        again = [i for i in story.repeated() if not self.continues_word[i]]
        logits[again] -= self.against_repeating
        logits[1] += self._wish_to_end(story)

    def _step(self, running: list[Story]) -> None:
        """A token more for each."""
        logits = self._logits(running)
        last = np.cumsum([len(story.feed) for story in running]) - 1
        for story, row in zip(running, last):
            self._given(story, logits[row + 1 - len(story.feed) : row])
        logits = logits[last]
        for story, row in zip(running, logits):
            self._bias(story, row)
        best, log_p = best_of(logits)
        for i, story in enumerate(running):
            token = int(best[i, pick(log_p[i], story.temperature(), story.rng)])
            story.append(token, best[i, :KEPT], log_p[i, :KEPT])
            story.feed = [int(self.vocabulary.teachers[token])]

    def _given(self, story: Story, logits: np.ndarray) -> None:
        """Keeps what the teacher thought of the tokens of the beginning."""
        if len(logits):
            best, log_p = best_of(logits)
            story.best += list(best[:, :KEPT])
            story.log_p += list(log_p[:, :KEPT])

    def _wish_to_end(self, story: Story) -> float:
        n = len(story.tokens)
        if n < SHORTEST or not self.ends_sentence[story.tokens[-1]]:
            return -np.inf
        return WISH_TO_END * max(0, n - story.usual)


def best_of(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The CANDIDATES most likely tokens of each row, best first, and their log-probabilities."""
    best = np.argpartition(-logits, CANDIDATES, axis=1)[:, :CANDIDATES]
    order = np.argsort(-np.take_along_axis(logits, best, 1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, 1)
    top = logits.max(1, keepdims=True)
    total = top + np.log(np.exp(logits - top).sum(1, keepdims=True))
    return best, np.take_along_axis(logits, best, 1) - total


def pick(log_p: np.ndarray, temperature: float, rng: random.Random) -> int:
    """Draws one of the candidates by nucleus sampling."""
    p = np.exp((log_p - log_p[0]) / temperature)
    cumulative = np.cumsum(p / p.sum())
    n = int(np.searchsorted(cumulative, TOP_P)) + 1
    return int(np.searchsorted(cumulative, rng.random() * cumulative[min(n, len(p)) - 1]))
