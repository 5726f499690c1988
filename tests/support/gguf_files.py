"""GGUF files for the tests, written as llama.cpp's converters write them, and quantized blocks read
by their definition."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Callable

import gguf
import numpy as np
from safetensors.numpy import load_file

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
F32 = gguf.GGMLQuantizationType.F32


ARCHITECTURES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "phi": "phi2",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "olmo3": "olmo2",
}
PERMUTED = ("llama", "arcee", "smollm3", "granite", "granitemoe")  # pairs of rope side by side
EXPERTS = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}


def convert(
    directory: Path,
    path: Path,
    kind: Callable[[str], gguf.GGMLQuantizationType] = lambda name: F32,
    tokenizer: dict | None = None,
    change: dict | None = None,
    tensors: Callable[[dict], object] = lambda t: None,
    **writer_options,
) -> None:
    """Writes the Hugging Face checkpoint in a directory as GGUF. kind(name): what a matrix is
    stored as; tokenizer: keys from byte_level_fields or scored_fields; change: metadata to set, or
    with None to leave out; tensors(t) may change t. writer_options: of the package's writer, such as
    split_max_tensors."""
    config = json.loads((directory / "config.json").read_text())
    weights = {
        name: w
        for file in sorted(directory.glob("*.safetensors"))
        for name, w in load_file(file).items()
    }
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(str(path), arch, **writer_options)
    values: dict[str, object] = {"general.type": "model", "general.name": directory.name}
    values |= {f"{arch}.{key}": value for key, value in architecture_fields(config).items()}
    values |= (tokenizer or {}) | (change or {})
    for key, value in values.items():
        add(writer, key, value)
    out = stored_tensors(arch, config, weights)
    tensors(out)
    for name, w in out.items():
        quantize(writer, name, w, kind(name) if w.ndim == 2 else F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """A metadata entry, typed as the converters type it; None leaves it out."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def quantize(
    writer: gguf.GGUFWriter, name: str, w: np.ndarray, kind: gguf.GGMLQuantizationType
) -> None:
    """Adds a tensor, or one that is in blocks already (uint8)."""
    data = w if w.dtype == np.uint8 else gguf.quantize(np.ascontiguousarray(w, np.float32), kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def architecture_fields(c: dict) -> dict[str, object]:
    """The keys after the architecture's name."""
    if c["model_type"] == "gpt2":
        return {
            "block_count": c["n_layer"],
            "context_length": c["n_positions"],
            "embedding_length": c["n_embd"],
            "feed_forward_length": c.get("n_inner") or 4 * c["n_embd"],
            "attention.head_count": c["n_head"],
            "attention.layer_norm_epsilon": c["layer_norm_epsilon"],
        }
    heads, embd = c["num_attention_heads"], c["hidden_size"]
    head_dim = c.get("head_dim") or embd // heads
    fields = {
        "block_count": c["num_hidden_layers"],
        "context_length": c.get("max_position_embeddings", 2048),
        "embedding_length": embd,
        "attention.head_count": heads,
        "feed_forward_length": c.get("intermediate_size") or c.get("ffn_hidden_size") or 4 * embd,
    }
    if c["model_type"] == "falcon":
        return fields | {
            "attention.head_count_kv": 1,
            "tensor_data_layout": "jploski",
            "attention.layer_norm_epsilon": c["layer_norm_epsilon"],
        }
    nested = c.get("rope_parameters") or {}
    rope = {**c, **nested.get("full_attention", nested), **(c.get("rope_scaling") or {})}
    kv = c.get("num_key_value_heads") or heads
    layernorm = next((c[key] for key in ("layer_norm_eps", "norm_epsilon") if key in c), None)
    fields |= {
        "attention.head_count_kv": kv,
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": layernorm,
        "rope.freq_base": float(rope.get("rope_theta", 10000)),
    }
    if rope.get("rope_type", rope.get("type")) == "linear":
        fields |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope.get("rope_type") == "yarn":
        fields |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    if "sliding_attention" in nested:
        fields["rope.freq_base_swa"] = float(nested["sliding_attention"]["rope_theta"])
    if c.get("head_dim"):
        fields |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if c["model_type"] in (
        "llama",
        "mistral",
        "mixtral",
        "arcee",
        "smollm3",
        "granite",
        "granitemoe",
    ):
        fields |= {"vocab_size": c["vocab_size"], "rope.dimension_count": head_dim}
    share = rope.get("partial_rotary_factor", c.get("rotary_pct", 1.0))
    if c["model_type"] in ("phi", "phi3", "gpt_neox", "stablelm"):
        fields["rope.dimension_count"] = int(share * head_dim)
    if c["model_type"] in ("gpt_neox", "stablelm"):
        fields["use_parallel_residual"] = c["use_parallel_residual"]
    if c["model_type"] in ("mistral", "gemma2", "gemma3_text", "olmo3", "phi3"):
        fields["attention.sliding_window"] = c["sliding_window"] or None
    if c["model_type"] == "olmo3":
        fields["attention.sliding_window_pattern"] = [
            kind == "sliding_attention" for kind in c["layer_types"]
        ]
    if c["model_type"] == "phi3":
        original = rope["original_max_position_embeddings"]
        fields["rope.scaling.original_context_length"] = original
        if rope.get("long_factor"):
            stretch = max(1, c["max_position_embeddings"] / original)
            fields["rope.scaling.attn_factor"] = math.sqrt(
                1 + math.log(stretch) / math.log(original)
            )
    for new, old in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("logit_scale", "logits_scaling"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("expert_count", "num_local_experts"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        if c.get(old):
            fields[new] = c[old]
    return fields


def stored_tensors(arch: str, c: dict, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors by their names in GGUF, as the converters leave them."""
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, c.get("num_hidden_layers", c.get("n_layer")))
    out = {}
    for name, w in stacked(weights, c).items():
        if name.endswith(".attn.bias"):
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new or name.startswith("blk."), f"GGUF has no name for {name}"
        if arch in PERMUTED and name.endswith(
            ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")
        ):
            heads = c["num_attention_heads"] if "q_proj" in name else c["num_key_value_heads"]
            w = (
                w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:])
                .swapaxes(1, 2)
                .reshape(w.shape)
            )
        if arch in ("gemma", "gemma2", "gemma3") and name.endswith("norm.weight"):
            w = w + np.float32(1)
        if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            w = w.T
        if arch == "gptneox" and "query_key_value" in name:
            w = (
                w.reshape(c["num_attention_heads"], 3, -1, *w.shape[1:])
                .swapaxes(0, 1)
                .reshape(w.shape)
            )
        out[new or name] = w
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if rope.get("rope_type") == "llama3":
        dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        out["rope_freqs.weight"] = np.float32(
            [
                llama3_factor(rope, 2 * math.pi * rope["rope_theta"] ** (i / dim))
                for i in range(0, dim, 2)
            ]
        )
    for kind in ("short", "long"):
        if rope.get(f"{kind}_factor"):
            out[f"rope_factors_{kind}.weight"] = np.float32(rope[f"{kind}_factor"])
    return out


def stacked(weights: dict[str, np.ndarray], c: dict) -> dict[str, np.ndarray]:
    """The experts of a layer in three tensors, under the names that GGUF has for them, and the
    norms of heads in one."""
    out: dict[str, np.ndarray] = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, w in weights.items():
        expert = re.fullmatch(r"model\.layers\.(\d+)\..*\.experts\.(\d+)\.(\w+)\.weight", name)
        norm = re.fullmatch(r"(.*_layernorm)\.norms\.(\d+)\.weight", name)
        if expert:
            parts.setdefault(f"blk.{expert[1]}.ffn_{EXPERTS[expert[3]]}_exps.weight", {})[
                int(expert[2])
            ] = w
        elif norm:
            parts.setdefault(norm[1] + ".weight", {})[int(norm[2])] = w
        elif name.endswith("block_sparse_moe.input_linear.weight"):
            layer, n = name.split(".")[2], c["intermediate_size"]
            out |= {
                f"blk.{layer}.ffn_gate_exps.weight": w[:, :n],
                f"blk.{layer}.ffn_up_exps.weight": w[:, n:],
            }
        elif name.endswith("block_sparse_moe.output_linear.weight"):
            out[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = w
        else:
            out[name] = w
    return out | {
        name: np.stack([found[i] for i in range(len(found))]) for name, found in parts.items()
    }


def llama3_factor(rope: dict, wavelength: float) -> float:
    """What Llama 3's scaling divides the frequency of a wave by."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (rope["original_max_position_embeddings"] / wavelength - low) / (high - low)
    return factor if smooth < 0 else 1 if smooth > 1 else 1 / ((1 - smooth) / factor + smooth)


# ---- tokenizers ----------------------------------------------------------------------------------


def byte_level_fields(data: dict, pre: str, rows: int | None = None) -> dict[str, object]:
    """The metadata of a byte-level tokenizer.json, with `rows` tokens if that is more than there
    are."""
    content = {id: token for token, id in data["model"]["vocab"].items()}
    types = dict.fromkeys(content, NORMAL)
    for token in data["added_tokens"]:
        content[token["id"]], types[token["id"]] = (
            token["content"],
            CONTROL if token["special"] else USER,
        )
    n = max(rows or 0, max(content) + 1)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [content.get(id, f"[PAD{id}]") for id in range(n)],
        "tokenizer.ggml.token_type": [types.get(id, UNUSED) for id in range(n)],
        "tokenizer.ggml.merges": [
            m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]
        ],
        **ends(data),
    }


def ends(data: dict) -> dict[str, object]:
    """What a tokenizer.json's template puts around a text, of the one token that GGUF can name on
    each side."""
    post = data.get("post_processor") or {}
    parts = [
        p for p in [post, *post.get("processors", [])] if p.get("type") == "TemplateProcessing"
    ]
    pieces = [next(iter(piece.items())) for piece in (parts[0]["single"] if parts else [])]
    ids = [
        parts[0]["special_tokens"][v["id"]]["ids"][0] if kind == "SpecialToken" else None
        for kind, v in pieces
    ]
    at = ids.index(None) if ids else 0
    named = {"bos": ids[:at], "eos": ids[at + 1 :]}
    fields: dict[str, object] = {
        f"tokenizer.ggml.add_{name}_token": bool(found) for name, found in named.items()
    }
    return fields | {
        f"tokenizer.ggml.{name}_token_id": found[0] for name, found in named.items() if found
    }


def scored_fields(
    pieces: list[tuple[str, float, int]], prefix: bool = True, **more
) -> dict[str, object]:
    """The metadata of a SentencePiece model of (token, score, type), its user-defined spaces as
    spaces."""
    tokens = [token.replace("\u2581", " ") if kind == USER else token for token, _, kind in pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(score) for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for *_, kind in pieces],
        "tokenizer.ggml.add_space_prefix": prefix,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


# ---- quantized blocks, read by their definition --------------------------------------------------

Q = gguf.GGMLQuantizationType


def f16(block: bytes, at: int) -> np.float32:
    return np.float32(np.frombuffer(block, "<f2", 1, at)[0])


def scale_and_min(s: bytes, j: int) -> tuple[int, int]:
    """Scale and minimum j of the eight that Q4_K and Q5_K pack into 12 bytes, six bits each."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def block_values(kind: gguf.GGMLQuantizationType, b: bytes) -> list[float]:
    """The numbers of one block."""
    d = f16(b, 0)

    def nibbles(at: int, n: int) -> list[int]:
        return [x & 15 for x in b[at : at + n]] + [x >> 4 for x in b[at : at + n]]

    if kind == Q.Q8_0:
        return [np.int8(np.uint8(x)) * d for x in b[2:]]
    if kind == Q.Q4_0:
        return [(q - 8) * d for q in nibbles(2, 16)]
    if kind == Q.Q4_1:
        return [q * d + f16(b, 2) for q in nibbles(4, 16)]
    if kind in (Q.Q5_0, Q.Q5_1):
        at = 2 if kind == Q.Q5_0 else 4
        high = int.from_bytes(b[at : at + 4], "little")
        whole = [q | (high >> i & 1) << 4 for i, q in enumerate(nibbles(at + 4, 16))]
        return (
            [(q - 16) * d for q in whole] if kind == Q.Q5_0 else [q * d + f16(b, 2) for q in whole]
        )
    if kind in (Q.Q4_K, Q.Q5_K):
        out, least = [], f16(b, 2)
        low = 16 if kind == Q.Q4_K else 48
        for j in range(8):
            scale, minimum = scale_and_min(b[4:16], j)
            for i in range(32):
                q = b[low + 32 * (j // 2) + i] >> 4 * (j % 2) & 15
                q |= (b[16 + i] >> j & 1) << 4 if kind == Q.Q5_K else 0
                out.append(d * np.float32(scale) * np.float32(q) - least * np.float32(minimum))
        return out
    assert kind == Q.Q6_K
    d, out = f16(b, 208), [0.0] * 256
    for i in range(256):
        half, part, l = i // 128, i % 128 // 32, i % 32  # noqa: E741
        low = b[64 * half + 32 * (part % 2) + l] >> 4 * (part // 2) & 15
        high = b[128 + 32 * half + l] >> 2 * part & 3
        scale = np.int8(np.uint8(b[192 + 8 * half + 2 * part + l // 16]))
        out[i] = d * np.float32(scale) * np.float32((low | high << 4) - 32)
    return out


SCALES = {
    Q.Q8_0: (0,),
    Q.Q4_0: (0,),
    Q.Q4_1: (0, 2),
    Q.Q5_0: (0,),
    Q.Q5_1: (0, 2),
    Q.Q4_K: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q6_K: (208,),
}


def random_blocks(
    kind: gguf.GGMLQuantizationType, rows: int, cols: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random blocks with sensible scales: their bytes, and the float32 numbers that they
    stand for."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * cols // size, width), np.uint8)
    for at in SCALES[kind]:
        scales = rng.normal(0, 0.02 if size == 32 else 0.001, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    values = np.array([block_values(kind, b.tobytes()) for b in blocks], np.float32)
    return blocks.reshape(rows, -1), values.reshape(rows, cols)


# Where the f16 lie in a block of the types that block_values() does not read. The package for Python
# 3.9 lacks MXFP4.
OTHERS = {
    Q[name]: at
    for name, at in {
        "IQ4_NL": (0,),
        "MXFP4": (),
        "Q3_K": (108,),
        "IQ4_XS": (0,),
        "TQ1_0": (52,),
        "TQ2_0": (64,),
        "Q2_K": (80, 82),
        "IQ3_S": (0,),
    }.items()
    if name in Q.__members__
}


def dequantized_blocks(
    kind: gguf.GGMLQuantizationType, rows: int, cols: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random blocks of any type, and the numbers that the package makes of them."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * cols // size, width), np.uint8)
    for at in {**SCALES, **OTHERS}[kind]:
        scales = rng.normal(0, 0.02 if size == 32 else 0.001, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind.name == "MXFP4":
        blocks[:, 0] = rng.integers(117, 124, len(blocks))
    if kind == Q.TQ2_0:  # no code 3
        blocks[:, :64] &= ~(blocks[:, :64] & (blocks[:, :64] >> 1) & 0x55)
    values = gguf.dequantize(blocks.reshape(-1), kind)
    return blocks.reshape(rows, -1), values.reshape(rows, cols).astype(np.float32)


def with_string(path: Path, key: str, value: str) -> None:
    """Puts another string in the place of a key's value."""
    data, reader = path.read_bytes(), gguf.GGUFReader(path)
    field, last = reader.fields[key], reader.tensors[-1].field
    begin = field.offset + sum(part.nbytes for part in field.parts[:-2])
    rest = begin + sum(part.nbytes for part in field.parts[-2:])
    end = last.offset + sum(part.nbytes for part in last.parts)
    text = value.encode()
    header = data[:begin] + len(text).to_bytes(8, "little") + text + data[rest:end]
    path.write_bytes(header + bytes(-len(header) % 32) + data[reader.data_offset :])
