"""Layers that guess next tokens: exported, refused, and never seen in a text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, on_linux
from safetensors.numpy import load_file, save_file

import export
import guess_layers
import talkers
from checkpoints import I32, Meta, build, parse
from exporter.checkpoint import Checkpoint
from exporter.config import Config
from exporter.families.guesses import ROWS, take_guesses

FAMILIES = ("deepseek_v3", "nemotron_h", "qwen3_next")
F32 = ("-ctk", "f32", "-ctv", "f32", "-t", 1)
SAMPLING = (
    ["--temp", "0"],
    ["-s", "5"],
    ["-s", "6", "--temp", "1.5", "--top-p", "1", "--repeat-penalty", "1.3"],
)


@pytest.fixture(scope="module")
def guessing(tmp_path_factory):
    """Directory and checkpoint of a family, made once."""
    made = {}

    def get(name: str) -> tuple[Path, Path]:
        if name not in made:
            out = tmp_path_factory.mktemp(name)
            directory = guess_layers.golden_with_guesses(name, out)
            assert export.main([str(directory), str(out / "model.bin"), "--dtype", "f32"]) == 0
            made[name] = directory, out / "model.bin"
        return made[name]

    return get


def golden(directory: Path) -> dict:
    return json.loads((directory / "golden.json").read_text())


def tokens(directory: Path, n: int = 96) -> list[str]:
    return ["--tokens", " ".join(map(str, golden(directory)["prompt"][:n]))]


def drafted(stderr: str) -> tuple[int, int]:
    return tuple(map(int, re.search(r"drafted (\d+), accepted (\d+)", stderr).groups()))


# ---- export ----


def test_every_family_has_a_layout():
    """Which live_guesses.py compares, too."""
    assert set(ROWS) == set(guess_layers.LAYOUTS)


def test_a_file_without_guesses_is_that_of_the_text_alone(guessing, tmp_path, capsys):
    directory, _ = guessing("deepseek_v3")
    assert export.main([str(directory), str(tmp_path / "a.bin"), "--no-guesses"]) == 0
    assert "2 layers of 36," in capsys.readouterr().out
    assert export.main([str(ROOT / "tests/golden/deepseek_v3"), str(tmp_path / "b.bin")]) == 0
    a, b = (Checkpoint(str(tmp_path / name)) for name in ("a.bin", "b.bin"))
    assert a.tensors.keys() == b.tensors.keys() and "model.guess_layers" not in a.metadata
    assert a.metadata["layer.rope"] == b.metadata["layer.rope"]


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_guesses_are_in_eight_bits(guessing, tmp_path, dtype, capsys):
    directory, _ = guessing("qwen3_next")
    assert export.main([str(directory), str(tmp_path / "model.bin"), "--dtype", dtype]) == 0
    assert "2 layers of 36 and 1 that guess" in capsys.readouterr().out
    file = Checkpoint(str(tmp_path / "model.bin"))
    assert file.metadata["model.n_layers"] == 3 and file.metadata["model.guess_layers"] == 1
    kinds = {
        name: file.tensors[name][0]
        for name in ("guess_proj", "layers.2.attn_q", "layers.2.expert_up")
    }
    assert set(kinds.values()) == {"q8"}, kinds


DAMAGES = {
    "no norm": (lambda t: t.pop("mtp.norm.weight"), "lacks the tensor mtp.norm.weight"),
    "no matrix": (
        lambda t: t.pop("mtp.layers.0.self_attn.k_proj.weight"),
        "lacks the tensor mtp.layers.0.self_attn.k_proj.weight",
    ),
    "another width": (
        lambda t: t.update({"mtp.fc.weight": np.zeros((36, 70), np.float32)}),
        r"mtp.fc.weight has shape \[36, 70\]",
    ),
    "a wider layer": (
        lambda t: t.update(
            {"mtp.layers.0.self_attn.o_proj.weight": np.zeros((36, 98), np.float32)}
        ),
        r"self_attn.o_proj.weight has shape \[36, 98\], that of the text's layers \[36, 96\]",
    ),
    "an odd tensor": (
        lambda t: t.update({"mtp.layers.0.odd.weight": np.zeros((36, 36), np.float32)}),
        "mtp.layers.0.odd.weight is like nothing in the text's layers",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_guesses_are_left_out_with_a_remark(guessing, tmp_path, damage, capsys):
    directory, _ = guessing("qwen3_next")
    change, message = DAMAGES[damage]
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")
    assert export.main([str(copy), str(tmp_path / "model.bin")]) == 0
    said = capsys.readouterr().err
    assert re.search(f"the layers that guess next tokens are left out: .*{message}", said), said
    assert "model.guess_layers" not in Checkpoint(str(tmp_path / "model.bin")).metadata


@pytest.mark.parametrize("family", ["minimax_m2", "deepseek_v3"])
def test_guesses_of_an_unknown_form_are_left_out_with_a_remark(family):
    """In a family without a row, and in one whose row says otherwise."""
    for name in (
        "mtp.0.x.weight",
        "model.mtp_block.0.x",
        "model.layers.2.mlp.x",
        "model.layers.1.x",
    ):
        c = Config({"num_hidden_layers": 2})
        assert take_guesses(c, family, {name: None}, False) == ({}, 0) and not c.remarks
        assert take_guesses(c, family, {name: None}, True) == ({}, 0)
        said = [f"the layers that guess next tokens are left out: {name} is not known"]
        assert c.remarks == (said if "layers.1" not in name else [])


def test_a_vocabulary_of_its_own_that_differs(guessing, tmp_path, capsys):
    directory, _ = guessing("deepseek_v3")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    # A copy of the model's own is left out, another one kept, one of other tokens refused.
    for rows, wanted in (("same", False), ("other", True), ("fewer", None)):
        head = tensors["lm_head.weight"].copy()
        tensors["model.layers.2.shared_head.head.weight"] = {
            "same": head,
            "other": 2 * head,
            "fewer": head[:-1],
        }[rows]
        save_file(tensors, copy / "model.safetensors")
        assert export.main([str(copy), str(tmp_path / "model.bin")]) == 0
        file, said = Checkpoint(str(tmp_path / "model.bin")), capsys.readouterr().err
        if wanted is None:
            assert (
                "are left out: tensor model.layers.2.shared_head.head.weight has shape [108, 36]"
                in said
            )
            assert "guess_proj" not in file.tensors
        else:
            assert ("guess_output" in file.tensors) == wanted and "guess_proj" in file.tensors


# ---- load ----


def edited(model: Path, out: Path, meta=(), without=()) -> Path:
    entries, found = parse(model.read_bytes())
    entries.update(
        {key: Meta(I32, len(v), np.array(v, "<i4").tobytes()) for key, v in meta.items()}
    )
    out.write_bytes(build(entries, {name: t for name, t in found.items() if name not in without}))
    return out


@pytest.mark.parametrize(
    ("meta", "without", "message"),
    [
        ({}, ["guess_proj"], "tensor guess_proj is missing"),
        ({}, ["guess_norm"], "tensor guess_norm is missing"),
        ({}, ["layers.2.attn_q"], "tensor layers.2.attn_q is missing"),
        ({"model.guess_layers": [3]}, [], "metadata model.guess_layers"),
        ({"layer.kv_source": [-1, -1, 1]}, [], "layer 2: model.guess_layers needs layers with"),
    ],
)
def test_files_that_are_refused(guessing, tmp_path, run, meta, without, message):
    _, model = guessing("qwen3_next")
    changed = edited(model, tmp_path / "model.bin", meta, without)
    done = run(changed, "--info")
    assert done.returncode != 0 and message in done.stderr


def test_an_old_file_has_none(run, exported):
    done = run(exported("llama"), "--tokens", "5 6", "-n", 4, "--guess", 3)
    assert done.returncode != 0 and "the model has no layers that guess" in done.stderr
    assert run(exported("llama"), "--tokens", "5 6", "-n", 4, "--guess", 0).returncode == 0


# ---- texts ----


@on_linux
@pytest.mark.parametrize("name", FAMILIES)
def test_guesses_change_no_text(guessing, run, name):
    """Whatever the sampling, -n and the context's edge; and some are right."""
    directory, model = guessing(name)
    right = 0
    for sampling in SAMPLING:
        for edge in (["-n", 64], ["-n", 5], ["-c", 120, "-n", 90]):
            options = [*tokens(directory), *F32, *sampling, *edge]
            want = run(model, *options, "--guess", 0)
            assert want.returncode == 0 and "drafted" not in want.stderr
            for most in (1, 3, 7):
                found = run(model, *options, "--guess", most, env=guess_layers.STOPPED)
                assert found.stdout == want.stdout, (sampling, edge, most)
                assert found.stderr.split("stopped:")[1] == want.stderr.split("stopped:")[1]
                right += drafted(found.stderr)[1]
    assert right > 100


@on_linux
@pytest.mark.parametrize("name", FAMILIES)
def test_guesses_change_no_text_of_a_batch(guessing, run, tmp_path, name):
    """Of one request at a time or eight side by side, with stops, penalties and log-probabilities."""
    directory, plain = guessing(name)
    model = talkers.make(plain, tmp_path / "model.bin", talkers.PLAIN, 512)
    made, requests = golden(directory), tmp_path / "requests.jsonl"
    lines = [
        {
            "id": i,
            "tokens": made["prompt"][: 96 - 3 * i],
            "max_tokens": 40 + i,
            **({"temperature": 0} if i % 3 == 0 else {"temperature": 0.9, "seed": i}),
            **({"repeat_penalty": 1.3, "frequency_penalty": 0.2} if i % 4 == 1 else {}),
            **({"stop": ["e", "qx", talkers.tokens(108)[107]]} if i % 2 else {}),
        }
        for i in range(10)
    ]
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    want = run(model, "--batch", requests, "-np", 1, *F32, "--guess", 0)
    assert want.returncode == 0, want.stderr
    for places in (1, 8):
        found = run(
            model, "--batch", requests, "-np", places, *F32, "--guess", 4, env=guess_layers.STOPPED
        )
        assert found.returncode == 0, found.stderr
        assert found.stdout == want.stdout
        said = re.search(r"drafted (\d+), accepted (\d+)$", found.stderr.strip())
        assert 0 < int(said[2]) < int(said[1])
    assert "drafted" not in want.stderr
    stopped = [json.loads(line)["stopped"] for line in want.stdout.splitlines()]
    assert "stop" in stopped and "max_tokens" in stopped


@on_linux
@pytest.mark.parametrize("name", FAMILIES)
def test_guesses_change_no_conversation(guessing, run, tmp_path, name):
    model = talkers.make(guessing(name)[1], tmp_path / "model.bin", talkers.PLAIN, 512)
    typed, right = b"what is it?\na2 and b2\ngo on. go on.\n", 0
    for sampling in (["--temp", "0"], ["-s", "5", "--temp", "1.5"]):
        options = ["--chat", "-n", 40, *F32, *sampling]
        want = run(model, *options, "--guess", 0, input=typed)
        assert want.returncode == 0, want.stderr
        for most in (1, 3, 7):
            found = run(model, *options, "--guess", most, input=typed, env=guess_layers.STOPPED)
            assert found.stdout == want.stdout, (sampling, most)
            right += drafted(found.stderr)[1]
    assert right > 0


def test_info_names_the_layers_that_guess(guessing, run):
    _, model = guessing("qwen3_next")
    lines = run(model, "--info").stdout.decode().splitlines()
    layers = [line for line in lines if line.startswith("layer")]
    assert layers[-1].startswith("layer 2 ") and layers[-1].endswith("; guesses next tokens")
    assert not any("guesses" in line for line in layers[:-1])
    facts = json.loads(run(model, "--info", "--json").stdout)
    assert (facts["n_layers"], facts["guess_layers"], len(facts["layers"])) == (2, 1, 2)


@on_linux
@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_session_guesses_as_if_it_had_run(guessing, run, tmp_path, name):
    directory, model = guessing(name)
    cache = tmp_path / "session"
    first = [*tokens(directory, 80), *F32, "--temp", "0", "-n", 0, "--prompt-cache", cache]
    assert run(model, *first, env=guess_layers.STOPPED).returncode == 0
    options = [*tokens(directory), *F32, "--temp", "0", "-n", 64]
    want = run(model, *options, env=guess_layers.STOPPED)
    found = run(
        model, *options, "--prompt-cache", cache, "--prompt-cache-ro", env=guess_layers.STOPPED
    )
    assert found.stdout == want.stdout and "from " in found.stderr
    assert drafted(found.stderr) == drafted(want.stderr) and drafted(want.stderr)[1] > 20
    # Without them, or with some that are damaged, the text is the same.
    data = bytearray(cache.read_bytes())
    data[-40] ^= 1
    cache.write_bytes(data)
    for most in (0, 3):
        again = run(
            model,
            *options,
            *("--prompt-cache", cache, "--prompt-cache-ro", "--guess", most),
            env=guess_layers.STOPPED,
        )
        assert again.stdout == want.stdout


def test_rows_that_wait_for_long_are_forgotten(tmp_path):
    """But the last 32 to 63: of a prompt, and of a text that has had guesses."""
    directory = tmp_path / "plain"
    shutil.copytree(ROOT / "tests/golden/deepseek_v3", directory)
    guess_layers.add_guesses(directory)
    model = tmp_path / "model.bin"
    assert export.main([str(directory), str(model), "--dtype", "f32"]) == 0
    ids = np.random.default_rng(3).integers(0, 108, 140).tolist()

    def after(**how) -> list[list[int]]:
        return guess_layers.guesses_after(model, ids, 3, **how)[-20:]

    wanted = after(begin=64)  # rows 64 to 119 are those that wait after 120 tokens
    assert after(chunk=16, rest=(0, 119)) == wanted
    assert after(rest=(0, 119)) == wanted
    assert after() != wanted != after(begin=72)
    # The last guess is made after the token at 19, so row 20 is the first that waits; when row 84
    # comes, rows 52 on are kept, and from 116 on rows 84.
    assert after(rest=(20, 119)) == after(begin=84)
