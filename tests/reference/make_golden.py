#!/usr/bin/env python3
"""Makes the golden checkpoints: small random models of every family, saved by transformers, with what transformers computes.

    python tests/reference/make_golden.py [NAME...] [--seed S] [--out DIR]      (torch 2.13.0, transformers 5.23.0)

Each directory holds a Hugging Face checkpoint (float32), logits.npy (of every position of the prompt) and golden.json: the
96 prompt ids, the 64 ids that greedy decoding adds, and what made it. What is committed has the logits as int16, 32767 times
the logit over the largest magnitude, which golden.json has: that rounds them by 1.5e-5 of it. Weights are random and so
large that every tensor matters; the reference is computed from the files as they were saved."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

N_PROMPT, N_GREEDY = 96, 64
COMMON = dict(
    pad_token_id=0, bos_token_id=1, eos_token_id=2, num_hidden_layers=2, max_position_embeddings=192
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def sizes(vocab: int, embd: int, ff: int, heads: int, kv: int, **more) -> dict:
    """The config of a model of Llama's kind."""
    return dict(
        vocab_size=vocab,
        hidden_size=embd,
        intermediate_size=ff,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        **more,
    )


LONGROPE = dict(
    rope_type="longrope",
    short_factor=[1.0, 1.1, 1.3, 1.5, 1.8, 2.0],
    original_max_position_embeddings=64,
    long_factor=[1.0, 2.0, 3.5, 5.0, 6.0, 8.0],
)
YARN_OLD = dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=48, attention_factor=1.2
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=48, rope_theta=10000.0)
GRANITE = dict(
    embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=4.0
)
FULL, SLIDING = "full_attention", "sliding_attention"


def nested(full: dict) -> dict:
    """Rope parameters of full layers, and plain ones of those with a window."""
    return {FULL: full, SLIDING: dict(rope_type="default", rope_theta=100.0)}


MAMBA = dict(mamba_n_heads=6, mamba_d_state=10, mamba_n_groups=2, mamba_chunk_size=16)
LINEAR = "linear_attention"
ZAMBA2 = dict(
    vocab_size=61,
    hidden_size=20,
    intermediate_size=30,
    num_attention_heads=2,
    n_mamba_heads=4,
    mamba_d_state=8,
    mamba_d_conv=3,
    adapter_rank=3,
    num_hidden_layers=3,
)
FACTORS = dict(
    embedding_multiplier=3.0,
    lm_head_multiplier=0.4,
    mlp_multipliers=[0.7, 1.3],
    key_multiplier=0.6,
    attention_out_multiplier=1.2,
    attention_in_multiplier=0.8,
    ssm_in_multiplier=1.1,
    ssm_out_multiplier=0.9,
    ssm_multipliers=[0.7, 0.8, 1.2, 1.3, 0.6],
)
NEMOTRON = dict(
    vocab_size=61,
    hidden_size=36,
    intermediate_size=50,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    mamba_num_heads=6,
    mamba_head_dim=9,
    ssm_state_size=10,
    n_groups=2,
    chunk_size=16,
    n_routed_experts=8,
    n_group=4,
    topk_group=2,
    num_experts_per_tok=3,
    routed_scaling_factor=2.5,
    moe_intermediate_size=18,
    moe_shared_expert_intermediate_size=22,
    layer_norm_epsilon=1e-3,
)


def half(**more) -> dict:
    """The config of a decoder that is half of an encoder-decoder."""
    return dict(
        dict(
            vocab_size=61,
            d_model=36,
            encoder_layers=2,  # by which transformers counts layers; there are none
            decoder_layers=2,
            decoder_ffn_dim=44,
            decoder_attention_heads=6,
            max_position_embeddings=192,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        ),
        **more,
    )


HALVES = (
    "bart",
    "blenderbot",
    "blenderbot-small",
    "marian",
    "mbart",
    "mvp",
    "pegasus",
    "plbart",
)


# fmt: off
# name: (model_type, config). Sizes are odd on purpose, and so are epsilons: a wrong one must show.
MODELS = {
    "llama": ("llama", sizes(131, 40, 54, 4, 4, rms_norm_eps=1e-5)),
    "llama-linear": ("llama", sizes(113, 36, 50, 6, 2, head_dim=10,
                                    rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0))),
    "llama-3": ("llama", sizes(127, 44, 47, 4, 2, head_dim=16, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                               rope_parameters=dict(LLAMA3, rope_theta=500000.0))),
    "smollm2": ("llama", sizes(97, 36, 61, 9, 3, tie_word_embeddings=True)),
    "mistral": ("mistral", sizes(139, 40, 52, 4, 2, head_dim=12, sliding_window=7, rms_norm_eps=2e-3)),
    "qwen2": ("qwen2", sizes(149, 36, 49, 6, 3, use_sliding_window=True, sliding_window=11, max_window_layers=1,
                             rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3": ("qwen3", sizes(137, 38, 45, 5, 1, head_dim=18, tie_word_embeddings=True, rms_norm_eps=1e-3)),
    "gpt2": ("gpt2", dict(vocab_size=103, n_embd=36, n_layer=2, n_head=3, n_positions=192, layer_norm_epsilon=1e-3)),
    "falcon": ("falcon", dict(vocab_size=109, hidden_size=40, num_attention_heads=5, bias=False, layer_norm_epsilon=1e-3)),
    "gemma": ("gemma", sizes(101, 34, 51, 3, 1, head_dim=20, rms_norm_eps=3e-3)),
}
EXPERTS = dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=18)
ROUTED = dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, first_k_dense_replace=1,
              norm_topk_prob=True, moe_intermediate_size=18, n_shared_experts=2, routed_scaling_factor=2.5)
MLA = dict(kv_lora_rank=20, qk_rope_head_dim=6, qk_nope_head_dim=10, v_head_dim=14)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=32, beta_fast=32.0,
            beta_slow=1.0, mscale=0.707, mscale_all_dim=0.707)
DELTA = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=6,
             linear_key_head_dim=10, linear_value_head_dim=9)
MIXTURES = {
    "mixtral": ("mixtral", sizes(131, 32, 18, 4, 2, num_local_experts=5)),
    "qwen2_moe": ("qwen2_moe", sizes(109, 36, 40, 6, 3, **EXPERTS, shared_expert_intermediate_size=22, mlp_only_layers=[0])),
    "qwen3_moe": ("qwen3_moe", sizes(109, 36, 40, 6, 3, head_dim=10, **EXPERTS, norm_topk_prob=True, num_hidden_layers=3,
                                     decoder_sparse_step=2)),
    "olmoe": ("olmoe", sizes(109, 36, 18, 6, 6, num_experts=6, num_experts_per_tok=4, clip_qkv=0.8)),
    "granitemoe": ("granitemoe", sizes(109, 36, 18, 6, 2, num_local_experts=6, embedding_multiplier=3.0,
                                       residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=2.0)),
    "gpt_oss": ("gpt_oss", sizes(109, 32, 32, 6, 2, head_dim=10, num_local_experts=6, num_experts_per_tok=2,
                                 sliding_window=9, swiglu_limit=1.5, rope_parameters=dict(YARN, truncate=False))),
    "granitemoe_swa": ("granitemoe_swa", sizes(109, 36, 18, 6, 2, num_local_experts=6, shared_intermediate_size=22,
                                               sliding_window=9, attention_multiplier=0.3, layer_rope_theta=[0, 5e5])),
    "phimoe": ("phimoe", sizes(109, 36, 18, 6, 2, num_local_experts=6, attention_bias=True, lm_head_bias=True,
                               router_jitter_noise=0.4, original_max_position_embeddings=64,
                               rope_parameters=dict(rope_type="longrope", rope_theta=1e6, short_factor=[1.1, 1.3, 1.6],
                                                    long_factor=[2.0, 3.0, 4.0], original_max_position_embeddings=64,
                                                    short_mscale=1.1, long_mscale=1.3))),
    "lfm3": ("lfm3", sizes(109, 36, 40, 6, 2, head_dim=12, num_hidden_layers=3, sliding_window=9,
                           layer_types=["conv", "full_attention", "sliding_attention"])),
    "dots1": ("dots1", sizes(109, 36, 40, 6, 2, head_dim=10, **ROUTED, num_hidden_layers=3, sliding_window=9,
                             max_window_layers=2)),
    "glm4_moe": ("glm4_moe", sizes(109, 36, 40, 6, 2, head_dim=12, **ROUTED, use_qk_norm=True, attention_bias=True)),
    "deepseek_v2": ("deepseek_v2", sizes(109, 36, 40, 4, 4, **{**ROUTED, "norm_topk_prob": False}, **MLA, q_lora_rank=None,
                                         topk_method="group_limited_greedy", rope_parameters=YARN)),
    "deepseek_v3": ("deepseek_v3", sizes(109, 36, 40, 4, 4, **ROUTED, **MLA, q_lora_rank=22, rope_parameters=YARN,
                                         rms_norm_eps=1e-3)),
    "lfm2": ("lfm2", sizes(109, 36, 40, 6, 2, layer_types=["conv", "full_attention"], block_multiple_of=7)),
    "lfm2_moe": ("lfm2_moe", sizes(109, 36, 40, 6, 2, **EXPERTS, num_dense_layers=1, conv_L_cache=5,
                                   layer_types=["full_attention", "conv"])),
    "qwen3_5": ("qwen3_5_text", sizes(109, 36, 40, 6, 2, head_dim=16, **DELTA)),
    "qwen3_5_moe": ("qwen3_5_moe_text", sizes(109, 36, 40, 6, 2, head_dim=16, **DELTA, **EXPERTS,
                                              shared_expert_intermediate_size=22)),
    "qwen3_next": ("qwen3_next", sizes(109, 36, 40, 6, 2, head_dim=16, **DELTA, **EXPERTS,
                                       shared_expert_intermediate_size=22)),
    "youtu": ("youtu", sizes(109, 36, 40, 4, 4, **MLA, q_lora_rank=22, rope_interleave=False, pad_token_id=None)),
}
# Further ones that only fresh comparisons make.
MORE = {
    "llama-dynamic": ("llama", sizes(113, 36, 50, 6, 2, rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=10000.0))),
    "falcon-bias": ("falcon", dict(vocab_size=109, hidden_size=48, num_attention_heads=3, bias=True, ffn_hidden_size=70)),
    "gpt2-inner": ("gpt2", dict(vocab_size=103, n_embd=40, n_layer=3, n_head=5, n_positions=192, n_inner=67,
                                activation_function="gelu", tie_word_embeddings=False)),
    "mistral-full": ("mistral", sizes(200, 64, 96, 8, 2, sliding_window=None)),
    "mistral-layers": ("mistral", sizes(200, 40, 52, 4, 1, head_dim=20, sliding_window=9,
                                        layer_types=["sliding_attention", "full_attention"])),
    "qwen2-layers": ("qwen2", sizes(149, 48, 49, 4, 4, num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                                    layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "qwen3-bias": ("qwen3", sizes(137, 64, 45, 6, 2, head_dim=64, attention_bias=True, hidden_act="gelu_pytorch_tanh")),
    "gemma-mha": ("gemma", sizes(256, 32, 51, 2, 2, head_dim=256)),
    # More of the same knobs, family by family.
    "apertus": ("apertus", sizes(61, 36, 50, 6, 2, rope_parameters=dict(LLAMA3, rope_theta=1e5))),
    "arcee": ("arcee", sizes(61, 36, 50, 6, 2, head_dim=10, attention_bias=True, mlp_bias=True, rope_parameters=YARN)),
    "bitnet": ("bitnet", sizes(61, 36, 50, 6, 2)),
    "bloom": ("bloom", dict(vocab_size=61, hidden_size=36, n_layer=2, n_head=6, layer_norm_epsilon=1e-3)),
    "cohere": ("cohere", sizes(61, 36, 50, 6, 2, use_qk_norm=True, layer_norm_eps=1e-3, logit_scale=0.3)),
    "cohere-plain": ("cohere", sizes(61, 36, 50, 6, 2, attention_bias=True)),
    "cohere2": ("cohere2", sizes(61, 36, 50, 6, 2, sliding_window=9, layer_types=[SLIDING, FULL], logit_scale=0.3)),
    "ernie4_5": ("ernie4_5", sizes(61, 36, 50, 6, 2, head_dim=10, use_bias=True)),
    "exaone4": ("exaone4", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, layer_types=[SLIDING, FULL])),
    "exaone4-full": ("exaone4", sizes(61, 36, 50, 6, 2, sliding_window=None, layer_types=[FULL, FULL])),
    "falcon-new": ("falcon", dict(vocab_size=61, hidden_size=36, num_attention_heads=6, num_kv_heads=2,
                                  new_decoder_architecture=True, layer_norm_epsilon=1e-3)),
    "falcon-11b": ("falcon", dict(vocab_size=109, hidden_size=48, num_attention_heads=6, num_kv_heads=2,
                                  new_decoder_architecture=True, num_ln_in_parallel_attn=1)),
    "falcon-rw": ("falcon", dict(vocab_size=109, hidden_size=48, num_attention_heads=4, alibi=True, multi_query=False,
                                 parallel_attn=False, bias=True)),
    "gemma2": ("gemma2", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, query_pre_attn_scalar=20,
                               attn_logit_softcapping=2.0, final_logit_softcapping=4.0)),
    "gemma3": ("gemma3_text", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, layer_types=[SLIDING, FULL],
                                    rope_parameters=nested(dict(rope_type="linear", factor=8.0, rope_theta=1e4)))),
    "gemma3-old": ("gemma3_text", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, layer_types=[SLIDING, FULL])),
    "gemma4": ("gemma4_text", sizes(
        61, 36, 30, 6, 3, head_dim=8, sliding_window=9, layer_types=[SLIDING, FULL, SLIDING, FULL], num_hidden_layers=4,
        num_kv_shared_layers=2, hidden_size_per_layer_input=6, vocab_size_per_layer_input=61, global_head_dim=12,
        attention_k_eq_v=True, num_global_key_value_heads=2, use_double_wide_mlp=True, final_logit_softcapping=4.0)),
    "gemma4-plain": ("gemma4_text", sizes(
        61, 36, 30, 6, 3, head_dim=8, sliding_window=9, layer_types=[SLIDING, FULL], hidden_size_per_layer_input=0,
        global_head_dim=12)),
    "gemma4-experts": ("gemma4_text", sizes(
        61, 36, 30, 6, 3, head_dim=8, sliding_window=9, layer_types=[SLIDING, FULL], hidden_size_per_layer_input=0,
        global_head_dim=12, enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=18)),
    "gemma4_unified": ("gemma4_unified_text", sizes(
        61, 36, 30, 6, 3, head_dim=8, sliding_window=9, layer_types=[SLIDING, FULL, FULL], num_hidden_layers=3,
        global_head_dim=12, attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=4.0)),
    "glm": ("glm", sizes(61, 36, 50, 6, 2, head_dim=12, rms_norm_eps=1e-3)),
    "glm4": ("glm4", sizes(61, 36, 50, 6, 2, head_dim=12)),
    "gpt_bigcode": ("gpt_bigcode", dict(vocab_size=61, n_embd=36, n_layer=2, n_head=6, n_positions=192, n_inner=50)),
    "gpt_bigcode-mha": ("gpt_bigcode", dict(vocab_size=61, n_embd=36, n_layer=2, n_head=6, n_positions=192,
                                            multi_query=False)),
    "gpt_neo": ("gpt_neo", dict(vocab_size=61, hidden_size=36, num_layers=2, num_heads=6, max_position_embeddings=192,
                                attention_types=[[["global", "local"], 1]], window_size=9)),
    "gpt_neox": ("gpt_neox", dict(vocab_size=61, hidden_size=48, intermediate_size=50, num_attention_heads=3,
                                  rotary_pct=0.25, layer_norm_eps=1e-3)),
    "gpt_neox-sequential": ("gpt_neox", dict(vocab_size=61, hidden_size=48, intermediate_size=50, num_attention_heads=6,
                                             rotary_pct=0.5, use_parallel_residual=False, attention_bias=False)),
    "gptj": ("gptj", dict(vocab_size=61, n_embd=48, n_layer=2, n_head=3, n_positions=192, n_inner=50, rotary_dim=6)),
    "granite": ("granite", sizes(61, 36, 50, 6, 2, attention_bias=True, **GRANITE)),
    "granite_swa": ("granite_swa", sizes(61, 36, 50, 6, 2, sliding_window=9, layer_types=[SLIDING, FULL, SLIDING],
                                         num_hidden_layers=3, layer_rope_theta=[0, 1e4, 500.0], **GRANITE)),
    "granitemoehybrid": ("granitemoehybrid", sizes(61, 36, 50, 6, 2, num_local_experts=0, shared_intermediate_size=50,
                                                   layer_types=["attention"] * 2, mamba_n_heads=4, **GRANITE)),
    "granitemoehybrid-rope": ("granitemoehybrid", sizes(61, 36, 50, 6, 2, num_local_experts=0,
                                                        shared_intermediate_size=50, layer_types=["attention"] * 2,
                                                        mamba_n_heads=4, position_embedding_type="rope", **GRANITE)),
    "granitemoehybrid-experts": ("granitemoehybrid", sizes(109, 36, 18, 6, 2, num_local_experts=6, num_experts_per_tok=2,
                                                           shared_intermediate_size=22, layer_types=["attention"] * 2,
                                                           mamba_n_heads=4, **GRANITE)),
    "mamba2": ("mamba2", dict(vocab_size=109, hidden_size=36, num_heads=6, head_dim=12, n_groups=2, state_size=10,
                              conv_kernel=3, chunk_size=16, time_step_limit=(0.25, 1.5), layer_norm_epsilon=1e-3,
                              use_bias=True)),
    "mamba2-tied": ("mamba2", dict(vocab_size=109, hidden_size=36, num_heads=8, head_dim=9, n_groups=1, state_size=7,
                                   tie_word_embeddings=True, use_conv_bias=False)),
    "mamba": ("mamba", dict(vocab_size=61, hidden_size=36, state_size=7, conv_kernel=3, time_step_rank=5)),
    "mamba-bias": ("mamba", dict(vocab_size=61, hidden_size=36, expand=3, use_bias=True, use_conv_bias=False,
                                 tie_word_embeddings=False, layer_norm_epsilon=1e-3)),
    "falcon_mamba": ("falcon_mamba", dict(vocab_size=61, hidden_size=34, state_size=7, use_bias=True, tie_word_embeddings=False,
                                          layer_norm_epsilon=1e-3, mixer_rms_eps=0.03)),
    "jamba": ("jamba", sizes(61, 36, 40, 6, 2, num_hidden_layers=4, num_experts=5, num_experts_per_tok=3, attn_layer_period=3,
                             attn_layer_offset=1, expert_layer_offset=0, mamba_d_state=7, mamba_dt_rank=6, mamba_proj_bias=True,
                             rms_norm_eps=1e-3)),
    "jamba-dense": ("jamba", sizes(61, 36, 40, 6, 2, num_hidden_layers=3, num_experts=1, attn_layer_period=2,
                                   attn_layer_offset=0, mamba_conv_bias=False, mamba_d_conv=3, mamba_expand=3)),
    "recurrent_gemma": ("recurrent_gemma", sizes(61, 36, 100, 3, 1, attention_window_size=9, conv1d_width=3, rms_norm_eps=1e-3,
                                                 num_hidden_layers=3, block_types=["recurrent", "attention"],
                                                 logits_soft_cap=5.0)),
    "recurrent_gemma-bias": ("recurrent_gemma", sizes(61, 48, 100, 3, 3, attention_bias=True, num_hidden_layers=4)),
    "zamba2": ("zamba2", dict(ZAMBA2, layers_block_type=["hybrid", LINEAR, "hybrid"], mamba_ngroups=2, use_mem_rope=True,
                              use_shared_attention_adapter=True)),
    "zamba2-apart": ("zamba2", dict(ZAMBA2, layers_block_type=["hybrid", LINEAR, "hybrid"], tie_word_embeddings=False)),  # blocks too
    "zamba2-blocks": ("zamba2", dict(ZAMBA2, layers_block_type=["hybrid"] * 3, num_mem_blocks=2, num_key_value_heads=1,
                                     add_bias_linear=True, mamba_expand=3, time_step_min=0.3)),
    "bamba": ("bamba", sizes(61, 36, 50, 3, 1, **MAMBA, attn_layer_indices=[1], time_step_limit=(0.0, 1.0))),
    "bamba-bias": ("bamba", sizes(61, 36, 50, 3, 1, **MAMBA, attn_layer_indices=[0], mamba_proj_bias=True,
                                  mamba_conv_bias=False, attention_bias=True, mlp_bias=True, mamba_d_head=12)),
    "falcon_h1": ("falcon_h1", sizes(61, 36, 50, 6, 2, **dict(MAMBA, mamba_d_ssm=42), **FACTORS)),
    "falcon_h1-norm": ("falcon_h1", sizes(61, 36, 50, 6, 2, head_dim=10, **dict(MAMBA, mamba_d_ssm=42), **FACTORS,
                                          mamba_rms_norm=True, attention_bias=True, mlp_bias=True, mamba_proj_bias=True,
                                          projectors_bias=True, time_step_limit=(0.25, 1.5))),
    "falcon_h1-gate": ("falcon_h1", sizes(61, 36, 50, 6, 2, **dict(MAMBA, mamba_d_ssm=None), mamba_rms_norm=True,
                                          mamba_norm_before_gate=False)),
    "granitemoehybrid-mamba": ("granitemoehybrid", sizes(61, 36, 18, 6, 2, num_local_experts=6, num_experts_per_tok=2,
                                                         shared_intermediate_size=22, layer_types=["mamba", "attention"],
                                                         position_embedding_type="rope", **MAMBA, **GRANITE)),
    "nemotron_h": ("nemotron_h", dict(NEMOTRON, layers_block_type=["mamba", "mlp", "attention", "mlp", "mamba", "moe"])),
    "nemotron_h-bias": ("nemotron_h", dict(NEMOTRON, layers_block_type=["mamba", "mlp", "mamba"], use_bias=True,
                                           mlp_bias=True, time_step_min=0.3)),
    "olmo_hybrid": ("olmo_hybrid", sizes(61, 36, 50, 6, 2, layer_types=["linear_attention", FULL], rms_norm_eps=1e-3)),
    "olmo_hybrid-heads": ("olmo_hybrid", sizes(61, 36, 50, 6, 2, num_hidden_layers=4, linear_num_key_heads=2,
                                               linear_key_head_dim=10, linear_value_head_dim=9,
                                               linear_allow_neg_eigval=False)),
    "helium": ("helium", sizes(61, 36, 50, 6, 2, head_dim=6, attention_bias=True)),
    "hunyuan": ("hunyuan_v1_dense", sizes(61, 36, 50, 6, 2, head_dim=10, attention_bias=True,
                                          rope_parameters=dict(rope_type="dynamic", alpha=1000.0, factor=1.0,
                                                               rope_theta=1e4))),
    "hunyuan-plain": ("hunyuan_v1_dense", sizes(61, 36, 50, 6, 2, head_dim=10)),
    "jais2": ("jais2", sizes(61, 36, 50, 6, 2, head_dim=10)),
    "bloom-normed": ("bloom", dict(vocab_size=61, hidden_size=36, n_layer=2, n_head=6, layer_norm_epsilon=1e-3,
                                   apply_residual_connection_post_layernorm=True)),
    "cohere2-heads": ("cohere2", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, layer_types=[SLIDING, FULL])),
    "falcon-plain": ("falcon", dict(vocab_size=61, hidden_size=36, num_attention_heads=6, parallel_attn=False)),
    "falcon-absent": ("falcon", dict(vocab_size=61, hidden_size=36, num_attention_heads=6, multi_query=False)),
    "falcon-new-absent": ("falcon", dict(vocab_size=61, hidden_size=36, num_attention_heads=6, num_kv_heads=2,
                                         new_decoder_architecture=True)),
    "gpt2-scores": ("gpt2", dict(vocab_size=103, n_embd=36, n_layer=3, n_head=3, n_positions=192,
                                 scale_attn_by_inverse_layer_idx=True)),
    "gpt2-unscaled": ("gpt2", dict(vocab_size=103, n_embd=36, n_layer=2, n_head=3, n_positions=192,
                                   scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True)),
    "gpt_bigcode-unscaled": ("gpt_bigcode", dict(vocab_size=61, n_embd=36, n_layer=2, n_head=6, n_positions=192,
                                                 scale_attn_weights=False)),
    "hunyuan-old": ("hunyuan_v1_dense", sizes(61, 36, 50, 6, 2, head_dim=10)),
    "lfm2-bias": ("lfm2", sizes(109, 36, 40, 6, 2, layer_types=["conv", "full_attention"], block_multiple_of=7,
                                conv_bias=True)),
    "ministral": ("ministral", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, layer_types=[SLIDING, FULL])),
    "ministral3": ("ministral3", sizes(61, 36, 50, 6, 2, head_dim=10, rope_parameters=dict(
        YARN, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    "mpt": ("mpt", dict(vocab_size=61, d_model=36, n_heads=6, n_layers=2, max_seq_len=192,
                        attn_config=dict(clip_qkv=0.8))),
    "nemotron": ("nemotron", sizes(61, 36, 50, 6, 2, head_dim=12, norm_eps=1e-3)),
    "olmo": ("olmo", sizes(61, 36, 50, 6, 2, clip_qkv=0.7)),
    "olmo2": ("olmo2", sizes(61, 36, 50, 6, 2, rms_norm_eps=1e-3)),
    "olmo3": ("olmo3", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, layer_types=[SLIDING, FULL],
                             rope_parameters=nested(dict(YARN, attention_factor=1.2)))),
    "olmo3-old": ("olmo3", sizes(61, 36, 50, 6, 2, num_hidden_layers=4, sliding_window=9)),
    "opt": ("opt", dict(vocab_size=61, hidden_size=36, ffn_dim=50, num_attention_heads=6, word_embed_proj_dim=36)),
    "phi": ("phi", sizes(61, 36, 50, 6, 2, head_dim=12, qk_layernorm=False)),
    "phi-norm": ("phi", sizes(61, 48, 50, 6, 2, qk_layernorm=True, partial_rotary_factor=0.25)),
    "phi3": ("phi3", sizes(61, 36, 50, 3, 1, sliding_window=31, rope_parameters=dict(rope_type="default"))),
    "phi3-long": ("phi3", sizes(61, 48, 34, 3, 1, original_max_position_embeddings=64,
                                rope_parameters=dict(LONGROPE, partial_rotary_factor=0.75))),
    "phi3-longer": ("phi3", sizes(61, 48, 34, 3, 1, original_max_position_embeddings=120,
                                  rope_parameters=dict(LONGROPE, partial_rotary_factor=0.75))),
    "phi3-old": ("phi3", sizes(61, 48, 34, 3, 1, original_max_position_embeddings=64, partial_rotary_factor=0.75,
                               rope_scaling=dict(LONGROPE))),
    "seed_oss": ("seed_oss", sizes(61, 36, 50, 6, 2, head_dim=10, attention_out_bias=True, mlp_bias=True)),
    "smollm3": ("smollm3", sizes(61, 36, 50, 6, 2, no_rope_layers=[1, 0])),
    "smollm3-window": ("smollm3", sizes(61, 36, 50, 6, 2, no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=9)),
    "stablelm": ("stablelm", sizes(61, 48, 34, 6, 2, qk_layernorm=True, use_qkv_bias=True, layer_norm_eps=1e-3)),
    "stablelm-parallel": ("stablelm", sizes(61, 48, 50, 6, 2, use_parallel_residual=True)),
    "starcoder2": ("starcoder2", sizes(61, 36, 50, 6, 2, sliding_window=9)),
    "vaultgemma": ("vaultgemma", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, attn_logit_softcapping=2.0,
                                       final_logit_softcapping=4.0)),
}
# Kin of those above, which differ by names and defaults.
LISTED = dict(mlp_layer_types=["dense", "sparse"], norm_topk_prob=True, moe_intermediate_size=18)
KIN = {
    "afmoe": ("afmoe", sizes(61, 36, 40, 6, 2, head_dim=10, **EXPERTS, num_dense_layers=1, num_shared_experts=2, route_scale=1.7,
                             layer_types=[SLIDING, FULL], sliding_window=9, mup_enabled=True, attention_bias=True)),
    "aria_text": ("aria_text", sizes(61, 36, 18, 6, 2, moe_num_experts=6, moe_topk=3, attention_bias=True)),
    "axk1": ("axk1", sizes(61, 36, 40, 4, 4, **{**ROUTED, **LISTED}, **MLA, q_lora_rank=22, rope_parameters=YARN,
                           rms_norm_eps=1e-3)),
    "bert-causal": ("bert", sizes(61, 36, 50, 6, 6, is_decoder=True)),
    "bert-generation": ("bert-generation", sizes(61, 36, 50, 6, 6, is_decoder=True, layer_norm_eps=1e-3)),
    "biogpt": ("biogpt", sizes(61, 36, 50, 6, 6, layer_norm_eps=1e-3, scale_embedding=True)),
    "codegen": ("codegen", dict(vocab_size=61, n_embd=48, n_layer=2, n_head=4, n_positions=192, n_inner=50, rotary_dim=6)),
    "cohere2_moe": ("cohere2_moe", sizes(61, 36, 18, 6, 2, head_dim=10, num_experts=7, num_experts_per_tok=3,
                                         num_shared_experts=2, layer_types=[SLIDING, FULL], sliding_window=9, logit_scale=0.3,
                                         mlp_layer_types=["dense", "sparse"], prefix_dense_intermediate_size=50)),
    "cohere2_moe-sum": ("cohere2_moe", sizes(61, 36, 18, 6, 2, head_dim=10, num_experts=7, num_experts_per_tok=3, rms_norm_eps=1e-3,
                                             num_shared_experts=1, layer_types=[FULL, SLIDING], sliding_window=9,
                                             shared_expert_combination_strategy="sum", expert_selection_fn="sigmoid",
                                             attention_bias=True)),
    "ctrl": ("ctrl", dict(vocab_size=61, n_embd=36, n_layer=2, n_head=6, n_positions=192, dff=50)),
    "cwm": ("cwm", sizes(61, 36, 50, 6, 2, head_dim=10, sliding_window=9, mlp_bias=True)),
    "dbrx": ("dbrx", dict(vocab_size=61, d_model=36, n_heads=6, n_layers=2, max_seq_len=192, pad_token_id=0, attn_config=dict(
        kv_n_heads=2, clip_qkv=0.8, rope_theta=50.0), ffn_config=dict(ffn_hidden_size=18, moe_num_experts=6, moe_top_k=3))),
    "cohere2_moe-plain": ("cohere2_moe", sizes(61, 36, 18, 6, 2, head_dim=10, num_experts=7, num_experts_per_tok=3,
                                               layer_types=[SLIDING, FULL], sliding_window=9)),
    "ernie4_5_moe-bias": ("ernie4_5_moe", sizes(61, 36, 40, 6, 2, moe_num_experts=7, moe_k=3, moe_intermediate_size=18,
                                                use_bias=True)),
    "ernie4_5_moe": ("ernie4_5_moe", sizes(61, 36, 40, 6, 2, moe_num_experts=7, moe_k=3, moe_intermediate_size=18, use_bias=False,
                                           num_hidden_layers=3, moe_layer_interval=2)),
    "exaone_moe": ("exaone_moe", sizes(61, 36, 40, 6, 2, num_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                                       num_shared_experts=2, layer_types=[SLIDING, FULL], sliding_window=9, **LISTED)),
    "flex_olmo": ("flex_olmo", sizes(61, 36, 18, 6, 2, num_experts=6, num_experts_per_tok=4, norm_topk_prob=True)),
    "flint": ("flint", sizes(61, 36, 40, 6, 2, head_dim=10, **EXPERTS, num_hidden_layers=3, mlp_only_layers=[0],
                             shared_expert_intermediate_size=22, layer_types=[SLIDING, FULL, SLIDING], sliding_window=9)),
    "glm4_moe_lite": ("glm4_moe_lite", sizes(61, 36, 40, 4, 4, **{**ROUTED, **LISTED}, **MLA, q_lora_rank=22)),
    "gpt-sw3": ("gpt-sw3", dict(vocab_size=103, n_embd=36, n_layer=2, n_head=3, n_positions=192, activation_function="gelu")),
    "gpt_neox_japanese": ("gpt_neox_japanese", dict(vocab_size=61, hidden_size=48, num_attention_heads=3, num_hidden_layers=2,
                                                    intermediate_multiple_size=2, rotary_pct=0.25, layer_norm_eps=1e-3,
                                                    max_position_embeddings=192)),
    "granitemoeshared": ("granitemoeshared", sizes(61, 36, 18, 6, 2, num_local_experts=6, shared_intermediate_size=22, **GRANITE)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", sizes(61, 36, 18, 6, 2, head_dim=10, num_experts=6, moe_topk=3)),
    "hy_v3": ("hy_v3", sizes(61, 36, 40, 6, 2, head_dim=10, num_experts=7, num_experts_per_tok=3, num_shared_experts=2,
                             moe_intermediate_size=18, mlp_layer_types=["dense", "sparse"])),
    "hyperclovax": ("hyperclovax", sizes(61, 36, 50, 6, 2, **{**GRANITE, "logits_scaling": 0.3})),
    "hyperclovax-plain": ("hyperclovax", sizes(61, 36, 50, 6, 2, use_post_norm=False, attention_bias=True, mlp_bias=True)),
    "internlm3": ("internlm3", sizes(61, 36, 50, 6, 2, head_dim=10, attention_bias=True, mlp_bias=True)),
    "iquestcoder": ("iquestcoder", sizes(61, 36, 50, 6, 2, head_dim=10, attention_bias=True)),
    "kimi_linear": ("kimi_linear", sizes(61, 36, 40, 4, 4, **MLA, q_lora_rank=None, num_experts=8, num_expert_group=4, topk_group=2,
                                         num_experts_per_token=3, num_shared_experts=2, moe_intermediate_size=18,
                                         linear_num_heads=3, linear_head_dim=10, linear_conv_kernel_dim=3, num_hidden_layers=3,
                                         layer_types=["linear_attention", FULL, "linear_attention"], rms_norm_eps=1e-3)),
    "kimi_linear-rank": ("kimi_linear", sizes(61, 36, 40, 4, 4, **MLA, q_lora_rank=22, num_experts=6, num_experts_per_token=2,
                                              num_shared_experts=1, moe_intermediate_size=18, attention_bias=True,
                                              num_hidden_layers=5, linear_num_heads=2, linear_head_dim=18,
                                              moe_renormalize=False, mlp_layer_types=["sparse", "dense"] * 2 + ["sparse"])),
    "llama4": ("llama4_text", sizes(61, 36, 18, 6, 2, head_dim=10, num_local_experts=5, num_experts_per_tok=2, num_hidden_layers=3,
                                    intermediate_size_mlp=50, moe_layers=[0, 2], no_rope_layers=[1, 0, 1], floor_scale=16,
                                    attention_chunk_size=41, attn_scale=0.3, rms_norm_eps=1e-3)),
    "llama4-bias": ("llama4_text", sizes(61, 36, 18, 6, 2, head_dim=10, num_local_experts=5, intermediate_size_mlp=50,
                                         interleave_moe_layer_step=2, no_rope_layer_interval=2, attention_chunk_size=16, floor_scale=16,
                                         use_qk_norm=False, attn_temperature_tuning=False, attention_bias=True)),
    "mellum": ("mellum", sizes(61, 36, 40, 6, 2, head_dim=10, num_experts=7, num_experts_per_tok=3, layer_types=[SLIDING, FULL],
                               sliding_window=9, **LISTED)),
    "minicpm3": ("minicpm3", sizes(61, 36, 40, 4, 4, kv_lora_rank=20, qk_rope_head_dim=6, qk_nope_head_dim=10, q_lora_rank=22,
                                   scale_emb=3.0, dim_model_base=11, rms_norm_eps=1e-3)),
    "minimax_m2": ("minimax_m2", sizes(61, 36, 18, 6, 2, head_dim=12, num_local_experts=7, num_experts_per_tok=3,
                                       rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    "modernbert-decoder": ("modernbert-decoder", sizes(61, 36, 50, 3, 3, local_attention=14, num_hidden_layers=4, norm_eps=1e-3)),
    "nanochat": ("nanochat", sizes(61, 36, 50, 6, 2, rms_norm_eps=1e-3, final_logit_softcapping=4.0)),
    "openai-gpt": ("openai-gpt", dict(vocab_size=61, n_embd=36, n_layer=2, n_head=6, n_positions=192, layer_norm_epsilon=1e-3)),
    "persimmon": ("persimmon", sizes(61, 48, 50, 6, 6, layer_norm_eps=1e-3)),
    "persimmon-plain": ("persimmon", sizes(61, 48, 50, 6, 6, qk_layernorm=False, hidden_act="gelu")),
    "roberta-causal": ("roberta", sizes(61, 36, 50, 6, 6, is_decoder=True)),
    "solar_open": ("solar_open", sizes(61, 36, 40, 6, 2, head_dim=12, **{**ROUTED, "first_k_dense_replace": 0}, attention_bias=True)),
    "xglm": ("xglm", dict(vocab_size=61, d_model=36, ffn_dim=50, attention_heads=6, num_layers=2, max_position_embeddings=192)),
}
MORE |= MIXTURES | KIN
MORE |= {f"{name}-decoder": (name, half(scale_embedding=True)) for name in HALVES}
MORE["marian-decoder"] = ("marian", half(decoder_vocab_size=61, activation_function="swish"))
MORE["bart-decoder-untied"] = ("bart", half(tie_word_embeddings=False))
# Those whose norms multiply by 1 + w.
OFFSET_NORMS = ("gemma", "gemma2", "gemma3_text", "vaultgemma", "nemotron", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next",
                "recurrent_gemma")
# Those that multiply rounding by more than others: a layer is four matrices in a row, of which each reads a norm.
GAINS = {"zamba2": 0.8}
# Those that are committed, a combination of knobs each.
COMMITTED = [*MODELS, "apertus", "bitnet", "bloom", "bloom-normed", "deepseek_v2", "deepseek_v3", "falcon_h1-norm", "falcon_mamba",
             "gemma2", "gemma3", "gemma4", "gemma4-experts", "glm4", "gpt_neox", "gpt_oss", "granite_swa", "granitemoe",
             "granitemoehybrid-mamba", "hunyuan", "kimi_linear", "lfm2-bias", "lfm2_moe", "lfm3", "llama4", "mamba2", "ministral3", "nemotron_h",
             "olmo", "olmo3", "olmo_hybrid", "phi", "phi3-longer", "phimoe", "qwen2_moe", "qwen3_next",
             "recurrent_gemma", "stablelm", "zamba2"]
# Those whose sizes have other names than Llama's.
WITHOUT_COMMON = ("bloom", "codegen", "ctrl", "dbrx", "gpt2", "gpt-sw3", "openai-gpt", "xglm", "gpt_bigcode", "gpt_neo", "gptj", "mpt",
                  *HALVES)
# Reference attention where eager is wrong: it adds Falcon's ALiBi twice.
ATTENTION = {"falcon-rw": "sdpa"}
# Those whose positions leave padding out: transformers itself gives a text with such a token other
# logits with a cache than without.
NO_PADDING = ("roberta",)
# What is changed in config.json after saving, None to remove a key: old spellings, and keys that files on the hub have.
CHANGES = {
    "llama-linear": dict(rope_parameters=None, rope_theta=10000.0, rope_scaling=dict(type="linear", factor=4.0), dtype=None,
                         torch_dtype="float32"),
    "smollm2": dict(rope_parameters=None, rope_theta=100000, is_llama_config=True, rope_interleaved=False),
    "qwen2": dict(layer_types=None),
    "falcon": dict(num_kv_heads=None),
    "gemma": dict(hidden_act="gelu"),
    "cohere2": dict(layer_types=None, sliding_window_pattern=2),
    "gemma3-old": dict(rope_parameters=None, layer_types=None, sliding_window_pattern=2, rope_theta=20000.0,
                       rope_local_base_freq=100.0, rope_scaling=dict(rope_type="linear", factor=8.0)),
    "glm": dict(rope_parameters=None, rope_theta=5000.0, partial_rotary_factor=0.5),
    "gpt_neox-sequential": dict(rope_parameters=None, rotary_pct=0.5, rotary_emb_base=5000),
    "falcon-absent": dict(parallel_attn=None),
    "falcon-new-absent": dict(parallel_attn=None, num_ln_in_parallel_attn=None),
    "hunyuan-old": dict(attention_head_dim=10),
    "hunyuan-plain": dict(rope_parameters=None, rope_theta=5000.0),
    "nemotron": dict(rope_parameters=None, rope_theta=5000.0, partial_rotary_factor=0.5),
    "olmo3-old": dict(rope_parameters=None, layer_types=None, rope_theta=20000.0, rope_scaling=YARN_OLD),
    "phi": dict(rope_parameters=None, rope_theta=5000.0, partial_rotary_factor=0.5),
    "phi3-old": dict(rope_parameters=None, rope_theta=20000.0, partial_rotary_factor=0.75, rope_scaling=dict(
        type="longrope", short_factor=LONGROPE["short_factor"], long_factor=LONGROPE["long_factor"])),
    "smollm3-window": dict(layer_types=None, no_rope_layers=None, no_rope_layer_interval=2),
    "stablelm-parallel": dict(rope_parameters=None, rope_theta=5000.0, partial_rotary_factor=0.25),
}
SAVING = {"mistral": dict(max_shard_size="50KB")}
# fmt: on


def make(name: str, seed: int, out: Path, edit=None) -> Path:
    """Makes one golden directory, out/name, and returns it; edit(directory) may change the files before the reference reads
    them. Of the seeds seed, seed + 1000, .. the first is taken whose greedy
    tokens are won by a clear margin, so that rounding decides none of them."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model_type, values = {**MODELS, **MORE}[name]
    directory = out / name
    for attempt in range(seed, seed + 50000, 1000):
        torch.manual_seed(attempt)
        if model_type not in WITHOUT_COMMON:
            values = {**COMMON, **values}
        model = (
            AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **values))
            .float()
            .eval()
        )
        randomize(model, torch)
        shutil.rmtree(directory, ignore_errors=True)
        model.save_pretrained(directory, **SAVING.get(name, {}))
        (directory / "generation_config.json").unlink(missing_ok=True)
        change_config(directory / "config.json", CHANGES.get(name, {}))
        if edit:
            edit(directory)

        model = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            experts_implementation="eager",
            attn_implementation=ATTENTION.get(name, "eager"),
        ).eval()
        vocab = values["vocab_size"]
        prompt = torch.randint(3, vocab, (N_PROMPT,)).tolist()
        idle = watch_experts(model)
        with torch.no_grad():
            logits = model(torch.tensor([prompt]), use_cache=False).logits[0].float().numpy()
            greedy, margin = decode(model, prompt, torch)
        padded = model_type in NO_PADDING and values["pad_token_id"] in greedy
        if margin > 2e-3 * np.abs(logits).max() and not any(idle.values()) and not padded:
            break
    else:
        raise SystemExit(f"{name}: no seed from {seed} on gives a clear greedy continuation")
    np.save(directory / "logits.npy", logits)
    made = dict(
        by="tests/reference/make_golden.py",
        command=f"python tests/reference/make_golden.py {name} --seed {seed}",
        seed=attempt,
        torch=torch.__version__,
        transformers=transformers.__version__,
        margin=round(margin, 5),
    )
    (directory / "golden.json").write_text(
        json.dumps(
            dict(made=made, prompt=prompt, greedy=greedy, largest=float(np.abs(logits).max()))
        )
        + "\n"
    )
    return directory


def make_smaller(directory: Path) -> None:
    """The logits in 16 bits, for committing."""
    largest = json.loads((directory / "golden.json").read_text())["largest"]
    logits = np.load(directory / "logits.npy")
    np.save(directory / "logits.npy", np.rint(logits * (32767 / largest)).astype(np.int16))


def watch_experts(model) -> dict[str, set[int]]:
    """By router, the experts that no token has chosen yet; it shrinks while the model runs."""
    idle = {}

    def count(name: str, outputs) -> None:
        chosen = outputs[-1]
        if chosen.is_floating_point():  # Llama 4's logits, before which come scores, mostly zeros
            chosen = outputs[0].nonzero()[:, 1]
        idle[name] -= set(chosen.reshape(-1).tolist())

    for name, module in model.named_modules():
        if type(module).__name__.endswith(("Router", "Gating", "Gate")):
            config = getattr(module, "config", None)
            n = getattr(module, "num_experts", None) or getattr(config, "num_experts", 0)
            if not n:  # DBRX's, which gives logits alone
                continue
            idle[name] = set(range(n))
            module.register_forward_hook(
                lambda module, args, outputs, name=name: count(name, outputs)
            )
    return idle


def randomize(model, torch) -> None:
    """Weights of size 1/sqrt(n_in) times a little more than one, norms around one (Gemma's around zero), biases of 0.3."""
    offset = model.config.model_type in OFFSET_NORMS
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("correction_bias"):
                p.uniform_(-0.1, 0.1)  # more, and some experts would never be chosen
            elif name.endswith("recurrent_gate_weight"):
                p.normal_(0, 0.3 * p.shape[-1] ** -0.5)  # more: 1 - a^2 of a near 1 is rounding
            elif p.ndim == 1:
                around_one = name.endswith(("weight", "router.scale", "per_expert_scale")) and (
                    not offset or "linear_attn" in name
                )
                p.normal_(1.0 if around_one else 0.0, 0.3)
            elif name.endswith("_proj_bias"):
                p.normal_(0, 0.3)
            elif "emb" in name or "wte" in name or "wpe" in name or "lm_head" in name:
                p.normal_(0, 0.5)
            else:
                n_in = p.shape[0 if model.config.model_type == "gpt2" else -1]
                p.normal_(0, GAINS.get(model.config.model_type, 1.5) * n_in**-0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.uniform_(-0.3, 0.3)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)


def change_config(path: Path, changes: dict) -> None:
    config = json.loads(path.read_text())
    config.update(changes)
    config = {key: value for key, value in config.items() if not (key in changes and value is None)}
    path.write_text(json.dumps(config, indent=1) + "\n")


def decode(model, prompt: list[int], torch) -> tuple[list[int], float]:
    """The greedy continuation, without a cache, and the smallest distance between the best and the second logit."""
    ids, margin = list(prompt), float("inf")
    for _ in range(N_GREEDY):
        best = torch.topk(model(torch.tensor([ids]), use_cache=False).logits[0, -1].float(), 2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], margin


def write_committed(
    about: str, names: list[str], default: list[str], make, make_smaller, out: Path
) -> int:
    """The main program of a maker: make(name, seed, folder) and make_smaller(directory) for each name asked for."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument(
        "names", nargs="*", default=default, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=out)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in args.names:
        directory = make(name, args.seed, args.out)
        make_smaller(directory)
        print(f"{directory}: {sum(f.stat().st_size for f in directory.iterdir()):,} bytes")
    return 0


GOLDEN = Path(__file__).resolve().parents[1] / "golden"

if __name__ == "__main__":
    sys.exit(write_committed(__doc__, [*MODELS, *MORE], COMMITTED, make, make_smaller, GOLDEN))
