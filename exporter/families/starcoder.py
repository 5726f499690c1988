"""StarCoder 1, SantaCoder (both gpt_bigcode) and StarCoder 2."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .common import FFN, PLAIN_FFN, QKVO, in_layer, llama_block, rotate
from .gpt2 import gpt_block, score_scale


def gpt_bigcode(c: Config) -> Knobs:
    """SantaCoder, StarCoder 1: GPT-2 with one KV head."""
    c.default(activation_function="gelu_pytorch_tanh")
    k = gpt_block(c, own_scale=True)
    c.require(scale_attn_by_inverse_layer_idx=False)
    k.attn_scale = score_scale(c, k)
    multi_query = c.flag("multi_query", True)
    c.ignore(
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "num_key_value_heads",
        "inference_runner",
        "max_batch_size",
        "max_sequence_length",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    )
    k.n_kv_heads, k.grouped_qkv = (1 if multi_query else k.n_heads), not multi_query
    return k


def starcoder2(c: Config) -> Knobs:
    """StarCoder 2: LayerNorm, biases, windows."""
    k = llama_block(
        c,
        "norm_epsilon",
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
        max_position_embeddings=4096,
        norm_epsilon=1e-5,
        tie_word_embeddings=True,
    )
    rotate(c, k)
    c.require(mlp_type="default", norm_type="layer_norm", scale_attn_weights=True)
    c.ignore("layer_norm_epsilon", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    k.layernorm, k.biased = True, (QKVO + FFN) * c.flag("use_bias", True)
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


STARCODER2 = {
    **PLAIN_FFN,
    **in_layer("model.layers.N.mlp", ffn_up="c_fc", ffn_down="c_proj"),
}
