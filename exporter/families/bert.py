"""BERT, its kin Megatron-BERT, BigBird and BertGeneration, and the block of others."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..tensor import expect, modules
from .common import FFN, QKVO, in_layer, llama_block
from .encoder import encoder

BIASED = (*QKVO, *FFN, "embed_proj", "head_dense", "output")


def bert_block(c: Config, act: str = "hidden_act", **defaults) -> Knobs:
    """The knobs of BERT: LayerNorms of sums, biases everywhere, learned positions."""
    k = llama_block(
        c,
        "layer_norm_eps",
        act,
        head_dim_key=False,
        **{
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "max_position_embeddings": 512,
            "layer_norm_eps": 1e-12,
            "tie_word_embeddings": True,
            **defaults,
        },
    )
    c.require(position_embedding_type="absolute")
    k.n_kv_heads, k.layernorm, k.post_norm, k.biased = k.n_heads, True, True, BIASED
    return k


def bert(c: Config) -> Knobs:
    """BERT, MiniLM, E5, BGE: learned positions, norms of sums, token kinds, a head for masked words."""
    k = bert_block(c, vocab_size=30522)
    return encoder(
        c,
        k,
        causal=True,
        types=c.int("type_vocab_size", 2),
        head_act=k.act,
        bias="cls.predictions.bias",
    )


def bert_names(base: str) -> dict:
    """BERT's embedding and layers."""
    return {
        "embed": base + ".embeddings.word_embeddings",
        "embed_pos": base + ".embeddings.position_embeddings",
        "embed_type": base + ".embeddings.token_type_embeddings",
        "embed_norm": base + ".embeddings.LayerNorm",
        **in_layer(
            base + ".encoder.layer.N",
            attn_q="attention.self.query",
            attn_k="attention.self.key",
            attn_v="attention.self.value",
            attn_o="attention.output.dense",
            attn_norm="attention.output.LayerNorm",
            ffn_up="intermediate.dense",
            ffn_down="output.dense",
            ffn_norm="output.LayerNorm",
        ),
    }


BERT = {
    **bert_names("bert"),
    "head_dense": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.LayerNorm",
    "output": "cls.predictions.decoder",
}


def megatron_bert(c: Config) -> Knobs:
    """Megatron-BERT: BERT with norms of branches' inputs."""
    k = bert(c)
    k.post_norm = False
    return k


MEGATRON_BERT = {
    **{name: module for name, module in BERT.items() if name != "embed_norm"},
    **in_layer("bert.encoder.layer.N", attn_norm="attention.ln", ffn_norm="ln"),
    "norm": "bert.encoder.ln",
}


@dataclass
class FirstPositions(Part):
    """Of a table of `n` positions the first `kept`."""

    n: int
    kept: int

    def arrange(self, left):
        for module in modules(left, "position_embeddings.weight"):
            name = module + ".position_embeddings.weight"
            left[name] = expect(left[name], self.n, *left[name].shape[1:]).slice(0, self.kept)


def big_bird(c: Config) -> Knobs:
    """BigBird: BERT, perhaps with a scaled embedding. A model with sparse attention reads texts so
    short that transformers attends to all of them."""
    kinds = {"block_sparse": True, "original_full": False}
    sparse = c.choice("attention_type", kinds, "block_sparse")
    c.ignore("block_size", "num_random_blocks")  # of sparse attention
    c.require(use_bias=True)
    c.default(hidden_act="gelu_new", max_position_embeddings=4096, vocab_size=50358)
    k = bert(c)
    k.emb_scale = k.n_embd**0.5 if c.flag("rescale_embeddings", False) else 1.0
    if not sparse:
        return k
    short = (5 + 2 * c.int("num_random_blocks", 3, least=0)) * c.int("block_size", 64)
    if short < k.context:
        k.parts.append(FirstPositions([], k.context, short))
        k.context = short
        c.remarks.append(
            f"{c.where}: attention_type is block_sparse: texts have at most {short} tokens, up to "
            "which transformers attends to all of them"
        )
    return k


def bert_generation(c: Config) -> Knobs:
    """BERT as a decoder of BertGeneration: no kinds of tokens, a head without a layer."""
    c.default(is_decoder=False)
    c.require(is_decoder=True)
    k = bert_block(c, vocab_size=50358)
    return encoder(c, k, causal=True, bias="lm_head.bias")


BERT_GENERATION = {
    **{name: module for name, module in bert_names("bert").items() if name != "embed_type"},
    "output": "lm_head.decoder",
}


def renamed(names: dict, base: str) -> dict:
    """A table whose modules begin with another name than `bert` or `roberta`."""
    return {name: re.sub(r"^(rob|b)erta?\.", base + ".", module) for name, module in names.items()}
