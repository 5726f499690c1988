"""GLM 4, and GLM 4.5 and 4.6, which have experts."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import FUSED_FFN, QKV, biases, in_layer, llama_block, rotate, without
from .dots import DOTS
from .experts import v3_experts


def glm(c: Config) -> Knobs:
    """GLM 4 9B and GLM-4-0414: interleaved rope of half a head."""
    k = llama_block(
        c,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1.5625e-7,
    )
    rotate(c, k, partial=0.5)
    k.biased, k.interleaved = QKV * c.flag("attention_bias", True), True
    return k


def glm4_moe(c: Config) -> Knobs:
    """GLM 4.5 and 4.6: DeepSeek-V3's router, rope of half a head."""
    c.default(
        moe_intermediate_size=1408,
        num_experts_per_tok=8,
        n_routed_experts=128,
        n_shared_experts=1,
        intermediate_size=10944,
    )
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    v3_experts(c, k, first=1)
    k.biased = biases(c, QKV)
    k.names = without(
        DOTS, *(() if c.flag("use_qk_norm", False) else ("attn_q_norm", "attn_k_norm"))
    )
    return k


GLM4 = {
    **FUSED_FFN,
    **in_layer(
        "model.layers.N",
        attn_post_norm="post_self_attn_layernorm",
        ffn_post_norm="post_mlp_layernorm",
    ),
}
