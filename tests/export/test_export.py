"""export.py: what it reports and makes, pooling of KV heads, random weights, the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, on_linux
from golden_copies import GOLDEN, copy, edit_config, edit_tensors, exported, refusal, same
from safetensors.numpy import save_file

import export
import exporter.checkpoint
from exporter import random_weights
from exporter.quantize import panels
from exporter.checkpoint import Checkpoint
from exporter.templates.jinja import chat_template

EXPORT = ROOT / "export.py"


# ---- what a good export says, and what it makes --------------------------------------------------


@pytest.mark.parametrize(
    "dtype, error", [("bf16", (0.10, 0.20)), ("q8", (0.3, 0.5)), ("q4", (5, 8))]
)
def test_export_reports_and_the_engine_runs_it(dtype, error, tmp_path, capsys, run):
    out = tmp_path / "x.bin"
    assert export.main([str(GOLDEN / "qwen2"), str(out), "--dtype", dtype]) == 0
    said = capsys.readouterr().out
    assert (
        "qwen2: qwen2, 2 layers of 36, 6 query and 3 KV heads (GQA) of 6, feed-forward 49, "
        "vocabulary 149" in said
    )
    assert f"{out.stat().st_size:,} bytes" in said
    file = Checkpoint(str(out))
    bits = (
        8
        * sum(t[4] for t in file.tensors.values())
        / sum(t[1] * t[2] for t in file.tensors.values())
    )
    assert f"{bits:.2f} bits per weight" in said
    percent = float(said.split("relative quantization error: ")[1].split(" %")[0])
    assert error[0] < percent < error[1]
    assert {t[0] for name, t in file.tensors.items() if "norm" in name or "bias" in name} == {"f32"}
    assert (
        file.metadata["info.source"] == b"qwen2" and file.metadata["info.dtype"] == dtype.encode()
    )
    assert run(out, "--check").returncode == 0
    assert run(out, "--tokens", "5 6 7", "-n", 3, "--temp", 0).returncode == 0


def test_learned_positions_stay_f32(tmp_path):
    assert export.main([str(GOLDEN / "gpt2"), str(tmp_path / "x.bin")]) == 0
    tensors = Checkpoint(str(tmp_path / "x.bin")).tensors
    assert tensors["embed_pos"][0] == "f32" and tensors["embed"][0] == "q8"


def test_chat_template_goes_into_the_file(tmp_path):
    directory = copy(tmp_path, "llama")
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "chat_template": [
                    {"name": "tool_use", "template": "no"},
                    {"name": "default", "template": "{{ messages }}\ud800"},
                ]
            }
        )
    )
    assert chat_template(str(directory)) == "{{ messages }}\ud800"
    assert export.main([str(directory), str(tmp_path / "x.bin")]) == 0
    assert Checkpoint(str(tmp_path / "x.bin")).metadata["chat.template"] == b"{{ messages }}?"
    (directory / "chat_template.jinja").write_text("from a file")
    assert chat_template(str(directory)) == "from a file"


@on_linux
def test_memory_stays_near_one_tensor(tmp_path):
    """100 MB of weights in tensors of 4 MB at most, in a process that needs about 40 MB to begin
    with."""
    layers, d, ff = 12, 512, 2048
    rng = np.random.default_rng(4)
    block = rng.standard_normal(ff * d).astype(np.float16)
    norm = np.ones(d, np.float16)

    def weights(*shape):
        return block[: shape[0] * shape[1]].reshape(shape)

    tensors = {"model.embed_tokens.weight": weights(1000, d), "model.norm.weight": norm}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors |= {p + f"self_attn.{n}_proj.weight": weights(d, d) for n in "qkvo"}
        tensors |= {p + f"mlp.{n}_proj.weight": weights(ff, d) for n in ("gate", "up")}
        tensors[p + "mlp.down_proj.weight"] = weights(d, ff)
        tensors |= {p + "input_layernorm.weight": norm, p + "post_attention_layernorm.weight": norm}
    save_file(tensors, tmp_path / "model.safetensors")
    config = dict(
        model_type="llama",
        vocab_size=1000,
        hidden_size=d,
        intermediate_size=ff,
        num_hidden_layers=layers,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = (  # two cores, since each has slabs of its own; VmHWM, because ru_maxrss would begin at
        # what pytest itself has
        "import os, sys; os.cpu_count = lambda: 2; sys.path.insert(0, sys.argv[1]); "
        "import export; status = "
        "export.main(sys.argv[2:]); "
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(status)"
    )
    arguments = [EXPORT.parent, tmp_path, tmp_path / "x.bin", "--dtype", "bf16"]
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 80_000, "KB of memory at the peak"


# ---- pooling -------------------------------------------------------------------------------------


def test_pooled_heads_are_the_means(tmp_path, capsys, run):
    directory = copy(tmp_path, "llama")
    edit_config(directory, attention_bias=True)
    rng = np.random.default_rng(5)
    edit_tensors(
        directory,
        lambda t: t.update(
            {
                f"model.layers.{i}.self_attn.{n}_proj.bias": rng.standard_normal(40).astype(
                    np.float32
                )
                for i in range(2)
                for n in "qkvo"
            }
        ),
    )
    before = exported(directory)
    capsys.readouterr()
    for n in (4, 2, 1):
        after = exported(directory, "--kv-heads", str(n))
        said = capsys.readouterr().out
        assert (
            f"pooled: 4 KV heads to {n}" in said
            and f"KV cache 320 to {80 * n} bytes per token (f16)" in said
        )
        assert after.metadata["layer.n_kv_heads"].tolist() == [n]
        for name in before.tensors:
            expected = before.tensor(name)
            if ".attn_k" in name or ".attn_v" in name:
                expected = (
                    expected.reshape(n, 4 // n, 10, -1).mean(1).reshape(-1, *expected.shape[1:])
                )
            assert np.allclose(after.tensor(name), expected, rtol=1e-6, atol=1e-7), name
        assert run(tmp_path / "exported.bin", "--tokens", "3 4 5", "-n", 2).returncode == 0
    assert same(before, exported(directory, "--kv-heads", "4"))
    assert "--kv-heads 3 does not divide the model's 4 KV heads; possible: 1, 2, 4" in refusal(
        capsys, directory, tmp_path / "x.bin", "--kv-heads", "3"
    )
    assert "--kv-heads 0 does not divide" in refusal(
        capsys, directory, tmp_path / "x.bin", "--kv-heads", "0"
    )
    assert "--kv-heads: the model has no attention" in refusal(
        capsys, GOLDEN / "mamba2", tmp_path / "x.bin", "--kv-heads", "1"
    )


def test_fused_and_transposed_heads_are_pooled_too(tmp_path):
    before = exported(copy(tmp_path, "gpt2"))
    after = exported(tmp_path / "gpt2", "--kv-heads", "1")
    for name in ("attn_k", "attn_v.bias"):
        w = before.tensor("layers.1." + name)
        assert np.allclose(
            after.tensor("layers.1." + name),
            w.reshape(3, 12, -1).mean(0).reshape(12, *w.shape[1:]),
            atol=1e-7,
        )


# ---- random weights ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, changes",
    [
        ("deepseek_v3", {"first_k_dense_replace": 2}),
        ("qwen3_next", {"mlp_only_layers": [0, 1]}),
        ("kimi_linear", {"layer_types": ["linear_attention"] * 3}),
        ("lfm2_moe", {"num_dense_layers": 2}),
    ],
)
def test_what_no_layer_has_is_not_in_the_file(name, changes, tmp_path, run):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    out = tmp_path / "x.bin"
    assert export.main(["--random", str(tmp_path / "config.json"), str(out)]) == 0
    assert run(out, "--info").returncode == 0


def random_file(path: Path, *options: str) -> Path:
    assert export.main(["--random", "stories-260k", str(path), *options]) == 0
    return path


@pytest.mark.parametrize(
    "name, millions, heads",
    [
        ("stories-260k", 0.260, (8, 4, 8)),
        ("smollm-135m", 134.5, (9, 3, 64)),
        ("smollm-360m", 361.8, (15, 5, 64)),
        ("qwen3-0.6b", 596.0, (16, 8, 128)),
        ("llama-1b", 1038.7, (32, 8, 64)),
        ("tinyllama-1.1b", 1100.0, (32, 4, 64)),
        ("llama-3.2-1b", 1235.8, (32, 8, 64)),
        ("moe-1b", 1044.8, (16, 8, 64)),
        ("mamba2-130m", 129.0, (1, 1, 1)),
        ("minilm", 22.56, (12, 12, 32)),
    ],
)
def test_random_shapes_have_the_weights_of_their_models(name, millions, heads):
    source = random_weights.open_random(name, 1)
    count = sum(int(np.prod(t.shape)) for t in source.tensors.values())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)
    assert (source.knobs.n_heads, source.knobs.n_kv_heads, source.knobs.head_dim) == heads


def test_a_random_encoder_has_no_head_and_no_shape(tmp_path, capsys):
    assert "output" not in random_weights.open_random("minilm", 1).tensors
    assert export.main(["--random", "minilm", str(tmp_path / "x"), "--shape-only"]) == 1
    assert "bert is an encoder, which keeps no KV cache" in capsys.readouterr().err


def test_random_weights_are_those_of_the_seed(tmp_path):
    first = random_file(tmp_path / "a").read_bytes()
    assert random_file(tmp_path / "b", "--seed", "1").read_bytes() == first
    assert random_file(tmp_path / "c", "--seed", "2").read_bytes() != first
    assert b"random weights in the shape of stories-260k, seed 1" in first


@pytest.mark.parametrize("dtype", panels.WEIGHTS)
def test_random_weights_are_packed_as_any_others(dtype, tmp_path, monkeypatch):
    """Panel by panel from the pool, in slabs, and the last panel of a matrix whose rows do not fill
    it."""
    monkeypatch.setattr(exporter.checkpoint, "SLAB", 1 << 12)
    file = Checkpoint(str(random_file(tmp_path / "x", "--dtype", dtype)))
    for name, tensor in random_weights.open_random("stories-260k", 1).tensors.items():
        if len(tensor.shape) == 2:
            whole, kind = tensor.array(), exporter.checkpoint.dtype_of(name, tensor, dtype)
            kind = "q8" if dtype == "q4" and name.endswith("attn_v") else kind
            packed = panels.unpack(panels.pack(whole, kind)[0], kind, *whole.shape)
            assert np.array_equal(file.tensor(name), packed), name
            assert whole.std() == pytest.approx(whole.shape[1] ** -0.5, rel=0.1)
            assert abs(whole.mean()) < 0.1 * whole.std()


def test_random_weights_of_fewer_kv_heads(tmp_path):
    file = Checkpoint(str(random_file(tmp_path / "x", "--kv-heads", "1")))
    assert file.metadata["layer.n_kv_heads"] == 1 and file.tensors["layers.4.attn_k"][1] == 8


def test_random_refusals(tmp_path, capsys):
    assert export.main(["--random", "gpt-5", str(tmp_path / "x")]) == 1
    assert (
        "--random gpt-5: no such shape; there are stories-260k, smollm-135m"
        in capsys.readouterr().err
    )
    assert export.main(["--random", "stories-260k", str(tmp_path / "x"), "--seed", "-1"]) == 1
    assert "--seed -1: expected a whole number from 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "give SRC and OUT; see "),
        (["a"], "give SRC and OUT, or --random SHAPE and OUT"),
        (["a", "b", "--random", "llama-1b"], "give SRC and OUT, or --random SHAPE and OUT"),
        (
            ["a", "--random", "llama-1b", "--tokenizer", "t"],
            "--tokenizer: random weights have none",
        ),
        (["a", "--random", "llama-1b", "--revision", "x"], "--revision: random weights have none"),
        (["a", "b", "--shape-only", "--tokenizer", "t"], "--tokenizer: a shape has none"),
        (["a", "b", "--seed", "1"], "--seed belongs to --random"),
        (["a", "b", "--dtype", "q7"], "argument --dtype: invalid choice: 'q7'"),
        (["a", "b", "--kv-heads", "x"], "argument --kv-heads: invalid int value: 'x'"),
        (["a", "b", "--fast"], "unrecognized arguments: --fast; see "),
        (["a", "b", "--type", "q4"], "unrecognized arguments: --type q4; did you mean --dtype?"),
    ],
)
def test_wrong_usage(args, said, capsys):
    with pytest.raises(SystemExit) as stop:
        export.main(args)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"export: {said}")


def test_as_a_command(tmp_path):
    done = subprocess.run(
        [sys.executable, EXPORT, GOLDEN / "gemma", tmp_path / "x.bin", "--dtype", "q4"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "gemma: gemma, 2 layers of 34" in done.stdout
    done = subprocess.run(
        [sys.executable, EXPORT, tmp_path, tmp_path / "y.bin"], capture_output=True, text=True
    )
    assert (
        done.returncode == 1
        and done.stderr
        == f"export: {tmp_path} has no config.json, so it is no Hugging Face checkpoint\n"
    )


def test_without_packages_it_says_what_to_do(tmp_path):
    """A bare Python; with a .venv beside export.py, that one's Python runs it."""
    shutil.copy(ROOT / "export.py", tmp_path)
    (tmp_path / "exporter").symlink_to(ROOT / "exporter")
    command = [sys.executable, "-S", "-E", tmp_path / "export.py", "--help"]  # -S: no packages
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "export: this Python has no numpy and no tqdm and no jinja2; "
        "run make venv, which makes .venv\n"
    )
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.symlink_to(sys.executable)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", tmp_path / ".venv")
    (tmp_path / ".venv" / "lib").symlink_to(Path(sys.prefix) / "lib")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: export.py"), done.stderr
    (tmp_path / ".venv" / "lib").unlink()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "; run make venv" in done.stderr
