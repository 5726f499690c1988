"""GPT, GPT-2 and CTRL, and the block of those that spell their config like it."""

from __future__ import annotations

from ..config import Config
from ..knobs import ACTS, Knobs
from ..tensor import ExportError
from ..layers.part import Computed
from .common import QKVO, in_layer, sinusoid

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
    check_heads(c, "n_embd", n_embd, "n_head", n_heads)
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


def check_heads(c: Config, width: str, n_embd: int, heads: str, n_heads: int) -> None:
    if n_embd % n_heads:
        raise ExportError(f"{c.where}: {width} {n_embd} is no multiple of {heads} {n_heads}")


def gpt2(c: Config) -> Knobs:
    """GPT-2, DistilGPT-2, GPT-SW3: learned positions, LayerNorm."""
    k = gpt_block(c, own_scale=True)
    k.conv1d = True
    k.attn_scale = score_scale(c, k)
    if c.flag("scale_attn_by_inverse_layer_idx", False):
        k.attn_scale = [k.attn_scale / (layer + 1) for layer in range(k.n_layers)]
    return k


def score_scale(c: Config, k: Knobs) -> float:
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


def openai_gpt(c: Config) -> Knobs:
    """GPT, the first: norms of sums, none at the end."""
    c.values = {**c.values, "n_inner": None, "activation_function": c.get("afn", "gelu")}
    c.ignore("predict_special_tokens", "n_special")
    k = gpt_block(c)
    k.conv1d, k.post_norm = True, True
    # Its gelu is the tanh form.
    acts = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
    k.act = ACTS[c.choice("activation_function", acts)]
    return k


OPENAI_GPT = {
    **{name: module for name, module in GPT2.items() if name not in ("norm",)},
    "embed": "transformer.tokens_embed",
    "embed_pos": "transformer.positions_embed",
}


def ctrl(c: Config) -> Knobs:
    """CTRL: sinusoids, a scaled embedding, a bias of logits."""
    c.values = {**c.values, "n_inner": c.int("dff", 8192), "activation_function": "relu"}
    c.default(layer_norm_epsilon=1e-6, n_positions=256)
    c.ignore("from_tf")
    c.require(layer_norm_epsilon=1e-6)  # which the layers' norms have whatever this says
    k = gpt_block(c)
    k.emb_scale, k.biased = k.n_embd**0.5, (*PLAIN, "output")
    k.parts.append(Computed([], "transformer.positions.weight", sinusoid(k.context, k.n_embd)))
    return k


CTRL = {
    "embed": "transformer.w",
    "embed_pos": "transformer.positions",
    **in_layer(
        "transformer.h.N",
        attn_norm="layernorm1",
        attn_q="multi_head_attention.Wq",
        attn_k="multi_head_attention.Wk",
        attn_v="multi_head_attention.Wv",
        attn_o="multi_head_attention.dense",
        ffn_norm="layernorm2",
        ffn_up="ffn.0",
        ffn_down="ffn.2",
    ),
    "norm": "transformer.layernorm",
    "output": "lm_head",
}
