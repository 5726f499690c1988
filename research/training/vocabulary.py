"""The bundled model's vocabulary: part of the teacher's tokens, as a byte-level BPE of its own.

So model and teacher share their tokens, and the model can learn from the teacher's probabilities.
"""

from __future__ import annotations

import re

import numpy as np

from research.stories import BEGIN, END  # ids 0 and 1
from research.training.teacher import END_OF_TURN, TURN, byte_level

CLEAN = re.compile(r"\n\n|[ \"]?[A-Za-z]+|[ ]?['\"][a-z]*|[ ]?[.,!?\"'-]+")
UNWANTED = """story stories moral chapter tale tales title question questions answer answers sentence
    sentences phrase word words text user request prompt example write writing writer rewrite AI
    assistant chatbot language essay paragraph narrative summary special kill kills killed killing killer murder murdered murderer suicide
    blood bloody corpse gun guns bomb rape sex sexual sexy naked drug drugs cocaine drunk damn
    hell racist Nazi""".lower().split()  # of texts themselves, and what children should not read


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
        self.may_be_written = np.array(
            [
                bool(CLEAN.fullmatch(text)) and text.strip(' "').lower() not in UNWANTED
                for text in texts
            ]
        )
        self.may_be_written[:2] = False, True

    def text(self, token: int) -> str:
        return self.tokenizer.decoder.decode([self.tokens[token]])

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids
