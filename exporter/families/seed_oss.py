"""Seed-OSS."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import QKV, biases, llama_block, rotate


def seed_oss(c: Config) -> Knobs:
    """Seed-OSS: biases of q, k and v."""
    k = llama_block(c, num_key_value_heads=8, head_dim=128, max_position_embeddings=524288)
    rotate(c, k)
    k.biased = biases(c, QKV, attention=True) + ("attn_o",) * c.flag("attention_out_bias", False)
    return k
