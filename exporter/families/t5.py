"""T5, mT5 and UMT5."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..knobs import ACTS, Knobs
from ..layers.attention import RelativeBias
from ..tensor import ExportError
from .common import without
from .encoder import encoder
from .encoder_decoder import IGNORED, alone, layer_names, one_embedding, two_stacks


@dataclass
class T5Bias(RelativeBias):
    """The biases of distances: block 0's, for all blocks of its stack, or each block's own."""

    n_source: int = 0
    each: bool = False

    def arrange(self, left):
        for name in [name for name in left if name.startswith("transformer.")]:
            left[name.removeprefix("transformer.")] = left.pop(name)
        if self.n_source == len(self.layers):  # a whole T5 may lie in an encoder's file
            for name in [name for name in left if name.startswith(("decoder.", "lm_head."))]:
                del left[name]
        one_embedding(left, ["shared", "encoder.embed_tokens", "decoder.embed_tokens"])
        place = "layer.0.SelfAttention.relative_attention_bias.weight"
        tables = {}
        for i in range(len(self.layers)):
            causal = i >= self.n_source
            block = i - self.n_source if causal else i
            stack = "decoder" if causal else "encoder"
            name = f"{stack}.block.{block if self.each else 0}.{place}"
            if name in left:
                tables[name] = left.pop(name)
            if name in tables:
                left[f"relative.{i}.weight"] = self.rows(tables[name], causal)
        # The first files have one for cross-attention too, which nothing reads.
        left.pop("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", None)


T5_ATTENTION = {
    "attn_norm": "layer.0.layer_norm",
    "attn_q": "layer.0.SelfAttention.q",
    "attn_k": "layer.0.SelfAttention.k",
    "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o",
}
T5_CROSS = {
    "cross_norm": "layer.1.layer_norm",
    "cross_q": "layer.1.EncDecAttention.q",
    "cross_k": "layer.1.EncDecAttention.k",
    "cross_v": "layer.1.EncDecAttention.v",
    "cross_o": "layer.1.EncDecAttention.o",
}


def t5_ffn(layer: int, gated: bool) -> dict[str, str]:
    dense = f"layer.{layer}.DenseReluDense"
    names = {"ffn_norm": f"layer.{layer}.layer_norm"}
    if gated:
        names |= {"ffn_gate": f"{dense}.wi_0"}
    return names | {
        "ffn_up": f"{dense}.wi_{1}" if gated else f"{dense}.wi",
        "ffn_down": f"{dense}.wo",
    }


def t5_names(n_source: int, n_target: int, gated: bool) -> dict[str, str]:
    first = {**T5_ATTENTION, **t5_ffn(1, gated)}
    second = {**T5_ATTENTION, **T5_CROSS, **t5_ffn(2, gated)}
    names = {
        "embed": "shared",
        **layer_names("encoder.block", 0, n_source, first),
        **layer_names("decoder.block", n_source, n_target, second),
        **{f"layers.{i}.attn_relative": f"relative.{i}" for i in range(n_source + n_target)},
        "source_norm": "encoder.final_layer_norm",
        "norm": "decoder.final_layer_norm",
        "output": "lm_head",
    }
    return (
        names
        if n_target
        else {**without(names, "source_norm", "output"), "norm": names["source_norm"]}
    )


def t5_activation(c: Config) -> tuple[bool, int]:
    """Whether it is gated, and which."""
    name = c.get("feed_forward_proj")
    gated, _, act = name.rpartition("-") if isinstance(name, str) else ("?", "", "")
    if gated not in ("", "gated") or act not in ACTS:
        raise ExportError(
            f"{c.where}: feed_forward_proj is {name!r}, which is not supported; supported: an "
            f"activation or gated- and one: {', '.join(ACTS)}"
        )
    if name == "gated-gelu":
        act = "gelu_new"
    c.require(dense_act_fn=act, is_gated_act=bool(gated))
    return bool(gated), ACTS[act]


def t5_like(c: Config, vocab_size: int, scaled: bool, each: bool, **defaults) -> Knobs:
    c.default(
        **{
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 1024,
            "num_layers": 8,
            "num_heads": 6,
            "feed_forward_proj": "gated-gelu",
            "vocab_size": vocab_size,
            **defaults,
        }
    )
    c.ignore(*IGNORED, "output_past", "tie_word_embeddings")
    half = alone(c)
    if half == "decoder":
        raise ExportError(
            f"{c.where}: architectures names a decoder alone, and this family has none"
        )
    n_source = c.int("num_layers", most=2048)
    n_target = 0 if half else n_source
    if c.get("num_decoder_layers") is not None and not half:
        n_target = c.int("num_decoder_layers", most=2048)
    gated, act = t5_activation(c)
    n = n_source + n_target
    k = Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=c.int("d_model"),
        n_layers=n,
        context=c.int("n_positions", 512),
        n_heads=c.int("num_heads"),
        n_kv_heads=c.int("num_heads"),
        head_dim=c.int("d_kv"),
        d_ff=c.int("d_ff"),
        act=act,
        norm_eps=c.number("layer_norm_epsilon", 1e-6),
        tied=True,
        attn_scale=1.0,
    )
    if scaled:
        k.logit_scale = k.n_embd**-0.5
    buckets = c.int("relative_attention_num_buckets", 32, least=4)
    reach = c.int("relative_attention_max_distance", 128)
    if reach <= buckets // 2:
        raise ExportError(
            f"{c.where}: relative_attention_max_distance {reach} is no more than half of "
            f"relative_attention_num_buckets {buckets}"
        )
    bias = T5Bias(
        [True] * n, heads=k.n_heads, buckets=buckets, reach=reach, n_source=n_source, each=each
    )
    names = t5_names(n_source, n_target, gated)
    if not half:
        return two_stacks(k, n_source, names, bias)
    k.names, k.parts = names, [bias]
    return encoder(c, k)


def t5(c: Config) -> Knobs:
    """T5 1.0 and 1.1, Flan-T5: biases by distance, no scale of scores."""
    # T5 1.0 scales what the output reads, and says that it ties the head; 1.1 does neither.
    tied = c.get("tie_word_embeddings") is not False
    scaled = c.flag("scale_decoder_outputs", tied)
    return t5_like(
        c, 32128, scaled, each=False, d_ff=2048, num_layers=6, num_heads=8, feed_forward_proj="relu"
    )


def mt5(c: Config) -> Knobs:
    """mT5: biases by distance, gates."""
    return t5_like(c, 250112, scaled=False, each=False)


def umt5(c: Config) -> Knobs:
    """UMT5: biases by distance, each block its own."""
    return t5_like(c, 250112, scaled=True, each=True)
