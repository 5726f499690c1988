"""Rounding by what it does: the engine runs texts in q8, the inputs that matrices have there decide
their codes (codes.py), and what each matrix costs in four bits is measured (trials.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Collection, Mapping

import numpy as np

from .budget import Rounding, prior, rounded_matrices, sizes_of
from .checkpoint import entries, write_checkpoint
from .codes import feed, with_codes
from .engine import Engine
from .steps import Folder, bar
from .tensor import ExportError, Tensor
from .trials import Trials, costs_of


@dataclass(frozen=True)
class Amounts:
    """How much text: `texts` of `length` tokens, of which the last `held` only measure costs, by
    the first `measured` of their tokens, and by the logits of the later half of these; and how many
    run side by side, when they are written and when they are read."""

    texts: int = 100
    length: int = 256
    held: int = 4
    measured: int = 128
    batch: int = 50
    pass_texts: int = 8
    least: int = 8  # texts that a file must be enough for


AMOUNTS = Amounts()
STARTS = (1, 16)  # random tokens that every other text begins with


class Calibration:
    """What calibrate() found: codes in `dtype`, and `costs` of the matrices alone in four bits, in
    nats a token where they were measured. `with` closes it."""

    def __init__(self, folder: Folder, dtype: str, multiplied: list[str],
                 costs: dict[str, float], trials: Trials | None = None):  # fmt: skip
        self.folder, self.dtype, self.multiplied = folder, dtype, multiplied
        self.costs, self.trials = costs, trials

    def __enter__(self) -> "Calibration":
        return self

    def __exit__(self, *_) -> None:
        if self.trials:
            self.trials.close()

    def divergence(self, eight: Collection[str]) -> float | None:
        """What all matrices but these cost together; None: the model has no logits."""
        four = [name for name in self.multiplied if name not in eight]
        return self.trials.divergence(four) if self.trials else None

    def with_codes(self, tensors: Mapping[str, Tensor], others: Collection[str] = ()
                   ) -> dict[str, Tensor]:  # fmt: skip
        """The tensors of the file: all but the others give what feedback made of them."""
        made = {
            name: with_codes(self.folder, tensors[name], name, self.dtype)
            for name in self.multiplied
            if name not in others
        }
        first = rounded_matrices(tensors, self.dtype)
        return {name: made.get(first.get(name), tensor) for name, tensor in tensors.items()}


def calibrate(
    folder: Folder,
    metadata: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    rounding: Rounding,
) -> Calibration:
    """Codes of the matrices, and what q4 costs them. Errors: ExportError, OSError."""
    amounts = AMOUNTS
    amounts = replace(amounts, length=min(amounts.length, int(metadata["model.context"])))
    _write_model(folder, metadata, tensors)
    texts = _texts(folder, metadata, rounding.text, amounts)
    used = len(texts) - amounts.held
    sizes = sizes_of(tensors, rounding.dtype)
    multiplied = feed(folder, metadata, {n: tensors[n] for n in sizes}, rounding.dtype,
                      texts[:used], amounts.pass_texts)  # fmt: skip
    if rounding.dtype == "q8" or metadata.get("model.head") == 0:
        return Calibration(folder, rounding.dtype, multiplied, prior(sizes))
    trials = Trials(folder, texts[used:, : amounts.measured])
    try:
        costs = costs_of(folder, trials, multiplied)
    except BaseException:
        trials.close()
        raise
    costs = {n: costs.get(n, 0.0) for n in sizes}
    return Calibration(folder, rounding.dtype, multiplied, costs, trials)


def _write_model(folder: Folder, metadata, tensors) -> None:
    """The model in q8, which texts run through."""
    if folder.has("model.bin"):
        return
    stored = entries(tensors, "q8")
    with bar("q8", sum(e.bytes for e in stored)) as progress:
        write_checkpoint(folder.file("model.bin"), metadata, stored, progress.update)


# ---- texts ----


def _texts(folder: Folder, metadata, text: str | None, amounts: Amounts) -> np.ndarray:
    if not folder.has("texts.npz"):
        encoder = np.any(np.asarray(metadata.get("layer.mask", 0)))
        if text is None and (encoder or metadata.get("model.head") == 0):
            raise ExportError("the model cannot write a text to calibrate with: name a file of it")
        found = _own_texts if text is None else _texts_of_file
        folder.save("texts.npz", {"ids": found(folder, metadata, text, amounts)})
    with np.load(folder.file("texts.npz")) as file:
        return file["ids"]


def _beginning(engine: Engine, metadata) -> list[int]:
    """BOS, if texts begin with it."""
    if "tokenizer.prefix" not in metadata:
        return []
    return [int(i) for i in np.atleast_1d(metadata["tokenizer.prefix"])]


def _own_texts(folder: Folder, metadata, _, amounts: Amounts) -> np.ndarray:
    """What the model writes after BOS and random tokens, some batches of it: after one it writes
    what it was trained on most, after many other languages and kinds of text too."""
    numbers = np.random.RandomState(1)
    batches = []
    with Engine(
        folder.file("model.bin"), amounts.length, 2 * amounts.batch, amounts.batch
    ) as engine, bar("text", amounts.texts) as progress:
        beginning = _beginning(engine, metadata)
        for first in range(0, amounts.texts, amounts.batch):
            n = min(amounts.batch, amounts.texts - first)
            starts = [STARTS[i % len(STARTS)] for i in range(first, first + n)]
            texts = [beginning + numbers.randint(0, engine.vocab_size, k).tolist() for k in starts]
            batches.append(engine.continued(texts, amounts.length, first))
            progress.update(n)
    return np.concatenate(batches)


def _texts_of_file(folder: Folder, metadata, path: str, amounts: Amounts) -> np.ndarray:
    """Stretches of a file, from all over it."""
    with open(path, "rb") as file:
        text = file.read()
    with Engine(folder.file("model.bin"), amounts.length, 1, 1) as engine:
        beginning = _beginning(engine, metadata)
        ids = engine.encode(text)[len(beginning) :]
    length = amounts.length - len(beginning)
    n = len(ids) // length
    if n < amounts.least:
        raise ExportError(
            f"{path}: {len(ids)} tokens; calibrating wants {amounts.least * length} at least, "
            f"better {amounts.texts * length}"
        )
    chosen = np.linspace(0, n - 1, min(n, amounts.texts)).astype(int)
    return np.array([beginning + ids[i * length : (i + 1) * length] for i in chosen], np.int32)
