"""Solar Open."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import LLAMA, QKV, biases, llama_block, rotate
from .experts import expert_names, v3_experts


def solar_open(c: Config) -> Knobs:
    """Solar Open: experts in all layers, DeepSeek-V3's router."""
    c.default(
        moe_intermediate_size=1280,
        num_experts_per_tok=8,
        n_routed_experts=128,
        n_shared_experts=1,
        intermediate_size=10240,
    )
    c.require(first_k_dense_replace=0, use_qk_norm=False)
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5
    )
    rotate(c, k, theta=1e6, partial=1.0)
    v3_experts(c, k)
    k.biased = biases(c, QKV)
    return k


SOLAR_OPEN = {**LLAMA, **expert_names("mlp", dense="shared_experts")}
