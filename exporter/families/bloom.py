"""BLOOM."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import alibi_slopes, in_layer
from .falcon import FALCON
from .gpt2 import gpt_block


def bloom(c: Config) -> Knobs:
    """BLOOM: ALiBi, and a norm of the embedding."""
    c.ignore(
        "slow_but_exact",
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "unk_token_id",
    )
    c.default(
        n_embd=c.get("n_embed", c.get("hidden_size")),
        n_layer=c.get("num_hidden_layers"),
        n_head=c.get("num_attention_heads"),
        n_positions=c.get("seq_length", 2048),
    )
    k = gpt_block(c)
    k.grouped_qkv, k.slopes = True, alibi_slopes(k.n_heads)
    k.normed_residual = c.flag("apply_residual_connection_post_layernorm", False)
    return k


BLOOM = {
    "embed": "transformer.word_embeddings",
    "embed_norm": "transformer.word_embeddings_layernorm",
    **{name: module for name, module in FALCON.items() if ".N." in name},
    **in_layer("transformer.h.N", ffn_norm="post_attention_layernorm"),
    "norm": "transformer.ln_f",
    "output": "lm_head",
}
