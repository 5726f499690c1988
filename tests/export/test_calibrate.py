"""Four bits by what they do: what a probe sees of products, error feedback, costs, budgets, and an
export that is interrupted. The reference for products is numpy in double precision."""

from __future__ import annotations

import json
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import export
import test_encoder_decoders
from alarms import interrupted_after
from conftest import ROOT, in_part, takes_long
from exporter import convert
from exporter.quantize import calibrate, codes, engine, panels, trials
from exporter.quantize.beginnings import BEGINNINGS
from exporter.quantize.budget import BITS, WIDTHS, choose, curve, described, room_of, shapes_of
from exporter.checkpoint import Checkpoint
from exporter.native import native
from exporter.quantize.engine import Text
from exporter.quantize.feedback import product_error, turned_rows, with_feedback
from exporter.quantize.panels import quantize_blocks, hadamard
from exporter.quantize.steps import Folder
from exporter.quantize.work import Progress
from exporter.tensor import ExportError
from test_encoders import with_texts

STORIES = ROOT / "models" / "hf"
GOLDEN = ROOT / "tests" / "golden"
FEW = calibrate.Amounts(texts=14, length=64, held=2, measured=32, batch=7, least=4)


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    monkeypatch.setattr(calibrate, "AMOUNTS", FEW)


def exported(source: Path, out: Path, *options: str) -> Path:
    assert export.main([str(source), str(out), *options]) == 0
    return out


def of_rows(ids: np.ndarray) -> list[Text]:
    return [Text(row) for row in ids.tolist()]


def inputs_of(path: Path, texts: list[Text]) -> dict[tuple, np.ndarray]:
    """Every product's input rows, by the matrices and which of a stack."""
    found: dict[tuple, np.ndarray] = {}

    def take(names, which, rows):
        assert (tuple(names), which) not in found
        found[tuple(names), which] = rows.copy()

    with engine.Engine(str(path), engine.longest(texts), 1 << 12, 1) as e:
        e.watch(texts, take)
    return found


# ---- the probe ----


@pytest.mark.parametrize(
    "name", ["llama", "deepseek_v3", "qwen3_next", "mamba2", "falcon_mamba", "granitemoe", "lfm3"]
)
def test_every_product_is_seen(name, tmp_path):
    """By its matrices' names, with rows as wide as they; each matrix once in a pass, and experts
    once each."""
    path = exported(GOLDEN / name, tmp_path / "x.bin", "--dtype", "f32")
    texts = of_rows(np.arange(30).reshape(2, 15) % 40 + 3)
    tensors, found = Checkpoint(str(path)).tensors, inputs_of(path, texts)
    seen = [matrix for names, which in found for matrix in names if which == 0]
    assert len(seen) == len(set(seen))
    for (names, which), rows in found.items():
        assert {tensors[matrix][2] for matrix in names} == {rows.shape[1]}
        assert len(rows) == 30 or "expert" in names[0] or "_up" in names[0]
    vectors = {n for n, (_, rows, *_) in tensors.items() if rows == 1}
    lookups = {"embed"} if "output" in tensors else set()
    stacks = {n for n in tensors if "expert" in n}  # of which some may see no token
    missing = set(tensors) - set(seen) - vectors - lookups - stacks - {"output", "embed"}
    assert not {n for n in missing if not n.endswith((".bias", ".conv"))}


def test_the_rows_are_those_that_are_multiplied(tmp_path):
    path = exported(GOLDEN / "llama", tmp_path / "x.bin", "--dtype", "f32")
    found, file = inputs_of(path, [Text([5, 6, 7, 8, 9])]), Checkpoint(str(path))
    gate, up = (file.tensor(f"layers.0.ffn_{k}").astype(float) for k in ("gate", "up"))
    [y] = [rows for (names, _), rows in found.items() if "layers.0.ffn_up" in names]
    [hidden] = [rows for (names, _), rows in found.items() if names == ("layers.0.ffn_down",)]
    gated = y @ gate.T
    assert np.allclose(gated / (1 + np.exp(-gated)) * (y @ up.T), hidden, rtol=1e-4, atol=1e-6)


def test_an_exception_while_looking_is_raised(tmp_path):
    path = exported(GOLDEN / "llama", tmp_path / "x.bin")
    with pytest.raises(KeyboardInterrupt), engine.Engine(str(path), 8, 8, 1) as e:

        def take(*_):
            raise KeyboardInterrupt

        e.watch([Text([5, 6, 7])], take)


@pytest.mark.parametrize("source", [STORIES, GOLDEN / "encoder_decoders" / "bart"])
def test_a_signal_during_a_pass_is_not_lost(source, tmp_path):
    """It arrives while C code runs, and the next line of Python is a callback's first, whose
    exceptions ctypes prints and forgets."""
    path = exported(source, tmp_path / "x.bin")
    texts = [Text([2], [5, 6, 7] * 40)] * 30
    if source == STORIES:
        texts = [Text(list(range(5, 250)))] * 4
    with engine.Engine(str(path), engine.longest(texts), 4096, 1) as e:
        for delay in (2, 3, 5, 8, 13):
            with pytest.raises(KeyboardInterrupt), interrupted_after(delay):
                for _ in range(50):
                    e.watch(texts, lambda *_: None)


def test_whoever_is_interrupted_waits_for_the_call(tmp_path):
    """However often; a model that was closed under a pass would crash it."""
    ended = []

    def call():
        time.sleep(0.3)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt), interrupted_after(20, again=20):
        try:
            native().apart(call)
        finally:
            assert ended.pop()
            signal.setitimer(signal.ITIMER_REAL, 0)


# ---- feedback ----


def test_rows_are_turned_and_rounded():
    rows = np.random.RandomState(1).standard_normal((7, 70)).astype(np.float32)
    rows[2] = 0
    found = turned_rows(rows)
    assert found.shape == (7, 96) and not found[2].any()
    filled = np.pad(rows, ((0, 0), (0, 26))).reshape(-1, 32)
    exact = hadamard(filled) / 8
    step = np.abs(exact).max(1, keepdims=True) / 127
    numbers = found.reshape(-1, 32) / np.where(step > 0, step, 1)
    assert np.abs(numbers - np.rint(numbers)).max() < 1e-3
    assert (np.abs(found.reshape(-1, 32) - exact) <= step * 0.501).all()


@in_part(2)
@pytest.mark.parametrize("dtype, better", [("q4", 0.8), ("q8", 0.8)])
def test_feedback_lowers_the_error_on_other_texts(dtype, better, tmp_path):
    """Of every matrix of the bundled model, by inputs that it was not made with."""
    path = exported(STORIES, tmp_path / "x.bin", "--dtype", "f32")
    file = Checkpoint(str(path))
    with engine.Engine(str(path), 128, 64, 32) as e:
        texts = e.continued([Text([1])] * 32, 128, 5)
    seen, other = inputs_of(path, texts[:24]), inputs_of(path, texts[24:])
    ratios = []
    for (names, which), rows in seen.items():
        for name in names:
            if name.startswith("layers.") and name.split(".")[2].startswith(("attn", "ffn")):
                weights, x = file.tensor(name), turned_rows(rows)
                y = turned_rows(other[names, which])
                blocks = with_feedback(weights, x.T @ x, dtype)
                filled = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 32)))
                nearest = quantize_blocks(
                    (hadamard(filled.reshape(-1, 32)) / 4).reshape(filled.shape), dtype
                )
                fed, near = (product_error(weights, b, y.T @ y) for b in (blocks, nearest))
                ratios.append(fed / near)
    assert len(ratios) >= 7 and max(ratios) < 1.02 and np.mean(ratios) < better, ratios


def test_feedback_without_inputs_rounds_to_nearest():
    """A direction that no text showed, and a matrix of which none did."""
    numbers = np.random.RandomState(2)
    weights = numbers.standard_normal((20, 64)).astype(np.float32)
    none = with_feedback(weights, np.zeros((64, 64), np.float32), "q4")
    nearest = quantize_blocks((hadamard(weights.reshape(-1, 32)) / 4).reshape(20, 64), "q4")
    same = (none.values == nearest.values).mean()
    assert same > 0.99
    x = turned_rows(numbers.standard_normal((3, 64)).astype(np.float32))
    assert np.isfinite(with_feedback(weights, x.T @ x, "q4").weights()).all()


def test_matrices_of_one_input_are_what_each_is_alone(monkeypatch):
    """They are rounded together, some rows of both at a time; so are those of stacks."""
    numbers = np.random.RandomState(5)
    x = turned_rows(numbers.standard_normal((300, 64)).astype(np.float32))
    moments = {
        (("layers.0.expert_gate", "layers.0.expert_up"), i): x[i::2].T @ x[i::2] for i in (0, 1)
    }
    moments[("layers.0.attn_q", "layers.0.attn_v"), 0] = x.T @ x
    moments[("layers.0.ffn_down",), 0] = x.T @ x
    matrices = {}
    for name, rows in (("attn_q", 48), ("attn_v", 16), ("expert_gate", 64), ("expert_up", 64)):
        array = numbers.standard_normal((rows, 64)).astype(np.float32)
        matrices[f"layers.0.{name}"] = SimpleNamespace(name=name, array=lambda array=array: array)
    names = [*matrices, "layers.0.ffn_down", "layers.0.ffn_up"]
    groups = codes._groups(names, dict.fromkeys(names, "q4"), moments)
    assert [len(group) for group in groups] == [2, 2, 1, 1]
    apart = codes._groups(names, dict.fromkeys(names, "q4") | {names[0]: "q3"}, moments)
    assert [len(group) for group in apart] == [1, 1, 2, 1, 1]
    monkeypatch.setattr(codes, "SLAB", 20)
    for names in groups[:2]:
        given = "q4", {"layer.experts": 2}, moments
        together = codes._fed({name: matrices[name] for name in names}, *given)
        for name in names:
            alone = codes._fed({name: matrices[name]}, *given)
            for key, values in alone.items():
                assert len(values) == len(matrices[name].array())
                assert np.isclose(together[key], values, rtol=1e-3).mean() > 0.99
    matrices[names[1]].array()[3, 5] = 1e30
    with pytest.raises(ExportError, match="tensor expert_up: a weight of magnitude 1e.30 is too"):
        codes._fed({name: matrices[name] for name in names}, *given)


def test_moments_are_added_in_order(monkeypatch):
    """However long each takes: sums of floats depend on it."""
    inputs = np.random.RandomState(3).standard_normal((6, 3, 32)).astype(np.float32)

    def slowly(rows):
        time.sleep(0.1 if np.array_equal(rows, inputs[0]) else 0)
        return rows

    def watch(_, take, *__):
        for rows in inputs:
            take(["a"], 0, rows)

    monkeypatch.setattr(codes, "turned_rows", slowly)
    monkeypatch.setattr(codes, "Engine", lambda *_: nullcontext(SimpleNamespace(watch=watch)))
    found = {}
    list(
        codes._moments(
            SimpleNamespace(file=str), [[Text([1])]], {"a"}, 0, found, [engine.START], None
        )
    )
    assert np.array_equal(found[("a",), 0], sum(rows.T @ rows for rows in inputs))


@pytest.mark.parametrize(
    "name", ["llama", "gemma4", "zamba2", "mamba2", "encoders/albert", "encoders/bert", "bart"]
)
def test_layers_a_few_at_a_time_get_what_all_get(name, lettered, tmp_path, monkeypatch):
    """A pass goes on from the layer where the one before it stopped: not if a later layer reads its
    keys or shares its matrices, nor with a source."""
    source = lettered(name) if name == "bart" else GOLDEN / name
    opened = convert.open_model(str(source), None, None, False)
    metadata, tensors = convert.metadata(opened, "q4", False), opened.tensors
    matrices = {n: tensors[n] for n in shapes_of(tensors, "q4")}
    types, numbers = dict.fromkeys(matrices, "q4"), np.random.RandomState(4)
    ids = [numbers.randint(5, 19, 20).tolist() for _ in range(6)]
    texts = [Text(some, ids[0] if name == "bart" else ()) for some in ids]
    begun, watch = [], engine.Engine.watch

    def watched(self, texts, take, n_logits=0, begin=engine.START, end=None):
        begun.append(begin.layer)
        return watch(self, texts, take, n_logits, begin, end)

    monkeypatch.setattr(engine.Engine, "watch", watched)
    found = []
    for most in (1 << 30, 1):
        monkeypatch.setattr(codes, "MOMENTS", most)
        folder = Folder(str(tmp_path / f"{most}.bin"), {})
        progress = Progress(dict.fromkeys(("q8", "inputs", "codes"), 1.0))
        calibrate._write_model(folder, metadata, tensors, progress)
        codes.feed(folder, metadata, matrices, types, texts, 4, progress)
        found.append({n: codes.codes_of(folder, n, 0, matrices[n].shape[0]) for n in matrices})
    whole, apart = found
    assert whole.keys() == apart.keys() and len(whole) > 4
    for n, (blocks, error) in whole.items():
        assert np.array_equal(blocks.values, apart[n][0].values) and error == apart[n][1], n
    assert (max(begun) > 0) == (name not in ("gemma4", "bart"))


# ---- its own texts ----


def test_texts_that_begin_with_more_tokens_are_as_long():
    """And each is what it is alone."""
    beginnings = [Text([1]), Text([1, *range(40, 49)]), Text([1, 7])]
    path = ROOT / "models" / "stories.bin"
    with engine.Engine(str(path), 32, 64, 8) as e:
        texts = e.continued(beginnings, 32, 5)
        alone = [e.continued([text], 32, 5 + i)[0] for i, text in enumerate(beginnings)]
    assert texts == alone and {len(text.ids) for text in texts} == {32}
    for text, beginning in zip(texts, beginnings):
        assert text.ids[: len(beginning.ids)] == beginning.ids


# ---- eight bits ----


def test_eight_bits_by_feedback(tmp_path, monkeypatch):
    """As large as to nearest, nearer to f32, and the embedding takes part. Texts begin as given,
    where that is no more than half of them, or with one random token, or with many."""
    monkeypatch.setattr(calibrate, "AMOUNTS", replace(FEW, texts=48, length=192))
    found, continued = [], engine.Engine.continued

    def spy(self, beginnings, *more):
        found.extend(beginnings)
        return continued(self, beginnings, *more)

    monkeypatch.setattr(engine.Engine, "continued", spy)
    files = {
        kind: exported(STORIES, tmp_path / f"{kind}.bin", "--dtype", dtype, *more)
        for kind, dtype, more in (
            ("f32", "f32", ()),
            ("nearest", "q8", ()),
            ("fed", "q8", ("--calibrate",)),
        )
    }
    bos, starts = found[0].ids[0], {tuple(text.ids) for text in found}
    with engine.Engine(str(files["f32"]), 256, 64, 8) as e:
        given = {(bos, *e.encode(text.encode())) for text in BEGINNINGS[: 48 // 3]}
        kept = {ids for ids in given if len(ids) <= 1 + 192 // 2}
        assert len(starts) == 48 and kept == starts & given and 0 < len(kept) < len(given)
        assert {len(ids) for ids in starts - kept} == {1 + 1, 1 + 16}
        texts = continued(e, [Text([1])] * 4, 256, 99)
    logits = {}
    for kind, path in files.items():
        with engine.Engine(str(path), 256, 256, 4 * 256) as e:
            logits[kind] = e.logits(texts, 256).copy()
    nearest, fed = (np.linalg.norm(logits[k] - logits["f32"]) for k in ("nearest", "fed"))
    assert fed < 0.95 * nearest, (fed, nearest)
    assert abs(files["fed"].stat().st_size - files["nearest"].stat().st_size) < 100
    near, feed = (Checkpoint(str(files[k])).tensor("embed") for k in ("nearest", "fed"))
    assert (near != feed).mean() > 0.2


def test_no_text_is_empty():
    """A tokenizer may have no tokens for what texts begin with, and no prefix."""

    class OfOtherWords:
        vocab_size = 9

        def encode(self, text):
            return []

        def continued(self, texts, *_):
            return texts

    meta = {"tokenizer.token.text": b""}
    texts = calibrate._own_texts(OfOtherWords(), meta, FEW, Progress({"texts": 1}))
    assert len(texts) == FEW.texts and all(text.ids for text in texts)


@pytest.mark.parametrize("name, has_logits", [("bert", True), ("roberta", False)])
def test_encoders(name, has_logits, tmp_path, monkeypatch):
    """Where one has no logits, nothing is multiplied by its embedding: its columns count alike."""
    source = GOLDEN / "encoders" / name
    texts = of_rows(np.random.RandomState(6).randint(5, 60, (12, 24)))
    monkeypatch.setattr(calibrate, "_texts", lambda *_: texts)
    plain = exported(source, tmp_path / "plain.bin", "--dtype", "q8")
    path = exported(source, tmp_path / "x.bin", "--dtype", "q8", "--calibrate")
    exact = exported(source, tmp_path / "f32.bin", "--dtype", "f32")

    def error(path: Path, tensor: str) -> float:
        return np.linalg.norm(Checkpoint(str(path)).tensor(tensor) - whole.tensor(tensor))

    whole = Checkpoint(str(exact))
    assert error(path, "layers.0.ffn_down") > error(plain, "layers.0.ffn_down")
    assert (error(path, "embed") < error(plain, "embed")) != has_logits


def test_one_bar_has_both_stages_of_a_mixed_file(tmp_path, monkeypatch):
    bars, progress_of = [], calibrate.progress_of
    monkeypatch.setattr(
        calibrate, "progress_of", lambda *given: bars.append(progress_of(*given)) or bars[0]
    )
    texts = of_rows(np.random.RandomState(6).randint(5, 60, (12, 24)))
    monkeypatch.setattr(calibrate, "_texts", lambda *_: texts)
    exported(GOLDEN / "llama", tmp_path / "x.bin", "--bits", "4.5", "--calibrate")
    done = bars[0].done
    assert done.keys() >= {"inputs", "codes", "inputs-mixed", "codes-mixed"}
    assert done == pytest.approx({**dict.fromkeys(done, 1), "texts": 0})


def test_embeddings_that_are_only_looked_up_have_a_cost(tmp_path, monkeypatch):
    """Nothing is multiplied by them; they had cost nothing, and two bits."""
    seen = []

    def choosing(shapes, costs, dtype, room):
        seen.append(costs)
        return choose(shapes, costs, dtype, room)

    texts = of_rows(np.random.RandomState(6).randint(5, 60, (12, 24)))
    monkeypatch.setattr(calibrate, "_texts", lambda *_: texts)
    monkeypatch.setattr(calibrate, "choose", choosing)
    path = exported(GOLDEN / "llama", tmp_path / "x.bin", "--bits", "4.5", "--calibrate")
    [costs] = seen
    assert "output" in costs and costs["embed"] > 0.1 * max(costs.values())
    assert Checkpoint(str(path)).tensors["embed"][0] != "q2"


def test_texts_that_become_vectors_repeat_some_tokens(tmp_path, monkeypatch):
    """One in some, whose errors no other token cancels."""
    fed = []

    def stop(*given):
        fed.append(given[4])
        raise ExportError("enough")

    monkeypatch.setattr(calibrate, "feed", stop)
    source, text = with_texts(tmp_path / "source"), tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over a lazy dog " * 40)
    for model in (source, STORIES):
        command = [str(model), str(tmp_path / f"{model.name}.bin"), "--dtype", "q4"]
        assert export.main([*command, "--calibrate", str(text)]) == 1
    bodies, stories = [list(t.ids[1:-1]) for t in fed[0]], [t.ids[1:] for t in fed[1]]

    def period(ids: list[int]) -> int:
        return next(n for n in range(1, len(ids) + 1) if ids[n:] == ids[:-n])

    loops = [period(ids) for ids in bodies if period(ids) <= 3 < len(ids)]
    assert len(loops) == -(-FEW.texts // calibrate.LOOP) and len(set(loops)) == 3
    assert {t.ids[0] for t in fed[0]} == {2} and {t.ids[-1] for t in fed[0]} == {3}
    assert min(map(period, stories)) > 3


# ---- encoder-decoders ----

PAIRS = GOLDEN / "encoder_decoders"


@pytest.fixture(scope="module")
def lettered(tmp_path_factory):
    """A function from a golden encoder-decoder to the same with a tokenizer of letters."""
    folder = tmp_path_factory.mktemp("lettered")

    def make(name: str) -> Path:
        if not (folder / name).exists():
            test_encoder_decoders.with_letters(folder / name, name)
        return folder / name

    return make


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> Path:
    """Sources: short lines, empty ones, and one that is longer than a text."""
    numbers, path = np.random.RandomState(8), tmp_path_factory.mktemp("lines") / "lines.txt"
    rows = ["".join(numbers.choice(list("abcdefgh klmno"), 5 + i % 30)) for i in range(60)]
    path.write_text("\n".join(["a" + "bc" * 100, "", *rows]))
    return path


def test_products_of_both_sides_are_seen(tmp_path):
    path = exported(PAIRS / "bart", tmp_path / "x.bin", "--dtype", "f32")
    texts = [Text([2, 5, 6], [7, 8, 9, 10]), Text([2, 9], [5, 6, 7])]
    found = inputs_of(path, texts)
    rows_of = {name: len(rows) for (names, _), rows in found.items() for name in names}
    matrices = [name for name, (_, rows, *_) in Checkpoint(str(path)).tensors.items() if rows > 1]
    assert {n for n in matrices if n.startswith("layers.")} == {*rows_of}
    for name, n in rows_of.items():
        reads = name.split(".")[1] in "01" or name.endswith(("cross_k", "cross_v"))
        assert n == (7 if reads else 5), name


def test_answers_keep_to_the_rules(lettered, tmp_path):
    """Of generation_config.json: no two tokens come together again. EOS ends them and is none of
    their tokens, and each is what it is alone."""
    path = exported(lettered("umt5"), tmp_path / "x.bin", "--dtype", "q8")
    eos, questions = 1, [Text([0], [5, 6, 7 + i]) for i in range(12)]
    with engine.Engine(str(path), 48, 64, 12) as e:
        e.encode(b"abc")
        answers = e.continued(questions, 48, 3)
        assert answers[7] == e.continued([questions[7]], 48, 10)[0]
    for answer, question in zip(answers, questions):
        ids = answer.ids
        assert answer.source == question.source and ids[:1] == question.ids
        assert eos not in ids and len(set(zip(ids, ids[1:]))) == len(ids) - 1
    assert {48} < {len(text.ids) for text in answers}


def test_sources_are_the_lines_of_a_file(lettered, lines, tmp_path, monkeypatch):
    """With EOS and the language around them, the long one in parts; the more the shorter."""
    seen, texts_of = [], calibrate._texts
    monkeypatch.setattr(calibrate, "_texts", lambda *a: seen.append(texts_of(*a)) or seen[-1])
    monkeypatch.setattr(calibrate, "feed", lambda *_: None)
    monkeypatch.setattr(calibrate.Calibration, "with_codes", lambda _, tensors: tensors)
    monkeypatch.setattr(calibrate, "AMOUNTS", replace(FEW, texts=100))
    options = ("--dtype", "q8", "--calibrate", str(lines))
    for _ in range(2):
        exported(lettered("mbart"), tmp_path / "x.bin", *options)
        monkeypatch.setattr(calibrate, "AMOUNTS", FEW)
    texts, some = seen
    english, eos, space, a = 31, 2, 4, 5
    assert {(t.source[0], t.source[-1]) for t in texts} == {(english, eos)}
    inner = [t.source[1:-1] for t in texts]
    parts = [ids for ids in inner if len(ids) > 40]
    assert sorted(map(len, parts)) == [50, 50, 51, 51]
    assert [space, a, *[a + 1, a + 2] * 24] in parts
    assert len(texts) == 60 + len(parts) and 20 < len(some) < 50
    assert sum(len(t.source) for t in some) == pytest.approx(14 * 64, rel=0.1)
    assert all(t.ids[0] == eos and eos not in t.ids[1:] for t in texts)


@pytest.mark.parametrize(
    "name, dtype",
    [("bart", "q4"), ("marian", "q4"), ("m2m_100", "q4"), ("t5-gated", "q4"), ("bart", "q8")],
)
def test_models_that_answer(name, dtype, lettered, lines, tmp_path):
    """Products of either side, and of one with the other, err less than without calibration, on
    lines that were not in the file."""
    bits = ["--bits", "4.5"] if dtype == "q4" else []
    made = {
        kind: exported(lettered(name), tmp_path / f"{kind}.bin", "--dtype", *options)
        for kind, options in (
            ("f32", ["f32"]),
            ("plain", [dtype, *bits]),
            ("fed", [dtype, *bits, "--calibrate", str(lines)]),
        )
    }
    numbers = np.random.RandomState(9)
    sources = [[4, *numbers.randint(5, 19, 20).tolist(), 2] for _ in range(20)]
    with engine.Engine(str(made["f32"]), 64, 64, 20) as e:
        e.encode(b"abc")
        start = test_encoder_decoders.beginning(PAIRS / name)
        texts = e.continued([Text(start, source) for source in sources], 32, 7)
    files = {kind: Checkpoint(str(path)) for kind, path in made.items()}
    assert {t[0] for n, t in files["fed"].tensors.items() if n.endswith("embed")} == {"q8"}
    errors: dict[str, list[float]] = {}
    for (names, _), rows in inputs_of(made["f32"], texts).items():
        for matrix in names:
            exact, plain, fed = (rows @ files[k].tensor(matrix).T for k in ("f32", "plain", "fed"))
            ratio = np.linalg.norm(fed - exact) / np.linalg.norm(plain - exact)
            errors.setdefault(matrix.split(".")[-1], []).append(ratio)
    assert {"attn_q", "attn_o", "cross_q", "cross_k", "cross_v", "cross_o"} <= set(errors)
    assert all(np.mean(ratios) < 0.95 for ratios in errors.values()), errors


# ---- costs and budgets ----


@pytest.mark.parametrize("name", ["llama", "gemma4", "mamba2", "zamba2", "bart"])
def test_costs_are_those_of_whole_passes(name, lettered, tmp_path, monkeypatch):
    """Passes begin at the layer that changes, or before the first whose keys and values later ones
    read; those of a decoder after its source."""
    source = lettered(name) if name == "bart" else GOLDEN / name
    path = exported(source, tmp_path / "model.bin", "--dtype", "q8")
    file = Checkpoint(str(path))
    numbers = np.random.RandomState(4)
    some = [numbers.randint(5, 19, 30).tolist() for _ in range(3)]
    texts = [Text(ids, some[0] if name == "bart" else ()) for ids in some]
    folder = SimpleNamespace(file=lambda name: str(tmp_path / name))

    def four(_, name, a, b, stage):
        _, rows, cols, offset, n = file.tensors[name]
        blocks = panels.unpack_blocks(file.data[offset : offset + n], "q8", rows, cols)
        return panels.quantize_blocks(blocks.weights()[a:b], "q4"), 0.0

    def costs(metadata) -> list[float]:
        found = trials.Trials(folder, metadata, texts)
        said.append([layer for layer in found.begins if layer])
        held = {t[3]: n for n, t in reversed(file.tensors.items()) if t[0] == "q8"}  # by its place
        names = [n for n in reversed(held.values()) if n.startswith("layers.")]
        try:
            return [found.divergence([n], 2) for n in names] + [found.divergence(names)]
        finally:
            found.close()

    monkeypatch.setattr(trials, "codes_of", four)
    given = {k: v[0] if len(v) == 1 else v for k, v in file.metadata.items() if len(v)}
    said, shares = [], "layer.kv_source" in given
    here = costs(given)
    assert bool(said[0]) != shares and len(set(here)) > 5 and max(here) > 0
    alone = {k: v for k, v in given.items() if k != "layer.kv_source"}
    assert shares == (name == "gemma4") and (costs(alone) != here) == shares
    monkeypatch.setattr(trials, "begins", lambda metadata: [0] * int(metadata["model.n_layers"]))
    monkeypatch.setattr(trials, "SLAB", 1)
    assert costs(given) == here and not said[2]


def chosen_of(dtype: str, bits: float) -> dict[str, str]:
    """Of four matrices, by their costs in four bits."""
    return choose(SHAPES, COSTS, dtype, room_of(SHAPES, dtype, bits))


SHAPES = {
    "layers.0.a": (256, 256),
    "layers.1.a": (128, 512),
    "layers.0.b": (128, 256),
    "output": (512, 256),
}
COSTS = {"layers.0.a": 1.0, "layers.1.a": 3.0, "layers.0.b": 20.0, "output": 1.0}


def test_the_most_costly_get_eight():
    def eight(bits: float) -> set[str]:
        return {name for name, width in chosen_of("q4", bits).items() if width == "q8"}

    assert eight(4.5) == set()
    assert eight(8.5) == set(SHAPES)
    assert eight(5.0) == {"layers.0.b"}
    assert eight(5.9) == {"layers.0.b", "layers.1.a"}
    for bits in (4.4, 8.6, float("nan")):
        with pytest.raises(ExportError, match="expected 4.5 .all q4. to 8.5"):
            eight(bits)
    names = ["layers.2.a", "layers.0.a", "layers.1.a", "layers.4.a", "ple_in", "layers.3.b"]
    assert described(names) == "a of layers 0-2, 4; b of layer 3; ple_in"


def test_each_gets_the_width_that_buys_most():
    bits = {"q2": 2.3125, "q3": 3.3125, "q4": 4.5, "q5": 5.3125, "q6": 6.3125, "q8": 8.5}
    wanted = (2.6, 3.0, 3.5, 4.0, 5.0, 6.5, 8.5)
    found = [chosen_of("mixed", b) for b in wanted]
    assert found[0]["output"] == "q2" < found[0]["layers.0.b"]
    assert set(found[-1].values()) == {"q8"}
    nats = [sum(COSTS[n] * WIDTHS[t][1] for n, t in chosen.items()) for chosen in found]
    assert nats == sorted(nats, reverse=True) and nats[0] > 5 * nats[3]
    size = {name: rows * cols for name, (rows, cols) in SHAPES.items()}
    for chosen, most in zip(found, wanted):
        used = sum(bits[t] * size[n] for n, t in chosen.items()) / sum(size.values())
        assert most - 1 < used <= most
        wide = [bits[chosen[n]] for n in sorted(size, key=lambda n: COSTS[n] / size[n])]
        assert wide == sorted(wide)
    for b in (2.3, 8.6, float("nan")):
        with pytest.raises(ExportError, match="--bits .*: expected 2.3125 .* to 8.5"):
            chosen_of("mixed", b)


@pytest.mark.parametrize("calibrated", [False, pytest.param(True, marks=takes_long)])
def test_all_widths_in_one_file(calibrated, tmp_path, run, capsys):
    """Embedding and outputs included, and ./run --info says what was chosen."""
    distances = []
    more = ["--calibrate"] if calibrated else []
    for bits in (3.0, 4.0, 6.0):
        path = exported(STORIES, tmp_path / "x.bin", "--bits", str(bits), *more)
        said = capsys.readouterr().out
        line = said.splitlines()[-1]
        assert ("nats a token" in line) == calibrated == ("MB would cost" in said)
        assert line in run(path, "--info").stdout.decode()
        file = Checkpoint(str(path))
        found = [t for t in file.tensors.values() if t[1] > 1]
        assert len({t[0] for t in found}) > 2 and file.tensors["embed"][0] in line
        held = sum(8 * t[4] for t in found) / sum(t[1] * t[2] for t in found)
        assert bits - 0.3 < held < bits + 0.3  # rows of 128 columns share scales of 256
        exact = Checkpoint(str(exported(STORIES, tmp_path / "f32.bin", "--dtype", "f32")))
        name = "layers.1.ffn_up"
        distances.append(np.linalg.norm(file.tensor(name) - exact.tensor(name)))
    assert distances[0] > 1.5 * distances[1] > 3 * distances[2]
    assert not list(tmp_path.glob("*.calibration"))


@pytest.mark.parametrize("dtype", [(), ("--dtype", "q4")])
def test_bytes_instead_of_bits(dtype, tmp_path, run, capsys):
    """The file has at most what --size says, and nearly that; --memory leaves room for the cache,
    which --kv reports, and a sixteenth."""
    cache = 512 * 4 * 4 * 16 * 2 * 2  # tokens, layers, KV heads of 16, K and V in f16
    for size in (1_150_000, 1_300_000):
        options = ("--size", str(size)), ("--memory", str((size + cache) * 16 // 15 + 1))
        paths = [
            exported(STORIES, tmp_path / f"{i}.bin", *dtype, *o) for i, o in enumerate(options)
        ]
        sizes = [path.stat().st_size for path in paths]
        assert sizes[0] == sizes[1] and size - 70_000 < sizes[0] <= size
    assert f"{cache:,}" in run(paths[0], "--kv").stdout.decode()
    capsys.readouterr()
    for option, says in (
        ("--size", "--size 90,000: the smallest file, all in"),
        ("--memory", f"--memory 90,000: of which a cache of {cache:,} leaves 0; the smallest file"),
    ):
        assert export.main([str(STORIES), str(tmp_path / "x.bin"), *dtype, option, "90K"]) == 1
        assert says in capsys.readouterr().err


def test_the_curve_is_what_the_choices_cost():
    seen = curve(SHAPES, COSTS, "mixed")
    sizes, nats = zip(*seen)
    assert len(seen) == 8 and list(nats) == sorted(nats, reverse=True) and nats[-1] < 1e-9
    for room, at in seen:
        chosen = choose(SHAPES, COSTS, "mixed", room)
        saved = {w: (WIDTHS[w][1] - WIDTHS["q8"][1]) / WIDTHS["q4"][1] for w in WIDTHS}
        assert sum(COSTS[n] * saved[w] for n, w in chosen.items()) <= at + 1e-9


def layer_bits(path: Path) -> float:
    found = [
        t for n, t in Checkpoint(str(path)).tensors.items() if n.startswith("layers.") and t[1] > 1
    ]
    assert {t[0] for t in found} <= {"q4", "q8"}
    weights = sum(rows * cols for _, rows, cols, *_ in found)
    return sum((8.5 if t[0] == "q8" else 4.5) * t[1] * t[2] for t in found) / weights


@pytest.mark.parametrize("calibrated", [False, pytest.param(True, marks=takes_long)])
def test_budgets_are_kept(calibrated, tmp_path, run, capsys):
    """And ./run --info says what was chosen."""
    sizes = []
    for options, bits in (
        (("q4",), BITS["q4"]),
        (("q4m",), BITS["q4m"]),
        (("q4", "--bits", "8.5"), 8.5),
    ):
        options = ("--dtype", *options, *(["--calibrate"] if calibrated else []))
        path = exported(STORIES, tmp_path / "x.bin", *options)
        assert bits - 0.35 < layer_bits(path) <= bits
        sizes.append(path.stat().st_size)
        said = capsys.readouterr().out
        line = said.splitlines()[-1]
        assert line.startswith("in eight bits: ") and ("nats a token" in line) == calibrated
        info = run(path, "--info").stdout.decode()
        assert line[len("in eight bits: ") :] in info
    assert sizes == sorted(sizes) and not list(tmp_path.glob("*.calibration"))


def test_vectors_are_as_far_from_those_in_eight_bits_as_was_said(tmp_path, monkeypatch, capsys):
    """By one less their cosine, of texts of which some repeat their tokens."""
    seen = []
    divergence = trials.VectorTrials.divergence

    def spy(self, *given):
        seen.append((self.texts, divergence(self, *given)))
        return seen[-1][1]

    monkeypatch.setattr(trials.VectorTrials, "divergence", spy)
    source, text = with_texts(tmp_path / "source"), tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over a lazy dog " * 40)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    found = load_file(source / "model.safetensors").items()
    without_head = {n[len("bert.") :]: t for n, t in found if n.startswith("bert.")}
    save_file(without_head, source / "model.safetensors")
    four = ["--dtype", "q4", "--bits", "4.5", "--calibrate", str(text)]
    paths = [
        exported(source, tmp_path / f"{options[1]}.bin", *options)
        for options in (["--dtype", "q8"], four)
    ]
    texts, away = seen[-1]
    repeated = [len(set(t.ids[1:-1])) <= 3 < len(t.ids) for t in texts]
    assert 0 < sum(repeated) < len(texts)
    found = []
    for path in paths:
        with engine.Engine(str(path), engine.longest(texts), 64, 1) as e:
            found.append(e.vectors(texts))
    exact = 1 - (found[0].astype(float) * found[1]).sum(1).mean()
    assert away == pytest.approx(exact, rel=1e-3) and exact > 1e-4
    assert f"; {away:.4f} of cosine from q8" in capsys.readouterr().out


def test_a_trial_is_the_file_that_it_stands_for(tmp_path, monkeypatch):
    """The logits of the q8 file with four-bit numbers in it are those of the q4 file."""
    said = []
    divergence = trials.Trials.divergence

    def spy(self, names, *more):
        names = list(names)
        value = divergence(self, names, *more)
        assert divergence(self, []) == pytest.approx(0, abs=1e-5)  # all is as it was
        said.append((len(names), value, self.texts, self.likely))
        return value

    monkeypatch.setattr(trials.Trials, "divergence", spy)
    path = exported(STORIES, tmp_path / "x.bin", "--dtype", "q4", "--bits", "4.5", "--calibrate")
    n, value, texts, likely = said[-1]
    assert n == max(n for n, *_ in said) > 7 and value > 1e-3
    with engine.Engine(str(path), engine.longest(texts), 1 << 10, len(likely)) as e:
        logits = e.logits(texts, len(likely) // len(texts)).astype(float)
    log_q = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    p = np.array(likely)
    exact = (p * (np.log(p) - log_q)).sum(1).mean()
    assert exact == pytest.approx(value, rel=1e-2)


def test_a_change_is_tried_as_large_as_asked():
    weights = np.random.RandomState(4).standard_normal((20, 64)).astype(np.float32)
    weights[3] = 0
    eight, four = (quantize_blocks(weights, dtype) for dtype in ("q8", "q4"))
    found = trials._amplified(eight, four, 4)
    exact = eight.weights() + 4 * (four.weights() - eight.weights())
    assert np.abs(found.values).max() <= 127 and (found.values == np.rint(found.values)).all()
    # Half a step, and what f16 takes off the largest.
    assert np.abs(found.weights() - exact).max() <= 0.57 * found.scale.max()
    same = panels.unpack_blocks(panels.pack_blocks(four, "q4"), "q4", 20, 64)
    assert np.array_equal(same.values, four.values) and np.array_equal(same.scale, four.scale)


# ---- the command ----


@pytest.mark.parametrize("answers", [False, True])
def test_it_goes_on_where_it_was_interrupted(
    answers, tmp_path, monkeypatch, capsys, lettered, lines
):
    """At each of its steps, with nothing half-written, to the same bytes. The bar is of what is
    left, and gets to its end."""
    bars, leave = [], Progress.__exit__

    def look(self, *error):
        seconds = (self.seconds[phase] * self.done[phase] for phase in self.seconds)
        bars.append((self.bar.total, sum(self.seconds.values()), sum(seconds)))
        leave(self, *error)

    monkeypatch.setattr(Progress, "__exit__", look)
    options = ("--dtype", "q4", "--calibrate", *([str(lines)] if answers else []))
    source = lettered("bart") if answers else GOLDEN / "llama"
    whole = exported(source, tmp_path / "whole.bin", *options).read_bytes()
    out, folder = tmp_path / "x.bin", tmp_path / "x.bin.calibration"
    continued, watch = engine.Engine.continued, engine.Engine.watch
    divergence = trials.Trials.divergence

    def failing(function, at):
        calls = []

        def call(*arguments):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    for place, name, function, at in (
        (engine.Engine, "continued", continued, 2),
        (engine.Engine, "watch", watch, 2),
        (trials.Trials, "divergence", divergence, 4),
    ):
        monkeypatch.setattr(place, name, failing(function, at))
        assert export.main([str(source), str(out), *options]) == 130
        said = capsys.readouterr().err
        assert f"interrupted; nothing was written; {folder} has what was done" in said
        assert not out.exists() and not list(tmp_path.glob("**/*.tmp"))
    assert len(json.loads((folder / "costs.json").read_text())) == 3
    for place, name in ((engine.Engine, "continued"), (codes, "_moments")):  # are done
        monkeypatch.setattr(place, name, failing(None, 1))
    monkeypatch.setattr(trials.Trials, "divergence", divergence)
    assert exported(source, out, *options).read_bytes() == whole
    assert not folder.exists()
    all_of_it, *stopped, rest = bars
    assert all_of_it == pytest.approx((all_of_it[0],) * 3) and len(stopped) == 3
    assert all(done < 0.99 * seconds for _, seconds, done in stopped)
    lengths = [length for length, *_ in (*stopped, rest)]
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) >= 3
    assert rest[0] < 0.9 * all_of_it[0] and rest[1] == pytest.approx(rest[2])


def test_two_exports_to_one_place_try_in_files_of_their_own(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "costs_of", stop)
    out = tmp_path / "x.bin"
    assert export.main([str(STORIES), str(out), "--dtype", "q4", "--calibrate"]) == 130
    key = json.loads((tmp_path / "x.bin.calibration" / "key.json").read_text())
    given = Folder(str(out), key), {"model.n_layers": 5}, [Text(list(range(5, 40)))]
    first, name = trials.Trials(*given), "layers.0.ffn_down"
    cost = first.divergence([name])
    monkeypatch.setattr(trials.os, "getpid", lambda: 1)
    second = trials.Trials(*given)
    second._bytes(name)[:] = 0
    assert first.divergence([name]) == cost > 0
    first.close()
    second.close()
    assert not list(tmp_path.glob("**/trial*"))


def test_what_was_done_stays_where_it_is_then_refused(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise ExportError("refused")

    out = tmp_path / "x.bin"
    monkeypatch.setattr(calibrate, "feed", refuse)
    assert export.main([str(GOLDEN / "llama"), str(out), "--dtype", "q8", "--calibrate"]) == 1
    assert "refused" in capsys.readouterr().err and not out.exists()
    assert (tmp_path / "x.bin.calibration" / "texts.json").exists()


def test_what_was_done_for_another_source_is_not_used(tmp_path, monkeypatch):
    out, folder = tmp_path / "x.bin", tmp_path / "x.bin.calibration"
    folder.mkdir()
    (folder / "key.json").write_text("{}")
    (folder / "texts.json").write_bytes(b"something else")
    exported(GOLDEN / "llama", out, "--dtype", "q4", "--calibrate")
    assert not folder.exists()


def test_a_file_of_text(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a little dog. He liked to run. " * 40)
    options = ("--dtype", "q4", "--calibrate")
    own = exported(STORIES, tmp_path / "x.bin", *options).read_bytes()
    given = exported(STORIES, tmp_path / "x.bin", *options, str(text)).read_bytes()
    assert len(own) == len(given) and own != given
    text.write_text("Too short.")
    assert export.main([str(STORIES), str(tmp_path / "y.bin"), *options, str(text)]) == 1
    said = capsys.readouterr().err
    assert "tokens; calibrating wants" in said and not (tmp_path / "y.bin").exists()


@pytest.mark.parametrize("name", ["deepseek_v3", "granitemoe", "qwen3_next", "gemma4", "falcon"])
def test_other_families(name, tmp_path, run):
    """Experts, heads of latent attention, other mixers: the file runs, and its logits are nearer to
    those in q8 than without calibration."""
    made = {
        kind: exported(GOLDEN / name, tmp_path / f"{kind}.bin", "--dtype", dtype, *more)
        for kind, dtype, more in (
            ("q8", "q8", ()),
            ("plain", "q4", ()),
            ("fed", "q4", ("--calibrate",)),
        )
    }
    ids = " ".join(map(str, np.random.RandomState(3).randint(3, 60, 60)))
    logits = {}
    for kind, path in made.items():
        done = run(path, "--tokens", ids, "--logits", tmp_path / "logits")
        assert done.returncode == 0, done.stderr
        logits[kind] = np.fromfile(tmp_path / "logits", np.float32)
    plain, fed = (np.linalg.norm(logits[k] - logits["q8"]) for k in ("plain", "fed"))
    assert fed < plain


def test_refusals(tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "x.bin")
    for arguments, sentence in (
        (["--dtype", "q8", "--bits", "5"], "--bits belongs to --dtype q4"),
        (["--size", "1M", "--memory", "1M"], "give one of --size and --memory"),
        (["--calibrate", "--dtype", "bf16"], "--calibrate belongs to --dtype q4 and q8"),
        (["--calibrate", "--dtype", "q4", "--shape-only"], "there are no trained weights"),
    ):
        with pytest.raises(SystemExit):
            export.main([str(STORIES), out, *arguments])
        assert sentence in capsys.readouterr().err
    assert export.main([str(STORIES), out, "--dtype", "q4", "--bits", "3"]) == 1
    assert "--bits 3: expected 4.5 (all q4) to 8.5 (all q8)" in capsys.readouterr().err
    for name, text, sentence in (
        ("nowhere", None, "is no file"),
        ("folder", ..., "is no file"),
        ("short", "Once upon a time.", "tokens; calibrating wants"),
    ):
        path = tmp_path / name
        path.mkdir() if text is ... else path.write_text(text) if text else None
        asked = ["--dtype", "q4", "--calibrate", str(path)]
        assert export.main([str(STORIES), out, *asked]) == 1
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "x.bin.calibration").exists()
    encoder = next((GOLDEN / "encoders").iterdir())
    assert export.main([str(encoder), out, "--dtype", "q4", "--calibrate"]) == 1
    assert "name a file of it" in capsys.readouterr().err

    for more, sentence in (
        ([], "name a file of sources, a line each"),
        ([str(ROOT / "README.md")], "has no tokenizer"),
    ):
        assert export.main([str(PAIRS / "t5"), out, "--dtype", "q4", "--calibrate", *more]) == 1
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "x.bin.calibration").exists()

    def missing(*_):
        raise ImportError("libheads.so is neither here nor there: run `make lib`")

    monkeypatch.setattr(engine, "native", missing)
    assert export.main([str(STORIES), out, "--dtype", "q4", "--calibrate"]) == 1
    assert "calibration runs the engine: libheads.so is neither" in capsys.readouterr().err
    assert not list(tmp_path.glob("x.bin*"))
