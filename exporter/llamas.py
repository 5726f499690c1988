"""Llama and its kin: RMSNorm, rope, a gated feed-forward layer, and names like Llama's."""

from __future__ import annotations

import numpy as np

from .common import (
    FFN,
    LLAMA,
    QK_NORM,
    QKV,
    QKVO,
    biases,
    default_rope,
    every,
    in_layer,
    llama_block,
    rotate,
    without,
)
from .config import Config
from .knobs import ACTS, AFTER_ROPE, WHOLE, XIELU, Knobs
from .parts import Experts, PerLayerEmbedding, SharedKeys
from .rope import FULL, SLIDING, Shape, layer_kinds, rope_by_type, rope_set, windows
from .tensor import ExportError


def llama(c: Config) -> Knobs:
    """Llama 1 to 3.2, TinyLlama, SmolLM 1 and 2."""
    k = llama_block(c)
    rotate(c, k)
    k.biased = biases(c)
    c.require(rope_interleaved=False)
    return k


def mistral(c: Config) -> Knobs:
    """Mistral 7B, all versions, and Nemo; Ministral 8B."""
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072)
    rotate(c, k)
    size = c.get("sliding_window", 4096)
    k.window = windows(c, layer_kinds(c, k.n_layers, lambda layer: size is not None), size)
    return k


def ministral3(c: Config) -> Knobs:
    """Ministral 3: YaRN, and queries that grow with the position."""
    yarn = dict(
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        original_max_position_embeddings=16384,
    )
    default_rope(c, rope_type="yarn", rope_theta=1e6, factor=16.0, llama_4_scaling_beta=0.1, **yarn)
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=262144, rms_norm_eps=1e-5
    )
    rotate(c, k, theta=1e6, known=("llama_4_scaling_beta", "max_position_embeddings"))
    rope = Config(
        c.get("rope_parameters") or c.get("rope_scaling") or {}, f"{c.where}: rope_parameters"
    )
    beta, k.q_temp_length = (
        rope.number("llama_4_scaling_beta"),
        rope.int("original_max_position_embeddings"),
    )
    k.q_temp = [1 + beta * float(np.log(1 + i)) for i in range(k.context // k.q_temp_length + 1)]
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


def _qwen(c: Config, **defaults) -> Knobs:
    k = llama_block(c, num_key_value_heads=32, max_position_embeddings=32768, **defaults)
    rotate(c, k)
    size = c.get("sliding_window", 4096)  # without use_sliding_window it means nothing
    first = c.int("max_window_layers", 28, least=0)
    slides = c.flag("use_sliding_window", False) and size is not None
    k.window = windows(
        c,
        layer_kinds(c, k.n_layers, lambda layer: slides and layer >= first),
        size if slides else None,
    )
    return k


def qwen2(c: Config) -> Knobs:
    """Qwen 1.5, 2 and 2.5 without experts."""
    k = _qwen(c)
    k.biased = QKV
    c.require(use_mrope=False)
    return k


def qwen3(c: Config) -> Knobs:
    """Qwen 3 without experts: q and k are normalised head by head."""
    k = _qwen(c, head_dim=128)
    k.biased = QKVO * c.flag("attention_bias", False)
    return k


def smollm3(c: Config) -> Knobs:
    """SmolLM 3: every fourth layer has no rope."""
    k = llama_block(
        c, num_key_value_heads=4, max_position_embeddings=32768, tie_word_embeddings=True
    )
    k.biased = biases(c)
    rope = rope_set(c, Shape(k.head_dim, k.context, theta=2e6))
    interval = c.int("no_rope_layer_interval", 4)
    c.ignore("max_window_layers")  # Qwen's
    rotates = c.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(k.n_layers)]
    if not isinstance(rotates, list) or len(rotates) != k.n_layers or not set(rotates) <= {0, 1}:
        raise ExportError(
            f"{c.where}: no_rope_layers has not a 0 or a 1 for each of the {k.n_layers} layers"
        )
    k.rotate(*[rope if one else None for one in rotates])
    slides = c.flag("use_sliding_window", False) and c.get("sliding_window") is not None
    k.window = windows(
        c,
        layer_kinds(c, k.n_layers, lambda layer: slides and not rotates[layer]),
        c.get("sliding_window"),
    )
    return k


def seed_oss(c: Config) -> Knobs:
    """Seed-OSS."""
    k = llama_block(c, num_key_value_heads=8, head_dim=128, max_position_embeddings=524288)
    rotate(c, k)
    k.biased = biases(c, QKV, attention=True) + ("attn_o",) * c.flag("attention_out_bias", False)
    return k


def arcee(c: Config) -> Knobs:
    """Arcee: a plain feed-forward layer of squared ReLU."""
    k = llama_block(c, hidden_act="relu2", max_position_embeddings=4096, rms_norm_eps=1e-5)
    rotate(c, k)
    k.biased = biases(c)
    return k


def helium(c: Config) -> Knobs:
    """Helium 1: interleaved rope."""
    k = llama_block(
        c, num_key_value_heads=20, head_dim=128, max_position_embeddings=4096, rms_norm_eps=1e-8
    )
    rotate(c, k, theta=1e5)
    k.biased, k.interleaved = biases(c, QKV), True
    return k


def ernie4_5(c: Config) -> Knobs:
    """Ernie 4.5 without experts: interleaved rope."""
    k = llama_block(
        c,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    rotate(c, k, theta=5e5)
    k.biased, k.interleaved = (QKVO + FFN) * c.flag("use_bias", False), True
    return k


def exaone4(c: Config) -> Knobs:
    """EXAONE 4: norms after the branches; with a window, layers without one have no rope."""
    k = llama_block(c, num_key_value_heads=32, rms_norm_eps=1e-5)
    rope, size, pattern = (
        rope_set(c, Shape(k.head_dim, k.context)),
        c.get("sliding_window", 4096),
        4,
    )
    if c.get("layer_types") is None and size is not None:
        pattern = c.int("sliding_window_pattern", 4)
    c.ignore("sliding_window_pattern")  # layer_types says more
    kinds = layer_kinds(c, k.n_layers, lambda layer: size is not None and every(pattern)(layer))
    k.rotate(*[rope if size is None or kind == SLIDING else None for kind in kinds])
    k.window = windows(c, kinds, size)
    return k


def olmo(c: Config) -> Knobs:
    """OLMo 1: LayerNorm without weights, and q, k and v are clipped."""
    c.default(layer_norm_eps=1e-5)
    k = llama_block(c, "layer_norm_eps")
    c.require(layer_norm_eps=1e-5)
    rotate(c, k)
    k.layernorm, k.biased = True, biases(c)
    k.clip = 0.0 if c.get("clip_qkv") is None else c.number("clip_qkv")
    return k


def olmo2(c: Config) -> Knobs:
    """OLMo 2: norms after the branches, and of all heads of q or k as a whole."""
    k = llama_block(c, rms_norm_eps=1e-5)
    rotate(c, k)
    k.qk_norm, k.biased = WHOLE, biases(c)
    return k


def olmo3(c: Config) -> Knobs:
    """OLMo 3: OLMo 2 with windows, and rope scaling in the layers without one."""
    k = llama_block(c, rms_norm_eps=1e-5)
    k.qk_norm, k.biased = WHOLE, biases(c)
    kinds = layer_kinds(c, k.n_layers, every(4))
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=5e5), sliding_theta=5e5)
    k.rotate(*[ropes[kind] for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    return k


def granite_block(c: Config, **defaults) -> Knobs:
    k = llama_block(c, **defaults)
    k.emb_scale, k.residual_scale = (
        c.number("embedding_multiplier", 1.0),
        c.number("residual_multiplier", 1.0),
    )
    k.attn_scale, k.logit_scale = (
        c.number("attention_multiplier", 1.0),
        1 / c.number("logits_scaling", 1.0),
    )
    return k


def granite(c: Config) -> Knobs:
    """Granite 3 without experts: a factor for each of embedding, residual, scores and logits."""
    k = granite_block(c)
    rotate(c, k)
    k.biased = biases(c)
    return k


def granite_swa(c: Config) -> Knobs:
    """Granite with windows, sinks, and a theta a layer."""
    k = granite_block(
        c,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    k.biased = biases(c)
    kinds = layer_kinds(c, k.n_layers, lambda layer: layer % 4 != 0)
    k.window = windows(c, kinds, c.get("sliding_window", 128))
    thetas = c.get("layer_rope_theta")
    if thetas is None:
        rotate(c, k)
        return k
    if not isinstance(thetas, list) or len(thetas) != k.n_layers:
        raise ExportError(
            f"{c.where}: layer_rope_theta has not one entry for each of the {k.n_layers} layers"
        )
    c.ignore("rope_theta")  # each layer has its own
    ropes = {}
    for theta in filter(None, thetas):
        parameters = {**(c.get("rope_parameters") or {}), "rope_theta": theta}
        ropes[theta] = rope_set(
            Config({"rope_parameters": parameters}, c.where), Shape(k.head_dim, k.context)
        )
    k.rotate(*[ropes.get(theta) for theta in thetas])
    return k


def phi3(c: Config) -> Knobs:
    """Phi 3, 3.5 and 4-mini."""
    c.default(original_max_position_embeddings=4096)
    k = llama_block(c, max_position_embeddings=4096, rms_norm_eps=1e-5)
    rotate(c, k, partial=1.0, kinds=("default", "longrope", "su"))
    c.require(
        attention_bias=False,
        mlp_bias=False,
        lm_head_bias=False,
        full_attn_mod=1,
        interpolate_factor=1,
    )
    size = c.get("sliding_window")
    k.window = [0 if size is None else c.int("sliding_window")] * k.n_layers
    return k


def glm(c: Config) -> Knobs:
    """GLM 4 9B and GLM-4-0414: interleaved rope of half a head."""
    k = llama_block(
        c,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1.5625e-7,
    )
    rotate(c, k, partial=0.5)
    k.biased, k.interleaved = QKV * c.flag("attention_bias", True), True
    return k


def hunyuan(c: Config) -> Knobs:
    """Hunyuan 1 dense: q and k are normalised after rope, whose theta may grow by a constant."""
    c.default(head_dim=c.get("attention_head_dim"))  # its first name
    k = llama_block(c, rms_norm_eps=1e-5)
    c.require(use_qk_norm=True, use_cla=False, norm_type="rms", mlp_bias=False)
    c.ignore("eod_token_id")
    k.biased, k.qk_norm = QKVO * c.flag("attention_bias", False), AFTER_ROPE
    scaling = c.get("rope_parameters") or c.get("rope_scaling") or {}
    alpha = scaling.get("alpha") if isinstance(scaling, dict) else None
    if not alpha or scaling.get("rope_type", scaling.get("type")) != "dynamic":
        rotate(c, k)
        return k
    s = Config(scaling, f"{c.where}: rope_parameters")
    theta = s.number("rope_theta", c.number("rope_theta", 10000.0))
    # Alpha is all that counts.
    s.ignore("type", "rope_type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    theta *= s.number("alpha") ** (k.head_dim / (k.head_dim - 2))
    s.finish()
    k.rotate(*[rope_set(Config({"rope_theta": theta}), Shape(k.head_dim, k.context))] * k.n_layers)
    return k


def apertus(c: Config) -> Knobs:
    """Apertus: a plain feed-forward layer of xIELU, and q and k normalised head by head."""
    k = llama_block(
        c,
        acts={"xielu": XIELU},
        hidden_act="xielu",
        max_position_embeddings=65536,
        rms_norm_eps=1e-5,
    )
    llama3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    default_rope(c, rope_type="llama3", rope_theta=12e6, factor=8.0, **llama3)
    rotate(c, k, theta=12e6)
    k.biased = QKVO * c.flag("attention_bias", False)
    c.require(qk_norm=True, post_norm=False, mlp_bias=False)
    return k


def bitnet(c: Config) -> Knobs:
    """BitNet b1.58: norms before the last matrix of each branch, and a gate of squared ReLU."""
    k = llama_block(c, num_key_value_heads=5, hidden_act="relu2", rms_norm_eps=1e-5)
    rotate(c, k, theta=5e5)
    k.biased = biases(c)
    return k


# ---- Gemma ---------------------------------------------------------------------------------------


def _gemma(c: Config, **defaults) -> Knobs:
    """Norms multiply by 1 + w, and the embedding is scaled."""
    k = llama_block(
        c,
        **{
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            **defaults,
        },
    )
    c.require(use_bidirectional_attention=False)
    k.biased = QKVO * c.flag("attention_bias", False)
    k.norm_offset, k.emb_scale = 1.0, k.n_embd**0.5
    return k


def gemma(c: Config) -> Knobs:
    """Gemma 1, in which `gelu` means the tanh form."""
    k = _gemma(c, num_key_value_heads=16, hidden_act="gelu_pytorch_tanh")
    rotate(c, k)
    if c.get("hidden_act") == "gelu":
        k.act = ACTS["gelu_pytorch_tanh"]
    c.ignore("hidden_activation")  # later families read it, this one does not
    return k


def _gemma2(
    c: Config, window: int = 4096, softcaps=(50.0, 30.0), sliding=every(2), **defaults
) -> tuple[Knobs, list[str]]:
    """What Gemma 2 and its successors share; also the kinds of the layers."""
    c.ignore("hidden_act")  # these read hidden_activation
    k = _gemma(
        c,
        act="hidden_activation",
        hidden_activation="gelu_pytorch_tanh",
        num_key_value_heads=4,
        **defaults,
    )
    k.attn_scale = c.number("query_pre_attn_scalar", 256) ** -0.5
    for field, key, usual in zip(
        ("softcap", "final_softcap"),
        ("attn_logit_softcapping", "final_logit_softcapping"),
        softcaps,
    ):
        setattr(k, field, 0.0 if c.get(key, usual) is None else c.number(key, usual))
    kinds = layer_kinds(c, k.n_layers, sliding)
    k.window = windows(c, kinds, c.get("sliding_window", window))
    return k, kinds


def gemma2(c: Config) -> Knobs:
    """Gemma 2: norms before and after the branches, softcaps, a window in every other layer."""
    k, _ = _gemma2(c)
    rotate(c, k)
    return k


def gemma3(c: Config) -> Knobs:
    """Gemma 3 text: q and k normalised head by head, five layers with a window and a theta of their
    own to one without."""
    c.ignore("_sliding_window_pattern")  # which always comes with layer_types
    pattern = c.int("sliding_window_pattern", 6)
    k, kinds = _gemma2(
        c, softcaps=(None, None), sliding=every(pattern), max_position_embeddings=131072,
        vocab_size=262208, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26,
        num_attention_heads=8,
    )  # fmt: skip
    ropes = rope_by_type(c, Shape(k.head_dim, k.context, theta=1e6), sliding_theta=1e4)
    k.rotate(*[ropes[kind] for kind in kinds])
    return k


def gemma4(c: Config) -> Knobs:
    """Gemma 4 text: full layers have other heads and a rope of their own, the last layers read keys
    and values of earlier ones, and every token has an embedding for each layer, or experts that
    read the stream beside the network that all tokens pass."""
    if c.get("use_bidirectional_attention") == "vision":  # of images; text is causal
        c.ignore("use_bidirectional_attention")
        c.values = {**c.values, "use_bidirectional_attention": None}
    k = _gemma(c, act="hidden_activation", hidden_activation="gelu_pytorch_tanh",
               num_key_value_heads=4, max_position_embeddings=131072,
               vocab_size=262144)  # fmt: skip
    k.norm_offset, k.attn_scale = 0.0, 1.0
    k.final_softcap = (
        0.0 if c.get("final_logit_softcapping") is None else c.number("final_logit_softcapping")
    )
    kinds = layer_kinds(c, k.n_layers, every(6))
    kinds[-1] = FULL  # as the reference forces it to be
    k.window = windows(c, kinds, c.get("sliding_window", 512))
    key_is_value = [kind == FULL and c.flag("attention_k_eq_v", False) for kind in kinds]
    _gemma4_heads(c, k, kinds, any(key_is_value))
    default_rope(
        c,
        sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
    )
    shapes = {kind: Shape(k.head_dim[kinds.index(kind)], k.context, 1e6) for kind in kinds}
    ropes = {kind: rope_by_type(c, shape, 1e4)[kind] for kind, shape in shapes.items()}
    k.rotate(*[ropes[kind] for kind in kinds])

    first_shared = k.n_layers - c.int("num_kv_shared_layers", 0, least=0, most=k.n_layers - 1)
    source = [-1] * k.n_layers
    for i in range(first_shared, k.n_layers):
        if kinds[i] not in kinds[:first_shared]:
            raise ExportError(
                f"{c.where}: num_kv_shared_layers leaves no {kinds[i]} whose keys layer {i} could "
                "read"
            )
        source[i] = max(j for j in range(first_shared) if kinds[j] == kinds[i])
    if c.flag("use_double_wide_mlp", False):
        k.d_ff = [k.d_ff * (2 if s >= 0 else 1) for s in source]
    k.parts.append(SharedKeys([s >= 0 for s in source], source, key_is_value))
    width = c.int("hidden_size_per_layer_input", 256, least=0)
    if width:
        c.require(vocab_size_per_layer_input=k.vocab_size)
        k.parts.append(PerLayerEmbedding([True] * k.n_layers, width, k.vocab_size))
    else:
        c.ignore("vocab_size_per_layer_input")
        k.names = without(GEMMA4, "ple_table", "ple_in", "ple_in_norm")
    _gemma4_experts(c, k)
    return k


def _gemma4_experts(c: Config, k: Knobs) -> None:
    if not c.flag("enable_moe_block", False):
        c.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
        return
    k.names = {**(k.names or GEMMA4), **GEMMA4_EXPERTS}
    n = c.int("num_experts", most=4096)
    k.parts.append(Experts([True] * k.n_layers, n=n, top_k=c.int("top_k_experts", most=min(n, 64)),
                           d_ff=c.int("moe_intermediate_size"), norms=True))  # fmt: skip


def gemma4_unified(c: Config) -> Knobs:
    """Gemma 4 whose tokens have no embedding for each layer."""
    c.default(hidden_size_per_layer_input=0, sliding_window=1024, max_position_embeddings=262144)
    return gemma4(c)


def _gemma4_heads(c: Config, k: Knobs, kinds: list[str], own_kv_heads: bool) -> None:
    """head_dim and n_kv_heads of full layers, in both spellings."""
    given = c.get("per_layer_config")
    wide, kv = c.get("global_head_dim", 512), c.get("num_global_key_value_heads")
    if given is None:
        full = {"head_dim": wide, "num_key_value_heads": kv if own_kv_heads else None}
        given = {str(i): full for i, kind in enumerate(kinds) if kind == FULL}
    head_dim, n_kv_heads = [k.head_dim] * k.n_layers, [k.n_kv_heads] * k.n_layers
    for layer, values in given.items():
        own = Config(
            {key: v for key, v in values.items() if v is not None},
            f"{c.where}: per_layer_config.{layer}",
        )
        i = Config({"layer": int(layer)}, c.where).int("layer", least=0, most=k.n_layers - 1)
        head_dim[i], n_kv_heads[i] = (
            own.int("head_dim", k.head_dim),
            own.int("num_key_value_heads", k.n_kv_heads),
        )
        own.finish()
    k.head_dim, k.n_kv_heads = head_dim, n_kv_heads


GEMMA2 = {
    **LLAMA,
    **in_layer(
        "model.layers.N",
        attn_post_norm="post_attention_layernorm",
        ffn_norm="pre_feedforward_layernorm",
        ffn_post_norm="post_feedforward_layernorm",
    ),
}
GEMMA4 = {
    "embed": "model.embed_tokens",
    "ple_table": "model.embed_tokens_per_layer",
    "ple_in": "model.per_layer_model_projection",
    "ple_in_norm": "model.per_layer_projection_norm",
    **GEMMA2,
    **QK_NORM,
    **in_layer(
        "model.layers.N",
        attn_v_norm=None,
        ple_gate="per_layer_input_gate",
        ple_out="per_layer_projection",
        ple_norm="post_per_layer_input_norm",
        out_scale="layer_scalar",
    ),
}
GEMMA4_EXPERTS = in_layer(
    "model.layers.N", router="router.proj", expert_gate="experts.gate", expert_up="experts.up",
    expert_down="experts.down", expert_norm="pre_feedforward_layernorm_2",
    expert_post_norm="post_feedforward_layernorm_2", ffn_beside_norm="post_feedforward_layernorm_1",
)  # fmt: skip
