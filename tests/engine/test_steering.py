"""Steering vectors (heads_sequence_steer, --steer, "steer"): what they add is what a probe between
layers would add, to the bit, however the text runs. tests/reference/live_looking.py compares them
with hooks in transformers."""

from __future__ import annotations

import json
import os
import struct
from contextlib import contextmanager
from ctypes import POINTER, c_size_t, c_void_p, cast, string_at
from pathlib import Path

import gguf
import numpy as np
import pytest

import heads
from heads._native import FLOATS, BatchOptions, Enter, Event, Probe, Request, Run, Steer
from heads._native import WorkspaceOptions, byref, calls, int_array

IDS = [3, 17, 9, 9, 21, 3, 17, 30]
RNG = np.random.default_rng(41)
LAYERS, WIDTH = 4, 128  # of the bundled model
VECTORS = {i: RNG.standard_normal(WIDTH).astype(np.float32) for i in range(LAYERS)}
GIVEN = [(0, 0.5), (2, -0.25)]  # layers and scales


def pointer(vector: np.ndarray):
    return vector.ctypes.data_as(FLOATS)


def steer(s, given) -> None:
    for layer, scale in given:
        calls.sequence_steer(s, layer, pointer(VECTORS[layer]), scale)


@contextmanager
def workspace(model, **options):
    w = calls.workspace_new(model._handles.model, byref(WorkspaceOptions(**options)))
    yield w
    calls.workspace_free(w)


def rows_of(w, s, ids, n: int | None = None) -> bytes:
    """The logits after the last n (all) of the ids, which s runs."""
    n = n or len(ids)
    logits = calls.forward(s, int_array(ids), len(ids), n)
    return string_at(logits, 4 * n * calls.logit_stride(w))


def run_alone(w, given, ids=IDS) -> bytes:
    s = calls.sequence_new(w, False)
    steer(s, given)
    rows = rows_of(w, s, ids)
    calls.sequence_free(s)
    return rows


def write(path: Path, vectors: dict[int, np.ndarray], **fields) -> Path:
    """As repeng does."""
    out = gguf.GGUFWriter(path, "controlvector")
    out.add_string("controlvector.model_hint", "llama")
    out.add_uint32("controlvector.layer_count", len(vectors))
    for name, value in fields.items():
        out.add_array(name, value)
    for layer, vector in vectors.items():
        out.add_tensor(f"direction.{layer}", vector)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.fixture(scope="module")
def model(stories):
    with heads.Model(stories) as m:
        assert (m.shape.n_layers, m.shape.n_embd) == (LAYERS, WIDTH)
        yield m


def test_a_vector_is_what_a_probe_adds(model):
    """Whole, in passes of one and of three tokens, with other threads and other kernels."""

    def add(_, given):
        x = given.contents
        rows = np.ctypeslib.as_array(x.rows, (x.n, x.stride))[:, : x.width]
        for layer, scale in GIVEN:
            if x.layer == layer + 1:
                rows += np.float32(scale) * VECTORS[layer]
        return x.layer

    with workspace(model) as w:
        probe = Probe(enter=Enter(add))
        calls.workspace_probe(w, byref(probe))
        want = run_alone(w, [])
        calls.workspace_probe(w, None)
        assert run_alone(w, GIVEN) == want != run_alone(w, [])
        assert run_alone(w, [(1, 0.0)]) == run_alone(w, [])
        last = run_alone(w, [(LAYERS - 1, 1.0)])
        assert last not in (want, run_alone(w, []))
        s = calls.sequence_new(w, False)
        steer(s, GIVEN)
        assert b"".join(rows_of(w, s, [i]) for i in IDS) == want
        calls.sequence_free(s)
    for options in ({"chunk": 3, "n_threads": 2}, {"isa": b"scalar", "chunk": 5, "logit_rows": 8}):
        with workspace(model, **options) as w:
            s = calls.sequence_new(w, False)
            steer(s, GIVEN)
            step = options["chunk"]
            found = [rows_of(w, s, IDS[i : i + step]) for i in range(0, len(IDS), step)]
            assert b"".join(found) == want
            calls.sequence_free(s)


def test_neighbours_keep_their_bits(model):
    lists = ([], GIVEN, [(3, 1.0)], [(0, 0.5)])
    with workspace(model) as w:
        alone = [run_alone(w, given) for given in lists]
        together = [calls.sequence_new(w, False) for _ in lists]
        for s, given in zip(together, lists):
            steer(s, given)
        runs = (Run * 4)(*(Run(s, int_array(IDS), len(IDS), len(IDS)) for s in together))
        found = string_at(calls.forward_runs(w, runs, 4), sum(map(len, alone)))
        assert found == b"".join(alone) and len(set(alone)) == 4
        for s in together:
            calls.sequence_free(s)


def test_vectors_add_up_and_are_taken_away(model):
    with workspace(model) as w:
        plain, steered = run_alone(w, []), run_alone(w, GIVEN)
        s = calls.sequence_new(w, True)
        steer(s, [(1, 3.0), (0, 0.25), (2, -0.25), (0, 0.25)])
        calls.sequence_steer(s, 1, None, 0)
        calls.sequence_steer(s, 3, None, 0)  # which has none
        assert rows_of(w, s, IDS[:5]) == steered[: len(steered) // 8 * 5]
        fork = calls.sequence_fork(s, 4)
        assert rows_of(w, fork, IDS[4:]) == steered[len(steered) // 2 :]
        for layer in (0, 2):
            calls.sequence_steer(s, layer, None, 0)  # the fork keeps them
        calls.sequence_rewind(fork, 4)
        assert rows_of(w, fork, IDS[4:]) == steered[len(steered) // 2 :]
        calls.sequence_free(fork)
        calls.sequence_rewind(s, 0)
        assert rows_of(w, s, IDS) == plain
        calls.sequence_free(s)


def test_it_may_change_within_a_text(model):
    """From there on alone: keys and values of earlier tokens stay."""
    with workspace(model) as w:
        s = calls.sequence_new(w, False)
        plain = run_alone(w, [])
        assert rows_of(w, s, IDS[:4]) == plain[: len(plain) // 2]
        steer(s, GIVEN)
        late = rows_of(w, s, IDS[4:])
        assert late not in (plain[len(plain) // 2 :], run_alone(w, GIVEN)[len(plain) // 2 :])
        calls.sequence_free(s)


def test_saved_sessions_know_it(model, tmp_path):
    path = os.fsencode(tmp_path / "session")
    with workspace(model) as w:
        want = run_alone(w, GIVEN)
        s = calls.sequence_new(w, False)
        steer(s, GIVEN)
        rows_of(w, s, IDS[:6])
        calls.sequence_save(s, path)
        data, size = c_void_p(), c_size_t()
        calls.sequence_bytes(s, byref(data), byref(size))
        calls.sequence_free(s)
        for again in (calls.sequence_load(w, path), calls.sequence_parse(w, data, size)):
            assert rows_of(w, again, IDS[6:]) == want[len(want) // 8 * 6 :]
            calls.sequence_free(again)
        calls.free(data)
    saved = (tmp_path / "session").read_bytes()
    assert struct.unpack_from("<i", saved, 60) == (2,)
    for n in (-1, LAYERS + 1):  # a header that says another number of layers
        wrong = bytearray(saved)
        struct.pack_into("<i", wrong, 60, n)
        (tmp_path / "session").write_bytes(wrong)
        with pytest.raises(heads.FileError, match="its header is damaged"):
            model.session(tmp_path / "session")


@pytest.mark.parametrize("keep", [0, 4])
def test_beginnings_are_shared_by_what_is_steered_alike(model, keep):
    """Each text is what it is alone, and a common beginning is that of the same vectors."""
    begin = [5 + i % 90 for i in range(80)]
    lists = [[], GIVEN, [], [(0, 0.5)], GIVEN]
    prompts = [[*begin, 200 + i] for i in range(len(lists))]

    def run(w, numbers, batch) -> dict[int, list[int]]:
        texts, at = {}, {}
        for i in numbers:
            steers = (Steer * len(lists[i]))(
                *(Steer(layer, pointer(VECTORS[layer]), scale) for layer, scale in lists[i])
            )
            ids = int_array(prompts[i])
            request = Request(
                ids=ids, n=len(ids), max_tokens=8, steers=steers, n_steers=len(steers)
            )
            at[calls.batch_add(batch, byref(request))] = i
        events = POINTER(Event)()
        while calls.batch_count(batch).waiting + calls.batch_count(batch).running:
            for event in events[: calls.batch_step(batch, byref(events))]:
                assert event.kind != 3, event.error
                if event.kind == 0:
                    texts.setdefault(at[event.request], []).append(event.id)
        return texts

    with workspace(model, logit_rows=8) as w:
        alone = {}
        for i in range(len(lists)):
            batch = calls.batch_new(w, byref(BatchOptions(0, 0, None, None)))
            alone.update(run(w, [i], batch))
            calls.batch_free(batch)
        assert len({tuple(x) for x in alone.values()}) >= 3
        batch = calls.batch_new(w, byref(BatchOptions(0, keep, None, None)))
        assert run(w, range(len(lists)), batch) == alone
        assert calls.batch_count(batch).spared == 2 * len(begin)
        assert run(w, [1, 0], batch) == {i: alone[i] for i in (0, 1)}
        spared = calls.batch_count(batch).spared
        assert spared == 2 * len(begin) if not keep else spared >= 4 * len(begin)
        calls.batch_free(batch)


# ---- files ----


def read(model, path: Path, scale: float = 1.0) -> dict[int, np.ndarray]:
    found = POINTER(Steer)()
    n = calls.read_steers(model._handles.model, os.fsencode(path), scale, byref(found))
    assert all(x.scale == scale for x in found[:n])
    vectors = {x.layer: np.array(x.vector[:WIDTH], np.float32) for x in found[:n]}
    calls.free(cast(found, c_void_p))
    return vectors


def test_files_of_repeng_and_llama_cpp(model, tmp_path):
    """direction.N goes after layer N, counted from 0; other metadata is passed over."""
    given = {i: VECTORS[i] for i in (3, 1)}
    path = write(tmp_path / "v.gguf", given, texts=["a", "bc"], numbers=[1.5, 2.5])
    found = read(model, path, 0.5)
    assert list(found) == [3, 1] and all(np.array_equal(found[i], given[i]) for i in given)
    data = path.read_bytes()
    for n in [*range(0, 200, 7), len(data) - 2 * WIDTH, len(data) - 4 * WIDTH]:
        (tmp_path / "cut").write_bytes(data[:n])
        with pytest.raises(heads.FileError, match="cut off|no GGUF|is empty"):
            read(model, tmp_path / "cut")
    rng = np.random.default_rng(7)
    for _ in range(300):  # bent ones are refused or read
        bent = bytearray(data)
        for at in rng.integers(0, 400, 3):
            bent[at] = rng.integers(0, 256)
        (tmp_path / "bent").write_bytes(bent)
        try:
            read(model, tmp_path / "bent")
        except heads.FileError as e:
            assert "bent: " in str(e)


LONG = np.zeros(WIDTH + 1, np.float32)
BAD_FILES = [
    ({1: LONG}, "direction.1 has 129 numbers, and the model's stream 128: it is for another model"),
    ({4: LONG[1:]}, "direction.4 is of a layer that the model has not: there are 0..3"),
    ({1: np.zeros(WIDTH, np.float16)}, "direction.1 is no vector of F32 numbers: it has type 1"),
    ({1: np.zeros((2, WIDTH), np.float32)}, "it has type 0 and 2 dimensions"),
    ({}, "it has no control vectors, tensors direction.1, direction.2 .."),
    ({"x": LONG}, "it has no control vectors"),
]


@pytest.mark.parametrize("vectors, says", BAD_FILES)
def test_bad_files(vectors, says, model, run, stories, tmp_path):
    path = write(tmp_path / "v.gguf", vectors)
    with pytest.raises(heads.FileError) as caught:
        read(model, path)
    assert says in str(caught.value) and "v.gguf: " in str(caught.value)
    done = run(stories, "-p", "a", "-n", 1, "--steer", path)
    assert (done.returncode, done.stdout) == (1, b"") and f"--steer: {path}: " in done.stderr


BAD = [
    (4, 0.0, 1.0, "a steering vector for layer 4; there are layers 0..3"),
    (-1, 0.0, 1.0, "layer -1"),
    (1, np.nan, 1.0, "steering vector's number 7 is nan, its scale 1"),
    (1, np.inf, 0.0, "number 7 is inf"),
    (1, 1.0, np.inf, "its scale inf"),
    (1, 3e38, 3.0, "number 7 is 3e\\+38, its scale 3, and their product"),
]


@pytest.mark.parametrize("layer, number, scale, says", BAD)
def test_bad_vectors(layer, number, scale, says, model):
    vector = np.full(WIDTH, 0.5, np.float32)
    vector[7] = number
    if scale == np.inf:
        says = "number 0 is 0.5, its scale inf"
    with workspace(model) as w:
        s = calls.sequence_new(w, False)
        steer(s, GIVEN)
        with pytest.raises(heads.InputError, match=says):
            calls.sequence_steer(s, layer, pointer(vector), scale)
        batch = calls.batch_new(w, byref(BatchOptions(0, 0, None, None)))
        steers = (Steer * 1)(Steer(layer, pointer(vector), scale))
        request = Request(ids=int_array(IDS), n=8, max_tokens=1, steers=steers, n_steers=1)
        with pytest.raises(heads.InputError, match=says):
            calls.batch_add(batch, byref(request))
        assert rows_of(w, s, IDS) == run_alone(w, GIVEN)  # nothing has changed
        calls.batch_free(batch)
        calls.sequence_free(s)


# ---- the command line ----


def test_the_command_line(model, run, stories, tmp_path):
    path = write(tmp_path / "v:1.gguf", VECTORS)
    want = b""
    with workspace(model) as w:
        want = run_alone(w, [(i, 0.5) for i in VECTORS])
        stride, vocab = calls.logit_stride(w), model.shape.vocab_size
    want = np.frombuffer(want, np.float32).reshape(len(IDS), stride)[:, :vocab]
    ids = ("--tokens", " ".join(map(str, IDS)))
    done = run(stories, *ids, "--logits", tmp_path / "logits", "--steer", f"{path}:0.5")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logits").read_bytes() == want.tobytes()
    texts = {}
    for name, more in {
        "plain": (),
        "one": ("--steer", path),
        "half": ("--steer", f"{path}:.5"),
    }.items():
        cache = ("--prompt-cache", tmp_path / "cache")  # the same file for all
        for _ in range(2):
            done = run(stories, "-p", "Once upon a time", "-n", 9, "--temp", 0, *more, *cache)
            assert texts.setdefault(name, done.stdout.decode()) == done.stdout.decode()
        assert "4 from" in done.stderr
        assert (
            run(stories, "-p", "Once upon a time", "-n", 9, "--temp", 0, *more).stdout.decode()
            == texts[name]
        )
    assert len(set(texts.values())) == 3
    asked = {"prompt": "Once upon a time", "max_tokens": 9, "temperature": 0}
    lines = [asked, {**asked, "steer": str(path)}, {**asked, "steer": f"{path}:0.5"}]
    lines += [{**asked, "steer": 1}, {**asked, "steer": "nowhere"}]
    (tmp_path / "asked").write_text("\n".join(map(json.dumps, lines)))
    done = run(stories, "--batch", tmp_path / "asked")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    whole = ["Once upon a time" + x["text"] for x in found[:3]]
    assert whole == [texts["plain"], texts["one"], texts["half"]]
    assert found[3]["error"].startswith('"steer" has to be a string, FILE or FILE:SCALE')
    assert found[4]["error"] == '"steer": cannot open nowhere: No such file or directory'
    done = run(stories, "--batch", tmp_path / "asked", "--steer", path)
    assert json.loads(done.stdout.splitlines()[0])["text"] == found[1]["text"]


# ---- the module ----


def test_a_direction_is_a_difference_of_means(model, tmp_path):
    """Of the stream after a layer at the last token, as a probe sees it."""
    texts = ["A happy fox", "They smiled", "A sad old fox", "They wept, and"]

    def stream(text: str, layer: int) -> np.ndarray:
        seen = {}

        def note(_, given):
            x = given.contents
            seen[x.layer] = np.ctypeslib.as_array(x.rows, (x.n, x.stride))[-1, :WIDTH].copy()
            return x.layer

        ids, probe = model.encode(text), Probe(enter=Enter(note))
        with workspace(model) as w:
            calls.workspace_probe(w, byref(probe))
            run_alone(w, [], ids)
        return seen[layer + 1].astype(np.float64)

    found = model.direction(texts[:2], texts[2:], [0, 2])
    assert list(found.vectors) == [0, 2]
    for layer, vector in found.vectors.items():
        a, b, c, d = (stream(text, layer) for text in texts)
        assert np.allclose(vector, (a + b) / 2 - (c + d) / 2, atol=1e-5) and vector.any()
    one = model.direction(texts[:2], iter(texts[2:]), 2)
    assert np.array_equal(one.vectors[2], found.vectors[2])
    for bad in (-1, LAYERS - 1, "x"):
        with pytest.raises(heads.InputError, match="layer: expected a whole number from 0 to 2"):
            model.direction(texts[:2], texts[2:], bad)
    for name in ("positive", "negative"):
        with pytest.raises(heads.InputError, match=f"{name}: expected a list of texts"):
            model.direction(**{"positive": texts, "negative": texts, "layer": 1, name: []})
    found.save(tmp_path / "v.gguf")
    again = model.steering(tmp_path / "v.gguf")
    fields = {f.name: f.contents() for f in gguf.GGUFReader(tmp_path / "v.gguf").fields.values()}
    assert fields["general.architecture"] == "controlvector"
    for vectors in (again.vectors, read(model, tmp_path / "v.gguf")):
        assert {i: v.tolist() for i, v in vectors.items()} == {
            i: v.tolist() for i, v in found.vectors.items()
        }


def test_steering_of_the_module(model, tmp_path):
    s = heads.Steering({0: VECTORS[0], 2: VECTORS[2]})
    assert repr(s).startswith("<heads.Steering, lengths by layer {0: 1")
    half = 0.5 * s + heads.Steering({3: VECTORS[3]})
    assert list(half.vectors) == [0, 2, 3] and np.array_equal(half.vectors[2], VECTORS[2] / 2)
    session = model.session(steer=0.5 * s)
    with workspace(model) as w:
        want = np.frombuffer(run_alone(w, [(0, 0.5), (2, 0.5)]), np.float32)
    want = want.reshape(len(IDS), -1)[:, : model.shape.vocab_size]
    assert np.array_equal(session.feed(IDS, all_rows=True), want)
    fork = session.fork(4)
    assert np.array_equal(fork.feed(IDS[4:]), want[-1])
    with model.session(session.to_bytes()) as again:
        assert np.array_equal(again.fork(4).feed(IDS[4:]), want[-1])
    fork.close()
    session.rewind(0)
    session.steer(None)
    assert np.array_equal(session.feed(IDS), model.logits(IDS)[-1])
    session.rewind(4)
    session.steer(s * 0.5)
    assert not np.array_equal(session.feed(IDS[4:]), want[-1])  # the first four are plain
    assert np.array_equal(model.lens(IDS, steer=0.5 * s)[:, -1], want)
    prompts = ["Once upon a time"] * 3
    texts = model.generate(prompts, 12, 0, steer=[None, s, 0.25 * s])
    assert texts == [model.generate(prompts[0], 12, 0, steer=x) for x in (None, s, 0.25 * s)]
    assert model.generate(prompts[0], 12, 0) == texts[0] != texts[1]
    assert "".join(model.generate(prompts[0], 12, 0, steer=s, stream=True)) == texts[1]
    session.save(tmp_path / "s")
    for says, make in {
        "saved": lambda: model.session(tmp_path / "s", steer=s),
        "a heads.Steering, found": lambda: model.session(steer=3),
        "layer 4; there are layers 0..3": lambda: session.steer(heads.Steering({4: VECTORS[0]})),
        "layer 1's vector has 129 numbers": lambda: model.generate(
            "a", steer=heads.Steering({1: LONG})
        ),
        "2 of them for 1 prompts": lambda: model.generate("a", steer=[s, s]),
        "layer 1's is no vector of finite": lambda: heads.Steering({1: [np.nan]}),
        "layer 0's is no vector of finite": lambda: s * 3e38,
        "scale: expected a number": lambda: s * np.inf,
        "vectors: expected a dict": lambda: heads.Steering([1.0]),
    }.items():
        with pytest.raises(heads.InputError, match=says):
            make()
