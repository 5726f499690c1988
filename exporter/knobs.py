"""What docs/format.md calls the model's knobs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .layers.part import KINDS, Part
from .rope import Rope
from .tensor import Tensor

ACTS = {
    "silu": 0,
    "swish": 0,
    "gelu": 1,
    "gelu_new": 2,
    "gelu_fast": 2,
    "gelu_pytorch_tanh": 2,
    "relu": 3,
    "relu2": 4,
}
XIELU = 5
# Bits 1, 2, 4, 8 of layer.norms.
NORM_SLOTS = ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm")
PER_HEAD, WHOLE, DISTINCT, AFTER_ROPE = range(4)  # values of layer.qk_norm


def of_layer(value, layer: int):
    """A knob's value in a layer: knobs that differ among layers are lists."""
    return value[layer] if isinstance(value, list) else value


def values_of(value) -> list:
    """All values of a knob."""
    return value if isinstance(value, list) else [value]


@dataclass
class Knobs:
    """The knobs, and what assembling the tensors must know besides. A list has a value a
    layer; so may n_heads, n_kv_heads, head_dim, d_ff and attn_scale."""

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
    post_norm: bool = False  # norms of sums, not of what a branch reads
    normed_residual: bool = False  # norms of the residual stream itself
    nested: list[bool] = field(default_factory=lambda: [False])  # branches one in the other
    emb_scale: float = 1.0
    d_embed: int = 0  # width of the embedding; 0: n_embd
    has_head: bool = True  # False: it gives hidden states and no logits
    head_act: int = 0  # between the last norm and the output, in masked language models
    final_softcap: float = 0.0
    ropes: list[Rope] = field(default_factory=list)
    rope: list[int] = field(default_factory=lambda: [-1])  # of ropes, -1 for none
    window: list[int] = field(default_factory=lambda: [0])
    mask: int | list[int] = 0  # 1: tokens see those after them
    source_layers: int = 0  # of an encoder, before the decoder's
    guess_layers: int = 0  # that guess next tokens, behind the text's
    source_vocab: int = 0  # ids that it reads, where they are others; 0: the same
    attn_scale: float | None = None  # None: head_dim^-1/2
    softcap: float = 0.0
    clip: float = 0.0
    residual_scale: float = 1.0
    qk_norm: int = PER_HEAD
    q_temp: list[float] = field(default_factory=list)  # of every q_temp_length positions
    q_temp_length: int = 0
    q_temp_ahead: int = 0  # added to a position
    q_temp_layers: list[int] = field(default_factory=lambda: [1])  # 0: not in this layer
    chunked: int | list[int] = 0  # 1: windows begin at multiples of their length
    slopes: np.ndarray | None = None  # ALiBi: float32 [n_heads]

    pooling: dict[str, object] = field(default_factory=dict)  # model.pooling and its like
    classes: dict[str, object] = field(default_factory=dict)  # model.class_pooling and its like
    rules: dict[str, object] = field(default_factory=dict)  # model.start and its like

    # For layers that differ: experts, gates, mixers other than attention.
    parts: list[Part] = field(default_factory=list)
    names: dict[str, str | None] | None = (
        None  # instead of the family's, where they depend on the config
    )
    biased: tuple[str, ...] = ()  # the matrices that may have a bias
    bare_norms: tuple[str, ...] = ()  # the LayerNorms that have none
    norm_offset: float = 0.0  # added to the weights of every norm
    skipped_positions: int = 0  # rows of embed_pos that no position uses, before the others
    padding: int = -1  # of an encoder's tokens: has row `padding` of embed_pos wherever it stands
    logit_scale: float = 1.0  # which goes into the final norm
    conv1d: bool = False  # a layer's matrices are stored [n_in, n_out]
    grouped_qkv: bool = (
        False  # attn_qkv has for each KV head its queries, k and v; not all q, all k, all v
    )
    interleaved: bool = False  # rope rotates the pairs (2i, 2i + 1) of the checkpoint's heads

    def rotate(self, *ropes: Rope | None) -> None:
        """Sets the rope of the layers: one for all, or one each; None for none."""
        self.ropes = [r for i, r in enumerate(ropes) if r is not None and r not in ropes[:i]]
        self.rope = [-1 if r is None else self.ropes.index(r) for r in ropes]

    def metadata(self, tensors: dict[str, Tensor]) -> dict[str, object]:
        """The knobs as entries of the file that holds these tensors."""
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
        meta.update(self.pooling)
        meta.update(self.classes)
        meta.update(self.rules)
        if self.guess_layers:
            meta["model.guess_layers"] = self.guess_layers
        if self.padding >= 0:
            meta["model.padding"] = self.padding
        if not self.has_head:
            meta["model.head"] = 0
        if self.width != self.n_embd:
            meta["model.d_embed"] = self.width
        if "head_dense" in tensors:
            meta["model.head_act"] = self.head_act
        if self.final_softcap:
            meta["model.final_softcap"] = float(self.final_softcap)
        if self.q_temp:
            meta["model.q_temp"] = [float(x) for x in self.q_temp]
            meta["model.q_temp_length"] = self.q_temp_length
            if self.q_temp_ahead:
                meta["model.q_temp_ahead"] = self.q_temp_ahead
        for i, rope in enumerate(self.ropes):
            meta.update(self._rope_metadata(f"model.rope.{i}.", rope))
        layers = range(self.n_layers)
        scale = self.attn_scale
        if scale is None:
            scale = [of_layer(self.head_dim, i) ** -0.5 for i in layers]
        norms = [
            sum(1 << bit for bit, slot in enumerate(NORM_SLOTS) if f"layers.{i}.{slot}" in tensors)
            for i in layers
        ]
        per_layer = {
            "layer.n_heads": self.n_heads,
            "layer.n_kv_heads": self.n_kv_heads,
            "layer.head_dim": self.head_dim,
            "layer.rope": self.rope,
            "layer.window": self.window,
            "layer.attn_scale": scale,
            "layer.topology": 1
            if self.parallel
            else 2
            if self.post_norm
            else 3
            if self.normed_residual
            else [4 * nested for nested in self.nested],
            "layer.d_ff": self.d_ff,
            "layer.ffn": [
                int(f"layers.{i}.ffn_gate" in tensors or f"layers.{i}.expert_gate" in tensors)
                for i in layers
            ],
            "layer.act": self.act,
        }
        unusual = {
            "layer.norms": (norms, 1 if self.parallel else 5),
            "layer.mask": (self.mask, 0),
            "layer.chunked": (self.chunked, 0),
            "layer.q_temp": (self.q_temp_layers, 1),
            "layer.qk_norm": (self.qk_norm, PER_HEAD),
            "layer.softcap": (self.softcap, 0.0),
            "layer.clip": (self.clip, 0.0),
            "layer.residual_scale": (self.residual_scale, 1.0),
        }
        per_layer.update(
            {key: value for key, (value, usual) in unusual.items() if _alike(value) != usual}
        )
        mixers = [
            next((part.mixer for part in self.parts if part.mixer and part.layers[i]), 0)
            for i in layers
        ]
        if any(mixers):
            per_layer["layer.mixer"] = mixers
        for part in self.parts:
            if any(part.layers):
                per_layer.update(part.metadata())
        return {**meta, **{key: _alike(value) for key, value in per_layer.items()}}

    @staticmethod
    def _rope_metadata(key: str, rope: Rope) -> dict[str, object]:
        meta: dict[str, object] = {key + "inv_freq": rope.inv_freq}
        if rope.multiplier != 1:
            meta[key + "multiplier"] = float(rope.multiplier)
        if rope.long_freq is not None:
            meta[key + "long_freq"] = rope.long_freq
            meta[key + "length"] = rope.length
            multiplier = rope.multiplier if rope.long_multiplier is None else rope.long_multiplier
            if multiplier != 1:
                meta[key + "long_multiplier"] = float(multiplier)
        return meta

    @property
    def width(self) -> int:
        """The embedding's width."""
        return self.d_embed or self.n_embd

    def part_of(self, kind: str) -> Part | None:
        """The part that such a tensor belongs to."""
        return next((part for part in self.parts if kind in part.shapes(self.n_embd)), None)

    def has(self, kind: str, layer: int) -> bool:
        """Whether a layer has such a tensor, if the family's table names it."""
        part = self.part_of(kind)
        if any(kind in p.lacks and p.layers[layer] for p in self.parts):
            return False
        if part or kind in KINDS:
            return part is not None and part.layers[layer]
        if kind.startswith("attn_") and kind not in NORM_SLOTS:
            return not any(part.mixes and part.layers[layer] for part in self.parts)
        if kind.startswith("ffn_") and kind not in NORM_SLOTS:
            return of_layer(self.d_ff, layer) > 0
        return True

    def bias_shape(self, name: str, layer: int = 0) -> tuple[int]:
        """The shape of such a weight's bias."""
        part = self.part_of(name)
        return (part.channels,) if name == "conv" else self.shape(name, layer)[:1]

    def shape(self, name: str, layer: int = 0) -> tuple[int, ...]:
        """The shape of a canonical weight of a layer, or of one that is fused."""
        part = self.part_of(name)
        if part:
            return part.shapes(self.n_embd)[name]
        head_dim, d_ff = of_layer(self.head_dim, layer), of_layer(self.d_ff, layer)
        n_heads = of_layer(self.n_heads, layer)
        q, kv = n_heads * head_dim, of_layer(self.n_kv_heads, layer) * head_dim
        all_heads = self.qk_norm in (WHOLE, DISTINCT)
        read = self.n_embd * (2 if self.nested[layer % len(self.nested)] else 1)  # by attention
        return {
            "embed": (self.vocab_size, self.width),
            "embed_pos": (self.skipped_positions + self.context, self.width),
            "embed_norm": (self.width,),
            "output": (self.vocab_size, self.width),
            "guess_proj": (self.n_embd, 2 * self.n_embd),
            "guess_embed": (self.vocab_size, self.n_embd),
            "guess_output": (self.vocab_size, self.n_embd),
            "attn_norm": (read,),
            "attn_q": (q, read),
            "attn_k": (kv, read),
            "attn_v": (kv, read),
            "attn_qkv": (q + 2 * kv, read),
            "attn_o": (self.n_embd, q),
            "attn_q_norm": (q if all_heads else head_dim,),
            "attn_k_norm": (kv if all_heads else head_dim,),
            "attn_v_norm": (head_dim,),
            "attn_sub_norm": (q,),
            "attn_sinks": (n_heads,),
            "out_scale": (1,),
            "ffn_gate": (d_ff, self.n_embd),
            "ffn_up": (d_ff, self.n_embd),
            "ffn_gate_up": (2 * d_ff, self.n_embd),
            "ffn_down": (self.n_embd, d_ff),
            "ffn_sub_norm": (d_ff,),
        }.get(name.split(".")[-1], (self.n_embd,))


def _alike(value):
    """One value for all layers, if they all have the same."""
    return value[0] if isinstance(value, list) and len(set(value)) == 1 else value
