"""How a GGUF file's hidden states become the vector of a text: pooling_type, and sentence-transformers'
Dense modules."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..tensor import ExportError, Tensor, expect
from .gguf_file import File
from .sentences import ACTIVATIONS, FIRST, LAST, MEAN, TOKENS

NONE, POOLINGS = 0, {1: MEAN, 2: FIRST, 3: LAST}  # values of pooling_type
DENSE = ("dense_2", "dense_3")


def gguf_pooling(g: Config, file: File) -> tuple[int | None, dict[str, Tensor]]:
    """The value of model.pooling, None where the file has none, and the Dense modules' matrices.
    Errors: ExportError."""
    kind = g.get("pooling_type", NONE)
    if kind not in (NONE, *POOLINGS):
        raise ExportError(
            f"{g.where}: pooling_type is {kind!r}, which is not supported; supported: 0 (none), 1 "
            "(mean), 2 (first), 3 (last); for a reranker (4) export the Hugging Face checkpoint"
        )
    width, found = g.int("embedding_length"), {}
    for name in DENSE:
        tensor = file.tensors.pop(f"{name}.weight", None)
        if tensor is None:
            continue
        g.require(**{f"{name}_feat_in": width})
        rows = g.int(f"{name}_feat_out")
        found[f"pooling.{len(found)}"] = expect(tensor, rows, width)
        width = rows
    return POOLINGS.get(kind), found


def pooled(pooling: int | None, knobs: Knobs, n_dense: int) -> tuple[dict[str, object], list[str]]:
    """The metadata of pooling, and remarks. An encoder whose file says nothing takes the mean."""
    if knobs.source_layers or pooling is None and knobs.mask != 1:
        return {}, []
    remark = "no pooling_type: --embed takes the mean of the hidden states"
    unit = int(pooling is not None)  # as llama.cpp gives them
    entries = {"model.pooling": pooling or MEAN, "model.pooling_unit": unit, TOKENS: knobs.context}
    if n_dense:
        entries["model.pooling_acts"] = [ACTIVATIONS["Identity"]] * n_dense
    return entries, [remark] if pooling is None else []
