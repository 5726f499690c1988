"""GTE and Jina Embeddings 3."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .bert import bert_block
from .common import QKVO, in_layer, rotate
from .encoder import encoder
from .nomic_bert import NOMIC_BERT, QKV_APART, FirstNames
from .roberta import ROBERTA


def _rotating_bert(c: Config, theta: float, *ffn: str, **defaults) -> Knobs:
    c.choice("position_embedding_type", {"rope": 0, "rotary": 0, "absolute": 0}, "absolute")
    c.values = {**c.values, "position_embedding_type": "absolute"}  # they have rope alone
    k = bert_block(c, max_position_embeddings=8192, **defaults)
    if c.get("head_dim") is not None:
        k.head_dim = c.int("head_dim")
    rotate(c, k, theta=theta)
    k.biased = (*QKVO, *ffn, "head_dense", "output")
    types = c.int("type_vocab_size", 1, least=0)
    return encoder(c, k, types=types, bias="lm_head.bias")


def gte(c: Config) -> Knobs:
    """GTE: BERT with rope and gates."""
    k = _rotating_bert(c, 160000.0, "ffn_down", vocab_size=250048)
    c.require(pack_qkv=True, layer_norm_type="layer_norm", logn_attention_scale=False)
    c.ignore("logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention")
    k.parts.insert(0, FirstNames([], GTE_NAMES, GTE_FUSED))
    if not c.get("type_vocab_size", 1):
        k.names = {name: module for name, module in GTE.items() if name != "embed_type"}
    return k


def jina_embeddings_v3(c: Config) -> Knobs:
    """Jina Embeddings 3 without its adapters: XLM-RoBERTa with rope."""
    k = _rotating_bert(c, 20000.0, "ffn_up", "ffn_down", vocab_size=250002, layer_norm_eps=1e-5)
    k.parts.insert(0, FirstNames([], JINA_NAMES, (("mixer.Wqkv", QKV_APART),)))
    return k


GTE_NAMES = (
    ("new.", "gte."),
    ("encoder.layer.", "layers."),
    ("attention.o_proj", "self_attn.o_proj"),
    ("attn_ln", "post_attention_layernorm"),
    ("mlp_ln", "post_mlp_layernorm"),
    ("lm_head.norm", "lm_head.layer_norm"),
)
GTE_FUSED = (
    ("attention.qkv_proj", QKV_APART),
    ("mlp.up_gate_proj", ("mlp.up_proj", "mlp.gate_proj")),
)
JINA_NAMES = (
    ("emb_ln.", "embeddings.LayerNorm."),
    ("encoder.layers.", "layers."),
    ("mixer.out_proj", "self_attn.o_proj"),
    ("norm1", "post_attention_layernorm"),
    ("norm2", "post_mlp_layernorm"),
)
_HEAD = {name: ROBERTA[name] for name in ("head_dense", "head_norm", "output")}
GTE = {
    **{name: module.replace("nomic_bert.", "gte.") for name, module in NOMIC_BERT.items()},
    **_HEAD,
}
JINA_EMBEDDINGS_V3 = {
    **{
        name: module.replace("nomic_bert.", "roberta.")
        for name, module in NOMIC_BERT.items()
        if name != "layers.N.ffn_gate"
    },
    **in_layer("roberta.layers.N.mlp", ffn_up="fc1", ffn_down="fc2"),
    **_HEAD,
}
