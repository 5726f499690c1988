"""Jais 2."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import biases, llama_block, rotate


def jais2(c: Config) -> Knobs:
    """Jais 2: LayerNorm, biases, squared ReLU."""
    k = llama_block(
        c, "layer_norm_eps", hidden_act="relu2", max_position_embeddings=8192, layer_norm_eps=1e-5
    )
    rotate(c, k)
    k.layernorm, k.biased = True, biases(c, attention=True, ffn=True)
    return k
