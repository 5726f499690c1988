"""Vectors of texts, of their parts and of their tokens; weights of words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ctypes import byref
from typing import Any, Literal, Optional, Union

import numpy as np
from numpy.typing import NDArray

from . import _arguments as arguments
from ._arguments import Floats, Prompt
from ._checkpoint import Checkpoint
from ._native import FLOATS, Handle, InputError, calls, int_array
from ._reading import Reading, Truncate, check_cut, in_parts, read_out, reading

Quantize = Optional[Literal["int8", "binary", "ubinary"]]
Vectors = Union[NDArray[Any], "list[NDArray[Any]]"]


def vectors(model: Checkpoint, texts: Sequence[Reading], dimensions: int | None = None) -> Floats:
    """[rows][vector]: a row for each text, for each of its parts, or for each of its tokens."""
    texts = [Reading(*text) for text in texts]
    n = sum(map(rows_of, [model] * len(texts), texts))
    width = model.shape.vector or model.shape.n_embd
    room = np.empty((n, width), np.float32)
    read_out(model, calls.embed, texts, room)
    return room if dimensions is None else shortened(model, room, dimensions)


def rows_of(model: Checkpoint, text: Reading) -> int:
    if model.shape.token_vectors:
        return len(text.ids)
    return max(1, len(text.bounds) - 1)


def shortened(model: Checkpoint, found: Floats, dimensions: int) -> Floats:
    dimensions = arguments.whole("dimensions", dimensions, 1)
    found = np.ascontiguousarray(found, np.float32).copy()
    data = found.ctypes.data_as(FLOATS)
    calls.shorten(model._handles.model, data, len(found), dimensions)
    return found.reshape(-1)[: len(found) * dimensions].reshape(-1, dimensions).copy()


def quantized(found: Floats, kind: Quantize) -> NDArray[Any]:
    """int8: each vector by its own largest number, which a cosine does not see. binary and ubinary:
    a bit a number, as sentence_transformers.quantize_embeddings packs them."""
    if kind is None:
        return found
    if not isinstance(kind, str) or kind not in ("int8", "binary", "ubinary"):
        raise arguments.refusal("quantize", "int8, binary or ubinary", kind)
    if kind == "int8":
        largest = np.abs(found).max(axis=-1, keepdims=True, initial=1e-30)
        return np.rint(found * (np.float32(127) / largest)).astype(np.int8)
    bits = np.packbits(found > 0, axis=-1)
    return bits if kind == "ubinary" else (bits ^ np.uint8(128)).view(np.int8)


def embed(
    model: Checkpoint,
    texts: Prompt | Iterable[Prompt],
    dimensions: int | None,
    quantize: Quantize,
    late_chunking: bool,
    truncate: Truncate,
) -> Any:
    several = arguments.prompts("texts", texts)
    each = [texts] if several is None else several
    if arguments.flag("late_chunking", late_chunking) and several != []:
        if several is None:
            raise InputError("late_chunking: expected a list, the parts of a text")
        given = [in_parts(model, each)]
    else:
        given = [reading(model, text) for text in each]
    check_cut(model, given, truncate)
    found = quantized(vectors(model, given, dimensions), quantize)
    if model.shape.token_vectors:
        found = _apart(found, [len(text.ids) for text in given])
    return found[0] if several is None else found


Read = Callable[[Checkpoint, Sequence[Reading]], "list[Any]"]


def of_each(
    model: Checkpoint, texts: Prompt | Iterable[Prompt], truncate: Truncate, read: Read
) -> Any:
    """What is read of a text, or a list of these."""
    several = arguments.prompts("texts", texts)
    given = [reading(model, text) for text in ([texts] if several is None else several)]
    check_cut(model, given, truncate)
    found = read(model, given)
    return found[0] if several is None else found


def token_vectors(model: Checkpoint, texts: Sequence[Reading]) -> list[Floats]:
    return _apart(each_token(model, texts), [len(text.ids) for text in texts])


def each_token(model: Checkpoint, texts: Sequence[Reading]) -> Floats:
    """A row for each token, whether the checkpoint pools or not."""
    if not model.shape.token_vectors:
        texts = [text._replace(bounds=range(len(text.ids) + 1)) for text in texts]
    return vectors(model, texts)


def _apart(rows: NDArray[Any], lengths: Sequence[int]) -> list[NDArray[Any]]:
    return np.split(rows, np.cumsum(lengths)[:-1]) if lengths else []


def weights(model: Checkpoint, texts: Sequence[Reading]) -> list[dict[int, float]]:
    """max over a text's tokens of log(1 + relu(logit)), where it is not 0 (Formal et al. 2021,
    arXiv 2109.10086)."""
    if not model.shape.encoder:
        raise InputError("sparse: this model is no encoder with a head for masked words")
    longest = max((len(text.ids) for text in texts), default=1)
    found = []
    with model._turn() as opened:
        options = model._options_beside(longest, opened)
        options.chunk = options.logit_rows = longest
        workspace = calls.workspace_new(opened.model, byref(options))
        workspace = Handle(workspace, calls.workspace_free, opened.workspace)
        calls.workspace_adapter(workspace, *opened.adapted)
        sequence = Handle(calls.sequence_new(workspace, False), calls.sequence_free, workspace)
        for text in texts:
            calls.sequence_rewind(sequence, 0)
            n = len(text.ids)
            rows = calls.forward(sequence, int_array(text.ids), n, n)
            logits = np.ctypeslib.as_array(rows, (n, calls.logit_stride(workspace)))
            most = logits[:, : model.shape.vocab_size].max(0)
            most = np.log1p(np.maximum(most, 0))
            order = np.argsort(-most, kind="stable")[: np.count_nonzero(most)]
            found.append(dict(zip(order.tolist(), most[order].tolist())))
    return found
