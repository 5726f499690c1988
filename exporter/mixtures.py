"""Families with experts, latent attention, short convolution or gated DeltaNet: from Config to
Knobs, and tables of names. Class defaults are those of transformers 5.23.0."""

from __future__ import annotations

import math

from .common import (
    FFN,
    LLAMA,
    QK_NORM,
    QKV,
    biases,
    default_rope,
    in_layer,
    llama_block,
    rotate,
    without,
)
from .config import Config
from .knobs import WHOLE, Knobs
from .llamas import granite_block, granite_swa
from .parts import (
    MAX,
    SIGMOID,
    SPARSEMIXER,
    TOP2,
    DeltaNet,
    Experts,
    HeadGate,
    Latent,
    OutGate,
    ShortConv,
    Skipped,
)
from .rope import FULL, SLIDING, Rope, Shape, layer_kinds, rope_by_type, rope_set, windows
from .tensor import ExportError

# ---- names ---------------------------------------------------------------------------------------


def expert_names(module: str, router: str = "gate", dense: str | None = None) -> dict[str, str]:
    """A table's entries of the feed-forward networks of a layer: `module` holds the experts, or
    where a layer has none, a network of its own; `dense` is where all tokens' network is besides
    the experts."""
    names = in_layer(
        f"model.layers.N.{module}", router=router, selection_bias="selection",
        shared_gate="shared_expert_gate", expert_gate="experts.gate", expert_up="experts.up",
        expert_down="experts.down",
    )  # fmt: skip
    for matrix in ("gate", "up", "down"):
        own = f"model.layers.N.{module}.{matrix}_proj"
        names[f"layers.N.ffn_{matrix}"] = (
            own if dense is None else f"{own}|model.layers.N.{module}.{dense}.{matrix}_proj"
        )
    return names


MIXTRAL = {  # transformers 5 calls block_sparse_moe mlp
    **LLAMA,
    **{
        name: "|".join((source, source.replace("block_sparse_moe", "mlp")))
        for name, source in expert_names("block_sparse_moe").items()
    },
}
QWEN2_MOE = {**LLAMA, **expert_names("mlp", dense="shared_expert")}
QWEN3_MOE = {**QWEN2_MOE, **QK_NORM}
OLMOE = {**LLAMA, **QK_NORM, **expert_names("mlp")}
GRANITEMOE = {
    **LLAMA,
    **expert_names(
        "block_sparse_moe", router="router.layer|model.layers.N.block_sparse_moe.router"
    ),
}
GRANITE_SHARED = {
    **without(GRANITEMOE, "ffn_gate", "ffn_up"),
    **in_layer("model.layers.N.shared_mlp", ffn_gate_up="input_linear", ffn_down="output_linear"),
}
DOTS = {**LLAMA, **QK_NORM, **expert_names("mlp", dense="shared_experts")}
DEEPSEEK = {
    **without(LLAMA, "attn_v"),
    **in_layer(
        "model.layers.N.self_attn", attn_q_down="q_a_proj", attn_q_down_norm="q_a_layernorm",
        attn_k="kv_a_proj_with_mqa", attn_latent_norm="kv_a_layernorm", attn_k_up="k_up",
        attn_v_up="v_up",
    ),
    "layers.N.attn_q": "model.layers.N.self_attn.q_proj|model.layers.N.self_attn.q_b_proj",
    **expert_names("mlp", dense="shared_experts"),
}  # fmt: skip

YOUTU = {**DEEPSEEK, **expert_names("mlp")}

# ---- experts -------------------------------------------------------------------------------------


def no_training(c: Config) -> None:
    """Keys that matter to training alone."""
    c.ignore("output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size")


def experts(
    c: Config, k: Knobs, n: str = "num_experts", width: str = "moe_intermediate_size", **more
) -> Experts:
    """Experts in all layers, of which the config says how many there are and how wide; `more` are
    fields of Experts."""
    no_training(c)
    part = Experts(
        [True] * k.n_layers,
        n=c.int(n, most=4096),
        top_k=c.int("num_experts_per_tok", most=64),
        d_ff=c.int(width),
        **more,
    )
    k.parts.append(part)
    k.d_ff = 0
    return part


def mixtral(c: Config) -> Knobs:
    """Mixtral."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
    rotate(c, k, theta=1e6)
    experts(c, k, "num_local_experts", "intermediate_size")
    c.ignore("router_jitter_noise")  # in training
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


def sparse_layers(c: Config, k: Knobs, part: Experts, shared: int = 0) -> None:
    """Which layers have experts, in Qwen's way; `shared` is the width of their network for all
    tokens."""
    step, dense = c.int("decoder_sparse_step", 1), c.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ExportError(f"{c.where}: mlp_only_layers is {dense!r}, expected a list")
    part.layers = [i not in dense and (i + 1) % step == 0 for i in range(k.n_layers)]
    k.d_ff = [shared if sparse else c.int("intermediate_size") for sparse in part.layers]


def qwen2_moe(c: Config) -> Knobs:
    """Qwen 1.5 MoE and Qwen 2 MoE: a shared expert times a gate."""
    c.default(
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, intermediate_size=5632
    )
    k = llama_block(c, num_key_value_heads=16, max_position_embeddings=32768)
    rotate(c, k)
    part = experts(c, k, renorm=c.flag("norm_topk_prob", False), shared_gate=True)
    sparse_layers(c, k, part, c.int("shared_expert_intermediate_size", 5632))
    k.biased = QKV * c.flag("qkv_bias", True)
    slides, first = c.flag("use_sliding_window", False), c.int("max_window_layers", 28, least=0)
    kinds = layer_kinds(c, k.n_layers, lambda layer: slides and layer < first and layer % 2 == 0)
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    return k


def qwen3_moe(c: Config) -> Knobs:
    """Qwen 3 MoE."""
    c.default(
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, intermediate_size=6144
    )
    k = llama_block(c, num_key_value_heads=4, max_position_embeddings=32768)
    rotate(c, k)
    part = experts(
        c,
        k,
        "num_experts" if "num_experts" in c.values else "num_local_experts",
        renorm=c.flag("norm_topk_prob", False),
    )
    sparse_layers(c, k, part)
    k.biased = biases(c)
    size = c.get("sliding_window", 4096)  # in all layers, or without use_sliding_window in none
    c.ignore("max_window_layers")
    slides = c.flag("use_sliding_window", False) and size is not None
    k.window = [c.int("sliding_window", 4096) if slides else 0] * k.n_layers
    return k


def olmoe(c: Config) -> Knobs:
    """OLMoE: norms of all heads of q or k as a whole."""
    c.default(num_experts=64, num_experts_per_tok=8)
    k = llama_block(c, max_position_embeddings=4096, rms_norm_eps=1e-5)
    rotate(c, k)
    experts(c, k, width="intermediate_size", renorm=c.flag("norm_topk_prob", False))
    k.qk_norm, k.biased = WHOLE, biases(c)
    k.clip = 0.0 if c.get("clip_qkv") is None else c.number("clip_qkv")
    return k


def granitemoe(c: Config) -> Knobs:
    """Granite 3 MoE."""
    c.default(num_local_experts=8, num_experts_per_tok=2)
    k = granite_block(c)
    rotate(c, k)
    experts(c, k, "num_local_experts", "intermediate_size")
    k.biased = biases(c)
    return k


def granitemoe_swa(c: Config) -> Knobs:
    """Granite MoE with windows, sinks, and a theta a layer."""
    c.default(
        num_local_experts=8,
        num_experts_per_tok=2,
        num_key_value_heads=None,
        max_position_embeddings=2048,
    )
    c.default(rms_norm_eps=1e-6, tie_word_embeddings=False)
    k = granite_swa(c)
    experts(c, k, "num_local_experts", "intermediate_size")
    k.d_ff = c.int("shared_intermediate_size", 0, least=0)
    return k


def phimoe(c: Config) -> Knobs:
    """Phi-3.5-MoE: the sparsemixer chooses; rope keeps its short table, but its factor changes with
    the length."""
    c.default(
        num_local_experts=16,
        num_experts_per_tok=2,
        intermediate_size=6400,
        original_max_position_embeddings=4096,
    )
    c.require(num_experts_per_tok=2)
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
    shape = Shape(
        k.head_dim,
        k.context,
        theta=1e6,
        kinds=("default", "longrope"),
        known=("short_mscale", "long_mscale"),
    )
    rope = rope_set(c, shape)
    if rope.long_freq is not None:
        p = Config(c.get("rope_parameters") or c.get("rope_scaling"), f"{c.where}: rope_parameters")
        short, long = p.number("short_mscale"), p.number("long_mscale")
        rope = Rope(rope.inv_freq, short, rope.inv_freq, rope.length, long)
    k.rotate(*[rope] * k.n_layers)
    experts(
        c, k, "num_local_experts", "intermediate_size", score=SPARSEMIXER, renorm=False,
        jitter=c.number("router_jitter_noise", 0.01),
    )  # fmt: skip
    # In training; said with the rope.
    c.ignore("input_jitter_noise", "original_max_position_embeddings")
    k.layernorm = True
    k.biased = biases(c) + ("output",) * c.flag("lm_head_bias", False)
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


def deepseek_experts(c: Config, k: Knobs, first: int = 0, **more) -> Experts:
    """Experts after a number of dense layers, beside a network for all tokens, as many times as
    wide as an expert as n_shared_experts says."""
    width = k.d_ff
    first = c.int("first_k_dense_replace", first, least=0)
    c.require(moe_layer_freq=1)
    part = experts(
        c, k, "n_routed_experts" if "n_routed_experts" in c.values else "num_local_experts", **more
    )
    part.layers = [i >= first for i in range(k.n_layers)]
    shared = part.d_ff * c.int("n_shared_experts", least=0)
    k.d_ff = [shared if sparse else width for sparse in part.layers]
    part.scale = c.number("routed_scaling_factor", 1.0)
    return part


def v3_router(c: Config) -> dict[str, object]:
    """The fields of Experts for DeepSeek-V3's router."""
    return dict(
        score=SIGMOID, biased=True, groups=c.int("n_group", 1), top_groups=c.int("topk_group", 1),
        group_score=TOP2, renorm=c.flag("norm_topk_prob", True), renorm_eps=1e-20,
    )  # fmt: skip


def v3_experts(c: Config, k: Knobs, first: int = 0) -> None:
    """DeepSeek-V3's router: sigmoids, a bias for the choice, groups by their two best."""
    c.choice("scoring_func", {"sigmoid": SIGMOID, "noaux_tc": SIGMOID}, "sigmoid")
    c.require(topk_method="noaux_tc")
    deepseek_experts(c, k, first, **v3_router(c))
    c.ignore("num_mtp_layers", "num_nextn_predict_layers")
    k.parts.append(Skipped([], n_layers=k.n_layers))


def dots1(c: Config) -> Knobs:
    """dots.llm1."""
    c.default(norm_topk_prob=False)
    k = llama_block(c, num_key_value_heads=32, max_position_embeddings=2048)
    rotate(c, k)
    v3_experts(c, k)
    k.biased = biases(c)
    size, first = c.get("sliding_window", 4096), c.int("max_window_layers", 62, least=0)
    k.window = windows(
        c, layer_kinds(c, k.n_layers, lambda layer: size is not None and layer >= first), size
    )
    return k


def glm4_moe(c: Config) -> Knobs:
    """GLM 4.5 and 4.6."""
    c.default(
        moe_intermediate_size=1408,
        num_experts_per_tok=8,
        n_routed_experts=128,
        n_shared_experts=1,
        intermediate_size=10944,
    )
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5)
    rotate(c, k, partial=0.5)
    v3_experts(c, k, first=1)
    k.biased = biases(c, QKV)
    k.names = without(
        DOTS, *(() if c.flag("use_qk_norm", False) else ("attn_q_norm", "attn_k_norm"))
    )
    return k


GPT_OSS = {
    **LLAMA,
    **in_layer("model.layers.N", attn_sinks="self_attn.sinks", ffn_act="mlp.act"),
    **expert_names("mlp", router="router"),
}
CLAMPED_SWIGLU = 6  # a value of layer.act


def gpt_oss(c: Config) -> Knobs:
    """gpt-oss: sinks, windows in every other layer, and a clamped SwiGLU."""
    c.default(
        num_local_experts=128, num_experts_per_tok=4, intermediate_size=2880, attention_bias=True
    )
    default_rope(
        c, rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
        original_max_position_embeddings=4096,
    )  # fmt: skip
    c.ignore("initial_context_length", "experts_per_token")  # said elsewhere
    acts = {"silu": CLAMPED_SWIGLU}
    k = llama_block(
        c,
        acts=acts,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
    )
    rotate(c, k, theta=150000.0)
    clamp = (c.number("swiglu_alpha", 1.702), c.number("swiglu_limit", 7.0))
    experts(c, k, "num_local_experts", "intermediate_size", interleaved=True, clamp=clamp)
    k.biased = (*biases(c), "router", "expert_gate", "expert_up", "expert_down")
    kinds = layer_kinds(c, k.n_layers, lambda layer: layer % 2 == 0)
    k.window = windows(c, kinds, c.get("sliding_window", 128))
    return k


# ---- latent attention ----------------------------------------------------------------------------


def latent_block(c: Config, interleaved: bool, **defaults) -> Knobs:
    """Llama's block with latent attention, rope included."""
    c.default(
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    c.ignore("qk_head_dim", "num_key_value_heads")  # sums of the others; all heads share the latent
    k = llama_block(c, head_dim_key=False, **defaults)
    part = Latent(
        [True] * k.n_layers, heads=k.n_heads, rank=c.int("kv_lora_rank"),
        nope=c.int("qk_nope_head_dim"), rope=c.int("qk_rope_head_dim"), value=c.int("v_head_dim"),
        interleaved=interleaved, q_rank=0 if c.get("q_lora_rank") is None else c.int("q_lora_rank"),
    )  # fmt: skip
    k.parts.append(part)
    k.rotate(*[rope_set(c, Shape(part.rope, k.context))] * k.n_layers)
    k.n_kv_heads, k.head_dim = 1, part.rank + part.rope
    k.attn_scale = (part.nope + part.rope) ** -0.5 * yarn_scale(c) ** 2
    k.biased = ("attn_q_down", "attn_k", "attn_o") * c.flag("attention_bias", False)
    return k


def yarn_scale(c: Config) -> float:
    """What rope scaling multiplies both queries and keys by, rope or not."""
    p = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if p.get("rope_type", p.get("type", "default")) == "default" or not p.get("mscale_all_dim"):
        return 1.0
    return 1.0 if p["factor"] <= 1 else 0.1 * p["mscale_all_dim"] * math.log(p["factor"]) + 1.0


def deepseek_v2(c: Config) -> Knobs:
    """DeepSeek V2 and V2 Lite."""
    c.default(
        intermediate_size=11008,
        moe_intermediate_size=1407,
        n_routed_experts=64,
        n_shared_experts=2,
        topk_method="greedy",
    )
    k = latent_block(c, interleaved=True)
    k.biased += FFN * c.flag("mlp_bias", False)
    part = deepseek_experts(c, k, renorm=False, group_score=MAX)
    c.ignore("norm_topk_prob")  # the reference never does it
    c.require(scoring_func="softmax")
    if c.choice("topk_method", {"greedy": False, "group_limited_greedy": True}):
        part.groups, part.top_groups = c.int("n_group"), c.int("topk_group")
    c.ignore("n_group", "topk_group")
    return k


def deepseek_v3(c: Config) -> Knobs:
    """DeepSeek V3 and R1."""
    c.default(
        intermediate_size=18432, moe_intermediate_size=2048, n_routed_experts=256,
        n_shared_experts=1, n_group=8, topk_group=4, num_experts_per_tok=8,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    k = latent_block(c, c.flag("rope_interleave", True), max_position_embeddings=4096)
    v3_experts(c, k, first=3)
    return k


def youtu(c: Config) -> Knobs:
    """Youtu-LLM: latent attention without experts."""
    k = latent_block(
        c, c.flag("rope_interleave", True), max_position_embeddings=131072, tie_word_embeddings=True
    )
    c.ignore("embedding_initializer_range")
    return k


# ---- short convolution ---------------------------------------------------------------------------

LFM2_FFN = in_layer("model.layers.N.feed_forward", ffn_gate="w1", ffn_up="w3", ffn_down="w2")
LFM2 = {
    **LLAMA,
    **in_layer("model.layers.N", attn_norm="operator_norm", ffn_norm="ffn_norm"),
    **in_layer(
        "model.layers.N.self_attn",
        attn_o="out_proj",
        attn_q_norm="q_layernorm",
        attn_k_norm="k_layernorm",
    ),
    **in_layer("model.layers.N.conv", mix_in="in_proj", conv="conv", mix_out="out_proj"),
    **LFM2_FFN,
    "norm": "model.embedding_norm",
}
LFM2_MOE = {**LFM2, **expert_names("feed_forward"), **LFM2_FFN}
LFM3 = {
    **LFM2,
    **in_layer(
        "model.layers.N", attn_post_norm="post_operator_norm", ffn_post_norm="post_ffn_norm"
    ),
    **in_layer(
        "model.layers.N.self_attn", attn_o="o_proj", attn_q_norm="q_norm", attn_k_norm="k_norm"
    ),
    "layers.N.attn_gate": "model.layers.N.self_attn.gate_proj|model.layers.N.self_attn.g_proj",
}


def mixer_kinds(c: Config, n_layers: int, known: tuple[str, ...], usual: list[str]) -> list[str]:
    """layer_types, of which `known` may be there, or `usual`."""
    kinds = c.get("layer_types") or usual
    if not isinstance(kinds, list) or len(kinds) != n_layers or not set(kinds) <= set(known):
        raise ExportError(
            f"{c.where}: layer_types is not a list of {n_layers} of {', '.join(known)}"
        )
    return kinds


def lfm_block(c: Config, known: tuple[str, ...], **defaults) -> tuple[Knobs, list[str]]:
    """What LFM 2 and 3 share; also the kinds of the layers."""
    for old, new in (
        ("tie_embedding", "tie_word_embeddings"),
        ("block_ff_dim", "intermediate_size"),
    ):
        if c.get(old) is not None:
            c.values = {**c.values, new: c.get(old)}
    k = llama_block(
        c, "norm_eps", norm_eps=1e-5, num_key_value_heads=8, max_position_embeddings=128000,
        tie_word_embeddings=True, intermediate_size=12288, **defaults,
    )  # fmt: skip
    c.require(
        conv_dim=k.n_embd,
        conv_dim_out=k.n_embd,
        block_dim=k.n_embd,
        conv_use_xavier_init=True,
    )
    c.require(num_heads=k.n_heads, use_pos_enc=True)
    c.ignore(
        "theta",
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_norm_eps",
        "block_use_swiglu",
    )
    c.ignore("block_use_xavier_init")
    attention = c.get("full_attn_idxs")
    attention = range(k.n_layers) if attention is None else attention
    kinds = mixer_kinds(
        c,
        k.n_layers,
        known,
        ["full_attention" if i in attention else "conv" for i in range(k.n_layers)],
    )
    k.parts.append(
        ShortConv(
            [kind == "conv" for kind in kinds],
            taps=c.int("conv_L_cache", 3, most=64),
            channels=k.n_embd,
        )
    )
    k.biased = ("mix_in", "conv", "mix_out") * c.flag("conv_bias", False)
    return k, kinds


def lfm2(c: Config) -> Knobs:
    """LFM 2."""
    k, _ = lfm_block(c, ("conv", "full_attention"))
    rotate(c, k, theta=1e6)
    if c.flag("block_auto_adjust_ff_dim", True):
        k.d_ff = int(2 * k.d_ff / 3)
        if c.get("block_ffn_dim_multiplier", 1.0) is not None:
            of = c.int("block_multiple_of", 256)
            k.d_ff = -(-int(c.number("block_ffn_dim_multiplier", 1.0) * k.d_ff) // of) * of
    c.ignore("block_ffn_dim_multiplier", "block_multiple_of")  # otherwise
    return k


def lfm2_moe(c: Config) -> Knobs:
    """LFM 2 with experts."""
    c.default(
        intermediate_size=7168, moe_intermediate_size=1792, num_experts=32, num_experts_per_tok=4
    )
    k, _ = lfm_block(c, ("conv", "full_attention"))
    rotate(c, k, theta=1e6)
    d_ff, dense = k.d_ff, c.int("num_dense_layers", 2, least=0)
    part = experts(
        c, k, score=SIGMOID, biased=c.flag("use_expert_bias", True),
        renorm=c.flag("norm_topk_prob", True), renorm_eps=1e-6,
        scale=c.number("routed_scaling_factor", 1.0),
    )  # fmt: skip
    part.layers = [i >= dense for i in range(k.n_layers)]
    k.d_ff = [0 if sparse else d_ff for sparse in part.layers]
    return k


def lfm3(c: Config) -> Knobs:
    """LFM 3: norms after the branches too, a gate for each head, and a rope for layers with a
    window and another for the rest."""
    default_rope(
        c, full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.5),
        sliding_attention=dict(rope_type="default", rope_theta=1e4),
    )  # fmt: skip
    usual = [
        "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 < i else "conv"
        for i in range(10000)
    ]
    if c.get("layer_types") is None:
        c.values = {**c.values, "layer_types": usual[: c.int("num_hidden_layers", most=4096)]}
    c.default(num_key_value_heads=4, conv_L_cache=7, intermediate_size=7680, head_dim=128)
    k, kinds = lfm_block(c, ("conv", FULL, SLIDING))
    c.require(use_sandwich_norm=True, use_attention_gate=True)
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=1e6), sliding_theta=1e4)
    k.rotate(*[ropes.get(kind) for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 256))
    k.parts.append(HeadGate([kind != "conv" for kind in kinds], heads=k.n_heads))
    k.biased += biases(c)
    return k


# ---- gated DeltaNet ------------------------------------------------------------------------------

QWEN3_5 = {
    **LLAMA,
    **QK_NORM,
    **in_layer("model.layers.N.self_attn", attn_gate="gate_proj"),
    **in_layer(
        "model.layers.N.linear_attn", mix_in="in_proj_qkv", conv="conv1d", delta_gate="in_proj_z",
        delta_beta="in_proj_b", delta_decay="in_proj_a", delta_rate="rate", delta_norm="norm",
        mix_out="out_proj",
    ),
}  # fmt: skip
QWEN3_NEXT = {**QWEN3_5, **expert_names("mlp", dense="shared_expert")}


def delta_block(c: Config, **defaults) -> Knobs:
    """What Qwen3-Next and Qwen 3.5 share: norms of 1 + w, gated attention with rope on a quarter of
    a head in every fourth layer, gated DeltaNet in the others."""
    c.default(
        linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_num_key_heads=16, linear_num_value_heads=32,
    )  # fmt: skip
    k = llama_block(c, head_dim=256, max_position_embeddings=32768, **defaults)
    # For text mRoPE is plain rope.
    rotate(c, k, partial=0.25, known=("mrope_section", "mrope_interleaved"))
    every = c.int("full_attention_interval", 4)
    usual = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(k.n_layers)]
    kinds = mixer_kinds(c, k.n_layers, ("linear_attention", "full_attention"), usual)
    k.parts += [
        DeltaNet(
            [kind == "linear_attention" for kind in kinds],
            taps=c.int("linear_conv_kernel_dim", most=64), k_heads=c.int("linear_num_key_heads"),
            v_heads=c.int("linear_num_value_heads"), k_dim=c.int("linear_key_head_dim"),
            v_dim=c.int("linear_value_head_dim"),
        ),
        OutGate([kind == "full_attention" for kind in kinds], heads=k.n_heads, head_dim=k.head_dim),
        Skipped([], prefixes=("mtp.", "model.visual.")),
    ]  # fmt: skip
    if k.parts[0].v_heads % k.parts[0].k_heads:
        raise ExportError(
            f"{c.where}: linear_num_value_heads is no multiple of linear_num_key_heads"
        )
    c.require(attn_output_gate=True, mamba_ssm_dtype="float32", use_sliding_window=False)
    k.norm_offset, k.biased = 1.0, (*biases(c), *biases(c, ("attn_gate",)), "delta_decay")
    c.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    return k


def qwen3_5(c: Config) -> Knobs:
    """Qwen 3.5 without experts."""
    return delta_block(c, num_key_value_heads=4, intermediate_size=12288)


def _shared_expert(c: Config, k: Knobs) -> None:
    """An expert that all tokens pass, times a gate, beside those of each layer."""
    shared = c.int("shared_expert_intermediate_size")
    part = experts(c, k, renorm=c.flag("norm_topk_prob", True), shared_gate=True)
    sparse_layers(c, k, part, shared)


def qwen3_5_moe(c: Config) -> Knobs:
    """Qwen 3.5 with experts."""
    c.default(
        moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts_per_tok=8,
        num_experts=256, intermediate_size=1,
    )  # fmt: skip
    k = delta_block(c, num_key_value_heads=2)
    c.require(norm_topk_prob=True)
    _shared_expert(c, k)
    return k


def qwen3_next(c: Config) -> Knobs:
    """Qwen3-Next."""
    c.default(
        moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts_per_tok=10,
        num_experts=512, intermediate_size=5632,
    )  # fmt: skip
    k = delta_block(c, num_key_value_heads=2)
    _shared_expert(c, k)
    return k


FAMILIES = {
    "deepseek_v2": (deepseek_v2, DEEPSEEK),
    "deepseek_v3": (deepseek_v3, DEEPSEEK),
    "dots1": (dots1, DOTS),
    "glm4_moe": (glm4_moe, DOTS),
    "gpt_oss": (gpt_oss, GPT_OSS),
    "granitemoe": (granitemoe, GRANITEMOE),
    "granitemoe_swa": (
        granitemoe_swa,
        {**GRANITE_SHARED, **in_layer("model.layers.N", attn_sinks="self_attn.sinks")},
    ),
    "lfm2": (lfm2, LFM2),
    "lfm2_moe": (lfm2_moe, LFM2_MOE),
    "lfm3": (lfm3, LFM3),
    "mixtral": (mixtral, MIXTRAL),
    "olmoe": (olmoe, OLMOE),
    "phimoe": (phimoe, MIXTRAL),
    "qwen2_moe": (qwen2_moe, QWEN2_MOE),
    "qwen3_5_moe_text": (qwen3_5_moe, QWEN3_NEXT),
    "qwen3_5_text": (qwen3_5, QWEN3_5),
    "qwen3_moe": (qwen3_moe, QWEN3_MOE),
    "qwen3_next": (qwen3_next, QWEN3_NEXT),
    "youtu": (youtu, YOUTU),
}
