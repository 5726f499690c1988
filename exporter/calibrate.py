"""Rounding by what it does: the engine runs texts in q8, the inputs that matrices have there decide
their codes (codes.py), and what each matrix costs in four bits is measured (trials.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Collection, Iterator, Mapping, Sequence

import numpy as np

from .beginnings import BEGINNINGS
from .budget import Rounding, prior, rounded_matrices, sizes_of
from .checkpoint import entries, write_checkpoint
from .codes import feed, with_codes
from .engine import Engine, Text
from .steps import Folder, bar
from .tensor import ExportError, Tensor
from .trials import Trials, costs_of


@dataclass(frozen=True)
class Amounts:
    """How much text: `texts` of `length` tokens, of which the last `held` only measure costs, by
    the first `measured` of their tokens, and by the logits of the later half of these; or shorter
    texts of as many tokens. And how many run side by side, when they are written and when they are
    read."""

    texts: int = 120
    length: int = 256
    held: int = 4
    measured: int = 128
    batch: int = 50
    pass_texts: int = 8
    least: int = 8  # texts that a file must be enough for


AMOUNTS = Amounts()
RANDOM = (1, 16)  # how many random tokens texts begin with


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
    used = len(texts) - _n_held(texts, amounts)
    sizes = sizes_of(tensors, rounding.dtype)
    multiplied = feed(folder, metadata, {n: tensors[n] for n in sizes}, rounding.dtype,
                      texts[:used], amounts.pass_texts)  # fmt: skip
    if rounding.dtype == "q8" or metadata.get("model.head") == 0:
        return Calibration(folder, rounding.dtype, multiplied, prior(sizes))
    trials = Trials(folder, [Text(t.ids[: amounts.measured], t.source) for t in texts[used:]])
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


def _texts(folder: Folder, metadata, path: str | None, amounts: Amounts) -> list[Text]:
    if not folder.has("texts.json"):
        encoder = np.any(np.asarray(metadata.get("layer.mask", 0)))
        if path is None and (encoder or metadata.get("model.head") == 0):
            what = "sources, a line each" if _answers(metadata) else "it"
            raise ExportError(
                f"the model cannot write a text to calibrate with: name a file of {what}"
            )
        with Engine(
            folder.file("model.bin"), amounts.length, 2 * amounts.batch, amounts.batch
        ) as engine:
            given = (engine, metadata, amounts)
            texts = _own_texts(*given) if path is None else _texts_of_file(*given, path)
        folder.write("texts.json", json.dumps(texts).encode())
    with open(folder.file("texts.json"), encoding="utf-8") as file:
        return [Text(*text) for text in json.load(file)]


def _answers(metadata) -> bool:
    """Whether the model reads a source, and writes a text for it."""
    return "model.source_layers" in metadata


def _n_held(texts: Sequence[Text], amounts: Amounts) -> int:
    """How many of the last texts measure costs: short ones more, but no more than half."""
    n = tokens = 0
    while tokens < amounts.held * amounts.measured and 2 * n + 2 <= len(texts):
        n += 1
        tokens += min(len(texts[-n].ids), amounts.measured)
    return n


def _ids(metadata, key: str) -> list[int]:
    return [int(i) for i in np.atleast_1d(metadata.get(key, []))]


def _continued(engine: Engine, beginnings: Sequence[Text], amounts: Amounts) -> list[Text]:
    """What the model writes after them, some at a time."""
    texts: list[Text] = []
    with bar("text", len(beginnings)) as progress:
        for first in range(0, len(beginnings), amounts.batch):
            some = beginnings[first : first + amounts.batch]
            texts += engine.continued(some, amounts.length, first)
            progress.update(len(some))
    return texts


def _own_texts(engine: Engine, metadata, amounts: Amounts) -> list[Text]:
    """What the model writes after BOS and beginnings of code and other languages, a third at most;
    after one random token, which is what it was trained on most; and after many of them."""
    numbers, starts = np.random.RandomState(1), []
    if "tokenizer.token.text" in metadata:
        starts = [engine.encode(text.encode()) for text in BEGINNINGS[: amounts.texts // 3]]
        # Not what a tokenizer has to spell, letter by letter, or has no tokens for at all.
        starts = [ids for ids in starts if 0 < len(ids) <= amounts.length // 2]
    while len(starts) < amounts.texts:
        n = RANDOM[len(starts) % len(RANDOM)]
        starts.append(numbers.randint(0, engine.vocab_size, n).tolist())
    bos = _ids(metadata, "tokenizer.prefix")
    texts = [Text(bos + starts[i]) for i in numbers.permutation(len(starts))]
    return _continued(engine, texts, amounts)


def _texts_of_file(engine: Engine, metadata, amounts: Amounts, path: str) -> list[Text]:
    """Parts from all over a file; or of its lines, with what the model answers them."""
    with open(path, "rb") as file:
        text = file.read()
    before, after = (_ids(metadata, f"tokenizer.{end}") for end in ("prefix", "suffix"))
    room = amounts.length - len(before) - len(after)
    parts = [
        [*before, *part, *after]
        for line in (text.splitlines() if _answers(metadata) else [text])
        for part in _cut(engine.encode(line), room)
    ]
    tokens, wanted = sum(map(len, parts)), amounts.texts * amounts.length
    if tokens < amounts.least * amounts.length:
        raise ExportError(
            f"{path}: {tokens} tokens; calibrating wants {amounts.least * amounts.length} at "
            f"least, better {wanted}"
        )
    n = min(len(parts), len(parts) * wanted // tokens)
    chosen = [parts[i] for i in np.random.RandomState(1).permutation(len(parts))[:n]]
    if not _answers(metadata):
        return [Text(ids) for ids in chosen]
    start = _ids(metadata, "model.start")
    return _continued(engine, [Text(start, ids) for ids in chosen], amounts)


def _cut(ids: list[int], most: int) -> Iterator[list[int]]:
    """Parts of about equal length, `most` at most."""
    n = -(-len(ids) // most)
    for i in range(n):
        yield ids[len(ids) * i // n : len(ids) * (i + 1) // n]
