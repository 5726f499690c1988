"""Experiments: what heads give, changed (heads_probe.mixed). tests/reference/live_models.py compares
them with transformers."""

from __future__ import annotations

import ctypes
import json
from contextlib import contextmanager

import numpy as np
import pytest

import export
import heads
from heads._native import (
    Enter,
    Mixed,
    Probe,
    TakeInput,
    TakeMixed,
    byref,
    calls,
    int_array,
)
from conftest import ROOT
from head_files import heads_of
from test_golden import GOLDEN

IDS = [3, 17, 9, 9, 21, 3, 17, 30]


# ---- the probe ----


def rows_of(given) -> np.ndarray:
    """[tokens][heads][width], where the pass has them."""
    rows = np.ctypeslib.as_array(given.rows, (given.n, given.stride))
    return rows[:, : given.n_heads * given.width].reshape(given.n, given.n_heads, given.width)


@contextmanager
def passes(path):
    """A function from ids, a probe and heads that are off to the logits of a pass."""
    with heads.Model(path) as model, model._turn() as opened:

        def run(ids, off=None, **probe) -> np.ndarray:
            s = calls.sequence_new(opened.workspace, False)
            calls.sequence_off(s, off)
            calls.workspace_probe(opened.workspace, byref(Probe(**probe)) if probe else None)
            logits = calls.forward(s, int_array(ids), len(ids), len(ids))
            calls.workspace_probe(opened.workspace, None)
            found = np.ctypeslib.as_array(logits, (len(ids), model.stride)).copy()
            calls.sequence_free(s)
            return found

        yield run


# The mixers of a family, in order, as numbers of the first head and of heads.
MIXERS = {
    "llama": [(0, 4), (0, 4)],
    "deepseek_v2": [(0, 4), (0, 4)],
    "qwen3_next": [(0, 6), (0, 6)],
    "kimi_linear": [(0, 3), (0, 4), (0, 3)],
    "mamba2": [(0, 6), (0, 6)],
    "falcon_h1-norm": [(0, 6), (6, 6), (0, 6), (6, 6)],
    "zamba2": [(0, 2), (2, 4), (0, 4), (0, 2), (2, 4)],
    "falcon_mamba": [(0, 1), (0, 1)],
    "recurrent_gemma": [(0, 1), (0, 3), (0, 1)],
    "lfm2-bias": [(0, 1), (0, 6)],
}


@pytest.mark.parametrize("name", MIXERS)
def test_what_heads_give_goes_into_the_output_matrix(name, exported):
    """As the probe left it; seen without a change, no bit changes."""
    seen, inputs = [], []
    with passes(exported(name)) as run:
        whole = run(IDS)

        def look(_, given):
            seen.append((given[0].layer, given[0].head, rows_of(given[0]).copy()))

        def change(_, given):
            rows_of(given[0])[1:, -1] = 0.25
            look(_, given)

        def note(_, given):
            x = given[0]
            rows = np.ctypeslib.as_array(x.rows, (x.n, x.stride))[:, : x.width]
            inputs.append(rows.copy())

        assert np.array_equal(run(IDS, mixed=TakeMixed(look)), whole)
        found = [(head, rows.shape[1]) for _, head, rows in seen]
        assert found == MIXERS[name]
        assert [layer for layer, _, _ in seen] == sorted(layer for layer, _, _ in seen)
        seen.clear()
        changed = run(IDS, mixed=TakeMixed(change), product=TakeInput(note))
        assert np.array_equal(changed[0], whole[0])
        assert (changed[1:] != whole[1:]).any(1).all()
        given = {rows.tobytes() for rows in inputs}
        assert all(rows.tobytes() in given for _, _, rows in seen)
    assert ctypes.sizeof(Mixed) == 40


@pytest.mark.parametrize("name", ["gpt2", "deepseek_v3", "gemma2", "bitnet", "gpt_oss"])
def test_zeros_are_a_head_that_is_off(name, exported):
    """A norm of all heads, as BitNet has, comes after both."""
    with passes(exported(name)) as run:

        def zero(_, given):
            if given[0].layer == 1:
                rows_of(given[0])[:, 2] = 0

        assert np.array_equal(run(IDS, mixed=TakeMixed(zero)), run(IDS, off=b"1.2"))


def test_heads_that_look_at_a_source_are_numbered_after_the_others(tmp_path):
    """An encoder's layers come first."""
    path, seen = tmp_path / "t5.bin", []
    assert export.main([str(GOLDEN / "encoder_decoders" / "t5"), str(path)]) == 0

    def look(_, given):
        seen.append((given[0].layer, given[0].head, given[0].n, given[0].n_heads))

    with heads.Model(path) as model:
        session = model.session(source=IDS)
        calls.workspace_probe(model._opened.workspace, byref(Probe(mixed=TakeMixed(look))))
        model.session(source=IDS)
        session.feed([1, 2])
        calls.workspace_probe(model._opened.workspace, None)
    assert seen[:2] == [(0, 0, 8, 3), (1, 0, 8, 3)]
    assert seen[2:6] == [(2, 0, 2, 3), (2, 3, 2, 3), (3, 0, 2, 3), (3, 3, 2, 3)]


# ---- patching ----

CLEAN, CORRUPTED = [3, 17, 9, 9, 21, 3, 17, 30], [3, 17, 12, 9, 21, 3, 8, 30]


def patched_by_hand(path, layers: bool) -> np.ndarray:
    """The last logits of each run, [..][vocab], one whole run after another."""
    kept, found = {}, []
    with passes(path) as run:
        what = (lambda x: ctypes_rows(x)[:, None]) if layers else rows_of

        def keep(_, given):
            x = given[0]
            kept[x.layer, 0 if layers else x.head] = what(x).copy()
            return x.layer

        run(CLEAN, **({"enter": Enter(keep)} if layers else {"mixed": TakeMixed(keep)}))
        for (layer, first), rows in sorted(kept.items()):
            for head, at in np.ndindex(rows.shape[1], rows.shape[0]):

                def change(_, given):
                    x = given[0]
                    if (x.layer, 0 if layers else x.head) == (layer, first):
                        what(x)[at, head] = rows[at, head]
                    return x.layer

                probe = {"enter": Enter(change)} if layers else {"mixed": TakeMixed(change)}
                found.append((layer, first + head, at, run(CORRUPTED, **probe)[-1]))
    return found


def ctypes_rows(x) -> np.ndarray:
    return np.ctypeslib.as_array(x.rows, (x.n, x.stride))[:, : x.width]


# What their layers have besides plain attention: windows, keys of other layers and embeddings of
# layers, latents, states, two mixers in a layer.
PATCHED = ["llama", "gemma3", "gemma4", "deepseek_v2", "qwen3_next", "zamba2", "falcon_h1-norm"]


@pytest.mark.parametrize("of", ["heads", "layers"])
@pytest.mark.parametrize("name", PATCHED)
def test_patching_has_the_bits_of_whole_runs(name, of, exported):
    path = exported(name)
    want = patched_by_hand(path, of == "layers")
    with heads.Model(path) as model:
        found = model.patch(CLEAN, CORRUPTED, 5, 7, of=of)
        base = model.logits(CORRUPTED)[-1]
        assert found.dtype == np.float32 and len(found) == model.shape.n_layers
        assert np.array_equal(
            found[..., :2][~np.isnan(found[..., :2])],
            base[5] - base[7] + 0 * found[..., :2][~np.isnan(found[..., :2])],
        )
        for layer, head, at, logits in want:
            ours = found[layer, head, at] if of == "heads" else found[layer, at]
            assert ours == np.float32(float(logits[5]) - float(logits[7])), (layer, head, at)
        assert np.isfinite(found).sum() == len(want)
        again = heads.Model(path, chunk=1, threads=1).patch(CLEAN, CORRUPTED, 5, 7, of=of)
        assert again.tobytes() == found.tobytes()


def test_metrics_and_heads_off(stories):
    clean, corrupted = "The girl was happy.", "The boy was happy."
    with heads.Model(stories) as model:
        rows = {}
        for off in (None, "1.*,0.2"):
            for text in (clean, corrupted):
                rows[text] = log_softmax(model.session(off=off).feed(text))
            for metric, want in (
                ("difference", lambda x: x[30] - x[40]),
                ("log_probability", lambda x: x[30]),
                ("kl", lambda x: (np.exp(rows[clean]) * (rows[clean] - x)).sum()),
            ):
                found = model.patch(clean, corrupted, 30, 40, "layers", metric, off)
                assert found.shape == (4, len(model.encode(clean)))
                # The last position's stream alone decides after the last layer.
                assert found[0, 0] == pytest.approx(want(rows[corrupted]), abs=1e-5)
                whole = model.patch(clean, clean, 30, 40, "layers", metric, off)
                assert whole == pytest.approx(want(rows[clean]), abs=1e-5)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize(
    "given, says",
    [
        (([3, 4], [3], 1, 2), r"clean has 2 tokens and corrupted 1: \['"),
        (([3], [4], 1, 2, "rows"), "of: expected 'heads' or 'layers', found 'rows'"),
        (([3], [4], 1, 2, "heads", "loss"), "metric: expected 'difference' or"),
        (([3], [4], 1), "metric 'difference' needs answer, against"),
        (([3], [4], None, 2, "heads", "log_probability"), "'log_probability' needs answer"),
        (([3], [4], "two words here", 2), "answer: 'two words here' is 4 tokens"),
        (([3], [4], -1, 2), "answer: expected a whole number from 0 to"),
        (([3], [4], 1, 2, "heads", "kl", "9.0"), "there are layers 0..3"),
    ],
)
def test_what_patching_refuses(given, says, stories):
    with heads.Model(stories) as model, pytest.raises(heads.InputError, match=says):
        model.patch(*given)


def test_encoders_have_no_experiments(tmp_path):
    path = tmp_path / "e.bin"
    assert export.main([str(GOLDEN / "encoders" / "modernbert"), str(path)]) == 0
    with heads.Model(path) as model:
        for call in (lambda: model.patch([3], [4], 1, 2), lambda: model.attribute([3], 1)):
            with pytest.raises(heads.InputError, match="this model is an encoder"):
                call()


# ---- attribution ----

SUMS = [
    "llama",
    "bloom",
    "falcon_h1-norm",
    "deepseek_v2",
    "gpt_oss",
    "lfm2-bias",
    "olmo3",
    "bitnet",
]


def parts_of(found) -> float:
    return found.heads.sum(dtype=float) + found.ffn.sum(dtype=float) + found.embedding + found.rest


@pytest.mark.parametrize("name", SUMS)
def test_parts_add_up_to_the_logit(name, exported):
    """In q8 too."""
    with heads.Model(exported(name)) as model:
        logits = model.logits(IDS)[-1]
        for against, want in ((None, logits[5]), (7, float(logits[5]) - float(logits[7]))):
            found = model.attribute(IDS, 5, against)
            assert found.logit == found.total == want
            assert parts_of(found) == pytest.approx(want, abs=1e-4)
            assert found.heads.shape[0] == len(found.ffn) == model.shape.n_layers


def test_a_softcap_comes_after_the_sum(exported):
    with heads.Model(exported("gemma2")) as model:
        found = model.attribute(IDS, 5)
        assert parts_of(found) == pytest.approx(found.total, abs=1e-4) != found.logit
        cap = json.loads((GOLDEN / "gemma2" / "config.json").read_text())["final_logit_softcapping"]
        assert cap * np.tanh(found.total / cap) == pytest.approx(found.logit, rel=0.02)


def test_a_head_off_has_no_part(stories):
    with heads.Model(stories) as model:
        found = model.attribute("The girl was", " happy", " sad", off="1.*,3.2")
        assert not found.heads[1].any() and found.heads[3, 2] == 0 != found.heads[3, 1]
        assert "heads.Attribution" in repr(found)


@pytest.mark.parametrize(
    "name, says",
    [
        ("bloom-normed", "layer 0 norms the residual stream itself"),
        ("zamba2", "layer 0 sends one branch through the next"),
    ],
)
def test_logits_that_are_no_sum(name, says, exported):
    with heads.Model(exported(name)) as model, pytest.raises(heads.InputError, match=says):
        model.attribute(IDS, 5)


# ---- the command line ----


def test_the_command_line_has_the_modules_numbers(run, stories):
    clean, corrupted = "The girl was happy.", "The boy was happy."
    args = (stories, "-p", clean, "--patch", corrupted, "--answer", " She, He")
    with heads.Model(stories) as model:
        for of in ("heads", "layers"):
            done = run(*args, "--of", of, "--json")
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            assert (said["answer"]["text"], said["against"]["text"]) == (" She", " He")
            want = model.patch(clean, corrupted, " She", " He", of)
            assert np.array_equal(np.array(said["results"], np.float32), want)
            assert [t["text"] for t in said["corrupted"]][1:3] == ["The", " boy"]
        lines = run(*args).stdout.decode().splitlines()
        assert lines[0].startswith('difference of " She" against " He": clean ')
        assert len(lines) == 22 and lines[2].endswith("%")
        done = run(stories, "-p", clean, "--attribute", " She, He", "--json")
        said, want = json.loads(done.stdout), model.attribute(clean, " She", " He")
        assert np.array_equal(np.array(said["heads"], np.float32), want.heads)
        assert np.array_equal(np.array(said["ffn"], np.float32), want.ffn)
        for name in ("embedding", "rest", "total", "logit"):
            assert said[name] == pytest.approx(getattr(want, name), rel=1e-8)
        shown = run(stories, "-p", clean, "--attribute", " She").stdout.decode()
        assert shown.startswith('logit of " She": ') and "  embedding  " in shown


@pytest.mark.parametrize(
    "args, says",
    [
        (
            ["-p", "One", "--patch", "One two three"],
            "the prompt has 2 tokens and the text of --patch",
        ),
        (["-p", "One", "--patch", "Two", "--of", "x"], '--of wants one of heads layers, found "x"'),
        (["-p", "One", "--patch", "Two", "--metric", "k"], "--metric wants one of difference"),
        (["-p", "One", "--patch", "Two", "--answer", " She"], "wants --answer TOKEN,AGAINST"),
        (["-p", "One", "--attribute", "no such token"], 'wants a token, found "no such token"'),
        (["--patch", "Two"], "--patch needs a prompt"),
    ],
)
def test_wrong_experiments(args, says, run, stories):
    done = run(stories, *args)
    assert done.returncode == 2 and says in done.stderr


# ---- a known circuit ----


def test_patching_finds_the_induction_circuit_and_nothing_else(tmp_path, run):
    """models/heads.bin says a second time what follows a token: a head of the first layer writes
    each token's predecessor, those of the second find it (Olsson et al. 2022). Two tokens of the
    first half changed places, so another one follows the last token."""
    path, rng = ROOT / "models" / "heads.bin", np.random.default_rng(3)
    layers = heads_of(path, tmp_path / "x.json", "--tokens", "5 6 7 8 9 5 6 7 8 9", "--no-cost")
    (previous,) = [x["head"] for x in layers["layers"][0]["heads"] if x["role"] == "previous"]
    with heads.Model(path) as model:
        for _ in range(3):
            once = rng.choice(np.arange(100, 3000), 12, replace=False).tolist()
            swapped = [*once[:3], once[7], *once[4:7], once[3], *once[8:]]
            clean, corrupted = [*once, *once[:4]], [*swapped, *once[:4]]
            answer, against = once[4], once[8]
            ends = [model.logits(ids)[-1] for ids in (clean, corrupted)]
            assert [x.argmax() for x in ends] == [answer, against]
            good, bad = (float(x[answer]) - float(x[against]) for x in ends)
            returned = (model.patch(clean, corrupted, answer, against) - bad) / (good - bad)
            found = {tuple(map(int, at)) for at in np.argwhere(abs(returned) > 0.02)}
            induction = {(1, head, 15) for head in range(4)}
            assert found == {(0, previous, 4), (0, previous, 8)} | induction
            assert sum(returned[at] for at in induction) == pytest.approx(1, abs=0.4)
            parts = model.attribute(clean, answer, against)
            assert parts.heads[1].sum() > 0.8 * parts.total
