"""Shapes: checkpoints without weights, made from a config.json or a GGUF file's header. What they
say is what the whole checkpoint says, and what needs weights is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import checkpoints
import export
import gguf_files
from conftest import ROOT, run_command
from exporter.checkpoint import Checkpoint
from heads._native import HeadsError, calls

GOLDEN = ROOT / "tests" / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))


def shape_of(folder: Path, config: dict, *options: str) -> Path:
    """The shape of a directory that holds config.json alone."""
    (folder / "alone").mkdir()
    (folder / "alone" / "config.json").write_text(json.dumps(config))
    out = folder / "x.shape"
    assert export.main([str(folder / "alone"), str(out), "--shape-only", *options]) == 0
    return out


def golden_config(name: str) -> dict:
    return json.loads((GOLDEN / name / "config.json").read_text())


def facts(path: Path) -> tuple[dict, list]:
    """The knobs, and the tensor table without offsets, which move with the metadata."""
    file = Checkpoint(str(path))
    knobs = {k: np.array(v).tolist() for k, v in file.metadata.items() if k[:6] in PREFIXES}
    return knobs, [(name, *t[:3], t[4]) for name, t in file.tensors.items()]


PREFIXES = ("model.", "layer.")
MEASURED = ("model", "shape", "reserved_bytes", "resident_bytes", "fork_shared_bytes")


def kv_json(*arguments: object):
    done = run_command(*arguments, "--kv", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- the same numbers ----


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_has_the_numbers_of_the_checkpoint(name, exported, tmp_path):
    whole, shape = exported(name), shape_of(tmp_path, golden_config(name))
    assert facts(shape) == facts(whole)
    for options in ((), ("-ctk", "q8", "-ctv", "f32", "-c", 100), ("-c", 16, "-ctv", "q8")):
        a, b = (kv_json(path, "--memory", "1M", *options) for path in (whole, shape))
        assert b["reserved_bytes"] == a["reserved_bytes"] and b["resident_bytes"] is None
        assert (a["shape"], b["shape"]) == (False, True)
        assert {k: v for k, v in a.items() if k not in MEASURED} == {
            k: v for k, v in b.items() if k not in MEASURED
        }
    assert run_command(shape, "--check").returncode == 0
    infos = [json.loads(run_command(p, "--info", "--json").stdout) for p in (whole, shape)]
    for key in ("weight_bytes", "layers", "tensors", "vocab_size", "context"):
        assert infos[0][key] == infos[1][key]


def test_a_decoder_of_an_encoders_family_has_its_head(tmp_path):
    config = dict(model_type="modernbert-decoder", vocab_size=61)
    _, tensors = facts(shape_of(tmp_path, config))
    assert {name for name, *_ in tensors} >= {"head_dense", "head_norm", "output.bias"}


def llama(**values) -> dict:
    return dict(
        model_type="llama",
        vocab_size=32000,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        **values,
    )


# As the makers of these models say in their papers and model cards.
KNOWN = {
    "Llama-2-7B": (
        524_288,
        6_738_415_616,
        llama(
            hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
        ),
    ),
    "Llama-2-70B": (
        327_680,
        68_976_648_192,
        llama(
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
        ),
    ),
    "Falcon-7B": (
        8_192,
        6_921_720_704,
        dict(
            model_type="falcon",
            vocab_size=65024,
            hidden_size=4544,
            num_hidden_layers=32,
            num_attention_heads=71,
            alibi=False,
            bias=False,
            multi_query=True,
            parallel_attn=True,
            new_decoder_architecture=False,
        ),
    ),
    "DeepSeek-V2-Lite": (
        31_104,
        15_706_484_224,
        dict(
            model_type="deepseek_v2",
            vocab_size=102400,
            hidden_size=2048,
            num_hidden_layers=27,
            num_attention_heads=16,
            num_key_value_heads=16,
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            intermediate_size=10944,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
            max_position_embeddings=163840,
        ),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_models_whose_cost_is_known(name, tmp_path, capsys):
    per_token, weights, config = KNOWN[name]
    shape = shape_of(tmp_path, config)
    said = capsys.readouterr().out
    assert f"{weights:,} weights" in said and shape.stat().st_size < 50_000
    assert f"x.shape: {shape.stat().st_size:,} bytes, the shape of a checkpoint that would" in said
    own = next(row for row in kv_json(shape)["rows"] if row["own"])
    assert own["bytes_per_token"] == per_token
    if name == "DeepSeek-V2-Lite":
        expanded = kv_json(shape)["rows"][0]
        assert expanded["scheme"] == "MHA" and expanded["bytes_per_token"] == 276_480


def test_dtype_and_kv_heads_of_a_shape(tmp_path):
    shape = shape_of(tmp_path, golden_config("llama"), "--dtype", "f32", "--kv-heads", "1")
    file = Checkpoint(str(shape))
    assert file.tensors["layers.0.attn_k"][:2] == ("f32", 10)
    assert [r["n_kv_heads"] for r in kv_json(shape)["rows"] if r["own"]] == [1]


# ---- where shapes come from ----


@pytest.mark.parametrize("name", ["llama", "llama-3", "phi3-longer", "gpt2", "granitemoe"])
def test_a_gguf_header_is_enough(name, tmp_path):
    path, cut = tmp_path / "x.gguf", tmp_path / "cut.gguf"
    gguf_files.convert(GOLDEN / name, path)
    data = min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
    cut.write_bytes(path.read_bytes()[:data])
    for source, option in ((path, []), (cut, ["--shape-only"])):
        command = [str(source), str(source.with_suffix(".out")), "--dtype", "q8", *option]
        assert export.main(command) == 0
    (knobs, tensors), (cut_knobs, cut_tensors) = (facts(p.with_suffix(".out")) for p in (path, cut))
    assert tensors == cut_tensors
    frequencies = {key for key in knobs if key.endswith(("_freq", "multiplier"))}
    assert {k: v for k, v in knobs.items() if k not in frequencies} == {
        k: v for k, v in cut_knobs.items() if k not in frequencies
    }
    cut.write_bytes(path.read_bytes()[: data - 40])
    assert export.main([str(cut), str(tmp_path / "no.out"), "--shape-only"]) == 1
    assert not (tmp_path / "no.out").exists()


def test_a_truncated_gguf_file_is_no_checkpoint(tmp_path, capsys):
    gguf_files.convert(GOLDEN / "llama", tmp_path / "x.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "x.gguf").read_bytes()[:-1000])
    assert export.main([str(tmp_path / "cut.gguf"), str(tmp_path / "out")]) == 1
    assert "lies outside the file" in capsys.readouterr().err


def test_of_a_hub_id_only_config_json_is_fetched(tmp_path, monkeypatch):
    import huggingface_hub

    def snapshot_download(hub_id, revision, allow_patterns):
        assert (hub_id, revision, allow_patterns) == ("org/name", "v2", ["config.json"])
        (tmp_path / "hub").mkdir()
        shutil.copy(GOLDEN / "qwen3" / "config.json", tmp_path / "hub")
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    out = tmp_path / "x.shape"
    assert export.main(["org/name", str(out), "--shape-only", "--revision", "v2"]) == 0
    assert Checkpoint(str(out)).metadata["info.source"] == b"org/name@v2"


def test_shape_refusals(tmp_path, capsys):
    assert export.main([str(tmp_path), str(tmp_path / "x"), "--shape-only"]) == 1
    assert "has no config.json" in capsys.readouterr().err
    config, path = golden_config("llama"), tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert export.main([str(tmp_path), str(path), "--shape-only"]) == 1
    assert "belongs to the source" in capsys.readouterr().err
    assert json.loads(path.read_text()) == config
    path.write_text(json.dumps(dict(config, wings=2)))
    assert export.main([str(tmp_path), str(tmp_path / "x"), "--shape-only"]) == 1
    assert "wings (2) is unknown for this family" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


# ---- what a shape cannot do ----


@pytest.fixture(scope="module")
def shape(tmp_path_factory) -> Path:
    return shape_of(tmp_path_factory.mktemp("shape"), golden_config("llama"))


@pytest.mark.parametrize(
    "what",
    [
        ["-p", "text"],
        ["--tokens", "1 2"],
        ["--chat"],
        ["--bench"],
        ["--ppl", __file__],
        ["--tokenize", "-p", "text"],
        ["--batch", os.devnull],
        ["--tokens", "1", "--logits", "OUT"],
    ],
)
def test_what_needs_weights_is_refused(shape, what, tmp_path, run):
    done = run(shape, *(tmp_path / "out" if w == "OUT" else w for w in what))
    assert done.returncode == 1 and done.stdout == b"" and not list(tmp_path.iterdir())
    assert done.stderr == (
        f"run: {shape}: a shape, which has no weights and is for --kv, --info and --check of "
        "./run; for all else export the model without --shape-only\n"
    )


def test_a_shape_cannot_draft(shape, stories, run):
    done = run(stories, "-p", "Once", "-md", shape)
    assert done.returncode == 1 and f"run: {shape}: a shape, which has no weights" in done.stderr


def test_the_library_makes_no_workspace_for_a_shape(shape):
    model = calls.model_open(str(shape).encode())
    with pytest.raises(HeadsError, match="^a shape, which has no weights .* --shape-only$"):
        calls.workspace_new(model, None)
    calls.model_close(model)


def test_a_checkpoint_cut_at_its_data_is_no_shape(stories, tmp_path, run):
    """Only a header that says so makes a shape."""
    data = stories.read_bytes()
    end = 64 + int.from_bytes(data[24:32], "little") + int.from_bytes(data[32:40], "little")
    (tmp_path / "cut.bin").write_bytes(data[:end])
    done = run(tmp_path / "cut.bin", "--kv")
    assert done.returncode == 1 and "it is truncated" in done.stderr


def test_info_says_that_it_is_a_shape(shape, stories, run):
    assert (
        f"{shape.stat().st_size:,} bytes: a shape, without weights\n"
        in run(shape, "--info").stdout.decode()
    )
    assert b"a shape" not in run(stories, "--info").stdout
    text = run(shape, "--kv").stdout.decode()
    assert "measured: nothing, since this is a shape without weights" in text


def test_tensors_that_no_file_could_hold(shape, tmp_path, run):
    """Sizes in the table of a shape are checked as in any file."""
    data = bytearray(shape.read_bytes())
    table = 64 + int.from_bytes(data[24:32], "little")
    for at, value, said in (
        (32, 1 << 63, "do not fit"),
        (24, 1 << 40, "data begin at byte"),
        (8, 1 << 30, "shape is"),
    ):
        bad = bytearray(data)
        bad[table + at : table + at + 8] = value.to_bytes(8, "little")
        (tmp_path / "bad").write_bytes(checkpoints.seal(bytes(bad)))
        done = run(tmp_path / "bad", "--kv")
        assert done.returncode == 1 and said in done.stderr, done.stderr
