"""What the laboratory's models read: beginnings of stories (research/stories.py), and echoes, words
of these stories that are said again; and the nats that a document holds, which is the least that
any model can pay for it.

    python -m research.lab.texts [SEED]      prints six documents

An echo is 21 random words, said three times in the same order. A model that kept the words pays
nothing for the second and the third time: its loss there is what its cache, or its reading of the
cache, has lost. A story asks for less: one name, one thing and one colour at a time.
"""

from __future__ import annotations

import functools
import math
import random
import re
import sys

import numpy as np

from research import stories
from research.stories import BEGIN  # the first token of each document

LENGTH = 64  # tokens of a document
WORDS, TIMES = 21, 3  # of an echo; with BEGIN they make a document
KINDS = ("echoes", "stories")  # a document is either with the same chance
HELD_OUT_SEED, HELD_OUT = 1_000_000, 256  # documents of each kind
TOKEN = re.compile(r" ?[A-Za-z]+|[^A-Za-z\s]|\s+")  # stories have no others


@functools.cache
def vocabulary() -> list[str]:
    """What 3,000 beginnings of stories are made of: words with the blank before them, marks."""
    rng = random.Random(0)
    return sorted(
        {token for _ in range(3000) for token in TOKEN.findall(stories.story(rng))[:LENGTH]}
    )


@functools.cache
def echoed() -> list[str]:
    """The words that an echo chooses from."""
    return [token for token in vocabulary() if re.fullmatch(" [a-z]+", token)]


def echo(rng: random.Random) -> str:
    return TIMES * "".join(rng.choices(echoed(), k=WORDS))


def echo_nats() -> float:
    """-log of the probability of any echo."""
    return WORDS * math.log(len(echoed()))


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
            readings += [
                (p / len(options), at, changed, stories.symbols(template) + rest)
                for template, changed in options
            ]
        elif symbol.startswith(text[at : at + len(symbol)]):
            readings.append((p, min(len(text), at + len(symbol)), cast, rest))
    return -math.log(total)


def make_tokenizer():
    """A byte-level tokenizer that has a token for every word of the documents, and letters for
    what is rarer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    words = {word for token in vocabulary() for word, _ in split.pre_tokenize_str(token)}
    letters = {letter for word in words for letter in word}
    entries = [BEGIN, *sorted(letters), *sorted(words - letters)]
    tokenizer = Tokenizer(
        models.BPE({word: i for i, word in enumerate(entries)}, [], ignore_merges=True)
    )
    tokenizer.add_special_tokens([BEGIN])
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    return tokenizer


def document(tokenizer, rng: random.Random, kind: str) -> tuple[list[int], str]:
    """A document: its tokens and its text. It is cut where it is long enough; drawn again if it is
    too short, or would be read otherwise without what follows."""
    while True:
        whole = BEGIN + (echo(rng) if kind == "echoes" else stories.story(rng))
        ids = tokenizer.encode(whole).ids[:LENGTH]
        text = tokenizer.decode(ids, skip_special_tokens=False)
        if len(ids) == LENGTH and tokenizer.encode(text).ids == ids:
            return ids, text


def training_set(tokenizer, seed: int, n: int) -> np.ndarray:
    """n documents of both kinds, an array [n][LENGTH]."""
    rng = random.Random(seed)
    rows = [document(tokenizer, rng, rng.choice(KINDS))[0] for _ in range(n)]
    return np.array(rows, dtype=np.int64)


def held_out(tokenizer, kind: str, n: int = HELD_OUT) -> tuple[np.ndarray, str, float]:
    """n documents that no model is trained on: their tokens, one text of all of them for --ppl, and
    the floor of the loss, in nats a predicted token."""
    rng = random.Random(HELD_OUT_SEED)
    rows, texts = zip(*(document(tokenizer, rng, kind) for _ in range(n)))
    nats = [echo_nats() if kind == "echoes" else story_nats(text[len(BEGIN) :]) for text in texts]
    return np.array(rows), "".join(texts), sum(nats) / (n * (LENGTH - 1))


def main():
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    tokenizer = make_tokenizer()
    print(f"{tokenizer.get_vocab_size()} tokens, {len(echoed())} words to echo\n")
    for kind in KINDS * 3:
        print(document(tokenizer, rng, kind)[1], end="\n\n")


if __name__ == "__main__":
    main()
