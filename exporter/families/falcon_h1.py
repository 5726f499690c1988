"""Falcon-H1: attention and Mamba-2 side by side."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Multiplied
from ..tensor import ExportError
from .bamba import BAMBA
from .common import biases, llama_block, rotate, without
from .mamba2 import mamba2_part

FALCON_H1 = BAMBA


def falcon_h1(c: Config) -> Knobs:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, and many factors, which go into
    the weights."""
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=8192, rms_norm_eps=1e-5)
    rotate(c, k)
    k.biased = biases(c)
    c.default(mamba_d_ssm=1024)
    c.require(mamba_use_mlp=True, attn_layer_indices=None)
    c.ignore("num_logits_to_keep", "mamba_expand", "mlp_expansion_factor")
    k.emb_scale = c.number("embedding_multiplier", 1.0)
    k.logit_scale = c.number("lm_head_multiplier", 1.0)
    norm = c.flag("mamba_rms_norm", False)
    first = c.flag("mamba_norm_before_gate", True) and norm
    mamba2_part(
        c,
        k,
        [True] * k.n_layers,
        beside=True,
        norm=norm,
        norm_first=first,
        multipliers=multipliers(c, "ssm_multipliers", 5),
    )
    k.biased = tuple(name for name in k.biased if name != "mix_out")
    k.biased += ("mix_out",) * c.flag("projectors_bias", False)
    into, out = c.number("attention_in_multiplier", 1.0), c.number("attention_out_multiplier", 1.0)
    key, mix_in = c.number("key_multiplier", 1.0), c.number("ssm_in_multiplier", 1.0)
    mix_out = c.number("ssm_out_multiplier", 1.0)
    gate, down = multipliers(c, "mlp_multipliers", 2)
    factors = {  # of weights and of biases
        "self_attn.q_proj": (into, 1.0),
        "self_attn.k_proj": (into * key, key),
        "self_attn.v_proj": (into, 1.0),
        "self_attn.o_proj": (out, out),
        "mamba.in_proj": (mix_in, 1.0),
        "mamba.out_proj": (mix_out, mix_out),
        "feed_forward.gate_proj": (gate, gate),
        "feed_forward.down_proj": (down, down),
    }
    k.parts.insert(0, Multiplied([], factors))  # before in_proj is taken apart
    if not norm:
        k.names = without(FALCON_H1, "ssm_norm")
    return k


def multipliers(c: Config, key: str, n: int) -> tuple[float, ...]:
    """So many factors, 1 where the config has none."""
    values = c.get(key) or [1.0] * n
    if not isinstance(values, list) or len(values) != n:
        raise ExportError(f"{c.where}: {key} is {values!r}, expected {n} numbers")
    return tuple(Config({key: value}, c.where).number(key) for value in values)
