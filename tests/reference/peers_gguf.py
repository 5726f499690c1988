"""The weights of a model under the names that transformers has for them, and a GGUF file of these
for llama.cpp. compare_peers.py measures the families of ARCHITECTURES."""

from __future__ import annotations

import functools

import numpy as np

from exporter.assemble import in_layers
from exporter.families.registry import FAMILIES
from exporter.model import Model
from exporter.tensor import Tensor, below, modules

ARCHITECTURES = {"llama": "llama", "qwen3_moe": "qwen3moe", "mamba2": "mamba2", "bert": "bert"}
KINDS = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_0"}
# What llama.cpp's own converter keeps in F32 though it is no vector.
KEPT = ("position_embd", "token_types", "ffn_gate_inp", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm")


# ---- as transformers has them --------------------------------------------------------------------


def hub_tensors(source: Model) -> dict[str, Tensor]:
    """The weights under the names of the Hugging Face checkpoint, but of experts the gates apart
    from what they multiply, as GGUF has them."""
    found = {}
    for name, module in in_layers(FAMILIES[source.family][1], source.knobs.n_layers):
        for part, kind in (("", "weight"), (".bias", "bias")):
            if name + part in source.tensors:
                found[f"{module.split('|')[0]}.{kind}"] = source.tensors[name + part]
    if source.family in UNARRANGED:
        UNARRANGED[source.family](found, source)
    return found


def unarranged_moe(found: dict[str, Tensor], source: Model) -> None:
    """Stacks of experts with an axis of their own, which none of them fills up to whole panels."""
    n = source.knobs.part_of("router").n
    for name in [name for name in found if ".experts." in name]:
        stack = found.pop(name)
        rows, width = stack.shape
        by_expert = functools.partial(np.reshape, shape=(n, -1, width))
        name = name.replace(".weight", "_proj.weight")
        found[name] = stack.map(by_expert, (n, rows // n, width))


def unarranged_mamba2(found: dict[str, Tensor], source: Model) -> None:
    """The gate, x and the steps as one matrix, the convolution channel by channel, logarithms of
    rates."""
    taps = source.knobs.part_of("conv").taps
    for module in modules(found, "rate.weight"):
        parts = [found.pop(f"{module}.{part}.weight") for part in ("gate", "x", "step")]
        found[module + ".in_proj.weight"] = below(parts)
        found[module + ".A_log"] = found.pop(module + ".rate.weight").map(np.log)
        found[module + ".D"] = found.pop(module + ".skip.weight")
        found[module + ".dt_bias"] = found.pop(module + ".step.bias")
        conv = found[module + ".conv1d.weight"]
        by_channel = (conv.shape[0] // taps, 1, taps)
        found[module + ".conv1d.weight"] = conv.map(
            lambda w: np.ascontiguousarray(w.reshape(taps, -1).T)[:, None], by_channel
        )


def unarranged_bert(found: dict[str, Tensor], source: Model) -> None:
    """The names of BertModel; the kind of tokens that is kept stands for both."""
    for name in list(found):
        found[name.removeprefix("bert.")] = found.pop(name)
    name = "embeddings.token_type_embeddings.weight"
    found[name] = found[name].map(lambda w: np.stack([w, w]), (2, *found[name].shape))


UNARRANGED = {"qwen3_moe": unarranged_moe, "mamba2": unarranged_mamba2, "bert": unarranged_bert}


# ---- as GGUF has them ----------------------------------------------------------------------------


def pairs_interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of q or k as GGUF's Llama wants them: its rope rotates neighbours, so i and i + d / 2
    become neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(config: dict, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, as llama.cpp's converter names and shapes them."""
    import gguf

    architecture = next(
        key
        for key, name in gguf.MODEL_ARCH_NAMES.items()
        if name == ARCHITECTURES[config["model_type"]]
    )
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    found = {}
    for name, tensor in tensors.items():
        n = tensor.shape[0]
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            tensor = tensor.map(functools.partial(pairs_interleaved, heads=config[key]))
        elif name.endswith("A_log"):
            tensor = tensor.map(lambda w: -np.exp(w)[:, None], (n, 1))
        elif name.endswith(".D"):
            tensor = tensor.map(lambda w: w[:, None], (n, 1))
        elif name.endswith("conv1d.weight"):
            tensor = tensor.map(lambda w: w[:, 0], (n, tensor.shape[2]))
        elif name.endswith("mixer.norm.weight"):
            groups = config["n_groups"]
            by_group = functools.partial(np.reshape, shape=(groups, -1))
            tensor = tensor.map(by_group, (groups, n // groups))
        name = name.replace("dt_bias", "dt_proj.bias")
        found[names.get_name(name, (".weight", ".bias"))] = tensor
    return found


def add_sizes(writer, config: dict) -> None:
    """What config.json says, as GGUF's metadata."""
    heads, width = config.get("num_attention_heads", 0), config["hidden_size"]
    writer.add_context_length(config.get("max_position_embeddings", 1 << 20))
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config.get("intermediate_size", 0))
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if config["model_type"] == "bert":
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(config.get("layer_norm_eps", 1e-12))
        writer.add_token_type_count(config["type_vocab_size"])
        return
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-5))
    if config["model_type"] == "mamba2":
        writer.add_ssm_conv_kernel(config.get("conv_kernel", 4))
        writer.add_ssm_inner_size(config["num_heads"] * config["head_dim"])
        writer.add_ssm_state_size(config["state_size"])
        writer.add_ssm_time_step_rank(config["num_heads"])
        writer.add_ssm_group_count(config["n_groups"])
        return
    head_dim = config.get("head_dim") or width // heads
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.get("rope_parameters", config).get("rope_theta", 10000.0))
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def kind_of(name: str, tensor: Tensor, dtype: str) -> str:
    """GGUF's type for a tensor in a file of that dtype; the embedding of q4 is in 8 bits, as it is
    here."""
    if len(tensor.shape) == 1 or any(f"{kept}." in f"{name}." for kept in KEPT):
        return "F32"
    return KINDS["q8" if dtype == "q4" and not name.startswith("blk.") else dtype]


def write_gguf(path: str, config: dict, tensors: dict[str, Tensor], dtype: str) -> None:
    """The model of that config.json and those hub_tensors as a GGUF file without a vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]])
    add_sizes(writer, config)
    stored = {
        name: (tensor, gguf.GGMLQuantizationType[kind_of(name, tensor, dtype)])
        for name, tensor in gguf_tensors(config, tensors).items()
    }
    for name, (tensor, kind) in stored.items():
        shape, item = tensor.shape, np.dtype(np.float32)
        if kind.name != "F32":
            shape, item = gguf.quant_shape_to_byte_shape(shape, kind), np.dtype(np.uint8)
        nbytes = int(np.prod(shape)) * item.itemsize
        writer.add_tensor_info(name, shape, item, nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, kind in stored.values():
        writer.write_tensor_data(gguf.quants.quantize(np.ascontiguousarray(tensor.array()), kind))
    writer.close()
