"""EuroBERT."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import FFN, QKVO, llama_block, rotate
from .encoder import encoder


def eurobert(c: Config) -> Knobs:
    """EuroBERT: Llama's layers, whose tokens see each other."""
    c.default(
        vocab_size=128256,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
    )
    c.ignore("mask_token_id")
    k = llama_block(c)
    rotate(c, k)
    mlp_bias = c.flag("mlp_bias", False)
    k.biased = QKVO * c.flag("attention_bias", False) + (*FFN, "output") * mlp_bias
    masked = any("MaskedLM" in str(name) for name in c.list("architectures") or [])
    return encoder(c, k, has_head=masked)
