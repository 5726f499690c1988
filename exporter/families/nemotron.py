"""Nemotron 3 and 4, and Nemotron-H, which has Mamba-2."""

from __future__ import annotations

import math

from ..config import Config
from ..knobs import Knobs
from ..layers.mixers import Mamba2, NoMixer
from ..layers.part import Lacking, Skipped
from ..rope import FULL
from .common import FFN, LINEAR, biases, in_layer, kinds_of, llama_block, rotate
from .experts import experts, v3_router
from .mamba2 import add_mamba2, mamba2_names


def nemotron(c: Config) -> Knobs:
    """Nemotron 3 and 4, Minitron: LayerNorm of 1 + w, squared ReLU, rope of a part of each head."""
    k = llama_block(c, "norm_eps", hidden_act="relu2", max_position_embeddings=4096, norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    k.layernorm, k.norm_offset, k.biased = True, 1.0, biases(c)
    return k


def _either(names: dict[str, str]) -> dict[str, str]:
    """A table of names that begin with backbone, or with model as transformers 5 has them."""
    return {
        name: "|".join(
            f"{root}.{own}" for own in module.split("|") for root in ("backbone", "model")
        )
        for name, module in names.items()
    }


NEMOTRON_H = {
    **_either(
        {
            "embed": "embeddings",
            **in_layer("layers.N", attn_norm="norm", ffn_norm="norm"),
            **in_layer(
                "layers.N.mixer",
                attn_q="q_proj",
                attn_k="k_proj",
                attn_v="v_proj",
                attn_o="o_proj",
                router="gate",
                selection_bias="selection",
                expert_up="experts.up",
                expert_down="experts.down",
            ),
            "layers.N.ffn_up": "layers.N.mixer.up_proj|layers.N.mixer.shared_experts.up_proj",
            "layers.N.ffn_down": "layers.N.mixer.down_proj|layers.N.mixer.shared_experts.down_proj",
            **mamba2_names("layers.N.mixer"),
            "norm": "norm_f",
        }
    ),
    "output": "lm_head",
}
NEMOTRON_KINDS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
NEMOTRON_OLD = {  # keys by their first names
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_expand": "expand",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
    "attention_head_dim": "head_dim",
}


def _by_letters(c: Config, kinds: list | None, key: str) -> list:
    """Those kinds, or the letters that older files have."""
    pattern = c.get(key)
    if kinds is None and isinstance(pattern, str):
        kinds = [NEMOTRON_KINDS.get(letter, letter) for letter in pattern]
    return kinds or []


def nemotron_kinds(c: Config) -> list[str]:
    """The kinds of the layers, which also say how many there are."""
    kinds = c.list("layers_block_type") or c.list("layer_types")
    kinds = _by_letters(c, kinds, "hybrid_override_pattern")
    n = c.int("num_hidden_layers", len(kinds), most=4096)
    return kinds_of(c, kinds, n, tuple(NEMOTRON_KINDS.values()))


def nemotron_guesses(c: Config) -> list[str]:
    """The kinds of the layers that guess next tokens."""
    kinds = c.list("mtp_layers_block_type")
    kinds = _by_letters(c, kinds, "mtp_hybrid_override_pattern") or [FULL, "moe"]
    return kinds_of(c, kinds, len(kinds), (FULL, "mlp", "moe"))  # without states


def nemotron_h(c: Config) -> Knobs:
    """Nemotron-H, Nemotron Nano 2 and 3: every layer is one thing, Mamba-2, attention without rope,
    a network of squared ReLU, or experts of it."""
    for old, new in NEMOTRON_OLD.items():
        if c.get(old) is not None and new not in c.values:
            c.values = {**c.values, new: c.get(old)}
    kinds = nemotron_kinds(c)
    c.default(
        num_key_value_heads=8,
        head_dim=128,
        layer_norm_epsilon=1e-5,
        n_groups=8,
        num_hidden_layers=len(kinds),
        intermediate_size=21504,
    )
    k = llama_block(
        c,
        "layer_norm_epsilon",
        act="mlp_hidden_act",
        mlp_hidden_act="relu2",
        max_position_embeddings=4096,
    )
    c.require(
        mamba_hidden_act="silu",
        sliding_window=None,
        attention_bias=False,
        moe_latent_size=None,
        rms_norm_eps=k.norm_eps,
    )
    c.ignore(
        "chunk_size",
        "expand",
        "hidden_act",
        "mamba_chunk_size",
        "mamba_dt_init_floor",
        "mamba_dt_limit",
        "mamba_dt_max",
        "mamba_proj_bias",
        "mamba_ssm_cache_dtype",
        "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "num_logits_to_keep",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "rope_theta",
        "time_step_floor",
        "time_step_limit",
        "time_step_max",
        "time_step_rank",
        "use_mamba_kernels",
    )
    part = Mamba2(
        [kind == LINEAR for kind in kinds],
        taps=c.int("conv_kernel", 4, most=64),
        heads=c.int("mamba_num_heads", 128),
        head_dim=c.int("mamba_head_dim", 64),
        groups=c.int("n_groups"),
        state=c.int("ssm_state_size", 128),
        limits=(least_step(c), math.inf),
    )
    k.biased = FFN * c.flag("mlp_bias", False)
    if any(part.layers):
        add_mamba2(c, k, part, c.flag("use_conv_bias", True), c.flag("use_bias", False))
    _nemotron_networks(c, k, kinds)
    return k


def least_step(c: Config) -> float:
    """time_step_min, which may be 0."""
    value = c.get("time_step_min", 0.001)
    return 0.0 if value == 0 else c.number("time_step_min", 0.001)


def _nemotron_networks(c: Config, k: Knobs, kinds: list[str]) -> None:
    """The networks and experts that layers have in place of a mixer."""
    wide = {"mlp": k.d_ff}
    moe = (
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "n_group",
        "topk_group",
        "norm_topk_prob",
        "routed_scaling_factor",
        "n_shared_experts",
        "moe_shared_expert_intermediate_size",
    )
    if "moe" in kinds:
        c.default(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=7688)
        c.require(n_shared_experts=1)
        part = experts(c, k, "n_routed_experts", **v3_router(c))
        part.layers = [kind == "moe" for kind in kinds]
        part.scale = c.number("routed_scaling_factor", 1.0)
        wide["moe"] = c.int("moe_shared_expert_intermediate_size", 7688)
    c.ignore(*moe, "num_nextn_predict_layers", "output_router_logits")
    k.d_ff = [wide.get(kind, 0) for kind in kinds]
    k.parts += [
        NoMixer([kind in ("mlp", "moe") for kind in kinds]),
        Lacking([kind in (FULL, LINEAR) for kind in kinds], ("ffn_norm",)),
        Skipped([], prefixes=("mtp.",)),
    ]
