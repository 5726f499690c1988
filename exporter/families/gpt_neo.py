"""GPT-Neo."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..tensor import ExportError
from .common import in_layer, without
from .gpt2 import GPT2, gpt_block


def gpt_neo(c: Config) -> Knobs:
    """GPT-Neo: scores are not scaled, every other layer has a window."""
    c.default(
        n_embd=c.get("hidden_size"),
        n_head=c.get("num_heads"),
        n_layer=c.get("num_layers"),
        n_inner=c.get("intermediate_size"),
        n_positions=c.get("max_position_embeddings", 2048),
    )
    k = gpt_block(c)
    k.attn_scale, k.biased = 1.0, ("attn_o", "ffn_up", "ffn_down")
    kinds = c.list("attention_layers")
    if kinds is None:
        kinds = [
            kind
            for group, n in c.list("attention_types", [[["global", "local"], 12]])
            for kind in group * n
        ]
    c.ignore("attention_types")  # attention_layers is the same written out
    if len(kinds) != k.n_layers or not all(kind in ("global", "local") for kind in kinds):
        raise ExportError(
            f"{c.where}: attention_types has not global or local for each of the {k.n_layers} "
            "layers"
        )
    k.window = [c.int("window_size", 256) if kind == "local" else 0 for kind in kinds]
    return k


GPT_NEO = {
    **without(GPT2, "attn_qkv"),
    **in_layer(
        "transformer.h.N.attn.attention",
        attn_q="q_proj",
        attn_k="k_proj",
        attn_v="v_proj",
        attn_o="out_proj",
    ),
}
