"""config.json as it is on the hub, of families beyond those in test_configs.py: every key is known,
and the knobs are right; and weights in other forms."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from conftest import ROOT

from exporter.config import Config
from exporter.families.bart import NormedEmbedding
from exporter.families.multimodal import text_model
from exporter.families.registry import FAMILIES, canonical
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError, Tensor

GOLDEN = ROOT / "tests" / "golden"

# fmt: off
COMMON = dict(
    _attn_implementation_autoset=True, architectures=["X"], attention_dropout=0.0, bos_token_id=1,
    eos_token_id=2, initializer_range=0.02, torch_dtype="bfloat16", transformers_version="4.5",
    use_cache=True,
)
LLAMA3 = dict(factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
              original_max_position_embeddings=8192, rope_type="llama3")


def sizes(embd: int, ff: int, heads: int, kv: int | None, layers: int, vocab: int, context: int,
          **more) -> dict:
    """Llama's spelling of sizes; kv None: no such key."""
    found = dict(hidden_size=embd, intermediate_size=ff, num_attention_heads=heads,
                 num_hidden_layers=layers, vocab_size=vocab, max_position_embeddings=context,
                 num_key_value_heads=kv)
    return {key: value for key, value in {**COMMON, **found, **more}.items() if value is not None}


# model: (config, knobs that it must give). Keys that are null there are left out, but for those
# that differ from absent.
HUB = {
    "gemma-2-2b": (
        sizes(2304, 9216, 8, 4, 26, 256000, 8192, model_type="gemma2", attention_bias=False,
              attn_logit_softcapping=50.0, cache_implementation="hybrid",
              final_logit_softcapping=30.0, head_dim=256, hidden_act="gelu_pytorch_tanh",
              hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256, rms_norm_eps=1e-6,
              rope_theta=10000.0, sliding_window=4096),
        dict(softcap=50, final_softcap=30, attn_scale=1 / 16, act=2, tied=True,
             window=[4096, 0] * 13,
             norm_offset=1)),
    "gemma-3-270m": (
        sizes(640, 2048, 4, 1, 18, 262144, 32768, model_type="gemma3_text",
              _sliding_window_pattern=6, attention_bias=False, head_dim=256,
              hidden_activation="gelu_pytorch_tanh",
              layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3,
              query_pre_attn_scalar=256, rms_norm_eps=1e-6, rope_local_base_freq=10000.0,
              rope_theta=1000000.0, sliding_window=512, use_bidirectional_attention=False),
        dict(softcap=0, final_softcap=0, tied=True, window=([512] * 5 + [0]) * 3,
             rope=([0] * 5 + [1]) * 3)),
    "embeddinggemma-300m": (
        sizes(768, 1152, 3, 1, 24, 262144, 2048, model_type="gemma3_text",
              architectures=["Gemma3TextModel"], _sliding_window_pattern=6, attention_bias=False,
              head_dim=256, hidden_activation="gelu_pytorch_tanh",
              layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 4,
              query_pre_attn_scalar=256, rms_norm_eps=1e-6, rope_local_base_freq=10000.0,
              rope_theta=1000000.0, sliding_window=512, use_bidirectional_attention=True),
        dict(mask=1, window=([257] * 5 + [0]) * 4, rope=([0] * 5 + [1]) * 4)),
    "paligemma-3b-pt-224": (
        dict(architectures=["X"], model_type="paligemma", hidden_size=2048, ignore_index=-100,
             image_token_index=257152, projection_dim=2048, pad_token_id=0, bos_token_id=2,
             eos_token_id=1, vision_config={}, text_config=dict(
                 hidden_size=2048, intermediate_size=16384, model_type="gemma",
                 num_attention_heads=8, num_hidden_layers=18, num_image_tokens=256,
                 num_key_value_heads=1, torch_dtype="float32", vocab_size=257216)),
        dict(mask=0, head_dim=256, context=8192, tied=True)),
    "gemma-4-e2b-it": (
        dict(architectures=["X"], model_type="gemma4", audio_config={}, vision_config={},
             image_token_id=1, tie_word_embeddings=True, text_config=dict(
                 COMMON, attention_bias=False, attention_k_eq_v=False, enable_moe_block=False,
                 expert_intermediate_size=None, final_logit_softcapping=30.0, global_head_dim=512,
                 head_dim=256, hidden_activation="gelu_pytorch_tanh", hidden_size=1536,
                 hidden_size_per_layer_input=256, intermediate_size=6144,
                 layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7,
                 max_position_embeddings=131072, model_type="gemma4_text", num_attention_heads=8,
                 num_experts=None, num_global_key_value_heads=None, num_hidden_layers=35,
                 num_key_value_heads=1, num_kv_shared_layers=20, rms_norm_eps=1e-6,
                 rope_parameters=dict(
                     full_attention=dict(partial_rotary_factor=0.25,
                                         rope_theta=1e6, rope_type="proportional"),
                     sliding_attention=dict(rope_theta=10000.0, rope_type="default")),
                 sliding_window=512, tie_word_embeddings=True, top_k_experts=None,
                 use_bidirectional_attention=None, use_double_wide_mlp=True, vocab_size=262144,
                 vocab_size_per_layer_input=262144)),
        dict(head_dim=([256] * 4 + [512]) * 7, n_kv_heads=[1] * 35, d_ff=[6144] * 15 + [12288] * 20,
             norm_offset=0)),
    "gemma-3-4b-it": (
        dict(architectures=["X"], model_type="gemma3", boi_token_index=255999,
             eoi_token_index=256000, image_token_index=262144, mm_tokens_per_image=256,
             vision_config=dict(hidden_size=1152), text_config=dict(hidden_size=2560,
                              intermediate_size=10240, model_type="gemma3_text",
                              num_hidden_layers=34,
                              rope_scaling=dict(factor=8.0, rope_type="linear"),
                              sliding_window=1024)),
        dict(n_heads=8, n_kv_heads=4, head_dim=256, vocab_size=262208,
             window=([1024] * 5 + [0]) * 5 + [1024] * 4)),
    "phi-2": (
        sizes(2560, 10240, 32, 32, 32, 51200, 2048, model_type="phi", embd_pdrop=0.0,
              hidden_act="gelu_new", layer_norm_eps=1e-5, partial_rotary_factor=0.4,
              qk_layernorm=False, resid_pdrop=0.1, rope_theta=10000.0, tie_word_embeddings=False),
        dict(parallel=True, layernorm=True, act=2, tied=False)),
    "phi-4-mini": (
        sizes(3072, 8192, 24, 8, 32, 200064, 131072, model_type="phi3", attention_bias=False,
              auto_map={}, embd_pdrop=0.0, full_attn_mod=1, hidden_act="silu",
              interpolate_factor=1, lm_head_bias=False, mlp_bias=False,
              original_max_position_embeddings=4096, partial_rotary_factor=0.75, resid_pdrop=0.0,
              rms_norm_eps=1e-5,
              rope_scaling=dict(long_factor=[2.0] * 48, short_factor=[1.0] * 48, type="longrope"),
              rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=True),
        dict(tied=True, head_dim=128)),
    "phi-3-mini-4k": (
        sizes(3072, 8192, 32, 32, 32, 32064, 4096, model_type="phi3", attention_bias=False,
              hidden_act="silu", original_max_position_embeddings=4096, rms_norm_eps=1e-5,
              rope_theta=10000.0, sliding_window=2047),
        dict(window=[2047] * 32, tied=False)),
    "olmo-2-1b": (
        sizes(2048, 8192, 16, 16, 16, 100352, 4096, model_type="olmo2", attention_bias=False,
              hidden_act="silu", rms_norm_eps=1e-6, rope_theta=500000, tie_word_embeddings=False),
        dict(qk_norm=1, norm_eps=1e-6)),
    "stablelm-2-1.6b": (
        sizes(2048, 5632, 32, 32, 24, 100352, 4096, model_type="stablelm", hidden_act="silu",
              hidden_dropout=0.0, layer_norm_eps=1e-5, partial_rotary_factor=0.25,
              qk_layernorm=False, rope_theta=10000, tie_word_embeddings=False,
              use_parallel_residual=False, use_qkv_bias=True),
        dict(parallel=False, layernorm=True, biased=("attn_q", "attn_k", "attn_v"))),
    "granite-3.3-2b": (
        sizes(2048, 8192, 32, 8, 40, 49159, 131072, model_type="granite", attention_bias=False,
              attention_multiplier=0.015625, embedding_multiplier=12.0, hidden_act="silu",
              logits_scaling=8.0, mlp_bias=False, residual_multiplier=0.22, rms_norm_eps=1e-5,
              rope_theta=1e7, tie_word_embeddings=True),
        dict(attn_scale=1 / 64, emb_scale=12, logit_scale=1 / 8, residual_scale=0.22, tied=True)),
    "pythia-160m": (
        sizes(768, 3072, 12, None, 12, 50304, 2048, model_type="gpt_neox", hidden_act="gelu",
              layer_norm_eps=1e-5, rotary_emb_base=10000, rotary_pct=0.25,
              tie_word_embeddings=False, use_parallel_residual=True),
        dict(parallel=True, act=1, grouped_qkv=True, n_kv_heads=12)),
    "smollm3-3b": (
        sizes(2048, 11008, 16, 4, 36, 128256, 65536, model_type="smollm3", attention_bias=False,
              hidden_act="silu", layer_types=["full_attention"] * 36, max_window_layers=28,
              mlp_bias=False, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9,
              pretraining_tp=2, rms_norm_eps=1e-6, rope_theta=5e6, use_sliding_window=False),
        dict(rope=[0, 0, 0, -1] * 9, tied=True)),
    "command-r7b": (
        sizes(4096, 14336, 32, 8, 32, 256000, 8192, model_type="cohere2", attention_bias=False,
              cache_implementation="hybrid", head_dim=128, hidden_act="silu", layer_norm_eps=1e-5,
              layer_switch=4, logit_scale=0.25, order_of_interleaved_layers="local_attn_first",
              position_embedding_type="rope_gptj", rope_theta=50000, rotary_pct=1.0,
              sliding_window=4096, sliding_window_pattern=4, use_embedding_sharing=True,
              use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=False),
        dict(logit_scale=0.25, rope=[0, 0, 0, -1] * 8, window=[4096, 4096, 4096, 0] * 8,
             interleaved=True)),
    "glm-4-9b-0414": (
        sizes(4096, 13696, 32, 2, 40, 151552, 32768, model_type="glm4", attention_bias=False,
              head_dim=128, hidden_act="silu", partial_rotary_factor=0.5, rms_norm_eps=1e-5,
              rope_theta=10000.0, tie_word_embeddings=False),
        dict(interleaved=True, biased=())),
    "exaone-4.0-1.2b": (
        sizes(2048, 4096, 32, 8, 30, 102400, 65536, model_type="exaone4", head_dim=64,
              hidden_act="silu", layer_types=["full_attention"] * 30, rms_norm_eps=1e-5,
              rope_scaling={**LLAMA3, "factor": 16.0}, rope_theta=1e6,
              tie_word_embeddings=True) | dict(sliding_window=None, sliding_window_pattern=None),
        dict(rope=[0] * 30, window=[0] * 30)),
    "ernie-4.5-0.3b": (
        sizes(1024, 3072, 16, 2, 18, 103424, 131072, model_type="ernie4_5", head_dim=128,
              hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000, tie_word_embeddings=True,
              use_bias=False),
        dict(interleaved=True, head_dim=128)),
    "apertus-8b": (
        sizes(4096, 21504, 32, 8, 32, 131072, 65536, model_type="apertus", attention_bias=False,
              hidden_act="xielu", hidden_dropout=0.0, mlp_bias=False, post_norm=False,
              pretraining_tp=1, qk_norm=True, rms_norm_eps=1e-5,
              rope_scaling={**LLAMA3, "type": "llama3"}, rope_theta=12000000,
              tie_word_embeddings=False),
        dict(act=5)),
    "starcoder2-3b": (
        sizes(3072, 12288, 24, 2, 30, 49152, 16384, model_type="starcoder2",
              attention_softmax_in_fp32=True, embedding_dropout=0.1,
              hidden_act="gelu_pytorch_tanh", layer_norm_epsilon=1e-5, mlp_type="default",
              norm_epsilon=1e-5, norm_type="layer_norm", residual_dropout=0.1,
              rope_theta=999999.4420358813, scale_attention_softmax_in_fp32=True,
              scale_attn_weights=True, sliding_window=4096, use_bias=True),
        dict(tied=True, window=[4096] * 30, act=2)),
    "falcon-40b": (
        dict(COMMON, model_type="falcon", alibi=False,
             apply_residual_connection_post_layernorm=False, bias=False, hidden_dropout=0.0,
             hidden_size=8192, layer_norm_epsilon=1e-5, new_decoder_architecture=True,
             num_attention_heads=128, num_hidden_layers=60, num_kv_heads=8, parallel_attn=True,
             vocab_size=65024),
        dict(n_kv_heads=8, parallel=True, head_dim=64)),
    "falcon-rw-1b": (
        dict(COMMON, model_type="falcon", alibi=True,
             apply_residual_connection_post_layernorm=False, bias=True, hidden_dropout=0.0,
             hidden_size=2048, layer_norm_epsilon=1e-5, multi_query=False,
             new_decoder_architecture=False, num_attention_heads=32, num_hidden_layers=24,
             parallel_attn=False, vocab_size=50304),
        dict(n_kv_heads=32, parallel=False)),
    "bloom-560m": (
        dict(COMMON, model_type="bloom", apply_residual_connection_post_layernorm=False,
             attention_softmax_in_fp32=True, bias_dropout_fusion=True, hidden_dropout=0.0,
             layer_norm_epsilon=1e-5, masked_softmax_fusion=True, n_embed=1024, n_inner=None,
             n_layer=24, num_attention_heads=16, offset_alibi=100, pretraining_tp=1,
             skip_bias_add=True, skip_bias_add_qkv=False, unk_token_id=0, vocab_size=250880),
        dict(n_heads=16, n_embd=1024, d_ff=4096, context=2048)),
    "mpt-7b": (
        dict(COMMON, model_type="mpt", d_model=4096, emb_pdrop=0, embedding_fraction=1.0,
             expansion_ratio=4, init_config={}, init_device="cpu", learned_pos_emb=True,
             logit_scale=None, max_seq_len=2048, n_heads=32, n_layers=32, no_bias=True,
             norm_type="low_precision_layernorm", resid_pdrop=0, tokenizer_name="x", verbose=0,
             vocab_size=50432, attn_config=dict(
                 alibi=True, alibi_bias_max=8, attn_impl="torch", attn_pdrop=0,
                 attn_type="multihead_attention", attn_uses_sequence_id=False, clip_qkv=None,
                 prefix_lm=False, qk_ln=False, softmax_scale=None)),
        dict(clip=0, d_ff=16384)),
    "opt-125m": (
        dict(COMMON, model_type="opt", _remove_final_layer_norm=False, activation_dropout=0.0,
             activation_function="relu", do_layer_norm_before=True, dropout=0.1, ffn_dim=3072,
             hidden_size=768, init_std=0.02, layerdrop=0.0, max_position_embeddings=2048,
             num_attention_heads=12, num_hidden_layers=12, prefix="</s>", vocab_size=50272,
             word_embed_proj_dim=768),
        dict(act=3, skipped_positions=2, tied=True)),
    "gpt-neo-125m": (
        dict(COMMON, model_type="gpt_neo", activation_function="gelu_new",
             attention_layers=["global", "local"] * 6, attention_types=[[["global", "local"], 6]],
             embed_dropout=0, gradient_checkpointing=False, hidden_size=768,
             intermediate_size=None, layer_norm_epsilon=1e-5, max_position_embeddings=2048,
             num_heads=12, num_layers=12, resid_dropout=0, summary_type="cls_index",
             vocab_size=50257, window_size=256),
        dict(attn_scale=1, window=[0, 256] * 6, d_ff=3072)),
    "gpt-j-6b": (
        dict(COMMON, model_type="gptj", activation_function="gelu_new", attn_pdrop=0.0,
             embd_pdrop=0.0, gradient_checkpointing=False, layer_norm_epsilon=1e-5, n_embd=4096,
             n_head=16, n_inner=None, n_layer=28, n_positions=2048, resid_pdrop=0.0, rotary=True,
             rotary_dim=64, scale_attn_weights=True, summary_type="cls_index",
             task_specific_params={}, tie_word_embeddings=False, tokenizer_class="X",
             vocab_size=50400),
        dict(parallel=True, interleaved=True, head_dim=256)),
    "mamba-codestral-7b": (
        dict(COMMON, model_type="mamba2", chunk_size=256, conv_kernel=4, expand=2, head_dim=64,
             hidden_act="silu", hidden_size=4096, intermediate_size=8192, layer_norm_epsilon=1e-5,
             n_groups=8, norm_before_gate=True, num_heads=128, num_hidden_layers=64,
             rescale_prenorm_residual=False, residual_in_fp32=True, rms_norm=True, state_size=128,
             tie_word_embeddings=False, time_step_floor=1e-4, time_step_init_scheme="random",
             time_step_limit=[0.0, float("inf")], time_step_max=0.1, time_step_min=0.001,
             time_step_rank=256, time_step_scale=1.0, use_bias=False, use_conv_bias=True,
             vocab_size=32768),
        dict(n_layers=64, d_ff=0, biased=("ssm_step", "conv"))),
    "mamba-130m": (
        dict(COMMON, model_type="mamba", conv_kernel=4, d_inner=1536, d_model=768, expand=2,
             fused_add_norm=True, hidden_act="silu", hidden_size=768, intermediate_size=1536,
             layer_norm_epsilon=1e-5, n_layer=24, num_hidden_layers=24, pad_vocab_size_multiple=8,
             rescale_prenorm_residual=False, residual_in_fp32=True, rms_norm=True, ssm_cfg={},
             state_size=16, time_step_floor=1e-4, time_step_init_scheme="random",
             time_step_max=0.1, time_step_min=0.001, time_step_rank=48, time_step_scale=1.0,
             use_bias=False, use_conv_bias=True, vocab_size=50280),
        dict(n_layers=24, tied=True, biased=("ssm_step_up", "conv"))),
    "jamba-v0.1": (
        sizes(4096, 14336, 32, 8, 32, 262144, 65536, model_type="jamba", attn_layer_offset=4,
              attn_layer_period=8, calc_logits_for_entire_prompt=False, expert_layer_offset=1,
              expert_layer_period=2, hidden_act="silu", mamba_conv_bias=True, mamba_d_conv=4,
              mamba_d_state=16, mamba_dt_rank=256, mamba_expand=2, mamba_inner_layernorms=True,
              mamba_proj_bias=False, num_experts=16, num_experts_per_tok=2, num_logits_to_keep=1,
              output_router_logits=False, rms_norm_eps=1e-6, router_aux_loss_coef=0.001,
              sliding_window=None, tie_word_embeddings=False, use_mamba_kernels=True),
        dict(d_ff=[14336, 0] * 16, rope=[-1])),
    "nemotron-h-8b": (
        sizes(4096, 21504, 32, 8, 52, 131072, 8192, model_type="nemotron_h", attention_bias=False,
              attention_head_dim=128, chunk_size=128, conv_kernel=4, expand=2, hidden_dropout=0,
              hybrid_override_pattern="M-M-M-M*-" + 3 * "M-M-M-M-M*-" + "M-M-M-M-M-",
              layer_norm_epsilon=1e-5, mamba_head_dim=64, mamba_hidden_act="silu",
              mamba_num_heads=128, mamba_proj_bias=False, mlp_bias=False, mlp_hidden_act="relu2",
              n_groups=8, num_logits_to_keep=1, rescale_prenorm_residual=True,
              residual_in_fp32=False, rms_norm_eps=1e-5, ssm_state_size=128,
              tie_word_embeddings=False, time_step_floor=1e-4,
              time_step_limit=[0.0, {"__float__": "Infinity"}], time_step_max=0.1,
              time_step_min=0.001, time_step_rank=256, use_bias=False, use_conv_bias=True,
              use_mamba_kernels=True),
        dict(act=4, head_dim=128, rope=[-1], context=8192,
             d_ff=[0, 21504] * 3 + ([0, 0, 21504] + [0, 21504] * 4) * 4 + [0, 21504])),
    "bamba-9b": (
        sizes(4096, 14336, 32, 8, 32, 128256, 262144, model_type="bamba", attention_bias=False,
              attn_layer_indices=[9, 18, 27], attn_rotary_emb=64, hidden_act="silu",
              mamba_chunk_size=256, mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=64,
              mamba_d_state=128, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=128,
              mamba_proj_bias=False, mlp_bias=False, num_logits_to_keep=1, rms_norm_eps=1e-5,
              rope_theta=10000.0, tie_word_embeddings=False, z_loss_coefficient=0.0),
        dict(head_dim=128, tied=False)),
    "zamba2-1.2b": (
        sizes(2048, 8192, 32, 32, 38, 32000, 4096, model_type="zamba2", adapter_rank=128,
              add_bias_linear=False, attention_head_dim=128, attention_hidden_size=4096,
              chunk_size=256, hidden_act="gelu", hybrid_layer_ids=[5, 11, 17, 23, 29, 35],
              kv_channels=64, layers_block_type=(["mamba"] * 5 + ["hybrid"]) * 6 + ["mamba"] * 2,
              mamba_d_conv=4, mamba_d_state=128, mamba_expand=2, mamba_headdim=64, mamba_ngroups=1,
              n_mamba_heads=64, num_logits_to_keep=1, num_mem_blocks=1, num_query_groups=32,
              rms_norm_eps=1e-5, rope_theta=10000, time_step_floor=1e-4, time_step_limit=None,
              time_step_max=0.1, time_step_min=0.001, use_conv_bias=True, use_long_context=False,
              use_mamba_kernels=True, use_mem_eff_path=False, use_mem_rope=True,
              use_shared_attention_adapter=True, use_shared_mlp_adapter=True),
        dict(head_dim=128, attn_scale=0.125, tied=True, rope=[0] * 38, act=1,
             nested=([False] * 5 + [True]) * 6 + [False] * 2)),
    "falcon-h1-0.5b": (
        sizes(1024, 2048, 8, 2, 36, 32784, 16384, model_type="falcon_h1", attention_bias=False,
              attention_in_multiplier=1.0, attention_out_multiplier=0.9375,
              embedding_multiplier=5.656854249492381, head_dim=64, hidden_act="silu",
              key_multiplier=0.39, lm_head_multiplier=0.0390625, mamba_chunk_size=128,
              mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=64, mamba_d_ssm=1536,
              mamba_d_state=128, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=24,
              mamba_norm_before_gate=False, mamba_proj_bias=False, mamba_rms_norm=False,
              mamba_use_mlp=True, mlp_bias=False, mlp_expansion_factor=8,
              mlp_multipliers=[0.88, 0.5859375], num_logits_to_keep=1, projectors_bias=False,
              rms_norm_eps=1e-5, rope_theta=1e11, ssm_in_multiplier=1.25,
              ssm_multipliers=[0.35, 0.25, 0.35, 0.5, 0.35], ssm_out_multiplier=0.2357,
              tie_word_embeddings=False),
        dict(emb_scale=5.656854249492381, logit_scale=0.0390625, head_dim=64)),
    "granite-4.0-h-tiny": (
        sizes(1536, 512, 12, 4, 40, 100352, 131072, model_type="granitemoehybrid",
              attention_bias=False, attention_multiplier=0.0078125, embedding_multiplier=12,
              hidden_act="silu", init_method="mup", layer_types=(["mamba"] * 5 + ["attention"] +
              ["mamba"] * 4) * 4, logits_scaling=6, mamba_chunk_size=256, mamba_conv_bias=True,
              mamba_d_conv=4, mamba_d_head=64, mamba_d_state=128, mamba_expand=2, mamba_n_groups=1,
              mamba_n_heads=48, mamba_proj_bias=False, normalization_function="rmsnorm",
              num_experts_per_tok=6, num_local_experts=64, output_router_logits=False,
              position_embedding_type="nope", residual_multiplier=0.22, rms_norm_eps=1e-5,
              rope_theta=10000, router_aux_loss_coef=0.01, shared_intermediate_size=1024,
              tie_word_embeddings=True),
        dict(residual_scale=0.22, d_ff=1024, rope=[-1], tied=True)),
    "openai-gpt": (
        dict(COMMON, model_type="openai-gpt", afn="gelu", attn_pdrop=0.1, embd_pdrop=0.1,
             layer_norm_epsilon=1e-5, n_ctx=512, n_embd=768, n_head=12, n_layer=12, n_positions=512,
             n_special=0, predict_special_tokens=True, resid_pdrop=0.1, summary_activation=None,
             summary_first_dropout=0.1, summary_proj_to_labels=True, summary_type="cls_index",
             summary_use_proj=True, vocab_size=40478),
        dict(act=2, post_norm=True, tied=True, context=512)),
    "codegen-350m-mono": (
        dict(COMMON, model_type="codegen", activation_function="gelu_new", attn_pdrop=0.0,
             embd_pdrop=0.0, gradient_checkpointing=False, layer_norm_epsilon=1e-5, n_ctx=2048,
             n_embd=1024, n_head=16, n_inner=None, n_layer=20, n_positions=2048, resid_pdrop=0.0,
             rotary_dim=32, scale_attn_weights=True, summary_type="cls_index", vocab_size=51200),
        dict(tied=False, interleaved=True, parallel=True, d_ff=4096)),
    "xglm-564m": (
        dict(COMMON, model_type="xglm", activation_dropout=0, activation_function="gelu",
             attention_heads=16, d_model=1024, decoder_start_token_id=2, dropout=0.1, ffn_dim=4096,
             init_std=0.02, layerdrop=0.0, max_position_embeddings=2048, num_layers=24,
             pad_token_id=1, scale_embedding=True, vocab_size=256008),
        dict(emb_scale=32, tied=True, norm_eps=1e-5, skipped_positions=2)),
    "camembert-base": (
        sizes(768, 3072, 12, None, 12, 32005, 514, model_type="camembert", hidden_act="gelu",
              attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1, layer_norm_eps=1e-5,
              output_past=True, pad_token_id=1, type_vocab_size=1),
        dict(context=512, skipped_positions=2, mask=1)),
    "xlm-mlm-en-2048": (
        dict(COMMON, model_type="xlm", asm=False, bos_index=0, causal=False, dropout=0.1,
             emb_dim=2048, embed_init_std=0.022, end_n_top=5, eos_index=1, gelu_activation=True,
             id2lang={"0": "en"}, init_std=0.02, is_encoder=True, lang2id={"en": 0}, lang_id=0,
             layer_norm_eps=1e-12, mask_index=5, mask_token_id=0, max_position_embeddings=512,
             max_vocab=-1, min_count=0, n_heads=16, n_langs=1, n_layers=12, n_words=30145,
             pad_index=2, pad_token_id=2, same_enc_dec=True, share_inout_emb=True,
             sinusoidal_embeddings=False, start_n_top=5, summary_first_dropout=0.1,
             summary_proj_to_labels=True, summary_type="first", summary_use_proj=True, unk_index=3,
             use_lang_emb=True),
        dict(vocab_size=30145, d_ff=8192, act=1, mask=1)),
    "ettin-decoder-150m": (
        sizes(768, 1152, 12, None, 22, 50368, 7999, model_type="modernbert-decoder",
              attention_bias=False, causal_mask=True, classifier_activation="gelu",
              classifier_bias=False, classifier_dropout=0.0, classifier_pooling="mean",
              cls_token_id=50281, decoder_bias=True, deterministic_flash_attn=False,
              embedding_dropout=0.0, global_attn_every_n_layers=3, global_rope_theta=160000.0,
              hidden_activation="gelu", initializer_cutoff_factor=2.0, is_causal=True,
              layer_norm_eps=1e-5, local_attention=128, local_rope_theta=160000.0, mlp_bias=False,
              mlp_dropout=0.0, norm_bias=False, norm_eps=1e-5, position_embedding_type="sans_pos",
              repad_logits_with_grad=False, sparse_pred_ignore_index=-100, sparse_prediction=False,
              tie_word_embeddings=True),
        dict(mask=0, window=([0] + [64] * 2) * 7 + [0])),
    "minimax-m2": (
        sizes(3072, 1536, 48, 8, 62, 200064, 196608, model_type="minimax_m2",
              attn_type_list=[1] * 62, head_dim=128, hidden_act="silu",
              layernorm_full_attention_beta=1.0, layernorm_linear_attention_beta=1.0,
              layernorm_mlp_beta=1.0, mlp_intermediate_size=8192, mtp_transformer_layers=1,
              num_experts_per_tok=8, num_local_experts=256, num_mtp_modules=3,
              output_router_logits=False, qk_norm_type="per_layer", rms_norm_eps=1e-6,
              rope_theta=5000000, rotary_dim=64, router_aux_loss_coef=0.001,
              router_jitter_noise=0.0, scoring_func="sigmoid", shared_intermediate_size=0,
              shared_moe_mode="sigmoid", tie_word_embeddings=False, use_mtp=True, use_qk_norm=True,
              use_routing_bias=True),
        dict(qk_norm=1, d_ff=0)),
    "glm-4.7-flash": (
        sizes(2048, 10240, 20, 20, 47, 154880, 202752, model_type="glm4_moe_lite",
              attention_bias=False, first_k_dense_replace=1, hidden_act="silu", kv_lora_rank=512,
              moe_intermediate_size=1536, n_group=1, n_routed_experts=64, n_shared_experts=1,
              norm_topk_prob=True, num_experts_per_tok=4, num_nextn_predict_layers=1,
              partial_rotary_factor=1.0, q_lora_rank=768, qk_nope_head_dim=192,
              qk_rope_head_dim=64, rms_norm_eps=1e-5, rope_theta=1000000,
              routed_scaling_factor=1.8, tie_word_embeddings=False, topk_group=1,
              topk_method="noaux_tc", v_head_dim=256),
        dict(d_ff=[10240] + [1536] * 46, head_dim=576, n_kv_heads=1)),
    "trinity-mini": (
        sizes(2048, 6144, 32, 4, 32, 200192, 131072, model_type="afmoe", attention_bias=False,
              global_attn_every_n_layers=4, head_dim=128, hidden_act="silu",
              load_balance_coeff=0.001, moe_intermediate_size=1024, mup_enabled=True, n_group=1,
              num_dense_layers=2, num_expert_groups=1, num_experts=128, num_experts_per_tok=8,
              num_limited_groups=1, num_shared_experts=1, rms_norm_eps=1e-5, rope_theta=10000,
              route_norm=True, route_scale=2.826, score_func="sigmoid", sliding_window=2048,
              tie_word_embeddings=False, topk_group=1, use_grouped_mm=True),
        dict(emb_scale=2048**0.5, window=[2048, 2048, 2048, 0] * 8, rope=[0, 0, 0, -1] * 8,
             d_ff=[6144] * 2 + [1024] * 30)),
    "olmo-hybrid-7b": (
        sizes(3840, 11008, 30, 30, 32, 100352, 65536, model_type="olmo_hybrid",
              attention_bias=False, hidden_act="silu", linear_a_log_max=16.0, linear_a_log_min=0.0,
              linear_allow_neg_eigval=True, linear_conv_kernel_dim=4, linear_dt_init_floor=1e-4,
              linear_dt_max=0.1, linear_dt_min=0.001, linear_key_head_dim=96,
              linear_num_key_heads=30, linear_num_value_heads=30, linear_value_head_dim=192,
              rms_norm_eps=1e-6, rope_parameters=dict(rope_theta=None), tie_word_embeddings=False),
        dict(qk_norm=1, rope=[-1], norm_eps=1e-6)),
}
# fmt: on


@pytest.mark.parametrize("name", HUB)
def test_configs_as_they_are_on_the_hub(name):
    values, expected = HUB[name]
    config, _ = text_model(values, {})
    c = Config(config)
    knobs = FAMILIES[c.get("model_type")][0](c)
    c.finish()
    assert {key: getattr(knobs, key) for key in expected} == expected


def test_rope_of_configs_on_the_hub():
    """What of a head turns, and how fast."""

    def ropes(name: str):
        config, _ = text_model(HUB[name][0], {})
        c = Config(config)
        return FAMILIES[c.get("model_type")][0](c).ropes

    assert [len(r.inv_freq) for r in ropes("phi-2")] == [16]  # 0.4 of 80
    assert [len(r.inv_freq) for r in ropes("glm-4-9b-0414")] == [32]
    assert [len(r.inv_freq) for r in ropes("gpt-j-6b")] == [32]
    local, full = ropes("gemma-3-4b-it")
    assert local.inv_freq[1] == pytest.approx(1e4 ** (-2 / 256))
    assert full.inv_freq[1] == pytest.approx(1e6 ** (-2 / 256) / 8)
    (longrope,) = ropes("phi-4-mini")
    assert longrope.length == 4096 and longrope.multiplier == pytest.approx((1 + 5 / 12) ** 0.5)
    assert longrope.inv_freq[5] == pytest.approx(2 * longrope.long_freq[5])
    assert len(longrope.inv_freq) == 48


def shapes_of(name: str, **changes) -> tuple[dict, dict]:
    """Metadata and shapes of a golden checkpoint whose config is changed; None removes a key."""
    config, tensors = golden(name)
    config = {k: v for k, v in {**config, **changes}.items() if k not in changes or v is not None}
    _, knobs, found, _ = canonical(config, tensors)
    return knobs.metadata(found), {name: tensor.shape for name, tensor in found.items()}


def same(a: tuple[dict, dict], b: tuple[dict, dict]) -> bool:
    return repr(a) == repr(b)


def test_first_names_of_keys():
    """Hunyuan's head_dim, and how Nemotron-H began."""
    assert same(shapes_of("hunyuan", head_dim=None, attention_head_dim=10), shapes_of("hunyuan"))
    kinds = dict(layers_block_type=None, hybrid_override_pattern="M-*-ME", num_hidden_layers=6)
    sizes = dict(n_groups=None, mamba_n_groups=2, conv_kernel=None, mamba_d_conv=4)
    assert same(shapes_of("nemotron_h", **kinds, **sizes), shapes_of("nemotron_h"))
    assert not same(shapes_of("nemotron_h", time_step_min=0.5), shapes_of("nemotron_h"))


def test_olmo_hybrid_has_rope_unless_its_theta_is_null():
    """As transformers: no rope_parameters at all mean the usual ones."""
    config, _ = golden("olmo_hybrid")
    plain = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_parameters")}

    def ropes(**more) -> int:
        c = Config({**plain, **more})
        return len(FAMILIES[c.get("model_type")][0](c).ropes)

    assert ropes() == ropes(rope_parameters=None) == ropes(rope_theta=10000.0) == 1
    assert ropes(rope_theta=None) == ropes(rope_parameters=dict(rope_theta=None)) == 0


def test_olmo_hybrid_as_it_is_on_the_hub():
    """Convolutions of q, k and v by their own sizes, and the norms of attention by their names;
    transformers 5.23.0 saves thirds, and other names."""
    config, tensors = golden("olmo_hybrid")
    _, knobs, want, _ = canonical(config, dict(tensors))
    layer = "model.layers.0.linear_attn."
    thirds = [tensors.pop(f"{layer}{letter}_conv1d.weight").array() for letter in "qkv"]
    whole, widths = np.concatenate(thirds), [24, 24, 48]
    for letter, rows in zip("qkv", np.split(whole, np.cumsum(widths)[:-1])):
        tensors[f"{layer}{letter}_conv1d.weight"] = in_memory(rows)
    layer = "model.layers.1."
    norm = tensors.pop(layer + "feedforward_layer_norm.weight")
    tensors[layer + "post_attention_layernorm.weight"] = norm
    _, _, found, _ = canonical(config, tensors)
    assert list(found) == list(want)
    assert all(np.array_equal(found[name].array(), want[name].array()) for name in want)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("mamba2", dict(n_groups=4), "6 heads of Mamba-2 are no multiple of 4 groups"),
        ("mamba2", dict(expand=3), "num_heads times head_dim is not expand times hidden_size"),
        ("mamba2", dict(time_step_limit=[0.1]), "time_step_limit is [0.1], expected two numbers"),
        ("mamba2", dict(rms_norm=False), "rms_norm is False, which is not supported"),
        ("falcon_h1-norm", dict(ssm_multipliers=[1.0] * 4), "ssm_multipliers is"),
        ("falcon_h1-norm", dict(mamba_d_ssm=40), "but the mixer's width is 40"),
        ("falcon_h1-norm", dict(mamba_use_mlp=False), "mamba_use_mlp is False"),
        ("nemotron_h", dict(layers_block_type=["mamba", "conv"]), "the kinds of the layers"),
        ("nemotron_h", dict(moe_latent_size=8), "moe_latent_size is 8"),
        ("granitemoehybrid-mamba", dict(layer_types=["mamba"]), "no list of 2 of full_attention"),
        ("olmo_hybrid", dict(linear_num_value_heads=5), "is no multiple of linear_num_key_heads"),
        ("bloom-normed", dict(scale_attn_weights=False), "scale_attn_weights is False"),
        ("zamba2", dict(layers_block_type=["hybrid", "mamba"]), "no list of 3 of linear_attention"),
        ("zamba2", dict(rms_norm_eps=1e-6), "rms_norm_eps is 1e-06"),
        ("zamba2", dict(use_long_context=True), "use_long_context is True"),
        ("zamba2", dict(hybrid_layer_ids=[2, 0]), "hybrid_layer_ids is [2, 0]"),
        ("zamba2", dict(n_mamba_heads=3), "n_mamba_heads 3 do not divide the mixer's width 40"),
        ("zamba2", dict(adapter_rank=4), "linear_q_adapter_list.0.0.weight has shape [3, 40]"),
        ("zamba2", dict(num_mem_blocks=2), "lacks the tensor model.layers.2.shared_transformer"),
        (
            "zamba2",
            dict(use_shared_attention_adapter=False),
            "holds model.layers.0.shared_transformer",
        ),
    ],
)
def test_what_these_families_refuse(name, changes, said):
    with pytest.raises(ExportError) as error:
        shapes_of(name, **changes)
    assert said in str(error.value)


# ---- weights in other forms ----------------------------------------------------------------------


def golden(name: str) -> tuple[dict, dict[str, Tensor]]:
    """The config and the tensors of a golden checkpoint."""
    config = json.loads((GOLDEN / name / "config.json").read_text())
    return config, open_safetensors(str(GOLDEN / name / "model.safetensors"))


def in_memory(values: np.ndarray, raw: bool = False) -> Tensor:
    tensor = Tensor("memory", values.shape, lambda: lambda a, b: values[a:b].astype(np.float32))
    return Tensor("memory", values.shape, tensor.load, raw=tensor) if raw else tensor


def test_gemma4_experts():
    """The factors of router and experts go into their weights; a norm that holds a zero could not
    be divided out. Without enable_moe_block the other keys mean nothing."""
    config, tensors = golden("gemma4-experts")
    names = ("router.scale", "router.per_expert_scale", "pre_feedforward_layernorm_2.weight")
    read = lambda name: tensors["model.layers.0." + name].array()  # noqa: E731
    scale, per_expert, norm = map(read, names)
    _, knobs, found, _ = canonical(config, dict(tensors))
    router = read("router.proj.weight") * scale / norm / 6
    assert np.allclose(found["layers.0.router"].array(), router, rtol=1e-6)
    down = read("experts.down_proj") * per_expert[:, None, None]
    assert np.array_equal(found["layers.0.expert_down"].array()[48:84], down[1])
    zero = norm.copy()
    zero[3] = 0
    changed = {**tensors, "model.layers.0." + names[2]: in_memory(zero)}
    with pytest.raises(ExportError, match="memory holds a zero, by which"):
        canonical(config, changed)[2]["layers.0.router"].array()
    for key, value in dict(num_experts=None, top_k_experts=6, moe_intermediate_size=0).items():
        with pytest.raises(ExportError, match=key):
            canonical({**config, key: value}, None)
    plain = {**config, "enable_moe_block": False, "num_experts": None}
    assert not any("expert" in name for name in canonical(plain, None)[2])


@pytest.mark.parametrize(
    "linear_class, factor", [("autobitlinear", 0.375), ("bitlinear", 1 / 0.375)]
)
def test_packed_ternary_weights(linear_class, factor):
    config, tensors = golden("bitnet")
    digits = np.random.default_rng(3).integers(-1, 2, (36, 36))
    packed = sum((digits[9 * i : 9 * i + 9] + 1) << 2 * i for i in range(4)).astype(np.uint8)
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors |= {
        name: in_memory(packed, raw=True),
        name + "_scale": in_memory(np.array([0.375], np.float32)),
    }
    quantization = dict(
        quant_method="bitnet", linear_class=linear_class, quantization_mode="offline"
    )
    _, _, found, _ = canonical({**config, "quantization_config": quantization}, tensors)
    want = (digits * np.float32(factor)).astype(np.float32)
    rows = found["layers.1.attn_q"].load()
    assert all(
        np.array_equal(rows(a, b), want[a:b])
        for a, b in ((0, 36), (0, 9), (5, 30), (16, 32), (35, 36))
    )
    with pytest.raises(ExportError, match="quantization_mode is 'online', which is not supported"):
        canonical(
            {**config, "quantization_config": {**quantization, "quantization_mode": "online"}},
            tensors,
        )


OUTER = {
    "gemma3": dict(
        boi_token_index=1,
        eoi_token_index=2,
        image_token_index=3,
        mm_tokens_per_image=256,
        vision_config={},
        eos_token_id=[1, 106],
    ),
    "gemma4": dict(
        audio_config={},
        audio_token_id=1,
        boa_token_id=2,
        boi_token_id=3,
        eoa_token_id=4,
        eoa_token_index=4,
        eoi_token_id=5,
        image_token_id=6,
        video_token_id=7,
        vision_config={},
        vision_soft_tokens_per_image=280,
        tie_word_embeddings=True,
    ),
    "llava": dict(
        image_token_index=10,
        image_seq_length=576,
        projector_hidden_act="gelu",
        vision_config={},
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    ),
    "smolvlm": dict(image_token_id=10, scale_factor=4, vision_config={}),
    "internvl": dict(image_token_id=10, image_seq_length=256, downsample_ratio=0.5),
    "lfm2_vl": dict(image_token_id=396, projector_bias=True, downsample_factor=2),
    "qwen2_5_vl": dict(image_token_id=10, video_token_id=11, vision_token_id=12, vision_config={}),
    "mistral3": dict(
        image_token_index=10,
        multimodal_projector_bias=False,
        vision_config={},
        projector_hidden_act="gelu",
        spatial_merge_size=2,
        vision_feature_layer=-1,
    ),
    "qwen3_5": dict(
        image_token_id=1,
        video_token_id=2,
        vision_start_token_id=3,
        vision_end_token_id=4,
        vision_config={},
        tie_word_embeddings=True,
    ),
}


@pytest.mark.parametrize("model_type", OUTER)
def test_outer_keys_of_multimodal_configs(model_type):
    """Those of the hub's checkpoints are known; one that nobody knows is refused, like inner
    ones."""
    text = dict(COMMON, model_type="x", hidden_size=8)
    outer = dict(
        OUTER[model_type],
        architectures=["X"],
        model_type=model_type,
        torch_dtype="bfloat16",
        transformers_version="5.0",
        text_config=text,
    )
    assert text_model(outer, {})[0]["hidden_size"] == 8
    for key in ("final_logit_softcapping", "logits_scaling", "rope_scaling"):
        with pytest.raises(ExportError, match=f"config.json: {key} .* is unknown for this family"):
            text_model({**outer, key: 2.0}, {})
    with pytest.raises(ExportError, match="is_encoder_decoder is True, which is not supported"):
        text_model({**outer, "is_encoder_decoder": True}, {})


@pytest.mark.parametrize(
    "model_type, default",
    [
        ("gemma3", True),
        ("gemma4", True),
        ("gemma4_unified", True),
        ("mistral3", True),
        ("qwen3_5", False),
        ("qwen3_5_moe", False),
    ],
)
def test_the_outer_config_ties_the_head(model_type, default):
    """As the classes of transformers 5.23.0 do, whatever the inner one says; an inner true is taken
    for a tie too, as in the models of text alone that these checkpoints can be loaded as."""
    for outer in (None, False, True):
        for inner in (None, False, True):
            config = dict(model_type=model_type, text_config={"tie_word_embeddings": inner})
            if outer is not None:
                config["tie_word_embeddings"] = outer
            expected = bool(inner) or (default if outer is None else outer)
            assert text_model(config, {})[0]["tie_word_embeddings"] is expected


def test_quantization_of_the_inner_config_counts():
    """Where the outer one says nothing of it."""
    for outer, inner, expected in (
        (None, {"a": 1}, {"a": 1}),
        ({"b": 1}, {"a": 1}, {"b": 1}),
        (None, None, None),
    ):
        config = dict(
            model_type="gemma3",
            quantization_config=outer,
            text_config={"quantization_config": inner},
        )
        assert text_model(config, {})[0]["quantization_config"] == expected


@pytest.mark.parametrize("old", [True, False])
def test_gemma3_out_of_a_multimodal_checkpoint(old):
    """Both spellings of the names; what belongs to other towers is left out, what is unknown is
    not."""
    config, tensors = golden("gemma3")
    _, _, expected, _ = canonical(config, dict(tensors))
    prefix = "language_model.model." if old else "model.language_model."
    inside = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    other = "vision_tower.x.weight" if old else "model.vision_tower.x.weight"
    inside[other] = in_memory(np.zeros(3))
    outer = dict(model_type="gemma3", text_config=config, vision_config={}, mm_tokens_per_image=256)
    family, _, found, _ = canonical(outer, inside)
    assert family == "gemma3_text" and list(found) == list(expected)
    assert all(np.array_equal(found[name].array(), expected[name].array()) for name in found)
    with pytest.raises(ExportError, match="holds model.more.weight, which nothing"):
        canonical(outer, {**inside, prefix + "more.weight": in_memory(np.zeros(3))})


@pytest.mark.parametrize("name", ["gemma", "gemma2"])
def test_gemma_out_of_paligemma(name):
    """Each token sees those before it; a remark says that PaliGemma's prompts differ in that."""
    config, tensors = golden(name)
    expected = canonical(config, dict(tensors))[2]
    inside = {n.replace("model.", "language_model.model.", 1): t for n, t in tensors.items()}
    inside["multi_modal_projector.linear.weight"] = in_memory(np.zeros(3))
    outer = dict(model_type="paligemma", vision_config={}, projection_dim=8)
    for value in (None, True, False):
        text = {**config, "num_image_tokens": 4, "use_bidirectional_attention": value}
        family, knobs, found, remarks = canonical({**outer, "text_config": text}, dict(inside))
        assert family == name and knobs.mask == 0 and list(found) == list(expected)
        assert "as in transformers without token_type_ids" in remarks[0]
    with pytest.raises(ExportError, match="use_bidirectional_attention is True, which is not"):
        canonical({**config, "use_bidirectional_attention": True}, dict(tensors))
    text = {**golden("gemma3")[0], "use_bidirectional_attention": True}
    with pytest.raises(ExportError, match="text_config: use_bidirectional_attention is True"):
        canonical(dict(model_type="gemma3", text_config=text, vision_config={}), {})


def test_bigbird_reads_as_much_as_transformers_attends_to_as_a_whole():
    config, tensors = golden("encoders/bert")
    config = {**config, "model_type": "big_bird", "block_size": 4}
    whole = tensors["bert.embeddings.position_embeddings.weight"].array()
    for changes, context in (
        ({"num_random_blocks": 1}, 28),
        ({}, 44),
        ({"block_size": 64}, 130),
        ({"attention_type": "original_full"}, 130),
    ):
        _, knobs, found, remarks = canonical({**config, **changes}, dict(tensors))
        assert knobs.context == context
        assert np.array_equal(found["embed_pos"].array(), whole[:context])
        said = [remark for remark in remarks if f"texts have at most {context} tokens" in remark]
        assert bool(said) == (context < 130)


HALF = dict(is_decoder=True, is_encoder_decoder=False, architectures=["BartForCausalLM"])


def test_a_decoder_that_is_half_of_a_bart():
    """Its cross-attention has no source, and is left out."""
    config, tensors = golden("encoder_decoders/bart")
    half = {n: t for n, t in tensors.items() if n.startswith(("model.decoder.", "model.shared"))}
    half["model.decoder.embed_tokens.weight"] = half.pop("model.shared.weight")
    _, knobs, found, _ = canonical({**config, **HALF}, half)
    _, both, whole, _ = canonical(config, dict(tensors))
    n = both.source_layers
    assert knobs.mask == 0 and not knobs.source_layers and knobs.n_layers == both.n_layers - n
    assert not any("cross" in name or name.startswith("source") for name in found)
    for name, tensor in found.items():
        old = re.sub(r"layers\.(\d+)", lambda m: f"layers.{int(m[1]) + n}", name)
        assert np.array_equal(tensor.array(), whole[old].array())
    with pytest.raises(ExportError, match="is_encoder_decoder is True, which is not supported"):
        canonical({**config, **HALF, "is_encoder_decoder": True}, half)


def test_only_the_encoder_of_blenderbot_small_scales_its_embedding():
    rng = np.random.default_rng(1)
    table = rng.normal(0, 0.002, (6, 8)).astype(np.float32)  # so small that the norm's eps counts
    weight, bias = rng.normal(1, 0.1, 8), rng.normal(0, 0.1, 8)
    found = {}
    for scale in (1.0, 8**0.5):
        left = {
            "model.shared.weight": in_memory(table),
            "model.decoder.layernorm_embedding.weight": in_memory(weight),
            "model.decoder.layernorm_embedding.bias": in_memory(bias),
        }
        NormedEmbedding([], scale).arrange(left)
        tables = [f"model.{side}.embed_tokens.weight" for side in ("decoder", "encoder")]
        found[scale] = [left[name].array() for name in tables]
    assert np.array_equal(found[1.0][0], found[8**0.5][0])
    assert np.allclose(found[1.0][1] * 8**0.5, found[8**0.5][1])


EXPERTS = sizes(36, 18, 6, 2, 2, 61, 192, num_experts=7, num_experts_per_tok=3)


@pytest.mark.parametrize("strategy", ["average", "sum"])
def test_cohere2_moe_without_shared_experts(strategy):
    """transformers writes the strategy of combining them all the same."""
    more = dict(num_shared_experts=0, shared_expert_combination_strategy=strategy)
    found = canonical({**EXPERTS, "model_type": "cohere2_moe", **more}, None)[2]
    assert "layers.1.expert_up" in found and not [name for name in found if "ffn" in name]


def test_biases_beside_the_experts_of_ernie():
    """In attention, in networks that all tokens pass, and of the output; experts have none."""
    config = {**EXPERTS, "model_type": "ernie4_5_moe", "moe_num_experts": 7, "moe_k": 3}
    found = {}
    for value in (False, True):
        found[value] = canonical({**config, "use_bias": value}, None)[2]
    more = {re.sub(r"layers\.\d", "N", name) for name in set(found[True]) - set(found[False])}
    matrices = [f"attn_{x}" for x in "qkvo"] + [f"ffn_{x}" for x in ("gate", "up", "down")]
    assert more == {"output.bias", *(f"N.{name}.bias" for name in matrices)}


# In a convolution or a state's mixer transformers uses hidden_act, and the engine SiLU.
STATES = ("falcon_h1-norm", "falcon_mamba", "granitemoehybrid-mamba", "kimi_linear", "mamba2",
          "olmo_hybrid", "qwen3_next")  # fmt: skip
SMALL = sizes(64, 128, 4, 2, 8, 99, 128)
MADE = {
    "jamba": {**SMALL, "model_type": "jamba", "num_experts": 1},
    "qwen3_5_text": {**SMALL, "model_type": "qwen3_5_text", "head_dim": 16},
    "bamba": {**SMALL, "model_type": "bamba", "attn_layer_indices": [1], "mamba_n_heads": 8},
}


@pytest.mark.parametrize("name", [*STATES, *MADE])
def test_mixers_with_another_activation_are_refused(name):
    config = MADE[name] if name in MADE else golden(name)[0]
    canonical({**config, "hidden_act": "silu"}, None)
    with pytest.raises(ExportError, match="hidden_act is 'gelu'.*supported: 'silu'"):
        canonical({**config, "hidden_act": "gelu"}, None)


@pytest.mark.parametrize("name", ["bloom", "gpt2", "falcon_h1-norm", "phi", "gemma4-experts"])
def test_a_tensor_that_one_layer_lacks(name):
    """A file of which a part is missing in one layer is refused, a bias too; a bias that is
    nowhere is zeros, as in transformers, with a remark."""
    config, whole = golden(name)
    layer = [key for key in whole if re.search(r"\.1\.", key)]
    kept = [key for key in whole if re.search(r"\.0\.", key)]
    for key in layer:
        if key.replace(".1.", ".0.") in kept:
            with pytest.raises(ExportError, match="lacks"):
                canonical(dict(config), {k: t for k, t in whole.items() if k != key})
    assert not any("zeros" in remark for remark in canonical(dict(config), dict(whole))[3])
    last = [key for key in whole if re.search(r"ln_f\.bias$|final_layernorm\.bias$", key)]
    for key in last:
        remarks = canonical(dict(config), {k: t for k, t in whole.items() if k != key})[3]
        assert [r for r in remarks if f"lacks {key}" in r and "zeros" in r]


def test_a_tied_heads_bias_that_is_missing_is_said():
    for name, key in (
        ("encoders/bert", "cls.predictions.bias"),
        ("encoder_decoders/bart", "final_logits_bias"),
    ):
        config, whole = golden(name)
        assert not any("zeros" in r for r in canonical(dict(config), dict(whole))[3])
        remarks = canonical(dict(config), {k: t for k, t in whole.items() if k != key})[3]
        assert [r for r in remarks if "bias" in r and "zeros" in r]


@pytest.mark.parametrize(
    "model_type, inside",
    [
        ("qwen2_vl", "model."),
        ("qwen2_5_vl", "model.language_model."),
        ("internvl", "language_model.model."),
    ],
)
def test_qwen2_out_of_vision_language_checkpoints(model_type, inside):
    """By the names of the hub, old and new; a remark says what is left out. The first Qwen2-VLs
    have the text model's keys beside those of pictures."""
    config, tensors = golden("qwen2")
    _, _, expected, _ = canonical(config, dict(tensors))
    found = {name.replace("model.", inside, 1): tensor for name, tensor in tensors.items()}
    found["visual.x.weight"] = in_memory(np.zeros(3))
    pictures = dict(model_type=model_type, vision_config={})
    flat = {k: v for k, v in config.items() if k != "model_type"}
    text = dict(flat, model_type=f"{model_type}_text" if model_type != "internvl" else "qwen2")
    outer = dict(pictures, tie_word_embeddings=False, text_config=text)
    for whole in [outer, {**flat, **pictures}][: 1 + (model_type != "internvl")]:
        family, _, made, remarks = canonical(whole, dict(found))
        assert family == "qwen2" and list(made) == list(expected)
        assert "pictures or sounds is left out" in remarks[0]


@pytest.mark.parametrize(
    "name, key, value, says",
    [
        ("deepseek_v3", "topk_group", 0, "topk_group"),
        ("deepseek_v3", "n_group", 3, "leave no"),
        ("deepseek_v3", "num_experts_per_tok", 7, "leave no"),
        ("mamba2", "time_step_limit", [1.0, 0.5], "leaves no step"),
        ("mamba2", "time_step_limit", ["Infinity", "Infinity"], "leaves no step"),
        ("mamba2", "time_step_limit", [0.0, 1e39], None),
    ],
)
def test_what_run_would_refuse_is_refused(name, key, value, says):
    config, tensors = golden(name)
    config[key] = value
    if not says:
        _, knobs, found, _ = canonical(config, tensors)
        assert "layer.ssm_most_step" not in knobs.metadata(found)
        return
    with pytest.raises(ExportError, match=says):
        _, knobs, found, _ = canonical(config, tensors)
        knobs.metadata(found)
