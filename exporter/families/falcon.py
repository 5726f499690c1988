"""Falcon. Falcon-H1 has a file of its own."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..knobs import ACTS, Knobs
from ..tensor import ExportError
from .common import alibi_slopes, in_layer, rotate
from .gpt2 import PLAIN, check_heads


def falcon(c: Config) -> Knobs:
    """Falcon: 7B with one KV head, 40B, 180B and 11B with several (new_decoder_architecture), RW
    with ALiBi."""
    c.require(apply_residual_connection_post_layernorm=False)
    c.default(
        hidden_size=c.get("n_embed"),
        num_hidden_layers=c.get("n_layer"),
        num_attention_heads=c.get("n_head"),
    )
    n_embd, n_heads = c.int("hidden_size"), c.int("num_attention_heads")
    check_heads(c, "hidden_size", n_embd, "num_attention_heads", n_heads)
    new, one = c.flag("new_decoder_architecture", False), c.flag("multi_query", True)
    # Heads share hidden_size; without the new architecture num_kv_heads means nothing.
    c.ignore("num_kv_heads", "head_dim")
    k = Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=n_embd,
        n_layers=c.int("num_hidden_layers", most=4096),
        context=c.int("max_position_embeddings", 2048),
        n_heads=n_heads,
        n_kv_heads=(n_heads if c.get("num_kv_heads") is None else c.int("num_kv_heads"))
        if new
        else 1
        if one
        else n_heads,
        head_dim=n_embd // n_heads,
        d_ff=4 * n_embd if c.get("ffn_hidden_size") is None else c.int("ffn_hidden_size"),
        act=c.choice("activation", ACTS, "gelu"),
        norm_eps=c.number("layer_norm_epsilon", 1e-5),
        tied=c.flag("tie_word_embeddings", True),
        layernorm=True,
        parallel=new or c.flag("parallel_attn", True),
        grouped_qkv=True,
        biased=PLAIN * c.flag("bias", False),
    )
    c.ignore("parallel_attn")
    if c.flag("alibi", False):
        # transformers rounds slopes and what they give to bf16; here they are what ALiBi says
        k.slopes = alibi_slopes(n_heads) * np.float32(k.head_dim**-0.5)
        c.ignore("rope_theta", "rope_scaling", "rope_parameters")
    else:
        rotate(c, k)
    norms = (
        1 + new
        if c.get("num_ln_in_parallel_attn") is None
        else c.int("num_ln_in_parallel_attn", most=2)
    )
    if new and norms == 2:
        k.names = {**FALCON, **in_layer("transformer.h.N", attn_norm="ln_attn", ffn_norm="ln_mlp")}
    elif not k.parallel:
        k.names = {**FALCON, **in_layer("transformer.h.N", ffn_norm="post_attention_layernorm")}
    elif norms == 2:
        raise ExportError(
            f"{c.where}: num_ln_in_parallel_attn is 2, which is not supported without the new "
            "architecture"
        )
    return k


FALCON = {
    "embed": "transformer.word_embeddings",
    "layers.N.attn_norm": "transformer.h.N.input_layernorm",
    "layers.N.attn_qkv": "transformer.h.N.self_attention.query_key_value",
    "layers.N.attn_o": "transformer.h.N.self_attention.dense",
    "layers.N.ffn_up": "transformer.h.N.mlp.dense_h_to_4h",
    "layers.N.ffn_down": "transformer.h.N.mlp.dense_4h_to_h",
    "norm": "transformer.ln_f",
    "output": "lm_head",
}
