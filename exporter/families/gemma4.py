"""Gemma 4."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.attention import SharedKeys
from ..layers.experts import Experts
from ..layers.part import PerLayerEmbedding
from ..rope import FULL, Shape, layer_kinds, rope_by_type, windows
from ..tensor import ExportError
from .common import QK_NORM, default_rope, every, in_layer, without
from .gemma import GEMMA2, gemma_block


def gemma4(c: Config) -> Knobs:
    """Gemma 4 text: full layers have other heads and a rope of their own, the last layers read keys
    and values of earlier ones, and every token has an embedding for each layer, or experts that
    read the stream beside the network that all tokens pass."""
    if c.get("use_bidirectional_attention") == "vision":  # of images; text is causal
        c.ignore("use_bidirectional_attention")
        c.values = {**c.values, "use_bidirectional_attention": None}
    k = gemma_block(
        c,
        act="hidden_activation",
        hidden_activation="gelu_pytorch_tanh",
        num_key_value_heads=4,
        max_position_embeddings=131072,
        vocab_size=262144,
    )
    c.require(use_bidirectional_attention=False)
    k.norm_offset, k.attn_scale = 0.0, 1.0
    k.final_softcap = (
        0.0 if c.get("final_logit_softcapping") is None else c.number("final_logit_softcapping")
    )
    kinds = layer_kinds(c, k.n_layers, every(6))
    kinds[-1] = FULL  # as the reference forces it to be
    k.window = windows(c, kinds, c.get("sliding_window", 512))
    key_is_value = [kind == FULL and c.flag("attention_k_eq_v", False) for kind in kinds]
    _gemma4_heads(c, k, kinds, any(key_is_value))
    default_rope(
        c,
        sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
    )
    shapes = {kind: Shape(k.head_dim[kinds.index(kind)], k.context, 1e6) for kind in kinds}
    ropes = {kind: rope_by_type(c, shape, 1e4)[kind] for kind, shape in shapes.items()}
    k.rotate(*[ropes[kind] for kind in kinds])

    first_shared = k.n_layers - c.int("num_kv_shared_layers", 0, least=0, most=k.n_layers - 1)
    kv_layer = [-1] * k.n_layers
    for i in range(first_shared, k.n_layers):
        if kinds[i] not in kinds[:first_shared]:
            raise ExportError(
                f"{c.where}: num_kv_shared_layers leaves no {kinds[i]} whose keys layer {i} could "
                "read"
            )
        kv_layer[i] = max(j for j in range(first_shared) if kinds[j] == kinds[i])
    if c.flag("use_double_wide_mlp", False):
        k.d_ff = [k.d_ff * (2 if s >= 0 else 1) for s in kv_layer]
    k.parts.append(SharedKeys([s >= 0 for s in kv_layer], kv_layer, key_is_value))
    width = c.int("hidden_size_per_layer_input", 256, least=0)
    if width:
        c.require(vocab_size_per_layer_input=k.vocab_size)
        k.parts.append(PerLayerEmbedding([True] * k.n_layers, width, k.vocab_size))
    else:
        c.ignore("vocab_size_per_layer_input")
        k.names = without(GEMMA4, "ple_table", "ple_in", "ple_in_norm")
    _gemma4_experts(c, k)
    return k


def _gemma4_experts(c: Config, k: Knobs) -> None:
    if not c.flag("enable_moe_block", False):
        c.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
        return
    k.names = {**(k.names or GEMMA4), **GEMMA4_EXPERTS}
    n = c.int("num_experts", most=4096)
    k.parts.append(
        Experts(
            [True] * k.n_layers,
            n=n,
            top_k=c.int("top_k_experts", most=min(n, 64)),
            d_ff=c.int("moe_intermediate_size"),
            norms=True,
        )
    )


def gemma4_unified(c: Config) -> Knobs:
    """Gemma 4 as one model for text and pictures: no embeddings for each layer."""
    c.default(hidden_size_per_layer_input=0, sliding_window=1024, max_position_embeddings=262144)
    return gemma4(c)


def _gemma4_heads(c: Config, k: Knobs, kinds: list[str], own_kv_heads: bool) -> None:
    """head_dim and n_kv_heads of full layers, in both spellings."""
    given = None if c.get("per_layer_config") is None else c.object("per_layer_config")
    wide, kv = c.get("global_head_dim", 512), c.get("num_global_key_value_heads")
    if given is None:
        full = {"head_dim": wide, "num_key_value_heads": kv if own_kv_heads else None}
        given = {str(i): full for i, kind in enumerate(kinds) if kind == FULL}
    head_dim, n_kv_heads = [k.head_dim] * k.n_layers, [k.n_kv_heads] * k.n_layers
    layers = Config(given, f"{c.where}: per_layer_config")
    for layer in given:
        values = layers.object(layer)
        own = Config(
            {key: v for key, v in values.items() if v is not None},
            f"{c.where}: per_layer_config.{layer}",
        )
        i = Config({"layer": int(layer) if layer.isdigit() else layer}, c.where).int(
            "layer", least=0, most=k.n_layers - 1
        )
        head_dim[i], n_kv_heads[i] = (
            own.int("head_dim", k.head_dim),
            own.int("num_key_value_heads", k.n_kv_heads),
        )
        own.finish()
    k.head_dim, k.n_kv_heads = head_dim, n_kv_heads


GEMMA4 = {
    "embed": "model.embed_tokens",
    "ple_table": "model.embed_tokens_per_layer",
    "ple_in": "model.per_layer_model_projection",
    "ple_in_norm": "model.per_layer_projection_norm",
    **GEMMA2,
    **QK_NORM,
    **in_layer(
        "model.layers.N",
        attn_v_norm=None,
        ple_gate="per_layer_input_gate",
        ple_out="per_layer_projection",
        ple_norm="post_per_layer_input_norm",
        out_scale="layer_scalar",
    ),
}
GEMMA4_EXPERTS = in_layer(
    "model.layers.N",
    router="router.proj",
    expert_gate="experts.gate",
    expert_up="experts.up",
    expert_down="experts.down",
    expert_norm="pre_feedforward_layernorm_2",
    expert_post_norm="post_feedforward_layernorm_2",
    ffn_beside_norm="post_feedforward_layernorm_1",
)
