"""MiniMax M2."""

from __future__ import annotations

from ..config import Config
from ..knobs import WHOLE, Knobs
from ..layers.experts import SIGMOID
from ..layers.part import Skipped
from .common import QK_NORM, llama_block, rotate
from .experts import experts
from .mixtral import MIXTRAL


def minimax_m2(c: Config) -> Knobs:
    """MiniMax M2: norms of all heads of q or k as a whole, rope of a part of each head, experts by
    sigmoids with a bias for the choice."""
    c.default(num_local_experts=256, num_experts_per_tok=8, intermediate_size=1536)
    k = llama_block(c, num_key_value_heads=8, head_dim=128, max_position_embeddings=196608)
    if c.get("rotary_dim") is not None:
        c.default(partial_rotary_factor=c.int("rotary_dim") / k.head_dim)
    rotate(c, k, theta=5e6, partial=1.0)
    experts(c, k, "num_local_experts", "intermediate_size", score=SIGMOID, biased=True)
    k.qk_norm = WHOLE
    # What the first code read; transformers does as these say.
    c.require(qk_norm_type="per_layer", use_qk_norm=True, use_routing_bias=True)
    c.require(scoring_func="sigmoid", shared_intermediate_size=0, attn_type_list=[1] * k.n_layers)
    for branch in ("full_attention", "linear_attention", "mlp"):
        c.require(**{f"layernorm_{branch}_beta": 1.0})
    c.ignore("mlp_intermediate_size", "shared_moe_mode")  # of what it has not
    c.ignore("router_jitter_noise", "use_mtp", "num_mtp_modules", "mtp_transformer_layers")
    k.parts.append(Skipped([], n_layers=k.n_layers))
    return k


MINIMAX_M2 = {**MIXTRAL, **QK_NORM}
