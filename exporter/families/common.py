"""What families share: Llama's block, rope, biases, ALiBi, kinds of layers, and tables of names."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

from ..config import Config
from ..knobs import ACTS, Knobs
from ..rope import FULL, Shape, rope_set
from ..tensor import ExportError

QKV = ("attn_q", "attn_k", "attn_v")
QKVO = (*QKV, "attn_o")
FFN = ("ffn_gate", "ffn_up", "ffn_down")


def llama_block(
    c: Config,
    eps: str = "rms_norm_eps",
    act: str = "hidden_act",
    acts: dict[str, int] = ACTS,
    head_dim_key: bool = True,
    **defaults,
) -> Knobs:
    """The knobs of Llama and of all that differ from it in details, without rope. `defaults` are
    the family's values of keys that are absent, where they are not Llama's; `eps` and `act` are the
    keys of the norms' epsilon and of the activation, `acts` the activations there are; head_dim_key
    False: the family ignores the key head_dim."""
    c.default(**defaults)
    if not head_dim_key:
        c.ignore("head_dim")
    c.default(
        num_key_value_heads=None,
        max_position_embeddings=2048,
        hidden_act="silu",
        tie_word_embeddings=False,
    )
    n_embd, n_heads = c.int("hidden_size"), c.int("num_attention_heads")
    head_dim = c.get("head_dim") if head_dim_key else None
    if head_dim is None:
        if n_embd % n_heads:
            raise ExportError(
                f"{c.where}: hidden_size {n_embd} is no multiple of num_attention_heads {n_heads}, "
                "and there is no head_dim"
            )
        head_dim = n_embd // n_heads
    else:
        head_dim = c.int("head_dim")
    return Knobs(
        vocab_size=c.int("vocab_size"),
        n_embd=n_embd,
        n_layers=c.int("num_hidden_layers", most=4096),
        context=c.int("max_position_embeddings"),
        n_heads=n_heads,
        n_kv_heads=n_heads
        if c.get("num_key_value_heads") is None
        else c.int("num_key_value_heads"),
        head_dim=head_dim,
        d_ff=c.int("intermediate_size"),
        act=c.choice(act, acts),
        norm_eps=c.number(eps, 1e-6),
        tied=c.flag("tie_word_embeddings", False),
    )


def rotate(
    c: Config, k: Knobs, theta: float = 10000.0, partial: float | None = None, **more
) -> None:
    """One rope for all layers."""
    rope = rope_set(c, Shape(k.head_dim, k.context, theta, partial, **more))
    k.rotate(*[rope] * k.n_layers)


def default_rope(c: Config, **parameters) -> None:
    """The rope parameters of a config that has none."""
    if not c.get("rope_scaling") and not c.get("rope_parameters"):
        c.values = {**c.values, "rope_parameters": parameters}


def biases(
    c: Config, of_attention=QKVO, attention: bool = False, ffn: bool = False
) -> tuple[str, ...]:
    """The matrices with a bias, by attention_bias and mlp_bias; the arguments are their
    defaults."""
    return of_attention * c.flag("attention_bias", attention) + FFN * c.flag("mlp_bias", ffn)


def every(n: int) -> Callable[[int], bool]:
    """Sliding layers of which every n-th is a full one."""
    return lambda layer: (layer + 1) % n != 0


def alibi_slopes(n_heads: int) -> np.ndarray:
    """float32 [n_heads] slopes of ALiBi (Press et al. 2022): for a power of two 2^(-8h/n), h =
    1..n; otherwise the slopes for the power below, and every other slope for the power above."""
    power = 1 << n_heads.bit_length() - 1
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (n_heads - power), 2)]
    return np.array(slopes, np.float32)


def sinusoid(n: int, dim: int) -> np.ndarray:
    """float32 [n][dim], Marian's: sines of the even frequencies first, then cosines of the odd."""
    j = np.arange(dim)
    angles = np.arange(n)[:, None] / np.power(10000, 2 * (j // 2) / dim)
    return np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], 1).astype(np.float32)


def m2m_sinusoid(n: int, dim: int) -> np.ndarray:
    """float32 [n][dim], fairseq's: half of them sines, half cosines."""
    half = dim // 2
    step = np.float32(-math.log(10000) / (half - 1))
    frequencies = np.exp(np.arange(half, dtype=np.float32) * step)
    angles = np.arange(n, dtype=np.float32)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    return np.pad(table, ((0, 0), (0, dim % 2)))


def without(names: dict, *kinds: str) -> dict:
    """A table without the entries of these kinds."""
    return {name: module for name, module in names.items() if name.split(".")[-1] not in kinds}


def in_layer(prefix: str, **modules: str | None) -> dict:
    """Entries of a layer."""
    return {f"layers.N.{name}": module and f"{prefix}.{module}" for name, module in modules.items()}


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
QK_NORM = in_layer("model.layers.N.self_attn", attn_q_norm="q_norm", attn_k_norm="k_norm")
POST_NORM = {
    **without(LLAMA, "attn_norm", "ffn_norm"),
    **in_layer(
        "model.layers.N",
        attn_post_norm="post_attention_layernorm",
        ffn_post_norm="post_feedforward_layernorm",
    ),
    **QK_NORM,
}
NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "norm")
PLAIN_FFN = without(LLAMA, "ffn_gate")
FUSED_FFN = {
    **without(PLAIN_FFN, "ffn_up"),
    **in_layer("model.layers.N.mlp", ffn_gate_up="gate_up_proj", ffn_down="down_proj"),
}
LINEAR = "linear_attention"
OLD_KINDS = {"mamba": LINEAR, "attention": FULL}  # of layer_types


def kinds_of(c: Config, kinds, n_layers: int, known: tuple[str, ...]) -> list[str]:
    """The kinds of the layers by their present names. Errors: ExportError for another."""
    kinds = kinds if isinstance(kinds, list) else []
    found = [OLD_KINDS.get(kind, kind) for kind in kinds if isinstance(kind, str)]
    if len(found) != n_layers or not set(found) <= set(known):
        raise ExportError(
            f"{c.where}: the kinds of the layers are no list of {n_layers} of {', '.join(known)}"
        )
    return found


def with_silu(c: Config, layers: list[bool]) -> list[bool]:
    """Those layers, which have a convolution or a state: there transformers uses hidden_act too,
    and the engine SiLU. Refuses another one."""
    if any(layers):
        c.require(hidden_act="silu")
    return layers


def mixer_kinds(c: Config, n_layers: int, known: tuple[str, ...], usual: list[str]) -> list[str]:
    """layer_types, of which `known` may be there, or `usual`."""
    kinds = c.list("layer_types") or usual
    if len(kinds) != n_layers or not all(kind in known for kind in kinds):
        raise ExportError(
            f"{c.where}: layer_types is not a list of {n_layers} of {', '.join(known)}"
        )
    return kinds
