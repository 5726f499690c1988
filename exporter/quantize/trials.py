"""The cost of matrices in four bits: how far the next token's distribution is from q8's, or the
vector of a text."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Collection, Mapping, Sequence

import numpy as np

from ..checkpoint import SLAB, Checkpoint
from .codes import codes_of
from .engine import START, Engine, Stream, Text, begins, longest
from .panels import (
    BLOCK,
    LANES,
    Blocks,
    inverse,
    pack_blocks,
    panel_bytes,
    rounded,
    unpack_blocks,
)
from .steps import Folder
from .work import Progress


class Trials:
    """The model in q8, in a file of its own in which single matrices have four bits for a while:
    the numbers that q4 has are numbers that q8 has too."""

    unit = "nats a token"  # of costs

    def __init__(self, folder: Folder, metadata: Mapping[str, object], texts: Sequence[Text]):
        self.folder, self.texts = folder, texts
        self.begins, self.stream = begins(metadata), START  # stream: of the model in q8
        # Another export to the same place must not change it.
        self.path = folder.file(f"trial-{os.getpid()}.bin")
        shutil.copyfile(folder.file("model.bin"), self.path)
        self.places = Checkpoint(self.path).tensors
        rows = sum(len(text.ids) for text in texts)
        self.engine = Engine(self.path, longest(texts), rows, rows)
        self._keep_right()

    def _keep_right(self) -> None:
        """Keeps what the model in q8 finds."""
        # Where the vocabulary is large, fewer positions say enough.
        most = (1 << 25) // self.engine.vocab_size // len(self.texts)
        self.n_logits = max(1, min(max(len(text.ids) for text in self.texts) // 2, most))
        logits = self.engine.logits(self.texts, self.n_logits)
        self.likely = [_softmax(row) for row in logits]
        self.negative_entropy = [_negative_entropy(row) for row in self.likely]

    def _distance(self, begin: Stream) -> float:
        """The mean Kullback-Leibler divergence of what the model finds now, in nats."""
        logits = self.engine.logits(self.texts, self.n_logits, begin)
        rows = zip(self.likely, self.negative_entropy, logits)
        return float(np.mean([_divergence(*row) for row in rows]))

    def close(self) -> None:
        self.engine.close()
        with contextlib.suppress(OSError):  # else it goes with the folder
            os.remove(self.path)

    def _stream_to(self, names: Collection[str]) -> Stream:
        """The input of the first layer that these matrices change, where a pass can begin."""
        layers = [int(n.split(".")[1]) if n.startswith("layers.") else 0 for n in names]
        begin = min((self.begins[layer] for layer in layers), default=0)
        if begin < self.stream.layer:
            self.stream = START
        if begin > self.stream.layer:
            self.stream = self.engine.stream(self.texts, begin, self.stream)
        return self.stream

    def divergence(
        self, names: Collection[str], times: float = 1, stages: Mapping[str, str] = {}
    ) -> float:
        """How far the model is from q8's if these matrices have their codes, of the first stage or
        another, and what that changes in them is `times` as large."""
        begin = self._stream_to(names)
        try:
            for name in names:
                self._put_codes(name, times, stages.get(name, ""))
            return self._distance(begin)
        finally:
            for name in names:
                self._bytes(name)[:] = self._bytes(name, self.folder.file("model.bin"))

    def _bytes(self, name: str, path: str | None = None) -> np.ndarray:
        """Of a matrix in the trials' file, or in another. Mapped while somebody has them: pages of
        a whole file count as memory, and the engine's are some already."""
        *_, offset, n_bytes = self.places[name]
        return np.memmap(path or self.path, np.uint8, "r" if path else "r+", offset, n_bytes)

    def _put_codes(self, name: str, times: float, stage: str) -> None:
        """Some panels at a time: the embeddings in float32 may be a gigabyte."""
        _, rows, cols, *_ = self.places[name]
        data = self._bytes(name).reshape(-1, panel_bytes("q8", cols))
        step = max(1, SLAB // cols // LANES)
        for first in range(0, len(data), step):
            panels = data[first : first + step]
            a, b = first * LANES, min((first + step) * LANES, rows)
            blocks, _ = codes_of(self.folder, name, a, b, stage)
            if times != 1:
                blocks = _amplified(unpack_blocks(panels, "q8", b - a, cols), blocks, times)
            panels[:] = np.frombuffer(pack_blocks(blocks, "q8"), np.uint8).reshape(panels.shape)


class VectorTrials(Trials):
    """Of a model whose texts become vectors: one less their cosine to q8's, which grows with the
    square of what rounding changes as a divergence does."""

    unit = "of cosine"

    def _keep_right(self) -> None:
        self.vectors = self.engine.vectors(self.texts)

    def _stream_to(self, names: Collection[str]) -> Stream:
        return START  # a text's vector comes from a whole pass

    def _distance(self, begin: Stream) -> float:
        return float(1 - np.mean(np.sum(self.engine.vectors(self.texts) * self.vectors, 1)))


def _amplified(eight: Blocks, four: Blocks, times: float) -> Blocks:
    """eight + times (four - eight), in q8."""
    weights = eight.weights()
    weights += np.float32(times) * (four.weights() - weights)
    blocks = weights.reshape(len(weights), -1, BLOCK)
    scale = (np.abs(blocks).max(2) / np.float32(127)).astype(np.float16).astype(np.float32)
    return Blocks(rounded(blocks * inverse(scale)[..., None], "q8").reshape(weights.shape), scale)


def _softmax(logits: np.ndarray) -> np.ndarray:
    likely = np.exp(logits - logits.max())
    return likely / likely.sum()


def _negative_entropy(likely: np.ndarray) -> float:
    return float(likely @ np.log(np.maximum(likely, np.float32(1e-37))))


def _divergence(likely: np.ndarray, negative_entropy: float, logits: np.ndarray) -> float:
    """KL(likely || softmax of logits)."""
    logits = logits - logits.max()
    return negative_entropy - float(likely @ logits) + float(np.log(np.exp(logits).sum()))


# Any change of weights makes later layers round their activations otherwise, which alone costs as
# much as four bits in some matrices. So changes are tried larger than they are: what rounding costs
# grows with their square, and the rest does not.
TIMES = 4


def costs_of(
    folder: Folder, trials: Trials, names: Sequence[str], progress: Progress
) -> dict[str, float]:
    """The cost of each of the matrices alone in four bits."""
    costs: dict[str, float] = {}
    if folder.has("costs.json"):
        with open(folder.file("costs.json"), encoding="utf-8") as file:
            costs = json.load(file)
    progress.was_done("costs", len(costs) / len(names) if names else 1)
    for name in names:
        if name not in costs:
            costs[name] = trials.divergence([name], TIMES) / TIMES**2
            folder.write("costs.json", json.dumps(costs).encode())
            progress.reach("costs", len(costs) / len(names))
    return costs
