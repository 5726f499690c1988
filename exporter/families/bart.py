"""BART, mBART, Blenderbot, MVP, PLBART and FSMT, and the block of their kin: Marian, Pegasus, M2M-100."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import ACTS, Knobs
from ..layers.part import Part
from ..tensor import ExportError, constant, times
from .common import FFN, QKVO, m2m_sinusoid, sinusoid
from .encoder_decoder import CROSS, IGNORED, alone, layer_names, one_embedding, two_stacks

LEARNED, SINUSOID, M2M_SINUSOID, FROM_ZERO = range(4)  # FROM_ZERO: learned, none skipped


@dataclass
class BartTensors(Part):
    """Which embedding stands for which, positions that are computed, and the bias of logits."""

    kind: int = LEARNED
    table: tuple[int, int] = (0, 0)
    shared: bool = True  # one embedding for both sides
    tied: bool = True
    vocab_size: int = 0
    first: int = 0  # the first row of positions that a token uses
    sides: tuple[str, ...] = ("encoder", "decoder")

    def arrange(self, left):
        if self.sides == ("decoder",):  # which attends to no source
            for name in [name for name in left if ".encoder_attn" in name]:
                del left[name]
        if not any(name.startswith("model.") for name in left):
            for name in list(left):
                if name.startswith(("encoder.", "decoder.", "shared.")):
                    left["model." + name] = left.pop(name)
        both = ["model.encoder.embed_tokens", "model.decoder.embed_tokens"]
        if self.shared:
            one_embedding(left, ["model.shared", *both])
        else:
            left.pop("model.shared.weight", None)
        for side in self.sides:
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
            table, first = m2m_sinusoid(*self.table), self.first
            table[first - 1] = 0  # padding's
            held = left.get(name)
            if held is not None and not np.allclose(held.array()[first:], table[first:], atol=1e-4):
                raise ExportError(f"tensor {name} holds no sinusoids, which this family has")
            left[name] = constant(table)
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
    """n_source 0: a decoder alone."""
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
    names |= layer_names(f"{decoder}.layers", n_source, n_target, bart_layer(n_source > 0))
    if last_norm:
        names["source_norm"] = f"{encoder}.layer_norm"
        names["norm"] = f"{decoder}.layer_norm"
    names["output"] = "lm_head"
    return {k: v for k, v in names.items() if n_source or not k.startswith("source_")}


def bart_like(
    c: Config,
    vocab_size: int,
    kind: int,
    post_norm: bool,
    embed_norm: bool,
    act: str = "gelu",
    scale: bool = False,
) -> Knobs:
    c.default(vocab_size=vocab_size, d_model=1024)
    c.ignore(
        *IGNORED,
        "num_attention_heads",
        "hidden_size",
        "force_bos_token_to_be_generated",
        "output_past",
        "extra_pos_embeddings",
        "static_position_embeddings",
    )
    n_source = c.int("encoder_layers", 12, most=2048)
    n_target = c.int("decoder_layers", 12, most=2048)
    source, target = c.int("encoder_attention_heads", 16), c.int("decoder_attention_heads", 16)
    sides = ("encoder", "decoder")
    if alone(c) == "decoder":
        n_source, source, sides = 0, target, sides[1:]
    n_embd = c.int("d_model")
    if n_embd % source or n_embd % target:
        raise ExportError(
            f"{c.where}: encoder_attention_heads is {source} and decoder_attention_heads {target}, "
            f"expected divisors of d_model {n_embd}"
        )
    heads = [source] * n_source + [target] * n_target if source != target else source
    d_ff = [c.int("encoder_ffn_dim", 4096)] * n_source + [c.int("decoder_ffn_dim", 4096)] * n_target
    tied = c.flag("tie_word_embeddings", True)
    shared = c.flag("share_encoder_decoder_embeddings", True) if kind == SINUSOID else True
    shared &= tied
    source_vocab = target_vocab = c.int("vocab_size")
    k = Knobs(
        vocab_size=target_vocab,
        n_embd=n_embd,
        n_layers=n_source + n_target,
        context=c.int("max_position_embeddings", 1024),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=[n_embd // n for n in heads] if source != target else n_embd // source,
        d_ff=d_ff if len(set(d_ff)) > 1 else d_ff[0],
        act=c.choice("activation_function", ACTS, act),
        norm_eps=1e-5,
        tied=tied,
        layernorm=True,
    )
    k.post_norm = post_norm
    if c.flag("scale_embedding", scale):
        k.emb_scale = math.sqrt(n_embd)
    k.biased = (*QKVO, *FFN)
    if n_source:
        k.biased += (*CROSS, *["output"] * (kind != M2M_SINUSOID))
    k.skipped_positions = 2 if kind == LEARNED else 0
    if kind == M2M_SINUSOID:
        pad = c.int("pad_token_id", 1, least=0)
        k.padding, k.skipped_positions = pad if pad < source_vocab else -1, pad + 1
    table = (k.context + k.skipped_positions, n_embd)
    tensors = BartTensors(
        [True] * k.n_layers,
        kind=kind,
        table=table,
        shared=shared,
        tied=tied,
        vocab_size=target_vocab,
        first=k.skipped_positions,
        sides=sides,
    )
    names = bart_names(n_source, n_target, shared, embed_norm, last_norm=not post_norm)
    if not n_source:
        k.names, k.parts = names, [tensors]
        return k
    return two_stacks(k, n_source, names, tensors, source_vocab=source_vocab)


def bart(c: Config) -> Knobs:
    """BART: norms of sums, learned positions, a bias of logits."""
    return bart_like(c, 50265, LEARNED, post_norm=True, embed_norm=True)


def mbart(c: Config) -> Knobs:
    """mBART, mBART-50: norms before branches, languages."""
    return bart_like(c, 50265, LEARNED, post_norm=False, embed_norm=True)


def blenderbot(c: Config) -> Knobs:
    """Blenderbot: BART with norms before branches."""
    return bart_like(c, 8008, FROM_ZERO, post_norm=False, embed_norm=False)


@dataclass
class NormedEmbedding(Part):
    """Blenderbot Small's decoder adds positions after the norm of the embedding, which is a table
    of its own then. Only the encoder scales its embedding."""

    scale: float = 1.0
    eps: float = 1e-5
    both: bool = True  # False: a decoder alone

    def arrange(self, left):
        decoder, encoder = "model.decoder.", "model.encoder."
        table, norm = left.pop("model.shared.weight"), decoder + "layernorm_embedding."
        weight, bias = left.pop(norm + "weight"), left.pop(norm + "bias")

        def normed(x: np.ndarray) -> np.ndarray:
            x = x.astype(np.float64)
            x -= x.mean(1, keepdims=True)
            x /= np.sqrt((x * x).mean(1, keepdims=True) + self.eps)
            return (x * weight.array() + bias.array()).astype(np.float32)

        left[decoder + "embed_tokens.weight"] = table.map(normed)
        if self.both:
            left[encoder + "embed_tokens.weight"] = times(table, np.float32([self.scale]))
        left.setdefault("lm_head.weight", table)


def blenderbot_small(c: Config) -> Knobs:
    """Blenderbot Small: BART, whose decoder adds positions after the norm of the embedding."""
    k = bart_like(c, 50265, FROM_ZERO, post_norm=True, embed_norm=True)
    c.require(tie_word_embeddings=True)
    n_source = k.source_layers
    names = bart_names(n_source, k.n_layers - n_source, False, True, last_norm=False)
    k.names = {name: module for name, module in names.items() if name != "embed_norm"}
    k.parts.insert(1, NormedEmbedding([], k.emb_scale, both=n_source > 0))
    k.tied, k.emb_scale = False, 1.0
    return k


def mvp(c: Config) -> Knobs:
    """MVP without prompts: BART."""
    c.require(use_prompt=False)
    c.ignore("prompt_length", "prompt_mid_dim")
    return bart_like(c, 50267, LEARNED, post_norm=True, embed_norm=True)


def plbart(c: Config) -> Knobs:
    """PLBART: BART, a scaled embedding."""
    c.default(d_model=768, encoder_attention_heads=12, decoder_attention_heads=12)
    return bart_like(c, 50005, LEARNED, post_norm=True, embed_norm=True, scale=True)


def fsmt(c: Config) -> Knobs:
    """FSMT, the translators of WMT19: a vocabulary for each side, sinusoids that begin after the
    padding token's place."""
    c.values = {**c.values, "vocab_size": c.int("src_vocab_size", 42024)}
    c.default(tie_word_embeddings=False)
    c.ignore("langs", "decoder", "share_all_embeddings")
    k = bart_like(c, 42024, M2M_SINUSOID, post_norm=True, embed_norm=False, act="relu", scale=True)
    n_source, k.parts[0].shared = k.source_layers, False
    k.names = bart_names(n_source, k.n_layers - n_source, False, False, last_norm=False)
    k.names["output"] = "model.decoder.output_projection"
    k.source_vocab, k.vocab_size = k.vocab_size, c.int("tgt_vocab_size", 42024)
    return k
