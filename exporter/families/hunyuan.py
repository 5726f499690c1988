"""Hunyuan 1 and 3."""

from __future__ import annotations

from ..config import Config
from ..knobs import AFTER_ROPE, Knobs
from ..rope import Shape, rope_set
from ..layers.experts import SIGMOID
from ..layers.part import Skipped
from ..tensor import ExportError
from .common import LLAMA, QK_NORM, QKVO, biases, in_layer, llama_block, rotate
from .experts import after_dense, expert_names, experts, listed_layers


def hunyuan(c: Config) -> Knobs:
    """Hunyuan 1 dense: q and k are normalised after rope, whose theta may grow by a constant."""
    c.default(head_dim=c.get("attention_head_dim"))  # its first name
    k = llama_block(c, rms_norm_eps=1e-5)
    c.require(use_qk_norm=True, use_cla=False, norm_type="rms", mlp_bias=False)
    c.ignore("eod_token_id")
    k.biased, k.qk_norm = QKVO * c.flag("attention_bias", False), AFTER_ROPE
    scaling = c.get("rope_parameters") or c.get("rope_scaling") or {}
    alpha = scaling.get("alpha") if isinstance(scaling, dict) else None
    if not alpha or scaling.get("rope_type", scaling.get("type")) != "dynamic":
        rotate(c, k)
        return k
    s = Config(scaling, f"{c.where}: rope_parameters")
    theta = s.number("rope_theta", c.number("rope_theta", 10000.0))
    # Alpha is all that counts.
    s.ignore("type", "rope_type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    theta *= s.number("alpha") ** (k.head_dim / (k.head_dim - 2))
    s.finish()
    k.rotate(*[rope_set(Config({"rope_theta": theta}), Shape(k.head_dim, k.context))] * k.n_layers)
    return k


HUNYUAN = {
    **LLAMA,
    **in_layer(
        "model.layers.N.self_attn",
        attn_q_norm="query_layernorm",
        attn_k_norm="key_layernorm",
    ),
}


def hunyuan_moe(c: Config) -> Knobs:
    """Hunyuan 1 with experts: a network that all tokens pass besides."""
    c.default(num_experts=1, moe_topk=1)
    for key in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        value = c.get(key)
        if isinstance(value, list):  # one a layer
            if not value or any(one != value[0] for one in value):
                raise ExportError(
                    f"{c.where}: {key} differs among the layers, which is not supported"
                )
            c.values = {**c.values, key: value[0]}
    c.values = {**c.values, "num_experts_per_tok": c.get("moe_topk")}
    # The first files say these too; transformers reads none of them.
    c.require(num_shared_expert=1, use_mixed_mlp_moe=True, moe_layer_num_skipped=0)
    c.require(moe_intermediate_size=c.get("intermediate_size"), norm_topk_prob=True)
    c.ignore("cla_share_factor", "capacity_factor", "class_num", "mask_init_id", "moe_drop_tokens")
    c.ignore("moe_random_routing_dropped_token", "org_vocab_size", "pool_type")
    k = hunyuan(c)
    shared = k.d_ff
    experts(c, k, width="intermediate_size")
    k.d_ff = shared
    return k


HUNYUAN_MOE = {**HUNYUAN, **expert_names("mlp", router="gate.wg", dense="shared_mlp")}


def hy_v3(c: Config) -> Knobs:
    """Hunyuan 3: experts by sigmoids, with a bias for the choice."""
    c.default(
        num_experts=192,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
        intermediate_size=13312,
    )
    k = llama_block(
        c, num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5
    )
    rotate(c, k, theta=11158840.0)
    k.biased = biases(c)
    width, scale = k.d_ff, c.number("router_scaling_factor", 2.826)
    c.require(first_k_dense_replace=1)  # which transformers does not read
    part = experts(c, k, score=SIGMOID, biased=True, renorm_eps=1e-20, scale=scale)
    sparse = listed_layers(c, k.n_layers, first=1)
    after_dense(k, part, sparse, width, part.d_ff * c.int("num_shared_experts", 1, least=0))
    c.ignore("enable_moe_fp32_combine")  # which a float32 sum does anyway
    k.parts.append(Skipped([], n_layers=k.n_layers))
    return k


HY_V3 = {
    **LLAMA,
    **QK_NORM,
    **expert_names("mlp", router="gate|model.layers.N.mlp.router.gate", dense="shared_experts"),
}
for _matrix in ("gate", "up", "down"):
    HY_V3[f"layers.N.ffn_{_matrix}"] += f"|model.layers.N.mlp.shared_mlp.{_matrix}_proj"
