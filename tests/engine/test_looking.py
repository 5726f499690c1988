"""Heads switched off (--off), what that costs (--heads), the likeliest next tokens (--probs), and
what each layer would say (--lens). tests/reference/live_models.py compares all of it with
transformers; here a head that is off must be one whose columns of the output matrix are zero."""

from __future__ import annotations

import ctypes
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import export
import heads
from conftest import ROOT
from heads._native import (
    Enter,
    HeadsError,
    LayerInput,
    LensRow,
    Probe,
    Run,
    TakeLens,
    byref,
    calls,
    int_array,
)
from test_golden import GOLDEN

F32 = ("-ctk", "f32", "-ctv", "f32")
IDS = [3, 17, 9, 9, 21, 3, 17, 30]
# Family, the list, and the output matrices whose heads it names, with the heads; numbers of a head.
CASES = [
    ("llama", "0.1,1.3", {"layers.0.self_attn.o_proj": [1], "layers.1.self_attn.o_proj": [3]}, 10),
    ("deepseek_v2", "1.*", {"layers.1.self_attn.o_proj": range(4)}, 14),
    ("gpt2", "0.0,0.2", {"h.0.attn.c_proj": [0, 2]}, 12),
    ("gpt_oss", "1.0", {"layers.1.self_attn.o_proj": [0]}, 10),
    (
        "encoder_decoders/t5",
        "e1.0,x0.2,1.1",
        {
            "encoder.block.1.layer.0.SelfAttention.o": [0],
            "decoder.block.0.layer.1.EncDecAttention.o": [2],
            "decoder.block.1.layer.0.SelfAttention.o": [1],
        },
        10,
    ),
    ("encoders/modernbert", "0.1", {"layers.0.attn.Wo": [1]}, 12),
]


def spelled(ids) -> str:
    return " ".join(map(str, ids))


def rows(run, model, *args, tokens=IDS) -> bytes:
    target = () if "t5" not in str(model) else ("--target", spelled(tokens))
    out = Path(model).with_suffix(".rows")
    done = run(model, "--tokens", spelled(tokens), *target, "--logits", out, *args)
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


@pytest.mark.parametrize("name, off, zeroed, width", CASES, ids=[c[0] for c in CASES])
def test_a_head_off_gives_nothing_to_the_output_matrix(name, off, zeroed, width, tmp_path, run):
    made = {}
    for kind in ("whole", "edited"):
        folder = tmp_path / kind
        shutil.copytree(GOLDEN / name, folder)
        tensors = load_file(folder / "model.safetensors")
        for matrix, numbers in zeroed.items() if kind == "edited" else ():
            found = [k for k in tensors if k.endswith(f"{matrix}.weight")]
            assert len(found) == 1, (matrix, list(tensors))
            columns = tensors[found[0]].T if name != "gpt2" else tensors[found[0]]
            for head in numbers:
                columns[head * width : (head + 1) * width] = 0
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        made[kind] = folder.with_name(f"{Path(name).name}-{kind}.bin")
        assert export.main([str(folder), str(made[kind]), "--dtype", "f32"]) == 0
    without = rows(run, made["whole"], "--off", off)
    assert without != rows(run, made["whole"])
    assert without == rows(run, made["edited"])
    assert without == rows(run, made["whole"], "--off", off, "-t", 1, "-b", 3)


@pytest.mark.parametrize(
    "off, says",
    [
        ("4.0", '"4.0": there are layers 0..3'),
        ("1.8", '"1.8": the layer has heads 0..7'),
        ("0.0,", 'expected LAYER.HEAD, such as 5.3, or 5.* for all of a layer, found ""'),
        ("1.*2", 'found "1.*2"'),
        ("99999999999.0", 'found "99999999999.0"'),
        (" 1.2", 'found " 1.2"'),
        ("e0.0", '"e0.0": the model has no encoder'),
        ("x1.0", '"x1.0": layer 1 has no attention to a source'),
    ],
)
def test_a_wrong_list_is_a_sentence(off, says, run, stories):
    done = run(stories, "-p", "One", "--off", off)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("run: heads off: ") and says in done.stderr


def test_a_layer_without_heads(run, exported):
    done = run(exported("mamba2"), "--tokens", "1", "--off", "0.0")
    assert '"0.0": layer 0 has no attention, and so no heads' in done.stderr


@pytest.mark.parametrize(
    "args, says",
    [
        (["--off", "0.0", "--prompt-cache", "x"], "--off and --prompt-cache: give one of them"),
        (["--probs", "2", "-n", "0", "--prompt-cache", "x"], "--probs with -n 0 and"),
        (["--probs", "0"], "--probs wants a number from 1 to 100"),
        (["--lens", "x.txt"], "--lens wants a file whose name ends in .json or .f32"),
        (["--lens", "x.json", "--heads", "x.json"], "--lens and --heads: one thing at a time"),
    ],
)
def test_wrong_usage(args, says, run, stories, tmp_path):
    done = run(stories, "-p", "One", *args, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr
    assert not list(tmp_path.iterdir())


# ---- the library and the module ----


def test_sessions_of_the_module(stories, tmp_path):
    with heads.Model(stories) as model:
        whole, off = model.session(), model.session(off="1.*,0.2")
        logits = [s.feed("Once upon a time", all_rows=True) for s in (whole, off)]
        assert not np.array_equal(logits[0][0], logits[1][0])
        fork = off.fork(2)
        assert np.array_equal(fork.feed(model.encode("Once upon a time")[2:]), logits[1][-1])
        for bad, says in (("9.0", "there are layers 0..3"), (3, "off: expected"), ("\0", "off")):
            with pytest.raises(heads.InputError, match=says):
                model.session(off=bad)
        with pytest.raises(HeadsError, match="heads switched off is not saved"):
            off.save(tmp_path / "x")
        assert not list(tmp_path.iterdir())
        whole.save(tmp_path / "x")
        with pytest.raises(heads.InputError, match="all its heads"):
            model.session(tmp_path / "x", off="0.0")


def test_probs_and_lens_of_the_module(stories):
    text = "Once upon a time"
    with heads.Model(stories) as model:
        for off in (None, "0.1,2.*"):
            rows = model.session(off=off).feed(text, all_rows=True)
            said = model.lens(text, off=off)
            assert said.shape == (len(rows), 4, model.shape.vocab_size)
            assert np.array_equal(said[:, -1], rows)
            p = np.exp(log_softmax(rows))
            for found, want in zip(model.probs(text, 3, off=off), p):
                assert [i for i, _ in found] == np.argsort(-want, kind="stable")[:3].tolist()
                assert [x for _, x in found] == pytest.approx(np.sort(want)[:-4:-1].tolist())
        with pytest.raises(heads.InputError, match="lens: 5 tokens, 4 layers and a vocabulary of"):
            model.lens(text, max_bytes=100)
        with pytest.raises(heads.InputError, match="k: expected"):
            model.probs(text, 0)


def test_neighbours_keep_their_bits_and_texts_their_heads(stories):
    """Three texts in one pass, each with its own list; a list cannot change under a text."""
    with heads.Model(stories) as model, model._turn() as opened:
        alone, w = [], opened.workspace
        lists = (None, b"0.1", b"1.*,3.7")
        for off in lists:
            s = calls.sequence_new(w, False)
            calls.sequence_off(s, off)
            logits = calls.forward(s, int_array(IDS), len(IDS), len(IDS))
            alone.append(np.ctypeslib.as_array(logits, (len(IDS), model.stride)).tobytes())
            with pytest.raises(heads.InputError, match="before a text begins, and this one has 8"):
                calls.sequence_off(s, b"0.0")
            calls.sequence_rewind(s, 0)
            calls.sequence_off(s, b"")
            calls.sequence_free(s)
        together = [calls.sequence_new(w, False) for _ in lists]
        for s, off in zip(together, lists):
            calls.sequence_off(s, off)
        runs = (Run * 3)(*(Run(s, int_array(IDS), len(IDS), len(IDS)) for s in together))
        logits = calls.forward_runs(w, runs, 3)
        found = np.ctypeslib.as_array(logits, (3, len(IDS), model.stride))
        assert [x.tobytes() for x in found] == alone
        assert len(set(alone)) == 3
        for s in together:
            calls.sequence_free(s)


def test_the_lens_of_the_library_changes_no_bit(stories):
    with heads.Model(stories) as model, model._turn() as opened:
        w, n = opened.workspace, len(IDS)
        seen = []

        def take(context, row):
            logits = np.ctypeslib.as_array(row[0].logits, (model.shape.vocab_size,))
            seen.append((context, row[0].layer, row[0].position, logits.tobytes()))

        got = []
        for probe in (None, Probe(lens=TakeLens(take), context=77)):
            calls.workspace_probe(w, byref(probe) if probe else None)
            s = calls.sequence_new(w, False)
            logits = calls.forward(s, int_array(IDS), n, 2)
            rows = np.ctypeslib.as_array(logits, (2, model.stride))[:, : model.shape.vocab_size]
            got.append([row.tobytes() for row in rows])
            calls.sequence_free(s)
        calls.workspace_probe(w, None)
        assert got[0] == got[1]
        layers = range(model.shape.n_layers)
        assert [row[:3] for row in seen] == [(77, i, at) for i in layers for at in (n - 2, n - 1)]
        assert [row[3] for row in seen[-2:]] == got[0]
        assert ctypes.sizeof(LensRow) == 24


def test_a_pass_entered_by_the_library(stories):
    """With what came into a layer, a pass has the bits that it had; with another text's stream
    those of the other; and with no layer left what the lens says there."""
    other = IDS[::-1]
    with heads.Model(stories) as model, model._turn() as opened:
        w, n_layers, inputs, said = opened.workspace, model.shape.n_layers, {}, {}

        def run(ids, enter=None, lens=None):
            probe = Probe(lens=TakeLens(lens or 0), enter=Enter(enter or 0), context=77)
            s = calls.sequence_new(w, False)
            calls.workspace_probe(w, byref(probe))
            logits = calls.forward(s, int_array(ids), len(ids), 1)
            calls.workspace_probe(w, None)
            calls.sequence_free(s)
            return logits[: model.shape.vocab_size]

        def rows_of(given):
            x = given.contents
            assert x.n == len(IDS) and x.width == model.shape.n_embd
            return np.ctypeslib.as_array(x.rows, (x.n, x.stride))[:, : x.width]

        def note(context, given):
            assert context == 77
            inputs[given.contents.layer] = rows_of(given).copy()
            return given.contents.layer

        def keep(_, row):
            said[row[0].layer] = row[0].logits[: model.shape.vocab_size]

        whole = run(IDS)
        assert run(IDS, note, keep) == whole and list(inputs) == list(range(n_layers))
        for layer in range(n_layers):

            def replace(_, given):
                if given.contents.layer == layer:
                    rows_of(given)[:] = inputs[layer]
                return given.contents.layer

            def jump(_, given):
                if given.contents.layer:
                    return 0  # a pass does not go back
                rows_of(given)[:] = inputs[layer]
                return layer

            def leave(_, given):
                return given.contents.layer if given.contents.layer < layer else n_layers

            assert run(other) != whole == run(other, replace) == run(other, jump)
            assert not layer or run(IDS, leave) == said[layer - 1]
        assert said[n_layers - 1] == whole and ctypes.sizeof(LayerInput) == 32


# ---- the command line ----


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def logits_of(run, model, folder, *args) -> np.ndarray:
    done = run(model, *args, "--logits", folder / "logits")
    assert done.returncode == 0, done.stderr
    shape = [int(n) for n in done.stderr.split("float32 [")[1].split("]")[0:1]]
    return np.fromfile(folder / "logits", "<f4").reshape(shape[0], -1)


def test_probabilities_of_a_prompt(run, stories, tmp_path):
    text = ("-p", "Once upon a time, a fox")
    ids = [int(i) for i in run(stories, *text, "--tokenize").stdout.split()]
    p = np.exp(log_softmax(logits_of(run, stories, tmp_path, *text)))
    lines = run(stories, *text, "-n", 0, "--probs", 4, "--json", "-b", 3).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [x["position"] for x in found] == list(range(len(ids)))
    assert [x["id"] for x in found] == [*ids[1:], None] and found[-1]["probability"] is None
    for i, x in enumerate(found):
        best = np.argsort(-p[i], kind="stable")[:4].tolist()
        assert [t["id"] for t in x["likeliest"]] == best
        for t in x["likeliest"]:
            assert t["probability"] == pytest.approx(p[i, t["id"]], rel=1e-5)
        if x["id"] is not None:
            assert x["probability"] == pytest.approx(p[i, x["id"]], rel=1e-5)
    assert found[0]["text"] == "Once" and found[1]["text"] == " upon"


@pytest.mark.parametrize("more", [(), ("--lookup", 4)])
def test_probabilities_of_generated_tokens(run, stories, more):
    args = (stories, "-p", "Once upon a time", "-s", 5, "-n", 12)
    plain = run(*args, "--ids").stdout.decode().split()
    done = run(*args, "--probs", 2, "--json", *more)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [str(x["id"]) for x in found] == plain[-12:]
    assert found[0]["position"] == len(plain) - 13
    assert "generated 12" in done.stderr
    columns = run(*args, "--probs", 2, *more).stdout.decode().splitlines()
    assert len(columns) == 12 and all(line.count("  |  ") == 1 for line in columns)
    assert columns[0].split()[0] == str(len(plain) - 13)


def test_the_lens(run, stories, tmp_path):
    text = ("-p", "Once upon a time, a fox")
    logits = logits_of(run, stories, tmp_path, *text)
    for name in ("x.f32", "x.json"):
        assert run(stories, *text, "--lens", tmp_path / name, "-b", 3).returncode == 0
    last = np.fromfile(tmp_path / "x.f32", "<f4").reshape(4, -1)
    assert last[-1].tobytes() == logits[-1].tobytes()
    found = json.loads((tmp_path / "x.json").read_text())
    assert len(found["positions"]) == len(logits) and found["model"] == "stories.bin"
    answers = logits.argmax(1)
    for i, position in enumerate(found["positions"]):
        assert [layer["layer"] for layer in position["layers"]] == [0, 1, 2, 3]
        assert position["layers"][-1]["rank"] == 1
        assert position["layers"][-1]["likeliest"][0]["id"] == answers[i]
    p = np.exp(log_softmax(last))
    for layer, x in enumerate(found["positions"][-1]["layers"]):
        best = np.argsort(-last[layer], kind="stable")
        assert [t["id"] for t in x["likeliest"]] == best[:5].tolist()
        assert x["rank"] == 1 + best.tolist().index(answers[-1])
        for t in x["likeliest"]:
            assert t["probability"] == pytest.approx(p[layer, t["id"]], rel=1e-5)


def loss(run, model, folder, ids, *args) -> np.ndarray:
    p = log_softmax(logits_of(run, model, folder, "--tokens", spelled(ids), *args))
    return -p[np.arange(len(ids) - 1), ids[1:]]


def test_costs_are_losses_without_a_head(run, tmp_path):
    model = ROOT / "models" / "heads.bin"
    ids = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9]
    for args in ((), ("--off", "0.2")):
        page = tmp_path / "x.json"
        assert run(model, "--tokens", spelled(ids), "--heads", page, *args).returncode == 0
        layers = json.loads(page.read_text())["layers"]
        whole = loss(run, model, tmp_path, ids, *args)
        for layer in layers:
            for head in layer["heads"]:
                off = ",".join([*args[1:], f"{layer['layer']}.{head['head']}"])
                want = loss(run, model, tmp_path, ids, "--off", off) - whole
                assert np.abs(np.array(head["token_costs"]) - want).max() < 2e-4 * whole.max()
                assert head["cost"] == pytest.approx(want.mean(), abs=1e-5)
    run(model, "--tokens", spelled(ids), "--heads", page, "--no-cost")
    assert "cost" not in page.read_text()


def test_costs_of_a_model_that_reads_a_source(run, tmp_path):
    """Its encoder's heads and those that look at the source have costs too; an encoder's have none."""
    page, source, target = tmp_path / "x.json", "3 4 5 6", "1 7 8 9"
    model = tmp_path / "t5.bin"
    assert export.main([str(GOLDEN / "encoder_decoders" / "t5"), str(model)]) == 0
    args = (model, "--tokens", source, "--target", target)
    assert run(*args, "--heads", page).returncode == 0
    layers, prefix = json.loads(page.read_text())["layers"], {"encoder": "e", "cross": "x"}
    ids = [int(i) for i in target.split()]
    whole, seen = None, set()
    for off in (None, "e0.1", "0.2", "x1.0"):
        done = run(*args, "--logits", tmp_path / "l", *(("--off", off) if off else ()))
        assert done.returncode == 0, done.stderr
        p = log_softmax(np.fromfile(tmp_path / "l", "<f4").reshape(len(ids), -1))
        without = -p[np.arange(len(ids) - 1), ids[1:]]
        whole = without if whole is None else whole
        for layer in layers if off else ():
            for head in layer["heads"]:
                name = f"{prefix.get(layer['kind'], '')}{layer['layer']}.{head['head']}"
                if name == off:
                    seen.add(name)
                    assert head["cost"] == pytest.approx((without - whole).mean(), abs=1e-5)
    assert seen == {"e0.1", "0.2", "x1.0"}
    encoder = tmp_path / "encoder.bin"
    assert export.main([str(GOLDEN / "encoders" / "modernbert"), str(encoder)]) == 0
    assert run(encoder, "--tokens", source, "--heads", page).returncode == 0
    assert "cost" not in page.read_text()
