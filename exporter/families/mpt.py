"""MPT."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..tensor import modules
from .common import NORMS, in_layer
from .gpt2 import gpt_block


def mpt(c: Config) -> Knobs:
    """MPT: ALiBi with other slopes, q, k and v clipped, no biases."""
    attn = c.get("attn_config") or {}
    a = Config(attn if isinstance(attn, dict) else {}, f"{c.where}: attn_config")
    a.require(
        attn_type="multihead_attention", alibi=True, prefix_lm=False, qk_ln=False, alibi_bias_max=8
    )
    a.ignore("attn_impl", "attn_pdrop", "attn_uses_sequence_id", "is_encoder_decoder")
    c.require(no_bias=True, logit_scale=None, embedding_fraction=1.0)
    c.ignore(
        "learned_pos_emb", "norm_type", "init_device", "init_config", "verbose", "tokenizer_name"
    )
    ratio = c.number("expansion_ratio", 4)
    c.default(
        n_embd=c.get("d_model", 2048),
        n_head=c.get("n_heads", 16),
        n_layer=c.get("n_layers", 24),
        n_positions=c.get("max_seq_len", 2048),
        n_inner=int(ratio * c.int("d_model", 2048)),
        activation_function="gelu",
    )
    k = gpt_block(c)
    k.bare_norms = NORMS
    k.biased, k.clip = (), 0.0 if a.get("clip_qkv") is None else a.number("clip_qkv")
    k.attn_scale = None if a.get("softmax_scale") is None else a.number("softmax_scale")
    power = 1 << (k.n_heads - 1).bit_length()
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    k.slopes = np.array(
        slopes if power == k.n_heads else (slopes[1::2] + slopes[::2])[: k.n_heads], np.float32
    )
    a.finish()
    k.parts.append(FourTimesWide([], k))
    return k


@dataclass
class FourTimesWide(Part):
    """transformers makes a feed-forward network four times as wide as the model whatever
    expansion_ratio says, and saves it so; MPT's own code follows the ratio."""

    knobs: Knobs

    def arrange(self, left):
        for module in modules(left, "ffn.up_proj.weight"):
            if left[module + ".ffn.up_proj.weight"].shape[0] == 4 * self.knobs.n_embd:
                self.knobs.d_ff = 4 * self.knobs.n_embd


MPT = {
    "embed": "transformer.wte",
    **in_layer(
        "transformer.blocks.N",
        attn_norm="norm_1",
        attn_qkv="attn.Wqkv",
        attn_o="attn.out_proj",
        ffn_norm="norm_2",
        ffn_up="ffn.up_proj",
        ffn_down="ffn.down_proj",
    ),
    "norm": "transformer.norm_f",
    "output": "lm_head",
}
