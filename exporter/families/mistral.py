"""Mistral and Ministral. Mixtral has a file of its own."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..rope import layer_kinds, windows
from .common import default_rope, llama_block, rotate


def mistral(c: Config) -> Knobs:
    """Mistral 7B, Nemo, Small 3.1, Ministral 8B: windows."""
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072)
    rotate(c, k)
    size = c.get("sliding_window", 4096)
    k.window = windows(c, layer_kinds(c, k.n_layers, lambda layer: size is not None), size)
    return k


def ministral3(c: Config) -> Knobs:
    """Ministral 3: YaRN, and queries that grow with the position."""
    yarn = dict(
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        original_max_position_embeddings=16384,
    )
    default_rope(c, rope_type="yarn", rope_theta=1e6, factor=16.0, llama_4_scaling_beta=0.1, **yarn)
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=262144, rms_norm_eps=1e-5
    )
    rotate(c, k, theta=1e6, known=("llama_4_scaling_beta", "max_position_embeddings"))
    rope = Config(
        c.get("rope_parameters") or c.get("rope_scaling") or {}, f"{c.where}: rope_parameters"
    )
    beta, k.q_temp_length = (
        rope.number("llama_4_scaling_beta"),
        rope.int("original_max_position_embeddings"),
    )
    k.q_temp = [1 + beta * float(np.log(1 + i)) for i in range(k.context // k.q_temp_length + 1)]
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k
