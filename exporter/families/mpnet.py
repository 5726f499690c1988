"""MPNet."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.attention import RelativeBias
from .bert import bert_block, bert_names
from .encoder import encoder
from .roberta import ROBERTA, skip_padding


def mpnet(c: Config) -> Knobs:
    """MPNet: biases by distance, the same ones in all layers."""
    c.require(relative_attention_num_buckets=32)  # the code has the number, whatever this says
    k = bert_block(c, vocab_size=30527)
    k.parts.append(RelativeBias([True] * k.n_layers, heads=k.n_heads))
    return skip_padding(c, encoder(c, k, bias="lm_head.bias"), pad=1)


MPNET = {
    **ROBERTA,
    **{
        name: module.replace("attention.self.query", "attention.attn.q")
        .replace("attention.self.key", "attention.attn.k")
        .replace("attention.self.value", "attention.attn.v")
        .replace("attention.output.dense", "attention.attn.o")
        .replace("attention.output.LayerNorm", "attention.LayerNorm")
        for name, module in bert_names("mpnet").items()
    },
    "layers.N.attn_relative": "mpnet.encoder.relative.N.table",
}
MPNET.pop("embed_type")
