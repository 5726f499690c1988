"""Families of Mamba-2 layers, alone or among others, and OLMo Hybrid: from Config to Knobs, and
tables of names. Class defaults are those of transformers 5.23.0."""

from __future__ import annotations

import math

from .common import (
    FFN,
    LLAMA,
    QK_NORM,
    biases,
    in_layer,
    llama_block,
    rotate,
    without,
)
from .config import Config
from .knobs import ACTS, WHOLE, Knobs
from .llamas import granite_block
from .mixtures import GRANITE_SHARED, experts, v3_router
from .parts import DeltaNet, Lacking, Mamba2, Multiplied, NoMixer, Skipped
from .rope import FULL
from .tensor import ExportError

LINEAR = "linear_attention"
OLD_KINDS = {"mamba": LINEAR, "attention": FULL}  # of layer_types
PRE_NORMS, POST_NORMS = ("attn_norm", "ffn_norm"), ("attn_post_norm", "ffn_post_norm")
SIZES = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")  # mamba_..., as most families say it


def mamba2_names(module: str) -> dict[str, str]:
    """A table's entries of a mixer."""
    return in_layer(
        module, mix_in="x", conv="conv1d", ssm_gate="gate", ssm_step="step", ssm_rate="rate",
        ssm_skip="skip", ssm_norm="norm", mix_out="out_proj",
    )  # fmt: skip


def step_limits(c: Config, key: str = "time_step_limit") -> tuple[float, float]:
    """The least and the largest step, where infinity has several spellings."""
    value = c.get(key)
    if value is None:
        return 0.0, math.inf
    ends = [end.get("__float__") if isinstance(end, dict) else end for end in value]
    ends = [math.inf if end in ("Infinity", math.inf) else end for end in ends]
    if len(ends) != 2 or not all(isinstance(x, (int, float)) and x >= 0 for x in ends):
        raise ExportError(f"{c.where}: {key} is {value!r}, expected two numbers of 0 or more")
    return float(ends[0]), float(ends[1])


def mamba2_part(c: Config, k: Knobs, layers: list[bool], **more) -> Mamba2:
    """A mixer whose config spells its sizes mamba_n_heads and so on; `more` are fields of Mamba2.
    Its biases are added to those there are."""
    c.default(mamba_n_heads=128, mamba_n_groups=1, mamba_d_state=256, mamba_d_conv=4)
    c.default(mamba_expand=2)
    c.ignore("mamba_chunk_size")  # of a way to compute it
    if any(layers):
        c.require(hidden_act="silu")
    heads, width = c.int("mamba_n_heads"), c.get("mamba_d_ssm")
    if width is None:
        width = int(c.number("mamba_expand") * k.n_embd)
    if c.get("mamba_d_head", "auto") == "auto":
        c.values = {**c.values, "mamba_d_head": width // heads}
    n, head_dim, groups, state, taps = (
        c.int(f"mamba_{size}", most=64 if size == "d_conv" else 1 << 24) for size in SIZES
    )
    part = Mamba2(layers, taps=taps, heads=n, head_dim=head_dim, groups=groups, state=state,
                  limits=step_limits(c), **more)  # fmt: skip
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


def kinds_of(c: Config, kinds, n_layers: int, known: tuple[str, ...]) -> list[str]:
    """The kinds of the layers by their present names. Errors: ExportError for another."""
    found = [OLD_KINDS.get(kind, kind) for kind in kinds] if isinstance(kinds, list) else []
    if len(found) != n_layers or not set(found) <= set(known):
        raise ExportError(
            f"{c.where}: the kinds of the layers are no list of {n_layers} of {', '.join(known)}"
        )
    return found


# ---- families ------------------------------------------------------------------------------------

MAMBA2 = {
    "embed": "backbone.embeddings|backbone.embedding",
    "layers.N.attn_norm": "backbone.layers.N.norm",
    **mamba2_names("backbone.layers.N.mixer"),
    "norm": "backbone.norm_f",
    "output": "lm_head",
}


def mamba2(c: Config) -> Knobs:
    """Mamba-2, Codestral Mamba: nothing but mixers. A state has no longest text: the context is
    what room is made for."""
    c.default(num_hidden_layers=64, layer_norm_epsilon=1e-5, conv_kernel=4, state_size=128)
    c.default(num_heads=128, head_dim=64, n_groups=8, hidden_size=4096, vocab_size=32768, expand=2)
    c.require(hidden_act="silu", rms_norm=True)
    # norm_before_gate is in many files and true, but the gate comes first all the same.
    c.ignore("chunk_size", "intermediate_size", "norm_before_gate", "residual_in_fp32", "rescale_prenorm_residual", "time_step_rank",
             "time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme",
             "time_step_scale")  # fmt: skip
    n = c.int("num_hidden_layers", most=4096)
    k = Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=c.int("hidden_size"),
        n_layers=n,
        context=c.int("max_position_embeddings", 131072),
        n_heads=1,
        n_kv_heads=1,
        head_dim=1,
        d_ff=0,
        act=ACTS["silu"],
        norm_eps=c.number("layer_norm_epsilon"),
        tied=c.flag("tie_word_embeddings", False),
    )
    part = Mamba2(
        [True] * n, taps=c.int("conv_kernel", most=64), heads=c.int("num_heads"),
        head_dim=c.int("head_dim"), groups=c.int("n_groups"), state=c.int("state_size"),
        limits=step_limits(c),
    )  # fmt: skip
    if part.heads * part.head_dim != c.number("expand") * k.n_embd:
        raise ExportError(f"{c.where}: num_heads times head_dim is not expand times hidden_size")
    add_mamba2(c, k, part, c.flag("use_conv_bias", True), c.flag("use_bias", False))
    return k


BAMBA = {
    **LLAMA,
    "layers.N.ffn_norm": "model.layers.N.pre_ff_layernorm",
    **in_layer(
        "model.layers.N.feed_forward", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj"
    ),
    **mamba2_names("model.layers.N.mamba"),
    "norm": "model.final_layernorm",
}


def bamba(c: Config) -> Knobs:
    """Bamba: attention with rope on half a head in a few layers, Mamba-2 in the others."""
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=262144, rms_norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    c.require(attn_rotary_emb=k.head_dim // 2)
    c.ignore("num_logits_to_keep", "z_loss_coefficient")
    k.biased = biases(c)
    attention = c.get("attn_layer_indices") or []
    if not isinstance(attention, list):
        raise ExportError(f"{c.where}: attn_layer_indices is {attention!r}, expected a list")
    mamba2_part(c, k, [i not in attention for i in range(k.n_layers)])
    return k


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
    mamba2_part(c, k, [True] * k.n_layers, beside=True, norm=norm, norm_first=first,
                multipliers=multipliers(c, "ssm_multipliers", 5))  # fmt: skip
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


GRANITE_HYBRID = {**GRANITE_SHARED, **mamba2_names("model.layers.N.mamba")}


def granite_hybrid(c: Config) -> Knobs:
    """Granite 4: attention or Mamba-2, a network that all tokens pass, and experts besides or
    none."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = granite_block(c, intermediate_size=1, shared_intermediate_size=1024)
    c.require(attention_bias=False, normalization_function="rmsnorm")
    c.ignore("init_method")
    kinds = c.get("layer_types") or c.get("layers_block_type") or [LINEAR] * k.n_layers
    kinds = kinds_of(c, kinds, k.n_layers, (FULL, LINEAR))
    if c.get("num_local_experts"):
        experts(c, k, "num_local_experts", "intermediate_size")
    else:
        c.ignore("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef")
    k.d_ff = c.int("shared_intermediate_size", 1024)
    if LINEAR in kinds:
        mamba2_part(c, k, [kind == LINEAR for kind in kinds])
    else:
        c.ignore(*(key for key in c.values if key.startswith("mamba_")), "time_step_limit")
    if c.get("position_embedding_type") == "rope":
        rotate(c, k)
    else:
        c.require(position_embedding_type="nope")
        c.ignore("rope_theta", "rope_scaling", "rope_parameters")
    return k


def _either(names: dict[str, str]) -> dict[str, str]:
    """A table of names that begin with backbone, or with model as transformers 5 has them."""
    return {
        name: "|".join(f"{root}.{own}" for own in source.split("|") for root in ("backbone", "model"))
        for name, source in names.items()
    }


NEMOTRON_H = {
    **_either(
        {
            "embed": "embeddings",
            **in_layer("layers.N", attn_norm="norm", ffn_norm="norm"),
            **in_layer(
                "layers.N.mixer", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj",
                attn_o="o_proj", router="gate", selection_bias="selection",
                expert_up="experts.up", expert_down="experts.down",
            ),
            "layers.N.ffn_up": "layers.N.mixer.up_proj|layers.N.mixer.shared_experts.up_proj",
            "layers.N.ffn_down": "layers.N.mixer.down_proj|layers.N.mixer.shared_experts.down_proj",
            **mamba2_names("layers.N.mixer"),
            "norm": "norm_f",
        }
    ),
    "output": "lm_head",
}  # fmt: skip
NEMOTRON_KINDS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
NEMOTRON_OLD = {  # keys by their first names
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_expand": "expand",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
    "attention_head_dim": "head_dim",
}


def nemotron_kinds(c: Config) -> list[str]:
    """The kinds of the layers, which also say how many there are."""
    kinds = c.get("layers_block_type") or c.get("layer_types")
    pattern = c.get("hybrid_override_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = [NEMOTRON_KINDS.get(letter, letter) for letter in pattern]
    n = c.int("num_hidden_layers", len(kinds or []), most=4096)
    return kinds_of(c, kinds, n, tuple(NEMOTRON_KINDS.values()))


def nemotron_h(c: Config) -> Knobs:
    """Nemotron-H, Nemotron Nano 2 and 3: every layer is one thing, Mamba-2, attention without rope,
    a network of squared ReLU, or experts of it."""
    for old, new in NEMOTRON_OLD.items():
        if c.get(old) is not None and new not in c.values:
            c.values = {**c.values, new: c.get(old)}
    kinds = nemotron_kinds(c)
    c.default(num_key_value_heads=8, head_dim=128, layer_norm_epsilon=1e-5, n_groups=8,
              num_hidden_layers=len(kinds), intermediate_size=21504)  # fmt: skip
    k = llama_block(
        c, "layer_norm_epsilon", act="mlp_hidden_act", mlp_hidden_act="relu2",
        max_position_embeddings=4096,
    )  # fmt: skip
    c.require(
        mamba_hidden_act="silu", sliding_window=None, attention_bias=False, moe_latent_size=None,
        rms_norm_eps=k.norm_eps,
    )  # fmt: skip
    c.ignore(
        "chunk_size", "expand", "hidden_act", "mamba_chunk_size", "mamba_dt_init_floor",
        "mamba_dt_limit", "mamba_dt_max", "mamba_proj_bias", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern", "mtp_layers_block_type", "num_logits_to_keep",
        "rescale_prenorm_residual", "residual_in_fp32", "rope_theta", "time_step_floor",
        "time_step_limit", "time_step_max", "time_step_rank", "use_mamba_kernels",
    )  # fmt: skip
    part = Mamba2(
        [kind == LINEAR for kind in kinds], taps=c.int("conv_kernel", 4, most=64),
        heads=c.int("mamba_num_heads", 128), head_dim=c.int("mamba_head_dim", 64),
        groups=c.int("n_groups"), state=c.int("ssm_state_size", 128),
        limits=(least_step(c), math.inf),
    )  # fmt: skip
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
    """What stands where in place of a mixer."""
    wide = {"mlp": k.d_ff}
    moe = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group",
           "topk_group", "norm_topk_prob", "routed_scaling_factor", "n_shared_experts",
           "moe_shared_expert_intermediate_size")  # fmt: skip
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


OLMO_HYBRID = {
    **LLAMA,
    **QK_NORM,
    **in_layer(
        "model.layers.N.linear_attn", mix_in="in_proj_qkv", conv="conv1d", delta_gate="g_proj",
        delta_beta="b_proj", delta_decay="in_proj_a", delta_rate="rate", delta_norm="o_norm",
        mix_out="o_proj",
    ),
    "layers.N.attn_norm": "model.layers.N.attention_layer_norm|model.layers.N.input_layernorm",
    "layers.N.ffn_norm": (
        "model.layers.N.feedforward_layer_norm|model.layers.N.post_attention_layernorm"
    ),
    # Of a layer with attention, which transformers 5.23.0 saves by the name of one without.
    "layers.N.attn_post_norm": (
        "model.layers.N.post_attention_layernorm|model.layers.N.feedforward_layer_norm"
    ),
    "layers.N.ffn_post_norm": "model.layers.N.post_feedforward_layernorm",
}  # fmt: skip


def olmo_hybrid(c: Config) -> Knobs:
    """OLMo Hybrid: OLMo 3's attention, whose norms come after the branches, in every fourth layer;
    in the others a gated DeltaNet whose steps go up to 2, with norms before."""
    k = llama_block(c, max_position_embeddings=65536)
    linear = [LINEAR if i % 4 != 3 else FULL for i in range(k.n_layers)]
    if FULL not in linear:
        linear[-1] = FULL
    kinds = kinds_of(c, c.get("layer_types") or linear, k.n_layers, (LINEAR, FULL))
    delta = [kind == LINEAR for kind in kinds]
    keys = c.int("linear_num_key_heads", k.n_heads)
    k_dim = c.int("linear_key_head_dim", int(0.75 * k.n_embd / keys))
    part = DeltaNet(
        delta, taps=c.int("linear_conv_kernel_dim", 4, most=64), k_heads=keys, k_dim=k_dim,
        v_heads=c.int("linear_num_value_heads", k.n_heads),
        v_dim=c.int("linear_value_head_dim", 2 * k_dim),
        beta=2.0 if c.flag("linear_allow_neg_eigval", True) else 1.0, eps=1e-5,
    )  # fmt: skip
    if part.v_heads % part.k_heads:
        raise ExportError(
            f"{c.where}: linear_num_value_heads is no multiple of linear_num_key_heads"
        )
    c.ignore(*(f"linear_{key}" for key in ("a_log_min", "a_log_max", "dt_min", "dt_max",
                                           "dt_init_floor")))  # fmt: skip
    k.parts += [
        part,
        Lacking(delta, POST_NORMS),
        Lacking([not has for has in delta], PRE_NORMS),
    ]
    k.qk_norm, k.biased = WHOLE, (*biases(c), "delta_decay")
    rope = c.get("rope_parameters") or {}
    if not isinstance(rope, dict) or rope.get("rope_theta", c.get("rope_theta")) is None:
        c.ignore("rope_theta", "rope_scaling")  # no rope, as in the released ones
    else:
        rotate(c, k)
    return k


FAMILIES = {
    "bamba": (bamba, BAMBA),
    "falcon_h1": (falcon_h1, FALCON_H1),
    "granitemoehybrid": (granite_hybrid, GRANITE_HYBRID),
    "mamba2": (mamba2, MAMBA2),
    "nemotron_h": (nemotron_h, NEMOTRON_H),
    "olmo_hybrid": (olmo_hybrid, OLMO_HYBRID),
}
