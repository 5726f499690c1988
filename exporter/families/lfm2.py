"""LFM 2 and 3: short convolutions, and attention in some layers."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.attention import Gate
from ..layers.experts import SIGMOID
from ..layers.mixers import ShortConv
from ..rope import FULL, SLIDING, Shape, rope_by_type, windows
from .common import LLAMA, biases, default_rope, in_layer, llama_block, mixer_kinds, rotate
from .experts import expert_names, experts

LFM2_FFN = in_layer("model.layers.N.feed_forward", ffn_gate="w1", ffn_up="w3", ffn_down="w2")
LFM2 = {
    **LLAMA,
    **in_layer("model.layers.N", attn_norm="operator_norm", ffn_norm="ffn_norm"),
    **in_layer(
        "model.layers.N.self_attn",
        attn_o="out_proj",
        attn_q_norm="q_layernorm",
        attn_k_norm="k_layernorm",
    ),
    **in_layer("model.layers.N.conv", mix_in="in_proj", conv="conv", mix_out="out_proj"),
    **LFM2_FFN,
    "norm": "model.embedding_norm",
}
LFM2_MOE = {**LFM2, **expert_names("feed_forward"), **LFM2_FFN}
LFM3 = {
    **LFM2,
    **in_layer(
        "model.layers.N", attn_post_norm="post_operator_norm", ffn_post_norm="post_ffn_norm"
    ),
    **in_layer(
        "model.layers.N.self_attn", attn_o="o_proj", attn_q_norm="q_norm", attn_k_norm="k_norm"
    ),
    "layers.N.attn_gate": "model.layers.N.self_attn.gate_proj|model.layers.N.self_attn.g_proj",
}


def lfm_block(c: Config, known: tuple[str, ...], **defaults) -> tuple[Knobs, list[str]]:
    """What LFM 2 and 3 share; also the kinds of the layers."""
    for old, new in (
        ("tie_embedding", "tie_word_embeddings"),
        ("block_ff_dim", "intermediate_size"),
    ):
        if c.get(old) is not None:
            c.values = {**c.values, new: c.get(old)}
    k = llama_block(
        c,
        "norm_eps",
        norm_eps=1e-5,
        num_key_value_heads=8,
        max_position_embeddings=128000,
        tie_word_embeddings=True,
        intermediate_size=12288,
        **defaults,
    )
    c.require(
        conv_dim=k.n_embd,
        conv_dim_out=k.n_embd,
        block_dim=k.n_embd,
        conv_use_xavier_init=True,
    )
    c.require(num_heads=k.n_heads, use_pos_enc=True)
    c.ignore(
        "theta",
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_norm_eps",
        "block_use_swiglu",
    )
    c.ignore("block_use_xavier_init")
    attention = c.list("full_attn_idxs")
    attention = range(k.n_layers) if attention is None else attention
    kinds = mixer_kinds(
        c,
        k.n_layers,
        known,
        ["full_attention" if i in attention else "conv" for i in range(k.n_layers)],
    )
    k.parts.append(
        ShortConv(
            [kind == "conv" for kind in kinds],
            taps=c.int("conv_L_cache", 3, most=64),
            channels=k.n_embd,
        )
    )
    k.biased = ("mix_in", "conv", "mix_out") * c.flag("conv_bias", False)
    return k, kinds


def lfm2(c: Config) -> Knobs:
    """LFM 2: short convolutions, attention in some layers."""
    k, _ = lfm_block(c, ("conv", "full_attention"))
    rotate(c, k, theta=1e6)
    if c.flag("block_auto_adjust_ff_dim", True):
        k.d_ff = int(2 * k.d_ff / 3)
        if c.get("block_ffn_dim_multiplier", 1.0) is not None:
            of = c.int("block_multiple_of", 256)
            k.d_ff = -(-int(c.number("block_ffn_dim_multiplier", 1.0) * k.d_ff) // of) * of
    c.ignore("block_ffn_dim_multiplier", "block_multiple_of")  # otherwise
    return k


def lfm2_moe(c: Config) -> Knobs:
    """LFM 2 with experts: by sigmoids with a bias for the choice."""
    c.default(
        intermediate_size=7168, moe_intermediate_size=1792, num_experts=32, num_experts_per_tok=4
    )
    k, _ = lfm_block(c, ("conv", "full_attention"))
    rotate(c, k, theta=1e6)
    d_ff, dense = k.d_ff, c.int("num_dense_layers", 2, least=0)
    part = experts(
        c,
        k,
        score=SIGMOID,
        biased=c.flag("use_expert_bias", True),
        renorm=c.flag("norm_topk_prob", True),
        renorm_eps=1e-6,
        scale=c.number("routed_scaling_factor", 1.0),
    )
    part.layers = [i >= dense for i in range(k.n_layers)]
    k.d_ff = [0 if sparse else d_ff for sparse in part.layers]
    return k


def lfm3(c: Config) -> Knobs:
    """LFM 3: norms after the branches too, a gate for each head, and a rope for layers with a
    window and another for the rest."""
    default_rope(
        c,
        full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.5),
        sliding_attention=dict(rope_type="default", rope_theta=1e4),
    )
    usual = [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 < i else "conv"
        for i in range(10000)
    ]
    if c.get("layer_types") is None:
        c.values = {**c.values, "layer_types": usual[: c.int("num_hidden_layers", most=4096)]}
    c.default(num_key_value_heads=4, conv_L_cache=7, intermediate_size=7680, head_dim=128)
    k, kinds = lfm_block(c, ("conv", FULL, SLIDING))
    c.require(use_sandwich_norm=True, use_attention_gate=True)
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=1e6), sliding_theta=1e4)
    k.rotate(*[ropes.get(kind) for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 256))
    k.parts.append(Gate([kind != "conv" for kind in kinds], rows=k.n_heads))
    k.biased += biases(c)
    return k
