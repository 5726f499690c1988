"""Qwen 1.5, 2 and 3, with and without experts. qwen3_next.py has Qwen3-Next and Qwen 3.5."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import layer_kinds, windows
from .common import LLAMA, QK_NORM, QKV, QKVO, biases, llama_block, rotate
from .experts import expert_names, experts, sparse_layers


def _qwen(c: Config, **defaults) -> Knobs:
    k = llama_block(c, num_key_value_heads=32, max_position_embeddings=32768, **defaults)
    rotate(c, k)
    size = c.get("sliding_window", 4096)  # without use_sliding_window it means nothing
    first = c.int("max_window_layers", 28, least=0)
    slides = c.flag("use_sliding_window", False) and size is not None
    k.window = windows(
        c,
        layer_kinds(c, k.n_layers, lambda layer: slides and layer >= first),
        size if slides else None,
    )
    return k


def qwen2(c: Config) -> Knobs:
    """Qwen 1.5, 2 and 2.5 without experts: biases of q, k and v."""
    k = _qwen(c)
    k.biased = QKV
    c.pass_over("attention_bias")
    c.require(use_mrope=False)
    return k


def qwen3(c: Config) -> Knobs:
    """Qwen 3 without experts: q and k are normalised head by head."""
    k = _qwen(c, head_dim=128)
    k.biased = QKVO * c.flag("attention_bias", False)
    return k


QWEN2_MOE = {**LLAMA, **expert_names("mlp", dense="shared_expert")}
QWEN3_MOE = {**QWEN2_MOE, **QK_NORM}


def qwen2_moe(c: Config) -> Knobs:
    """Qwen 1.5 MoE and Qwen 2 MoE: a shared expert times a gate."""
    c.default(
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, intermediate_size=5632
    )
    k = llama_block(c, num_key_value_heads=16, max_position_embeddings=32768)
    rotate(c, k)
    part = experts(c, k, renorm=c.flag("norm_topk_prob", False), shared_gate=True)
    sparse_layers(c, k, part, c.int("shared_expert_intermediate_size", 5632))
    k.biased = QKV * c.flag("qkv_bias", True)
    slides, first = c.flag("use_sliding_window", False), c.int("max_window_layers", 28, least=0)
    kinds = layer_kinds(c, k.n_layers, lambda layer: slides and layer < first and layer % 2 == 0)
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    return k


def qwen3_moe(c: Config) -> Knobs:
    """Qwen 3 MoE: q and k normalised head by head, experts."""
    c.default(
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, intermediate_size=6144
    )
    k = llama_block(c, num_key_value_heads=4, max_position_embeddings=32768)
    rotate(c, k)
    part = experts(
        c,
        k,
        "num_experts" if "num_experts" in c.values else "num_local_experts",
        renorm=c.flag("norm_topk_prob", False),
    )
    sparse_layers(c, k, part)
    k.biased = biases(c)
    size = c.get("sliding_window", 4096)  # in all layers, or without use_sliding_window in none
    c.ignore("max_window_layers")
    slides = c.flag("use_sliding_window", False) and size is not None
    k.window = [c.int("sliding_window", 4096) if slides else 0] * k.n_layers
    return k


QWEN3 = {**LLAMA, **QK_NORM}
