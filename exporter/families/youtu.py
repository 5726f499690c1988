"""Youtu-LLM."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .deepseek import DEEPSEEK, latent_block
from .experts import expert_names

YOUTU = {**DEEPSEEK, **expert_names("mlp")}


def youtu(c: Config) -> Knobs:
    """Youtu-LLM: latent attention without experts."""
    k = latent_block(
        c, c.flag("rope_interleave", True), max_position_embeddings=131072, tie_word_embeddings=True
    )
    c.ignore("embedding_initializer_range")
    return k
