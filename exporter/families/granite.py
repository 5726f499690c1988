"""Granite 3 and 4: dense, with windows, with experts, with Mamba-2; and HyperCLOVA X."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import FULL, Shape, layer_kinds, rope_set, windows
from ..tensor import ExportError
from .common import LINEAR, LLAMA, biases, in_layer, kinds_of, llama_block, rotate, without
from .experts import expert_names, experts
from .mamba2 import mamba2_names, mamba2_part


def granite_block(c: Config, **defaults) -> Knobs:
    k = llama_block(c, **defaults)
    k.emb_scale, k.residual_scale = (
        c.number("embedding_multiplier", 1.0),
        c.number("residual_multiplier", 1.0),
    )
    k.attn_scale, k.logit_scale = (
        c.number("attention_multiplier", 1.0),
        1 / c.number("logits_scaling", 1.0),
    )
    return k


def granite(c: Config) -> Knobs:
    """Granite 3 without experts: a factor for each of embedding, residual, scores and logits."""
    k = granite_block(c)
    rotate(c, k)
    k.biased = biases(c)
    return k


def granite_swa(c: Config) -> Knobs:
    """Granite with windows: sinks, and a theta a layer."""
    k = granite_block(
        c,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    k.biased = biases(c)
    kinds = layer_kinds(c, k.n_layers, lambda layer: layer % 4 != 0)
    k.window = windows(c, kinds, c.get("sliding_window", 128))
    thetas = c.get("layer_rope_theta")
    if thetas is None:
        rotate(c, k)
        return k
    if not isinstance(thetas, list) or len(thetas) != k.n_layers:
        raise ExportError(
            f"{c.where}: layer_rope_theta has not one entry for each of the {k.n_layers} layers"
        )
    c.ignore("rope_theta")  # each layer has its own
    ropes = {}
    for theta in filter(None, thetas):
        parameters = {**c.object("rope_parameters"), "rope_theta": theta}
        ropes[theta] = rope_set(
            Config({"rope_parameters": parameters}, c.where), Shape(k.head_dim, k.context)
        )
    k.rotate(*[ropes.get(theta) for theta in thetas])
    return k


GRANITEMOE = {
    **LLAMA,
    **expert_names(
        "block_sparse_moe", router="router.layer|model.layers.N.block_sparse_moe.router"
    ),
}
GRANITE_SHARED = {
    **without(GRANITEMOE, "ffn_gate", "ffn_up"),
    **in_layer("model.layers.N.shared_mlp", ffn_gate_up="input_linear", ffn_down="output_linear"),
}


def granitemoe(c: Config) -> Knobs:
    """Granite 3 MoE: Granite's factors, fused experts."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = granite_block(c)
    rotate(c, k)
    experts(c, k, "num_local_experts", "intermediate_size")
    k.biased = biases(c)
    return k


def granitemoe_swa(c: Config) -> Knobs:
    """Granite MoE with windows: sinks, and a theta a layer."""
    c.default(
        num_local_experts=8,
        num_experts_per_tok=2,
        num_key_value_heads=None,
        max_position_embeddings=2048,
    )
    c.default(rms_norm_eps=1e-6, tie_word_embeddings=False)
    k = granite_swa(c)
    experts(c, k, "num_local_experts", "intermediate_size")
    k.d_ff = c.int("shared_intermediate_size", 0, least=0)
    return k


GRANITE_HYBRID = {**GRANITE_SHARED, **mamba2_names("model.layers.N.mamba")}


def granite_hybrid(c: Config) -> Knobs:
    """Granite 4: attention or Mamba-2, a network that all tokens pass, and experts besides or
    none."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = granite_block(c, intermediate_size=1, shared_intermediate_size=1024)
    c.require(attention_bias=False, normalization_function="rmsnorm")
    c.ignore("init_method")
    kinds = c.get("layer_types") or c.get("layers_block_type") or [LINEAR] * k.n_layers
    kinds = kinds_of(c, kinds, k.n_layers, (FULL, LINEAR))
    if c.get("num_local_experts"):
        experts(c, k, "num_local_experts", "intermediate_size")
    else:
        c.ignore("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")
    k.d_ff = c.int("shared_intermediate_size", 1024)
    if LINEAR in kinds:
        mamba2_part(c, k, [kind == LINEAR for kind in kinds])
    else:
        c.ignore(*(key for key in c.values if key.startswith("mamba_")), "time_step_limit")
    if c.get("position_embedding_type") == "rope":
        rotate(c, k)
    else:
        c.require(position_embedding_type="nope")
        c.ignore("rope_theta", "rope_scaling", "rope_parameters")
    return k


SINKS = in_layer("model.layers.N", attn_sinks="self_attn.sinks")
GRANITE_SWA = {**LLAMA, **SINKS}
GRANITEMOE_SWA = {**GRANITE_SHARED, **SINKS}


def granitemoeshared(c: Config) -> Knobs:
    """Granite 4 MoE previews: experts beside a network that all tokens pass."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = granite_block(c)
    rotate(c, k)
    experts(c, k, "num_local_experts", "intermediate_size")
    k.d_ff, k.biased = c.int("shared_intermediate_size", 0, least=0), biases(c)
    return k


def hyperclovax(c: Config) -> Knobs:
    """HyperCLOVA X: Granite's factors, norms before and after the branches."""
    usual = c.get("attention_multiplier") is None
    if usual:
        c.values = {**c.values, "attention_multiplier": 1.0}
    k = granite_block(c)
    rotate(c, k)
    k.biased, k.logit_scale = biases(c), c.number("logits_scaling", 1.0)  # not its reciprocal
    k.attn_scale = None if usual else k.attn_scale
    c.ignore("end_token_id", "summary_first_dropout")
    if not c.flag("use_post_norm", True):
        k.names = LLAMA
    return k


HYPERCLOVAX = {
    **LLAMA,
    **in_layer("model.layers.N", attn_post_norm="post_norm1", ffn_post_norm="post_norm2"),
}
