"""Mamba-2, Codestral Mamba, and what hybrids with Mamba-2 layers share."""

from __future__ import annotations

import math

from ..config import Config
from ..knobs import ACTS, Knobs
from ..layers.mixers import Mamba2
from ..tensor import ExportError
from .common import in_layer, with_silu

FLT_MAX = 3.4028234663852886e38
SIZES = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")  # mamba_..., as most families say it


def mamba2_names(module: str) -> dict[str, str]:
    """A table's entries of a mixer."""
    return in_layer(
        module,
        mix_in="x",
        conv="conv1d",
        ssm_gate="gate",
        ssm_step="step",
        ssm_rate="rate",
        ssm_skip="skip",
        ssm_norm="norm",
        mix_out="out_proj",
    )


def step_limits(c: Config, key: str = "time_step_limit") -> tuple[float, float]:
    """The least and the largest step, where infinity has several spellings."""
    value = c.list(key)
    if value is None:
        return 0.0, math.inf
    ends = [end.get("__float__") if isinstance(end, dict) else end for end in value]
    ends = [math.inf if end in ("Infinity", math.inf) else end for end in ends]
    if len(ends) != 2 or not all(isinstance(x, (int, float)) and x >= 0 for x in ends):
        raise ExportError(f"{c.where}: {key} is {value!r}, expected two numbers of 0 or more")
    least, most = (end if end <= FLT_MAX else math.inf for end in map(float, ends))
    if least > most or least == math.inf:
        raise ExportError(f"{c.where}: {key} is {value!r}, which leaves no step between the two")
    return least, most


def mamba2_part(c: Config, k: Knobs, layers: list[bool], **more) -> Mamba2:
    """A mixer whose config spells its sizes mamba_n_heads and so on; `more` are fields of Mamba2.
    Its biases are added to those there are."""
    c.default(mamba_n_heads=128, mamba_n_groups=1, mamba_d_state=256, mamba_d_conv=4)
    c.default(mamba_expand=2)
    c.ignore("mamba_chunk_size")  # of a way to compute it
    with_silu(c, layers)
    heads, width = c.int("mamba_n_heads"), c.get("mamba_d_ssm")
    if width is None:
        width = int(c.number("mamba_expand") * k.n_embd)
    if c.get("mamba_d_head", "auto") == "auto":
        c.values = {**c.values, "mamba_d_head": width // heads}
    n, head_dim, groups, state, taps = (
        c.int(f"mamba_{size}", most=64 if size == "d_conv" else 1 << 24) for size in SIZES
    )
    part = Mamba2(
        layers,
        taps=taps,
        heads=n,
        head_dim=head_dim,
        groups=groups,
        state=state,
        limits=step_limits(c),
        **more,
    )
    add_mamba2(c, k, part, c.flag("mamba_conv_bias", True), c.flag("mamba_proj_bias", False))
    if part.heads * part.head_dim != width:
        raise ExportError(
            f"{c.where}: mamba_n_heads times mamba_d_head is {part.heads * part.head_dim}, but the "
            f"mixer's width is {width}"
        )
    return part


def add_mamba2(c: Config, k: Knobs, part: Mamba2, conv_bias: bool, bias: bool) -> None:
    """Gives the model that mixer, whose steps always have a bias."""
    if part.heads % part.groups:
        raise ExportError(
            f"{c.where}: {part.heads} heads of Mamba-2 are no multiple of {part.groups} groups"
        )
    k.parts.append(part)
    k.biased += ("ssm_step", *("conv",) * conv_bias, *("mix_in", "ssm_gate", "mix_out") * bias)


MAMBA2 = {
    "embed": "backbone.embeddings|backbone.embedding",
    "layers.N.attn_norm": "backbone.layers.N.norm",
    **mamba2_names("backbone.layers.N.mixer"),
    "norm": "backbone.norm_f",
    "output": "lm_head",
}


def mixers_alone(c: Config, tied: bool) -> Knobs:
    """The knobs of layers that are a mixer each and nothing else."""
    c.default(layer_norm_epsilon=1e-5, conv_kernel=4, expand=2)
    c.require(hidden_act="silu", rms_norm=True)
    c.ignore(
        "intermediate_size",
        "residual_in_fp32",
        "rescale_prenorm_residual",
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "time_step_init_scheme",
        "time_step_scale",
    )
    return Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=c.int("hidden_size"),
        n_layers=c.int("num_hidden_layers", most=4096),
        context=c.int("max_position_embeddings", 131072),
        n_heads=1,
        n_kv_heads=1,
        head_dim=1,
        d_ff=0,
        act=ACTS["silu"],
        norm_eps=c.number("layer_norm_epsilon"),
        tied=c.flag("tie_word_embeddings", tied),
    )


def mamba2(c: Config) -> Knobs:
    """Mamba-2, Codestral Mamba: nothing but mixers. A state has no longest text: the context is
    what room is made for."""
    c.default(num_hidden_layers=64, hidden_size=4096, vocab_size=32768, state_size=128)
    c.default(num_heads=128, head_dim=64, n_groups=8)
    # norm_before_gate is in many files and true, but the gate comes first all the same.
    c.ignore("chunk_size", "norm_before_gate", "time_step_rank")
    k = mixers_alone(c, tied=False)
    part = Mamba2(
        [True] * k.n_layers,
        taps=c.int("conv_kernel", most=64),
        heads=c.int("num_heads"),
        head_dim=c.int("head_dim"),
        groups=c.int("n_groups"),
        state=c.int("state_size"),
        limits=step_limits(c),
    )
    if part.heads * part.head_dim != c.number("expand") * k.n_embd:
        raise ExportError(f"{c.where}: num_heads times head_dim is not expand times hidden_size")
    add_mamba2(c, k, part, c.flag("use_conv_bias", True), c.flag("use_bias", False))
    return k
