"""Mellum 2."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Skipped
from ..rope import Shape, layer_kinds, rope_by_type, windows
from .common import biases, llama_block
from .experts import after_dense, experts, listed_layers
from .qwen import QWEN3_MOE


def mellum(c: Config) -> Knobs:
    """Mellum 2: Qwen 3 MoE with windows, and a rope for the layers that have one."""
    c.default(
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=896,
        intermediate_size=7168,
    )
    k = llama_block(c, num_key_value_heads=4, head_dim=128, max_position_embeddings=131072)
    kinds = layer_kinds(c, k.n_layers, lambda layer: False)
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=5e5), sliding_theta=1e4)
    k.rotate(*[ropes[kind] for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 1024))
    k.biased, width = biases(c), k.d_ff
    c.require(first_k_dense_replace=0)  # which transformers does not read
    n = "num_experts" if "num_experts" in c.values else "num_local_experts"
    part = experts(c, k, n, renorm=c.flag("norm_topk_prob", True))
    after_dense(k, part, listed_layers(c, k.n_layers, 0), width, 0)
    c.ignore("num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types")
    k.parts.append(Skipped([], n_layers=k.n_layers, prefixes=("mtp.", "model.mtp.")))
    return k


MELLUM = QWEN3_MOE
