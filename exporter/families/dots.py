"""dots.llm1."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import layer_kinds, windows
from .common import LLAMA, QK_NORM, biases, llama_block, rotate
from .experts import expert_names, v3_experts

DOTS = {**LLAMA, **QK_NORM, **expert_names("mlp", dense="shared_experts")}


def dots1(c: Config) -> Knobs:
    """dots.llm1: DeepSeek-V3's router, windows."""
    c.default(norm_topk_prob=False)
    k = llama_block(c, num_key_value_heads=32, max_position_embeddings=2048)
    rotate(c, k)
    v3_experts(c, k)
    k.biased = biases(c)
    size, first = c.get("sliding_window", 4096), c.int("max_window_layers", 62, least=0)
    k.window = windows(
        c, layer_kinds(c, k.n_layers, lambda layer: size is not None and layer >= first), size
    )
    return k
