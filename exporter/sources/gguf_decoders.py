"""GGUF architectures of decoders without experts: metadata -> the config of the family. What a
function says of itself is a row of docs/export.md."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..rope import FULL, SLIDING
from ..tensor import ExportError, Tensor, constant
from .gguf_file import File
from .gguf_shared import (
    ATTENTION,
    MLP,
    SOFTMAX,
    biases,
    has,
    has_bias,
    layer_types,
    layernorm_block,
    llama_block,
    own_rope,
    rope,
    shape,
    sizes,
    some_experts,
)


def llama(g: Config, file: File) -> dict:
    """Llama 1 to 3, Mistral and Mixtral."""
    g.ignore("tensor_data_layout")  # how q and k are permuted, which is always the same
    if g.get("expert_count", 0):
        config = llama_block(g, file, experts=True)
        return {**config, **some_experts(g, "num_local_experts", SOFTMAX), "model_type": "mixtral"}
    config = llama_block(g, file)
    window = g.get("attention.sliding_window", 0)
    if window:
        return {**config, "model_type": "mistral", "sliding_window": window}
    return {**config, **biases(file), "model_type": "llama"}


def mistral3(g: Config, file: File) -> dict:
    """Ministral 3, Mistral 3."""
    config = {**llama_block(g, file), "model_type": "ministral3", "sliding_window": None}
    scale, scaling = g.number("rope.scaling.yarn_log_multiplier", 1.0), config.pop("rope_scaling")
    config["rope_parameters"] = {
        **scaling,
        "rope_theta": config.pop("rope_theta"),
        "mscale": scale,
        "mscale_all_dim": scale,
        "llama_4_scaling_beta": g.number("attention.temperature_scale"),
    }
    return config


def arcee(g: Config, file: File) -> dict:
    """Arcee."""
    return {**llama_block(g, file), **biases(file), "model_type": "arcee"}


def smollm3(g: Config, file: File) -> dict:
    """SmolLM 3."""
    return {**llama_block(g, file), **biases(file), "model_type": "smollm3"}


def seed_oss(g: Config, file: File) -> dict:
    """Seed-OSS."""
    return {
        **llama_block(g, file),
        "model_type": "seed_oss",
        "mlp_bias": has_bias(file, *MLP),
        "attention_bias": has_bias(file, *ATTENTION[:3]),
        "attention_out_bias": has_bias(file, ATTENTION[3]),
    }


GRANITE = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def granite_factors(g: Config) -> dict:
    return {new: g.number(old, 1.0) for new, old in GRANITE.items()}


def minicpm(g: Config, file: File) -> dict:
    """MiniCPM 1 and 2."""
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        g.number(key)  # files from before these were written are refused
    config = granite(g, file)
    return {**config, "attention_multiplier": config["head_dim"] ** -0.5}


def exaone(g: Config, file: File) -> dict:
    """EXAONE 3 and 3.5."""
    eps = g.get("attention.layer_norm_epsilon")  # the model's, under one of two names
    if eps is not None:
        g.values = {**g.values, "attention.layer_norm_rms_epsilon": eps}
    return {**llama_block(g, file), **biases(file), "model_type": "llama"}


def granite(g: Config, file: File) -> dict:
    """Granite 3."""
    return {**llama_block(g, file), **biases(file), **granite_factors(g), "model_type": "granite"}


def qwen2(g: Config, file: File) -> dict:
    """Qwen 1.5 to 2.5."""
    return {**llama_block(g, file), "model_type": "qwen2"}


def qwen2vl(g: Config, file: File) -> dict:
    """Qwen 2 VL and 2.5 VL, for texts alone."""
    g.ignore("rope.dimension_sections")  # the axes of pictures, on all of which a text is alike
    return qwen2(g, file)


def qwen3vl(g: Config, file: File) -> dict:
    """Qwen 3 VL, for texts alone."""
    g.ignore("rope.dimension_sections", "n_deepstack_layers")
    return qwen3(g, file)


def qwen3(g: Config, file: File) -> dict:
    """Qwen 3."""
    bias = has_bias(file, *ATTENTION)
    return {**llama_block(g, file), "model_type": "qwen3", "attention_bias": bias}


def olmo(g: Config, file: File) -> dict:
    """OLMo 1."""
    clip = g.get("attention.clamp_kqv", 0) or None
    config = layernorm_block(g, file, "layer_norm_eps")
    config["layer_norm_eps"] = float(f"{config['layer_norm_eps']:.6g}")  # as float32 has it
    return {**config, "model_type": "olmo", "clip_qkv": clip}


def olmo2(g: Config, file: File) -> dict:
    """OLMo 2, and OLMo 3, which has windows."""
    config = {**llama_block(g, file), "attention_bias": has_bias(file, *ATTENTION)}
    if not g.get("attention.sliding_window", 0):
        return {**config, "model_type": "olmo2"}
    local = g.number("rope.freq_base_swa", config["rope_theta"])
    return {
        **config,
        **layer_types(g, config, 4),
        "rope_local_base_freq": local,
        "model_type": "olmo3",
    }


def gemma(g: Config, file: File) -> dict:
    """Gemma 1."""
    return {**llama_block(g, file), "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(g: Config, file: File, pattern: int, wide: int) -> dict:
    """The file does not say what scales the scores: n_embd / n_heads in the model of `wide` layers,
    else head_dim."""
    config = llama_block(g, file)
    of_heads = config["hidden_size"] / config["num_attention_heads"]
    config["query_pre_attn_scalar"] = (
        of_heads if config["num_hidden_layers"] == wide else config["head_dim"]
    )
    config["final_logit_softcapping"] = g.get("final_logit_softcapping")
    return {**config, **layer_types(g, config, pattern)}


def gemma2(g: Config, file: File) -> dict:
    """Gemma 2."""
    softcap = g.get("attn_logit_softcapping")
    return {**_gemma2(g, file, 2, 46), "model_type": "gemma2", "attn_logit_softcapping": softcap}


def gemma3(g: Config, file: File) -> dict:
    """Gemma 3."""
    local = g.number("rope.freq_base_swa", 10000.0)
    return {**_gemma2(g, file, 6, 62), "model_type": "gemma3_text", "rope_local_base_freq": local}


def gemma4(g: Config, file: File) -> dict:
    """Gemma 4."""
    n = g.int("block_count", most=4096)
    slides = g.list("attention.sliding_window_pattern") or []
    types = [SLIDING if slide else FULL for slide in slides]
    kv = g.get("attention.head_count_kv")
    kv = kv if isinstance(kv, list) else [kv] * n
    widths = g.get("feed_forward_length")
    widths = widths if isinstance(widths, list) else [widths] * n
    first_full = types.index(FULL)
    config = {
        "model_type": "gemma4_text",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": g.int("embedding_length"),
        "num_hidden_layers": n,
        "num_attention_heads": g.int("attention.head_count"),
        "num_key_value_heads": kv[types.index(SLIDING)],
        "head_dim": g.int("attention.key_length_swa"),
        "global_head_dim": g.int("attention.key_length"),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0],
        "max_position_embeddings": g.int("context_length"),
        "rms_norm_eps": g.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": True,
        "layer_types": types,
        "sliding_window": g.int("attention.sliding_window"),
        "num_kv_shared_layers": g.int("attention.shared_kv_layers", 0, least=0),
        "hidden_size_per_layer_input": g.int("embedding_length_per_layer_input", 0, least=0),
        "final_logit_softcapping": g.get("final_logit_softcapping"),
        "attention_k_eq_v": not has(file, "attn_v.weight", layer=first_full),
        "num_global_key_value_heads": kv[first_full],
    }
    config["vocab_size_per_layer_input"] = config["vocab_size"]
    g.require(**{"attention.value_length": config["global_head_dim"]})
    g.require(**{"attention.value_length_swa": config["head_dim"]})
    g.require(**{"rope.dimension_count": config["global_head_dim"]})
    g.require(**{"rope.dimension_count_swa": config["head_dim"]})
    factors = file.tensors.pop("rope_freqs.weight", None)
    share = 0.25 if factors is None or file.shape_only else float((factors.array() == 1).mean())
    config["rope_parameters"] = {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": g.number("rope.freq_base"),
            "partial_rotary_factor": share,
        },
        SLIDING: {"rope_type": "default", "rope_theta": g.number("rope.freq_base_swa")},
    }
    if g.get("expert_count", 0):
        config |= {
            "enable_moe_block": True,
            "num_experts": g.int("expert_count"),
            "top_k_experts": g.int("expert_used_count"),
            "moe_intermediate_size": g.int("expert_feed_forward_length"),
        }
    return config


def phi3(g: Config, file: File) -> dict:
    """Phi 3 and 4."""
    config = {**llama_block(g, file, partial=True), "model_type": "phi3"}
    config["original_max_position_embeddings"] = g.int("rope.scaling.original_context_length")
    config["sliding_window"] = g.get("attention.sliding_window", 0) or None
    factor = g.number("rope.scaling.attn_factor", 1.0)
    return {**config, **long_rope(file, factor)}


def long_rope(file: File, factor: float | None) -> dict:
    """LongRoPE, whose lists are tensors."""
    lists = [file.tensors.pop(f"rope_factors_{name}.weight", None) for name in ("short", "long")]
    if not all(lists):
        return {}
    short, long = (
        [1.0] * tensor.shape[0] if file.shape_only else tensor.array().tolist() for tensor in lists
    )
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    return {"rope_scaling": scaling | ({} if factor is None else {"attention_factor": factor})}


def phi2(g: Config, file: File) -> dict:
    """Phi 1 and 2."""
    return {**layernorm_block(g, file, "layer_norm_eps", partial=True), "model_type": "phi"}


def gptneox(g: Config, file: File) -> dict:
    """GPT-NeoX, Pythia."""
    config = {**layernorm_block(g, file, "layer_norm_eps", partial=True), "model_type": "gpt_neox"}
    config["attention_bias"] = has_bias(file, "attn_qkv", "attn_output")
    return config | {"use_parallel_residual": g.flag("use_parallel_residual", True)}


def stablelm(g: Config, file: File) -> dict:
    """StableLM."""
    config = {**layernorm_block(g, file, "layer_norm_eps", partial=True), "model_type": "stablelm"}
    config["use_parallel_residual"] = g.flag("use_parallel_residual", True)
    config["qk_layernorm"] = has(file, "attn_q_norm.weight")
    return config | {"use_qkv_bias": has_bias(file, *ATTENTION[:3])}


def starcoder2(g: Config, file: File) -> dict:
    """StarCoder 2."""
    config = {**layernorm_block(g, file, "norm_epsilon"), "model_type": "starcoder2"}
    return config | {"use_bias": has_bias(file, *ATTENTION, *MLP)}


def nemotron(g: Config, file: File) -> dict:
    """Nemotron 3 and 4, Minitron."""
    g.ignore("attention.layer_norm_rms_epsilon")  # the same again
    return {
        **layernorm_block(g, file, "norm_eps", partial=True),
        **biases(file),
        "model_type": "nemotron",
    }


def jais2(g: Config, file: File) -> dict:
    """Jais 2."""
    return {**layernorm_block(g, file, "layer_norm_eps"), **biases(file), "model_type": "jais2"}


def command_r(g: Config, file: File) -> dict:
    """Cohere's Command R, Aya 23."""
    return {
        **layernorm_block(g, file, "layer_norm_eps"),
        "model_type": "cohere",
        "logit_scale": g.number("logit_scale"),
        "use_qk_norm": has(file, "attn_q_norm.weight"),
        "attention_bias": has_bias(file, *ATTENTION),
    }


def cohere2(g: Config, file: File) -> dict:
    """Cohere's Command R7B, Command A."""
    config = layernorm_block(g, file, "layer_norm_eps")
    return {
        **config,
        **layer_types(g, config, 4),
        "model_type": "cohere2",
        "logit_scale": g.number("logit_scale"),
        "attention_bias": has_bias(file, *ATTENTION),
    }


def apertus(g: Config, file: File) -> dict:
    """Apertus."""
    _xielu(file)
    return {**own_rope(llama_block(g, file)), "model_type": "apertus"}


def _xielu(file: File) -> None:
    """The activation's parameters, which are metadata in the file, become tensors of the layers."""
    for key in ("alpha_p", "alpha_n", "beta", "eps"):
        values = Config(file.values, file.path).list(f"xielu.{key}")
        for i, value in enumerate(values or []):
            file.tensors[f"blk.{i}.xielu.{key}"] = constant(np.float32([value]))


def bitnet(g: Config, file: File) -> dict:
    """BitNet."""
    return {**llama_block(g, file), "model_type": "bitnet", "hidden_act": "silu"}


def exaone4(g: Config, file: File) -> dict:
    """EXAONE 4."""
    config = llama_block(g, file)
    return {**config, **layer_types(g, config, 4), "model_type": "exaone4"}


def glm4(g: Config, file: File) -> dict:
    """GLM-4-0414."""
    config = llama_block(g, file, partial=True)
    return {**config, "model_type": "glm4", "attention_bias": has_bias(file, *ATTENTION[:3])}


def chatglm(g: Config, file: File) -> dict:
    """GLM 4 9B."""
    return {**glm4(g, file), "model_type": "glm"}


def hunyuan_dense(g: Config, file: File) -> dict:
    """Hunyuan 1 without experts."""
    return {**llama_block(g, file), "model_type": "hunyuan_v1_dense"}


def ernie4_5(g: Config, file: File) -> dict:
    """Ernie 4.5 without experts."""
    return {
        **llama_block(g, file),
        "model_type": "ernie4_5",
        "use_bias": has_bias(file, *ATTENTION, *MLP),
    }


def minicpm3(g: Config, file: File) -> dict:
    """MiniCPM 3."""
    config = {**latent(g, file), "model_type": "minicpm3"}
    return {**config, **long_rope(file, None)}


def latent(g: Config, file: File) -> dict:
    """The config of latent attention."""
    rotary = g.int("rope.dimension_count")
    key = g.int("attention.key_length_mla", g.int("attention.key_length"))
    n_heads = g.int("attention.head_count")
    value = g.get("attention.value_length_mla", g.int("embedding_length") // n_heads)
    g.ignore("attention.value_length", "attention.head_count_kv")
    return {
        **sizes(g, file),
        **rope(g),
        "rms_norm_eps": g.number("attention.layer_norm_rms_epsilon"),
        "intermediate_size": g.int("feed_forward_length"),
        "q_lora_rank": g.get("attention.q_lora_rank"),
        "kv_lora_rank": g.int("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": value,
    }


GPT_KEYS = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "tie_word_embeddings": "tie_word_embeddings",
}


def _gpt(g: Config, file: File, kv: int | None = None) -> dict:
    """The config that GPT-2 and its kin share. kv: how many KV heads there may be, if not as many
    as heads."""
    config = shape(g, file)
    n = config["num_attention_heads"]
    if config["num_key_value_heads"] not in (n, kv):
        raise ExportError(f"{g.where}: attention.head_count_kv is not attention.head_count")
    eps = g.number("attention.layer_norm_epsilon")
    return {
        **{new: config[old] for new, old in GPT_KEYS.items()},
        "layer_norm_epsilon": eps,
    }


def gpt2(g: Config, file: File) -> dict:
    """GPT-2."""
    return {**_gpt(g, file), "model_type": "gpt2"}


def starcoder(g: Config, file: File) -> dict:
    """SantaCoder, StarCoder 1."""
    return {
        **_gpt(g, file, kv=1),
        "model_type": "gpt_bigcode",
        "multi_query": g.get("attention.head_count_kv") == 1,
    }


def bloom(g: Config, file: File) -> dict:
    """BLOOM."""
    return {**_gpt(g, file), "model_type": "bloom"}


def mpt(g: Config, file: File) -> dict:
    """MPT."""
    config = shape(g, file)
    g.require(**{"attention.max_alibi_bias": 8.0})
    clip = g.get("attention.clamp_kqv", 0) or None
    eps = g.number("attention.layer_norm_epsilon")
    return {
        "model_type": "mpt",
        "vocab_size": config["vocab_size"],
        "d_model": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "max_seq_len": config["max_position_embeddings"],
        "expansion_ratio": config["intermediate_size"] / config["hidden_size"],
        "tie_word_embeddings": config["tie_word_embeddings"],
        "layer_norm_epsilon": eps,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": clip},
    }


def falcon(g: Config, file: File) -> dict:
    """Falcon."""
    g.require(tensor_data_layout="jploski")
    new = has(file, "attn_norm_2.weight")
    config = shape(g, file)
    kv, width = config.pop("num_key_value_heads"), config.pop("intermediate_size")
    del config["head_dim"]
    if not new and kv != 1:
        raise ExportError(f"{g.where}: attention.head_count_kv is {kv}, expected 1")
    return {
        **config,
        **rope(g),
        "model_type": "falcon",
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "new_decoder_architecture": new,
        **({"num_kv_heads": kv} if new else {}),
        "ffn_hidden_size": width,
        "layer_norm_epsilon": g.number("attention.layer_norm_epsilon"),
        "bias": has_bias(file, "attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    }


def second_norm_first(tensors: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """Falcon 40B: attn_norm_2 is the norm of attention, attn_norm of the network beside it."""
    if not config["new_decoder_architecture"]:
        return tensors
    other = {"attn_norm_2": "attn_norm", "attn_norm": "ffn_norm"}
    return {
        ".".join(other.get(part, part) for part in name.split(".")): tensor
        for name, tensor in tensors.items()
    }
