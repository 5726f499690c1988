"""nanochat."""

from __future__ import annotations

from ..config import Config
from ..knobs import AFTER_ROPE, Knobs
from ..rope import Rope, Shape, rope_set
from .common import LLAMA, biases, in_layer, llama_block, without


def nanochat(c: Config) -> Knobs:
    """nanochat: norms without weights, of the embedding and of q and k after rope too, rope that
    turns the other way, squared ReLU, a softcap of logits."""
    k = llama_block(c, head_dim_key=False, hidden_act="relu2", intermediate_size=8192)
    rope = rope_set(c, Shape(k.head_dim, k.context))
    k.rotate(*[Rope(-rope.inv_freq, rope.multiplier)] * k.n_layers)
    k.qk_norm, k.biased = AFTER_ROPE, biases(c)
    if c.get("final_logit_softcapping", 15.0) is not None:
        k.final_softcap = c.number("final_logit_softcapping", 15.0)
    return k


NANOCHAT = {
    "embed": "model.embed_tokens",
    "embed_norm": None,
    **without(LLAMA, "embed", "ffn_gate"),
    **in_layer("model.layers.N", attn_norm=None, ffn_norm=None, attn_q_norm=None, attn_k_norm=None),
    **in_layer("model.layers.N.mlp", ffn_up="fc1", ffn_down="fc2"),
    "norm": None,
}
