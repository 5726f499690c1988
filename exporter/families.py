"""Model families: an entry says where a family's tensors are, how they become the canonical ones of docs/format.md, and
which knobs its config.json sets. To add a family that needs no new knob: a function from Config to Knobs, a table of names,
and a row in FAMILIES.

A table of names maps canonical names to modules of the checkpoint, which hold `.weight` and perhaps `.bias`; N stands for
the layer. `attn_qkv` is a matrix of q, k and v, one below the other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from .config import Config
from .tensor import ExportError, Tensor
from .tokenizer import Vocabulary

ACTS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_fast": 2, "gelu_pytorch_tanh": 2}
SKIPPED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias)$")  # buffers of the code that made the checkpoint


@dataclass
class Knobs:
    """What docs/format.md calls the model's knobs, and what assembling the tensors must know besides. `window` has a value a
    layer."""

    vocab_size: int
    n_embd: int
    n_layers: int
    context: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    act: int
    norm_eps: float
    tied: bool
    layernorm: bool = False
    parallel: bool = False
    emb_scale: float = 1.0
    rope: np.ndarray | None = None  # float32 [n_rot / 2]; None: no rope
    window: list[int] = field(default_factory=lambda: [0])
    biased: tuple[str, ...] = ()  # the matrices of a layer that may have a bias
    norm_offset: float = 0.0  # added to the weights of every norm
    conv1d: bool = False  # a layer's matrices are stored [n_in, n_out]

    def metadata(self, gated: bool) -> dict[str, object]:
        """The knobs as entries of the file."""
        meta: dict[str, object] = {
            "model.vocab_size": self.vocab_size,
            "model.n_embd": self.n_embd,
            "model.n_layers": self.n_layers,
            "model.context": self.context,
            "model.norm": int(self.layernorm),
            "model.norm_eps": float(self.norm_eps),
        }
        if self.emb_scale != 1:
            meta["model.emb_scale"] = float(self.emb_scale)
        if self.rope is not None:
            meta["model.rope.0.inv_freq"] = self.rope
        meta.update(
            {
                "layer.n_heads": self.n_heads,
                "layer.n_kv_heads": self.n_kv_heads,
                "layer.head_dim": self.head_dim,
                "layer.rope": -1 if self.rope is None else 0,
                "layer.window": self.window[0] if len(set(self.window)) == 1 else self.window,
                "layer.attn_scale": self.head_dim**-0.5,
                "layer.topology": int(self.parallel),
                "layer.d_ff": self.d_ff,
                "layer.ffn": int(gated),
                "layer.act": self.act,
            }
        )
        return meta

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a canonical weight, or of one that is fused."""
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return {
            "embed": (self.vocab_size, self.n_embd),
            "embed_pos": (self.context, self.n_embd),
            "output": (self.vocab_size, self.n_embd),
            "attn_q": (q, self.n_embd),
            "attn_k": (kv, self.n_embd),
            "attn_v": (kv, self.n_embd),
            "attn_qkv": (q + 2 * kv, self.n_embd),
            "attn_o": (self.n_embd, q),
            "attn_q_norm": (self.head_dim,),
            "attn_k_norm": (self.head_dim,),
            "ffn_gate": (self.d_ff, self.n_embd),
            "ffn_up": (self.d_ff, self.n_embd),
            "ffn_down": (self.n_embd, self.d_ff),
        }.get(name.split(".")[-1], (self.n_embd,))


@dataclass
class Source:
    """A checkpoint ready to be written. `tensors` are the canonical ones, in the order of the file; `files` are those that
    must not be overwritten; `directory` is that of a Hugging Face checkpoint; `tokenizer` is what tokenizer_metadata takes,
    None if there is no tokenizer; `remarks` are for the user; `template` is the chat template, if no directory holds it."""

    name: str
    family: str
    knobs: Knobs
    tensors: dict[str, Tensor]
    files: list[str]
    directory: str | None = None
    tokenizer: str | Vocabulary | None = None
    remarks: list[str] = field(default_factory=list)
    template: str | None = None


# ---- what families share -------------------------------------------------------------------------------------------------


def rope_frequencies(c: Config, head_dim: int, context: int) -> np.ndarray:
    """float32 [head_dim / 2] angular frequencies, in the operations and the order of transformers' modeling_rope_utils.py
    (the same bits but where torch's vectorised pow is off by one). Both spellings of a config: rope_theta with
    rope_scaling, and rope_parameters."""
    c.require(partial_rotary_factor=1)
    theta = c.get("rope_theta", 10000.0)
    old, new = c.get("rope_scaling"), c.get("rope_parameters")
    if old and new:
        raise ExportError(f"{c.where} has both rope_scaling and rope_parameters; keep one")
    values = old or new or {}
    if not isinstance(values, dict):
        raise ExportError(f"{c.where}: rope_scaling is {values!r}, expected an object")
    p = Config(values, f"{c.where}: " + ("rope_scaling" if old else "rope_parameters"))
    p.require(partial_rotary_factor=1)
    p.get("type")
    kind = p.choice(
        "rope_type" if "rope_type" in values else "type", {k: k for k in ("default", "linear", "llama3")}, "default"
    )
    theta = Config({"rope_theta": p.get("rope_theta", theta)}, c.where).number("rope_theta")
    if head_dim % 2:
        raise ExportError(f"head_dim is {head_dim}; rope needs an even number")

    exponent = np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim)
    inv_freq = np.float32(1) / (theta ** exponent.astype(np.float64)).astype(np.float32)  # the power is rounded once
    if kind == "linear":
        inv_freq = inv_freq / np.float32(p.number("factor"))
    elif kind == "llama3":
        inv_freq = _llama3(inv_freq, p, p.int("original_max_position_embeddings", context))
    p.finish()
    return inv_freq


def _llama3(inv_freq: np.ndarray, p: Config, old_context: int) -> np.ndarray:
    """Llama 3.1's scaling: long waves are stretched by a factor, short ones kept, those between interpolated."""
    factor, low, high = p.number("factor"), p.number("low_freq_factor"), p.number("high_freq_factor")
    if not low < high:
        raise ExportError(f"{p.where}: low_freq_factor is {low}, expected less than high_freq_factor ({high})")
    f32 = np.float32
    wavelength = f32(1) / inv_freq * f32(2 * np.pi)  # a number over a tensor is its reciprocal times the number in torch
    scaled = np.where(wavelength > f32(old_context / low), inv_freq / f32(factor), inv_freq)
    smooth = (f32(1) / wavelength * f32(old_context) - f32(low)) / f32(high - low)
    between = (f32(1) - smooth) * scaled / f32(factor) + smooth * scaled
    is_between = (wavelength >= f32(old_context / high)) & (wavelength <= f32(old_context / low))
    return np.where(is_between, between, scaled).astype(f32)


def windows(c: Config, n_layers: int, size, sliding: Callable[[int], bool]) -> list[int]:
    """A window a layer, of `size` (None: none) where layer_types has sliding_attention, or where `sliding` says so."""
    types = c.get("layer_types")
    if types is None:
        types = ["sliding_attention" if size is not None and sliding(i) else "full_attention" for i in range(n_layers)]
    if not isinstance(types, list) or len(types) != n_layers:
        raise ExportError(f"{c.where}: layer_types has not one entry for each of the {n_layers} layers")
    for t in types:
        if t not in ("sliding_attention", "full_attention"):
            raise ExportError(
                f"{c.where}: layer_types holds {t!r}, which is not supported; supported: full_attention, sliding_attention"
            )
    if "sliding_attention" not in types:
        return [0] * n_layers
    size = Config({"sliding_window": size}, c.where).int("sliding_window")
    return [size if t == "sliding_attention" else 0 for t in types]


def llama_block(c: Config, **defaults) -> Knobs:
    """The knobs of Llama and of all that differ from it in details. `defaults` are the family's values of keys that are
    absent: num_key_value_heads, head_dim (null: hidden_size / num_attention_heads), rms_norm_eps, hidden_act,
    max_position_embeddings, tie_word_embeddings."""
    n_embd, n_heads = c.int("hidden_size"), c.int("num_attention_heads")
    head_dim = c.get("head_dim", defaults.get("head_dim"))
    if head_dim is None and n_embd % n_heads:
        raise ExportError(
            f"{c.where}: hidden_size {n_embd} is no multiple of num_attention_heads {n_heads}, and there is no head_dim"
        )
    head_dim = n_embd // n_heads if head_dim is None else c.int("head_dim", head_dim)
    n_kv_heads = c.get("num_key_value_heads", defaults.get("num_key_value_heads"))
    context = c.int("max_position_embeddings", defaults.get("max_position_embeddings", 2048))
    return Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=n_embd,
        n_layers=c.int("num_hidden_layers", most=4096),
        context=context,
        n_heads=n_heads,
        n_kv_heads=n_heads if n_kv_heads is None else c.int("num_key_value_heads", n_kv_heads),
        head_dim=head_dim,
        d_ff=c.int("intermediate_size"),
        act=c.choice("hidden_act", ACTS, defaults.get("hidden_act", "silu")),
        norm_eps=c.number("rms_norm_eps", 1e-6),
        tied=c.flag("tie_word_embeddings", defaults.get("tie_word_embeddings", False)),
        rope=rope_frequencies(c, head_dim, context),
    )


QKVO = ("attn_q", "attn_k", "attn_v", "attn_o")
FFN = ("ffn_gate", "ffn_up", "ffn_down")

LLAMA = {
    "embed": "model.embed_tokens",
    "layers.N.attn_norm": "model.layers.N.input_layernorm",
    "layers.N.attn_q": "model.layers.N.self_attn.q_proj",
    "layers.N.attn_k": "model.layers.N.self_attn.k_proj",
    "layers.N.attn_v": "model.layers.N.self_attn.v_proj",
    "layers.N.attn_o": "model.layers.N.self_attn.o_proj",
    "layers.N.ffn_norm": "model.layers.N.post_attention_layernorm",
    "layers.N.ffn_gate": "model.layers.N.mlp.gate_proj",
    "layers.N.ffn_up": "model.layers.N.mlp.up_proj",
    "layers.N.ffn_down": "model.layers.N.mlp.down_proj",
    "norm": "model.norm",
    "output": "lm_head",
}

# ---- families: class defaults are those of transformers 5.23.0 -----------------------------------------------------------


def llama(c: Config) -> Knobs:
    """Llama 1 to 3.2, TinyLlama, SmolLM 1 and 2."""
    k = llama_block(c)
    k.biased = QKVO * c.flag("attention_bias", False) + FFN * c.flag("mlp_bias", False)
    c.require(rope_interleaved=False)
    return k


def mistral(c: Config) -> Knobs:
    """Mistral 7B, all versions, and Nemo."""
    k = llama_block(c, num_key_value_heads=8, max_position_embeddings=131072)
    k.window = windows(c, k.n_layers, c.get("sliding_window", 4096), lambda layer: True)
    return k


def _qwen(c: Config, **defaults) -> Knobs:
    k = llama_block(c, num_key_value_heads=32, max_position_embeddings=32768, **defaults)
    size = c.get("sliding_window", 4096)  # without use_sliding_window it means nothing
    first = c.int("max_window_layers", 28, least=0)
    k.window = windows(c, k.n_layers, size if c.flag("use_sliding_window", False) else None, lambda layer: layer >= first)
    return k


def qwen2(c: Config) -> Knobs:
    """Qwen 1.5, 2 and 2.5 without experts."""
    k = _qwen(c)
    k.biased = ("attn_q", "attn_k", "attn_v")
    c.require(use_mrope=False)
    return k


def qwen3(c: Config) -> Knobs:
    """Qwen 3 without experts: q and k are normalised head by head."""
    k = _qwen(c, head_dim=128)
    k.biased = QKVO * c.flag("attention_bias", False)
    return k


def gemma(c: Config) -> Knobs:
    """Gemma 1: norms multiply by 1 + w, the embedding is scaled, and `gelu` means the tanh form."""
    k = llama_block(
        c,
        num_key_value_heads=16,
        head_dim=256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
    )
    if c.get("hidden_act") == "gelu":
        k.act = ACTS["gelu_pytorch_tanh"]
    c.ignore("hidden_activation")  # later families read it, this one does not
    c.require(use_bidirectional_attention=False)
    k.biased = QKVO * c.flag("attention_bias", False)
    k.norm_offset, k.emb_scale = 1.0, k.n_embd**0.5
    return k


def gpt2(c: Config) -> Knobs:
    """GPT-2, DistilGPT-2."""
    c.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    c.ignore("reorder_and_upcast_attn", "n_ctx", *(key for key in c.values if key.startswith("summary_")))
    n_embd, n_heads = c.int("n_embd"), c.int("n_head")
    if n_embd % n_heads:
        raise ExportError(f"{c.where}: n_embd {n_embd} is no multiple of n_head {n_heads}")
    return Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=n_embd,
        n_layers=c.int("n_layer", most=4096),
        context=c.int("n_positions", 1024),
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=n_embd // n_heads,
        d_ff=4 * n_embd if c.get("n_inner") is None else c.int("n_inner"),
        act=c.choice("activation_function", ACTS, "gelu_new"),
        norm_eps=c.number("layer_norm_epsilon", 1e-5),
        tied=c.flag("tie_word_embeddings", True),
        layernorm=True,
        biased=("attn_qkv", "attn_o", "ffn_up", "ffn_down"),
        conv1d=True,
    )


GPT2 = {
    "embed": "transformer.wte",
    "embed_pos": "transformer.wpe",
    "layers.N.attn_norm": "transformer.h.N.ln_1",
    "layers.N.attn_qkv": "transformer.h.N.attn.c_attn",
    "layers.N.attn_o": "transformer.h.N.attn.c_proj",
    "layers.N.ffn_norm": "transformer.h.N.ln_2",
    "layers.N.ffn_up": "transformer.h.N.mlp.c_fc",
    "layers.N.ffn_down": "transformer.h.N.mlp.c_proj",
    "norm": "transformer.ln_f",
    "output": "lm_head",
}


def falcon(c: Config) -> Knobs:
    """Falcon 7B: one KV head, attention and feed-forward side by side under one norm."""
    c.require(alibi=False, new_decoder_architecture=False, multi_query=True, parallel_attn=True)
    c.require(num_ln_in_parallel_attn=1, apply_residual_connection_post_layernorm=False)
    c.ignore("num_kv_heads", "head_dim")  # multi_query has one KV head, and heads share hidden_size, whatever these say
    n_embd, n_heads = c.int("hidden_size"), c.int("num_attention_heads")
    if n_embd % n_heads:
        raise ExportError(f"{c.where}: hidden_size {n_embd} is no multiple of num_attention_heads {n_heads}")
    context = c.int("max_position_embeddings", 2048)
    return Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=n_embd,
        n_layers=c.int("num_hidden_layers", most=4096),
        context=context,
        n_heads=n_heads,
        n_kv_heads=1,
        head_dim=n_embd // n_heads,
        d_ff=4 * n_embd if c.get("ffn_hidden_size") is None else c.int("ffn_hidden_size"),
        act=c.choice("activation", ACTS, "gelu"),
        norm_eps=c.number("layer_norm_epsilon", 1e-5),
        tied=c.flag("tie_word_embeddings", True),
        layernorm=True,
        parallel=True,
        rope=rope_frequencies(c, n_embd // n_heads, context),
        biased=("attn_qkv", "attn_o", "ffn_up", "ffn_down") * c.flag("bias", False),
    )


FALCON = {
    "embed": "transformer.word_embeddings",
    "layers.N.attn_norm": "transformer.h.N.input_layernorm",
    "layers.N.attn_qkv": "transformer.h.N.self_attention.query_key_value",
    "layers.N.attn_o": "transformer.h.N.self_attention.dense",
    "layers.N.ffn_up": "transformer.h.N.mlp.dense_h_to_4h",
    "layers.N.ffn_down": "transformer.h.N.mlp.dense_4h_to_h",
    "norm": "transformer.ln_f",
    "output": "lm_head",
}

QWEN3 = {
    **LLAMA,
    "layers.N.attn_q_norm": "model.layers.N.self_attn.q_norm",
    "layers.N.attn_k_norm": "model.layers.N.self_attn.k_norm",
}

FAMILIES: dict[str, tuple[Callable[[Config], Knobs], dict[str, str]]] = {
    "falcon": (falcon, FALCON),
    "gemma": (gemma, LLAMA),
    "gpt2": (gpt2, GPT2),
    "llama": (llama, LLAMA),
    "mistral": (mistral, LLAMA),
    "qwen2": (qwen2, LLAMA),
    "qwen3": (qwen3, QWEN3),
}

# ---- from a checkpoint's tensors to the canonical ones -------------------------------------------------------------------


def canonical(config: dict, tensors: dict[str, Tensor]) -> tuple[str, Knobs, dict[str, Tensor], list[str]]:
    """A Hugging Face config and its tensors -> the family, its knobs, the canonical tensors in the order of the file, and
    remarks for the user. Nothing is read but two embeddings that may be one. Errors: ExportError."""
    c = Config(config)
    family = c.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ExportError(f"config.json: model_type is {family!r}, which is not supported; supported: {', '.join(FAMILIES)}")
    c.require(quantization_config=None)
    knobs_of, names = FAMILIES[family]
    knobs = knobs_of(c)
    c.finish()
    if knobs.n_heads % knobs.n_kv_heads:
        raise ExportError(f"config.json: {knobs.n_heads} query heads are no multiple of {knobs.n_kv_heads} KV heads")
    found, remarks = _assemble(knobs, names, dict(tensors))
    return family, knobs, found, remarks


def _assemble(knobs: Knobs, names: dict[str, str], left: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Takes each tensor of `names` out of `left`, checks its shape, and makes the canonical ones of it."""
    prefix = names["embed"].split(".")[0] + "."
    bare = not any(name.startswith(prefix) for name in left)  # saved from the model without its head
    found: dict[str, Tensor] = {}
    remarks: list[str] = []

    def module(name: str) -> str:
        return name[len(prefix) :] if bare and name.startswith(prefix) else name

    _tie(knobs, module(names["embed"]), names["output"], left, remarks)
    for name, source in in_layers(names, knobs.n_layers):
        source = module(source)
        if name == "output" and source + ".weight" not in left and knobs.tied:
            continue
        weight = _take(left, source + ".weight")
        matrix = name.split(".")[-1]
        norm = matrix.endswith("norm")
        transposed = knobs.conv1d and not norm and "." in name
        _check_shape(weight, knobs.shape(matrix), transposed)
        if transposed:
            weight = weight.map(lambda w: np.ascontiguousarray(w.T), weight.shape[::-1])
        if norm and knobs.norm_offset:
            weight = weight.map(lambda w: w + np.float32(knobs.norm_offset))
        bias = None
        if matrix in knobs.biased or norm and knobs.layernorm:
            bias = left.pop(source + ".bias", None)
            if bias is not None:
                _check_shape(bias, knobs.shape(matrix)[:1])
        for part, begin, end in _parts(knobs, name):
            found[part] = weight if begin is None else weight.slice(begin, end)
            if bias is not None:
                found[part + ".bias"] = bias if begin is None else bias.slice(begin, end)
    unused = [name for name in left if not SKIPPED.search(name)]
    if unused:
        raise ExportError(
            f"the checkpoint holds {unused[0]}"
            + (f" and {len(unused) - 1} more tensors" if unused[1:] else "")
            + ", which nothing in this family uses"
        )
    return found, remarks


def _tie(knobs: Knobs, embed: str, output: str, left: dict[str, Tensor], remarks: list[str]) -> None:
    """What transformers does with tied embeddings: either name may hold them, and a head that differs is used as it is."""
    if not knobs.tied or output + ".weight" not in left:
        return
    if embed + ".weight" not in left:
        left[embed + ".weight"] = left.pop(output + ".weight")
    elif _equal(left[embed + ".weight"], left[output + ".weight"]):
        del left[output + ".weight"]
    else:
        remarks.append(
            f"tie_word_embeddings is true, but {output}.weight differs from the embedding: kept, as transformers does"
        )


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    rows_a, rows_b = a.load(), b.load()
    return all(
        np.array_equal(rows_a(i, min(i + 256, a.shape[0])), rows_b(i, min(i + 256, a.shape[0])))
        for i in range(0, a.shape[0], 256)
    )


def in_layers(names: dict[str, str], n_layers: int) -> list[tuple[str, str]]:
    """The table with N replaced, the layers' names in the middle."""
    items = list(names.items())
    per_layer = [(k, v) for k, v in items if ".N." in k]
    before = items[: items.index(per_layer[0])]
    after = [(k, v) for k, v in items if ".N." not in k and (k, v) not in before]
    layers = [(k.replace(".N.", f".{i}."), v.replace(".N.", f".{i}.")) for i in range(n_layers) for k, v in per_layer]
    return before + layers + after


def _parts(knobs: Knobs, name: str):
    """(canonical name, first row, last row + 1) of each matrix in a fused one; the rows are None if it is not fused."""
    if not name.endswith("attn_qkv"):
        return [(name, None, None)]
    base, at, parts = name[: -len("qkv")], 0, []
    for letter in "qkv":
        rows = knobs.shape("attn_" + letter)[0]
        parts.append((base + letter, at, at + rows))
        at += rows
    return parts


def _take(left: dict[str, Tensor], name: str) -> Tensor:
    if name not in left:
        raise ExportError(f"the checkpoint lacks the tensor {name}")
    return left.pop(name)


def _check_shape(tensor: Tensor, expected: tuple[int, ...], transposed: bool = False) -> None:
    expected = expected[::-1] if transposed else expected
    if tuple(tensor.shape) != expected:
        raise ExportError(f"tensor {tensor.name} has shape {list(tensor.shape)}, config.json makes it {list(expected)}")


def pool_kv_heads(knobs: Knobs, tensors: dict[str, Tensor], n_kv_heads: int) -> None:
    """Makes the K and V heads fewer by averaging neighbours, weights and biases: Ainslie et al. 2023, "GQA: Training
    Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", section 2.1. Changes knobs and tensors in place.
    Errors: ExportError if n_kv_heads is no divisor of what there is."""
    if n_kv_heads < 1 or knobs.n_kv_heads % n_kv_heads:
        divisors = [str(n) for n in range(1, knobs.n_kv_heads + 1) if knobs.n_kv_heads % n == 0]
        raise ExportError(
            f"--kv-heads {n_kv_heads} does not divide the model's {knobs.n_kv_heads} KV heads; possible: "
            + ", ".join(divisors)
        )
    group, head_dim = knobs.n_kv_heads // n_kv_heads, knobs.head_dim

    def pool(w: np.ndarray) -> np.ndarray:
        return (
            w.reshape(n_kv_heads, group, head_dim, -1).mean(1, dtype=np.float64).astype(np.float32).reshape(-1, *w.shape[1:])
        )

    for name, tensor in tensors.items():
        if re.search(r"\.attn_[kv](\.bias)?$", name):
            tensors[name] = tensor.map(pool, (n_kv_heads * head_dim, *tensor.shape[1:]))
    knobs.n_kv_heads = n_kv_heads
