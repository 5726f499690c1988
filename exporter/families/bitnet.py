"""BitNet b1.58."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import LLAMA, biases, in_layer, llama_block, rotate


def bitnet(c: Config) -> Knobs:
    """BitNet b1.58, packed weights too: norms before the last matrix of each branch, and a gate of squared ReLU."""
    k = llama_block(c, num_key_value_heads=5, hidden_act="relu2", rms_norm_eps=1e-5)
    rotate(c, k, theta=5e5)
    k.biased = biases(c)
    return k


BITNET = {
    **LLAMA,
    **in_layer(
        "model.layers.N",
        attn_sub_norm="self_attn.attn_sub_norm",
        ffn_sub_norm="mlp.ffn_sub_norm",
    ),
}
