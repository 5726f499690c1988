"""Helium."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import QKV, biases, llama_block, rotate


def helium(c: Config) -> Knobs:
    """Helium 1: interleaved rope."""
    k = llama_block(
        c, num_key_value_heads=20, head_dim=128, max_position_embeddings=4096, rms_norm_eps=1e-8
    )
    rotate(c, k, theta=1e5)
    k.biased, k.interleaved = biases(c, QKV), True
    return k
