"""Calibration: the engine runs texts in q8, the inputs that matrices get there decide their codes
(codes.py), and the cost of each matrix in four bits is measured (trials.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Sequence

import numpy as np

from .. import bars
from ..checkpoint import entries, write_checkpoint
from ..tensor import ExportError, Tensor
from .beginnings import BEGINNINGS
from .budget import MIXED, Rounding, choose, curve, prior, same_matrices, shapes_of
from .codes import feed, with_codes
from .engine import Engine, Text
from .steps import Folder
from .trials import Trials, VectorTrials, costs_of
from .work import Progress, phases


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
    batch: int = 60
    pass_texts: int = 8
    least: int = 8  # texts that a file must be enough for


AMOUNTS = Amounts()
RANDOM = (1, 16)  # how many random tokens texts begin with
SECOND = "-mixed"  # the stage after the one in which all have four bits
LOOP = 6  # one of so many texts is also repeated in part, where it becomes a vector


class Calibration:
    """What calibrate() found: the type `chosen` for each matrix, of which those in `stages` have
    their codes, each from that stage; and what other choices would cost. `with` closes it."""

    def __init__(
        self,
        folder: Folder,
        chosen: dict[str, str],
        stages: dict[str, str],
        trials: Trials | None = None,
        curve: Sequence[tuple[int, float]] = (),
    ):
        self.folder, self.chosen, self.stages = folder, chosen, stages
        self.trials, self.curve = trials, curve

    def __enter__(self) -> "Calibration":
        return self

    def __exit__(self, *_) -> None:
        if self.trials:
            self.trials.close()

    def divergence(self) -> str:
        """The cost of all matrices but those in q8 together, in words, if costs were measured."""
        if not self.trials:
            return ""
        coded = [name for name in self.stages if self.chosen[name] != "q8"]
        cost = self.trials.divergence(coded, 1, self.stages)
        return f"; {cost:.4f} {self.trials.unit} from q8"

    def with_codes(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the file, with their calibrated codes."""
        made = {
            name: with_codes(self.folder, tensors[name], name, self.chosen[name], stage)
            for name, stage in self.stages.items()
        }
        first = same_matrices(tensors)
        return {name: made.get(first.get(name), tensor) for name, tensor in tensors.items()}


def progress_of(
    metadata: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    rounding: Rounding,
    progress: bars.Progress = None,
) -> Progress:
    """The bar of calibrate() with these, and of writing what it found."""
    amounts, rounded = _amounts(metadata), list(shapes_of(tensors, rounding.dtype))
    trial = _held_tokens(amounts, metadata) if _has_trials(metadata, rounding) else 0
    seconds = phases(
        metadata,
        tensors,
        rounded,
        tokens=amounts.texts * amounts.length,
        written=rounding.text is None or _answers(metadata),
        trial=(trial, trial // 2),
    )
    if trial and rounding.dtype == MIXED:  # which reads the texts again, and codes most matrices
        seconds |= {phase + SECOND: seconds[phase] for phase in ("inputs", "codes")}
    return Progress(seconds, progress)


def _amounts(metadata: Mapping[str, object]) -> Amounts:
    return replace(AMOUNTS, length=min(AMOUNTS.length, int(metadata["model.context"])))


def _has_trials(metadata: Mapping[str, object], rounding: Rounding) -> bool:
    return rounding.dtype in ("q4", MIXED) and _trials_of(metadata) is not None


def _trials_of(metadata: Mapping[str, object]) -> type[Trials] | None:
    """What measures costs: by logits, or by how far vectors move where there are none."""
    if metadata.get("model.head") != 0:
        return Trials
    return VectorTrials if _has_vectors(metadata) else None


def calibrate(
    folder: Folder,
    metadata: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    rounding: Rounding,
    room: int,
    progress: Progress,
) -> Calibration:
    """Codes of the matrices, which may have `room` bytes together, in types by what q4 costs them.
    Errors: ExportError, OSError."""
    amounts = _amounts(metadata)
    _write_model(folder, metadata, tensors, progress)
    texts = _texts(folder, metadata, rounding.text, amounts, progress)
    used = len(texts) - _n_held(texts, amounts, _held_tokens(amounts, metadata))
    shapes, dtype = shapes_of(tensors, rounding.dtype), rounding.dtype

    def fed(types: Mapping[str, str], stage: str) -> dict[str, str]:
        """The stage of each, which has its codes then."""
        matrices = {name: tensors[name] for name in types}
        feed(folder, metadata, matrices, types, texts[:used], amounts.pass_texts, progress, stage)
        return dict.fromkeys(types, stage)

    if not _has_trials(metadata, rounding):
        chosen = choose(shapes, prior(shapes), dtype, room)
        return Calibration(folder, chosen, fed(chosen, ""))
    fed(dict.fromkeys(shapes, "q4"), "")
    held = [Text(t.ids[: amounts.measured], t.source) for t in texts[used:]]
    trials = _trials_of(metadata)(folder, metadata, held)
    try:
        costs = costs_of(folder, trials, list(shapes), progress)
        chosen, seen = choose(shapes, costs, dtype, room), curve(shapes, costs, dtype)
        stages = {n: "" for n, width in chosen.items() if width == "q4"}
        if dtype == MIXED:
            stages |= fed({n: width for n, width in chosen.items() if width != "q4"}, SECOND)
    except BaseException:
        trials.close()
        raise
    return Calibration(folder, chosen, stages, trials, seen)


def _write_model(folder: Folder, metadata, tensors, progress: Progress) -> None:
    """Writes the model in q8, which texts run through."""
    if folder.has("model.bin"):
        progress.was_done("q8")
        return
    stored = entries(tensors, "q8")
    count = progress.counter("q8", sum(e.bytes for e in stored))
    write_checkpoint(folder.file("model.bin"), metadata, stored, count)


# ---- texts ----


def _texts(
    folder: Folder, metadata, path: str | None, amounts: Amounts, progress: Progress
) -> list[Text]:
    if folder.has("texts.json"):
        progress.was_done("texts")
    else:
        encoder = np.any(np.asarray(metadata.get("layer.mask", 0)))
        if path is None and (encoder or metadata.get("model.head") == 0):
            what = "sources, a line each" if _answers(metadata) else "it"
            raise ExportError(
                f"the model cannot write a text to calibrate with: name a file of {what}"
            )
        with Engine(
            folder.file("model.bin"), amounts.length, 2 * amounts.batch, amounts.batch
        ) as engine:
            given = (engine, metadata, amounts, progress)
            texts = _own_texts(*given) if path is None else _texts_of_file(*given, path)
        if _has_vectors(metadata):
            loops = _loops(texts, metadata)
            n = min(amounts.held, len(loops) // 2) if _trials_of(metadata) is VectorTrials else 0
            texts = [*loops[n:], *texts, *loops[:n]]  # the last ones measure costs
        folder.write("texts.json", json.dumps(texts).encode())
    with open(folder.file("texts.json"), encoding="utf-8") as file:
        return [Text(*text) for text in json.load(file)]


def _answers(metadata) -> bool:
    """Whether the model reads a source, and writes a text for it."""
    return "model.source_layers" in metadata


def _has_vectors(metadata) -> bool:
    """Whether a text's hidden states become one vector."""
    encoder = np.any(np.asarray(metadata.get("layer.mask", 0))) and not _answers(metadata)
    return bool(encoder or "model.pooling" in metadata)


def _loops(texts: Sequence[Text], metadata) -> list[Text]:
    """A few tokens of a text in LOOP, said again and again. A vector is the mean of its tokens:
    where all are alike, their errors are too, and nothing cancels. Codes that have seen no such
    text err more there than numbers to nearest."""
    before, after = (_ids(metadata, f"tokenizer.{end}") for end in ("prefix", "suffix"))
    loops = []
    for i, (ids, _) in enumerate(texts[::LOOP]):
        inside = ids[len(before) : len(ids) - len(after)] or ids
        at, n = len(inside) // 2, 1 + i % 3
        said = inside[at : at + n] * len(inside)
        loops.append(Text([*before, *said[: len(inside)], *after]))
    return loops


def _held_tokens(amounts: Amounts, metadata) -> int:
    """By so many tokens costs are measured: where vectors are, up to half of repeated texts."""
    return amounts.held * amounts.measured * (2 if _trials_of(metadata) is VectorTrials else 1)


def _n_held(texts: Sequence[Text], amounts: Amounts, wanted: int) -> int:
    """How many of the last texts measure costs: short ones more, but no more than half."""
    n = tokens = 0
    while tokens < wanted and 2 * n + 2 <= len(texts):
        n += 1
        tokens += min(len(texts[-n].ids), amounts.measured)
    return n


def _ids(metadata, key: str) -> list[int]:
    return [int(i) for i in np.atleast_1d(metadata.get(key, []))]


def _continued(
    engine: Engine, beginnings: Sequence[Text], amounts: Amounts, progress: Progress
) -> list[Text]:
    """The beginnings continued by the model, some at a time."""
    texts: list[Text] = []
    progress.takes("texts", len(beginnings) / amounts.texts)
    for first in range(0, len(beginnings), amounts.batch):
        some = beginnings[first : first + amounts.batch]

        def reach(share: float) -> None:
            progress.reach("texts", (len(texts) + share * len(some)) / len(beginnings))

        texts += engine.continued(some, amounts.length, first, reach)
        reach(0)
    return texts


def _own_texts(engine: Engine, metadata, amounts: Amounts, progress: Progress) -> list[Text]:
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
    return _continued(engine, texts, amounts, progress)


def _texts_of_file(
    engine: Engine, metadata, amounts: Amounts, progress: Progress, path: str
) -> list[Text]:
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
    for phase in {"inputs", "inputs" + SECOND} & set(progress.seconds):
        progress.takes(phase, min(1, tokens / wanted))
    n = min(len(parts), len(parts) * wanted // tokens)
    chosen = [parts[i] for i in np.random.RandomState(1).permutation(len(parts))[:n]]
    if not _answers(metadata):
        return [Text(ids) for ids in chosen]
    start = _ids(metadata, "model.start")
    return _continued(engine, [Text(start, ids) for ids in chosen], amounts, progress)


def _cut(ids: list[int], most: int) -> Iterator[list[int]]:
    """Parts of about equal length, `most` at most."""
    n = -(-len(ids) // most)
    for i in range(n):
        yield ids[len(ids) * i // n : len(ids) * (i + 1) // n]
