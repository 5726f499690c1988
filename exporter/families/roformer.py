"""RoFormer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..rope import Shape, rope_set
from ..tensor import ExportError, expect, modules
from .bert import BERT, bert_block, renamed
from .common import sinusoid
from .encoder import encoder


@dataclass
class Sinusoids(Part):
    """Rope's sines and cosines, which files hold though they are computed."""

    table: np.ndarray

    def arrange(self, left):
        for module in modules(left, "embed_positions.weight"):
            found = expect(left.pop(module + ".embed_positions.weight"), *self.table.shape)
            if np.abs(found.array() - self.table).max() > 1e-4:
                raise ExportError(f"tensor {found.name} holds no sinusoids, which rope needs")


def roformer(c: Config) -> Knobs:
    """RoFormer: BERT with interleaved rope, an embedding of its own width."""
    c.require(rotary_value=False)
    k = bert_block(c, vocab_size=50000, max_position_embeddings=1536)
    k.rotate(*[rope_set(Config({}, c.where), Shape(k.head_dim, k.context))] * k.n_layers)
    k.interleaved = True
    table = sinusoid(k.context, k.head_dim)
    k.parts.append(Sinusoids([], table))
    d_embed = k.n_embd if c.get("embedding_size") is None else c.int("embedding_size")
    if d_embed == k.n_embd:
        k.names = {name: module for name, module in ROFORMER.items() if name != "embed_proj"}
    bias = "cls.predictions.bias"
    types = c.int("type_vocab_size", 2)
    return encoder(c, k, causal=True, types=types, d_embed=d_embed, head_act=k.act, bias=bias)


ROFORMER = {
    **{name: module for name, module in renamed(BERT, "roformer").items() if name != "embed_pos"},
    "embed_proj": "roformer.embeddings_project",
}
