"""gpt-oss."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import layer_kinds, windows
from .common import LLAMA, biases, default_rope, in_layer, llama_block, rotate
from .experts import expert_names, experts

GPT_OSS = {
    **LLAMA,
    **in_layer("model.layers.N", attn_sinks="self_attn.sinks", ffn_act="mlp.act"),
    **expert_names("mlp", router="router"),
}
CLAMPED_SWIGLU = 6  # a value of layer.act


def gpt_oss(c: Config) -> Knobs:
    """gpt-oss, mxfp4 too: sinks, windows in every other layer, and a clamped SwiGLU."""
    c.default(
        num_local_experts=128, num_experts_per_tok=4, intermediate_size=2880, attention_bias=True
    )
    default_rope(
        c,
        rope_type="yarn",
        factor=32.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=4096,
    )
    c.ignore("initial_context_length", "experts_per_token")  # said elsewhere
    acts = {"silu": CLAMPED_SWIGLU}
    k = llama_block(
        c,
        acts=acts,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
    )
    rotate(c, k, theta=150000.0)
    clamp = (c.number("swiglu_alpha", 1.702), c.number("swiglu_limit", 7.0))
    experts(c, k, "num_local_experts", "intermediate_size", interleaved=True, clamp=clamp)
    k.biased = (*biases(c), "router", "expert_gate", "expert_up", "expert_down")
    kinds = layer_kinds(c, k.n_layers, lambda layer: layer % 2 == 0)
    k.window = windows(c, kinds, c.get("sliding_window", 128))
    return k
