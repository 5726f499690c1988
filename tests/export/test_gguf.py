"""GGUF files: the import against the same weights and tokenizers exported from Hugging Face's
files, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import compare_peers
import gguf_files
import numpy as np
import peers_gguf
import pytest
import test_tokenizer
import tokenizer_forms
import tokenizer_texts as texts
from gguf_files import Q, convert
from golden_copies import same
from safetensors.numpy import load_file, save_file
from test_golden import GOLDEN, TOLERANCE, measure
from tokenizers import Tokenizer

import export
from exporter.checkpoint import Checkpoint
from exporter.quantize.kept import SOURCES
from exporter.random_weights import SHAPES, open_random
from exporter.sources.gguf_file import read_gguf
from exporter.sources.gguf_tokenizer import PRE_TOKENIZERS, gguf_vocabulary
from exporter.tokenizers.byte_level import KINDS
from exporter.tokenizers.files import tokenizer_metadata


def edit(path: Path, **changes) -> None:
    """Sets keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def exported(source: Path, out: Path, dtype: str = "f32") -> Checkpoint:
    assert export.main([str(source), str(out), "--dtype", dtype]) == 0
    return Checkpoint(str(out))


def knobs(file: Checkpoint) -> dict:
    return {key: value for key, value in file.metadata.items() if not key.startswith("info.")}


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-linear", "llama-3", "smollm2", "mistral", "qwen3", "gpt2", "falcon", "gemma"],
)
def test_golden_checkpoints(name, tmp_path, run):
    """The same tensors and knobs as from the directory, and the logits and greedy tokens of
    transformers."""
    convert(GOLDEN / name, tmp_path / "x.gguf")
    same_model(
        exported(tmp_path / "x.gguf", tmp_path / "gguf.bin"),
        exported(GOLDEN / name, tmp_path / "hf.bin"),
    )
    error, greedy, expected = measure(GOLDEN / name, tmp_path / "gguf.bin", run)
    assert error <= TOLERANCE and greedy == expected


# What GGUF can say of golden checkpoints that have something it cannot; None removes a key.
EDITS = {
    "gemma2": dict(query_pre_attn_scalar=10),
    "gemma3": dict(query_pre_attn_scalar=10, layer_types=["sliding_attention"] * 2),
    "gpt_neox": {},
    "granitemoe": {},
    "olmo3": dict(
        rope_parameters=dict(
            full_attention=dict(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=48,
                rope_theta=10000.0,
            ),
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
        )
    ),
    "phi": {},
    "phi3-longer": {},
    "stablelm": {},
}


@pytest.mark.parametrize("name", EDITS)
def test_other_architectures(name, tmp_path):
    shutil.copytree(GOLDEN / name, tmp_path / "hf")
    edit(tmp_path / "hf/config.json", **EDITS[name])
    convert(tmp_path / "hf", tmp_path / "x.gguf")
    same_model(
        exported(tmp_path / "x.gguf", tmp_path / "gguf.bin"),
        exported(tmp_path / "hf", tmp_path / "hf.bin"),
    )


def test_qwen2_moe(tmp_path):
    """Its golden checkpoint has a first layer without experts, which GGUF does not know: here it
    has the second alone."""
    shutil.copytree(GOLDEN / "qwen2_moe", tmp_path / "hf")
    edit(tmp_path / "hf/config.json", mlp_only_layers=[], num_hidden_layers=1, layer_types=None)
    weights = load_file(tmp_path / "hf/model.safetensors")
    kept = {
        name.replace(".layers.1.", ".layers.0."): w
        for name, w in weights.items()
        if ".layers.0." not in name
    }
    save_file(kept, tmp_path / "hf/model.safetensors")
    convert(tmp_path / "hf", tmp_path / "x.gguf")
    same_model(
        exported(tmp_path / "x.gguf", tmp_path / "gguf.bin"),
        exported(tmp_path / "hf", tmp_path / "hf.bin"),
    )


def same_model(ours: Checkpoint, theirs: Checkpoint, **tolerance) -> None:
    tolerance = tolerance or {
        "rtol": 1e-6,
        "atol": 1e-7,
    }  # Gemma's norms and Llama 3's rope are computed in another order
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        assert np.allclose(ours.tensor(name), theirs.tensor(name), **tolerance), name
    a, b = knobs(ours), knobs(theirs)
    assert a.keys() == b.keys()
    for key in a:
        assert np.allclose(a[key], b[key], rtol=1e-6, atol=0), key


SMALL = {
    **SHAPES["moe-1b"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "vocab_size": 256,
    "head_dim": 16,
    "num_experts": 8,
    "moe_intermediate_size": 32,
}


@pytest.mark.parametrize("config", [SHAPES["stories-260k"], SMALL], ids=["llama", "moe"])
def test_compare_peers_gives_llama_cpp_the_same_model(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = peers_gguf.hub_tensors(open_random(str(tmp_path / "config.json"), 1))
    peers_gguf.write_gguf(str(tmp_path / "x.gguf"), config, weights, "f32")
    random = ["--random", str(tmp_path / "config.json"), str(tmp_path / "x.bin"), "--dtype", "f32"]
    assert export.main(random) == 0
    same_model(
        exported(tmp_path / "x.gguf", tmp_path / "gguf.bin"), Checkpoint(str(tmp_path / "x.bin"))
    )


def test_compare_peers_makes_and_asks_this_engine(tmp_path):
    engine = compare_peers.Heads(compare_peers.Task("stories-260k", "q8", 1, 32, 64, str(tmp_path)))
    try:
        assert engine.logits().shape == (SHAPES["stories-260k"]["vocab_size"],)
        assert engine.prefill(16) > 0 and engine.decode(4) > 0 and engine.batch(2, 4) > 0
    finally:
        engine.session.kill()
        engine.session.communicate()


def test_qwen2(tmp_path):
    """Its golden checkpoint has a window in some layers, which GGUF has no key for."""
    shutil.copytree(GOLDEN / "qwen2", tmp_path / "hf")
    edit(tmp_path / "hf/config.json", use_sliding_window=False)
    convert(tmp_path / "hf", tmp_path / "x.gguf")
    same_model(
        exported(tmp_path / "x.gguf", tmp_path / "gguf.bin"),
        exported(tmp_path / "hf", tmp_path / "hf.bin"),
    )


def test_yarn(tmp_path):
    shutil.copytree(GOLDEN / "llama", tmp_path / "hf")
    yarn = dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=48, rope_theta=10000.0
    )
    edit(tmp_path / "hf/config.json", rope_parameters=yarn)
    convert(tmp_path / "hf", tmp_path / "x.gguf")
    ours, theirs = (
        exported(tmp_path / "x.gguf", tmp_path / "gguf.bin"),
        exported(tmp_path / "hf", tmp_path / "hf.bin"),
    )
    same_model(ours, theirs)
    assert theirs.metadata["model.rope.0.multiplier"] > 1


def test_biases_and_an_untied_output(tmp_path):
    """What the converters permute or copy besides matrices: biases of q and k; an output that is
    the embedding again."""
    shutil.copytree(GOLDEN / "llama-3", tmp_path / "hf")
    weights = load_file(tmp_path / "hf/model.safetensors")
    rng = np.random.default_rng(4)
    for name in weights:
        if name.endswith(".bias"):
            weights[name] = rng.standard_normal(weights[name].shape).astype(np.float32)
    save_file(weights, tmp_path / "hf/model.safetensors")
    convert(
        tmp_path / "hf",
        tmp_path / "copy.gguf",
        tensors=lambda t: t.update({"output.weight": t["token_embd.weight"]}),
    )
    theirs = exported(tmp_path / "hf", tmp_path / "hf.bin")
    assert any(name.endswith("attn_q.bias") for name in theirs.tensors)
    same_model(exported(tmp_path / "copy.gguf", tmp_path / "copy.bin"), theirs)
    own = lambda t: t.update({"output.weight": t["token_embd.weight"] + 1})  # noqa: E731
    convert(tmp_path / "hf", tmp_path / "own.gguf", tensors=own)
    ours = exported(tmp_path / "own.gguf", tmp_path / "own.bin")
    assert np.array_equal(ours.tensor("output"), theirs.tensor("embed") + 1)


# ---- types of weights ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A Llama of random weights whose matrices are as wide as a block of 256."""
    directory = tmp_path_factory.mktemp("wide")
    config = json.loads((GOLDEN / "llama" / "config.json").read_text())
    config |= dict(
        vocab_size=48,
        hidden_size=256,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_hidden_layers=1,
    )
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(5)
    shapes = {"model.embed_tokens": (48, 256), "lm_head": (48, 256), "model.norm": (256,)}
    layer = {
        "self_attn.q_proj": (256, 256),
        "self_attn.k_proj": (128, 256),
        "self_attn.v_proj": (128, 256),
        "self_attn.o_proj": (256, 256),
        "mlp.gate_proj": (256, 256),
        "mlp.up_proj": (256, 256),
        "mlp.down_proj": (256, 256),
        "input_layernorm": (256,),
        "post_attention_layernorm": (256,),
    }
    shapes |= {f"model.layers.0.{name}": shape for name, shape in layer.items()}
    weights = {
        f"{name}.weight": rng.normal(0, 0.06, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, directory / "model.safetensors")
    return directory


def test_rounded_types(wide, tmp_path):
    """F16, BF16, Q8_0 and Q4_0 as the package writes them, a type a matrix: read as the numbers
    nearest to the weights."""
    kinds = [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0]
    convert(wide, tmp_path / "x.gguf", kind=lambda name: kinds[sum(name.encode()) % 4])
    ours = exported(tmp_path / "x.gguf", tmp_path / "gguf.bin")
    theirs = exported(wide, tmp_path / "hf.bin")
    for name, (_, rows, _, _, _) in theirs.tensors.items():
        error = np.abs(ours.tensor(name) - theirs.tensor(name)).max()
        assert error < (0.03 if rows > 1 else 1e-9), name
    stored = {
        kinds[sum(name.encode()) % 4]
        for name in gguf_files.stored_tensors(
            "llama",
            json.loads((wide / "config.json").read_text()),
            load_file(wide / "model.safetensors"),
        )
    }
    assert stored == set(kinds)


def convert_blocks(source: Path, path: Path, kind: Q, blocks) -> dict[str, np.ndarray]:
    """A file of random blocks in every matrix, as `blocks` makes them, and what they stand for."""
    values = {}

    def fill(tensors: dict) -> None:
        for i, (name, w) in enumerate(tensors.items()):
            if w.ndim == 2:
                tensors[name], values[name] = blocks(kind, *w.shape, seed=i)

    convert(source, path, kind=lambda name: kind, tensors=fill)
    return values


@pytest.mark.parametrize("kind", gguf_files.SCALES, ids=lambda kind: kind.name)
def test_blocks(kind, wide, tmp_path):
    """Random blocks in every matrix: the same file as from a directory with the numbers that they
    stand for."""
    values = convert_blocks(wide, tmp_path / "x.gguf", kind, gguf_files.random_blocks)
    ours = exported(tmp_path / "x.gguf", tmp_path / "gguf.bin")
    same = {"ffn_up": "blk.0.ffn_up.weight", "attn_v": "blk.0.attn_v.weight"}
    assert np.array_equal(ours.tensor("embed"), values["token_embd.weight"])
    for name, stored in same.items():
        assert np.array_equal(ours.tensor(f"layers.0.{name}"), values[stored]), name
    q, permuted = (
        ours.tensor("layers.0.attn_q").reshape(4, 2, 32, 256),
        values["blk.0.attn_q.weight"].reshape(4, 32, 2, 256),
    )
    assert np.array_equal(q[:, 0], permuted[:, :, 0]) and np.array_equal(q[:, 1], permuted[:, :, 1])


@pytest.mark.parametrize(
    "kind", [*gguf_files.SCALES, *gguf_files.OTHERS], ids=lambda kind: kind.name
)
def test_kept(kind, wide, tmp_path, run, capsys):
    """The numbers of a file are those of its checkpoint, to the bit, and what is computed with them
    is off by no more than int8 activations make it. What no type keeps becomes f16, and says so."""
    values = convert_blocks(wide, tmp_path / "x.gguf", kind, gguf_files.dequantized_blocks)
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "kept.bin")]) == 0
    kept = kind.name in SOURCES
    assert ("cannot be kept as stored: rounded to f16" in capsys.readouterr().err) is not kept
    file = Checkpoint(str(tmp_path / "kept.bin"))
    numbers = file.tensor("layers.0.ffn_down")
    assert file.tensors["embed"][0] == (SOURCES[kind.name].dtype if kept else "f16")
    exact = values["blk.0.ffn_down.weight"]
    assert np.array_equal(numbers, exact if kept else exact.astype(np.float16))
    q = file.tensor("layers.0.attn_q").reshape(4, 2, 32, 256)
    permuted = values["blk.0.attn_q.weight"].reshape(4, 32, 2, 256)
    permuted = permuted if kept else permuted.astype(np.float16)
    assert np.array_equal(q[:, 0], permuted[:, :, 0])
    exported(tmp_path / "x.gguf", tmp_path / "f32.bin")
    logits = []
    for name in ("kept", "f32"):
        path = tmp_path / f"{name}.logits"
        run(tmp_path / f"{name}.bin", "--tokens", "1 2 3 4 5 6 7 8", "--logits", path)
        logits.append(np.fromfile(path, "<f4"))
    error = np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[1])
    assert error < (0.05 if kept else 0.001)


def test_gpt2_is_kept(tmp_path, capsys):
    """Its checkpoints have the matrices of layers transposed, a GGUF file has not. The golden one is
    made as wide as two blocks."""
    shutil.copytree(GOLDEN / "gpt2", tmp_path / "hf")
    edit(tmp_path / "hf/config.json", n_embd=64, n_head=4)
    widths = {36: 64, 3 * 36: 3 * 64, 4 * 36: 4 * 64}
    weights = load_file(tmp_path / "hf/model.safetensors")
    wider = {k: np.resize(w, [widths.get(n, n) for n in w.shape]) for k, w in weights.items()}
    save_file(wider, tmp_path / "hf/model.safetensors")
    kind = lambda name: Q.F32 if name == "position_embd.weight" else Q.Q8_0  # noqa: E731
    convert(tmp_path / "hf", tmp_path / "x.gguf", kind=kind)
    kept = exported(tmp_path / "x.gguf", tmp_path / "kept.bin", "keep")
    assert "cannot be kept" not in capsys.readouterr().err
    exact = exported(tmp_path / "x.gguf", tmp_path / "f32.bin")
    for name in ("layers.0.attn_k", "layers.1.ffn_down", "embed"):
        assert kept.tensors[name][0] == "q8_0"
        assert np.array_equal(kept.tensor(name), exact.tensor(name)), name


def test_requantized(wide, tmp_path):
    """--dtype counts, whatever the file holds."""
    convert(wide, tmp_path / "x.gguf", kind=lambda name: Q.Q8_0)
    file = exported(tmp_path / "x.gguf", tmp_path / "q4.bin", "q4")
    assert file.tensors["layers.0.attn_q"][0] == "q4" and file.tensors["embed"][0] == "q8"
    assert file.metadata["info.source"] == b"x.gguf" and file.metadata["info.family"] == b"llama"


def test_chat_template(wide, tmp_path):
    convert(wide, tmp_path / "x.gguf", change={"tokenizer.chat_template": "{{ messages }}"})
    assert (
        exported(tmp_path / "x.gguf", tmp_path / "x.bin").metadata["chat.template"]
        == b"{{ messages }}"
    )


# ---- tokenizers ----------------------------------------------------------------------------------

# How llama.cpp's converter calls the kinds of test_tokenizer.py.
NAMES_OF_KINDS = {
    "gpt2": "gpt-2",
    "llama3": "llama-bpe",
    "olmo2": "dbrx",
    "qwen2": "qwen2",
    "starcoder2": "starcoder",
    "falcon": "falcon",
    "neox": "olmo",
    "qwen3.5": "qwen35",
    "o200k": "gpt-4o",
    "tekken": "tekken",
    "deepseek-coder": "deepseek-coder",
    "deepseek-llm": "deepseek-llm",
    "deepseek3": "deepseek-v3",
    "bloom": "bloom",
    "seed-coder": "seed-coder",
    "jais-2": "jais-2",
    "exaone-moe": "exaone-moe",
    "youtu": "youtu",
    "default": "default",
    "chameleon": "chameleon",
    "tiny-aya": "tiny_aya",
    "superbpe": "superbpe",
    "kimi-k2": "kimi-k2",
    "afmoe": "afmoe",
}


def agree(vocabulary, tokenizer_file: Path, contents: list[str], model: Path) -> None:
    """The same answers as `tokenizers` on mixed text and random strings."""
    texts.write_model(model, tokenizer_metadata(vocabulary))
    every = [
        texts.mixed_text(31, 40_000, contents),
        *texts.random_strings(32, 1500, contents, most=8),
    ]
    ours = texts.tokenize(texts.PROGRAM, model, [s.encode() for s in every])
    wrong = texts.differences(
        every, ours, texts.expected(Tokenizer.from_file(str(tokenizer_file)), every)
    )
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("kind", NAMES_OF_KINDS)
def test_byte_level_tokenizers(kind, wide, tmp_path):
    """The ids of the tokenizer.json that the metadata were made of. GGUF has no flags of added
    tokens, so they have none."""
    data = test_tokenizer.KINDS[kind]()
    data["added_tokens"] = [
        token
        for token in data["added_tokens"]
        if token["content"] not in ("<sn>", "<nr>", "\u00f8")
    ]
    for token in data["added_tokens"]:
        token.update(lstrip=False, rstrip=False, single_word=False, normalized=False)
    test_tokenizer.renumber_added(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    fields = gguf_files.byte_level_fields(data, NAMES_OF_KINDS[kind], rows=27000)
    convert(wide, tmp_path / "x.gguf", tokenizer=fields)
    contents = [token["content"] for token in data["added_tokens"]]
    vocabulary = gguf_vocabulary(read_gguf(str(tmp_path / "x.gguf")))
    assert len(vocabulary.tokens) == len(data["model"]["vocab"]) + sum(  # without the padding
        token["content"] not in data["model"]["vocab"] for token in data["added_tokens"]
    )
    agree(vocabulary, tmp_path / "tokenizer.json", contents, tmp_path / "model.bin")


def test_every_kind_is_tested():
    """The other names in the table are those of kinds that are, or of kinds with their steps."""
    tested = {PRE_TOKENIZERS[pre] for pre in NAMES_OF_KINDS.values()}
    steps = {step for kind in tested for step in KINDS[kind].splits}
    others = set(KINDS) - tested
    assert others == {"bloom digits", "command-r", "minicpm5", "o200k words", "qwen2 as it is"}
    assert {step for kind in others for step in KINDS[kind].splits} <= steps


def test_add_bos_and_eos(wide, tmp_path):
    """What a text begins and ends with: as the metadata say or, if they do not, as llama.cpp has it
    for the kind."""
    for pre, says, prefix in (
        ("llama-bpe", None, [1]),
        ("llama-bpe", False, []),
        ("qwen2", None, []),
        ("qwen2", True, [1]),
    ):
        fields = TINY | {
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": list("abcdefgh"),
            "tokenizer.ggml.token_type": [1] * 8,
        }
        fields |= {
            "tokenizer.ggml.add_bos_token": says,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.eot_token_id": 7,
            "tokenizer.ggml.add_eos_token": True,
        }
        convert(wide, tmp_path / "x.gguf", tokenizer=fields)
        v = gguf_vocabulary(read_gguf(str(tmp_path / "x.gguf")))
        assert (v.prefix, v.suffix, v.eos) == (prefix, [2], [2, 7])


def scored_pieces() -> list[tuple[str, float, int]]:
    """Those of test_tokenizer.sentencepiece_file."""
    rest = test_tokenizer.pieces_by_score()
    fixed = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((f"<0x{b:02X}>", 0.0, 6) for b in range(256)),
    ]
    return [*fixed, *((t, s, 1) for t, s in rest)]


def test_scored_tokenizer(wide, tmp_path):
    """The same metadata as from a SentencePiece file of the same pieces."""
    pieces = scored_pieces()
    (tmp_path / "t.model").write_bytes(
        test_tokenizer.sentencepiece_file(
            test_tokenizer.pieces_by_score(), normalizer=test_tokenizer.protobuf(4, 0)
        )
    )
    convert(
        wide,
        tmp_path / "x.gguf",
        tokenizer=gguf_files.scored_fields([*pieces, ("[PAD9]", -1e4, 5)], bos_token_id=1),
    )
    ours = tokenizer_metadata(gguf_vocabulary(read_gguf(str(tmp_path / "x.gguf"))))
    theirs = tokenizer_metadata(str(tmp_path / "t.model"))
    assert ours.keys() == theirs.keys() and all(
        np.array_equal(ours[key], theirs[key]) for key in ours
    )


def test_user_defined_spaces(wide, tmp_path):
    """Gemma's runs of U+2581, which the converter writes as spaces: the same metadata as from a
    SentencePiece file."""
    pieces = [
        *scored_pieces(),
        *(("\u2581" * n, 0.0, 4) for n in (2, 3, 7)),
        ("<table>", 0.0, 4),
        ("\n\n", 0.0, 4),
    ]
    normalizer = tokenizer_forms.protobuf(3, 0) + tokenizer_forms.protobuf(4, 0)
    (tmp_path / "t.model").write_bytes(tokenizer_forms.sentencepiece(pieces, normalizer=normalizer))
    fields = gguf_files.scored_fields(pieces, prefix=False)
    assert fields["tokenizer.ggml.tokens"][-3] == " " * 7
    convert(wide, tmp_path / "x.gguf", tokenizer=fields)
    ours = tokenizer_metadata(gguf_vocabulary(read_gguf(str(tmp_path / "x.gguf"))))
    theirs = tokenizer_metadata(str(tmp_path / "t.model"))
    assert ours.keys() == theirs.keys() and all(
        np.array_equal(ours[key], theirs[key]) for key in ours
    )


def test_tokenizer_goes_into_the_file(wide, tmp_path, run, capsys):
    """And ./run reads it. The embedding has 48 rows: too few for what text becomes, or only for
    added tokens."""
    fields = gguf_files.scored_fields(scored_pieces())
    convert(wide, tmp_path / "x.gguf", tokenizer=fields)
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "x.bin")]) == 1
    assert "the embedding has 48 rows" in capsys.readouterr().err
    few = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((c, -float(i), 1) for i, c in enumerate("\u2581abcdef")),
        ("ab", -0.5, 1),
        *((f"<{i}>", 0.0, 4) for i in range(40)),
    ]
    convert(wide, tmp_path / "x.gguf", tokenizer=gguf_files.scored_fields(few))
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "x.bin")]) == 0
    assert (
        "3 tokens, 48 the first of them, have no row in the embedding, which has 48"
        in capsys.readouterr().err
    )
    assert run(tmp_path / "x.bin", "--tokenize", "-p", "ab<1>").stdout.split() == [
        b"1",
        b"3",
        b"10",
        b"12",
    ]
    done = run(tmp_path / "x.bin", "-p", "ab<39>")
    assert done.returncode == 1 and "the text has token 50" in done.stderr, done.stderr


# ---- what is refused -----------------------------------------------------------------------------

TINY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.token_type": [1, 1],
}
SCORED = gguf_files.scored_fields([("<unk>", 0.0, 2), ("a", -1.0, 1), ("b", -2.0, 1)])
REFUSED = {
    "general.architecture is 'clip2'": dict(change={"general.architecture": "clip2"}),
    "x.gguf is an adapter \\(general.type\\), not a model; its base, with": dict(
        change={"general.type": "adapter"}
    ),
    "for pictures or sounds \\(mmproj\\); export the file of": dict(
        change={"general.type": "mmproj"}
    ),
    "x.gguf is a vocabulary alone": dict(tensors=lambda t: t.clear()),
    "general.type is 'imatrix'": dict(change={"general.type": "imatrix"}),
    "is a part of a model in 3 files; give it back the name": dict(change={"split.count": 3}),
    "lacks embedding_length": dict(change={"llama.embedding_length": None}),
    "block_count is 0": dict(change={"llama.block_count": 0}),
    "attention.head_count is \\[4, 4\\]": dict(change={"llama.attention.head_count": [4, 4]}),
    "lacks expert_used_count": dict(change={"llama.expert_count": 8}),
    "lacks the tensor blk.0.ffn_gate_inp.weight": dict(
        change={"llama.expert_count": 8, "llama.expert_used_count": 2}
    ),
    "vocab_size is 47": dict(change={"llama.vocab_size": 47}),
    "rope.dimension_count is 32": dict(change={"llama.rope.dimension_count": 32}),
    "attention.value_length is 32": dict(change={"llama.attention.value_length": 32}),
    "rope_type is 'ntk'": dict(
        change={"llama.rope.scaling.type": "ntk", "llama.rope.scaling.factor": 4.0}
    ),
    "logit_scale \\(0.5\\) is unknown": dict(change={"llama.logit_scale": 0.5}),
    "attention.causal is False": dict(change={"llama.attention.causal": False}),
    "lacks the tensor blk.0.attn_k.weight": dict(tensors=lambda t: t.pop("blk.0.attn_k.weight")),
    "lacks the tensor token_embd.weight": dict(tensors=lambda t: t.pop("token_embd.weight")),
    "holds blk.0.attn_sinks.weight": dict(
        tensors=lambda t: t.update({"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    ),
    "tensor blk.0.attn_v.weight has shape": dict(
        tensors=lambda t: t.update({"blk.0.attn_v.weight": np.ones((9, 256))})
    ),
    "rope_freqs.weight holds no 32 positive": dict(
        tensors=lambda t: t.update({"rope_freqs.weight": np.ones(5, np.float32)})
    ),
    "output_norm.weight: a weight is NaN": dict(
        tensors=lambda t: t.update({"output_norm.weight": np.full(256, np.nan)})
    ),
    "output.weight is stored as Q8_1": dict(
        kind=lambda name: Q.Q8_1,
        tensors=lambda t: t.update(
            {name: np.zeros((w.shape[0], 320), np.uint8) for name, w in t.items() if w.ndim == 2}
        ),
    ),
    "split.count is 'many', expected a whole number": dict(change={"split.count": "many"}),
    "tokenizer.ggml.model is 'rwkv'": dict(tokenizer={**TINY, "tokenizer.ggml.model": "rwkv"}),
    "tokenizer.ggml.pre is 'whitespace'": dict(
        tokenizer={**TINY, "tokenizer.ggml.pre": "whitespace"}
    ),
    "tokenizer.ggml.pre is None": dict(tokenizer={**TINY, "tokenizer.ggml.pre": None}),
    "tokenizer.ggml.tokens and tokenizer.ggml.token_type": dict(
        tokenizer={**TINY, "tokenizer.ggml.token_type": [1]}
    ),
    "tokenizer.ggml.add_space_prefix is True": dict(
        tokenizer={**TINY, "tokenizer.ggml.add_space_prefix": True}
    ),
    "model.merges: entry 0": dict(tokenizer={**TINY, "tokenizer.ggml.merges": ["a c"]}),
    "tokenizer.ggml.bos_token_id is None": dict(
        tokenizer={**TINY, "tokenizer.ggml.add_bos_token": True}
    ),
    "tokenizer.ggml.escape \\(True\\) is unknown": dict(
        tokenizer={**TINY, "tokenizer.ggml.escape": True}
    ),
    "scores are missing or all equal": dict(
        tokenizer={**SCORED, "tokenizer.ggml.scores": [-1e3, -1e3, -1e3]}
    ),
    "remove_extra_whitespaces is True": dict(
        tokenizer={**SCORED, "tokenizer.ggml.remove_extra_whitespaces": True}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message, wide, tmp_path, capsys):
    """A file that asks for what is not there is refused by the name of the key or the tensor, and
    nothing is written."""
    convert(wide, tmp_path / "x.gguf", **REFUSED[message])
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "x.bin")]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "x.bin").exists()


@pytest.mark.parametrize("small_first", [False, True])
def test_split_files(small_first, wide, tmp_path, capsys):
    """Any part brings the others, which lie beside it."""
    convert(wide, tmp_path / "x.gguf", tokenizer=SCORED)
    whole = exported(tmp_path / "x.gguf", tmp_path / "whole.bin")
    options = dict(split_max_tensors=5, small_first_shard=small_first)
    convert(wide, tmp_path / "s.gguf", tokenizer=SCORED, **options)
    parts = sorted(tmp_path.glob("s-*.gguf"))
    assert len(parts) == 3 + small_first
    for part in parts:
        joined = exported(part, tmp_path / f"{part.name}.bin")
        assert same(joined, whole) and repr(knobs(joined)) == repr(knobs(whole))
        assert joined.metadata["info.source"] == parts[0].name.encode()

    def said(part: Path) -> str:
        assert export.main([str(part), str(tmp_path / "y.bin")]) == 1
        return capsys.readouterr().err

    n = len(parts)
    assert export.main([str(parts[0]), str(parts[1])]) == 1
    assert "belongs to the source" in capsys.readouterr().err
    content = parts[1].read_bytes()
    parts[1].write_bytes(parts[0].read_bytes())
    assert f"{parts[1].name} is not part 2 of the model that" in said(parts[0])
    parts[1].write_bytes(content)
    parts[0].unlink()
    assert f"{parts[1]} is part 2 of {n} of a model; {parts[0].name} is missing" in said(parts[1])
    parts[1].rename(tmp_path / "z.gguf")
    assert f"is a part of a model in {n} files; give it back the name" in said(tmp_path / "z.gguf")


def test_versions_and_byte_orders(wide, tmp_path, capsys):
    """Version 2 has the form of 3. A big-endian file is called so."""
    convert(wide, tmp_path / "x.gguf")
    three = exported(tmp_path / "x.gguf", tmp_path / "x.bin")
    data = (tmp_path / "x.gguf").read_bytes()
    (tmp_path / "x.gguf").write_bytes(data[:4] + (2).to_bytes(4, "little") + data[8:])
    two = exported(tmp_path / "x.gguf", tmp_path / "x.bin")
    assert two.data[:] == three.data[:]
    convert(wide, tmp_path / "b.gguf", endianess=gguf_files.gguf.GGUFEndian.BIG)
    assert export.main([str(tmp_path / "b.gguf"), str(tmp_path / "x.bin")]) == 1
    assert "b.gguf is big-endian; convert it: gguf-convert-endian" in capsys.readouterr().err
    (tmp_path / "x.gguf").write_bytes(data[:4] + (1).to_bytes(4, "little") + data[8:])
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "x.bin")]) == 1
    assert "it is of version 1; supported: 2 and 3" in capsys.readouterr().err


def test_damaged_files(wide, tmp_path, capsys):
    """Cut short, or with bits flipped in the header: a sentence, or an export of other numbers,
    never a traceback."""
    convert(wide, tmp_path / "x.gguf", kind=lambda name: Q.Q8_0, tokenizer=SCORED)
    data = (tmp_path / "x.gguf").read_bytes()
    bad = tmp_path / "bad.gguf"
    rng = np.random.default_rng(6)
    for n in [4, 8, 24, 100, 1000, 3000, len(data) - 100]:
        bad.write_bytes(data[:n])
        assert export.main([str(bad), str(tmp_path / "x.bin")]) == 1
        assert "export: " in capsys.readouterr().err
    for _ in range(60):
        flipped = bytearray(data)
        for at in rng.integers(4, 3000, 2):
            flipped[at] ^= 1 << int(rng.integers(8))
        bad.write_bytes(flipped)
        assert export.main([str(bad), str(tmp_path / "x.bin")]) in (0, 1)


def test_without_the_package(wide, tmp_path, capsys, monkeypatch):
    convert(wide, tmp_path / "x.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "x.bin")]) == 1
    assert "needs the gguf package; pip install gguf" in capsys.readouterr().err


def test_tokenizer_option_is_refused(wide, tmp_path, capsys):
    convert(wide, tmp_path / "x.gguf")
    (tmp_path / "t.bin").write_bytes(b"")
    assert (
        export.main(
            [
                str(tmp_path / "x.gguf"),
                str(tmp_path / "x.bin"),
                "--tokenizer",
                str(tmp_path / "t.bin"),
            ]
        )
        == 1
    )
    assert "a GGUF file holds its own tokenizer" in capsys.readouterr().err
    assert export.main([str(tmp_path / "x.gguf"), str(tmp_path / "x.gguf")]) == 1
    assert "belongs to the source" in capsys.readouterr().err
