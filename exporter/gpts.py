"""GPT-2 and its kin: LayerNorm, mostly a plain feed-forward layer, often attention and feed-forward
side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .common import (
    FFN,
    LLAMA,
    QKV,
    QKVO,
    alibi_slopes,
    biases,
    every,
    in_layer,
    llama_block,
    rotate,
    without,
)
from .config import Config
from .knobs import ACTS, DISTINCT, Knobs
from .parts import Part, modules
from .rope import SLIDING, Shape, layer_kinds, rope_set, windows
from .tensor import ExportError

NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "norm")
PLAIN = ("attn_qkv", *QKVO, "ffn_up", "ffn_down")  # all matrices of a layer


def gpt_block(c: Config, own_scale: bool = False) -> Knobs:
    """The knobs of GPT-2 and of those that spell their config like it, without rope and
    positions. own_scale: the family reads whether scores are scaled."""
    c.default(
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=True,
        n_inner=None,
        activation_function="gelu_new",
    )
    n_embd, n_heads = c.int("n_embd"), c.int("n_head")
    _check_heads(c, "n_embd", n_embd, "n_head", n_heads)
    c.require(add_cross_attention=False)
    if not own_scale:
        c.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    c.ignore(
        "reorder_and_upcast_attn", "n_ctx", *(key for key in c.values if key.startswith("summary_"))
    )
    return Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=n_embd,
        n_layers=c.int("n_layer", most=4096),
        context=c.int("n_positions", 1024),
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=n_embd // n_heads,
        d_ff=4 * n_embd if c.get("n_inner") is None else c.int("n_inner"),
        act=c.choice("activation_function", ACTS, "gelu_new"),
        norm_eps=c.number("layer_norm_epsilon", 1e-5),
        tied=c.flag("tie_word_embeddings", True),
        layernorm=True,
        biased=PLAIN,
    )


def _check_heads(c: Config, width: str, n_embd: int, heads: str, n_heads: int) -> None:
    if n_embd % n_heads:
        raise ExportError(f"{c.where}: {width} {n_embd} is no multiple of {heads} {n_heads}")


def gpt2(c: Config) -> Knobs:
    """GPT-2, DistilGPT-2."""
    k = gpt_block(c, own_scale=True)
    k.conv1d = True
    k.attn_scale = _score_scale(c, k)
    if c.flag("scale_attn_by_inverse_layer_idx", False):
        k.attn_scale = [k.attn_scale / (layer + 1) for layer in range(k.n_layers)]
    return k


def _score_scale(c: Config, k: Knobs) -> float:
    return k.head_dim**-0.5 if c.flag("scale_attn_weights", True) else 1.0


GPT2 = {
    "embed": "transformer.wte",
    "embed_pos": "transformer.wpe",
    "layers.N.attn_norm": "transformer.h.N.ln_1",
    "layers.N.attn_qkv": "transformer.h.N.attn.c_attn",
    "layers.N.attn_o": "transformer.h.N.attn.c_proj",
    "layers.N.ffn_norm": "transformer.h.N.ln_2",
    "layers.N.ffn_up": "transformer.h.N.mlp.c_fc",
    "layers.N.ffn_down": "transformer.h.N.mlp.c_proj",
    "norm": "transformer.ln_f",
    "output": "lm_head",
}


def gpt_bigcode(c: Config) -> Knobs:
    """SantaCoder, StarCoder 1: GPT-2 with one KV head."""
    c.default(activation_function="gelu_pytorch_tanh")
    k = gpt_block(c, own_scale=True)
    c.require(scale_attn_by_inverse_layer_idx=False)
    k.attn_scale = _score_scale(c, k)
    multi_query = c.flag("multi_query", True)
    c.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads",
             "inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length",
             "pre_allocate_kv_cache", "validate_runner_input")  # fmt: skip
    k.n_kv_heads, k.grouped_qkv = (1 if multi_query else k.n_heads), not multi_query
    return k


def gptj(c: Config) -> Knobs:
    """GPT-J: interleaved rope of a part of each head, attention and feed-forward side by side under
    one norm."""
    c.default(tie_word_embeddings=False, n_positions=2048)
    k = gpt_block(c)
    c.require(rotary=True)
    rotary = c.int("rotary_dim", 64)
    rope = rope_set(
        Config({"partial_rotary_factor": rotary / k.head_dim}),
        Shape(k.head_dim, k.context, partial=1.0),
    )
    k.rotate(*[rope] * k.n_layers)
    k.parallel, k.interleaved, k.biased = True, True, ("ffn_up", "ffn_down", "output")
    return k


GPTJ = {
    **without(GPT2, "embed_pos", "attn_qkv", "ffn_norm"),
    **in_layer(
        "transformer.h.N.attn", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj", attn_o="out_proj"
    ),
    **in_layer("transformer.h.N.mlp", ffn_up="fc_in", ffn_down="fc_out"),
}


def gpt_neo(c: Config) -> Knobs:
    """GPT-Neo: scores are not scaled, every other layer has a window."""
    c.default(
        n_embd=c.get("hidden_size"), n_head=c.get("num_heads"), n_layer=c.get("num_layers"),
        n_inner=c.get("intermediate_size"), n_positions=c.get("max_position_embeddings", 2048),
    )  # fmt: skip
    k = gpt_block(c)
    k.attn_scale, k.biased = 1.0, ("attn_o", "ffn_up", "ffn_down")
    kinds = c.get("attention_layers")
    if kinds is None:
        kinds = [
            kind
            for group, n in c.get("attention_types", [[["global", "local"], 12]])
            for kind in group * n
        ]
    c.ignore("attention_types")  # attention_layers is the same written out
    if len(kinds) != k.n_layers or not set(kinds) <= {"global", "local"}:
        raise ExportError(
            f"{c.where}: attention_types has not global or local for each of the {k.n_layers} "
            "layers"
        )
    k.window = [c.int("window_size", 256) if kind == "local" else 0 for kind in kinds]
    return k


GPT_NEO = {
    **without(GPT2, "attn_qkv"),
    **in_layer(
        "transformer.h.N.attn.attention",
        attn_q="q_proj",
        attn_k="k_proj",
        attn_v="v_proj",
        attn_o="out_proj",
    ),
}


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


def opt(c: Config) -> Knobs:
    """OPT, but for the 350M model, which is built another way: learned positions of which the first
    two mean nothing."""
    c.default(
        intermediate_size=c.get("ffn_dim"),
        hidden_act=c.get("activation_function", "relu"),
        tie_word_embeddings=True,
    )
    k = llama_block(c, "layer_norm_eps", head_dim_key=False, layer_norm_eps=1e-5)
    c.require(do_layer_norm_before=True, _remove_final_layer_norm=False, enable_bias=True,
              layer_norm_elementwise_affine=True, word_embed_proj_dim=k.n_embd)  # fmt: skip
    k.n_kv_heads, k.layernorm, k.biased, k.skipped_positions = k.n_heads, True, PLAIN, 2
    return k


OPT = {
    "embed": "model.decoder.embed_tokens",
    "embed_pos": "model.decoder.embed_positions",
    **in_layer(
        "model.decoder.layers.N.self_attn",
        attn_q="q_proj",
        attn_k="k_proj",
        attn_v="v_proj",
        attn_o="out_proj",
    ),
    **in_layer(
        "model.decoder.layers.N",
        attn_norm="self_attn_layer_norm",
        ffn_norm="final_layer_norm",
        ffn_up="fc1",
        ffn_down="fc2",
    ),
    "norm": "model.decoder.final_layer_norm",
    "output": "lm_head",
}


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
    _check_heads(c, "hidden_size", n_embd, "num_attention_heads", n_heads)
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


def bloom(c: Config) -> Knobs:
    """BLOOM: ALiBi, and a norm of the embedding."""
    c.ignore("slow_but_exact", "attention_softmax_in_fp32", "bias_dropout_fusion",
             "masked_softmax_fusion", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv",
             "unk_token_id")  # fmt: skip
    c.default(
        n_embd=c.get("n_embed", c.get("hidden_size")), n_layer=c.get("num_hidden_layers"),
        n_head=c.get("num_attention_heads"), n_positions=c.get("seq_length", 2048),
    )  # fmt: skip
    k = gpt_block(c)
    k.grouped_qkv, k.slopes = True, alibi_slopes(k.n_heads)
    k.normed_residual = c.flag("apply_residual_connection_post_layernorm", False)
    return k


BLOOM = {
    "embed": "transformer.word_embeddings",
    "embed_norm": "transformer.word_embeddings_layernorm",
    **{name: source for name, source in FALCON.items() if ".N." in name},
    **in_layer("transformer.h.N", ffn_norm="post_attention_layernorm"),
    "norm": "transformer.ln_f",
    "output": "lm_head",
}


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
        n_embd=c.get("d_model", 2048), n_head=c.get("n_heads", 16), n_layer=c.get("n_layers", 24),
        n_positions=c.get("max_seq_len", 2048), n_inner=int(ratio * c.int("d_model", 2048)),
        activation_function="gelu",
    )  # fmt: skip
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


def starcoder2(c: Config) -> Knobs:
    """StarCoder 2."""
    k = llama_block(
        c, "norm_epsilon", num_key_value_heads=2, hidden_act="gelu_pytorch_tanh",
        max_position_embeddings=4096, norm_epsilon=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    rotate(c, k)
    c.require(mlp_type="default", norm_type="layer_norm", scale_attn_weights=True)
    c.ignore("layer_norm_epsilon", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    k.layernorm, k.biased = True, (QKVO + FFN) * c.flag("use_bias", True)
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


def phi(c: Config) -> Knobs:
    """Phi 1, 1.5 and 2: attention and feed-forward side by side under one norm, biases
    everywhere."""
    k = llama_block(c, "layer_norm_eps", hidden_act="gelu_new", layer_norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    k.layernorm, k.parallel, k.biased = True, True, (*QKVO, *FFN, "output")
    if not c.flag("qk_layernorm", False):
        k.names = without(PHI, "attn_q_norm", "attn_k_norm")
    return k


PHI = {
    **without(LLAMA, "ffn_norm", "ffn_gate"),
    **in_layer(
        "model.layers.N.self_attn",
        attn_o="dense",
        attn_q_norm="q_layernorm",
        attn_k_norm="k_layernorm",
    ),
    **in_layer("model.layers.N.mlp", ffn_up="fc1", ffn_down="fc2"),
    "norm": "model.final_layernorm",
    "output": "lm_head",
}


def stablelm(c: Config) -> Knobs:
    """StableLM 3B and 2: LayerNorm in a Llama, rope of a part of each head, perhaps a norm for
    every head."""
    k = llama_block(
        c,
        "layer_norm_eps",
        head_dim_key=False,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        layer_norm_eps=1e-5,
    )
    rotate(c, k, partial=0.25)
    k.layernorm, k.parallel, k.qk_norm = True, c.flag("use_parallel_residual", False), DISTINCT
    k.biased, k.bare_norms = QKV * c.flag("use_qkv_bias", False), ("attn_q_norm", "attn_k_norm")
    absent = ("ffn_norm",) * k.parallel + ("attn_q_norm", "attn_k_norm") * (
        not c.flag("qk_layernorm", False)
    )
    k.names = without(STABLELM, *absent)
    return k


STABLELM = {
    **LLAMA,
    **in_layer(
        "model.layers.N.self_attn",
        attn_q_norm="q_layernorm.norms.*",
        attn_k_norm="k_layernorm.norms.*",
    ),
}


def cohere(c: Config) -> Knobs:
    """Cohere's Command R and Aya: one LayerNorm for both branches, interleaved rope, perhaps a norm
    for every head."""
    k = _cohere(c, max_position_embeddings=8192)
    rotate(c, k, theta=5e5)
    k.qk_norm = DISTINCT
    if not c.flag("use_qk_norm", False):
        k.names = without(COHERE, "attn_q_norm", "attn_k_norm")
    return k


def cohere2(c: Config) -> Knobs:
    """Cohere's Command R7B: three layers with window and rope to one with neither."""
    c.require(use_qk_norm=False, use_gated_activation=True, use_parallel_block=True,
              position_embedding_type="rope_gptj", layer_switch=4,
              order_of_interleaved_layers="local_attn_first", rotary_pct=1.0)  # fmt: skip
    c.ignore("use_parallel_embedding", "use_embedding_sharing")
    k = _cohere(c, max_position_embeddings=8192)
    rope = rope_set(c, Shape(k.head_dim, k.context))
    kinds = layer_kinds(c, k.n_layers, every(c.int("sliding_window_pattern", 4)))
    k.rotate(*[rope if kind == SLIDING else None for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    return k


def _cohere(c: Config, **defaults) -> Knobs:
    defaults = {"layer_norm_eps": 1e-5, "tie_word_embeddings": True, **defaults}
    k = llama_block(c, "layer_norm_eps", **defaults)
    k.layernorm, k.parallel, k.interleaved, k.bare_norms = True, True, True, NORMS
    k.logit_scale, k.biased = (
        c.number("logit_scale", 0.0625),
        QKVO * c.flag("attention_bias", False),
    )
    return k


COHERE2 = without(LLAMA, "ffn_norm")
COHERE = {
    **COHERE2,
    **in_layer("model.layers.N.self_attn", attn_q_norm="q_norm", attn_k_norm="k_norm"),
}


def nemotron(c: Config) -> Knobs:
    """Nemotron 3 and 4, Minitron: LayerNorm of 1 + w, squared ReLU, rope of a part of each head."""
    k = llama_block(c, "norm_eps", hidden_act="relu2", max_position_embeddings=4096, norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    k.layernorm, k.norm_offset, k.biased = True, 1.0, biases(c)
    return k


def jais2(c: Config) -> Knobs:
    """Jais 2: LayerNorm, biases, squared ReLU."""
    k = llama_block(
        c, "layer_norm_eps", hidden_act="relu2", max_position_embeddings=8192, layer_norm_eps=1e-5
    )
    rotate(c, k)
    k.layernorm, k.biased = True, biases(c, attention=True, ffn=True)
    return k
