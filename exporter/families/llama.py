"""Llama, and models of its very shape: TinyLlama, SmolLM 1 and 2, InternLM 3, IQuest Coder, Code
World Model."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import layer_kinds, windows
from .common import biases, default_rope, llama_block, rotate


def llama(c: Config) -> Knobs:
    """Llama 1 to 3.2, TinyLlama, SmolLM 1 and 2: rope scaling linear, llama3, YaRN."""
    k = llama_block(c)
    rotate(c, k)
    k.biased = biases(c)
    c.require(rope_interleaved=False)
    return k


def internlm3(c: Config) -> Knobs:
    """InternLM 3: biases in all matrices or none."""
    c.default(attention_bias=c.get("qkv_bias", False), mlp_bias=c.get("bias", False))
    k = llama_block(
        c, num_key_value_heads=2, head_dim=128, max_position_embeddings=32768, rms_norm_eps=1e-5
    )
    rotate(c, k)
    k.biased = biases(c)
    c.require(mlp_bias=c.flag("attention_bias", False))
    return k


def iquestcoder(c: Config) -> Knobs:
    """IQuest Coder: Llama's block."""
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5
    )
    rotate(c, k)
    k.biased = biases(c)
    c.require(clip_qkv=None, use_sliding_window=False)
    c.ignore("sliding_window", "max_window_layers")  # without use_sliding_window they mean nothing
    return k


def cwm(c: Config) -> Knobs:
    """Code World Model: a window in three layers of four."""
    llama3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    default_rope(c, rope_type="llama3", rope_theta=1e6, factor=16.0, **llama3)
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5
    )
    rotate(c, k, theta=1e6)
    k.biased = biases(c, ())
    kinds = layer_kinds(c, k.n_layers, lambda layer: layer % 4 != 0)
    k.window = windows(c, kinds, c.get("sliding_window", 8192))
    return k
