"""What GGUF architectures share: their metadata become keys of a config.json, and what llama.cpp's
converter did to the tensors is undone."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..families.common import every
from ..rope import FULL, SLIDING
from ..tensor import ExportError, Tensor, below, pick, transposed
from .gguf_file import File

NO_CONTEXT = 1 << 20  # what the converter writes where a model has no longest text
SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
ATTENTION, MLP = ("attn_q", "attn_k", "attn_v", "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")


def shape(
    g: Config, file: File, partial: bool = False, experts: bool = False, causal: bool = True
) -> dict:
    """The config that all of Llama's kind share. `partial`: rope may rotate a part of each head;
    `experts`: there are some; causal False: it is an encoder."""
    config = sizes(g, file, causal)
    n_embd, n_heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = g.int("attention.key_length", n_embd // n_heads, most=1 << 14)
    g.require(**{"attention.value_length": head_dim})
    n_rot = g.int("rope.dimension_count", head_dim)
    if not partial:
        g.require(**{"rope.dimension_count": head_dim})
    if not experts:
        g.require(expert_count=0, expert_used_count=0)
    share = (
        {"partial_rotary_factor": 1.0 if n_rot == head_dim else (n_rot + 0.5) / head_dim}
        if partial
        else {}
    )
    return share | {
        **config,
        "num_key_value_heads": kv_heads(g, n_heads),
        "head_dim": head_dim,
        "intermediate_size": g.int("feed_forward_length"),
    }


def sizes(g: Config, file: File, causal: bool = True) -> dict:
    """The config that all but T5 share. Layers that guess next tokens, which llama.cpp counts too,
    are not the text's."""
    g.require(**{"attention.causal": causal})
    if "token_embd.weight" not in file.tensors:
        raise ExportError(f"{file.path} lacks the tensor token_embd.weight")
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    g.require(vocab_size=vocab_size)
    context = g.int("context_length")
    return {
        "vocab_size": vocab_size,
        "hidden_size": g.int("embedding_length"),
        "num_hidden_layers": g.int("block_count", most=4096)
        - g.int("nextn_predict_layers", 0, least=0),
        "num_attention_heads": g.int("attention.head_count", most=1 << 12),
        "tie_word_embeddings": tied(file),
        **({} if context == NO_CONTEXT else {"max_position_embeddings": context}),
    }


def kv_heads(g: Config, usual: int) -> int:
    """The KV heads of the layers that have any, where each layer says how many."""
    given = g.get("attention.head_count_kv", usual)
    some = sorted({n for n in given if n != 0}) if isinstance(given, list) else [given]
    if len(some) != 1:
        raise ExportError(
            f"{g.where}: attention.head_count_kv is {given!r}, which is not supported: layers that "
            "differ in KV heads"
        )
    return Config({"attention.head_count_kv": some[0]}, g.where).int("attention.head_count_kv")


def each_layer(g: Config, key: str, n_layers: int) -> list[int]:
    """A number for each layer, where one may stand for all."""
    given = g.get(key, 0)
    given = given if isinstance(given, list) else [given] * n_layers
    if len(given) != n_layers:
        raise ExportError(f"{g.where}: {key} is {given!r}, expected {n_layers} numbers")
    return given


def tied(file: File) -> bool:
    """Whether the output is the embedding: it is absent, or a copy, which some converters write. A
    shape cannot tell a copy."""
    embed, output = file.tensors["token_embd.weight"], file.tensors.get("output.weight")
    if output is None or embed.shape != output.shape or file.shape_only:
        return output is None
    a, b, n = embed.load(), output.load(), embed.shape[0]
    return all(
        np.array_equal(a(i, min(i + 256, n)), b(i, min(i + 256, n))) for i in range(0, n, 256)
    )


def rope(g: Config) -> dict:
    """The base and the scaling of rope. A factor without a type is linear, as llama.cpp has it."""
    config: dict[str, object] = {"rope_theta": g.number("rope.freq_base", 10000.0)}
    kind = g.get("rope.scaling.type", "linear")
    factor = g.get("rope.scaling.factor", g.get("rope.scale_linear", 0))
    original = g.get("rope.scaling.original_context_length")
    betas = {key: g.get(f"rope.scaling.yarn_{key}") for key in ("beta_fast", "beta_slow")}
    g.ignore("rope.scaling.finetuned")
    if kind != "none" and (factor not in (0, 1) or kind != "linear"):
        config["rope_scaling"] = {"rope_type": kind, "factor": factor}
        if kind != "linear" and original:
            config["rope_scaling"]["original_max_position_embeddings"] = original
        if kind == "yarn":
            config["rope_scaling"] |= {key: value for key, value in betas.items() if value}
    return config


def own_rope(config: dict) -> dict:
    """The config of a family whose rope is scaled unless rope_parameters say otherwise."""
    if "rope_scaling" in config:
        return config
    config = dict(config)
    parameters = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    return {**config, "rope_parameters": parameters}


def has(file: File, *names: str, layer: int = 0) -> bool:
    """Whether a layer has any of these tensors."""
    return any(f"blk.{layer}.{name}" in file.tensors for name in names)


def has_bias(file: File, *names: str) -> bool:
    return has(file, *(f"{name}.bias" for name in names))


def biases(file: File) -> dict:
    return {"attention_bias": has_bias(file, *ATTENTION), "mlp_bias": has_bias(file, *MLP)}


def llama_block(g: Config, file: File, **more) -> dict:
    return {
        **shape(g, file, **more),
        **rope(g),
        "rms_norm_eps": g.number("attention.layer_norm_rms_epsilon"),
    }


def layernorm_block(g: Config, file: File, eps: str, **more) -> dict:
    return {**shape(g, file, **more), **rope(g), eps: g.number("attention.layer_norm_epsilon")}


def layer_types(g: Config, config: dict, usual: int) -> dict:
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


def some_experts(g: Config, key: str = "num_experts", score: int | None = None) -> dict:
    """How many experts there are, and how many a token gets. score: the only one supported."""
    if score:
        g.require(expert_gating_func=score)
    return {key: g.int("expert_count"), "num_experts_per_tok": g.int("expert_used_count")}


def v3_router(g: Config) -> dict:
    """DeepSeek-V3's router, and a network for all tokens beside some layers' experts."""
    g.require(expert_gating_func=SIGMOID)
    return {
        "n_routed_experts": g.int("expert_count"),
        "num_experts_per_tok": g.int("expert_used_count"),
        "moe_intermediate_size": g.int("expert_feed_forward_length"),
        "n_shared_experts": g.int("expert_shared_count", 0, least=0),
        "first_k_dense_replace": g.int("leading_dense_block_count", 0, least=0),
        "n_group": g.int("expert_group_count", 1),
        "topk_group": g.int("expert_group_used_count", 1),
        "norm_topk_prob": g.flag("expert_weights_norm", False),
        "routed_scaling_factor": g.number("expert_weights_scale", 1.0),
    }


# ---- what the converter did to tensors -----------------------------------------------------------


def as_stored(name: str, tensor: Tensor, config: dict) -> Tensor:
    return tensor


def half_split_rope(name: str, tensor: Tensor, config: dict) -> Tensor:
    """Rope pairs (2 i, 2 i + 1) of a head back to (i, i + head_dim / 2), in q and k and their
    biases."""
    if name.split(".")[-2:][0] not in ("attn_q", "attn_k"):
        return tensor
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rows = np.arange(tensor.shape[0]).reshape(-1, head_dim // 2, 2)
    return pick(tensor, rows.swapaxes(1, 2).reshape(-1))


def norms_around_zero(name: str, tensor: Tensor, config: dict) -> Tensor:
    """Norms that hold 1 + w, but for a gated DeltaNet's own."""
    if not name.endswith("norm.weight") or name.endswith(".ssm_norm.weight"):
        return tensor
    return tensor.map(lambda w: w - np.float32(1))


def grouped_heads(name: str, tensor: Tensor, config: dict) -> Tensor:
    """q, k and v of a KV head side by side, not all q, all k, all v."""
    if ".attn_qkv." not in name:
        return tensor
    n_heads = config.get("num_attention_heads", config.get("n_head"))
    n_kv = config.get("num_kv_heads") or (1 if config.get("multi_query") else n_heads)
    head_dim = tensor.shape[0] // (n_heads + 2 * n_kv)
    rows = np.arange(tensor.shape[0]).reshape(-1, head_dim)
    q, k, v = rows[:n_heads], rows[n_heads : n_heads + n_kv], rows[n_heads + n_kv :]
    groups = np.concatenate([q.reshape(n_kv, -1), k, v], 1)
    return pick(tensor, groups.reshape(-1))


def inputs_first(name: str, tensor: Tensor, config: dict) -> Tensor:
    """GPT-2 stores the matrices of its layers transposed."""
    if "blk." not in name or len(tensor.shape) != 2:
        return tensor
    return transposed(tensor)


def gate_and_up(tensors: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """Granite: gate and up of the network that all tokens pass as one matrix."""
    found = dict(tensors)
    for name in tensors if config["model_type"].startswith("granite") else ():
        if name.endswith((".ffn_gate.weight", ".ffn_gate_shexp.weight")):
            up = name.replace("ffn_gate", "ffn_up")
            if up in found:
                found[up] = below([found.pop(name), found[up]])
    return found


def as_one(tensors: dict[str, Tensor], config: dict) -> dict[str, Tensor]:
    """Nothing that lies in several tensors."""
    return tensors
