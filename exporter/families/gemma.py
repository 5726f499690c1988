"""Gemma 1 to 3, and VaultGemma. Gemma 4 has a file of its own."""

from __future__ import annotations

from ..config import Config
from ..knobs import ACTS, Knobs
from ..rope import Shape, layer_kinds, rope_by_type, windows
from .common import LLAMA, QK_NORM, QKVO, every, in_layer, llama_block, rotate
from .encoder import encoder


def gemma_block(c: Config, **defaults) -> Knobs:
    """Norms multiply by 1 + w, and the embedding is scaled."""
    k = llama_block(
        c,
        **{
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            **defaults,
        },
    )
    k.biased = QKVO * c.flag("attention_bias", False)
    k.norm_offset, k.emb_scale = 1.0, k.n_embd**0.5
    return k


def gemma(c: Config) -> Knobs:
    """Gemma 1: norms of 1 + w, a scaled embedding; `gelu` means the tanh form."""
    k = gemma_block(c, num_key_value_heads=16, hidden_act="gelu_pytorch_tanh")
    c.require(use_bidirectional_attention=False)
    rotate(c, k)
    if c.get("hidden_act") == "gelu":
        k.act = ACTS["gelu_pytorch_tanh"]
    c.ignore("hidden_activation")  # later families read it, this one does not
    return k


def _gemma2(
    c: Config, window: int = 4096, softcaps=(50.0, 30.0), sliding=every(2), **defaults
) -> tuple[Knobs, list[str]]:
    """What Gemma 2 and its successors share; also the kinds of the layers."""
    c.ignore("hidden_act")  # these read hidden_activation
    k = gemma_block(
        c,
        act="hidden_activation",
        hidden_activation="gelu_pytorch_tanh",
        num_key_value_heads=4,
        **defaults,
    )
    k.attn_scale = c.number("query_pre_attn_scalar", 256) ** -0.5
    for field, key, usual in zip(
        ("softcap", "final_softcap"),
        ("attn_logit_softcapping", "final_logit_softcapping"),
        softcaps,
    ):
        setattr(k, field, 0.0 if c.get(key, usual) is None else c.number(key, usual))
    kinds = layer_kinds(c, k.n_layers, sliding)
    k.window = windows(c, kinds, c.get("sliding_window", window))
    return k, kinds


def gemma2(c: Config) -> Knobs:
    """Gemma 2 and VaultGemma, which has no norms after the branches: norms before and after the branches, softcaps, a window in every other layer."""
    k, _ = _gemma2(c)
    c.require(use_bidirectional_attention=False)
    rotate(c, k)
    return k


def gemma3(c: Config) -> Knobs:
    """Gemma 3 text, EmbeddingGemma: q and k normalised head by head, five layers with a window and
    a theta of their own to one without; an encoder if the config says so."""
    c.ignore("_sliding_window_pattern")  # which always comes with layer_types
    pattern = c.int("sliding_window_pattern", 6)
    k, kinds = _gemma2(
        c,
        softcaps=(None, None),
        sliding=every(pattern),
        max_position_embeddings=131072,
        vocab_size=262208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
    )
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=1e6), sliding_theta=1e4)
    k.rotate(*[ropes[kind] for kind in kinds])
    if not c.flag("use_bidirectional_attention", False):
        return k
    k.window = [w and w // 2 + 1 for w in k.window]  # half of it to each side
    return encoder(
        c, k, has_head=any("CausalLM" in str(name) for name in c.list("architectures") or [])
    )


GEMMA2 = {
    **LLAMA,
    **in_layer(
        "model.layers.N",
        attn_post_norm="post_attention_layernorm",
        ffn_norm="pre_feedforward_layernorm",
        ffn_post_norm="post_feedforward_layernorm",
    ),
}
GEMMA3 = {**GEMMA2, **QK_NORM}
VAULTGEMMA = {**LLAMA, **in_layer("model.layers.N", ffn_norm="pre_feedforward_layernorm")}
