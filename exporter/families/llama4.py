"""Llama 4: Scout and Maverick."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..knobs import AFTER_ROPE, Knobs
from ..layers.experts import SIGMOID
from ..layers.part import Lacking
from ..rope import FULL, Shape, rope_set
from ..tensor import ExportError
from .aria import Transposed
from .common import LLAMA, biases, default_rope, in_layer, llama_block, mixer_kinds
from .experts import after_dense, expert_names, experts

CHUNKED = "chunked_attention"


def llama4_text(c: Config) -> Knobs:
    """Llama 4: chunks of attention in the layers with rope, whose q and k are normalised after it,
    queries that grow with the position in the others, and experts whose inputs are multiplied by
    sigmoids."""
    c.default(num_local_experts=16, num_experts_per_tok=1, intermediate_size=8192)
    c.default(intermediate_size_mlp=16384)
    default_rope(c, rope_type="default", rope_theta=5e5)
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5
    )
    k.biased, k.interleaved, k.qk_norm = biases(c), True, AFTER_ROPE
    part = experts(c, k, "num_local_experts", "intermediate_size", score=SIGMOID, renorm=False)
    part.weigh_input = True
    k.parts.insert(0, Transposed([], part.n, part.d_ff))
    step = c.int("interleave_moe_layer_step", 1)
    sparse = c.list("moe_layers", list(range(step - 1, k.n_layers, step)))
    dense_width = c.int("intermediate_size_mlp")
    after_dense(k, part, [i in sparse for i in range(k.n_layers)], dense_width, part.d_ff)
    rotates = rope_layers(c, k.n_layers)
    rope = rope_set(c, Shape(k.head_dim, k.context, theta=5e5))
    k.rotate(*[rope if one else None for one in rotates])
    normed = c.flag("use_qk_norm", True)
    bare = [not (one and normed) for one in rotates]
    k.parts.append(Lacking(bare, lacks=("attn_q_norm", "attn_k_norm")))
    usual = [CHUNKED if one else FULL for one in rotates]
    cut = [kind == CHUNKED for kind in mixer_kinds(c, k.n_layers, (CHUNKED, FULL), usual)]
    size = c.int("attention_chunk_size", 8192) if any(cut) else 0
    c.ignore("attention_chunk_size", "router_jitter_noise")
    k.window, k.chunked = [size * one for one in cut], [int(one) for one in cut]
    grow(c, k, rotates)
    return k


def rope_layers(c: Config, n_layers: int) -> list[int]:
    """A 1 for each layer with rope, by no_rope_layers or no_rope_layer_interval."""
    interval = c.int("no_rope_layer_interval", 4)
    rotates = c.list("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(n_layers)]
    if len(rotates) != n_layers or not set(rotates) <= {0, 1}:
        raise ExportError(
            f"{c.where}: no_rope_layers has not a 0 or a 1 for each of the {n_layers} layers"
        )
    return rotates


def grow(c: Config, k: Knobs, rotates: list[int]) -> None:
    """Queries that grow with the logarithm of the position, in layers without rope."""
    length, by = c.int("floor_scale", 8192), c.number("attn_scale", 0.1)
    if not c.flag("attn_temperature_tuning", True) or all(rotates):
        return
    steps = np.arange(k.context // length + 1, dtype=np.float32)
    k.q_temp = list(np.log1p(steps) * np.float32(by) + np.float32(1))
    k.q_temp_length, k.q_temp_ahead = length, 1
    k.q_temp_layers = [int(not one) for one in rotates]


LLAMA4 = {
    **LLAMA,
    **in_layer("model.layers.N.self_attn", attn_q_norm=None, attn_k_norm=None),
    **expert_names("feed_forward", router="router", dense="shared_expert"),
}
