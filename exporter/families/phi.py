"""Phi 1 to 4, and Phi-3.5-MoE."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.experts import SPARSEMIXER
from ..rope import Rope, Shape, rope_set
from .common import FFN, FUSED_FFN, LLAMA, QKVO, biases, in_layer, llama_block, rotate, without
from .experts import experts


def phi(c: Config) -> Knobs:
    """Phi 1, 1.5 and 2: attention and feed-forward side by side under one norm, biases
    everywhere."""
    k = llama_block(c, "layer_norm_eps", hidden_act="gelu_new", layer_norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    k.layernorm, k.parallel, k.biased = True, True, (*QKVO, *FFN, "output")
    if not c.flag("qk_layernorm", False):
        k.names = without(PHI, "attn_q_norm", "attn_k_norm")
    return k


PHI = {
    **without(LLAMA, "ffn_norm", "ffn_gate"),
    **in_layer(
        "model.layers.N.self_attn",
        attn_o="dense",
        attn_q_norm="q_layernorm",
        attn_k_norm="k_layernorm",
    ),
    **in_layer("model.layers.N.mlp", ffn_up="fc1", ffn_down="fc2"),
    "norm": "model.final_layernorm",
    "output": "lm_head",
}


def phi3(c: Config) -> Knobs:
    """Phi 3, 3.5 and 4-mini: fused matrices, longrope, windows."""
    c.default(original_max_position_embeddings=4096)
    k = llama_block(c, max_position_embeddings=4096, rms_norm_eps=1e-5)
    rotate(c, k, partial=1.0, kinds=("default", "longrope", "su"))
    c.require(
        attention_bias=False,
        mlp_bias=False,
        lm_head_bias=False,
        full_attn_mod=1,
        interpolate_factor=1,
    )
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


def phimoe(c: Config) -> Knobs:
    """Phi-3.5-MoE: the sparsemixer chooses; rope keeps its short table, but its factor changes with
    the length."""
    c.default(
        num_local_experts=16,
        num_experts_per_tok=2,
        intermediate_size=6400,
    )
    c.require(num_experts_per_tok=2)
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
    shape = Shape(
        k.head_dim,
        k.context,
        theta=1e6,
        kinds=("default", "longrope"),
        known=("short_mscale", "long_mscale"),
    )
    rope = rope_set(c, shape)
    if rope.long_freq is not None:
        p = Config(c.get("rope_parameters") or c.get("rope_scaling"), f"{c.where}: rope_parameters")
        short, long = p.number("short_mscale"), p.number("long_mscale")
        rope = Rope(rope.inv_freq, short, rope.inv_freq, rope.length, long)
    k.rotate(*[rope] * k.n_layers)
    experts(
        c,
        k,
        "num_local_experts",
        "intermediate_size",
        score=SPARSEMIXER,
        renorm=False,
        jitter=c.number("router_jitter_noise", 0.01),
    )
    # In training; said with the rope.
    c.ignore("input_jitter_noise", "original_max_position_embeddings")
    k.layernorm = True
    k.biased = biases(c) + ("output",) * c.flag("lm_head_bias", False)
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


PHI3 = {
    **without(FUSED_FFN, "attn_q", "attn_k", "attn_v"),
    **in_layer("model.layers.N.self_attn", attn_qkv="qkv_proj"),
}
