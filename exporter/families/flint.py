"""Flint."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.experts import SIGMOID
from ..rope import SLIDING, Shape, layer_kinds, rope_set, windows
from .common import LLAMA, QK_NORM, biases, llama_block
from .experts import expert_names, experts, sparse_layers


def flint(c: Config) -> Knobs:
    """Flint: sinks, q and k normalised head by head, no rope without a window, experts by
    sigmoids."""
    c.default(
        num_experts=256,
        num_experts_per_tok=6,
        moe_intermediate_size=512,
        intermediate_size=6144,
        mlp_only_layers=[0, 1],
    )
    k = llama_block(c, num_key_value_heads=4, head_dim=128, max_position_embeddings=262144)
    last = k.n_layers - 1
    kinds = layer_kinds(c, k.n_layers, lambda i: not (i < 2 or i % 4 == 1 or i == last))
    rope = rope_set(c, Shape(k.head_dim, k.context))
    k.rotate(*[rope if kind == SLIDING else None for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 513))
    k.biased = biases(c)
    part = experts(c, k, score=SIGMOID, renorm=c.flag("norm_topk_prob", True))
    sparse_layers(c, k, part, c.int("shared_expert_intermediate_size", 1024, least=0))
    return k


FLINT = {
    **LLAMA,
    **QK_NORM,
    "layers.N.attn_sinks": (
        "model.layers.N.self_attn.sinks|model.layers.N.self_attn.softmax_offset"
    ),
    **expert_names("mlp", dense="shared_expert"),
}
