"""Arcee and Trinity."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.attention import Gate
from ..layers.experts import SIGMOID
from ..rope import SLIDING, Shape, layer_kinds, rope_set, windows
from .common import LLAMA, QK_NORM, biases, every, in_layer, llama_block, rotate
from .experts import after_dense, expert_names, experts


def arcee(c: Config) -> Knobs:
    """Arcee: a plain feed-forward layer of squared ReLU."""
    k = llama_block(c, hidden_act="relu2", max_position_embeddings=4096, rms_norm_eps=1e-5)
    rotate(c, k)
    k.biased = biases(c)
    return k


def afmoe(c: Config) -> Knobs:
    """Trinity: experts by sigmoids, norms before and after the branches, gated attention, windows
    in the layers with rope."""
    c.default(
        num_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        intermediate_size=6144,
        global_attn_every_n_layers=4,
    )
    k = llama_block(c, head_dim=128, max_position_embeddings=16384, rms_norm_eps=1e-5)
    kinds = layer_kinds(c, k.n_layers, every(c.int("global_attn_every_n_layers")))
    rope = rope_set(c, Shape(k.head_dim, k.context))
    k.rotate(*[rope if kind == SLIDING else None for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 1024))
    k.emb_scale = k.n_embd**0.5 if c.flag("mup_enabled", False) else 1.0
    k.biased = biases(c)
    # What the first code read; transformers does as these say.
    c.require(score_func="sigmoid", route_norm=True, n_group=1, topk_group=1)
    c.require(num_expert_groups=1, num_limited_groups=1)
    c.ignore("load_balance_coeff", "use_grouped_mm")
    width, scale = k.d_ff, c.number("route_scale", 1.0)
    part = experts(c, k, score=SIGMOID, biased=True, renorm_eps=1e-20, scale=scale)
    sparse = [i >= c.int("num_dense_layers", 1, least=0) for i in range(k.n_layers)]
    after_dense(k, part, sparse, width, part.d_ff * c.int("num_shared_experts", 2, least=0))
    k.parts.append(Gate([True] * k.n_layers, rows=k.n_heads * k.head_dim))
    return k


AFMOE = {
    **LLAMA,
    **QK_NORM,
    **in_layer("model.layers.N.self_attn", attn_gate="gate_proj"),
    **in_layer(
        "model.layers.N",
        attn_post_norm="post_attention_layernorm",
        ffn_norm="pre_mlp_layernorm",
        ffn_post_norm="post_mlp_layernorm",
    ),
    **expert_names("mlp", router="router.gate", dense="shared_experts"),
}
