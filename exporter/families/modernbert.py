"""ModernBERT."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..knobs import ACTS, Knobs
from ..layers.part import Part
from ..rope import FULL, SLIDING, Rope, Shape, rope_by_type
from ..tensor import ExportError
from .common import FFN, NORMS, QKVO, in_layer, llama_block
from .encoder import encoder


@dataclass
class NoFirstNorm(Part):
    """The first layer's attention reads the embedding, which has a norm of its own."""

    lacks = ("attn_norm",)


def modernbert(c: Config, causal: bool = False) -> Knobs:
    """ModernBERT: norms of branches' inputs, rope, most layers with a window to both sides."""
    c.default(
        vocab_size=50368,
        hidden_size=768,
        intermediate_size=1152,
        num_hidden_layers=22,
        num_attention_heads=12,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    c.choice("position_embedding_type", {"absolute": 0, "sans_pos": 0}, "absolute")  # never counted
    c.ignore(
        "layer_norm_eps",
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "mlp_dropout",
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "classifier_dropout",
    )
    k = llama_block(
        c,
        "norm_eps",
        act="hidden_activation",
        head_dim_key=False,
        hidden_activation="gelu",
        norm_eps=1e-5,
    )
    k.n_kv_heads, k.layernorm = k.n_heads, True
    types = c.get("layer_types")
    every = c.int("global_attn_every_n_layers", 3)
    if types is None:
        types = [SLIDING if i % every else FULL for i in range(k.n_layers)]
    if not isinstance(types, list) or len(types) != k.n_layers or set(types) - {FULL, SLIDING}:
        raise ExportError(f"{c.where}: layer_types has not {FULL} or {SLIDING} for each layer")
    window = c.int("local_attention", 128) // 2 + 1
    k.window = [window if kind == SLIDING else 0 for kind in types]
    ropes = modernbert_ropes(c, k)
    k.rotate(*[ropes[kind] for kind in types])
    k.biased = (
        ("attn_qkv", *QKVO) * c.flag("attention_bias", False)
        + ("ffn_gate_up", *FFN) * c.flag("mlp_bias", False)
        + ("head_dense",) * c.flag("classifier_bias", False)
        + ("output",) * c.flag("decoder_bias", True)
    )
    if not c.flag("norm_bias", False):
        k.bare_norms = (*NORMS, "embed_norm", "head_norm")
    k.parts.append(NoFirstNorm([i == 0 for i in range(k.n_layers)]))
    return encoder(c, k, causal, head_act=c.choice("classifier_activation", ACTS, "gelu"))


def modernbert_ropes(c: Config, k: Knobs) -> dict[str, Rope]:
    """Its two thetas, in the old spelling and in the new."""
    values = {
        "rope_theta": c.number("global_rope_theta", 160000.0),
        "rope_local_base_freq": c.number("local_rope_theta", 10000.0),
        "rope_parameters": c.get("rope_parameters"),
    }
    c.require(rope_scaling=None)
    inner = Config({key: v for key, v in values.items() if v is not None}, c.where)
    return rope_by_type(inner, Shape(k.head_dim, k.context), sliding_theta=1e4)


MODERNBERT = {
    "embed": "model.embeddings.tok_embeddings",
    "embed_norm": "model.embeddings.norm",
    **in_layer(
        "model.layers.N",
        attn_norm="attn_norm",
        attn_qkv="attn.Wqkv",
        attn_o="attn.Wo",
        ffn_norm="mlp_norm",
        ffn_gate_up="mlp.Wi",
        ffn_down="mlp.Wo",
    ),
    "norm": "model.final_norm",
    "head_dense": "head.dense",
    "head_norm": "head.norm",
    "output": "decoder",
}


def modernbert_decoder(c: Config) -> Knobs:
    """ModernBERT as a decoder, Ettin: norms of branches' inputs, a head with a layer, windows."""
    c.values = {**c.values, "is_decoder": True}
    c.require(causal_mask=True, is_causal=True)
    k = modernbert(c, causal=True)
    # A window of half of local_attention, that many tokens and not one more.
    size = c.int("local_attention", 128) // 2
    k.window = [size if window else 0 for window in k.window]
    c.require(sliding_window=size)  # which transformers writes and does not read
    return k


MODERNBERT_DECODER = {
    **{name: module for name, module in MODERNBERT.items() if not name.endswith("attn_qkv")},
    **in_layer("model.layers.N.attn", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj"),
    "head_dense": "lm_head.dense",
    "head_norm": "lm_head.norm",
}
