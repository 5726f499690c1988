"""XLM."""

from __future__ import annotations

from ..config import Config
from ..knobs import ACTS, Knobs
from ..layers.part import Skipped
from .bert import bert_block
from .common import in_layer
from .encoder import encoder


def xlm(c: Config) -> Knobs:
    """XLM: BERT without kinds of tokens; causal if the config says so."""
    width = c.int("emb_dim", 2048)
    c.default(
        hidden_size=width,
        num_hidden_layers=c.get("n_layers", 12),
        num_attention_heads=c.get("n_heads", 16),
        vocab_size=c.get("n_words", 30145),
    )
    c.values = {**c.values, "intermediate_size": 4 * width}
    k = bert_block(c, hidden_act="gelu")
    k.act = ACTS["gelu" if c.flag("gelu_activation", True) else "relu"]
    c.require(asm=False, is_encoder=True)
    # Positions are in the file, and a text without a language has no embedding of one.
    c.ignore("sinusoidal_embeddings", "n_langs", "use_lang_emb", "lang_id", "lang2id", "id2lang")
    c.ignore(
        "mask_token_id", "start_n_top", "end_n_top", "embed_init_std", "max_vocab", "min_count"
    )
    c.ignore(*(f"{name}_index" for name in ("bos", "eos", "pad", "unk", "mask")))
    c.ignore("summary_proj_to_labels", "summary_first_dropout")
    c.require(same_enc_dec=True, share_inout_emb=True)
    k.parts.append(Skipped([], prefixes=("transformer.lang_embeddings.",)))
    k = encoder(c, k)
    k.mask = 0 if c.flag("causal", False) else 1
    return k


XLM = {
    "embed": "transformer.embeddings",
    "embed_pos": "transformer.position_embeddings",
    "embed_norm": "transformer.layer_norm_emb",
    **in_layer(
        "transformer",
        attn_q="attentions.N.q_lin",
        attn_k="attentions.N.k_lin",
        attn_v="attentions.N.v_lin",
        attn_o="attentions.N.out_lin",
        attn_norm="layer_norm1.N",
        ffn_up="ffns.N.lin1",
        ffn_down="ffns.N.lin2",
        ffn_norm="layer_norm2.N",
    ),
    "output": "pred_layer.proj",
}
