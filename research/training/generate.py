"""Lets the teacher write short stories, and keeps what it thought of each next token.

    python -m research.training.generate DATA      a directory; what is there is not written again
    python -m research.training.generate DATA --model MODEL.bin

It may be stopped at any time. Texts that were being written are lost, shards of them are not.

The vocabulary is chosen first: of the teacher's tokens, the ones that such stories need most. Then
workers write shards of stories (writer.py), a file each.

With --model, that model writes the stories, and the teacher says what it would have written in the
place of each token: a model learns most from what it does wrong by itself (Agarwal et al. 2024,
arXiv:2306.13649). DATA then has tokenizer.json and embedding.npy already.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from collections import Counter
from pathlib import Path

import heads
import numpy as np
from tqdm import tqdm

from research import stories
from research.training.beginnings import CHOICES, beginning
from research.training.shards import save_arrays, unfinished
from research.training.teacher import N_SPECIAL, Teacher
from research.training.vocabulary import Vocabulary
from research.training.writer import SHORTEST, Story, Writer

VOCAB_SIZE, PILOT_STORIES = 6144, 512
SHARDS, STORIES_A_SHARD = 36, 512
FIRST_OF_MODEL = 10**7  # other beginnings than the teacher's
AGAINST_CIRCLES = 4.0  # nats: the teacher, too, goes on with a text that goes round in circles


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
    texts += 2 * [f" {word}" for kind in CHOICES for word in CHOICES[kind]]
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


def load_or_choose(teacher: Teacher, data: Path) -> Vocabulary:
    """The vocabulary in `data`, chosen and saved there if there is none yet."""
    tokenizer, embedding = data / "tokenizer.json", data / "embedding.npy"
    if not tokenizer.exists():
        data.mkdir(parents=True, exist_ok=True)
        choose_vocabulary(teacher).tokenizer.save(str(unfinished(tokenizer)))
        os.replace(unfinished(tokenizer), tokenizer)
    spec = json.loads(tokenizer.read_text())["model"]
    vocabulary = Vocabulary(list(spec["vocab"])[2:], map(tuple, spec["merges"]), teacher.ids)
    if not embedding.exists():
        with open(unfinished(embedding), "wb") as file:
            np.save(file, teacher.embedding()[vocabulary.teachers])
        os.replace(unfinished(embedding), embedding)
    return vocabulary


def save_shard(path: Path, written: list[Story]) -> int:
    """Saves what is good of each story, and returns how many tokens that is."""
    kept = [(story, story.n_good()) for story in written]
    kept = [(story, n) for story, n in kept if n >= max(SHORTEST, story.n_given + SHORTEST // 2)]
    arrays = dict(
        tokens=np.concatenate([np.array(story.tokens[:n], np.uint16) for story, n in kept]),
        lengths=np.array([n for _, n in kept]),
        given=np.array([story.n_given for story, _ in kept]),
        number=np.array([story.number for story, _ in kept]),
        kind=np.array([story.kind.name for story, _ in kept]),
        best=np.concatenate([np.array(story.best[:n], np.uint16) for story, n in kept]),
        log_p=np.concatenate([np.array(story.log_p[:n], np.float16) for story, n in kept]),
    )
    save_arrays(path, arrays)
    return len(arrays["tokens"])


def start_worker(data: Path, path: Path | None) -> None:
    """Makes this process one that writes shards."""
    global writer, model
    teacher = Teacher()
    vocabulary = load_or_choose(teacher, data)
    writer = Writer(teacher, vocabulary, AGAINST_CIRCLES) if path else Writer(teacher, vocabulary)
    model = heads.Model(path, threads=1) if path else None


def write_shard(path: Path) -> str:
    """Writes the stories of a shard, and says how many tokens were kept."""
    first = int(path.stem) * STORIES_A_SHARD + (FIRST_OF_MODEL if model else 0)
    numbers = range(first, first + STORIES_A_SHARD)
    written = writer.read(numbers, model) if model else writer.write(numbers)
    n = save_shard(path, written)
    return f"{path}: kept {n} of {sum(len(story.tokens) for story in written)} tokens"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Let a teacher write stories.")
    parser.add_argument("data", type=Path, help="directory of the vocabulary and the shards")
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--model", type=Path, help="writes the stories, which the teacher reads")
    args = parser.parse_args(arguments)
    paths = [args.data / f"{shard:04}.npz" for shard in range(args.shards)]
    paths = [path for path in paths if not path.exists()]
    if not paths:
        print(f"{args.data} is done.")
        return
    load_or_choose(Teacher(), args.data)
    with multiprocessing.Pool(initializer=start_worker, initargs=[args.data, args.model]) as pool:
        for line in tqdm(pool.imap(write_shard, paths), total=len(paths)):
            tqdm.write(line)


if __name__ == "__main__":
    main()
