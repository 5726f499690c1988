"""StableLM."""

from __future__ import annotations

from ..config import Config
from ..knobs import DISTINCT, Knobs
from .common import LLAMA, QKV, in_layer, llama_block, rotate, without


def stablelm(c: Config) -> Knobs:
    """StableLM 3B and 2: LayerNorm in a Llama, rope of a part of each head, perhaps a norm for
    every head."""
    k = llama_block(
        c,
        "layer_norm_eps",
        head_dim_key=False,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        layer_norm_eps=1e-5,
    )
    rotate(c, k, partial=0.25)
    k.layernorm, k.parallel, k.qk_norm = True, c.flag("use_parallel_residual", False), DISTINCT
    k.biased, k.bare_norms = QKV * c.flag("use_qkv_bias", False), ("attn_q_norm", "attn_k_norm")
    absent = ("ffn_norm",) * k.parallel + ("attn_q_norm", "attn_k_norm") * (
        not c.flag("qk_layernorm", False)
    )
    k.names = without(STABLELM, *absent)
    return k


STABLELM = {
    **LLAMA,
    **in_layer(
        "model.layers.N.self_attn",
        attn_q_norm="q_layernorm.norms.*",
        attn_k_norm="k_layernorm.norms.*",
    ),
}
