"""RoBERTa, XLM-RoBERTa and their kin: CamemBERT, data2vec, LUKE."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..tensor import ExportError
from .bert import bert_block, bert_names, renamed
from .common import in_layer
from .encoder import encoder


def roberta(c: Config) -> Knobs:
    """RoBERTa, XLM-R, CamemBERT, data2vec: positions begin after the padding token's."""
    k = bert_block(c, vocab_size=50265)
    return skip_padding(
        c, encoder(c, k, True, types=c.int("type_vocab_size", 2), bias="lm_head.bias")
    )


def skip_padding(c: Config, k: Knobs, pad: int | None = None) -> Knobs:
    """The first positions are no token's, but for the last of these, which an encoder's padding
    has. A decoder's would be other with a cache than without."""
    if pad is None:
        pad = c.int("pad_token_id", 1, least=0)
    k.padding = pad if k.mask and pad < k.vocab_size else -1
    k.skipped_positions = pad + 1
    k.context -= k.skipped_positions
    if k.context < 1:
        raise ExportError(
            f"{c.where}: max_position_embeddings leaves no place after pad_token_id {pad}"
        )
    return k


ROBERTA = {
    **bert_names("roberta"),
    "head_dense": "lm_head.dense",
    "head_norm": "lm_head.layer_norm",
    "output": "lm_head.decoder",
}
DATA2VEC = renamed(ROBERTA, "data2vec_text")


def roberta_prelayernorm(c: Config) -> Knobs:
    """RoBERTa-PreLayerNorm: norms of branches' inputs."""
    k = roberta(c)
    k.post_norm = False
    return k


ROBERTA_PRELAYERNORM = {
    **renamed(ROBERTA, "roberta_prelayernorm"),
    **in_layer(
        "roberta_prelayernorm.encoder.layer.N",
        attn_norm="attention.LayerNorm",
        ffn_norm="intermediate.LayerNorm",
    ),
    "norm": "roberta_prelayernorm.LayerNorm",
}


def xlm_roberta_xl(c: Config) -> Knobs:
    """XLM-RoBERTa XL and XXL: norms of branches' inputs, none of the embedding."""
    c.default(layer_norm_eps=1e-5)
    return roberta_prelayernorm(c)


XLM_ROBERTA_XL = {
    **{name: module for name, module in ROBERTA.items() if name != "embed_norm"},
    **in_layer(
        "roberta.encoder.layer.N",
        attn_norm="attention.self_attn_layer_norm",
        ffn_norm="LayerNorm",
    ),
    "norm": "roberta.encoder.LayerNorm",
}


@dataclass
class WithoutEntities(Part):
    """What LUKE has for entities, which texts here do not name."""

    def arrange(self, left):
        for name in list(left):
            if re.search(r"(^|\.)entity_|\.(w2e|e2w|e2e)_query\.", name):
                del left[name]


def luke(c: Config) -> Knobs:
    """LUKE and mLUKE without entities: RoBERTa."""
    c.ignore("entity_vocab_size", "entity_emb_size", "use_entity_aware_attention")
    c.ignore("cls_entity_prediction", "bert_model_name")
    k = roberta(c)
    k.parts.insert(0, WithoutEntities([]))
    return k


LUKE = renamed(ROBERTA, "luke")
