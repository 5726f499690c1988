"""EXAONE 4 and K-EXAONE."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import SLIDING, Shape, layer_kinds, rope_set, windows
from ..layers.part import Skipped
from .common import LLAMA, QK_NORM, every, llama_block
from .experts import after_dense, expert_names, experts, listed_layers, v3_router


def exaone4(c: Config) -> Knobs:
    """EXAONE 4: norms after the branches; with a window, layers without one have no rope."""
    k = llama_block(c, num_key_value_heads=32, rms_norm_eps=1e-5)
    rope, size, pattern = (
        rope_set(c, Shape(k.head_dim, k.context)),
        c.get("sliding_window", 4096),
        4,
    )
    if c.get("layer_types") is None and size is not None:
        pattern = c.int("sliding_window_pattern", 4)
    c.ignore("sliding_window_pattern")  # layer_types says more
    kinds = layer_kinds(c, k.n_layers, lambda layer: size is not None and every(pattern)(layer))
    k.rotate(*[rope if size is None or kind == SLIDING else None for kind in kinds])
    k.window = windows(c, kinds, size)
    return k


def exaone_moe(c: Config) -> Knobs:
    """K-EXAONE: Llama's norms, rope in the layers with a window alone, DeepSeek-V3's router."""
    c.default(
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=1024,
        intermediate_size=16384,
        routed_scaling_factor=2.5,
    )
    k = exaone4(c)
    k.biased = ()
    width = k.d_ff
    part = experts(c, k, **v3_router(c))
    part.scale = c.number("routed_scaling_factor")
    c.choice("scoring_func", {"sigmoid": 1}, "sigmoid")
    c.require(topk_method="noaux_tc")
    sparse = listed_layers(c, k.n_layers, first=1)
    after_dense(k, part, sparse, width, part.d_ff * c.int("num_shared_experts", 1, least=0))
    c.ignore("num_nextn_predict_layers")
    k.parts.append(Skipped([], n_layers=k.n_layers, prefixes=("mtp.",)))
    return k


EXAONE_MOE = {**LLAMA, **QK_NORM, **expert_names("mlp", dense="shared_experts")}
