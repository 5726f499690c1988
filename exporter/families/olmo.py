"""OLMo 1 to 3, OLMoE and OLMo Hybrid."""

from __future__ import annotations

from ..config import Config
from ..knobs import WHOLE, Knobs
from ..layers.mixers import DeltaNet
from ..layers.part import Lacking
from ..rope import FULL, Shape, layer_kinds, rope_by_type, windows
from ..tensor import ExportError
from .common import (
    LINEAR,
    LLAMA,
    POST_NORM,
    QK_NORM,
    biases,
    every,
    in_layer,
    kinds_of,
    llama_block,
    rotate,
    with_silu,
)
from .experts import expert_names, experts


def olmo(c: Config) -> Knobs:
    """OLMo 1: LayerNorm without weights, and q, k and v are clipped."""
    c.default(layer_norm_eps=1e-5)
    k = llama_block(c, "layer_norm_eps")
    c.require(layer_norm_eps=1e-5)
    rotate(c, k)
    k.layernorm, k.biased = True, biases(c)
    k.clip = 0.0 if c.get("clip_qkv") is None else c.number("clip_qkv")
    return k


def olmo2(c: Config) -> Knobs:
    """OLMo 2: norms after the branches, and of all heads of q or k as a whole."""
    k = llama_block(c, rms_norm_eps=1e-5)
    rotate(c, k)
    k.qk_norm, k.biased = WHOLE, biases(c)
    return k


def olmo3(c: Config) -> Knobs:
    """OLMo 3: OLMo 2 with windows, and rope scaling in the layers without one."""
    k = llama_block(c, rms_norm_eps=1e-5)
    k.qk_norm, k.biased = WHOLE, biases(c)
    kinds = layer_kinds(c, k.n_layers, every(4))
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=5e5), sliding_theta=5e5)
    k.rotate(*[ropes[kind] for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    return k


OLMOE = {**LLAMA, **QK_NORM, **expert_names("mlp")}


def olmoe(c: Config) -> Knobs:
    """OLMoE: norms of all heads of q or k as a whole."""
    c.default(num_experts=64, num_experts_per_tok=8)
    k = llama_block(c, max_position_embeddings=4096, rms_norm_eps=1e-5)
    rotate(c, k)
    experts(c, k, width="intermediate_size", renorm=c.flag("norm_topk_prob", False))
    k.qk_norm, k.biased = WHOLE, biases(c)
    k.clip = 0.0 if c.get("clip_qkv") is None else c.number("clip_qkv")
    return k


PRE_NORMS, POST_NORMS = ("attn_norm", "ffn_norm"), ("attn_post_norm", "ffn_post_norm")
OLMO_HYBRID = {
    **LLAMA,
    **QK_NORM,
    **in_layer(
        "model.layers.N.linear_attn",
        mix_in="in_proj_qkv",
        conv="conv1d",
        delta_gate="g_proj",
        delta_beta="b_proj",
        delta_decay="in_proj_a",
        delta_rate="rate",
        delta_norm="o_norm",
        mix_out="o_proj",
    ),
    "layers.N.attn_norm": "model.layers.N.attention_layer_norm|model.layers.N.input_layernorm",
    "layers.N.ffn_norm": (
        "model.layers.N.feedforward_layer_norm|model.layers.N.post_attention_layernorm"
    ),
    # In a layer with attention; transformers 5.23.0 saves it by the name of a layer without.
    "layers.N.attn_post_norm": (
        "model.layers.N.post_attention_layernorm|model.layers.N.feedforward_layer_norm"
    ),
    "layers.N.ffn_post_norm": "model.layers.N.post_feedforward_layernorm",
}


def olmo_hybrid(c: Config) -> Knobs:
    """OLMo Hybrid: OLMo 3's attention, whose norms come after the branches, in every fourth layer;
    in the others a gated DeltaNet whose steps go up to 2, with norms before."""
    k = llama_block(c, max_position_embeddings=65536)
    linear = [LINEAR if i % 4 != 3 else FULL for i in range(k.n_layers)]
    if FULL not in linear:
        linear[-1] = FULL
    kinds = kinds_of(c, c.get("layer_types") or linear, k.n_layers, (LINEAR, FULL))
    delta = [kind == LINEAR for kind in kinds]
    keys = c.int("linear_num_key_heads", k.n_heads)
    k_dim = c.int("linear_key_head_dim", int(0.75 * k.n_embd / keys))
    part = DeltaNet(
        with_silu(c, delta),
        taps=c.int("linear_conv_kernel_dim", 4, most=64),
        k_heads=keys,
        k_dim=k_dim,
        v_heads=c.int("linear_num_value_heads", k.n_heads),
        v_dim=c.int("linear_value_head_dim", 2 * k_dim),
        beta=2.0 if c.flag("linear_allow_neg_eigval", True) else 1.0,
        eps=1e-5,
    )
    if part.v_heads % part.k_heads:
        raise ExportError(
            f"{c.where}: linear_num_value_heads is no multiple of linear_num_key_heads"
        )
    c.ignore(
        *(
            f"linear_{key}"
            for key in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")
        )
    )
    k.parts += [
        part,
        Lacking(delta, POST_NORMS),
        Lacking([not has for has in delta], PRE_NORMS),
    ]
    k.qk_norm, k.biased = WHOLE, (*biases(c), "delta_decay")
    rope = c.get("rope_parameters") or {}
    theta = c.get("rope_theta", 10000.0)
    if not isinstance(rope, dict) or rope.get("rope_theta", theta) is None:
        c.ignore("rope_theta", "rope_scaling")  # no rope, as in the released ones
    else:
        rotate(c, k)
    return k


OLMO = {**LLAMA, **in_layer("model.layers.N", attn_norm=None, ffn_norm=None), "norm": None}
FLEX_OLMO = {**POST_NORM, **expert_names("mlp")}


def flex_olmo(c: Config) -> Knobs:
    """FlexOlmo: OLMo 2 with experts."""
    c.default(num_experts=7, num_experts_per_tok=5, intermediate_size=11008)
    k = llama_block(c, max_position_embeddings=4096)
    rotate(c, k, theta=5e5)
    experts(c, k, width="intermediate_size", renorm=c.flag("norm_topk_prob", False))
    k.qk_norm, k.biased = WHOLE, biases(c)
    return k
