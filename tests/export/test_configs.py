"""config.json: the knobs that families make of it, each refusal with its sentence, tied embeddings
and biases."""

from __future__ import annotations


import itertools
import json

import numpy as np
import pytest
from conftest import ROOT
from golden_copies import copy, edit_config, edit_tensors, exported, refusal, same
from safetensors.numpy import load_file

from exporter.config import Config
from exporter.families.registry import FAMILIES
from exporter.rope import rope_frequencies
from exporter.tensor import ExportError

GOLDEN = ROOT / "tests" / "golden"


# ---- configs -------------------------------------------------------------------------------------


# fmt: off
LLAMA32 = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0,
    bos_token_id=128000, eos_token_id=128001, head_dim=64, hidden_act="silu", hidden_size=2048,
    initializer_range=0.02, intermediate_size=8192, max_position_embeddings=131072, mlp_bias=False,
    model_type="llama", num_attention_heads=32, num_hidden_layers=16, num_key_value_heads=8,
    pretraining_tp=1, rms_norm_eps=1e-05, rope_theta=500000.0, tie_word_embeddings=True,
    rope_scaling=dict(factor=32.0, high_freq_factor=4.0, low_freq_factor=1.0,
                      original_max_position_embeddings=8192, rope_type="llama3"),
    torch_dtype="bfloat16", transformers_version="4.45.0.dev0", use_cache=True, vocab_size=128256)
SMOLLM2 = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, bos_token_id=0, eos_token_id=0,
    hidden_act="silu", hidden_size=576, initializer_range=0.04, intermediate_size=1536,
    is_llama_config=True, max_position_embeddings=8192, model_type="llama", num_attention_heads=9,
    num_hidden_layers=30, num_key_value_heads=3, pretraining_tp=1, rms_norm_eps=1e-05,
    rope_interleaved=False, rope_scaling=None, rope_theta=100000, tie_word_embeddings=True,
    torch_dtype="bfloat16", use_cache=True, vocab_size=49152)
MISTRAL = dict(
    hidden_act="silu", hidden_size=4096, intermediate_size=14336, max_position_embeddings=32768,
    model_type="mistral", num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8,
    rms_norm_eps=1e-05, rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False,
    vocab_size=32000)
QWEN25 = dict(
    attention_dropout=0.0, bos_token_id=151643, eos_token_id=151643, hidden_act="silu",
    hidden_size=896, intermediate_size=4864, max_position_embeddings=32768, max_window_layers=24,
    model_type="qwen2", num_attention_heads=14, num_hidden_layers=24, num_key_value_heads=2,
    rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=32768, tie_word_embeddings=True,
    use_mrope=False, use_sliding_window=False, vocab_size=151936)
QWEN3 = dict(
    attention_bias=False, hidden_act="silu", hidden_size=1024, intermediate_size=3072,
    max_position_embeddings=40960, max_window_layers=28, model_type="qwen3",
    num_attention_heads=16, num_hidden_layers=28, num_key_value_heads=8, rms_norm_eps=1e-06,
    rope_scaling=None, rope_theta=1000000, sliding_window=None, tie_word_embeddings=True,
    use_sliding_window=False, vocab_size=151936)
GPT2 = dict(
    activation_function="gelu_new", attn_pdrop=0.1, embd_pdrop=0.1, layer_norm_epsilon=1e-05,
    model_type="gpt2", n_ctx=1024, n_embd=768, n_head=12, n_layer=12, n_positions=1024,
    resid_pdrop=0.1, summary_activation=None, summary_first_dropout=0.1,
    summary_proj_to_labels=True, summary_type="cls_index", summary_use_proj=True, vocab_size=50257,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}})
FALCON = dict(
    alibi=False, apply_residual_connection_post_layernorm=False, attention_dropout=0.0,
    auto_map={"AutoConfig": "x"}, bias=False, hidden_dropout=0.0, hidden_size=4544,
    initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="falcon", multi_query=True,
    new_decoder_architecture=False, num_attention_heads=71, num_hidden_layers=32,
    parallel_attn=True, vocab_size=65024)
GEMMA = dict(
    attention_bias=False, head_dim=256, hidden_act="gelu", hidden_activation=None,
    hidden_size=2048, intermediate_size=16384, max_position_embeddings=8192, model_type="gemma",
    num_attention_heads=8, num_hidden_layers=18, num_key_value_heads=1, rms_norm_eps=1e-06,
    rope_scaling=None, rope_theta=10000.0, vocab_size=256000)
# fmt: on


def knobs(config: dict):
    c = Config(config)
    result = FAMILIES[config["model_type"]][0](c)
    c.get("model_type")
    c.finish()
    return result


@pytest.mark.parametrize(
    "config, expected",
    [
        (LLAMA32, dict(head_dim=64, n_kv_heads=8, tied=True, act=0, context=131072, norm_eps=1e-5)),
        (SMOLLM2, dict(head_dim=64, n_kv_heads=3, tied=True, window=[0])),
        (MISTRAL, dict(head_dim=128, n_kv_heads=8, tied=False, window=[4096] * 32)),
        ({**MISTRAL, "sliding_window": None}, dict(window=[0] * 32)),
        ({k: v for k, v in MISTRAL.items() if k != "sliding_window"}, dict(window=[4096] * 32)),
        (
            {**MISTRAL, "layer_types": ["full_attention"] * 31 + ["sliding_attention"]},
            dict(window=[0] * 31 + [4096]),
        ),
        (
            QWEN25,
            dict(
                head_dim=64,
                n_kv_heads=2,
                tied=True,
                window=[0] * 24,
                biased=("attn_q", "attn_k", "attn_v"),
            ),
        ),
        (
            {**QWEN25, "use_sliding_window": True, "max_window_layers": 20},
            dict(window=[0] * 20 + [32768] * 4),
        ),
        (QWEN3, dict(head_dim=128, n_kv_heads=8, tied=True, biased=())),
        (
            GPT2,
            dict(head_dim=64, n_kv_heads=12, d_ff=3072, act=2, tied=True, layernorm=True, ropes=[]),
        ),
        (
            FALCON,
            dict(
                head_dim=64,
                n_heads=71,
                n_kv_heads=1,
                d_ff=18176,
                act=1,
                tied=True,
                parallel=True,
                context=2048,
            ),
        ),
        (
            GEMMA,
            dict(
                head_dim=256, n_kv_heads=1, act=2, tied=True, norm_offset=1.0, emb_scale=2048**0.5
            ),
        ),
    ],
    ids=lambda c: c.get("model_type", ""),
)
def test_configs_as_they_are_on_the_hub(config, expected):
    got = knobs(config)
    assert {name: getattr(got, name) for name in expected} == expected


def test_class_defaults_of_absent_keys():
    """Those of transformers' configuration classes."""
    assert knobs({k: v for k, v in QWEN3.items() if k != "head_dim"}).head_dim == 128
    assert knobs({**QWEN3, "head_dim": None}).head_dim == 64
    assert knobs({k: v for k, v in GEMMA.items() if k != "head_dim"}).head_dim == 256
    assert knobs({k: v for k, v in MISTRAL.items() if k != "num_key_value_heads"}).n_kv_heads == 8
    assert knobs({**MISTRAL, "num_key_value_heads": None}).n_kv_heads == 32
    assert knobs({k: v for k, v in LLAMA32.items() if k != "num_key_value_heads"}).n_kv_heads == 32
    assert knobs({k: v for k, v in LLAMA32.items() if k != "rms_norm_eps"}).norm_eps == 1e-6
    assert not knobs({k: v for k, v in LLAMA32.items() if k != "tie_word_embeddings"}).tied


def test_rope_frequencies():
    i = np.arange(32)
    plain = 500000.0 ** (-2 * i / 64)
    wave = 2 * np.pi / plain
    smooth = (8192 / wave - 1) / 3
    scaled = np.where(
        wave > 8192,
        plain / 32,
        np.where(wave < 2048, plain, (1 - smooth) * plain / 32 + smooth * plain),
    )
    assert ((wave > 2048) & (wave < 8192)).any()
    assert np.allclose(knobs(LLAMA32).ropes[0].inv_freq, scaled, rtol=1e-6)
    new = {k: v for k, v in LLAMA32.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**LLAMA32["rope_scaling"], "rope_theta": 500000.0}
    assert np.array_equal(knobs(new).ropes[0].inv_freq, knobs(LLAMA32).ropes[0].inv_freq)
    inner = knobs({**new, "rope_theta": 10000.0}).ropes[0].inv_freq  # the inner one wins
    assert np.array_equal(inner, knobs(LLAMA32).ropes[0].inv_freq)
    linear = rope_frequencies(
        Config({"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 4}}), 64, 100
    )
    assert np.allclose(linear, plain / 4, rtol=1e-6)
    assert np.allclose(rope_frequencies(Config({}), 64, 100), 10000.0 ** (-2 * i / 64), rtol=1e-6)
    without = {
        k: v for k, v in LLAMA32["rope_scaling"].items() if k != "original_max_position_embeddings"
    }
    assert np.array_equal(
        rope_frequencies(Config({"rope_theta": 5e5, "rope_scaling": without}), 64, 8192),
        knobs(LLAMA32).ropes[0].inv_freq,
    )


JUNK = (-1, "x", [], [[]], {"a": 1}, 10**30)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/config.json")))
def test_no_value_of_a_key_crashes(name):
    """It is taken, or refused in a sentence."""
    config = json.loads((GOLDEN / name / "config.json").read_text())
    for key, value in itertools.product(config, JUNK):
        if key != "model_type":
            try:
                knobs({**config, key: value})
            except ExportError as error:
                assert key in str(error) or "config.json" in str(error)


REFUSED = [
    (
        "llama",
        dict(model_type="mamba9"),
        "model_type is 'mamba9', which is not known; docs/families.md lists those that are",
    ),
    ("llama", dict(model_type="ABSENT"), "model_type is None"),
    ("llama", dict(model_type=["llama"]), "model_type is ['llama']"),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="spiral", factor=4.0)),
        "rope_parameters: rope_type is 'spiral', which is not supported; supported: default, "
        "linear",
    ),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="longrope", short_factor=[1])),
        "short_factor is no list of 5 positive",
    ),
    ("llama", dict(rope_parameters=dict(rope_type="linear")), "rope_parameters lacks factor"),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="linear", factor=2, attention_factor=2)),
        "attention_factor (2) is unknown",
    ),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="linear", factor=0)),
        "factor is 0, expected a positive number",
    ),
    ("llama", dict(rope_parameters="yes"), "rope_parameters is 'yes', expected an object"),
    (
        "llama",
        dict(rope_scaling=dict(type="linear", factor=2.0)),
        "both rope_scaling and rope_parameters",
    ),
    (
        "llama",
        dict(partial_rotary_factor=0.5),
        "partial_rotary_factor is 0.5, which is not supported",
    ),
    (
        "llama",
        dict(hidden_act="mish"),
        "hidden_act is 'mish', which is not supported; supported: silu",
    ),
    ("llama", dict(hidden_act=["silu"]), "hidden_act is ['silu']"),
    ("llama", dict(sliding_window=8), "sliding_window (8) is unknown for this family"),
    ("llama", dict(attn_logit_softcapping=50.0), "attn_logit_softcapping (50.0) is unknown"),
    ("llama", dict(rope_interleaved=True), "rope_interleaved is True, which is not supported"),
    ("llama", dict(quantization_config=dict(quant_method="fp8")), "quantization_config"),
    ("llama", dict(hidden_size="40"), "hidden_size is '40', expected a whole number"),
    ("llama", dict(hidden_size=-40), "hidden_size is -40"),
    ("llama", dict(hidden_size="ABSENT"), "lacks hidden_size"),
    ("llama", dict(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    ("llama", dict(num_hidden_layers=3), "lacks the tensor model.layers.2.input_layernorm.weight"),
    (
        "llama",
        dict(num_attention_heads=7, head_dim=None),
        "hidden_size 40 is no multiple of num_attention_heads 7",
    ),
    ("llama", dict(num_key_value_heads=3), "4 query heads are no multiple of 3 KV heads"),
    (
        "llama",
        dict(num_key_value_heads=2),
        "k_proj.weight has shape [40, 40], config.json makes it [20, 40]",
    ),
    (
        "llama",
        dict(head_dim=5, num_attention_heads=8, num_key_value_heads=8),
        "head_dim is 5, of which 5 elements are rotated; rope needs an even number",
    ),
    (
        "llama",
        dict(vocab_size=132),
        "embed_tokens.weight has shape [131, 40], config.json makes it [132, 40]",
    ),
    (
        "llama",
        dict(tie_word_embeddings="no"),
        "tie_word_embeddings is 'no', expected true or false",
    ),
    (
        "mistral",
        dict(layer_types=["full_attention"]),
        "layer_types has not one entry for each of the 2 layers",
    ),
    (
        "mistral",
        dict(layer_types=["full_attention", "chunked_attention"]),
        "layer_types holds 'chunked_attention'",
    ),
    (
        "mistral",
        dict(sliding_window=None, layer_types=["sliding_attention"] * 2),
        "lacks sliding_window",
    ),
    ("qwen2", dict(use_mrope=True), "use_mrope is True"),
    ("qwen2", dict(max_window_layers="all"), "max_window_layers is 'all'"),
    ("gemma", dict(use_bidirectional_attention=True), "use_bidirectional_attention is True"),
    ("gpt2", dict(add_cross_attention=True), "add_cross_attention is True"),
    ("gpt2", dict(activation_function="mish"), "activation_function is 'mish'"),
    (
        "falcon",
        dict(new_decoder_architecture=True),
        "lacks the tensor transformer.h.0.ln_attn.weight",
    ),
    (
        "falcon",
        dict(multi_query=False),
        "query_key_value.weight has shape [56, 40], config.json makes it [120, 40]",
    ),
    (
        "falcon",
        dict(parallel_attn=False),
        "lacks the tensor transformer.h.0.post_attention_layernorm.weight",
    ),
    ("falcon", dict(num_ln_in_parallel_attn=2), "num_ln_in_parallel_attn is 2"),
]


@pytest.mark.parametrize(
    "name, changes, said",
    REFUSED,
    ids=[f"{n}-{'-'.join(c)}-{i}" for i, (n, c, _) in enumerate(REFUSED)],
)
def test_configs_that_ask_for_more_are_refused(name, changes, said, tmp_path, capsys):
    directory = copy(tmp_path, name)
    edit_config(directory, **changes)
    assert said in refusal(capsys, directory, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()


# ---- tying and biases ----------------------------------------------------------------------------


def test_tied_embeddings(tmp_path, capsys):
    directory = copy(tmp_path, "smollm2")
    tied = exported(directory)
    assert "output" not in tied.tensors
    head = "lm_head.weight"
    embed = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]

    edit_tensors(directory, lambda t: t.update({head: embed}))
    assert same(tied, exported(directory))
    edit_tensors(directory, lambda t: t.pop("model.embed_tokens.weight"))
    assert same(tied, exported(directory))
    capsys.readouterr()
    edit_tensors(
        directory, lambda t: t.update({"model.embed_tokens.weight": embed, head: embed + 1})
    )
    assert np.array_equal(exported(directory).tensor("output"), embed + 1)
    assert (
        "lm_head.weight differs from the embedding: kept, as transformers does"
        in capsys.readouterr().err
    )
    edit_config(directory, tie_word_embeddings=False)
    edit_tensors(directory, lambda t: t.pop(head))
    assert "lacks the tensor lm_head.weight" in refusal(capsys, directory, tmp_path / "x.bin")


def test_biases_follow_the_flag(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    plain = exported(directory)
    edit_config(directory, attention_bias=True)
    assert same(plain, exported(directory))  # a flag without tensors means zeros
    edit_config(directory, attention_bias=False)
    edit_tensors(
        directory,
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(40, np.float32)}),
    )
    assert "holds model.layers.0.self_attn.q_proj.bias, which nothing" in refusal(
        capsys, directory, tmp_path / "x.bin"
    )


def test_what_transformers_passes_over_is_a_remark(tmp_path, capsys):
    """Keys and tensors that change nothing; the model is the same."""
    directory = copy(tmp_path, "qwen2")
    plain = exported(directory)
    keys = dict(attention_bias=True, model_max_length=99, use_mup=False, onnx={"a": 1}, finetuned=1)
    edit_config(directory, **keys)
    layer = "model.layers.2.mlp.up_proj.weight"
    more = [layer, "v_head.summary.weight", "model.layers.0.self_attn.rotary_emb.cos_cached"]
    edit_tensors(directory, lambda t: t.update({name: np.ones((2, 2), "f4") for name in more}))
    capsys.readouterr()
    assert same(plain, exported(directory))
    said = capsys.readouterr().err
    for what in (
        "attention_bias (True)",
        "model_max_length (99)",
        "onnx ({'a': 1})",
        "finetuned (1)",
    ):
        assert f"{what} is left out, as by transformers" in said
    assert f"{layer} and its like are left out" in said and "use_mup" not in said


@pytest.mark.parametrize(
    "scaling",
    [dict(type="dynamic", factor=4.0), dict(type="mrope", mrope_section=[1, 2, 2])],
)
def test_rope_that_is_plain_within_the_context(scaling):
    """dynamic: transformers 5.23.0's _compute_dynamic_ntk_parameters, whose theta grows beyond
    max_position_embeddings; mrope: a text has one position for all axes."""
    config = {k: v for k, v in LLAMA32.items() if k not in ("rope_scaling", "rope_parameters")}
    plain = knobs(config).ropes[0].inv_freq
    assert np.array_equal(knobs({**config, "rope_scaling": scaling}).ropes[0].inv_freq, plain)
    both = dict(rope_scaling={"rope_type": "llama3", **LLAMA32["rope_scaling"]})
    both["rope_parameters"] = both["rope_scaling"]
    scaled = knobs({**config, **both}).ropes[0].inv_freq
    assert np.array_equal(scaled, knobs(LLAMA32).ropes[0].inv_freq)
