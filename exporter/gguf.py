"""GGUF files: their metadata become a config.json, their tensors get the names and the form that
Hugging Face gives them, and families.canonical does the rest. The `gguf` package dequantizes, and
knows how both call a tensor.

To add an architecture of a family that families.py knows: a function from the metadata to the
config, what the converter of llama.cpp did to the tensors, and a row in ARCHITECTURES."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass, replace
from typing import Callable

import numpy as np

from .assemble import in_layers
from .common import every
from .config import Config
from .families import FAMILIES, canonical
from .knobs import Source
from .parts import KINDS as PART_KINDS
from .parts import stack
from .rope import FULL, SLIDING
from .tensor import ExportError, Tensor, without_numbers
from .tokenizer import (
    CONTROL,
    KINDS,
    SPACE_MARK,
    UNKNOWN,
    UNUSED,
    USER,
    Vocabulary,
    from_merges,
    from_pieces,
)

MAGIC = b"GGUF"
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
STRING, ARRAY = 8, 9
# Types that the tests compare with a plain reading of the format.
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True)
class File:
    """A GGUF file: its metadata, and its tensors as float32 yet to be read; or without numbers, if
    it is only the shape that is wanted."""

    path: str
    values: dict[str, object]
    tensors: dict[str, Tensor]
    shape_only: bool = False


class _Cursor:
    """Reads what lies in a file one after the other. Errors: ValueError, where the file ends too
    soon."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise ValueError(
                f"{n} bytes are expected at byte {self.at}, where the file has "
                f"{len(self.data) - self.at} more"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def numbers(self, dtype: str, n: int) -> list:
        return np.frombuffer(self.take(n * np.dtype(dtype).itemsize), dtype).tolist()

    def number(self, dtype: str):
        return self.numbers(dtype, 1)[0]

    def string(self) -> str:
        return self.take(int.from_bytes(self.take(8), "little")).decode()

    def value(self) -> object:
        """A value after its type."""
        kind = self.number("<u4")
        if kind != ARRAY:
            return self.string() if kind == STRING else self.number(_scalar(kind))
        kind, n = self.number("<u4"), self.number("<u8")
        return (
            [self.string() for _ in range(n)] if kind == STRING else self.numbers(_scalar(kind), n)
        )


def _scalar(kind: int) -> str:
    if kind not in SCALARS:
        raise ValueError(f"a value has type {kind}, which is not known")
    return SCALARS[kind]


def read_gguf(path: str, shape_only: bool = False) -> File:
    """Reads the metadata and the tensor table; what follows them may be missing if only the shape
    is wanted. The package could, but it makes several objects of every token: for a vocabulary of
    128,000 that is half a minute and 700 MB. Errors: ExportError."""
    try:
        import gguf
    except ImportError:
        raise ExportError(f"reading {path} needs the gguf package; pip install gguf") from None
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            c = _Cursor(data)
            if c.take(4) != MAGIC or (version := c.number("<u4")) not in (2, 3):
                raise ValueError(f"it is of version {version}; supported: 2 and 3, little-endian")
            n_tensors, n_values = c.numbers("<u8", 2)
            values = dict((c.string(), c.value()) for _ in range(n_values))
            table = [(c.string(),
                     c.numbers("<u8", c.number("<u4")), c.number("<u4"), c.number("<u8"))
                     for _ in range(n_tensors)]  # fmt: skip
            align = values.get("general.alignment", 32)
            if not isinstance(align, int) or align < 1:
                raise ValueError(f"general.alignment is {align!r}")
            begin = -(-c.at // align) * align
            if shape_only:
                tensors = {name: without_numbers(*reversed(dims)) for name, dims, _, _ in table}
                return File(path, values, tensors, shape_only)
            tensors = [
                _tensor(gguf, path, len(data), name, dims, kind, begin + at)
                for name, dims, kind, at in table
            ]
            return File(path, values, {tensor.name: tensor for tensor in tensors})
    except (ValueError, OverflowError, MemoryError) as error:
        raise ExportError(f"{path} is no GGUF file, or is damaged: {error}") from None


def _tensor(
    gguf, path: str, size: int, name: str, dims: list[int], number: int, offset: int
) -> Tensor:
    """A tensor of the file, its rows dequantized as they are read. `dims` has the innermost
    first."""
    names = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    if names.get(number) not in TYPES:
        raise ExportError(
            f"{path}: tensor {name} is stored as {names.get(number, f'type {number}')}, which is "
            "not supported; supported: " + ", ".join(TYPES)
        )
    kind = gguf.GGMLQuantizationType(number)
    block, width = gguf.GGML_QUANT_SIZES[kind]
    if not dims or dims[0] % block or offset + math.prod(dims) // block * width > size:
        raise ValueError(
            f"tensor {name} of {dims} numbers lies outside the file, or is not made of whole blocks"
        )
    shape = tuple(reversed(dims))

    def load():
        file = open(path, "rb")
        row = math.prod(shape[1:])

        def rows(a: int, b: int) -> np.ndarray:
            begin, end = (n * row // block * width for n in (a, b))
            file.seek(offset + begin)
            data = np.fromfile(file, np.uint8, end - begin)
            return np.asarray(gguf.dequantize(data, kind), np.float32).reshape(b - a, *shape[1:])

        return rows

    return Tensor(name, shape, load)


# ---- architectures: metadata -> config.json ------------------------------------------------------


def _shape(g: Config, file: File, partial: bool = False, experts: bool = False) -> dict:
    """What all of Llama's kind have. `partial`: rope may rotate a part of each head; `experts`:
    there are some."""
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
    keys = {"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"}  # fmt: skip
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
        config["rope_scaling"] = {"rope_type": "longrope", "short_factor": short,
                                  "long_factor": long, "attention_factor": factor}  # fmt: skip
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
    names = {"vocab_size": "vocab_size", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
             "n_head": "num_attention_heads", "n_inner": "intermediate_size",
             "n_positions": "max_position_embeddings",
             "tie_word_embeddings": "tie_word_embeddings"}  # fmt: skip
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


# ---- what the converters did to the tensors, undone ----------------------------------------------


def _as_stored(name: str, tensor: Tensor, config: dict) -> Tensor:
    return tensor


def _half_split_rope(name: str, tensor: Tensor, config: dict) -> Tensor:
    """Rope pairs (2 i, 2 i + 1) of a head back to (i, i + head_dim / 2), in q and k and their
    biases."""
    if not name.endswith((".attn_q", ".attn_k")):
        return tensor
    pairs = config["head_dim"] // 2
    return tensor.map(
        lambda w: w.reshape(-1, pairs, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
    )


def _norms_around_zero(name: str, tensor: Tensor, config: dict) -> Tensor:
    """The norms of Gemma hold 1 + w."""
    return tensor.map(lambda w: w - np.float32(1)) if name.endswith("norm") else tensor


def _grouped_heads(name: str, tensor: Tensor, config: dict) -> Tensor:
    """GPT-NeoX has q, k and v of a head side by side, not all q, all k, all v."""
    if not name.endswith("attn_qkv"):
        return tensor
    n_heads = config["num_attention_heads"]
    return tensor.map(
        lambda w: w.reshape(3, n_heads, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    )


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


def open_gguf(path: str, shape_only: bool = False) -> Source:
    """The checkpoint in a GGUF file. Of a shape only the header is read, and the tokenizer is left
    out. Errors: ExportError."""
    file = read_gguf(path, shape_only)
    try:
        return _source(path, file)
    # A list where a number should be.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ExportError(
            f"{path}: its metadata make no sense: {type(error).__name__}: {error}"
        ) from error


def _source(path: str, file: File) -> Source:
    arch = file.values.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ExportError(
            f"{path}: general.architecture is {arch!r}, which is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    Config(file.values, path).require(**{"general.type": "model"})
    if file.values.get("split.count", 0) > 1:
        raise ExportError(
            f"{path} is a part of a checkpoint; join the parts first (llama-gguf-split --merge)"
        )
    of_arch = {
        key.removeprefix(f"{arch}."): v
        for key, v in file.values.items()
        if key.startswith(f"{arch}.")
    }
    metadata = Config(of_arch, f"{path}, metadata of {arch}")
    config_of, restore = ARCHITECTURES[arch]
    config = config_of(metadata, file)
    metadata.finish()
    if file.shape_only:
        family, knobs, found, remarks = canonical(config, None)
        return Source(os.path.basename(path), family, knobs, found, [path], remarks=remarks)
    # Llama 3's scaling, as divisors of the frequencies.
    factors = file.tensors.pop("rope_freqs.weight", None)
    family, knobs, found, remarks = canonical(
        config, _huggingface_names(file, arch, config, restore)
    )
    if factors is not None:
        divisors = factors.array()
        n = len(knobs.ropes[0].inv_freq) if knobs.ropes else 0
        if divisors.shape != (n,) or not (divisors > 0).all():
            raise ExportError(f"{path}: tensor rope_freqs.weight holds no {n} positive numbers")
        knobs.ropes = [replace(rope, inv_freq=rope.inv_freq / divisors) for rope in knobs.ropes]
    template = file.values.get("tokenizer.chat_template")
    tokenizer = gguf_vocabulary(file)
    return Source(
        os.path.basename(path),
        family,
        knobs,
        found,
        [path],
        tokenizer=tokenizer,
        remarks=remarks,
        template=template,
        special_tokens=_special_tokens(file.values),
    )


def _special_tokens(values: dict) -> dict[str, str]:
    """The tokens that a chat template knows by name."""
    names = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
    tokens = values.get("tokenizer.ggml.tokens") or []
    found = {}
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        id = values.get(f"tokenizer.ggml.{names.get(name, name)}_token_id")
        if isinstance(id, int) and 0 <= id < len(tokens):
            found[f"{name}_token"] = tokens[id]
    return found


# What a family's table names, but not every model has: assemble() misses it where it is needed.
OPTIONAL = PART_KINDS - {"router"} | {
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_norm",
    "attn_q_norm",
    "attn_k_norm",
    "output",
}


def _huggingface_names(file: File, arch: str, config: dict, restore) -> dict[str, Tensor]:
    """The tensors by the names that the family has for them; those that it has none for keep
    theirs."""
    import gguf

    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    n_layers = file.values[f"{arch}.block_count"]
    stored_names = gguf.get_tensor_name_map(number, n_layers)
    left, named = dict(file.tensors), {}
    for name, source in in_layers(FAMILIES[config["model_type"]][1], n_layers):
        kind = name.split(".")[-1]
        modules = [
            (_stored_name(stored_names, name, kind, module), module) for module in source.split("|")
        ]
        stored, module = next(((s, m) for s, m in modules if f"{s}.weight" in left), modules[0])
        for suffix in (".weight", ".bias"):
            tensor = left.pop(f"{stored}{suffix}", None)
            if tensor is not None:
                named |= _modules(module, suffix, kind, restore(stored, tensor, config))
            elif suffix == ".weight" and kind not in OPTIONAL:
                raise ExportError(f"{file.path} lacks the tensor {stored}.weight")
    return named | left


def _stored_name(stored_names, name: str, kind: str, module: str) -> str | None:
    """What GGUF calls a module of a family's table, without the suffix."""
    if kind == "output":
        return kind
    if kind.startswith("expert_"):
        return f"blk.{name.split('.')[1]}.ffn_{kind.removeprefix('expert_')}_exps"
    return stored_names.get_name(module.replace(".norms.*", ""))


def _modules(module: str, suffix: str, kind: str, tensor: Tensor) -> dict[str, Tensor]:
    """What a tensor is in Hugging Face's form: experts one below the other, norms of heads one by
    one."""
    parts = [
        tensor.slice(i, i + 1).map(lambda w: w[0], tensor.shape[1:]) for i in range(tensor.shape[0])
    ]
    if kind.startswith("expert_") and len(tensor.shape) == 3:
        return {module + suffix: stack(parts)}
    if "*" in module:
        return {module.replace("*", str(i)) + suffix: part for i, part in enumerate(parts)}
    if kind == "shared_gate" and len(tensor.shape) == 1:
        return {module + suffix: tensor.map(lambda w: w[None], (1, *tensor.shape))}
    return {module + suffix: tensor}


# ---- the tokenizer -------------------------------------------------------------------------------

# tokenizer.ggml.pre -> what lies before the merges, and whether a text begins with BOS where
# add_bos_token does not say it.
PRE_TOKENIZERS = {
    "bloom": ("bloom", False),
    "command-r": ("command-r", False),
    "dbrx": ("cl100k", False),
    "deepseek-coder": ("deepseek-coder", False),
    "deepseek-llm": ("deepseek-llm", False),
    "deepseek-r1-qwen": ("qwen2", False),
    "deepseek-v3": ("deepseek-v3", False),
    "falcon": ("falcon", False),
    "gpt-2": ("gpt2", False),
    "gpt-4o": ("o200k", False),
    "lfm2": ("llama3", True),
    "llama-bpe": ("llama3", True),
    "llama-v3": ("llama3", True),
    "llama3": ("llama3", True),
    "mpt": ("gpt2 nfc", False),
    "olmo": ("gpt2 nfc", False),
    "phi-2": ("gpt2", False),
    "qwen2": ("qwen2", False),
    "qwen35": ("qwen3.5", False),
    "refact": ("starcoder", False),
    "smollm": ("starcoder", False),
    "starcoder": ("starcoder", False),
    "tekken": ("tekken", True),
}
# Ids and names that change neither ids nor text: of padding, of code infilling, of templates
# besides the one for chats.
_IGNORED = ("padding", "seperator", "cls", "mask", "prefix", "suffix", "middle", "fim_pre",
            "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "unknown")  # fmt: skip


def gguf_vocabulary(file: File) -> Vocabulary | None:
    """The tokenizer in the metadata, None if there is none. Errors: ExportError."""
    t = Config(
        {key: value for key, value in file.values.items() if key.startswith("tokenizer.")},
        file.path,
    )
    t.ignore(
        *(key for key in t.values if key.startswith("tokenizer.chat_template")),
        "tokenizer.huggingface.json",
    )
    t.ignore(*(f"tokenizer.ggml.{name}_token_id" for name in _IGNORED))
    model = t.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab"):
        return None
    if model not in ("llama", "gpt2"):
        raise ExportError(
            f"{file.path}: tokenizer.ggml.model is {model!r}, which is not supported; supported: "
            "llama, gpt2"
        )
    tokens, types = t.get("tokenizer.ggml.tokens"), t.get("tokenizer.ggml.token_type")
    if not tokens or not types or len(tokens) != len(types):
        raise ExportError(
            f"{file.path}: tokenizer.ggml.tokens and tokenizer.ggml.token_type are missing, or not "
            "as many"
        )
    ids = {name: t.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    try:
        v, bos = (_scored if model == "llama" else _byte_level)(t, tokens, types, ids)
    except ExportError as error:
        raise ExportError(f"{file.path}: tokenizer: {error}") from None
    for name, default, ends in (("bos", bos, v.prefix), ("eos", False, v.suffix)):
        ends[:] = [ids[name]] if t.flag(f"tokenizer.ggml.add_{name}_token", default) else []
        if ends and not (isinstance(ids[name], int) and 0 <= ids[name] < len(tokens)):
            raise ExportError(
                f"{file.path}: tokenizer.ggml.{name}_token_id is {ids[name]!r}, expected a token's "
                "id"
            )
    v.eos = sorted(
        {
            id
            for name, id in ids.items()
            if name != "bos" and isinstance(id, int) and 0 <= id < len(tokens)
        }
    )
    t.require(**{"tokenizer.ggml.add_sep_token": False})
    t.finish()
    return v


def _scored(t: Config, tokens: list[str], types: list[int], ids: dict) -> tuple[Vocabulary, bool]:
    """A SentencePiece model: merges are made by score. Returns whether a text begins with BOS by
    default, too."""
    t.ignore("tokenizer.ggml.pre", "tokenizer.ggml.merges")  # llama.cpp reads neither here
    t.require(
        **{
            "tokenizer.ggml.remove_extra_whitespaces": False,
            "tokenizer.ggml.precompiled_charsmap": [],
        }
    )
    scores = t.get("tokenizer.ggml.scores") or []
    normal = {
        score for score, kind in zip(scores, types) if kind not in (CONTROL, UNKNOWN, UNUSED, USER)
    }
    if len(scores) != len(tokens) or len(normal) < 2:
        raise ExportError(
            "tokenizer.ggml.scores are missing or all equal, so the merges cannot be known"
        )
    prefix = t.flag("tokenizer.ggml.add_space_prefix", True)
    if not prefix:  # the converter writes marks in these as spaces
        tokens = [
            token.replace(" ", SPACE_MARK) if kind == USER else token
            for token, kind in zip(tokens, types)
        ]
    ids["bos"], ids["eos"] = (
        default if ids[name] is None else ids[name] for name, default in (("bos", 1), ("eos", 2))
    )
    return from_pieces(list(zip(tokens, scores, types)), prefix, ids["bos"], ids["eos"]), True


def _byte_level(
    t: Config, tokens: list[str], types: list[int], ids: dict
) -> tuple[Vocabulary, bool]:
    """A byte-level model. GGUF does not say how an added token is looked for: as it stands, in the
    raw text."""
    t.ignore("tokenizer.ggml.scores")
    t.require(**{"tokenizer.ggml.add_space_prefix": False})
    pre = t.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise ExportError(
            f"tokenizer.ggml.pre is {pre!r}, which is not supported; supported: "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    kind, bos = PRE_TOKENIZERS[pre]
    named = [(id, token, types[id]) for id, token in enumerate(tokens) if types[id] != UNUSED]
    added = [{"id": id, "content": token, "special": kind != USER, "normalized": False}
             for id, token, kind in named if kind in (CONTROL, UNKNOWN, USER)]  # fmt: skip
    vocab = {token: id for id, token, kind in named if kind not in (CONTROL, UNKNOWN, USER)}
    return from_merges(KINDS[kind], vocab, t.get("tokenizer.ggml.merges") or [], added), bos
