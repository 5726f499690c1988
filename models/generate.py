"""Lets a teacher write short stories, and keeps what it thought of each next token.

    python models/generate.py DATA      a directory; what is there of it is not written again

The teacher is SmolLM2-135M-Instruct, run by this engine on many stories at a time. It may use only
the vocabulary of the model to be trained, a small one that is cut out of its own: so model and
teacher share their tokens, and the model learns from the teacher's probabilities. A story depends
on nothing but its number, however many workers there are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
from tqdm import tqdm

import stories
from beginnings import CHOICES, beginning
from teacher import END_OF_TURN, N_SPECIAL, TURN, Teacher, byte_level

BEGIN, END = "<|begin|>", "<|end|>"  # ids 0 and 1 of the small vocabulary
VOCAB_SIZE, PILOT_STORIES = 3072, 512
SHARDS, STORIES_A_SHARD, AT_A_TIME = 11, 256, 64
SHORTEST, USUAL, LONGEST = 40, 80, 200  # tokens
WISH_TO_END = 0.05  # nats a token beyond USUAL
TEMPERATURE, TOP_P, CANDIDATES, KEPT = 0.6, 0.95, 40, 20
REPEATED, AGAINST_REPEATING = 4, 4.0  # tokens, nats
CIRCLES, HOPELESS = 0.12, 0.2  # of all runs of three tokens, how many may be repeats
FREE_TOKENS, FREE_TEMPERATURE = 7, 0.9  # after a stub
CLEAN = re.compile(r"\n\n|[ \"]?[A-Za-z]+|[ ]?['\"][a-z]*|[ ]?[.,!?\"'-]+")
UNWANTED = "story stories Story Stories moral Moral chapter Chapter tale tales Title title".split()


class Vocabulary:
    """Byte-level BPE over part of the teacher's tokens. `teachers` are their ids there."""

    def __init__(self, tokens: list[str], merges: list[tuple[str, str]], teacher: dict[str, int]):
        self.tokens = [BEGIN, END, *tokens]
        ids = {token: i for i, token in enumerate(self.tokens)}
        self.merges = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
        self.tokenizer = byte_level(ids, self.merges)
        self.tokenizer.add_special_tokens([BEGIN, END])
        self.teachers = np.array([TURN, END_OF_TURN, *(teacher[token] for token in tokens)])
        texts = [self.text(i) for i in range(len(self.tokens))]
        self.may_be_written = np.array([
            bool(CLEAN.fullmatch(text)) and text.strip() not in UNWANTED for text in texts])
        self.may_be_written[:2] = False, True

    def text(self, token: int) -> str:
        return self.tokenizer.decoder.decode([self.tokens[token]])

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids


class Story:
    """A story being written: its tokens, and the teacher's KEPT best choices for each of them."""

    def __init__(self, number: int, vocabulary: Vocabulary, teacher: Teacher):
        self.rng = random.Random(f"story {number}")
        text, self.is_stub = beginning(self.rng)
        self.tokens = vocabulary.encode(text)
        self.n_given = len(self.tokens)
        self.best, self.log_p = [], []
        base, n, last = self.rng.choice(teacher.requests)
        self.sequence = teacher.engine.fork(base, n)
        self.feed = [last, *vocabulary.teachers[self.tokens].tolist()]
        self.followers = {}  # what came after each run of REPEATED - 1 tokens
        self.triples = set()
        self.repeats = [0] * self.n_given  # of three tokens, up to and with each token

    def temperature(self) -> float:
        free = self.is_stub and len(self.tokens) < self.n_given + FREE_TOKENS
        return FREE_TEMPERATURE if free else TEMPERATURE

    def repeated(self) -> list[int]:
        """Tokens that would repeat REPEATED tokens of the story."""
        return self.followers.get(tuple(self.tokens[1 - REPEATED:]), [])

    def append(self, token: int, best: np.ndarray, log_p: np.ndarray) -> None:
        self.followers.setdefault(tuple(self.tokens[1 - REPEATED:]), []).append(token)
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
        return max((n for n, repeats in enumerate(self.repeats, 1) if repeats <= CIRCLES * n),
                   default=0)


class Writer:
    """Writes many stories side by side."""

    def __init__(self, teacher: Teacher, vocabulary: Vocabulary):
        self.teacher, self.vocabulary = teacher, vocabulary
        self.mask = np.where(vocabulary.may_be_written, 0, -np.inf).astype(np.float32)
        ends = [vocabulary.text(i)[-1:] in '.!?"' for i in range(len(vocabulary.tokens))]
        self.ends_sentence = np.array(ends)

    def write(self, numbers: list[int]) -> list[Story]:
        """The stories of these numbers, in the order in which they end."""
        waiting, running, finished = list(numbers)[::-1], [], []
        while waiting or running:
            while waiting and len(running) < AT_A_TIME:
                running.append(Story(waiting.pop(), self.vocabulary, self.teacher))
            self._step(running)
            done = [story for story in running if story.is_finished()]
            for story in done:
                self.teacher.engine.free(story.sequence)
            running = [story for story in running if not story.is_finished()]
            finished += done
        return finished

    def _step(self, running: list[Story]) -> None:
        """A token more for each."""
        runs = [(story.sequence, story.feed, len(story.feed)) for story in running]
        logits = self.teacher.engine.forward(runs)[:, self.vocabulary.teachers] + self.mask
        last = np.cumsum([len(story.feed) for story in running]) - 1
        for story, row in zip(running, last):
            self._given(story, logits[row + 1 - len(story.feed):row])
        logits = logits[last]
        for story, row in zip(running, logits):
            row[story.repeated()] -= AGAINST_REPEATING
            row[1] += self._wish_to_end(story)
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
        return WISH_TO_END * max(0, n - USUAL)


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


def choose_vocabulary(teacher: Teacher) -> Vocabulary:
    """The tokens that stories need most, with those that they are merged from.

    They are counted in stories that the teacher writes with all of its tokens, in stories of the
    grammar, and in the lists of words.
    """
    full = Vocabulary(teacher.tokens[N_SPECIAL:], teacher.merges, teacher.ids)
    rng = random.Random("vocabulary")
    pilot = Writer(teacher, full).write(range(-PILOT_STORIES, 0))
    counts = Counter()
    for story in pilot:
        for best, log_p in zip(story.best, story.log_p):
            for token, p in zip(best.tolist(), np.exp(log_p).tolist()):
                counts[token] += p
    texts = [stories.story(rng) for _ in range(PILOT_STORIES)]
    texts += [beginning(rng)[0] for _ in range(20 * PILOT_STORIES)]
    texts += 2 * [f" {word}" for kind in CHOICES for word in CHOICES[kind] if kind != "stub"]
    for text in texts:
        counts.update(full.encode(text))
    made_from = {a + b: (a, b) for a, b in teacher.merges[::-1]}
    chosen = {token for token in full.tokens[2:] if len(token) == 1}
    for i, _ in counts.most_common():
        parts = with_parts(full.tokens[i], made_from) if i > 1 else set()
        if len(chosen | parts) > VOCAB_SIZE - 2:
            break
        chosen |= parts
    chosen = sorted(chosen, key=teacher.ids.get)
    covered = sum(n for i, n in counts.items() if full.tokens[i] in set(chosen))
    print(f"{len(chosen)} tokens, {covered / sum(counts.values()):.4f} of the text")
    return Vocabulary(chosen, teacher.merges, teacher.ids)


def with_parts(token: str, made_from: dict[str, tuple[str, str]]) -> set[str]:
    """The token and all that merges make on the way to it."""
    if len(token) == 1:
        return {token}
    return {token}.union(*(with_parts(part, made_from) for part in made_from[token]))


def save_shard(path: Path, written: list[Story]) -> int:
    """Saves what is good of each story, and returns how many tokens that is."""
    kept = [(story, story.n_good()) for story in written]
    kept = [(story, n) for story, n in kept if n >= max(SHORTEST, story.n_given + SHORTEST // 2)]
    arrays = dict(
        tokens=np.concatenate([np.array(story.tokens[:n], np.uint16) for story, n in kept]),
        lengths=np.array([n for _, n in kept]),
        given=np.array([story.n_given for story, _ in kept]),
        best=np.concatenate([np.array(story.best[:n], np.uint16) for story, n in kept]),
        log_p=np.concatenate([np.array(story.log_p[:n], np.float16) for story, n in kept]))
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb") as file:
        np.savez(file, **arrays)
    os.replace(unfinished, path)
    return len(arrays["tokens"])


def load_or_choose(teacher: Teacher, data: Path) -> Vocabulary:
    """The vocabulary in `data`, chosen and saved there if there is none yet."""
    if not (data / "tokenizer.json").exists():
        data.mkdir(parents=True, exist_ok=True)
        chosen = choose_vocabulary(teacher)
        chosen.tokenizer.save(str(data / "tokenizer.json"))
        np.save(data / "embedding.npy", teacher.embedding()[chosen.teachers])
    spec = json.loads((data / "tokenizer.json").read_text())["model"]
    return Vocabulary(list(spec["vocab"])[2:], map(tuple, spec["merges"]), teacher.ids)


def start_worker(data: Path) -> None:
    """Makes this process one that writes shards."""
    global writer
    teacher = Teacher()
    writer = Writer(teacher, load_or_choose(teacher, data))


def write_shard(path: Path) -> str:
    """Writes the stories of a shard unless it is there, and says how many tokens were kept."""
    if path.exists():
        return f"{path} is there"
    first = int(path.stem) * STORIES_A_SHARD
    written = writer.write(range(first, first + STORIES_A_SHARD))
    n = save_shard(path, written)
    return f"{path}: kept {n} of {sum(len(story.tokens) for story in written)} tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description="Let a teacher write stories.")
    parser.add_argument("data", type=Path, help="directory of the vocabulary and the shards")
    parser.add_argument("--shards", type=int, default=SHARDS)
    args = parser.parse_args()
    load_or_choose(Teacher(), args.data)
    paths = [args.data / f"{shard:04}.npz" for shard in range(args.shards)]
    with multiprocessing.Pool(initializer=start_worker, initargs=[args.data]) as pool:
        for line in tqdm(pool.imap(write_shard, paths), total=len(paths)):
            tqdm.write(line)


if __name__ == "__main__":
    main()
