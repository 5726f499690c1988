"""GGUF architectures of decoders with experts: metadata -> the config of the family. What a function
says of itself is a row of docs/export.md."""

from __future__ import annotations

from ..config import Config
from ..tensor import Tensor, stack
from .gguf_decoders import granite_factors, latent, long_rope
from .gguf_file import File
from .gguf_shared import (
    ATTENTION,
    SIGMOID,
    SOFTMAX,
    has,
    has_bias,
    layer_types,
    layernorm_block,
    llama_block,
    own_rope,
    some_experts,
    v3_router,
)


def _block(g: Config, file: File, score: int = SOFTMAX, **more) -> dict:
    """Llama's block with experts of a width of their own."""
    return {
        **llama_block(g, file, experts=True, **more),
        **some_experts(g, score=score),
        "moe_intermediate_size": g.int("expert_feed_forward_length"),
        "attention_bias": has_bias(file, *ATTENTION),
    }


def llama4(g: Config, file: File) -> dict:
    """Llama 4. 128 experts stand for Maverick, whose q and k have no norms."""
    config = llama_block(g, file, experts=True)
    return {
        **own_rope(config),
        **some_experts(g, "num_local_experts"),
        "model_type": "llama4_text",
        "intermediate_size_mlp": config["intermediate_size"],
        "intermediate_size": g.int("expert_feed_forward_length"),
        "interleave_moe_layer_step": g.int("interleave_moe_layer_step", 1),
        "use_qk_norm": g.get("expert_count") != 128,
        "attention_bias": has_bias(file, *ATTENTION),
    }


def granitemoe(g: Config, file: File) -> dict:
    """Granite 3 with experts, Granite 4 previews."""
    config = {
        **llama_block(g, file, experts=True),
        **granite_factors(g),
        **some_experts(g, "num_local_experts", SOFTMAX),
        "attention_bias": has_bias(file, *ATTENTION),
    }
    shared = g.int("expert_shared_feed_forward_length", 0, least=0)
    if not shared:
        return {**config, "model_type": "granitemoe"}
    return {**config, "model_type": "granitemoeshared", "shared_intermediate_size": shared}


def qwen2moe(g: Config, file: File) -> dict:
    """Qwen 1.5 and 2 MoE."""
    config = _block(g, file)
    del config["attention_bias"]
    shared = g.int("expert_shared_feed_forward_length", g.int("feed_forward_length"))
    return {
        **config,
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": shared,
        "qkv_bias": has_bias(file, *ATTENTION[:3]),
    }


def qwen3moe(g: Config, file: File) -> dict:
    """Qwen 3 MoE. The weights of the experts chosen always add up to 1 in llama.cpp."""
    return {**_block(g, file), "model_type": "qwen3_moe", "norm_topk_prob": True}


def qwen3vlmoe(g: Config, file: File) -> dict:
    """Qwen 3 VL MoE, for texts alone."""
    g.ignore("rope.dimension_sections", "n_deepstack_layers")
    return qwen3moe(g, file)


PHI_MOE_SCALE = 1.243163121016122


def phimoe(g: Config, file: File) -> dict:
    """Phi-3.5-MoE. What multiplies q and k with LongRoPE, which the file says wrongly, is that model's."""
    config = llama_block(g, file, partial=True, experts=True)
    config["original_max_position_embeddings"] = g.int("rope.scaling.original_context_length")
    g.ignore("rope.scaling.attn_factor")
    longer = long_rope(file, None)
    for scaling in longer.values():
        scaling |= {"short_mscale": PHI_MOE_SCALE, "long_mscale": PHI_MOE_SCALE}
    return {
        **config,
        **longer,
        **some_experts(g, "num_local_experts"),
        "model_type": "phimoe",
        "sliding_window": g.get("attention.sliding_window", 0) or None,
        "attention_bias": has_bias(file, *ATTENTION),
        "lm_head_bias": "output.bias" in file.tensors,
    }


def mellum(g: Config, file: File) -> dict:
    """Mellum 2."""
    config = _block(g, file)
    local = g.number("rope.freq_base_swa", config["rope_theta"])
    return {
        **config,
        **layer_types(g, config, 4),
        "model_type": "mellum",
        "norm_topk_prob": True,
        "rope_local_base_freq": local,
    }


def olmoe(g: Config, file: File) -> dict:
    """OLMoE."""
    return {
        **llama_block(g, file, experts=True),
        **some_experts(g, score=SOFTMAX),
        "model_type": "olmoe",
        "attention_bias": has_bias(file, *ATTENTION),
    }


def cohere2moe(g: Config, file: File) -> dict:
    """Cohere's Command R7B with experts."""
    config = layernorm_block(g, file, "layer_norm_eps", experts=True)
    dense = g.int("leading_dense_block_count", 0, least=0)
    width, n = g.int("expert_feed_forward_length"), config["num_hidden_layers"]
    shared = g.int("expert_shared_count", 0, least=0)
    g.require(expert_shared_feed_forward_length=shared * width or None)
    scores = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}
    score = g.get("expert_gating_func", SOFTMAX)
    if score not in scores:
        g.require(expert_gating_func=SOFTMAX)
    return {
        **config,
        **layer_types(g, config, 4),
        **some_experts(g),
        "model_type": "cohere2_moe",
        "logit_scale": g.number("logit_scale"),
        "attention_bias": has_bias(file, *ATTENTION),
        "prefix_dense_intermediate_size": config["intermediate_size"],
        "intermediate_size": width,
        "num_shared_experts": shared,
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (n - dense),
        "expert_selection_fn": scores[score],
        "norm_topk_prob": g.flag("expert_weights_norm", False),
    }


def dbrx(g: Config, file: File) -> dict:
    """DBRX."""
    config = layernorm_block(g, file, "layer_norm_eps", experts=True)
    clip = g.get("attention.clamp_kqv", 0) or None
    return {
        "model_type": "dbrx",
        "vocab_size": config["vocab_size"],
        "d_model": config["hidden_size"],
        "n_heads": config["num_attention_heads"],
        "n_layers": config["num_hidden_layers"],
        "max_seq_len": config["max_position_embeddings"],
        "attn_config": {
            "kv_n_heads": config["num_key_value_heads"],
            "clip_qkv": clip,
            "rope_theta": config["rope_theta"],
        },
        "ffn_config": {
            "ffn_hidden_size": config["intermediate_size"],
            "moe_num_experts": g.int("expert_count"),
            "moe_top_k": g.int("expert_used_count"),
        },
    }


def glm4moe(g: Config, file: File) -> dict:
    """GLM 4.5 and 4.6, Solar Open."""
    return {
        **llama_block(g, file, partial=True, experts=True),
        **v3_router(g),
        "model_type": "glm4_moe",
        "attention_bias": has_bias(file, *ATTENTION[:3]),
        "use_qk_norm": has(file, "attn_q_norm.weight"),
    }


def dots1(g: Config, file: File) -> dict:
    """dots.llm1."""
    config = llama_block(g, file, experts=True)
    return {
        **config,
        **v3_router(g),
        "model_type": "dots1",
        "attention_bias": has_bias(file, *ATTENTION),
        "sliding_window": None,
    }


def exaone_moe(g: Config, file: File) -> dict:
    """K-EXAONE."""
    config = llama_block(g, file, experts=True)
    router = v3_router(g)
    shared, n = router.pop("n_shared_experts"), router.pop("n_routed_experts")
    g.require(expert_shared_feed_forward_length=shared * router["moe_intermediate_size"])
    return {
        **config,
        **router,
        **layer_types(g, config, 4),
        "model_type": "exaone_moe",
        "num_experts": n,
        "num_shared_experts": shared,
    }


def hunyuan_moe(g: Config, file: File) -> dict:
    """Hunyuan 1 with experts."""
    config = llama_block(g, file, experts=True)
    width = config["intermediate_size"]
    g.require(expert_feed_forward_length=width, expert_shared_feed_forward_length=width)
    g.require(expert_shared_count=1, expert_gating_func=SOFTMAX)
    return {
        **config,
        "model_type": "hunyuan_v1_moe",
        "num_experts": g.int("expert_count"),
        "moe_topk": g.int("expert_used_count"),
    }


def ernie4_5_moe(g: Config, file: File) -> dict:
    """Ernie 4.5 with experts."""
    config = llama_block(g, file, experts=True)
    width, shared = g.int("expert_feed_forward_length"), g.int("expert_shared_count", 0, least=0)
    g.require(expert_shared_feed_forward_length=shared * width, expert_gating_func=SOFTMAX)
    return {
        **config,
        "model_type": "ernie4_5_moe",
        "moe_num_experts": g.int("expert_count"),
        "moe_k": g.int("expert_used_count"),
        "moe_intermediate_size": width,
        "moe_num_shared_experts": shared,
        "moe_layer_interval": g.int("interleave_moe_layer_step", 1),
        "moe_layer_start_index": g.int("leading_dense_block_count", 0, least=0),
        "use_bias": has_bias(file, *ATTENTION),
    }


def gpt_oss(g: Config, file: File) -> dict:
    """gpt-oss. YaRN's `truncate`, which the file does not say, is false, as in the models."""
    config = llama_block(g, file, experts=True)
    g.require(expert_feed_forward_length=config["intermediate_size"])
    if "rope_scaling" in config:
        config["rope_scaling"]["truncate"] = False
    return {
        **own_rope(config),
        **some_experts(g, "num_local_experts"),
        **layer_types(g, config, 2),
        "model_type": "gpt_oss",
        "attention_bias": has_bias(file, *ATTENTION),
    }


def minimax_m2(g: Config, file: File) -> dict:
    """MiniMax M2."""
    config = llama_block(g, file, partial=True, experts=True)
    g.require(expert_feed_forward_length=config["intermediate_size"])
    return {
        **config,
        **some_experts(g, "num_local_experts", SIGMOID),
        "model_type": "minimax_m2",
    }


def afmoe(g: Config, file: File) -> dict:
    """Trinity."""
    config = _block(g, file, SIGMOID)
    return {
        **config,
        **layer_types(g, config, 4),
        "model_type": "afmoe",
        "mup_enabled": True,
        "num_dense_layers": g.int("leading_dense_block_count", 0, least=0),
        "num_shared_experts": g.int("expert_shared_count", 0, least=0),
        "route_norm": g.flag("expert_weights_norm", True),
        "route_scale": g.number("expert_weights_scale", 1.0),
    }


def deepseek2(g: Config, file: File) -> dict:
    """DeepSeek V2 and V3, GLM 4.7 Flash, Youtu."""
    config = latent(g, file)
    multiplier = g.get("rope.scaling.yarn_log_multiplier", 0)
    if multiplier and "rope_scaling" in config:
        # A tenth of it in the file.
        config["rope_scaling"] |= dict.fromkeys(("mscale", "mscale_all_dim"), 10 * multiplier)
    if not g.get("expert_count", 0):
        g.ignore("leading_dense_block_count", "expert_feed_forward_length", "expert_shared_count")
        return {**config, "model_type": "youtu"}
    if g.get("expert_gating_func", SOFTMAX) == SIGMOID:
        return {**config, **v3_router(g), "model_type": "deepseek_v3"}
    g.require(expert_gating_func=SOFTMAX)
    g.require(expert_weights_norm=False)  # which transformers never does
    groups = g.int("expert_group_count", 1)
    return {
        **config,
        **some_experts(g, "n_routed_experts"),
        "model_type": "deepseek_v2",
        "moe_intermediate_size": g.int("expert_feed_forward_length"),
        "n_shared_experts": g.int("expert_shared_count", 0, least=0),
        "first_k_dense_replace": g.int("leading_dense_block_count", 0, least=0),
        "routed_scaling_factor": g.number("expert_weights_scale", 1.0),
        "topk_method": "greedy" if groups == 1 else "group_limited_greedy",
        "n_group": groups,
        "topk_group": g.int("expert_group_used_count", 1),
    }


def scaled_experts(tensors: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """Gemma 4: gate and up of experts as one matrix, and factors of what experts give."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("ffn_gate_up_exps.weight"):
            half = tensor.shape[1] // 2
            both = tensor.matrices()
            for part, begin in (("gate", 0), ("up", half)):
                matrices = [m.slice(begin, begin + half) for m in both]
                found[name.replace("gate_up", part)] = stack(matrices)
        elif name.endswith("ffn_down_exps.scale"):
            pass
        elif name.endswith("ffn_down_exps.weight"):
            scale = tensors.get(name.replace(".weight", ".scale"))
            found[name] = tensor if scale is None else times_each(tensor, scale)
        else:
            found[name] = tensor
    return found


def times_each(tensor: Tensor, scale: Tensor) -> Tensor:
    """Experts' matrices times a factor each; as they are where all are 1."""
    factors = scale.array()
    if (factors == 1).all():
        return tensor
    return tensor.map(lambda w: w * factors[:, None, None])
