"""ALBERT."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..tensor import ExportError
from .bert import bert_block, bert_names
from .common import in_layer
from .encoder import encoder


@dataclass
class SharedLayers(Part):
    """ALBERT's groups: layer i has the tensors of `shared[i]`, a group and a layer in it."""

    shared: list[tuple[int, int]]
    groups: int = 1
    inner: int = 1

    def arrange(self, left):
        for name in list(left):
            head, found, rest = name.partition("encoder.albert_layer_groups.")
            if not found:
                continue
            group, _, inner, module = rest.split(".", 3)
            for layer, place in enumerate(self.shared):
                if place == (int(group), int(inner)):
                    left[f"{head}encoder.layers.{layer}.{module}"] = left[name]
            if int(group) < self.groups and int(inner) < self.inner:
                del left[name]  # with more groups than layers some go unused


def albert(c: Config) -> Knobs:
    """ALBERT: a few groups of layers, each of which runs several times."""
    k = bert_block(
        c,
        vocab_size=30000,
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        hidden_act="gelu_new",
    )
    groups, inner = c.int("num_hidden_groups", 1), c.int("inner_group_num", 1)
    group_of = [int(i / (k.n_layers / groups)) for i in range(k.n_layers)]
    shared = [(group, j) for group in group_of for j in range(inner)]
    k.n_layers = len(shared)
    if k.n_layers > 4096:
        raise ExportError(f"{c.where}: inner_group_num makes {k.n_layers} layers, expected 4096")
    k.parts.append(SharedLayers([True] * k.n_layers, shared, groups, inner))
    return encoder(
        c,
        k,
        types=c.int("type_vocab_size", 2),
        d_embed=c.int("embedding_size", 128),
        head_act=k.act,
        bias="predictions.bias",
    )


ALBERT = {
    **{name: module for name, module in bert_names("albert").items() if ".N." not in name},
    "embed_proj": "albert.encoder.embedding_hidden_mapping_in",
    **in_layer(
        "albert.encoder.layers.N",
        attn_q="attention.query",
        attn_k="attention.key",
        attn_v="attention.value",
        attn_o="attention.dense",
        attn_norm="attention.LayerNorm",
        ffn_up="ffn",
        ffn_down="ffn_output",
        ffn_norm="full_layer_layer_norm",
    ),
    "head_dense": "predictions.dense",
    "head_norm": "predictions.LayerNorm",
    "output": "predictions.decoder",
}
