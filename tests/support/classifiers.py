"""Checkpoints with heads for classes: golden ones with steps that a formula makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import test_encoders
from golden_copies import edit_config, edit_tensors

from conftest import ROOT

GOLDEN = ROOT / "tests" / "golden"
TEXTS, TOKENS = "ForSequenceClassification", "ForTokenClassification"
N = 3  # classes, unless a case says otherwise
LABELS = ("good", 'so "so"', "schlecht, très")


def weights(rows: int, cols: int, at: int) -> np.ndarray:
    """Numbers of size 1/sqrt(cols) that differ among tensors."""
    i, j = np.indices((rows, cols))
    return (np.sin(1.7 * i + 0.9 * j * (i + 1) + at) * 1.5 / cols**0.5).astype(np.float32)


def step(module: str, rows: int, at: int, cols: int = 36) -> dict[str, np.ndarray]:
    return {
        f"{module}.weight": weights(rows, cols, at),
        f"{module}.bias": weights(1, rows, at + 5)[0],
    }


# The tokenizer of letters has another eos_token_id than the golden encoder-decoders.
HEAD_OF_BOTH = {
    **step("classification_head.dense", 36, 8),
    **step("classification_head.out_proj", N, 9),
}
# name: golden checkpoint, architecture, head, prefixes of tensors that go, changes in config.json
CASES = {
    "bert": (
        "bert",
        "Bert" + TEXTS,
        {**step("bert.pooler.dense", 36, 1), **step("classifier", N, 2)},
        "cls.",
        {},
    ),
    "bert-tokens": ("bert", "Bert" + TOKENS, step("classifier", N, 3), "cls.", {}),
    "mpnet": (
        "mpnet",
        "MPNet" + TEXTS,
        {**step("classifier.dense", 36, 4), **step("classifier.out_proj", N, 5)},
        "lm_head.",
        {},
    ),
    "modernbert-mean": (
        "modernbert",
        "ModernBert" + TEXTS,
        step("classifier", N, 6),
        "decoder.",
        {"classifier_pooling": "mean"},
    ),
    "bart": ("bart", "Bart" + TEXTS, HEAD_OF_BOTH, ("final", "lm_head."), {"eos_token_id": 3}),
    "t5": ("t5", "T5" + TEXTS, HEAD_OF_BOTH, "lm_head.", {"eos_token_id": 3}),
    "t5-tokens": ("t5", "T5" + TOKENS, step("classifier", N, 10), ("decoder.", "lm_head."), {}),
    "reranker": (
        "bert",
        "Bert" + TEXTS,
        {**step("bert.pooler.dense", 36, 1), **step("classifier", 1, 7)},
        "cls.",
        {"id2label": {"0": "LABEL_0"}},
    ),
}


def make(name: str, directory: Path, **changes) -> Path:
    """The checkpoint of a case, BERT's with a tokenizer of letters."""
    golden, architecture, head, gone, config = CASES[name]
    if golden == "bert":
        test_encoders.with_texts(directory, modules=None, sentence_bert_config=None)
    else:
        both = GOLDEN / "encoder_decoders" / golden
        shutil.copytree(both if both.exists() else GOLDEN / "encoders" / golden, directory)

    def edit(tensors):
        for key in [key for key in tensors if key.startswith(gone)]:
            del tensors[key]
        tensors.update(head)

    edit_tensors(directory, edit)
    labels = {str(i): label for i, label in enumerate(LABELS)}
    edit_config(
        directory, **{"architectures": [architecture], "id2label": labels, **config, **changes}
    )
    return directory
