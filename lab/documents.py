"""What the laboratory's models read: beginnings of stories by models/stories.py, and a game of
memory with names, colours and things from the same tables; and the nats that a document holds,
which is the least that any model can pay for it.

    python lab/documents.py [SEED]      prints six documents

A game says who hid what, and then says it again and again in an order of its own:

    Zoe hid the red kite. Sam hid the blue drum. Sam hid the blue drum. Zoe hid the red kite.

Whose turn comes next is chance. What he or she hid is not: whoever still has the facts pays nothing
for it, so what a model pays there is what its cache, or its reading of the cache, has lost.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models"))

import stories  # noqa: E402  (found through the line above)

BEGIN = "<|begin|>"  # the first token of each document
LENGTH = 64  # tokens of a document
FACTS, TURNS = 4, 12  # of a game; not all turns have room in a document
KINDS = ("games", "stories")  # a document is either with the same chance
HELD_OUT_SEED, HELD_OUT = 1_000_000, 256  # documents of each kind

NAMES = stories.SHE + stories.HE
COLOURS = stories.COLOURS
THINGS = sorted({row["name"] for row in stories.TABLES["thing"]})


def game(rng: random.Random) -> list[tuple[str, float]]:
    """A game in sentences: each with the nats of the choices that are made where it begins."""
    chosen = zip(*(rng.sample(pool, FACTS) for pool in (NAMES, COLOURS, THINGS)))
    facts = [f"{name} hid the {colour} {thing}." for name, colour, thing in chosen]
    left = [math.log(math.prod(len(pool) - i for pool in (NAMES, COLOURS, THINGS)))
            for i in range(FACTS)]  # fmt: skip
    turns = [(" " + rng.choice(facts), math.log(FACTS)) for _ in range(TURNS)]
    return [(" " * (i > 0) + fact, left[i]) for i, fact in enumerate(facts)] + turns


def game_nats(text: str, sentences: list[tuple[str, float]]) -> float:
    """-log of the probability that a game begins with `text`. The choice of a turn is its name's, a
    single token, so that a sentence counts as soon as it has begun."""
    total, at = 0.0, 0
    for sentence, cost in sentences:
        total, at = total + cost * (at < len(text)), at + len(sentence)
    return total


def story_nats(text: str) -> float:
    """-log of the probability that stories.story() begins with `text`: over all the readings that
    stories.check() would try, the sum of their probabilities."""
    total = 0.0
    readings = [(1.0, 0, {}, ["<story>"])]  # probability, characters read, cast, symbols to come
    while readings:
        p, at, cast, pending = readings.pop()
        if at == len(text):
            total += p
            continue
        symbol, rest = pending[0], pending[1:]
        if symbol[0] in "<{":
            options = stories.options(symbol, cast)
            readings += [(p / len(options), at, changed, stories.symbols(template) + rest)
                         for template, changed in options]  # fmt: skip
        elif symbol.startswith(text[at : at + len(symbol)]):
            readings.append((p, min(len(text), at + len(symbol)), cast, rest))
    return -math.log(total)


def make_tokenizer(n_documents: int = 3000):
    """A byte-level tokenizer that has a token for every word of the documents, and letters for
    what is rarer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rng, words = random.Random(0), set()
    for _ in range(n_documents):
        for text in ("".join(sentence for sentence, _ in game(rng)), stories.story(rng)):
            words.update(word for word, _ in split.pre_tokenize_str(text)[:LENGTH])
    letters = {letter for word in words for letter in word}
    entries = [BEGIN, *sorted(letters), *sorted(words - letters)]
    tokenizer = Tokenizer(
        models.BPE({word: i for i, word in enumerate(entries)}, [], ignore_merges=True)
    )
    tokenizer.add_special_tokens([BEGIN])
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    return tokenizer


def document(tokenizer, rng: random.Random, kind: str) -> tuple[list[int], str, float]:
    """A document: its tokens, its text, and its nats if it is a game (NaN otherwise, since those of
    a story take a while). It is cut where it is long enough; drawn again if it is too short, or
    would be read otherwise without what follows."""
    while True:
        sentences = game(rng) if kind == "games" else [(stories.story(rng), math.nan)]
        whole = BEGIN + "".join(sentence for sentence, _ in sentences)
        ids = tokenizer.encode(whole).ids[:LENGTH]
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if len(ids) == LENGTH and tokenizer.encode(text).ids == ids:
            return ids, text, game_nats(text[len(BEGIN) :], sentences)


def training_set(tokenizer, seed: int, n: int) -> np.ndarray:
    """n documents of both kinds, an array [n][LENGTH]."""
    rng = random.Random(seed)
    rows = [document(tokenizer, rng, rng.choice(KINDS))[0] for _ in range(n)]
    return np.array(rows, dtype=np.int64)


def held_out(tokenizer, kind: str, n: int = HELD_OUT) -> tuple[np.ndarray, str, float]:
    """n documents that no model is trained on: their tokens, one text of all of them for --ppl, and
    the floor of the loss, in nats a predicted token."""
    rng = random.Random(HELD_OUT_SEED)
    rows, texts, nats = zip(*(document(tokenizer, rng, kind) for _ in range(n)))
    if kind == "stories":
        nats = [story_nats(text[len(BEGIN) :]) for text in texts]
    return np.array(rows), "".join(texts), sum(nats) / (n * (LENGTH - 1))


def main():
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    tokenizer = make_tokenizer()
    print(f"{tokenizer.get_vocab_size()} tokens\n")
    for kind in KINDS * 3:
        print(document(tokenizer, rng, kind)[1], end="\n\n")


if __name__ == "__main__":
    main()
