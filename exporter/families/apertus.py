"""Apertus."""

from __future__ import annotations

from ..config import Config
from ..knobs import XIELU, Knobs
from .common import PLAIN_FFN, QK_NORM, QKVO, default_rope, in_layer, llama_block, rotate


def apertus(c: Config) -> Knobs:
    """Apertus: a plain feed-forward layer of xIELU, and q and k normalised head by head."""
    k = llama_block(
        c,
        acts={"xielu": XIELU},
        hidden_act="xielu",
        max_position_embeddings=65536,
        rms_norm_eps=1e-5,
    )
    llama3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    default_rope(c, rope_type="llama3", rope_theta=12e6, factor=8.0, **llama3)
    rotate(c, k, theta=12e6)
    k.biased = QKVO * c.flag("attention_bias", False)
    c.require(qk_norm=True, post_norm=False, mlp_bias=False)
    return k


APERTUS = {
    **PLAIN_FFN,
    **in_layer(
        "model.layers.N",
        attn_norm="attention_layernorm",
        ffn_norm="feedforward_layernorm",
        ffn_act="mlp.act_fn",
    ),
    **QK_NORM,
}
