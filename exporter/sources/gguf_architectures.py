"""GGUF architectures: their metadata become a config.json, and what llama.cpp's converter did to
the tensors is undone.

To add an architecture of a family that families/ knows: a function from the metadata to the config,
what the converter did to the tensors, and a row in ARCHITECTURES."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..config import Config
from ..families.common import every
from ..rope import FULL, SLIDING
from ..tensor import ExportError, Tensor, pick
from .gguf_file import File


def _shape(g: Config, file: File, partial: bool = False, experts: bool = False) -> dict:
    """The config that all of Llama's kind share. `partial`: rope may rotate a part of each head;
    `experts`: there are some."""
    n_embd, n_heads = g.int("embedding_length"), g.int("attention.head_count")
    head_dim = g.int("attention.key_length", n_embd // n_heads)
    g.require(**{"attention.value_length": head_dim, "attention.causal": True})
    n_rot = g.int("rope.dimension_count", head_dim)
    if not partial:
        g.require(**{"rope.dimension_count": head_dim})
    if "token_embd.weight" not in file.tensors:
        raise ExportError(f"{file.path} lacks the tensor token_embd.weight")
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    g.require(vocab_size=vocab_size)
    if experts:
        g.require(expert_gating_func=1)  # softmax
    else:
        g.require(expert_count=0, expert_used_count=0)
    share = (
        {"partial_rotary_factor": 1.0 if n_rot == head_dim else (n_rot + 0.5) / head_dim}
        if partial
        else {}
    )
    return share | {
        "vocab_size": vocab_size,
        "hidden_size": n_embd,
        "num_hidden_layers": g.int("block_count", most=4096),
        "num_attention_heads": n_heads,
        "num_key_value_heads": g.int("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "intermediate_size": g.int("feed_forward_length"),
        "max_position_embeddings": g.int("context_length"),
        "tie_word_embeddings": _tied(file),
    }


def _tied(file: File) -> bool:
    """Whether the output is the embedding: it is absent, or a copy, which some converters write. A
    shape cannot tell a copy."""
    embed, output = file.tensors["token_embd.weight"], file.tensors.get("output.weight")
    if output is None or embed.shape != output.shape or file.shape_only:
        return output is None
    a, b, n = embed.load(), output.load(), embed.shape[0]
    return all(
        np.array_equal(a(i, min(i + 256, n)), b(i, min(i + 256, n))) for i in range(0, n, 256)
    )


def _rope(g: Config) -> dict:
    """The base and the scaling of rope. A factor without a type is linear, as llama.cpp has it."""
    config: dict[str, object] = {"rope_theta": g.number("rope.freq_base", 10000.0)}
    kind = g.get("rope.scaling.type", "linear")
    factor = g.get("rope.scaling.factor", g.get("rope.scale_linear", 0))
    original = g.get("rope.scaling.original_context_length")
    g.ignore("rope.scaling.finetuned")
    if kind != "none" and (factor not in (0, 1) or kind != "linear"):
        config["rope_scaling"] = {"rope_type": kind, "factor": factor}
        if kind != "linear" and original:
            config["rope_scaling"]["original_max_position_embeddings"] = original
    return config


ATTENTION, MLP = ("attn_q", "attn_k", "attn_v", "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")


def _has_bias(file: File, *names: str) -> bool:
    return any(f"blk.0.{name}.bias" in file.tensors for name in names)


def _biases(file: File) -> dict:
    return {"attention_bias": _has_bias(file, *ATTENTION), "mlp_bias": _has_bias(file, *MLP)}


def _llama_block(g: Config, file: File, **more) -> dict:
    return {
        **_shape(g, file, **more),
        **_rope(g),
        "rms_norm_eps": g.number("attention.layer_norm_rms_epsilon"),
    }


def _layernorm_block(g: Config, file: File, eps: str, **more) -> dict:
    return {**_shape(g, file, **more), **_rope(g), eps: g.number("attention.layer_norm_epsilon")}


def _layer_types(g: Config, config: dict, usual: int) -> dict:
    """Which layers have a window: all but every n-th, or as a list says. Without a window, none."""
    n_layers, window = config["num_hidden_layers"], g.get("attention.sliding_window", 0)
    pattern = g.get("attention.sliding_window_pattern", usual)
    slides = (
        [bool(x) for x in pattern]
        if isinstance(pattern, list)
        else [every(pattern)(i) for i in range(n_layers)]
    )
    types = [SLIDING if window and sliding else FULL for sliding in slides]
    return {"layer_types": types, "sliding_window": window or None}


def llama(g: Config, file: File) -> dict:
    """Llama, and Mistral and Mixtral, which are Llama to llama.cpp; only a window or experts tell
    them apart."""
    g.ignore("tensor_data_layout")  # how q and k are permuted, which is always the same
    if g.get("expert_count", 0):
        config = _llama_block(g, file, experts=True)
        return {**config, **_n_experts(g, "num_local_experts"), "model_type": "mixtral"}
    config = _llama_block(g, file)
    window = g.get("attention.sliding_window", 0)
    if window:
        return {**config, "model_type": "mistral", "sliding_window": window}
    return {**config, **_biases(file), "model_type": "llama"}


def arcee(g: Config, file: File) -> dict:
    return {**_llama_block(g, file), **_biases(file), "model_type": "arcee"}


def smollm3(g: Config, file: File) -> dict:
    return {**_llama_block(g, file), **_biases(file), "model_type": "smollm3"}


def seed_oss(g: Config, file: File) -> dict:
    config = {**_llama_block(g, file), **_biases(file), "model_type": "seed_oss"}
    return config | {
        "attention_bias": _has_bias(file, *ATTENTION[:3]),
        "attention_out_bias": _has_bias(file, ATTENTION[3]),
    }


def _granite(g: Config) -> dict:
    keys = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {new: g.number(old, 1.0) for new, old in keys.items()}


def granite(g: Config, file: File) -> dict:
    return {**_llama_block(g, file), **_biases(file), **_granite(g), "model_type": "granite"}


def granitemoe(g: Config, file: File) -> dict:
    """Granite 3 with experts, without one for all tokens."""
    config = {
        **_llama_block(g, file, experts=True),
        **_granite(g),
        **_n_experts(g, "num_local_experts"),
    }
    g.require(expert_shared_feed_forward_length=0)
    return {**config, "attention_bias": _has_bias(file, *ATTENTION), "model_type": "granitemoe"}


def qwen2(g: Config, file: File) -> dict:
    return {**_llama_block(g, file), "model_type": "qwen2"}


def qwen3(g: Config, file: File) -> dict:
    return {
        **_llama_block(g, file),
        "model_type": "qwen3",
        "attention_bias": _has_bias(file, *ATTENTION),
    }


def _n_experts(g: Config, key: str) -> dict:
    return {key: g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count")}


def _qwen_moe(g: Config, file: File) -> dict:
    config = {**_llama_block(g, file, experts=True), **_n_experts(g, "num_experts")}
    return {**config, "moe_intermediate_size": g.int("expert_feed_forward_length")}


def qwen2moe(g: Config, file: File) -> dict:
    shared = g.int("expert_shared_feed_forward_length", g.int("feed_forward_length"))
    bias = _has_bias(file, *ATTENTION[:3])
    return {
        **_qwen_moe(g, file),
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": shared,
        "qkv_bias": bias,
    }


def qwen3moe(g: Config, file: File) -> dict:
    """The weights of the experts chosen always add up to 1 in llama.cpp."""
    bias = _has_bias(file, *ATTENTION)
    return {
        **_qwen_moe(g, file),
        "model_type": "qwen3_moe",
        "norm_topk_prob": True,
        "attention_bias": bias,
    }


def olmoe(g: Config, file: File) -> dict:
    config = {
        **_llama_block(g, file, experts=True),
        **_n_experts(g, "num_experts"),
        "model_type": "olmoe",
    }
    return {**config, "attention_bias": _has_bias(file, *ATTENTION)}


def olmo2(g: Config, file: File) -> dict:
    """OLMo 2, and OLMo 3, which has windows."""
    config = {**_llama_block(g, file), "attention_bias": _has_bias(file, *ATTENTION)}
    if not g.get("attention.sliding_window", 0):
        return {**config, "model_type": "olmo2"}
    local = g.number("rope.freq_base_swa", config["rope_theta"])
    return {
        **config,
        **_layer_types(g, config, 4),
        "rope_local_base_freq": local,
        "model_type": "olmo3",
    }


def gemma(g: Config, file: File) -> dict:
    return {**_llama_block(g, file), "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(g: Config, file: File, pattern: int, wide: int) -> dict:
    """The file does not say what scales the scores: n_embd / n_heads in the model of `wide` layers,
    else head_dim."""
    config = _llama_block(g, file)
    of_heads = config["hidden_size"] / config["num_attention_heads"]
    config["query_pre_attn_scalar"] = (
        of_heads if config["num_hidden_layers"] == wide else config["head_dim"]
    )
    config["final_logit_softcapping"] = g.get("final_logit_softcapping")
    return {**config, **_layer_types(g, config, pattern)}


def gemma2(g: Config, file: File) -> dict:
    softcap = g.get("attn_logit_softcapping")
    return {**_gemma2(g, file, 2, 46), "model_type": "gemma2", "attn_logit_softcapping": softcap}


def gemma3(g: Config, file: File) -> dict:
    local = g.number("rope.freq_base_swa", 10000.0)
    return {**_gemma2(g, file, 6, 62), "model_type": "gemma3_text", "rope_local_base_freq": local}


def phi3(g: Config, file: File) -> dict:
    """Phi 3 and 4; the lists of LongRoPE are tensors."""
    config = {**_llama_block(g, file, partial=True), "model_type": "phi3"}
    config["original_max_position_embeddings"] = g.int("rope.scaling.original_context_length")
    config["sliding_window"] = g.get("attention.sliding_window", 0) or None
    lists = [file.tensors.pop(f"rope_factors_{name}.weight", None) for name in ("short", "long")]
    factor = g.number("rope.scaling.attn_factor", 1.0)
    if all(lists):
        short, long = (
            [1.0] * tensor.shape[0] if file.shape_only else tensor.array().tolist()
            for tensor in lists
        )
        config["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": short,
            "long_factor": long,
            "attention_factor": factor,
        }
    return config


def phi2(g: Config, file: File) -> dict:
    return {**_layernorm_block(g, file, "layer_norm_eps", partial=True), "model_type": "phi"}


def gptneox(g: Config, file: File) -> dict:
    config = {**_layernorm_block(g, file, "layer_norm_eps", partial=True), "model_type": "gpt_neox"}
    config["attention_bias"] = _has_bias(file, "attn_qkv", "attn_output")
    return config | {"use_parallel_residual": g.flag("use_parallel_residual", True)}


def stablelm(g: Config, file: File) -> dict:
    config = {**_layernorm_block(g, file, "layer_norm_eps", partial=True), "model_type": "stablelm"}
    config["use_parallel_residual"] = g.flag("use_parallel_residual", True)
    config["qk_layernorm"] = "blk.0.attn_q_norm.weight" in file.tensors
    return config | {"use_qkv_bias": _has_bias(file, *ATTENTION[:3])}


def starcoder2(g: Config, file: File) -> dict:
    config = {**_layernorm_block(g, file, "norm_epsilon"), "model_type": "starcoder2"}
    return config | {"use_bias": _has_bias(file, *ATTENTION, *MLP)}


def gpt2(g: Config, file: File) -> dict:
    shape = _shape(g, file)
    if shape["num_key_value_heads"] != shape["num_attention_heads"]:
        raise ExportError(f"{g.where}: attention.head_count_kv is not attention.head_count")
    names = {
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "tie_word_embeddings": "tie_word_embeddings",
    }
    eps = g.number("attention.layer_norm_epsilon")
    return {
        **{new: shape[old] for new, old in names.items()},
        "model_type": "gpt2",
        "layer_norm_epsilon": eps,
    }


def falcon(g: Config, file: File) -> dict:
    """Falcon 7B. The order of q, k and v is the same in all layouts if there is one KV head."""
    g.require(**{"attention.head_count_kv": 1, "tensor_data_layout": "jploski"})
    config = {
        **_shape(g, file),
        **_rope(g),
        "model_type": "falcon",
        "multi_query": True,
        "parallel_attn": True,
    }
    config |= {"layer_norm_epsilon": g.number("attention.layer_norm_epsilon"), "alibi": False}
    config["ffn_hidden_size"] = config.pop("intermediate_size")
    config["bias"] = _has_bias(file, "attn_qkv", "attn_output", "ffn_up", "ffn_down")
    return {
        key: value
        for key, value in config.items()
        if key not in ("head_dim", "num_key_value_heads")
    }


def _as_stored(name: str, tensor: Tensor, config: dict) -> Tensor:
    return tensor


def _half_split_rope(name: str, tensor: Tensor, config: dict) -> Tensor:
    """Rope pairs (2 i, 2 i + 1) of a head back to (i, i + head_dim / 2), in q and k and their
    biases."""
    if not name.endswith((".attn_q", ".attn_k")):
        return tensor
    rows = np.arange(tensor.shape[0]).reshape(-1, config["head_dim"] // 2, 2)
    return pick(tensor, rows.swapaxes(1, 2).reshape(-1))


def _norms_around_zero(name: str, tensor: Tensor, config: dict) -> Tensor:
    """The norms of Gemma hold 1 + w."""
    return tensor.map(lambda w: w - np.float32(1)) if name.endswith("norm") else tensor


def _grouped_heads(name: str, tensor: Tensor, config: dict) -> Tensor:
    """GPT-NeoX has q, k and v of a head side by side, not all q, all k, all v."""
    if not name.endswith("attn_qkv"):
        return tensor
    rows = np.arange(tensor.shape[0]).reshape(3, config["num_attention_heads"], -1)
    return pick(tensor, rows.swapaxes(0, 1).reshape(-1))


def _inputs_first(name: str, tensor: Tensor, config: dict) -> Tensor:
    """GPT-2 stores the matrices of its layers transposed."""
    if "blk." not in name or len(tensor.shape) != 2:
        return tensor
    return tensor.map(lambda w: np.ascontiguousarray(w.T), tensor.shape[::-1])


ARCHITECTURES: dict[
    str, tuple[Callable[[Config, File], dict], Callable[[str, Tensor, dict], Tensor]]
] = {
    "arcee": (arcee, _half_split_rope),
    "falcon": (falcon, _as_stored),
    "gemma": (gemma, _norms_around_zero),
    "gemma2": (gemma2, _norms_around_zero),
    "gemma3": (gemma3, _norms_around_zero),
    "gpt2": (gpt2, _inputs_first),
    "gptneox": (gptneox, _grouped_heads),
    "granite": (granite, _half_split_rope),
    "granitemoe": (granitemoe, _half_split_rope),
    "llama": (llama, _half_split_rope),
    "olmo2": (olmo2, _as_stored),
    "olmoe": (olmoe, _as_stored),
    "phi2": (phi2, _as_stored),
    "phi3": (phi3, _as_stored),
    "qwen2": (qwen2, _as_stored),
    "qwen2moe": (qwen2moe, _as_stored),
    "qwen3": (qwen3, _as_stored),
    "qwen3moe": (qwen3moe, _as_stored),
    "seed_oss": (seed_oss, _as_stored),
    "smollm3": (smollm3, _half_split_rope),
    "stablelm": (stablelm, _as_stored),
    "starcoder2": (starcoder2, _as_stored),
}
