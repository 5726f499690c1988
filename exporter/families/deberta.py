"""DeBERTa 2 and 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part, Skipped
from ..tensor import ExportError, Tensor, expect, modules, stack, stack_rows
from .bert import BERT, bert_block
from .common import in_layer, without
from .encoder import encoder

TERMS = {"c2p": ("pos_k", "key"), "p2c": ("pos_q", "query")}


@dataclass
class Disentangled(Part):
    """Attention by distance: `rows` embeddings of distances become keys and queries of each layer,
    whose matrices they share with the tokens or have for themselves."""

    heads: int = 0
    head_dim: int = 0
    rows: int = 0
    distances: tuple[int, ...] = ()  # the row of each distance
    terms: tuple[str, ...] = ()
    shared: bool = False
    eps: float | None = None  # of the embeddings' norm, if they have one

    def metadata(self):
        return {"model.distances": list(self.distances)} if self.terms else {}

    def shapes(self, n_embd):
        rows = stack_rows(self.heads, self.rows)
        return {f"attn_{TERMS[term][0]}": (rows, self.head_dim) for term in self.terms}

    def arrange(self, left):
        for base in modules(left, "rel_embeddings.weight"):
            table = left.pop(base + ".rel_embeddings.weight")
            norm = [left.pop(f"{base}.LayerNorm.{kind}", None) for kind in ("weight", "bias")]
            expect(table, self.rows, table.shape[1])
            if (None in norm) != (self.eps is None):
                raise ExportError(
                    f"norm_rel_ebd of config.json does not say whether there is {base}.LayerNorm"
                )
            for module in modules(left, "query_proj.weight"):
                for term in self.terms:
                    name, of = TERMS[term]
                    source = f"{module}.{of}_proj" if self.shared else f"{module}.pos_{of}_proj"
                    take = left.get if self.shared else left.pop
                    pair = [take(f"{source}.{kind}", None) for kind in ("weight", "bias")]
                    if None in pair:
                        raise ExportError(f"the checkpoint lacks {source}.weight or its bias")
                    left[f"{module}.{name}.weight"] = self.products(table, norm, *pair)

    def products(self, table: Tensor, norm: list, weight: Tensor, bias: Tensor) -> Tensor:
        """The embeddings times a matrix, head by head."""

        def head(h: int) -> Tensor:
            begin, end = h * self.head_dim, (h + 1) * self.head_dim
            return weight.slice(begin, end).map(
                lambda w: self.normed(table, norm) @ w.T + bias.array()[begin:end],
                (self.rows, self.head_dim),
            )

        return stack([head(h) for h in range(self.heads)])

    def normed(self, table: Tensor, norm: list) -> np.ndarray:
        x = table.array()
        if self.eps is None:
            return x
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.eps))
        return x * norm[0].array() + norm[1].array()


def buckets(distance: np.ndarray, n: int, most: int) -> np.ndarray:
    """Buckets of distances: one each up to half of n, from there by the logarithm."""
    middle = n // 2
    near = np.abs(distance) < middle
    far = np.where(near, middle - 1, np.abs(distance)).astype(np.float32)
    log = np.log(far / np.float32(middle)) / np.log(np.float32((most - 1) / middle))
    log = np.ceil(log * np.float32(middle - 1)) + middle
    return np.where(far <= middle, distance, log * np.sign(distance)).astype(np.int64)


def deberta_v2(c: Config) -> Knobs:
    """DeBERTa 2 and 3, but for 2's with a convolution: scores add products of queries and keys with
    embeddings of distances."""
    k = bert_block(
        c,
        vocab_size=128100,
        hidden_size=1536,
        num_hidden_layers=24,
        num_attention_heads=24,
        intermediate_size=6144,
        layer_norm_eps=1e-7,
    )
    c.require(attention_head_size=k.head_dim, embedding_size=k.n_embd, conv_kernel_size=0)
    c.ignore("conv_act", "conv_groups", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size")
    terms = c.get("pos_att_type") or []
    terms = [t.strip() for t in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(terms, list) or not set(terms) <= set(TERMS):
        raise ExportError(f"{c.where}: pos_att_type is {terms!r}, expected of {', '.join(TERMS)}")
    k.attn_scale = (k.head_dim * (1 + len(set(terms)))) ** -0.5
    if c.flag("relative_attention", False):
        k.parts.append(disentangled(c, k, tuple(t for t in TERMS if t in terms)))
    c.ignore("max_relative_positions", "position_buckets", "norm_rel_ebd", "share_att_key")
    legacy, types = c.flag("legacy", True), c.int("type_vocab_size", 0, least=0)
    if not legacy:
        c.require(tie_word_embeddings=True)
    unused = ("mask_predictions.", "lm_predictions.") if legacy else ("mask_predictions.",)
    k.parts.append(Skipped([], prefixes=unused))
    absent = ("embed_type",) * (not types)
    absent += ("embed_pos",) * (not c.flag("position_biased_input", True))
    k.names = without(DEBERTA_V2 if legacy else NEW_HEAD, *absent)
    bias = "cls.predictions.bias" if legacy else "lm_predictions.lm_head.bias"
    return encoder(c, k, types=types, head_act=k.act, bias=bias)


def disentangled(c: Config, k: Knobs, terms: tuple[str, ...]) -> Disentangled:
    most, n = c.int("max_relative_positions", -1, least=-1), c.int("position_buckets", -1, least=-1)
    most = most if most > 0 else k.context
    n = max(n, 0)
    if n and not 2 <= n // 2 < most - 1:
        raise ExportError(f"{c.where}: position_buckets is {n}, expected 4 to {2 * most - 3}")
    span, distance = n or most, -np.arange(1 - k.context, k.context)  # of the query from the key
    found = buckets(distance, n, most) if n else distance
    norms = str(c.get("norm_rel_ebd", "none")).lower().split("|")
    return Disentangled(
        [True] * k.n_layers,
        heads=k.n_heads,
        head_dim=k.head_dim,
        rows=2 * span,
        distances=tuple(np.clip(found + span, 0, 2 * span - 1).tolist()),
        terms=terms,
        shared=c.flag("share_att_key", False),
        eps=k.norm_eps if "layer_norm" in [norm.strip() for norm in norms] else None,
    )


DEBERTA_V2 = {
    **{name: module.replace("bert.", "deberta.", 1) for name, module in BERT.items()},
    **in_layer(
        "deberta.encoder.layer.N.attention.self",
        attn_q="query_proj",
        attn_k="key_proj",
        attn_v="value_proj",
        attn_pos_k="pos_k",
        attn_pos_q="pos_q",
    ),
}
NEW_HEAD = {
    **DEBERTA_V2,
    "head_dense": "lm_predictions.lm_head.dense",
    "head_norm": "lm_predictions.lm_head.LayerNorm",
    "output": "lm_predictions.lm_head.decoder",
}
