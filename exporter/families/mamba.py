"""Mamba, Falcon Mamba, Jamba: Mamba-1, alone or in hybrids."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.mixers import Mamba
from .common import LLAMA, in_layer, llama_block, with_silu
from .experts import after_dense, expert_names, experts, no_training
from .mamba2 import mixers_alone


def mamba_names(module: str) -> dict[str, str]:
    """A table's entries of a mixer."""
    return in_layer(
        module,
        mix_in="x",
        conv="conv1d",
        ssm_gate="gate",
        ssm_low="x_proj",
        ssm_step_up="dt_proj",
        ssm_rate="rate",
        ssm_skip="skip",
        ssm_step_norm="dt_layernorm",
        ssm_b_norm="b_layernorm",
        ssm_c_norm="c_layernorm",
        mix_out="out_proj",
    )


def add_mamba(c: Config, k: Knobs, part: Mamba, rank: str, conv_bias: bool, bias: bool) -> None:
    """Gives the model that mixer, whose steps always have a bias; `rank` is the key of their
    rank."""
    part.rank = -(-k.n_embd // 16) if c.get(rank, "auto") == "auto" else c.int(rank)
    k.parts.append(part)
    k.biased += ("ssm_step_up", *("conv",) * conv_bias, *("mix_in", "ssm_gate", "mix_out") * bias)


MAMBA = {
    "embed": "backbone.embeddings|backbone.embedding",
    "layers.N.attn_norm": "backbone.layers.N.norm",
    **mamba_names("backbone.layers.N.mixer"),
    "norm": "backbone.norm_f",
    "output": "lm_head",
}


def mamba(c: Config, **more) -> Knobs:
    """Mamba: nothing but mixers. A state has no longest text: the context is what room is made
    for."""
    c.default(num_hidden_layers=32, hidden_size=768, vocab_size=50280, state_size=16)
    # How training computes it, and what the first files say twice.
    c.ignore("use_mambapy", "use_associative_scan", "use_falcon_mambapy", "fused_add_norm")
    c.ignore("d_inner", "d_model", "n_layer", "pad_vocab_size_multiple", "ssm_cfg")
    k = mixers_alone(c, tied=True)
    part = Mamba(
        [True] * k.n_layers,
        taps=c.int("conv_kernel", most=64),
        channels=int(c.number("expand") * k.n_embd),
        state=c.int("state_size"),
        **more,
    )
    bias = c.flag("use_bias", False)
    add_mamba(c, k, part, "time_step_rank", c.flag("use_conv_bias", True), bias)
    return k


def falcon_mamba(c: Config) -> Knobs:
    """Falcon Mamba: Mamba, where the steps' low rank, B and C are normalised."""
    return mamba(c, norms=True, bare=True, eps=c.number("mixer_rms_eps", 1e-6))


JAMBA = {
    **LLAMA,
    "layers.N.ffn_norm": "model.layers.N.pre_ff_layernorm",
    **expert_names("feed_forward", router="router"),
    **mamba_names("model.layers.N.mamba"),
    "norm": "model.final_layernorm",
}


def on_period(c: Config, kind: str, n_layers: int, period: int, offset: int) -> list[bool]:
    """Which layers are of a kind that is there once in so many layers."""
    period, offset = c.int(f"{kind}_period", period), c.int(f"{kind}_offset", offset, least=0)
    return [i % period == offset for i in range(n_layers)]


def jamba(c: Config) -> Knobs:
    """Jamba: Mamba with Falcon Mamba's norms, attention without rope every eighth layer, experts
    every second."""
    c.default(num_experts=16, num_experts_per_tok=2)
    k = llama_block(c, head_dim_key=False, num_key_value_heads=8, max_position_embeddings=262144)
    width = k.d_ff
    if c.int("num_experts") > 1:
        part = experts(c, k, width="intermediate_size", renorm=False)
        after_dense(k, part, on_period(c, "expert_layer", k.n_layers, 2, 1), width, 0)
    no_training(c)
    c.ignore("num_experts_per_tok", "expert_layer_period", "expert_layer_offset")
    attention = on_period(c, "attn_layer", k.n_layers, 8, 4)
    c.require(mamba_inner_layernorms=True)
    c.ignore("use_mambapy", "use_associative_scan", "use_mamba_kernels", "num_logits_to_keep")
    c.ignore("calc_logits_for_entire_prompt")
    mixer = Mamba(
        with_silu(c, [not attends for attends in attention]),
        taps=c.int("mamba_d_conv", 4, most=64),
        channels=int(c.number("mamba_expand", 2) * k.n_embd),
        state=c.int("mamba_d_state", 16),
        norms=True,
    )
    bias = c.flag("mamba_proj_bias", False)
    add_mamba(c, k, mixer, "mamba_dt_rank", c.flag("mamba_conv_bias", True), bias)
    return k
