"""Bamba."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..tensor import ExportError
from .common import LLAMA, biases, in_layer, llama_block, rotate
from .mamba2 import mamba2_names, mamba2_part

BAMBA = {
    **LLAMA,
    "layers.N.ffn_norm": "model.layers.N.pre_ff_layernorm",
    **in_layer(
        "model.layers.N.feed_forward", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj"
    ),
    **mamba2_names("model.layers.N.mamba"),
    "norm": "model.final_layernorm",
}


def bamba(c: Config) -> Knobs:
    """Bamba: attention with rope on half a head in a few layers, Mamba-2 in the others."""
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=262144, rms_norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    c.require(attn_rotary_emb=k.head_dim // 2)
    c.ignore("num_logits_to_keep", "z_loss_coefficient")
    k.biased = biases(c)
    attention = c.get("attn_layer_indices") or []
    if not isinstance(attention, list):
        raise ExportError(f"{c.where}: attn_layer_indices is {attention!r}, expected a list")
    mamba2_part(c, k, [i not in attention for i in range(k.n_layers)])
    return k
