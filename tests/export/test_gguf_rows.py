"""The rows of GGUF's architectures: names as the gguf package has them, and each kind of move that
undoes what the converter did, on small tensors whose numbers say where they were."""

from __future__ import annotations

import dataclasses
import json
import shutil

import gguf
import gguf_files
import numpy as np
import pytest
from conftest import ROOT

from exporter.assemble import _grouped
from exporter.config import Config
from exporter.convert import open_model
from exporter.families.registry import FAMILIES, canonical
from exporter.sources import gguf_mixers, gguf_shared
from exporter.sources.gguf_architectures import ARCHITECTURES, table
from exporter.sources.gguf_experts import scaled_experts
from exporter.sources.gguf_file import File
from exporter.sources.gguf_pooling import gguf_pooling, pooled
from exporter.sources.gguf_tokenizer import PRE_TOKENIZERS, gguf_vocabulary
from exporter.sources.gguf_names import BESIDE, KINDS, Names, checkpoint_form
from exporter.sources.sentences import FIRST
from exporter.tensor import ExportError, Tensor, below, constant, pick, transposed
from exporter.tokenizers.byte_level import KINDS as KINDS_OF_BYTES
from exporter.tokenizers.files import tokenizer_metadata


def numbered(*shape: int) -> Tensor:
    """Each row holds its own number."""
    rows = np.arange(shape[0], dtype=np.float32)
    return constant(np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), shape).copy())


def stored(tensor: Tensor) -> Tensor:
    """The tensor as if it lay in blocks, of which the rows' numbers are the bytes."""

    def blocks():
        rows = tensor.load()
        return lambda a, b: rows(a, b).astype(np.uint8)

    return Tensor(tensor.name, tensor.shape, tensor.load, stored="Q8_0", blocks=blocks)


def rows_of(tensor: Tensor) -> list[int]:
    return tensor.array().reshape(tensor.shape[0], -1)[:, 0].astype(int).tolist()


def block_rows(tensor: Tensor) -> list[int]:
    rows = tensor.blocks()(0, tensor.shape[0])
    return rows.reshape(len(rows), -1)[:, 0].tolist()


def test_names_are_those_of_the_gguf_package():
    """Every name but a few of newer converters than the package's."""
    known = {name.replace("blk.{bid}.", "") for name in gguf.TENSOR_NAMES.values()}
    known = {name.replace("enc.", "").replace("dec.", "") for name in known} | known
    stems = {name.removesuffix(".weight").removesuffix(".bias") for name in [*KINDS, *BESIDE]}
    assert {stem.replace("{bid}", "") for stem in stems} - known <= {"exp_probs_b"}
    assert set(ARCHITECTURES) - set(gguf.MODEL_ARCH_NAMES.values()) == {"cohere2moe", "mellum"}


SIZES = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": 8,
    "feed_forward_length": 16,
    "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
FACTORS = {"embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 2.0}
SECTIONS = {"rope.dimension_sections": [2, 3, 3, 0]}
EXPERTS = {"expert_count": 4, "expert_used_count": 2}
# Keys beside the sizes, and what the config says of them.
CONFIGS = {
    "exaone": (
        {"attention.layer_norm_epsilon": 1e-6},
        {"model_type": "llama", "rms_norm_eps": 1e-6},
    ),
    "minicpm": (FACTORS, {"residual_multiplier": 0.5, "attention_multiplier": 0.5}),
    "phimoe": (
        {**EXPERTS, "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.1},
        {"num_local_experts": 4, "lm_head_bias": True, "attention_bias": False},
    ),
    "qwen2vl": (SECTIONS, {"model_type": "qwen2"}),
    "qwen3vl": ({**SECTIONS, "n_deepstack_layers": 3}, {"model_type": "qwen3"}),
    "qwen3vlmoe": (
        {**SECTIONS, **EXPERTS, "n_deepstack_layers": 3, "expert_feed_forward_length": 8},
        {"model_type": "qwen3_moe"},
    ),
}


@pytest.mark.parametrize("arch", CONFIGS)
def test_keys_of_a_config(arch):
    keys, expected = CONFIGS[arch]
    tensors = {"token_embd.weight": numbered(32, 8), "output.weight": numbered(32, 8)}
    file = File("x", {}, {**tensors, "output.bias": numbered(32)}, shape_only=True)
    metadata = Config({**SIZES, **keys}, "x")
    config = ARCHITECTURES[arch].config(metadata, file)
    metadata.finish()
    assert {key: config[key] for key in expected} == expected
    if arch == "minicpm":
        with pytest.raises(ExportError, match="embedding_scale"):
            ARCHITECTURES[arch].config(Config(SIZES, "x"), file)


def test_the_table_has_a_line_for_each():
    lines = table().splitlines()
    assert len(lines) == len(ARCHITECTURES) + 2 and not any("|  |" in line for line in lines)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def names(model_type: str, own=None, **config) -> Names:
    family, knobs, *_ = canonical({**LLAMA, **config, "model_type": model_type}, None)
    return Names(knobs, knobs.names or FAMILIES[family][1], own or {})


def test_names_of_a_checkpoint():
    n = names("llama")
    assert n.of("blk.1.attn_q.weight") == ("attn_q", "model.layers.1.self_attn.q_proj.weight")
    assert n.of("output_norm.weight") == ("norm", "model.norm.weight")
    assert n.of("blk.2.attn_q.weight") is None and n.of("blk.0.attn_sinks.weight") is None
    lacking = "the checkpoint lacks the tensor model.layers.1.mlp.up_proj.weight"
    assert n.in_file(lacking) == "the checkpoint lacks the tensor blk.1.ffn_up.weight"
    assert n.in_file("something else") == "something else"
    own = names("llama", {"ffn_norm": "model.layers.N.other.weight", "token_embd_norm": "norm"})
    assert own.of("blk.1.ffn_norm") == ("", "model.layers.1.other.weight")
    assert own.of("token_embd_norm.weight") == ("norm", "model.norm.weight")


def test_names_beside_a_module():
    sizes = {"mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4}
    n = names("bamba", **sizes, num_key_value_heads=2)
    assert n.of("blk.0.ssm_a") == ("mix_in", "model.layers.0.mamba.A_log")
    assert n.of("blk.0.ssm_in.weight")[1] == "model.layers.0.mamba.in_proj.weight"
    assert n.of("blk.1.ssm_dt.bias")[1] == "model.layers.1.mamba.dt_bias"


def test_names_of_two_stacks():
    family, knobs, *_ = canonical({"model_type": "t5", "num_layers": 2, "d_model": 8}, None)
    n = Names(knobs, knobs.names, {})
    assert n.of("dec.blk.1.cross_attn_q.weight")[1] == (
        "decoder.block.1.layer.1.EncDecAttention.q.weight"
    )
    assert n.of("enc.blk.0.attn_rel_b.weight")[1] == (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    )
    assert n.of("enc.output_norm.weight")[1] == "encoder.final_layer_norm.weight"


def test_forms_of_a_checkpoint():
    (rate,) = checkpoint_form("mix_in", "m.A_log", constant(np.float32([[-2.0], [-1.0]]))).values()
    assert np.allclose(np.exp(rate.array()), [2, 1]) and rate.shape == (2,)
    (conv,) = checkpoint_form("conv", "m.conv1d.weight", numbered(3, 4)).values()
    assert conv.shape == (3, 1, 4) and rows_of(conv) == [0, 1, 2]
    (experts,) = checkpoint_form("expert_up", "m.weight", stored(numbered(2, 3, 4))).values()
    assert block_rows(experts)[:3] == [0, 0, 0] and experts.stored == "Q8_0"


@pytest.mark.parametrize("n_kv", [1, 2, 4])
def test_grouped_heads(n_kv):
    """q, k and v of the whole come out where a grouped matrix has them."""
    config = {"num_attention_heads": 4, "num_kv_heads": n_kv}
    tensor = stored(numbered((4 + 2 * n_kv) * 2, 3))
    grouped = block_rows(gguf_shared.grouped_heads("blk.0.attn_qkv.weight", tensor, config))
    apart = [i for letter in "qkv" for i in _grouped(letter, 4 // n_kv, n_kv, 2)]
    assert [grouped[i] for i in apart] == list(range(tensor.shape[0]))


def test_half_split_rope():
    config = {"num_attention_heads": 2, "hidden_size": 8}
    split = gguf_shared.half_split_rope("blk.0.attn_q.weight", stored(numbered(8, 3)), config)
    assert block_rows(split) == [0, 2, 1, 3, 4, 6, 5, 7]
    other = gguf_shared.half_split_rope("blk.0.attn_q_norm.weight", numbered(8), config)
    assert rows_of(other) == list(range(8))


def test_norms_around_zero():
    undo = gguf_shared.norms_around_zero
    ones = constant(np.ones(3, np.float32))
    assert not undo("blk.0.ffn_norm.weight", ones, {}).array().any()
    for name in ("blk.0.ssm_norm.weight", "blk.0.ffn_norm.bias", "blk.0.ffn_up.weight"):
        assert undo(name, ones, {}).array().all()


DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 1,
    "linear_value_head_dim": 2,
}


def test_values_by_key():
    """Values 0, 1 of key 0 and 2, 3 of key 1 are stored as 0, 2, 1, 3."""
    undo = gguf_mixers.values_by_key
    assert rows_of(undo("blk.0.ssm_beta.weight", stored(numbered(4, 3)), DELTA)) == [0, 2, 1, 3]
    gate = undo("blk.0.attn_gate.weight", stored(numbered(8, 3)), DELTA)
    assert block_rows(gate) == [0, 1, 4, 5, 2, 3, 6, 7]
    qkv = undo("blk.0.attn_qkv.weight", stored(numbered(12, 3)), DELTA)
    assert block_rows(qkv) == [0, 1, 2, 3, 4, 5, 8, 9, 6, 7, 10, 11]
    out = undo("blk.0.ssm_out.weight", constant(np.float32([range(8)])), DELTA)
    assert out.array()[0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize("v_dim, kept", [(32, True), (48, False)])
def test_columns_move_in_whole_blocks(v_dim, kept):
    """Of Q8_0, which has 32 columns in a block: heads of 32 values go as they are."""
    config = {**DELTA, "linear_value_head_dim": v_dim}
    n = 4 * v_dim
    numbers = np.arange(2 * n, dtype=np.float32).reshape(2, n)
    blocks = np.arange(2 * n // 32, dtype=np.uint8).repeat(34).reshape(2, -1)
    tensor = Tensor("x", (2, n), lambda: lambda a, b: numbers[a:b], stored="Q8_0")
    tensor = dataclasses.replace(tensor, blocks=lambda: lambda a, b: blocks[a:b])
    out = gguf_mixers.values_by_key("blk.0.ssm_out.weight", tensor, config)
    assert out.array()[1, ::v_dim].tolist() == [n, n + 2 * v_dim, n + v_dim, n + 3 * v_dim]
    assert (out.blocks is not None) == (out.stored == "Q8_0") == kept
    if kept:
        assert out.blocks()(1, 2)[0, ::34].tolist() == [4, 6, 5, 7]


def test_a_transpose_of_a_transpose_keeps_blocks():
    """GPT-2's matrices, which its checkpoints have transposed and a GGUF file has not."""
    tensor = stored(numbered(3, 2))
    other = gguf_shared.inputs_first("blk.0.ffn_up.weight", tensor, {})
    assert other.shape == (2, 3) and other.blocks is None
    assert other.array()[0].tolist() == [0, 1, 2] and transposed(other) is tensor


def test_betas_and_decays():
    tensors = {"blk.0.ssm_ba.weight": stored(numbered(8, 3))}
    found = gguf_mixers.betas_and_decays(tensors, DELTA)
    assert block_rows(found["blk.0.ssm_beta.weight"]) == [0, 1, 4, 5]
    assert block_rows(found["blk.0.ssm_alpha.weight"]) == [2, 3, 6, 7]


def test_experts_with_gate_and_up_in_one():
    both = constant(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    tensors = {
        "blk.0.ffn_gate_up_exps.weight": both,
        "blk.0.ffn_down_exps.weight": constant(np.ones((2, 3, 1), np.float32)),
        "blk.0.ffn_down_exps.scale": constant(np.float32([2, 3])),
    }
    found = scaled_experts(tensors, {})
    assert found["blk.0.ffn_up_exps.weight"].array()[0].tolist() == [3, 4, 5]
    assert found["blk.0.ffn_down_exps.weight"].array()[:, 0, 0].tolist() == [2, 3]


def test_one_below_the_other_keeps_blocks():
    first, second = stored(numbered(3, 2)), stored(numbered(2, 2))
    whole = below([first, second])
    assert whole.shape == (5, 2) and block_rows(whole) == rows_of(whole) == [0, 1, 2, 0, 1]
    assert whole.load()(2, 4)[:, 0].tolist() == [2, 0]
    assert below([first, numbered(2, 2)]).blocks is None
    assert block_rows(pick(whole, np.array([4, 0]))) == [1, 0]


def test_layers_of_one_period():
    config = gguf_shared.Config({}, "x")
    period = gguf_mixers._period("attn_layer", [False, True, False, True], config)
    assert period == {"attn_layer_period": 2, "attn_layer_offset": 1}
    for layers in ([True, True, False], [False, False]):
        with pytest.raises(Exception, match="of one period"):
            gguf_mixers._period("attn_layer", layers, config)


def test_the_page_has_the_rows():
    page = (ROOT / "docs" / "export.md").read_text()
    command = "<!-- python -m exporter.sources.gguf_architectures --table: {} -->\n"
    begin, end = (command.format(of) for of in ("begin", "end"))
    assert page.partition(begin)[2].partition(end)[0] == f"\n{table()}\n"


# ---- files that are no checkpoint, poolings, templates -------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A GGUF file of two layers, with templates that have names."""
    folder = tmp_path_factory.mktemp("tiny")
    change = {
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "tokenizer.chat_template.rag": "rag",
    }
    gguf_files.convert(ROOT / "tests" / "golden" / "llama", folder / "x.gguf", change=change)
    return folder / "x.gguf"


def test_the_default_template_is_taken(tiny):
    model = open_model(str(tiny), None, None, False)
    assert model.template == "{{ messages[0].content }}"
    assert "of the chat templates the default is taken; left out: rag" in model.remarks


@pytest.mark.parametrize("missing", [None, "blobs", "blob"])
def test_ollamas_store(missing, tiny, tmp_path):
    """A manifest, or its folder, stands for the blob that it names."""
    (tmp_path / "blobs").mkdir()
    tags = tmp_path / "manifests" / "library" / "x"
    tags.mkdir(parents=True)
    if missing != "blob":
        (tmp_path / "blobs" / "sha256-ab").write_bytes(tiny.read_bytes())
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:ab"}
    (tags / "latest").write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    (tags / "7b").write_text(json.dumps({"schemaVersion": 2, "layers": []}))
    if missing == "blobs":
        shutil.rmtree(tmp_path / "blobs")
    sources = [tags, tags / "latest", *[tmp_path / "blobs"] * (not missing)]
    for source in sources:
        if missing:
            words = "is missing; ollama pull" if missing == "blob" else "no folder above it has"
            with pytest.raises(ExportError, match=words):
                open_model(str(source), None, None, False)
        else:
            model = open_model(str(source), None, None, False)
            assert model.name == "sha256-ab" and model.family == "llama"
    with pytest.raises(ExportError, match="is a manifest that names no model"):
        open_model(str(tags / "7b"), None, None, False)
    (tags / "latest").unlink()
    (tags / "13b").write_text((tags / "7b").read_text())
    with pytest.raises(ExportError, match="holds 2 models: name one of 13b, 7b"):
        open_model(str(tags), None, None, False)


def test_poolings():
    """pooling_type and Dense modules become what sentence-transformers' files become."""
    tensors = {"dense_2.weight": numbered(5, 4), "dense_3.weight": numbered(3, 5)}
    file = File("x", {}, dict(tensors))
    values = {"pooling_type": 2, "embedding_length": 4}
    values |= {"dense_2_feat_in": 4, "dense_2_feat_out": 5}
    values |= {"dense_3_feat_in": 5, "dense_3_feat_out": 3}
    kind, dense = gguf_pooling(Config(values, "x"), file)
    assert kind == FIRST and [t.shape for t in dense.values()] == [(5, 4), (3, 5)]
    knobs = names("llama").knobs
    entries, remarks = pooled(kind, knobs, 2)
    assert entries["model.pooling"] == FIRST and entries["model.pooling_acts"] == [9, 9]
    assert not remarks and not file.tensors and pooled(None, knobs, 0) == ({}, [])
    with pytest.raises(ExportError, match="pooling_type is 4, which is not supported"):
        gguf_pooling(Config({"pooling_type": 4}, "x"), file)


# ---- tokenizers ----------------------------------------------------------------------------------


def vocabulary(model: str, tokens: list[str], types: list[int], **more) -> dict:
    values = {"model": model, "tokens": tokens, "token_type": types, **more}
    values = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    return tokenizer_metadata(gguf_vocabulary(File("x", values, {})), decodes=False)


def test_word_pieces():
    """A mark begins a word in the file, as nothing does in a vocab.txt."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "b", "\u2581ab"]
    ids = {"bos_token_id": 2, "eos_token_id": 3, "unknown_token_id": 1}
    meta = vocabulary("bert", tokens, [3, 3, 3, 3, 1, 1, 1], **ids)
    assert list(meta["tokenizer.prefix"]) == [2] and list(meta["tokenizer.suffix"]) == [3]
    text, begin = bytes(meta["tokenizer.token.text"]), meta["tokenizer.token.begin"]
    assert [text[a:b] for a, b in zip(begin[4:], begin[5:])] == [b" a", b"b", b" ab"]


def test_unigram():
    tokens = ["<pad>", "</s>", "<unk>", "\u2581a", "b"]
    more = {"scores": [0.0, 0.0, 0.0, -1.0, -2.0], "eos_token_id": 1}
    meta = vocabulary("t5", tokens, [3, 3, 2, 1, 1], **more)
    assert list(meta["tokenizer.suffix"]) == [1] and "tokenizer.prefix" not in meta
    with pytest.raises(ExportError, match="scores are missing"):
        vocabulary("t5", tokens, [3, 3, 2, 1, 1])


def test_merges_of_characters():
    tokens = ["<pad>", "<bos>", "<unk>", "\u2581", "a", "\u2581a"]
    more = {"merges": ["\u2581 a"], "bos_token_id": 1, "add_space_prefix": False}
    meta = vocabulary("gemma4", tokens, [3, 3, 2, 1, 1, 1], **more)
    assert list(meta["tokenizer.prefix"]) == [1]


def test_every_name_has_a_kind():
    assert set(PRE_TOKENIZERS.values()) <= set(KINDS_OF_BYTES) and len(PRE_TOKENIZERS) > 60
