"""RecurrentGemma."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.mixers import Rglru
from ..tensor import ExportError
from .common import LLAMA, QKV, in_layer, llama_block, rotate

MODULE = "model.layers.N.temporal_block"
RECURRENT_GEMMA = {
    **LLAMA,
    **in_layer(
        MODULE,
        attn_q="q_proj",
        attn_k="k_proj",
        attn_v="v_proj",
        attn_o="o_proj",
        mix_in="linear_x",
        conv="conv_1d",
        ssm_gate="linear_y",
        lru_decay="decay",
        lru_input="input",
        lru_rate="rate",
        mix_out="linear_out",
    ),
    **in_layer("model.layers.N", attn_norm="temporal_pre_norm", ffn_norm="channel_pre_norm"),
    **in_layer(
        "model.layers.N.mlp_block", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj"
    ),
    "norm": "model.final_norm",
}
BIASED = ("conv", "mix_in", "ssm_gate", "lru_decay", "lru_input", "mix_out", "attn_o")


def bf16(x: float) -> float:
    """To nearest even."""
    bits = int(np.float32(x).view(np.uint32))
    return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))


def recurrent_gemma(c: Config) -> Knobs:
    """RecurrentGemma: linear recurrent units (RG-LRU), windows in every third layer, biases, rope
    of half a head, softcapped logits."""
    c.default(attention_window_size=2048, conv1d_width=4, logits_soft_cap=30.0)
    c.default(hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)
    c.default(num_hidden_layers=26, vocab_size=256000, hidden_size=2560, intermediate_size=7680)
    c.default(num_attention_heads=10, block_types=["recurrent", "recurrent", "attention"])
    c.ignore("w_init_variance_scale", "final_w_init_variance_scale", "head_dim")
    c.require(embeddings_scale_by_sqrt_dim=True)
    k = llama_block(c, act="hidden_activation", head_dim_key=False, max_position_embeddings=8192)
    kinds = c.list("block_types")
    if not kinds or not set(map(str, kinds)) <= {"recurrent", "attention"}:
        raise ExportError(f"{c.where}: block_types is {kinds!r}, expected recurrent, attention")
    recurrent = [kinds[i % len(kinds)] == "recurrent" for i in range(k.n_layers)]
    rotate(c, k, partial=0.5)
    k.window, k.final_softcap = [c.int("attention_window_size")], c.number("logits_soft_cap")
    k.d_ff, k.norm_offset, k.emb_scale = k.d_ff // 2, 1.0, bf16(k.n_embd**0.5)
    width = k.n_embd if c.get("lru_width") is None else c.int("lru_width")
    if width % k.n_heads:
        raise ExportError(f"{c.where}: lru_width {width} is no multiple of num_attention_heads")
    taps = c.int("conv1d_width", most=64)
    k.parts.append(Rglru(recurrent, taps=taps, heads=k.n_heads, head_dim=width // k.n_heads))
    k.biased = (*BIASED, *QKV * c.flag("attention_bias", False), "ffn_gate", "ffn_up", "ffn_down")
    return k
