"""GGUF architectures with Mamba, gated DeltaNet or short convolution: metadata -> the config of the
family. What a function says of itself is a row of docs/export.md."""

from __future__ import annotations

import re

import numpy as np

from ..config import Config
from ..quantize.kept import pick_columns
from ..rope import FULL
from ..tensor import ExportError, Tensor, pick
from .gguf_decoders import granite_factors, latent
from .gguf_file import File
from .gguf_shared import (
    ATTENTION,
    SIGMOID,
    SOFTMAX,
    each_layer,
    has,
    has_bias,
    kv_heads,
    llama_block,
    norms_around_zero,
    sizes,
    some_experts,
    v3_router,
)

LINEAR = "linear_attention"


def _attends(g: Config, n_layers: int) -> list[bool]:
    """Which layers have attention: those with KV heads."""
    return [n > 0 for n in each_layer(g, "attention.head_count_kv", n_layers)]


def mamba(g: Config, file: File) -> dict:
    """Mamba, Falcon Mamba."""
    g.ignore("feed_forward_length", "attention.head_count")
    config = {**_alone(g, file), "model_type": "mamba"}
    config |= {
        "expand": g.int("ssm.inner_size") / config["hidden_size"],
        "time_step_rank": g.int("ssm.time_step_rank"),
    }
    if g.flag("ssm.dt_b_c_rms", False):
        config["model_type"] = "falcon_mamba"
    return config


def _alone(g: Config, file: File) -> dict:
    """The config of mixers alone."""
    g.values = {**g.values, "attention.head_count": 1}
    config = sizes(g, file)
    return {
        **{key: value for key, value in config.items() if key != "num_attention_heads"},
        "layer_norm_epsilon": g.number("attention.layer_norm_rms_epsilon"),
        "conv_kernel": g.int("ssm.conv_kernel", most=64),
        "state_size": g.int("ssm.state_size"),
        "use_conv_bias": has_bias(file, "ssm_conv1d"),
        "use_bias": has_bias(file, "ssm_in"),
    }


def mamba2(g: Config, file: File) -> dict:
    """Mamba-2, Codestral Mamba."""
    g.ignore("feed_forward_length", "attention.head_count")
    config, inner = _alone(g, file), g.int("ssm.inner_size")
    heads = g.int("ssm.time_step_rank")
    return {
        **config,
        "model_type": "mamba2",
        "expand": inner / config["hidden_size"],
        "num_heads": heads,
        "head_dim": inner // heads,
        "n_groups": g.int("ssm.group_count"),
    }


def _mamba2_sizes(g: Config, file: File) -> dict:
    """What hybrids call mamba_..."""
    inner, heads = g.int("ssm.inner_size"), g.int("ssm.time_step_rank")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": g.int("ssm.group_count"),
        "mamba_d_state": g.int("ssm.state_size"),
        "mamba_d_conv": g.int("ssm.conv_kernel", most=64),
        "mamba_expand": inner / g.int("embedding_length"),
    }


def jamba(g: Config, file: File) -> dict:
    """Jamba."""
    config = llama_block(g, file, experts=True)
    del config["rope_theta"], config["head_dim"]
    n = config["num_hidden_layers"]
    sparse = [has(file, "ffn_gate_inp.weight", layer=i) for i in range(n)]
    if file.shape_only and not any(sparse):
        sparse = [i % 2 == 1 for i in range(n)]
    return {
        **config,
        "model_type": "jamba",
        **_period("attn_layer", _attends(g, n), g),
        **(_period("expert_layer", sparse, g) if any(sparse) else {}),
        "num_experts": g.int("expert_count", 1) if any(sparse) else 1,
        "num_experts_per_tok": g.int("expert_used_count", 1),
        "mamba_d_conv": g.int("ssm.conv_kernel", most=64),
        "mamba_expand": g.int("ssm.inner_size") / config["hidden_size"],
        "mamba_d_state": g.int("ssm.state_size"),
        "mamba_dt_rank": g.int("ssm.time_step_rank"),
        "mamba_conv_bias": has_bias(file, "ssm_conv1d"),
        "mamba_proj_bias": has_bias(file, "ssm_in"),
    }


def _period(kind: str, layers: list[bool], g: Config) -> dict:
    """The period and the offset of these layers. Errors: ExportError if they have none."""
    at = [i for i, one in enumerate(layers) if one]
    period = at[1] - at[0] if at[1:] else len(layers)
    if not at or layers != [i % period == at[0] for i in range(len(layers))]:
        raise ExportError(
            f"{g.where}: the layers {at} are no {kind} of one period, which is not supported"
        )
    return {f"{kind}_period": period, f"{kind}_offset": at[0]}


def falcon_h1(g: Config, file: File) -> dict:
    """Falcon-H1. Its multipliers are in the weights already."""
    config = {**llama_block(g, file), **_mamba2_sizes(g, file)}
    return {
        **config,
        "model_type": "falcon_h1",
        "mamba_d_ssm": config["mamba_n_heads"] * config["mamba_d_head"],
        "mamba_rms_norm": has(file, "ssm_norm.weight"),
        "mamba_conv_bias": has_bias(file, "ssm_conv1d"),
        "mamba_proj_bias": has_bias(file, "ssm_in"),
        "attention_bias": has_bias(file, *ATTENTION),
    }


def granitehybrid(g: Config, file: File) -> dict:
    """Granite 4, and Bamba, which has no factors."""
    config = {**llama_block(g, file, experts=True), **_mamba2_sizes(g, file)}
    n = config["num_hidden_layers"]
    attends = _attends(g, n)
    del config["head_dim"]
    if g.get("attention.scale") is None:
        g.require(expert_count=0, expert_used_count=0)
        indices = [i for i, one in enumerate(attends) if one]
        # Rope turns whole heads, as the file has it.
        return {
            **config,
            "model_type": "bamba",
            "attn_layer_indices": indices,
            "partial_rotary_factor": 1.0,
        }
    n_experts = g.int("expert_count", 0, least=0)
    g.ignore("expert_used_count")  # 0 without experts
    g.require(expert_gating_func=SOFTMAX)
    roped = g.flag("rope.scaling.finetuned", False)
    return {
        **config,
        **granite_factors(g),
        "model_type": "granitemoehybrid",
        "layer_types": [FULL if one else LINEAR for one in attends],
        "shared_intermediate_size": g.int("expert_shared_feed_forward_length"),
        "num_local_experts": n_experts,
        "num_experts_per_tok": g.get("expert_used_count") if n_experts else 0,
        "position_embedding_type": "rope" if roped else "nope",
    }


def nemotron_h(g: Config, file: File) -> dict:
    """Nemotron-H, Nemotron Nano 2 and 3."""
    config = {**sizes(g, file), "model_type": "nemotron_h"}
    n, ahead = config["num_hidden_layers"], g.int("nextn_predict_layers", 0, least=0)
    widths = each_layer(g, "feed_forward_length", n + ahead)[:n]
    moe = g.get("expert_used_count", 0)
    g.ignore("rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned")  # it has none
    g.ignore("attention.layer_norm_rms_epsilon")  # layer_norm_epsilon again
    head_dim = g.int("attention.key_length")
    g.require(**{"attention.value_length": head_dim})
    kinds = [
        FULL if attends else LINEAR if not width else "moe" if moe else "mlp"
        for attends, width in zip(_attends(g, n + ahead), widths)
    ]
    inner, heads = g.int("ssm.inner_size"), g.int("ssm.time_step_rank")
    config |= {
        "layers_block_type": kinds,
        "num_key_value_heads": kv_heads(g, config["num_attention_heads"]),
        "head_dim": head_dim,
        "intermediate_size": max(widths) or 1,
        "layer_norm_epsilon": g.number("attention.layer_norm_epsilon"),
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": g.int("ssm.group_count"),
        "ssm_state_size": g.int("ssm.state_size"),
        "conv_kernel": g.int("ssm.conv_kernel", most=64),
    }
    if moe:
        router = v3_router(g)
        del router["first_k_dense_replace"]
        width = g.int("expert_shared_feed_forward_length")
        config |= {**router, "moe_shared_expert_intermediate_size": width}
    return config


# These names have one root, since layers that guess are compared with the text's.
SHARED = {
    f"ffn_{part}_shexp": f"backbone.layers.N.mixer.shared_experts.{part}_proj"
    for part in ("up", "down")
}


def apart(tensors: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """The layer that guesses as two, attention and experts, which llama.cpp keeps in one."""
    n, found = config["num_hidden_layers"], {}
    for name, tensor in tensors.items():
        experts = re.fullmatch(rf"blk\.{n}\.((ffn|exp)_.*|post_attention_norm.*)", name)
        part = experts and re.sub("^(ffn|post_attention)_norm", "attn_norm", experts[1])
        found[f"blk.{n + 1}.{part}" if part else name] = tensor
    return found


def _delta(g: Config, file: File, experts: bool) -> dict:
    """The config of gated DeltaNet with gated attention in every so many layers."""
    config = llama_block(g, file, partial=True, experts=experts)
    g.ignore("rope.dimension_sections")  # for text mRoPE is plain rope
    v_heads = g.int("ssm.time_step_rank")
    config |= {
        "full_attention_interval": g.int("full_attention_interval", 4),
        "linear_conv_kernel_dim": g.int("ssm.conv_kernel", most=64),
        "linear_key_head_dim": g.int("ssm.state_size"),
        "linear_num_key_heads": g.int("ssm.group_count"),
        "linear_num_value_heads": v_heads,
        "linear_value_head_dim": g.int("ssm.inner_size") // v_heads,
    }
    if experts:
        config |= {
            **some_experts(g, score=SOFTMAX),
            "moe_intermediate_size": g.int("expert_feed_forward_length"),
            "shared_expert_intermediate_size": g.int("expert_shared_feed_forward_length"),
        }
    return config


def qwen3next(g: Config, file: File) -> dict:
    """Qwen3-Next."""
    return {**_delta(g, file, True), "model_type": "qwen3_next"}


def qwen35(g: Config, file: File) -> dict:
    """Qwen 3.5 without experts."""
    return {**_delta(g, file, False), "model_type": "qwen3_5_text"}


def qwen35moe(g: Config, file: File) -> dict:
    """Qwen 3.5 with experts."""
    return {**_delta(g, file, True), "model_type": "qwen3_5_moe_text"}


def betas_and_decays(tensors: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """Qwen3-Next: beta and decay, which lie key head by key head, apart."""
    found, k_heads = dict(tensors), config["linear_num_key_heads"]
    for name in tensors:
        if name.endswith(".ssm_ba.weight"):
            both = found.pop(name)
            rows = np.arange(both.shape[0]).reshape(k_heads, 2, -1)
            for i, part in enumerate(("ssm_beta", "ssm_alpha")):
                found[name.replace("ssm_ba", part)] = pick(both, rows[:, i].reshape(-1))
    return found


def values_by_key(name: str, tensor: Tensor, config: dict) -> Tensor:
    """Qwen 3.5: the value heads of a key head side by side, where the file has the first of each
    key head, then the second; and norms around zero."""
    tensor = norms_around_zero(name, tensor, config)
    kind = name.split(".", 2)[-1]
    k_heads, v_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    v_dim = config["linear_value_head_dim"]
    width = {
        "attn_gate.weight": v_dim,
        "attn_qkv.weight": v_dim,
        "ssm_conv1d.weight": v_dim,
        "ssm_out.weight": v_dim,
        "ssm_alpha.weight": 1,
        "ssm_beta.weight": 1,
        "ssm_a": 1,
        "ssm_dt.bias": 1,
    }.get(kind)
    if not width or v_heads == k_heads:
        return tensor
    order = np.arange(v_heads * width).reshape(v_heads // k_heads, k_heads, width)
    order = order.swapaxes(0, 1).reshape(-1)
    if kind == "ssm_out.weight":
        return pick_columns(tensor, order)
    before = tensor.shape[0] - len(order)  # q and k
    return pick(tensor, np.concatenate([np.arange(before), before + order]))


def lfm2(g: Config, file: File) -> dict:
    """LFM 2."""
    config = _conv(g, file, llama_block(g, file))
    return {**config, "model_type": "lfm2", "block_auto_adjust_ff_dim": False}


def _conv(g: Config, file: File, config: dict) -> dict:
    attends = _attends(g, config["num_hidden_layers"])
    del config["head_dim"]
    eps = config.pop("rms_norm_eps")
    return {
        **config,
        "layer_types": [FULL if one else "conv" for one in attends],
        "norm_eps": eps,
        "conv_L_cache": g.int("shortconv.l_cache", most=64),
    }


def lfm2moe(g: Config, file: File) -> dict:
    """LFM 2 with experts."""
    return {
        **_conv(g, file, llama_block(g, file, experts=True)),
        **some_experts(g, score=SIGMOID),
        "model_type": "lfm2_moe",
        "moe_intermediate_size": g.int("expert_feed_forward_length"),
        "num_dense_layers": g.int("leading_dense_block_count", 0, least=0),
        "norm_topk_prob": True,
    }


def kimi_linear(g: Config, file: File) -> dict:
    """Kimi Linear."""
    config = latent(g, file)
    attends = _attends(g, config["num_hidden_layers"])
    router = v3_router(g)
    router["norm_topk_prob"] = g.flag("expert_weights_norm", True)
    router["num_local_experts"] = router.pop("n_routed_experts")
    return {
        **config,
        **router,
        "model_type": "kimi_linear",
        "layer_types": [FULL if one else LINEAR for one in attends],
        "linear_num_heads": config["num_attention_heads"],
        "linear_head_dim": g.int("kda.head_dim"),
        "linear_conv_kernel_dim": g.int("ssm.conv_kernel", most=64),
        "mla_use_nope": True,
    }
