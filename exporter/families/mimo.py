"""MiMo 7B."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Skipped
from .common import QKV, llama_block, rotate


def mimo(c: Config) -> Knobs:
    """MiMo: Qwen 2's layers, as the code in its repository has them."""
    k = llama_block(c, max_position_embeddings=32768)
    rotate(c, k)
    k.biased = QKV * c.flag("attention_bias", True)
    c.require(use_sliding_window=False)
    c.ignore("sliding_window", "max_window_layers", "num_nextn_predict_layers")
    k.parts.append(Skipped([], prefixes=("model.mtp_layers.",)))
    return k
