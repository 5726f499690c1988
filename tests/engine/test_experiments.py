"""Experiments: what heads give, changed (heads_probe.mixed). tests/reference/live_models.py compares
them with transformers."""

from __future__ import annotations

import ctypes
import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import export
import heads
from heads._native import (
    Enter,
    Look,
    Mixed,
    Patching,
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


def test_a_part_of_the_map(stories):
    """As a page asks for it, which draws while it computes; no more of the results is written."""
    clean, corrupted = (CLEAN, [3, 17, 9, 9, 21, 8, 17, 31])
    with heads.Model(stories) as model:
        want = model.patch(clean, corrupted, 5, 7, of="layers")
        found = np.full_like(want, 9)
        for part in ((1, 2, 4, 3), (3, 0, 7, 0), (0, 1, 0, 8)):
            asked = Patching(int_array(clean), int_array(corrupted), 8, 1, 0, 5, 7, None)
            asked.from_layer, asked.n_layers, asked.from_position, asked.n_positions = part
            pointer = found.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            calls.patch(model._handles.model, None, byref(asked), pointer, None)
        mark = np.zeros(want.shape, bool)
        mark[1:3, 4:7] = mark[3:, 7:] = mark[0] = True
        assert np.array_equal(found[mark], want[mark]) and (found[~mark] == 9).all()
        asked.from_layer = 5
        with pytest.raises(heads.InputError, match=r"1 layers from 5 on: there are 0..3"):
            calls.patch(model._handles.model, None, byref(asked), pointer, None)


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


# ---- one head ----

# What their attention has: all heads' own keys, shared ones, a latent, a window, softcap, sinks,
# ALiBi, rope of some numbers, norms of q and k, also after rope, another layer's keys, a gate, a
# norm of all heads, temperatures of queries, a nested layer.
DISSECTED = {
    "gpt2": 1,
    "llama": 1,
    "deepseek_v2": 1,
    "deepseek_v3": 1,
    "gemma2": 1,
    "gpt_oss": 1,
    "bloom": 1,
    "gpt_neox": 1,
    "gemma3": 0,
    "hunyuan": 1,
    "gemma4": -1,
    "qwen3_next": -1,
    "bitnet": 0,
    "llama4": 1,
    "zamba2": -1,
}


@pytest.mark.parametrize("name", DISSECTED)
def test_a_heads_parts_are_the_passes_own(name, tmp_path):
    """Bit by bit where a probe sees them; the rest follows from one another."""
    path, ids, rows, mixed = in_f32(name, tmp_path), IDS * 3, {}, {}
    at, rng = len(IDS) * 2 + 3, np.random.default_rng(len(name))

    def look(_, given, __):
        x = given[0]
        rows[x.layer, x.head, x.position] = (np.array(x.weights[: x.n], "<f4"), x.first, x.sink)

    def note(_, given):
        if given[0].head == 0:
            mixed[given[0].layer] = rows_of(given[0])[at].copy()

    with passes(path) as run:
        run(ids, attention=Look(look), mixed=TakeMixed(note))
    layer = sorted({key[0] for key in rows})[DISSECTED[name]]
    head = int(rng.integers(len(mixed[layer])))
    with heads.Model(path, kv="f32") as model, passes(path) as run:
        p = heads.Model(path).parts(ids, layer, head, at)
        weights, first, sink = rows[layer, head, at]
        assert p.turned.weights.tobytes() == weights.tobytes() and p.first == first
        assert p.turned.sink == np.float32(sink)
        assert p.mixed.tobytes() == mixed[layer][head].tobytes()
        p = model.parts(ids, layer, head, at)
        assert head in p.sharing and p.kv_layer <= layer
        for s in (p.turned, p.plain):
            close(s.k @ s.q * p.scale, s.products)
            top = max(s.scores.max(), -1e9)
            exact = np.exp(s.scores - top) * s.weights[s.scores.argmax()]
            close(exact, s.weights)
            assert s.weights.sum() + s.sink == pytest.approx(1, abs=1e-5)
        close(p.turned.weights @ p.v, p.mix)
        turned = slice(p.rope, p.rope + p.n_rope)
        still = np.delete(np.arange(len(p.turned.q)), np.arange(len(p.turned.q))[turned])
        if name != "hunyuan":  # which norms after rope
            close(p.turned.q[still], p.plain.q[still])
        assert (p.n_rope > 0) == (p.plain.q.tobytes() != p.turned.q.tobytes())
        if not first:  # a turn by an angle of 0
            close(p.turned.k[0], p.plain.k[0])
        for s, x in ((p.turned, p.plain), (p.plain, p.turned)):
            norms = [np.square(y[turned]).sum() for y in (s.q, x.q)]
            assert norms[0] == pytest.approx(norms[1], rel=0.5 if name == "hunyuan" else 1e-4)
        assert p.latents is None or p.q_latent @ p.mix_latent == pytest.approx(
            (p.turned.weights @ p.latents) @ p.q_latent, rel=1e-3, abs=1e-4
        )
        if p.mix.tobytes() != p.mixed.tobytes():  # a latent's, or a gate
            assert p.latents is not None or name in ("qwen3_next",)
        off = model.parts(ids, layer, head, at, off=f"{layer}.{head}")
        assert not off.mixed.any() and not off.out.any() and np.array_equal(off.mix, p.mix)


def close(found, want) -> None:
    assert np.abs(found - want).max(initial=0) <= 1e-4 * max(1, np.abs(want).max(initial=0))


def in_f32(name: str, folder) -> Path:
    path = folder / f"{name}.bin"
    assert export.main([str(GOLDEN / name), str(path), "--dtype", "f32"]) == 0
    return path


@pytest.mark.parametrize("name", ["gpt_neox", "falcon"])
def test_what_a_head_adds_is_gone_when_it_is_off(name, tmp_path):
    """The network of these layers has the same input as attention, and so knows nothing of it."""
    path, kept = in_f32(name, tmp_path), {}

    def keep(_, given):
        kept[given[0].layer] = ctypes_rows(given[0])[-1].copy()
        return given[0].layer

    with passes(path) as run, heads.Model(path) as model:
        run(IDS, enter=Enter(keep))
        whole = kept[1]
        for head in (0, 2):
            run(IDS, b"0.%d" % head, enter=Enter(keep))
            close(model.parts(IDS, 0, head).out, whole - kept[1])


def test_parts_of_what_is_steered(tmp_path):
    """The stream less itself leaves nothing for the next layer."""
    path, kept = in_f32("llama", tmp_path), {}

    def keep(_, given):
        kept[given[0].layer] = ctypes_rows(given[0])[-1].copy()
        return given[0].layer

    with passes(path) as run, heads.Model(path) as model:
        run(IDS, enter=Enter(keep))
        found = model.parts(IDS, 1, 0, steer=heads.Steering({0: -kept[1]}))
        assert model.parts(IDS, 1, 0).turned.q.any() and not found.turned.q.any()


@pytest.mark.parametrize(
    "given, says",
    [
        (([], 0, 0), "the prompt is empty"),
        (([3], 9, 0), "layer: expected a whole number from 0 to 3, found 9"),
        (([3], 0, 9), r"head 9: layer 0 has 0..\d"),
        (([3], 0, 0, 1), "position: expected a whole number from 0 to 0, found 1"),
        (([3], 0, 0, 0, "9.0"), "there are layers 0..3"),
        (([3], 0, 0, 0, None, 3), "steer: expected a heads.Steering"),
    ],
)
def test_heads_that_are_not_there(given, says, stories):
    with heads.Model(stories) as model, pytest.raises(heads.InputError, match=says):
        model.parts(*given)


def test_a_layer_without_attention(exported):
    with heads.Model(exported("mamba2")) as model:
        with pytest.raises(heads.InputError, match="layer 1 has no attention: Mamba-2"):
            model.parts([3], 1, 0)


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


def test_the_command_line_has_a_heads_parts(run, stories, exported, tmp_path):
    text = "The girl was happy."
    with heads.Model(stories) as model:
        p = model.parts(text, 2, 1, 3, off="1.0")
        args = (stories, "-p", text, "--parts", "2.1:3", "--off", "1.0")
        said = json.loads(run(*args, "--json").stdout)
        same_parts(said, p)
        assert [t["text"] for t in said["tokens"]][1:3] == ["The", " girl"]
        shown = run(*args).stdout.decode().splitlines()
        assert shown[0].startswith('head 2.1 at position 3, " was": KV head 0 of layer 2, which')
        assert len(shown) == 2 + 4 + 1 and f"{p.turned.weights.max():.4f}" in shown[2]
    steer = heads.Steering({0: np.ones(48)})
    steer.save(tmp_path / "v.gguf")
    for name in ("deepseek_v2", "gpt_oss"):
        args = (exported(name), "--tokens", "3 17 9", "--parts", "1.2")
        with heads.Model(exported(name)) as model:
            given = {}
            if model.shape.n_embd == 48:
                given, args = {"steer": steer}, (*args, "--steer", tmp_path / "v.gguf")
            p = model.parts([3, 17, 9], 1, 2, **given)
        same_parts(json.loads(run(*args, "--json").stdout), p)
        assert ("\nsink " in run(*args).stdout.decode()) == (name == "gpt_oss")


def same_parts(said: dict, p) -> None:
    """Bit by bit: nine digits name a float."""
    for name in ("v", "mix", "mixed", "out", "latents", "q_latent", "mix_latent"):
        if getattr(p, name) is not None:
            assert np.array_equal(np.array(said[name], "<f4"), getattr(p, name))
    for of in ("turned", "plain"):
        for name in ("q", "k", "products", "scores", "weights"):
            assert np.array_equal(np.array(said[of][name], "<f4"), getattr(getattr(p, of), name))
    assert said["sharing"] == [p.sharing.start, p.sharing.stop - 1]
    assert (said["first"], said["kv_layer"]) == (p.first, p.kv_layer)


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
        (["-p", "One", "--parts", "2"], "--parts wants LAYER.HEAD or LAYER.HEAD:POSITION, such as"),
        (["-p", "One", "--parts", "2.1:"], 'found "2.1:"'),
        (["-p", "One", "--parts", "2.-1"], 'found "2.-1"'),
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
