"""DeepSeek V2, V3 and R1, the block of latent attention, and its kin: GLM 4.7 Flash, A.X K1,
MiniCPM 3."""

from __future__ import annotations

import math

from ..config import Config
from ..knobs import Knobs
from ..layers.attention import Latent
from ..layers.experts import MAX
from ..layers.part import Lacking
from ..rope import Shape, rope_set
from .common import FFN, LLAMA, in_layer, llama_block, without
from .experts import deepseek_experts, expert_names, v3_experts

DEEPSEEK = {
    **without(LLAMA, "attn_v"),
    **in_layer(
        "model.layers.N.self_attn",
        attn_q_down="q_a_proj",
        attn_q_down_norm="q_a_layernorm",
        attn_k="kv_a_proj_with_mqa",
        attn_latent_norm="kv_a_layernorm",
        attn_k_up="k_up",
        attn_v_up="v_up",
    ),
    "layers.N.attn_q": "model.layers.N.self_attn.q_proj|model.layers.N.self_attn.q_b_proj",
    **expert_names("mlp", dense="shared_experts"),
}


def latent_block(c: Config, interleaved: bool, **defaults) -> Knobs:
    """Llama's block with latent attention, rope included."""
    c.default(
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    c.ignore("qk_head_dim", "num_key_value_heads")  # sums of the others; all heads share the latent
    # Their heads need not share hidden_size.
    c.values = {**c.values, "head_dim": c.int("qk_rope_head_dim")}
    k = llama_block(c, **defaults)
    part = Latent(
        [True] * k.n_layers,
        heads=k.n_heads,
        rank=c.int("kv_lora_rank"),
        nope=c.int("qk_nope_head_dim"),
        rope=c.int("qk_rope_head_dim"),
        value=c.int("v_head_dim"),
        interleaved=interleaved,
        q_rank=0 if c.get("q_lora_rank") is None else c.int("q_lora_rank"),
    )
    k.parts.append(part)
    k.rotate(*[rope_set(c, Shape(part.rope, k.context))] * k.n_layers)
    k.n_kv_heads, k.head_dim = 1, part.rank + part.rope
    k.attn_scale = (part.nope + part.rope) ** -0.5 * yarn_scale(c) ** 2
    k.biased = ("attn_q_down", "attn_k", "attn_o") * c.flag("attention_bias", False)
    return k


def yarn_scale(c: Config) -> float:
    """The factor by which rope scaling multiplies queries and keys, rotated or not."""
    p = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if p.get("rope_type", p.get("type", "default")) == "default" or not p.get("mscale_all_dim"):
        return 1.0
    return 1.0 if p["factor"] <= 1 else 0.1 * p["mscale_all_dim"] * math.log(p["factor"]) + 1.0


def deepseek_v2(c: Config) -> Knobs:
    """DeepSeek V2 and V2 Lite: latent attention (MLA), groups of experts."""
    c.default(
        intermediate_size=11008,
        moe_intermediate_size=1407,
        n_routed_experts=64,
        n_shared_experts=2,
        topk_method="greedy",
    )
    k = latent_block(c, interleaved=True)
    k.biased += FFN * c.flag("mlp_bias", False)
    part = deepseek_experts(c, k, renorm=False, group_score=MAX)
    c.ignore("norm_topk_prob")  # the reference never does it
    c.require(scoring_func="softmax")
    if c.choice("topk_method", {"greedy": False, "group_limited_greedy": True}):
        part.groups, part.top_groups = c.int("n_group"), c.int("topk_group")
    c.ignore("n_group", "topk_group")
    return k


def deepseek_v3(c: Config) -> Knobs:
    """DeepSeek V3 and R1, fp8 too: latent attention, experts by sigmoids with a bias for the choice,
    groups by their two best."""
    c.default(
        intermediate_size=18432,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        n_group=8,
        topk_group=4,
        num_experts_per_tok=8,
        routed_scaling_factor=2.5,
    )
    k = latent_block(c, c.flag("rope_interleave", True), max_position_embeddings=4096)
    v3_experts(c, k, first=3)
    return k


def glm4_moe_lite(c: Config) -> Knobs:
    """GLM 4.7 Flash: DeepSeek V3's layers."""
    c.default(
        intermediate_size=10240,
        moe_intermediate_size=1536,
        n_routed_experts=64,
        n_shared_experts=1,
        num_experts_per_tok=4,
        routed_scaling_factor=1.8,
        q_lora_rank=768,
        v_head_dim=256,
        qk_nope_head_dim=192,
    )
    c.require(first_k_dense_replace=1)  # which transformers does not read
    interleaved = c.flag("rope_interleave", True)
    k = latent_block(c, interleaved, max_position_embeddings=202752, rms_norm_eps=1e-5)
    v3_experts(c, k, first=1, listed=True)
    return k


def axk1(c: Config) -> Knobs:
    """A.X K1: DeepSeek V3's layers, and a norm of what experts give."""
    c.default(
        intermediate_size=18432,
        moe_intermediate_size=2048,
        n_routed_experts=192,
        n_shared_experts=1,
        n_group=8,
        topk_group=4,
        num_experts_per_tok=8,
        routed_scaling_factor=2.5,
    )
    k = latent_block(c, c.flag("rope_interleave", True), max_position_embeddings=32768)
    v3_experts(c, k, first=1, listed=True)
    dense = [not has for has in k.parts[1].layers]
    k.parts.append(Lacking(dense, ("ffn_post_norm",)))
    return k


AXK1 = {
    **DEEPSEEK,
    "layers.N.ffn_post_norm": (
        "model.layers.N.post_mlp_layernorm|model.layers.N.mlp.post_mlp_layernorm"
    ),
}


def minicpm3(c: Config) -> Knobs:
    """MiniCPM 3: latent attention without experts, factors for embedding, branches and logits."""
    c.default(
        kv_lora_rank=256,
        q_lora_rank=768,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        hidden_size=2560,
        num_attention_heads=40,
    )
    if c.get("v_head_dim") is None:
        width = c.int("hidden_size") // c.int("num_attention_heads")
        c.values = {**c.values, "v_head_dim": width}
    k = latent_block(
        c, False, max_position_embeddings=32768, rms_norm_eps=1e-5, tie_word_embeddings=True
    )
    k.biased += FFN * c.flag("mlp_bias", False)
    k.emb_scale = c.number("scale_emb", 12)
    if c.get("scale_depth", 1.4) is not None:
        k.residual_scale = c.number("scale_depth", 1.4) / math.sqrt(k.n_layers)
    if c.get("dim_model_base", 256) is not None:
        k.logit_scale = c.number("dim_model_base", 256) / k.n_embd
    return k
