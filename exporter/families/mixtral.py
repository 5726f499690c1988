"""Mixtral."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import LLAMA, llama_block, rotate
from .experts import expert_names, experts

MIXTRAL = {  # transformers 5 calls block_sparse_moe mlp
    **LLAMA,
    **{
        name: "|".join((module, module.replace("block_sparse_moe", "mlp")))
        for name, module in expert_names("block_sparse_moe").items()
    },
}


def mixtral(c: Config) -> Knobs:
    """Mixtral: experts."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
    rotate(c, k, theta=1e6)
    experts(c, k, "num_local_experts", "intermediate_size")
    c.ignore("router_jitter_noise")  # in training
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k
