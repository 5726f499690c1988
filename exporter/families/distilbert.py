"""DistilBERT."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .bert import bert_block
from .common import in_layer
from .encoder import encoder


def distilbert(c: Config) -> Knobs:
    """DistilBERT: BERT without kinds of tokens, under other names."""
    c.default(
        hidden_size=c.get("dim", 768),
        num_hidden_layers=c.get("n_layers", 6),
        num_attention_heads=c.get("n_heads", 12),
        activation="gelu",
    )
    c.ignore("sinusoidal_pos_embds", "attention_dropout", "tie_weights_", "hidden_act")
    fixed = {"layer_norm_eps": 1e-12, "intermediate_size": c.int("hidden_dim", 3072)}
    c.values = {**c.values, **fixed}
    k = bert_block(c, act="activation", vocab_size=30522)
    return encoder(c, k, head_act=k.act)


DISTILBERT = {
    "embed": "distilbert.embeddings.word_embeddings",
    "embed_pos": "distilbert.embeddings.position_embeddings",
    "embed_norm": "distilbert.embeddings.LayerNorm",
    **in_layer(
        "distilbert.transformer.layer.N",
        attn_q="attention.q_lin",
        attn_k="attention.k_lin",
        attn_v="attention.v_lin",
        attn_o="attention.out_lin",
        attn_norm="sa_layer_norm",
        ffn_up="ffn.lin1",
        ffn_down="ffn.lin2",
        ffn_norm="output_layer_norm",
    ),
    "head_dense": "vocab_transform",
    "head_norm": "vocab_layer_norm",
    "output": "vocab_projector",
}
