"""Cohere's Command R, R7B and Aya."""

from __future__ import annotations

from ..config import Config
from ..knobs import DISTINCT, Knobs
from ..rope import SLIDING, Shape, layer_kinds, rope_set, windows
from ..layers.experts import SIGMOID, SOFTMAX
from ..layers.part import Multiplied
from .common import LLAMA, NORMS, QKVO, every, in_layer, llama_block, rotate, without
from .experts import after_dense, expert_names, experts, listed_layers


def cohere(c: Config) -> Knobs:
    """Cohere's Command R and Aya: one LayerNorm for both branches, interleaved rope, perhaps a norm
    for every head."""
    k = _cohere(c, max_position_embeddings=8192)
    rotate(c, k, theta=5e5)
    k.qk_norm = DISTINCT
    if not c.flag("use_qk_norm", False):
        k.names = without(COHERE, "attn_q_norm", "attn_k_norm")
    return k


def cohere2(c: Config) -> Knobs:
    """Cohere's Command R7B: three layers with window and rope to one with neither."""
    c.require(
        use_qk_norm=False,
        use_gated_activation=True,
        use_parallel_block=True,
        position_embedding_type="rope_gptj",
        layer_switch=4,
        order_of_interleaved_layers="local_attn_first",
        rotary_pct=1.0,
    )
    c.ignore("use_parallel_embedding", "use_embedding_sharing")
    k = _cohere(c, max_position_embeddings=8192)
    rope = rope_set(c, Shape(k.head_dim, k.context))
    kinds = layer_kinds(c, k.n_layers, every(c.int("sliding_window_pattern", 4)))
    k.rotate(*[rope if kind == SLIDING else None for kind in kinds])
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    return k


def _cohere(c: Config, **defaults) -> Knobs:
    defaults = {"layer_norm_eps": 1e-5, "tie_word_embeddings": True, **defaults}
    k = llama_block(c, "layer_norm_eps", **defaults)
    k.layernorm, k.parallel, k.interleaved, k.bare_norms = True, True, True, NORMS
    k.logit_scale, k.biased = (
        c.number("logit_scale", 0.0625),
        QKVO * c.flag("attention_bias", False),
    )
    return k


COHERE2 = without(LLAMA, "ffn_norm")
COHERE = {
    **COHERE2,
    **in_layer("model.layers.N.self_attn", attn_q_norm="q_norm", attn_k_norm="k_norm"),
}


def cohere2_moe(c: Config) -> Knobs:
    """Cohere's models with experts: Command R7B's layers, perhaps a network that all tokens pass,
    whose output and the experts' are averaged."""
    c.default(num_experts=8, num_experts_per_tok=2, intermediate_size=22528, rms_norm_eps=None)
    k = _cohere(c, head_dim=128, max_position_embeddings=8192)
    if c.get("rms_norm_eps") is not None:
        k.layernorm, k.norm_eps = False, c.number("rms_norm_eps")
    first = c.int("first_k_dense_replace", 0, least=0)
    every_dense = c.int("prefix_dense_sliding_window_pattern", 1)
    every_other = c.int("sliding_window_pattern", 4)

    def slides(i: int) -> bool:
        return bool((i + 1) % every_dense if i < first else (i - first + 1) % every_other)

    kinds = layer_kinds(c, k.n_layers, slides)
    sparse = listed_layers(c, k.n_layers, 0)
    rope = rope_set(c, Shape(k.head_dim, k.context))
    forced = [not has and every_dense == 1 for has in sparse]
    k.rotate(*[rope if slide == SLIDING or by else None for slide, by in zip(kinds, forced)])
    k.window = windows(c, kinds, c.get("sliding_window", 4096))
    shared, parts = c.int("num_shared_experts", 0, least=0), {"average": 0.5, "sum": 1.0}
    c.ignore("shared_expert_combination_strategy")  # of experts that there may be none of
    share = c.choice("shared_expert_combination_strategy", parts, "average") if shared else 1.0
    score = c.choice("expert_selection_fn", {"softmax": SOFTMAX, "sigmoid": SIGMOID}, "softmax")
    renorm = c.flag("norm_topk_prob", True) or score == SOFTMAX
    part = experts(c, k, width="intermediate_size", score=score, renorm=renorm, scale=share)
    dense = 0 if all(sparse) else c.int("prefix_dense_intermediate_size")
    c.ignore("prefix_dense_intermediate_size")
    after_dense(k, part, sparse, dense, part.d_ff * shared)
    if share != 1:
        k.parts.append(Multiplied([], {"shared_experts.down_proj": (share, share)}))
    return k


COHERE2_MOE = without({**LLAMA, **expert_names("mlp", dense="shared_experts")}, "ffn_norm")
