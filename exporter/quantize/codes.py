"""The codes of matrices by the inputs that the engine gives them: moments of a few layers at a time
are gathered, and then feedback.py decides."""

from __future__ import annotations

import functools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..checkpoint import Checkpoint
from ..tensor import ExportError, Tensor
from .engine import START, Engine, Stream, Text, begins, longest
from .feedback import row_errors, turned_rows, with_feedback
from .panels import BLOCK, LANES, Blocks, pack_blocks
from .steps import Folder
from .work import Progress, feedback_seconds

MOMENTS = 1 << 29  # bytes of moments that may be in memory together, about
LOGITS = 1 << 28  # bytes of logits of a pass, where what the output is multiplied by is wanted
AHEAD = 8  # inputs that the engine may be ahead of the moments
SLAB = 1 << 14  # rows that get their codes together
OUTPUTS = {"embed", "output"}  # what the last norm's rows are multiplied by
# The matrices that multiply an input, and which of a stack.
Moments = "dict[tuple[tuple[str, ...], int], np.ndarray]"


def _layer_of(name: str) -> str:
    """layers.N of a layer's matrix; "model" of others."""
    return ".".join(name.split(".")[:2]) if name.startswith("layers.") else "model"


def feed(
    folder: Folder,
    metadata: Mapping[str, object],
    matrices: Mapping[str, Tensor],
    types: Mapping[str, str],
    texts: Sequence[Text],
    pass_texts: int,
    progress: Progress,
    stage: str = "",
) -> None:
    """Leaves the codes of these matrices in their types in the folder, a file a layer and stage.
    Texts run pass_texts at a time. Errors: ExportError, OSError."""
    layers = _by_layer(matrices)
    left = [layer for layer in layers if not folder.has(f"{layer}{stage}.npz")]
    seconds = {name: feedback_seconds(*tensor.shape) for name, tensor in matrices.items()}
    fed = sum(seconds[name] for layer in layers if layer not in left for name in layers[layer])
    read, whole = len(layers) - len(left), sum(seconds.values())
    progress.was_done(f"inputs{stage}", read / len(layers) if left else 1)
    progress.was_done(f"codes{stage}", fed / whole if left else 1)
    batches = list(_batches(left, layers, matrices, metadata))
    parts = [texts[i : i + pass_texts] for i in range(0, len(texts), pass_texts)]
    streams = [START] * len(parts)
    for batch, (begin, end) in zip(batches, _spans(folder, metadata, batches, layers)):
        names = {name for layer in batch for name in layers[layer]}
        n_logits = _n_logits(names, metadata, texts, pass_texts)
        moments: Moments = {}
        if streams[0].layer > begin:
            streams = [START] * len(parts)
        for share in _moments(folder, parts, names, n_logits, moments, streams, end):
            progress.reach(f"inputs{stage}", (read + share * len(batch)) / len(layers))
        read += len(batch)

        groups = {layer: _groups(layers[layer], types, moments) for layer in batch}

        def made_of(names: list[str]) -> dict[str, np.ndarray]:
            of = {name: matrices[name] for name in names}
            return _fed(of, types[names[0]], metadata, moments)

        # After Ctrl-C no more are begun, as closing() sees to.
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            closing(pool.map(made_of, chain.from_iterable(groups.values()))) as each,
        ):
            for layer in batch:
                made: dict[str, np.ndarray] = {}
                for group in groups[layer]:
                    made.update(next(each))
                    fed += sum(seconds[name] for name in group)
                    progress.reach(f"codes{stage}", fed / whole)
                folder.save(f"{layer}{stage}.npz", made)


def _by_layer(names: Iterable[str]) -> dict[str, list[str]]:
    """Matrices by layer, in the order in which a pass comes to them; "model" is the last."""
    layers: dict[str, list[str]] = {}
    for name in sorted(names, key=_number):
        layers.setdefault(_layer_of(name), []).append(name)
    return layers


def _number(name: str) -> int:
    """Of a matrix's layer, or one after all."""
    return int(name.split(".")[1]) if name.startswith("layers.") else sys.maxsize


def _spans(folder: Folder, metadata, batches, layers) -> Iterator[tuple[int, int | None]]:
    """For each batch of layers, where a pass for it can begin, and the layer at which the next one
    can go on from what this one leaves there; None: it has to run to its end."""
    last: dict[int, int] = {}  # layer, by a matrix's place in the file: layers may share it
    tensors = Checkpoint(folder.file("model.bin")).tensors
    for name, (*_, offset, _) in tensors.items():
        last[offset] = max(last.get(offset, 0), _number(name))
    first, starts = begins(metadata), []
    for batch in batches:
        numbers = [_number(layers[layer][0]) for layer in batch]
        starts.append(min(first[min(n, len(first) - 1)] for n in numbers))
    for batch, begin, following in zip(batches, starts, [*starts[1:], 0]):
        needed = max(last[tensors[name][3]] for layer in batch for name in layers[layer])
        sourced = "model.source_layers" in metadata  # which is read before, by layers of its own
        yield begin, following if following > needed and not sourced else None


def _batches(left, layers, matrices, metadata) -> Iterator[list[str]]:
    """Layers whose moments fit into memory together. About half of the inputs are shared."""
    batch, held = [], 0
    for layer in left:
        size = sum(
            2 * matrices[name].shape[1] ** 2 * _stack_of(name, metadata) for name in layers[layer]
        )
        if batch and held + size > MOMENTS:
            yield batch
            batch, held = [], 0
        batch.append(layer)
        held += size
    if batch:
        yield batch


def _n_logits(names: set[str], metadata, texts: Sequence[Text], step: int) -> int:
    """How many tokens of each text need logits: some, if the matrix that gives them is among the
    names."""
    if metadata.get("model.head") == 0 or not names & OUTPUTS:
        return 0
    most = LOGITS // (4 * int(metadata["model.vocab_size"]) * step)
    return min(max(1, most), max(len(text.ids) for text in texts))


def _moments(
    folder: Folder,
    parts: Sequence[Sequence[Text]],
    names: set[str],
    n_logits: int,
    found: Moments,
    streams: list[Stream],
    end: int | None,
) -> Iterator[float]:
    """Adds the moments of these matrices' inputs while the texts run, a part of them at a time,
    with the logits of the last n_logits tokens of each. streams: what each part has at a layer, and
    then at `end`. Yields the share of the texts that have run."""

    def add(key, rows: np.ndarray) -> None:
        turned = turned_rows(rows)
        product = turned.T @ turned
        if key in found:
            found[key] += product
        else:
            found[key] = product

    adders, waiting = ThreadPoolExecutor(os.cpu_count()), {}

    def take(given: list[str], which: int, rows: np.ndarray) -> None:
        wanted = tuple(name for name in given if name in names)
        if wanted and len(rows):
            key = wanted, which
            while len(waiting) >= AHEAD or key in waiting:  # sums keep their order
                waiting.pop(next(iter(waiting))).result()
            waiting[key] = adders.submit(add, key, rows.copy())

    length = max(map(longest, parts))
    most = max(map(len, parts))
    rows = max(1, most * n_logits)
    with adders, Engine(folder.file("model.bin"), length, most * length, rows) as engine:
        for i, some in enumerate(parts):
            streams[i] = engine.watch(some, take, n_logits, streams[i], end)
            yield (i + 1) / len(parts)
        for last in waiting.values():
            last.result()


def _stack_of(name: str, metadata) -> int:
    """How many matrices a stack has."""
    kind = name.split(".")[-1]
    key = (
        "layer.experts"
        if kind.startswith("expert_")
        else "layer.n_heads"
        if kind in ("attn_k_up", "attn_v_up")
        else None
    )
    return int(np.max(metadata[key])) if key else 1


def _groups(names: Iterable[str], types: Mapping[str, str], moments: Moments) -> list[list[str]]:
    """Names of a layer's matrices; those that multiply the same inputs stand together, by type."""
    groups: dict[tuple, list[str]] = {}
    for name in names:
        inputs = tuple(key for key in moments if name in key[0])
        groups.setdefault((types[name], inputs), []).append(name)
    return list(groups.values())


def _fed(matrices: Mapping[str, Tensor], dtype: str, metadata, moments) -> dict[str, np.ndarray]:
    """Matrices that multiply the same inputs rounded with feedback: values, scales and each row's
    squared error. Where there is no input, as of embeddings that are only looked up, all columns
    count the same."""
    first = next(iter(matrices))
    inputs: dict[int, np.ndarray] = {}
    for (names, which), given in moments.items():
        if first in names:  # more than once, if layers share the matrices
            inputs[which] = inputs[which] + given if which in inputs else given
    stack, weights = _stack_of(first, metadata), [tensor.array() for tensor in matrices.values()]
    steps = [len(w) if stack == 1 else -(-len(w) // stack // LANES) * LANES for w in weights]
    nothing = np.zeros((-(-weights[0].shape[1] // BLOCK) * BLOCK,) * 2, np.float32)
    found = []  # of each of a stack, for each matrix
    for which in range(stack):
        some = [w[which * step : (which + 1) * step] for w, step in zip(weights, steps)]
        try:
            found.append(_fed_rows(some, inputs.get(which, nothing), dtype))
        except OverflowError:
            largest, name = max((np.abs(w).max(), t.name) for w, t in zip(some, matrices.values()))
            raise ExportError(
                f"tensor {name}: a weight of magnitude {largest:.3g} is too large for {dtype}; "
                "use --dtype f32"
            ) from None
    what = ("values", "scale", "error")
    return {
        f"{name}:{key}": np.concatenate(x)
        for name, parts in zip(matrices, zip(*found))
        for key, x in zip(what, zip(*parts))
    }


def _fed_rows(
    matrices: Sequence[np.ndarray], moments: np.ndarray, dtype: str
) -> Iterator[tuple[np.ndarray, ...]]:
    """For each matrix values, scales and each row's squared error. Rows do not depend on each
    other, so the rows of all matrices get theirs together."""
    rows = np.concatenate(matrices) if len(matrices) > 1 else matrices[0]
    slabs = []
    for begin in range(0, len(rows), SLAB):
        part = rows[begin : begin + SLAB]
        blocks = with_feedback(part, moments, dtype)
        values, scale = blocks.values.astype(np.int8), blocks.scale.astype(np.float32)
        slabs.append((values, scale, row_errors(part, blocks)))
    ends = np.cumsum([len(matrix) for matrix in matrices])[:-1]
    return zip(*(np.split(np.concatenate(x), ends) for x in zip(*slabs)))


@functools.lru_cache(maxsize=1)
def _stored(folder: Folder, name: str, stage: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.load(folder.file(f"{_layer_of(name)}{stage}.npz")) as file:
        return file[f"{name}:values"], file[f"{name}:scale"], file[f"{name}:error"]


def codes_of(folder: Folder, name: str, a: int, b: int, stage: str = "") -> tuple[Blocks, float]:
    """Rows a..b-1, and their squared error."""
    values, scale, error = _stored(folder, name, stage)
    blocks = Blocks(values[a:b].astype(np.float32), scale[a:b].astype(np.float32))
    return blocks, float(error[a:b].sum())


def with_codes(folder: Folder, tensor: Tensor, name: str, codes: str, stage: str = "") -> Tensor:
    """The tensor with its calibrated codes in that dtype."""

    def packed(dtype: str, a: int, b: int) -> tuple[bytes, float]:
        assert dtype == codes, dtype
        blocks, error = codes_of(folder, name, a, b, stage)
        return pack_blocks(blocks, dtype), error

    return replace(tensor, packed=packed)
