"""What matrices cost in four bits: how far the next token's distribution is from that of q8."""

from __future__ import annotations

import json
import shutil
from typing import Iterable, Sequence

import numpy as np

from .checkpoint import Checkpoint
from .codes import codes_of
from .engine import Engine
from .quantize import pack_blocks
from .steps import Folder, bar


class Trials:
    """The model in q8, in a file of its own in which single matrices have four bits for a while:
    the numbers that q4 has are numbers that q8 has too."""

    def __init__(self, folder: Folder, texts: np.ndarray):
        self.folder, self.texts = folder, texts
        self.path = folder.file("trial.bin")
        shutil.copyfile(folder.file("model.bin"), self.path)
        self.places = Checkpoint(self.path).tensors
        self.data = np.memmap(self.path, np.uint8, "r+")
        rows = texts.size
        self.engine = Engine(self.path, texts.shape[1], rows, rows)
        # Where the vocabulary is large, fewer positions say enough.
        most = (1 << 25) // self.engine.vocab_size // len(texts)
        self.n_logits = max(1, min(texts.shape[1] // 2, most))
        logits = self.engine.logits(texts, self.n_logits)
        self.likely = [_softmax(row) for row in logits]

    def close(self) -> None:
        self.engine.close()

    def divergence(self, names: Iterable[str]) -> float:
        """How far the next token's distribution is from that of q8 if these matrices have four
        bits: the mean Kullback-Leibler divergence, in nats."""
        undo = []
        try:
            for name in names:
                _, rows, _, offset, n_bytes = self.places[name]
                place = slice(offset, offset + n_bytes)
                blocks, _ = codes_of(self.folder, name, 0, rows)
                undo.append((place, self.data[place].copy()))
                self.data[place] = np.frombuffer(pack_blocks(blocks, "q8"), np.uint8)
            logits = self.engine.logits(self.texts, self.n_logits)
        finally:
            for place, data in reversed(undo):
                self.data[place] = data
        return float(np.mean([_divergence(p, q) for p, q in zip(self.likely, logits)]))


def _softmax(logits: np.ndarray) -> np.ndarray:
    likely = np.exp(logits - logits.max())
    return likely / likely.sum(dtype=np.float64)


def _divergence(likely: np.ndarray, logits: np.ndarray) -> float:
    """KL(likely || softmax of logits)."""
    seen = likely > 0
    p, x = likely[seen].astype(np.float64), logits.astype(np.float64)
    top = x.max()
    return float(p @ (np.log(p) - x[seen])) + top + float(np.log(np.exp(x - top).sum()))


def costs_of(folder: Folder, trials: Trials, names: Sequence[str]) -> dict[str, float]:
    """What each of the matrices costs alone in four bits."""
    costs: dict[str, float] = {}
    if folder.has("costs.json"):
        with open(folder.file("costs.json"), encoding="utf-8") as file:
            costs = json.load(file)
    with bar("costs", len(names)) as progress:
        progress.update(len(costs))
        for name in names:
            if name not in costs:
                costs[name] = trials.divergence([name])
                folder.write("costs.json", json.dumps(costs).encode())
                progress.update()
    return costs
