"""ELECTRA."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .bert import bert_block, bert_names
from .encoder import encoder


def electra(c: Config) -> Knobs:
    """ELECTRA, as generators of masked words or bare: an embedding of its own width."""
    k = bert_block(
        c, vocab_size=30522, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    )
    d_embed = c.int("embedding_size", 128)
    if d_embed == k.n_embd:
        k.names = {name: module for name, module in ELECTRA.items() if name != "embed_proj"}
    return encoder(c, k, causal=True, types=c.int("type_vocab_size", 2), d_embed=d_embed)


ELECTRA = {
    **bert_names("electra"),
    "embed_proj": "electra.embeddings_project",
    "head_dense": "generator_predictions.dense",
    "head_norm": "generator_predictions.LayerNorm",
    "output": "generator_lm_head",
}
