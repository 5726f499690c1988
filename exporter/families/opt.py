"""OPT, BioGPT and XGLM."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Computed
from .common import in_layer, llama_block, m2m_sinusoid
from .gpt2 import PLAIN


def opt(c: Config) -> Knobs:
    """OPT, but for the 350M model, which is built another way: learned positions of which the first
    two mean nothing."""
    c.default(
        intermediate_size=c.get("ffn_dim"),
        hidden_act=c.get("activation_function", "relu"),
        tie_word_embeddings=True,
    )
    k = llama_block(c, "layer_norm_eps", head_dim_key=False, layer_norm_eps=1e-5)
    c.require(
        do_layer_norm_before=True,
        _remove_final_layer_norm=False,
        enable_bias=True,
        layer_norm_elementwise_affine=True,
        word_embed_proj_dim=k.n_embd,
    )
    k.n_kv_heads, k.layernorm, k.biased, k.skipped_positions = k.n_heads, True, PLAIN, 2
    return k


OPT = {
    "embed": "model.decoder.embed_tokens",
    "embed_pos": "model.decoder.embed_positions",
    **in_layer(
        "model.decoder.layers.N.self_attn",
        attn_q="q_proj",
        attn_k="k_proj",
        attn_v="v_proj",
        attn_o="out_proj",
    ),
    **in_layer(
        "model.decoder.layers.N",
        attn_norm="self_attn_layer_norm",
        ffn_norm="final_layer_norm",
        ffn_up="fc1",
        ffn_down="fc2",
    ),
    "norm": "model.decoder.final_layer_norm",
    "output": "lm_head",
}


def biogpt(c: Config) -> Knobs:
    """BioGPT: OPT's layers, a scaled embedding."""
    c.ignore("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob")
    c.values = {**c.values, "layer_norm_eps": 1e-5}  # whatever it says
    k = llama_block(
        c,
        "layer_norm_eps",
        head_dim_key=False,
        hidden_act="gelu",
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    k.n_kv_heads, k.layernorm, k.biased, k.skipped_positions = k.n_heads, True, PLAIN, 2
    k.emb_scale = k.n_embd**0.5 if c.flag("scale_embedding", True) else 1.0
    return k


def xglm(c: Config) -> Knobs:
    """XGLM: OPT's layers, sinusoids, a scaled embedding."""
    for name, key, usual in (
        ("hidden_size", "d_model", 1024),
        ("num_hidden_layers", "num_layers", 24),
        ("num_attention_heads", "attention_heads", 16),
        ("intermediate_size", "ffn_dim", 4096),
        ("hidden_act", "activation_function", "gelu"),
    ):
        c.values = {**c.values, name: c.get(key, usual)}
    c.require(add_cross_attention=False)
    k = biogpt(c)
    k.context = c.int("max_position_embeddings", 2048)
    table, pad = m2m_sinusoid(k.context + 2, k.n_embd), c.get("pad_token_id", 1)
    if isinstance(pad, int) and pad < len(table):
        table[pad] = 0
    k.parts.append(Computed([], "model.embed_positions.weight", table))
    return k


BIOGPT = {
    name: module.replace("model.decoder.final_layer_norm", "biogpt.layer_norm")
    .replace("model.decoder.", "biogpt.")
    .replace("lm_head", "output_projection")
    for name, module in OPT.items()
}
XGLM = {
    name: module.replace("model.decoder.final_layer_norm", "model.layer_norm").replace(
        "model.decoder.", "model."
    )
    for name, module in OPT.items()
}
