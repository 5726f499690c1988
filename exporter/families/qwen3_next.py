"""Qwen3-Next and Qwen 3.5: gated DeltaNet, and gated attention in every fourth layer."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.attention import OutGate
from ..layers.mixers import DeltaNet
from ..layers.part import Skipped
from ..tensor import ExportError
from .common import LLAMA, QK_NORM, biases, in_layer, llama_block, mixer_kinds, rotate, with_silu
from .experts import expert_names, experts, sparse_layers

QWEN3_5 = {
    **LLAMA,
    **QK_NORM,
    **in_layer("model.layers.N.self_attn", attn_gate="gate_proj"),
    **in_layer(
        "model.layers.N.linear_attn",
        mix_in="in_proj_qkv",
        conv="conv1d",
        delta_gate="in_proj_z",
        delta_beta="in_proj_b",
        delta_decay="in_proj_a",
        delta_rate="rate",
        delta_norm="norm",
        mix_out="out_proj",
    ),
}
QWEN3_NEXT = {**QWEN3_5, **expert_names("mlp", dense="shared_expert")}


def delta_block(c: Config, **defaults) -> Knobs:
    """What Qwen3-Next and Qwen 3.5 share: norms of 1 + w, gated attention with rope on a quarter of
    a head in every fourth layer, gated DeltaNet in the others."""
    c.default(
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
    )
    k = llama_block(c, head_dim=256, max_position_embeddings=32768, **defaults)
    # For text mRoPE is plain rope.
    rotate(c, k, partial=0.25)
    every = c.int("full_attention_interval", 4)
    usual = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(k.n_layers)]
    kinds = mixer_kinds(c, k.n_layers, ("linear_attention", "full_attention"), usual)
    k.parts += [
        DeltaNet(
            with_silu(c, [kind == "linear_attention" for kind in kinds]),
            taps=c.int("linear_conv_kernel_dim", most=64),
            k_heads=c.int("linear_num_key_heads"),
            v_heads=c.int("linear_num_value_heads"),
            k_dim=c.int("linear_key_head_dim"),
            v_dim=c.int("linear_value_head_dim"),
        ),
        OutGate([kind == "full_attention" for kind in kinds], heads=k.n_heads, head_dim=k.head_dim),
        Skipped([], prefixes=("mtp.", "model.visual.")),
    ]
    if k.parts[0].v_heads % k.parts[0].k_heads:
        raise ExportError(
            f"{c.where}: linear_num_value_heads is no multiple of linear_num_key_heads"
        )
    c.require(attn_output_gate=True, mamba_ssm_dtype="float32", use_sliding_window=False)
    k.norm_offset, k.biased = 1.0, (*biases(c), *biases(c, ("attn_gate",)), "delta_decay")
    c.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    return k


def qwen3_5(c: Config) -> Knobs:
    """Qwen 3.5 without experts: gated DeltaNet, gated attention in every fourth layer."""
    return delta_block(c, num_key_value_heads=4, intermediate_size=12288)


def _shared_expert(c: Config, k: Knobs) -> None:
    """An expert that all tokens pass, times a gate, beside each layer's other experts."""
    shared = c.int("shared_expert_intermediate_size")
    part = experts(c, k, renorm=c.flag("norm_topk_prob", True), shared_gate=True)
    sparse_layers(c, k, part, shared)


def qwen3_5_moe(c: Config) -> Knobs:
    """Qwen 3.5 with experts: gated DeltaNet, gated attention in every fourth layer."""
    c.default(
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        num_experts_per_tok=8,
        num_experts=256,
        intermediate_size=1,
    )
    k = delta_block(c, num_key_value_heads=2)
    c.require(norm_topk_prob=True)
    _shared_expert(c, k)
    return k


def qwen3_next(c: Config) -> Knobs:
    """Qwen3-Next: gated DeltaNet, gated attention, a gated expert that all tokens pass."""
    c.default(
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        num_experts_per_tok=10,
        num_experts=512,
        intermediate_size=5632,
    )
    k = delta_block(c, num_key_value_heads=2)
    _shared_expert(c, k)
    return k
