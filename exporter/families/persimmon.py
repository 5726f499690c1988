"""Persimmon."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import in_layer, llama_block, rotate, without
from .gpt2 import PLAIN


def persimmon(c: Config) -> Knobs:
    """Persimmon: LayerNorm, also of q and k head by head, squared ReLU, rope of half a head."""
    k = llama_block(
        c,
        "layer_norm_eps",
        head_dim_key=False,
        layer_norm_eps=1e-5,
        hidden_act="relu2",
        max_position_embeddings=16384,
    )
    rotate(c, k, partial=0.5)
    k.n_kv_heads, k.grouped_qkv, k.layernorm, k.biased = k.n_heads, True, True, PLAIN
    if not c.flag("qk_layernorm", True):
        k.names = without(PERSIMMON, "attn_q_norm", "attn_k_norm")
    return k


PERSIMMON = {
    "embed": "model.embed_tokens",
    **in_layer(
        "model.layers.N",
        attn_norm="input_layernorm",
        attn_qkv="self_attn.query_key_value",
        attn_o="self_attn.dense",
        attn_q_norm="self_attn.q_layernorm",
        attn_k_norm="self_attn.k_layernorm",
        ffn_norm="post_attention_layernorm",
        ffn_up="mlp.dense_h_to_4h",
        ffn_down="mlp.dense_4h_to_h",
    ),
    "norm": "model.final_layernorm",
    "output": "lm_head",
}
