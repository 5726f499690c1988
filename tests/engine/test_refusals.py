"""What docs/format.md does not let stand together: every knob and every tensor is put into every
kind of layer, and where the format has no meaning for it there, the engine refuses the file and
names it. Nothing is accepted and ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import checkpoints
import test_classes
import test_encoder_decoder_refusals
from checkpoints import F32_META, I32, Meta, Tensor
from conftest import ROOT

VOCAB, D, FF, HEADS, HEAD_DIM, CONTEXT, LAYERS = 20, 24, 28, 2, 8, 16, 2
RANK, N_NOPE, N_VALUE, TAPS, EXPERTS, D_EXPERT, WIDTH = 4, 6, 5, 3, 4, 10, 3
K_DIM, V_DIM, STATE, CHANNELS, STEP_RANK = 6, 4, 5, 70, 3
rng = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def own_numbers():
    """A test draws the same numbers whatever ran before it."""
    global rng
    rng = np.random.default_rng(9)


def ints(*values: int) -> Meta:
    return Meta(I32, len(values), np.array(values, "<i4").tobytes())


def floats(*values: float) -> Meta:
    return Meta(F32_META, len(values), np.array(values, "<f4").tobytes())


def matrix(n_out: int, n_in: int) -> Tensor:
    return checkpoints.matrix(rng.normal(0, n_in**-0.5, (n_out, n_in)))


def stack(n: int, n_out: int, n_in: int) -> Tensor:
    return matrix((n - 1) * (-(-n_out // 16) * 16) + n_out, n_in)


def vector(n: int, size: float = 1) -> Tensor:
    return checkpoints.vector(size * rng.uniform(0.5, 1.5, n))


class Kind(NamedTuple):
    """A model whose layers are of one kind: what it has, as traits, and its entries."""

    traits: frozenset[str]
    meta: dict[str, Meta]
    tensors: dict[str, Tensor]

    def file(self, meta: dict[str, Meta | None], tensors: dict[str, Tensor | None]) -> bytes:
        """The checkpoint with these entries besides, or, where they are None, without them."""
        both = [{**self.meta, **meta}, {**self.tensors, **tensors}]
        return checkpoints.build(
            *({k: v for k, v in part.items() if v is not None} for part in both)
        )


# ---- the kinds of layers ----


def attention() -> tuple[dict, dict]:
    q, kv = HEADS * HEAD_DIM, HEAD_DIM
    return {}, {
        "attn_q": matrix(q, D),
        "attn_k": matrix(kv, D),
        "attn_v": matrix(kv, D),
        "attn_o": matrix(D, q),
    }


def latent() -> tuple[dict, dict]:
    knobs = {"latent": ints(RANK), "n_nope": ints(N_NOPE), "n_value": ints(N_VALUE)}
    return knobs, {
        "attn_q": matrix(HEADS * (N_NOPE + HEAD_DIM - RANK), D),
        "attn_k": matrix(HEAD_DIM, D),
        "attn_latent_norm": vector(RANK),
        "attn_k_up": stack(HEADS, RANK, N_NOPE),
        "attn_v_up": stack(HEADS, N_VALUE, RANK),
        "attn_o": matrix(D, HEADS * N_VALUE),
    }


def shortconv() -> tuple[dict, dict]:
    tensors = {"mix_in": matrix(3 * D, D), "conv": vector(TAPS * D), "mix_out": matrix(D, D)}
    return {"mixer": ints(1), "taps": ints(TAPS)}, tensors


def deltanet() -> tuple[dict, dict]:
    channels, values = 2 * K_DIM + HEADS * V_DIM, HEADS * V_DIM
    sizes = dict(k_heads=1, v_heads=HEADS, k_dim=K_DIM, v_dim=V_DIM)
    knobs = {f"delta_{key}": ints(value) for key, value in sizes.items()}
    return {"mixer": ints(2), "taps": ints(TAPS), **knobs}, {
        "mix_in": matrix(channels, D),
        "conv": vector(TAPS * channels),
        "mix_out": matrix(D, values),
        "delta_gate": matrix(values, D),
        "delta_beta": matrix(HEADS, D),
        "delta_decay": matrix(HEADS, D),
        "delta_rate": vector(HEADS),
        "delta_norm": vector(V_DIM),
    }


def mamba2() -> tuple[dict, dict]:
    width, channels = HEADS * V_DIM, HEADS * V_DIM + 2 * STATE
    knobs = dict(heads=HEADS, head_dim=V_DIM, groups=1, state=STATE)
    return {"mixer": ints(3), "taps": ints(TAPS)} | {
        f"ssm_{key}": ints(value) for key, value in knobs.items()
    }, {
        "mix_in": matrix(channels, D),
        "conv": vector(TAPS * channels),
        "conv.bias": vector(channels),
        "mix_out": matrix(D, width),
        "ssm_gate": matrix(width, D),
        "ssm_step": matrix(HEADS, D),
        "ssm_rate": vector(HEADS),
        "ssm_skip": vector(HEADS),
        "ssm_norm": vector(width),
    }


def mamba() -> tuple[dict, dict]:
    """Mamba-1."""
    knobs = dict(heads=1, head_dim=CHANNELS, groups=1, state=STATE)
    return {"mixer": ints(5), "taps": ints(TAPS)} | {
        f"ssm_{key}": ints(value) for key, value in knobs.items()
    }, {
        "mix_in": matrix(CHANNELS, D),
        "conv": vector(TAPS * CHANNELS),
        "conv.bias": vector(CHANNELS),
        "mix_out": matrix(D, CHANNELS),
        "ssm_gate": matrix(CHANNELS, D),
        "ssm_low": matrix(STEP_RANK + 2 * STATE, CHANNELS),
        "ssm_step_up": matrix(CHANNELS, STEP_RANK),
        "ssm_step_norm": vector(STEP_RANK),
        "ssm_rate": vector(STATE * CHANNELS),
        "ssm_skip": vector(CHANNELS),
    }


def rglru() -> tuple[dict, dict]:
    width, gates = HEADS * V_DIM, stack(HEADS, V_DIM, V_DIM)
    knobs = dict(heads=HEADS, head_dim=V_DIM, groups=1, state=1)
    return {"mixer": ints(6), "taps": ints(TAPS)} | {
        f"ssm_{key}": ints(value) for key, value in knobs.items()
    }, {
        "mix_in": matrix(width, D),
        "conv": vector(TAPS * width),
        "conv.bias": vector(width),
        "mix_out": matrix(D, width),
        "ssm_gate": matrix(width, D),
        "lru_decay": gates,
        "lru_input": gates,
        "lru_rate": vector(width),
    }


def beside() -> tuple[dict, dict]:
    """Attention and Mamba-2."""
    both = attention()[1], mamba2()
    return {**both[1][0], "mixer": ints(0), "beside": ints(1)}, {**both[0], **both[1][1]}


MIXERS = {
    "attention": attention,
    "latent": latent,
    "shortconv": shortconv,
    "deltanet": deltanet,
    "mamba2": mamba2,
    "mamba": mamba,
    "rglru": rglru,
    "beside": beside,
    "none": lambda: ({"mixer": ints(4)}, {}),
}
HAS = {  # of a mixer, what knobs and tensors ask for
    "attention": {"attention", "alone", "plain"},
    "latent": {"attention", "alone", "latent"},
    "shortconv": {"convolution"},
    "deltanet": {"convolution", "delta"},
    "mamba2": {"convolution", "mamba", "mamba2"},
    "mamba": {"convolution", "mamba", "mamba1"},
    "rglru": {"convolution", "mamba"},
    "beside": {"attention", "plain", "convolution", "mamba", "mamba2"},
    "none": set(),
}


def feed_forward(d_ff: int, gated: bool, act: int) -> tuple[dict, dict]:
    tensors = {"ffn_up": matrix(d_ff, D), "ffn_down": matrix(D, d_ff)} if d_ff else {}
    if d_ff and gated:
        tensors["ffn_gate"] = matrix(d_ff, D)
    if act > 4:
        tensors["ffn_act"] = checkpoints.vector(np.array([0.8, 0.9, 0.0, 0.0]))
    return {"d_ff": ints(d_ff), "ffn": ints(int(gated)), "act": ints(act)}, tensors


def experts(score: int, renorm: bool, gated: bool) -> tuple[dict, dict]:
    knobs = dict(experts=EXPERTS, top_k=2, d_expert=D_EXPERT, score=score, renorm=int(renorm))
    tensors = {
        "router": matrix(EXPERTS, D),
        "expert_up": stack(EXPERTS, D_EXPERT, D),
        "expert_down": stack(EXPERTS, D, D_EXPERT),
    }
    if gated:
        tensors["expert_gate"] = stack(EXPERTS, D_EXPERT, D)
    return {key: ints(value) for key, value in knobs.items()}, tensors


def in_layers(layer: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {f"layers.{i}.{name}": tensor for i in range(LAYERS) for name, tensor in layer.items()}


LAYER_EMBEDDINGS = {
    "ple_table": matrix(VOCAB, LAYERS * WIDTH),
    "ple_in": matrix(LAYERS * WIDTH, D),
    "ple_in_norm": vector(WIDTH),
    **in_layers({"ple_gate": matrix(WIDTH, D), "ple_out": matrix(D, WIDTH), "ple_norm": vector(D)}),
}


def kind(
    mixer: str = "attention",
    *,
    d_ff: int = FF,
    gated: bool = True,
    act: int = 0,
    layernorm: bool = False,
    parallel: bool = False,
    score: int | None = None,
    renorm: bool = False,
    layer_embeddings: bool = False,
) -> Kind:
    """A model of two such layers. score: there are experts, chosen so."""
    traits = {
        *HAS[mixer],
        "layernorm" if layernorm else "rms",
        "parallel" if parallel else "sequential",
        "gated" if gated else "plain ffn",
        "plain act" if act < 5 else "act with parameters",
    }
    meta = {
        "model.vocab_size": ints(VOCAB),
        "model.n_embd": ints(D),
        "model.n_layers": ints(LAYERS),
        "model.context": ints(CONTEXT),
        "model.norm": ints(int(layernorm)),
        "model.norm_eps": floats(1e-5),
        "model.rope.0.inv_freq": floats(1.0, 0.5),
        "layer.n_heads": ints(HEADS),
        "layer.n_kv_heads": ints(1),
        "layer.head_dim": ints(HEAD_DIM),
        "layer.rope": ints(0),
        "layer.window": ints(0),
        "layer.attn_scale": floats(0.3),
        "layer.topology": ints(int(parallel)),
    }
    parts = [MIXERS[mixer](), feed_forward(d_ff, gated, act)]
    if d_ff:
        traits.add("d_ff")
    if score is not None:
        parts.append(experts(score, renorm, gated))
        traits |= {"experts", "sparsemixer" if score == 2 else "choice by score"}
        traits |= {"renorm"} if renorm else set()
    layer = {"attn_norm": vector(D), **({} if parallel else {"ffn_norm": vector(D)})}
    if mixer == "none":
        del layer["attn_norm"]
        meta["layer.norms"] = ints(4)
    tensors = {"embed": matrix(VOCAB, D), "norm": vector(D)}
    if layer_embeddings:
        meta["model.ple"] = ints(WIDTH)
        tensors |= LAYER_EMBEDDINGS
    for knobs, more in parts:
        meta |= {f"layer.{key}": value for key, value in knobs.items()}
        layer |= more
    tensors |= in_layers(layer)
    return Kind(frozenset(traits), meta, tensors)


KINDS = {
    "attention": kind(),
    "LayerNorm": kind(layernorm=True),
    "parallel": kind(parallel=True),
    "plain FFN": kind(gated=False),
    "xIELU": kind(gated=False, act=5),
    "clamped SwiGLU": kind(act=6),
    "latent": kind("latent"),
    "short convolution": kind("shortconv"),
    "gated DeltaNet": kind("deltanet"),
    "gated DeltaNet, LayerNorm": kind("deltanet", layernorm=True),
    "latent, LayerNorm": kind("latent", layernorm=True),
    "experts only": kind(d_ff=0, score=0),
    "experts and a shared one": kind(score=1, renorm=True),
    "sparsemixer": kind(d_ff=0, score=2, gated=False),
    "embeddings of layers": kind(layer_embeddings=True),
    "Mamba-2": kind("mamba2"),
    "Mamba-2, LayerNorm": kind("mamba2", layernorm=True),
    "Mamba-2 beside attention": kind("beside"),
    "Mamba-1": kind("mamba", layernorm=True),
    "RG-LRU": kind("rglru"),
}


# ---- what is put into them ----


class Extra(NamedTuple):
    """Entries that belong together, the first of which gives them their name; and the traits that a
    model needs for them to mean something, which none has if they never do."""

    needs: set[str]
    meta: dict[str, Meta]
    tensors: dict[str, Tensor | None]

    @property
    def name(self) -> str:
        return next(iter({**self.meta, **self.tensors}))


def knob(
    key: str, value: Meta, *needs: str, with_: dict | None = None, tensors: dict | None = None
) -> Extra:
    return Extra(set(needs), {key: value, **(with_ or {})}, tensors or {})


def of_layer(name: str, tensor: Tensor, *needs: str, with_: dict | None = None) -> Extra:
    return Extra(set(needs), {}, in_layers({name: tensor, **(with_ or {})}))


def norms(*names: str) -> dict[str, Tensor | None]:
    """Of the residual stream: these and no others."""
    usual = dict.fromkeys(["attn_norm", "ffn_norm"])
    return in_layers({**usual, **{name: vector(D) for name in names}})


LONG = {"model.rope.0.length": ints(2)}
LONG_FREQ = {"model.rope.0.long_freq": floats(0.5, 0.2)}
NO_KEYS = {"layers.1.attn_k": None, "layers.1.attn_v": None}
Q = HEADS * HEAD_DIM
QUERY_RANK = of_layer(
    "attn_q_down",
    matrix(9, D),
    "latent",
    with_={
        "attn_q_down_norm": vector(9),
        "attn_q": matrix(HEADS * (N_NOPE + HEAD_DIM - RANK), 9),
    },
)
BY_CHANNEL = in_layers(
    {"delta_decay": matrix(HEADS * K_DIM, D), "delta_rate": vector(HEADS * K_DIM)}
)
KNOBS = [
    knob("model.emb_scale", floats(1.5)),
    knob("model.final_softcap", floats(3)),
    knob("model.q_temp", floats(2, 3), "attention", with_={"model.q_temp_length": ints(2)}),
    knob("model.q_temp_ahead", ints(1), "never"),
    knob(
        "layer.q_temp",
        ints(0, 1),
        "attention",
        with_={"model.q_temp": floats(2, 3), "model.q_temp_length": ints(2)},
    ),
    knob("layer.q_temp", ints(0), "never"),
    knob("layer.chunked", ints(1), "attention", with_={"layer.window": ints(2)}),
    knob("layer.chunked", ints(1), "never", with_={"layer.window": ints(0)}),
    knob("layer.weigh_input", ints(1), "experts"),
    knob("model.latent_eps", floats(1e-3), "latent"),
    knob("model.rope.0.multiplier", floats(1.1)),
    knob("model.rope.0.long_freq", LONG_FREQ["model.rope.0.long_freq"], with_=LONG),
    knob("model.rope.0.long_multiplier", floats(1.1), with_={**LONG, **LONG_FREQ}),
    knob("model.rope.0.long_multiplier", floats(1.1), "never"),  # without what it belongs to
    knob("model.rope.0.length", ints(4), "never"),
    knob("model.rope.1.multiplier", floats(1.1), "never"),
    knob("model.rope.2.inv_freq", floats(1.0, 0.5), "never"),  # sets are counted from 0
    knob("model.q_temp_length", ints(4), "never"),
    knob("layer.top_groups", ints(2), "never"),
    knob("model.ple", ints(WIDTH), "plain act", tensors=LAYER_EMBEDDINGS),
    knob("layer.softcap", floats(2), "attention"),
    knob("layer.clip", floats(0.1), "plain"),
    knob("layer.qk_norm", ints(1), "plain"),
    knob("layer.kv_source", ints(-1, 0), "plain", tensors=NO_KEYS),
    knob("layer.residual_scale", floats(0.5)),
    knob("layer.norms", ints(0), "sequential", tensors=norms()),
    knob("layer.norms", ints(10), "sequential", tensors=norms("attn_post_norm", "ffn_post_norm")),
    knob("layer.norms", ints(4), tensors=norms("ffn_norm")),
    knob("layer.norms", ints(11), tensors=norms("attn_norm", "attn_post_norm", "ffn_post_norm")),
    knob("layer.latent", ints(RANK), "latent"),
    knob("layer.n_nope", ints(N_NOPE), "latent"),
    knob("layer.n_value", ints(N_VALUE), "latent"),
    knob("layer.n_value", ints(1 << 24), "never"),
    knob("layer.taps", ints(TAPS), "convolution"),
    knob("layer.delta_k_heads", ints(1), "delta"),
    knob("layer.delta_v_heads", ints(HEADS), "delta"),
    knob("layer.delta_k_dim", ints(K_DIM), "delta"),
    knob("layer.delta_v_dim", ints(V_DIM), "delta"),
    knob("layer.top_k", ints(2), "experts"),
    knob("layer.d_expert", ints(D_EXPERT), "experts"),
    knob("layer.score", ints(1), "experts", "choice by score"),
    knob("layer.groups", ints(2), "choice by score", with_={"layer.top_groups": ints(1)}),
    knob("layer.top_groups", ints(1), "experts"),
    knob("layer.group_score", ints(1), "experts"),
    knob("layer.renorm", ints(1), "experts"),
    knob("layer.renorm_eps", floats(0.1), "renorm"),
    knob("layer.jitter", floats(0.1), "sparsemixer"),
    knob("layer.routed_scale", floats(2), "experts"),
    knob("layer.beside", ints(1), "never"),
    knob("layer.delta_beta", floats(1.5), "delta"),
    knob("layer.delta_eps", floats(0.1), "delta"),
    knob("layer.delta_sigmoid", ints(1), "delta"),
    knob("layer.delta_by_channel", ints(1), "delta", tensors=BY_CHANNEL),
    of_layer(
        "delta_gate_down", matrix(9, D), "delta", with_={"delta_gate": matrix(HEADS * V_DIM, 9)}
    ),
    of_layer("delta_decay_down", matrix(9, D), "delta", with_={"delta_decay": matrix(HEADS, 9)}),
    knob("layer.ssm_heads", ints(HEADS), "mamba"),
    knob("layer.ssm_head_dim", ints(V_DIM), "mamba"),
    knob("layer.ssm_groups", ints(1), "mamba"),
    knob("layer.ssm_state", ints(STATE), "mamba"),
    knob("layer.ssm_norm_first", ints(1), "mamba2"),
    knob("layer.ssm_least_step", floats(2), "mamba2"),
    knob("layer.ssm_most_step", floats(0.1), "mamba2"),
    knob("layer.ssm_eps", floats(0.1), "mamba1"),
]
TENSORS = [
    Extra(set(), {}, {"embed_pos": matrix(CONTEXT, D)}),
    Extra({"never"}, {}, {"embed_pos.bias": vector(CONTEXT), "embed_pos": matrix(CONTEXT, D)}),
    Extra(set(), {}, {"embed_norm": vector(D)}),
    Extra({"layernorm"}, {}, {"embed_norm.bias": vector(D), "embed_norm": vector(D)}),
    Extra(set(), {}, {"output": matrix(VOCAB, D)}),
    Extra(set(), {}, {"output.bias": vector(VOCAB)}),
    of_layer("attn_q_norm", vector(HEAD_DIM), "plain"),
    of_layer("attn_k_norm", vector(HEAD_DIM), "plain"),
    of_layer("attn_v_norm", vector(HEAD_DIM), "plain"),
    of_layer("attn_sub_norm", vector(Q), "plain"),
    of_layer("attn_sinks", vector(HEADS), "attention"),
    of_layer("attn_slopes", vector(HEADS), "attention"),
    of_layer("attn_gate", matrix(HEADS, D), "plain"),
    of_layer("attn_gate", matrix(Q, D), "plain"),
    of_layer("ffn_sub_norm", vector(FF), "d_ff"),
    of_layer("ssm_b_norm", vector(STATE), "mamba1"),
    of_layer("ssm_c_norm", vector(STATE), "mamba1"),
    of_layer("ffn_act", checkpoints.vector(np.array([1.0, 1.0, 0.0, 0.0])), "act with parameters"),
    of_layer("out_scale", vector(1)),
    of_layer("selection_bias", vector(EXPERTS, 9), "choice by score"),
    of_layer("shared_gate", matrix(1, D), "experts", "d_ff"),
    of_layer("attn_post_norm", vector(D), "never"),  # layer.norms does not name it
    of_layer("ffn_post_norm", vector(D), "never"),
]
NARROW = 10
HEAD = {"head_dense": matrix(D, D), "head_norm": vector(D)}
NARROW_EMBEDDING = {
    "embed": matrix(VOCAB, NARROW),
    "embed_proj": matrix(D, NARROW),
    "head_dense": matrix(NARROW, D),
    "head_norm": vector(NARROW),
}
KNOBS += [
    knob("model.head", ints(1)),
    knob("model.head_act", ints(1), tensors=HEAD),
    knob("model.head_act", ints(1), "never"),
    knob("model.pooling", ints(1)),
    knob("model.pooling_unit", ints(1), with_={"model.pooling": ints(2)}),
    knob("model.pooling_unit", ints(1), "never"),
    knob("model.pooling_tokens", ints(3), with_={"model.pooling": ints(2)}),
    knob("model.pooling_dimensions", ints(3), with_={"model.pooling": ints(2)}),
    knob("model.pooling_dimensions", ints(3), "never"),
    knob(
        "model.d_embed", ints(NARROW), with_={"model.head_act": ints(2)}, tensors=NARROW_EMBEDDING
    ),
    knob("layer.mask", ints(1), "alone"),
    knob("model.padding", ints(1), "never"),  # without layer.mask 1
    knob("model.distances", ints(0, 1, 2), "never"),  # without layer.mask 1
]
TENSORS += [
    Extra(set(), {}, {"embed_type": vector(D)}),
    Extra(set(), {}, {"embed_proj": matrix(D, D)}),
    Extra({"never"}, {}, {"head_norm": vector(D)}),
    of_layer("attn_relative", vector(HEADS * 5), "attention"),
    of_layer("attn_relative", vector(HEADS * 4), "never"),
    of_layer("attn_pos_k", matrix(19, HEAD_DIM), "never"),  # without model.distances
    of_layer("attn_pos_q", matrix(19, HEAD_DIM), "never"),
]
TENSORS += [  # without model.guess_layers; tests/engine/test_own_guesses.py has them in their place
    Extra({"never"}, {}, {name: tensor})
    for name, tensor in {
        "guess_proj": matrix(D, 2 * D),
        "guess_embed_norm": vector(D),
        "guess_hidden_norm": vector(D),
        "guess_norm": vector(D),
        "guess_embed": matrix(VOCAB, D),
        "guess_output": matrix(VOCAB, D),
    }.items()
]
EXPERT_NORMS = dict.fromkeys(("expert_norm", "expert_post_norm", "ffn_beside_norm"), vector(D))
TENSORS += [
    of_layer("expert_norm", vector(D), "experts", "d_ff", "sequential", with_=EXPERT_NORMS),
    of_layer("expert_post_norm", vector(D), "never"),  # without expert_norm
    of_layer("ffn_beside_norm", vector(D), "never"),
]
ALWAYS_RMS = ("attn_latent_norm", "attn_q_down_norm", "delta_norm", "ssm_norm", "ssm_step_norm")
TABLES = ("embed", "ple_table")
NO_EFFECT = (
    "layer.qk_norm",
    "layer.top_groups",
    "layer.group_score",
    "layer.weigh_input",
    "model.head",
    "model.pooling",
    "model.pooling_unit",
    "model.pooling_tokens",
    "model.pooling_dimensions",
)  # alone


def every_tensor() -> dict[str, Tensor]:
    """Of all kinds, by name."""
    return {name: tensor for k in KINDS.values() for name, tensor in k.tensors.items()}


def biases(k: Kind) -> Iterator[Extra]:
    """A bias for each tensor that the kind has."""
    for name, tensor in k.tensors.items():
        stem = name.split(".")[-1]
        bias = {f"{name}.bias": vector(tensor.cols if tensor.rows == 1 else tensor.rows)}
        if stem.endswith("norm"):
            yield Extra({"never"} if stem in ALWAYS_RMS else {"layernorm"}, {}, bias)
        else:
            yield Extra({"never"} if tensor.rows == 1 or stem in TABLES else set(), {}, bias)


def extras(k: Kind) -> Iterator[Extra]:
    """All that can be put into a model of this kind."""
    yield from (e for e in KNOBS if e.name not in k.meta)
    yield from (e for e in TENSORS if not set(e.tensors) & set(k.tensors))
    yield QUERY_RANK if "latent" in k.traits else of_layer("attn_q_down", matrix(9, D), "latent")
    known = {name for e in TENSORS for name in e.tensors}
    yield from (
        Extra({"never"}, {}, {name: t})
        for name, t in every_tensor().items()
        if name not in k.tensors and name not in known
    )
    yield from biases(k)


# ---- the walk ----


@pytest.mark.parametrize("name", KINDS)
def test_the_kinds_themselves_run(name, tmp_path, run):
    path = tmp_path / "kind.bin"
    path.write_bytes(KINDS[name].file({}, {}))
    done = run(path, "--tokens", "1 2 3", "-n", 1, "--temp", 0)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_what_means_nothing_in_a_layer_is_refused_by_name(name, tmp_path, run):
    """And what is accepted changes the logits."""
    k, path, logits = KINDS[name], tmp_path / "extra.bin", tmp_path / "logits"
    path.write_bytes(k.file({}, {}))
    run(path, "--tokens", "1 2 3", "--logits", logits)
    plain, wrong, counts = logits.read_bytes(), [], [0, 0]
    for extra in extras(k):
        path.write_bytes(k.file(extra.meta, extra.tensors))
        done = run(path, "--tokens", "1 2 3", "--logits", logits)
        meant = extra.needs <= k.traits
        idle = extra.name in NO_EFFECT or ".rope." in extra.name and "attention" not in k.traits
        counts[meant] += 1
        if done.returncode != (0 if meant else 1) or not meant and extra.name not in done.stderr:
            wrong.append(f"{extra.name}: {done.stderr or 'it was accepted'}")
        elif meant and not idle and logits.read_bytes() == plain:
            wrong.append(f"{extra.name} changes nothing")
    assert not wrong
    assert min(counts) > 8


def test_every_knob_and_tensor_of_the_format_is_walked_over():
    text = (ROOT / "docs" / "format.md").read_text()
    text = text.split("## The tokenizer")[0]  # other tests read its tables and the chat template's
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    keys = {
        name.replace(".S.", ".0.")
        for row in rows
        for name in re.findall(r"`((?:model|layer)\.[\w.]+)`", row)
    }
    names = {
        name.split(".")[-1]
        for row in rows
        for name in re.findall(r"`((?:layers\.N)?\.?[a-z]\w*)`", row)
    }
    names -= {name.split(".")[-1] for name in keys} | {"bias"}
    entries = [(k.meta, k.tensors) for k in KINDS.values()] + [
        (e.meta, e.tensors) for e in [*KNOBS, *TENSORS, QUERY_RANK]
    ]
    elsewhere = {*test_encoder_decoder_refusals.RULE_KEYS, *test_classes.KEYS}  # tried there
    assert keys - {key for meta, _ in entries for key in meta} == elsewhere
    assert len(names) > 40
    others = names - {name.split(".")[-1] for _, tensors in entries for name in tensors}
    assert others == set(test_encoder_decoder_refusals.SOURCE_TENSORS)


@pytest.mark.parametrize("missing", ["expert_post_norm", "ffn_beside_norm"])
def test_norms_of_experts_come_together(missing, tmp_path, run):
    path = tmp_path / "kind.bin"
    some = {name: tensor for name, tensor in EXPERT_NORMS.items() if name != missing}
    path.write_bytes(KINDS["experts and a shared one"].file({}, in_layers(some)))
    done = run(path, "--tokens", "1 2 3", "-n", 1)
    assert done.returncode == 1 and f"layers.0.{missing}" in done.stderr


def test_a_model_without_any_mixer_is_refused(tmp_path, run):
    path = tmp_path / "kind.bin"
    path.write_bytes(kind("none").file({}, {}))
    done = run(path, "--tokens", "1 2 3", "-n", 1)
    assert done.returncode == 1 and "layer.mixer is 4, none, in every layer" in done.stderr


# ---- knobs that are there for some layers ----


def joined(first: Kind, second: Kind, meta: dict[str, Meta]) -> Kind:
    """Layer 0 of the one, then layer 1 of the other."""
    own = {name: t for name, t in first.tensors.items() if not name.startswith("layers.1.")}
    later = {name: t for name, t in second.tensors.items() if name.startswith("layers.1.")}
    return Kind(frozenset(), {**second.meta, **first.meta, **meta}, {**own, **later})


def mixed() -> Kind:
    """Attention with experts, then a short convolution without."""
    lists = {"mixer": ints(0, 1), "taps": ints(0, TAPS), "experts": ints(EXPERTS, 0)}
    meta = {f"layer.{key}": value for key, value in lists.items()}
    return joined(kind(score=1), kind("shortconv"), meta)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("layer.softcap", floats(2), None),  # one value counts for the layers that have attention
        ("layer.softcap", floats(2, 0), None),
        ("layer.softcap", floats(0, 2), "layer.softcap of layer 1 needs attention"),
        ("layer.clip", floats(1, 1), "layer.clip of layer 1 needs attention without a latent"),
        ("layer.taps", ints(TAPS), None),
        ("layer.taps", ints(TAPS, TAPS), "layer.taps of layer 0 needs a convolution"),
        ("layer.top_k", ints(2), None),
        ("layer.top_k", ints(2, 0), None),
        ("layer.top_k", ints(2, 2), "layer.top_k of layer 1 needs experts"),
        ("layer.routed_scale", floats(2, 1), None),
        ("layer.routed_scale", floats(2, 2), "layer.routed_scale of layer 1 needs experts"),
        ("layer.jitter", floats(0.5), "layer.jitter needs a sparsemixer, which no layer has"),
        ("layer.latent", ints(0, RANK), "layer.latent of layer 1 needs attention"),
        ("layer.delta_k_dim", ints(0, 4), "layer.delta_k_dim of layer 1 needs a gated delta rule"),
    ],
)
def test_one_value_or_one_for_each_layer(key, value, message, tmp_path, run):
    path = tmp_path / "mixed.bin"
    path.write_bytes(mixed().file({key: value}, {}))
    done = run(path, "--tokens", "1 2 3", "-n", 1, "--temp", 0)
    if message:
        assert done.returncode == 1 and message in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_a_latent_cannot_be_the_source_of_keys(tmp_path, run):
    path = tmp_path / "source.bin"
    lists = {key: ints(n, 0) for key, n in (("latent", RANK), ("n_nope", N_NOPE), ("n_value", 5))}
    meta = {f"layer.{key}": value for key, value in lists.items()}
    both = joined(kind("latent"), kind(), meta)
    path.write_bytes(both.file({}, {}))
    assert run(path, "--tokens", "1", "-n", 1).returncode == 0
    path.write_bytes(both.file({"layer.kv_source": ints(-1, 0)}, NO_KEYS))
    done = run(path, "--tokens", "1", "-n", 1)
    assert done.returncode == 1 and "layer 1: kv_source is 0" in done.stderr


def test_numbers_that_an_activation_has_not(tmp_path, run):
    path = tmp_path / "act.bin"
    params = {"ffn_act": checkpoints.vector(np.array([1.7, 7.0, 0.0, 0.5]))}
    path.write_bytes(KINDS["clamped SwiGLU"].file({}, in_layers(params)))
    done = run(path, "--tokens", "1", "-n", 1)
    assert done.returncode == 1 and "tensor layers.0.ffn_act: the last two of" in done.stderr


def test_two_best_of_one(tmp_path, run):
    path = tmp_path / "groups.bin"
    knobs = dict(groups=EXPERTS, top_groups=2, group_score=1)
    meta = {f"layer.{key}": ints(value) for key, value in knobs.items()}
    path.write_bytes(KINDS["experts only"].file(meta, {}))
    done = run(path, "--tokens", "1", "-n", 1)
    assert done.returncode == 1 and "group_score 1 needs two experts in a group" in done.stderr


# ---- numbers that are too large together ----


@pytest.mark.parametrize("key", ["layer.n_value", "layer.n_nope"])
@pytest.mark.parametrize("long", [False, True])
def test_a_width_that_nothing_uses_cannot_overflow(key, long, tmp_path, run):
    """256 heads times 2^24 is 0 in 32 bits, which was once the size of a buffer."""
    data = checkpoints.random_model(n_heads=256, n_kv_heads=2, head_dim=4, n_layers=1)
    meta, tensors = checkpoints.parse(data)
    meta[key] = ints(1 << 24)
    if long:
        meta["model.rope.0.long_freq"] = meta["model.rope.0.inv_freq"]
        meta["model.rope.0.length"] = ints(2)
    path = tmp_path / "wide.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    done = run(path, "--tokens", "1 2 3 4", "-n", 1, "--temp", 0)
    assert done.returncode == 1
    assert f"{key} needs latent attention, which no layer has" in done.stderr


def write_heads(path: Path, heads: int) -> None:
    """A model of one layer with so many heads of one number, all zeros."""
    meta = {
        **kind().meta,
        "model.n_layers": ints(1),
        "model.n_embd": ints(1),
        "layer.d_ff": ints(1),
        "layer.n_heads": ints(heads),
        "layer.head_dim": ints(1),
        "layer.rope": ints(-1),
    }
    layer = {
        "attn_norm": (1,),
        "attn_q": (heads, 1),
        "attn_k": (1, 1),
        "attn_v": (1, 1),
        "attn_o": (1, heads),
        "ffn_norm": (1,),
        "ffn_up": (1, 1),
        "ffn_gate": (1, 1),
        "ffn_down": (1, 1),
    }
    shapes = {f"layers.0.{name}": shape for name, shape in layer.items()}
    checkpoints.write_zeros(path, meta, {"embed": (VOCAB, 1), "norm": (1,), **shapes})


def test_heads_have_a_limit(tmp_path, run):
    """2^24 heads fit into a sparse file of 4 KB, and once made the threads wait forever."""
    path = tmp_path / "heads.bin"
    write_heads(path, 1 << 14)
    done = run(path, "--tokens", "1 2", "-n", 1, "--temp", 0)
    assert done.returncode == 0, done.stderr
    write_heads(path, 1 << 24)
    assert path.stat().st_blocks * 512 < 1 << 16 < path.stat().st_size
    done = run(path, "--tokens", "1 2", "-n", 1, "--temp", 0)
    assert done.returncode == 1
    assert "layer.n_heads of layer 0 is 16777216, expected 1..16384" in done.stderr


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        (
            "attention",
            {"n_heads": 1 << 14, "head_dim": 1 << 24},
            "n_heads times head_dim is 16384 times",
        ),
        (
            "attention",
            {"n_heads": 256, "head_dim": 1 << 24},
            "n_heads times head_dim is 256 times 16777216",
        ),
        (
            "shortconv",
            {"n_heads": 256, "head_dim": 1 << 24},
            "n_heads times head_dim is 256 times 16777216",
        ),
        (
            "latent",
            {"n_heads": 128, "n_nope": 1 << 24},
            "n_heads times n_nope and the rope part is 128 times",
        ),
        (
            "latent",
            {"n_heads": 128, "n_value": 1 << 24},
            "n_heads times n_value is 128 times 16777216",
        ),
        (
            "latent",
            {"n_heads": 1 << 14},
            "layer.latent needs 1..255 heads, and n_nope and n_value of 1 or more, not 16384",
        ),
        (
            "deltanet",
            dict(delta_k_heads=256, delta_v_heads=256, delta_k_dim=1 << 17, delta_v_dim=1),
            "delta rule exceed",
        ),
        (
            "deltanet",
            {"delta_k_heads": 256, "delta_v_heads": 256, "delta_k_dim": 1 << 23},
            "delta rule exceed",
        ),
        ("deltanet", {"delta_v_heads": 256, "delta_v_dim": 1 << 24}, "delta rule exceed"),
        ("deltanet", {"delta_v_dim": 1 << 20, "delta_k_dim": 1 << 20}, "delta rule exceed"),
        ("deltanet", {"delta_v_dim": 1 << 18, "taps": 64}, "taps times channels is 64 times"),
        (
            "experts",
            {"experts": 4096, "d_expert": 1 << 24},
            "4096 matrices of 16777216 rows exceed",
        ),
    ],
)
def test_a_product_of_knobs_is_a_dimension(name, knobs, message, tmp_path, run):
    base = kind(score=0) if name == "experts" else kind(name)
    path = tmp_path / "product.bin"
    tensors = {}
    if name == "experts":
        tensors = in_layers({"router": matrix(4096, D), "expert_gate": matrix(16, D)})
    path.write_bytes(
        base.file({f"layer.{key}": ints(value) for key, value in knobs.items()}, tensors)
    )
    done = run(path, "--tokens", "1 2", "-n", 1, "--temp", 0)
    assert done.returncode == 1 and message in done.stderr


def test_n_embd_has_limits_of_its_own(tmp_path, run):
    path = tmp_path / "embd.bin"
    for n_embd, message in (
        (1 << 23, "the input of a short convolution is 3 times 8388608"),
        (1 << 22, "taps times channels is 64 times 4194304"),
    ):
        path.write_bytes(
            kind("shortconv").file({"model.n_embd": ints(n_embd), "layer.taps": ints(64)}, {})
        )
        done = run(path, "--tokens", "1 2", "-n", 1, "--temp", 0)
        assert done.returncode == 1 and message in done.stderr
