"""T5, BART and their kin: an encoder, whose text a decoder looks at. The encoder's layers come first
in the file. docs/encoder_decoders.md lists them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .assemble import equal
from .common import FFN, QKVO
from .config import Config
from .encoders import RelativeBias
from .knobs import ACTS, Knobs
from .parts import Part
from .tensor import ExportError, Tensor, constant

CROSS = ("cross_q", "cross_k", "cross_v", "cross_o")
# Keys about training, other heads and beams, and those that older code had.
IGNORED = """
    activation_dropout add_bias_logits add_final_layer_norm architectures classif_dropout
    classifier_dropout decoder_layerdrop dropout_rate encoder_layerdrop extra_pos_embeddings
    initializer_factor is_decoder layerdrop normalize_before normalize_embedding num_hidden_layers
    save_step static_position_embeddings student_decoder_layers student_encoder_layers
    max_new_tokens min_new_tokens
    """.split()


@dataclass
class TwoStacks(Part):
    """`n_source` layers of an encoder and then those of a decoder, all `inner` wide in attention.
    The encoder's embedding is one of its own, of `source_vocab` tokens, if `own_embed`."""

    n_source: int = 0
    inner: int = 0
    source_vocab: int = 0
    context: int = 0

    def metadata(self):
        return {"model.source_layers": self.n_source}

    def shapes(self, n_embd):
        positions = (self.context, n_embd)
        return {
            "cross_q": (self.inner, n_embd),
            "cross_k": (self.inner, n_embd),
            "cross_v": (self.inner, n_embd),
            "cross_o": (n_embd, self.inner),
            "cross_norm": (n_embd,),
            "source_embed": (self.source_vocab, n_embd),
            "source_embed_pos": positions,
            "source_embed_norm": (n_embd,),
            "source_norm": (n_embd,),
        }


def layer_names(stack: str, first: int, n: int, modules: dict[str, str]) -> dict[str, str]:
    """Entries of layers first.., which are 0.. in the source's stack."""
    return {
        f"layers.{first + i}.{name}": f"{stack}.{i}.{module}"
        for i in range(n)
        for name, module in modules.items()
    }


def one_embedding(left: dict[str, Tensor], names: list[str]) -> None:
    """The first of the names stands for all of them: whichever is there, the others being the
    same."""
    found = [name for name in names if name + ".weight" in left]
    for name in found[1:]:
        if not equal(left[found[0] + ".weight"], left[name + ".weight"]):
            raise ExportError(
                f"{name}.weight differs from {found[0]}.weight, though config.json ties them"
            )
        del left[name + ".weight"]
    if found and found[0] != names[0]:
        left[names[0] + ".weight"] = left.pop(found[0] + ".weight")


# ---- T5 ------------------------------------------------------------------------------------------


@dataclass
class T5Bias(RelativeBias):
    """The biases of distances: block 0's, for all blocks of its stack, or each block's own."""

    n_source: int = 0
    each: bool = False

    def arrange(self, left):
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
    return names | {"ffn_up": f"{dense}.wi_{1}" if gated else f"{dense}.wi",
                    "ffn_down": f"{dense}.wo"}  # fmt: skip


def t5_names(n_source: int, n_target: int, gated: bool) -> dict[str, str]:
    encoder = {**T5_ATTENTION, **t5_ffn(1, gated)}
    decoder = {**T5_ATTENTION, **T5_CROSS, **t5_ffn(2, gated)}
    return {
        "embed": "shared",
        **layer_names("encoder.block", 0, n_source, encoder),
        **layer_names("decoder.block", n_source, n_target, decoder),
        **{f"layers.{i}.attn_relative": f"relative.{i}" for i in range(n_source + n_target)},
        "source_norm": "encoder.final_layer_norm",
        "norm": "decoder.final_layer_norm",
        "output": "lm_head",
    }


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
        **{"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
           "feed_forward_proj": "gated-gelu", "vocab_size": vocab_size, **defaults}
    )  # fmt: skip
    c.ignore(*IGNORED, "output_past", "tie_word_embeddings")
    n_source = c.int("num_layers", most=2048)
    n_target = n_source
    if c.get("num_decoder_layers") is not None:
        n_target = c.int("num_decoder_layers", most=2048)
    gated, act = t5_activation(c)
    n = n_source + n_target
    k = Knobs(
        vocab_size=c.int("vocab_size"), n_embd=c.int("d_model"), n_layers=n,
        context=c.int("n_positions", 512), n_heads=c.int("num_heads"),
        n_kv_heads=c.int("num_heads"), head_dim=c.int("d_kv"), d_ff=c.int("d_ff"), act=act,
        norm_eps=c.number("layer_norm_epsilon", 1e-6), tied=True, attn_scale=1.0,
    )  # fmt: skip
    if scaled:
        k.logit_scale = k.n_embd**-0.5
    buckets = c.int("relative_attention_num_buckets", 32, least=4)
    reach = c.int("relative_attention_max_distance", 128)
    if reach <= buckets // 2:
        raise ExportError(
            f"{c.where}: relative_attention_max_distance {reach} is no more than half of "
            f"relative_attention_num_buckets {buckets}"
        )
    bias = T5Bias([True] * n, heads=k.n_heads, buckets=buckets, reach=reach, n_source=n_source,
                  each=each)  # fmt: skip
    return two_stacks(k, n_source, t5_names(n_source, n_target, gated), bias)


def two_stacks(k: Knobs, n_source: int, names: dict[str, str], *parts: Part, **stacks) -> Knobs:
    """Makes a decoder's knobs those of an encoder and a decoder."""
    layers = [i >= n_source for i in range(k.n_layers)]
    k.mask = [0 if of_target else 1 for of_target in layers]
    k.names = names
    stacks = {"inner": k.n_heads * k.head_dim, "context": k.context + k.skipped_positions, **stacks}
    k.parts += [*parts, TwoStacks(layers, n_source=n_source, **stacks)]
    k.source_layers = n_source
    return k


def t5(c: Config) -> Knobs:
    """T5 1.0 and 1.1, and Flan-T5."""
    # The first ones scale what the output reads, and say that they tie; those of 1.1 say not.
    tied = c.get("tie_word_embeddings") is not False
    scaled = c.flag("scale_decoder_outputs", tied)
    return t5_like(c, 32128, scaled, each=False, d_ff=2048, num_layers=6, num_heads=8,
                   feed_forward_proj="relu")  # fmt: skip


def mt5(c: Config) -> Knobs:
    """mT5."""
    return t5_like(c, 250112, scaled=False, each=False)


def umt5(c: Config) -> Knobs:
    """UMT5, whose every block has biases of its own."""
    return t5_like(c, 250112, scaled=True, each=True)


# ---- BART ----------------------------------------------------------------------------------------

LEARNED, SINUSOID, M2M_SINUSOID = range(3)


def sinusoid(n: int, dim: int) -> np.ndarray:
    """float32 [n][dim], Marian's: sines of the even frequencies first, then cosines of the odd."""
    j = np.arange(dim)
    angles = np.arange(n)[:, None] / np.power(10000, 2 * (j // 2) / dim)
    return np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], 1).astype(np.float32)


def m2m_sinusoid(n: int, dim: int) -> np.ndarray:
    """float32 [n][dim], fairseq's: half of them sines, half cosines."""
    half = dim // 2
    step = np.float32(-math.log(10000) / (half - 1))
    frequencies = np.exp(np.arange(half, dtype=np.float32) * step)
    angles = np.arange(n, dtype=np.float32)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    return np.pad(table, ((0, 0), (0, dim % 2)))


@dataclass
class BartTensors(Part):
    """Which embedding stands for which, positions that are computed, and the bias of logits."""

    kind: int = LEARNED
    table: tuple[int, int] = (0, 0)
    shared: bool = True  # one embedding for both sides
    tied: bool = True
    vocab_size: int = 0

    def arrange(self, left):
        if not any(name.startswith("model.") for name in left):
            for name in list(left):
                if name.startswith(("encoder.", "decoder.", "shared.")):
                    left["model." + name] = left.pop(name)
        both = ["model.encoder.embed_tokens", "model.decoder.embed_tokens"]
        if self.shared:
            one_embedding(left, ["model.shared", *both])
        else:
            left.pop("model.shared.weight", None)
        for side in ("encoder", "decoder"):
            self.positions(left, f"model.{side}.embed_positions.weight")
        bias = left.pop("final_logits_bias", None)
        if bias is not None:
            if tuple(bias.shape) != (1, self.vocab_size):
                raise ExportError(
                    f"tensor final_logits_bias has shape {list(bias.shape)}, config.json makes it "
                    f"{[1, self.vocab_size]}"
                )
            left["lm_head.bias"] = bias.map(lambda b: b[0], (self.vocab_size,))

    def positions(self, left, name):
        if self.kind == M2M_SINUSOID:
            left.pop(name.replace("weight", "weights"), None)
            left[name] = constant(m2m_sinusoid(*self.table))
        elif self.kind == SINUSOID and name not in left:
            left[name] = constant(sinusoid(*self.table))


def bart_layer(cross: bool) -> dict[str, str]:
    names = {
        "attn_norm": "self_attn_layer_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_o": "self_attn.out_proj",
    }
    if cross:
        names |= {
            "cross_norm": "encoder_attn_layer_norm",
            "cross_q": "encoder_attn.q_proj",
            "cross_k": "encoder_attn.k_proj",
            "cross_v": "encoder_attn.v_proj",
            "cross_o": "encoder_attn.out_proj",
        }
    return names | {"ffn_norm": "final_layer_norm", "ffn_up": "fc1", "ffn_down": "fc2"}


def bart_names(n_source: int, n_target: int, shared: bool, embed_norm: bool, last_norm: bool):
    encoder, decoder = "model.encoder", "model.decoder"
    names = {
        "embed": "model.shared" if shared else f"{decoder}.embed_tokens",
        "embed_pos": f"{decoder}.embed_positions",
        "source_embed_pos": f"{encoder}.embed_positions",
    }
    if not shared:
        names["source_embed"] = f"{encoder}.embed_tokens"
    if embed_norm:
        names["embed_norm"] = f"{decoder}.layernorm_embedding"
        names["source_embed_norm"] = f"{encoder}.layernorm_embedding"
    names |= layer_names(f"{encoder}.layers", 0, n_source, bart_layer(False))
    names |= layer_names(f"{decoder}.layers", n_source, n_target, bart_layer(True))
    if last_norm:
        names["source_norm"] = f"{encoder}.layer_norm"
        names["norm"] = f"{decoder}.layer_norm"
    return names | {"output": "lm_head"}


def bart_like(c: Config, vocab_size: int, kind: int, post_norm: bool, embed_norm: bool,
              act: str = "gelu", scale: bool = False) -> Knobs:  # fmt: skip
    c.default(vocab_size=vocab_size, d_model=1024)
    c.ignore(*IGNORED, "num_attention_heads", "hidden_size", "force_bos_token_to_be_generated",
             "output_past", "extra_pos_embeddings", "static_position_embeddings")  # fmt: skip
    n_source = c.int("encoder_layers", 12, most=2048)
    n_target = c.int("decoder_layers", 12, most=2048)
    heads, n_embd = c.int("encoder_attention_heads", 16), c.int("d_model")
    if c.int("decoder_attention_heads", 16) != heads or n_embd % heads:
        raise ExportError(
            f"{c.where}: encoder_attention_heads is {heads} and decoder_attention_heads "
            f"{c.get('decoder_attention_heads', 16)}, expected one divisor of d_model {n_embd}"
        )
    d_ff = [c.int("encoder_ffn_dim", 4096)] * n_source + [c.int("decoder_ffn_dim", 4096)] * n_target
    tied = c.flag("tie_word_embeddings", True)
    shared = c.flag("share_encoder_decoder_embeddings", True) if kind == SINUSOID else True
    shared &= tied
    source_vocab = target_vocab = c.int("vocab_size")
    k = Knobs(
        vocab_size=target_vocab, n_embd=n_embd, n_layers=n_source + n_target,
        context=c.int("max_position_embeddings", 1024), n_heads=heads, n_kv_heads=heads,
        head_dim=n_embd // heads, d_ff=d_ff if len(set(d_ff)) > 1 else d_ff[0],
        act=c.choice("activation_function", ACTS, act), norm_eps=1e-5, tied=tied, layernorm=True,
    )  # fmt: skip
    k.post_norm = post_norm
    if c.flag("scale_embedding", scale):
        k.emb_scale = math.sqrt(n_embd)
    k.biased = (*QKVO, *FFN, *CROSS, *["output"] * (kind != M2M_SINUSOID))
    k.skipped_positions = 2 if kind == LEARNED else 0
    if kind == M2M_SINUSOID:
        k.skipped_positions = c.int("pad_token_id", 1, least=0) + 1
    table = (k.context + k.skipped_positions, n_embd)
    tensors = BartTensors([True] * k.n_layers, kind=kind, table=table, shared=shared, tied=tied,
                          vocab_size=target_vocab)  # fmt: skip
    names = bart_names(n_source, n_target, shared, embed_norm, last_norm=not post_norm)
    return two_stacks(k, n_source, names, tensors, source_vocab=source_vocab)


def bart(c: Config) -> Knobs:
    """BART."""
    return bart_like(c, 50265, LEARNED, post_norm=True, embed_norm=True)


def mbart(c: Config) -> Knobs:
    """mBART."""
    return bart_like(c, 50265, LEARNED, post_norm=False, embed_norm=True)


def marian(c: Config) -> Knobs:
    """Marian, of which the two sides may have vocabularies of their own."""
    k = bart_like(c, 58101, SINUSOID, post_norm=True, embed_norm=False)
    n = k.vocab_size if c.get("decoder_vocab_size") is None else c.int("decoder_vocab_size")
    if k.parts[0].shared and n != k.vocab_size:
        raise ExportError(
            f"{c.where}: decoder_vocab_size is {n} and vocab_size {k.vocab_size}, though the "
            "embeddings are shared"
        )
    k.source_vocab, k.vocab_size = k.vocab_size, n
    k.parts[0].vocab_size = n
    return k


def pegasus(c: Config) -> Knobs:
    """Pegasus."""
    return bart_like(c, 50265, SINUSOID, post_norm=False, embed_norm=False)


def m2m_100(c: Config) -> Knobs:
    """M2M-100 and NLLB."""
    return bart_like(c, 128112, M2M_SINUSOID, post_norm=False, embed_norm=False, act="relu",
                     scale=True)  # fmt: skip


FAMILIES = {
    "bart": (bart, {}),
    "m2m_100": (m2m_100, {}),
    "marian": (marian, {}),
    "mbart": (mbart, {}),
    "mt5": (mt5, {}),
    "pegasus": (pegasus, {}),
    "t5": (t5, {}),
    "umt5": (umt5, {}),
}
