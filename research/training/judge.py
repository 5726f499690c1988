"""How sensible a model's continuations are to SmolLM2-135M-Instruct, in nats a character, and how
many go round in circles.

    python -m research.training.judge MODEL.bin...     --development: the other set of beginnings

Each model goes on from each beginning with the default sampling, 80 tokens at most, and the judge
says how unlikely the continuation is, given the beginning. Text that repeats itself is easy to
guess, so that is counted too, without the judge: whole texts (MOST tokens at most), with SEEDS
seeds from each of a dozen beginnings. The held-out beginnings chose nothing; whoever compares
models, or stages of one, uses the others.
"""

from __future__ import annotations

import argparse

import heads
import numpy as np

from research.training.loops import LOOPING, repeated_share
from research.training.teacher import Teacher

SEEDS, MOST = 20, 256

HELD_OUT = [
    "Anton and Beatrice were building a snowman",
    "My grandmother's attic was full of",
    "The submarine went deeper and deeper until",
    "When the alarm clock rang, Stella",
    "Nobody in the village had ever seen a",
    "I don't want to go to bed,",
    "The two kittens shared one bowl of milk.",
    "On the first day of school, Ibrahim",
    "A very small cloud wanted to",
    "The bus was late again, and Mrs. Potter",
    "We planted a sunflower behind the garage.",
    '"Who ate my porridge?"',
    "Once there was a tailor who",
    "The lighthouse keeper and his parrot",
    "Yesterday my tooth fell out and",
    "Ingrid's bicycle had a flat tire, so",
    "Deep in the jungle, a sleepy leopard",
    "The new girl in our class",
    "It was the hottest day of the year.",
    "Rosalind opened the tiny wooden door",
    "My brother is afraid of thunder because",
    "The astronaut looked out of the window and",
    "Every Saturday we bake",
    "Walter the walrus loved to sing,",
    "There is a hole in my pocket, and",
    "The king lost his glasses.",
    "Grandfather told us about the time when",
    "At the swimming pool, Esther",
    "The puppet show was about to begin",
    "I wish I could fly like",
    "Two snowflakes fell on a mitten.",
    "The wolf knocked on the door and said",
    "After lunch, the twins",
    "Nadir had never been on a train before.",
    "Our neighbor's goat ate",
    "Mother put a warm blanket over",
    "The dragon was not scary at all. He",
    "If you listen carefully at night, you can hear",
    "Penelope drew a picture of her",
    "The last leaf on the maple tree",
]
DEVELOPMENT = [
    "Tom and Mia were playing in the garden",
    "My dog likes to",
    "It was raining, so the children",
    "The baker woke up early and",
    "Gustav found an old map in the cellar.",
    "Why is the moon",
    "Aunt Petra brought us a basket of",
    "The little tugboat was stuck in the ice.",
    "I saw a hedgehog crossing the road",
    "One morning, all the clocks",
    "Sally and her hamster",
    "The teacher asked the class to",
    "In the middle of the night, Theodore heard",
    "A rabbit and a snail had a race.",
    "My favorite place is",
    "The princess did not want to wear",
    "Miriam was sick, so she",
    "There were three bears in the kitchen",
    '"Let\'s go to the circus!" said Ferdinand.',
    "When winter came, the squirrel",
]
WHOLE = [  # held out, too
    "The ferry to the island was",
    "My uncle keeps bees and",
    "When the lights came back on,",
    "Beatrix had promised to water the plants",
    "I have never liked elevators.",
    "An old umbrella stood in the corner",
    "Mr. Okonkwo fixes shoes",
    "Do you remember the winter when",
    "The smallest elephant in the zoo",
    "We were almost home when",
    "Dear Aunt Matilda,",
    "Somewhere in the mountains there is",
]


def continuation(model: heads.Model, beginning: str, seed: int) -> str:
    """What the model adds, without white space at its end."""
    return model.generate(beginning, max_tokens=80, seed=seed).rstrip()


def nats(judge: Teacher, beginning: str, text: str) -> float:
    """How unlikely the judge finds `text` after `beginning`, as plain text."""
    given, ids = judge.encode(beginning), judge.encode(text)
    logits = judge.model.logits(given + ids[:-1])[-len(ids) :].astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids)), ids]).sum())


def score(judge: Teacher, model: heads.Model, beginnings: list[str], show: bool) -> float:
    """Nats a character over all continuations together."""
    total = characters = 0
    for seed, beginning in enumerate(beginnings, 1):
        text = continuation(model, beginning, seed)
        if not text:
            continue
        cost = nats(judge, beginning, text)
        total += cost
        characters += len(text)
        if show:
            print(f"{cost / len(text):.2f} {beginning}|{text}\n")
    return total / characters


def looping(model: heads.Model, beginnings: list[str]) -> float:
    """The share of texts that go round in circles."""
    texts = [
        model.generate(beginning, max_tokens=MOST, seed=seed)
        for beginning in beginnings
        for seed in range(1, SEEDS + 1)
    ]
    return sum(repeated_share(text) > LOOPING for text in texts) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge models' continuations.")
    parser.add_argument("models", nargs="+")
    parser.add_argument(
        "--development",
        action="store_true",
        help="beginnings for comparing models, not the held-out ones",
    )
    parser.add_argument("--show", action="store_true", help="print the continuations")
    args = parser.parse_args()
    judge = Teacher()
    beginnings = DEVELOPMENT if args.development else HELD_OUT
    whole = DEVELOPMENT[: len(WHOLE)] if args.development else WHOLE
    for path in args.models:
        with heads.Model(path, threads=1) as model:
            cost = score(judge, model, beginnings, args.show)
            print(
                f"{cost:.3f} nats a character, {looping(model, whole):.3f} of"
                f" {len(whole) * SEEDS} texts go round in circles: {path}"
            )


if __name__ == "__main__":
    main()
