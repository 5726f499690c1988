"""Nomic's BERT."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..rope import Shape, rope_set
from .bert import bert_block
from .common import in_layer
from .encoder import encoder


def nomic_bert(c: Config) -> Knobs:
    """Nomic's BERT: rope, gates, no biases in the layers."""
    head_dim = c.get("head_dim")
    k = bert_block(c, vocab_size=30528, hidden_act="silu", max_position_embeddings=2048)
    if head_dim is not None:
        k.head_dim = c.int("head_dim")
    rope = rope_set(c, Shape(k.head_dim, k.context, theta=1000.0))
    k.rotate(*[rope] * k.n_layers)
    k.biased = ("head_dense", "output")
    k.parts.append(FirstNames([], NOMIC_NAMES, (("attn.Wqkv", QKV_APART),)))
    return encoder(
        c, k, types=c.int("type_vocab_size", 2), head_act=k.act, bias="cls.predictions.bias"
    )


@dataclass
class FirstNames(Part):
    """The names of transformers for those that the first files have, and matrices apart that were
    one: `names` are pairs of old and new, `fused` is the old one's name and its parts' names."""

    names: tuple[tuple[str, str], ...]
    fused: tuple[tuple[str, tuple[str, ...]], ...]

    def arrange(self, left):
        for name in list(left):
            new = name
            for old, now in self.names:
                new = new.replace(old, now)
            left[new] = tensor = left.pop(name)
            for whole, parts in self.fused:
                if f".{whole}." not in new:
                    continue
                n = left.pop(new).shape[0] // len(parts)
                for i, part in enumerate(parts):
                    left[new.replace(whole, part)] = tensor.slice(i * n, (i + 1) * n)


QKV_APART = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
NOMIC_NAMES = (
    ("encoder.layers.", "layers."),
    ("emb_ln.", "embeddings.LayerNorm."),
    ("attn.out_proj", "self_attn.o_proj"),
    ("fc11", "up_proj"),
    ("fc12", "gate_proj"),
    ("fc2", "down_proj"),
    ("norm1", "post_attention_layernorm"),
    ("norm2", "post_mlp_layernorm"),
)


NOMIC_BERT = {
    "embed": "nomic_bert.embeddings.word_embeddings",
    "embed_type": "nomic_bert.embeddings.token_type_embeddings",
    "embed_norm": "nomic_bert.embeddings.LayerNorm",
    **in_layer(
        "nomic_bert.layers.N",
        attn_q="self_attn.q_proj",
        attn_k="self_attn.k_proj",
        attn_v="self_attn.v_proj",
        attn_o="self_attn.o_proj",
        attn_norm="post_attention_layernorm",
        ffn_gate="mlp.gate_proj",
        ffn_up="mlp.up_proj",
        ffn_down="mlp.down_proj",
        ffn_norm="post_mlp_layernorm",
    ),
    "head_dense": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.layer_norm",
    "output": "cls.predictions.decoder",
}
