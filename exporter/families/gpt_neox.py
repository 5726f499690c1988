"""GPT-NeoX and Pythia."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..tensor import constant, modules
from .common import FFN, in_layer, llama_block, rotate


def gpt_neox(c: Config) -> Knobs:
    """GPT-NeoX, Pythia: rope of a part of each head, two norms side by side."""
    theta, partial = c.number("rotary_emb_base", 10000.0), c.number("rotary_pct", 0.25)
    c.default(hidden_act="gelu")
    k = llama_block(c, "layer_norm_eps", head_dim_key=False, layer_norm_eps=1e-5)
    rotate(c, k, theta, partial)
    k.n_kv_heads, k.grouped_qkv, k.layernorm = k.n_heads, True, True
    k.parallel = c.flag("use_parallel_residual", True)
    k.biased = ("attn_qkv", "attn_o") * c.flag("attention_bias", True) + FFN
    return k


GPT_NEOX = {
    "embed": "gpt_neox.embed_in",
    **in_layer(
        "gpt_neox.layers.N",
        attn_norm="input_layernorm",
        attn_qkv="attention.query_key_value",
        attn_o="attention.dense",
        ffn_norm="post_attention_layernorm",
        ffn_up="mlp.dense_h_to_4h",
        ffn_down="mlp.dense_4h_to_h",
    ),
    "norm": "gpt_neox.final_layer_norm",
    "output": "embed_out|lm_head",
}


@dataclass
class DenseBias(Part):
    """The bias of attention's output, which only the last layer has, under a name of its own; the
    others get zeros."""

    def arrange(self, left):
        for module in modules(left, "dense_bias"):
            left[module + ".dense.bias"] = left.pop(module + ".dense_bias")
        for module in modules(left, "dense.weight"):
            if module + ".dense.bias" not in left:
                zeros = np.zeros(left[module + ".dense.weight"].shape[0], np.float32)
                left[module + ".dense.bias"] = constant(zeros)


def gpt_neox_japanese(c: Config) -> Knobs:
    """GPT-NeoX Japanese: no biases but the last layer's."""
    theta, partial = c.number("rotary_emb_base", 10000.0), c.number("rotary_pct", 1.0)
    c.default(hidden_act="gelu")
    times, width = c.int("intermediate_multiple_size", 4), c.int("hidden_size")
    c.values = {**c.values, "intermediate_size": times * width}
    k = llama_block(
        c, "layer_norm_eps", head_dim_key=False, layer_norm_eps=1e-5, tie_word_embeddings=True
    )
    rotate(c, k, theta, partial)
    k.n_kv_heads, k.grouped_qkv, k.layernorm, k.biased = k.n_heads, True, True, ("attn_o",)
    k.parts.append(DenseBias([]))
    return k


GPT_NEOX_JAPANESE = {
    name: module.replace("gpt_neox.", "gpt_neox_japanese.") for name, module in GPT_NEOX.items()
}
