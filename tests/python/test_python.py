"""The module `heads`: what it gives is what ./run gives, from many threads and processes too.

HEADS_INSTALLED=1 python -m pytest tests/python/test_python.py    of the installed package
"""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checkpoints
import documents
import numpy as np
import pytest
import talkers
import test_encoders
from conftest import ALL, ROOT

import export
import heads
from heads.server.templates import template_text

PLACE = Path(heads.__file__).parent.parent
PYTHONPATH = {**os.environ, "PYTHONPATH": str(PLACE)}

PROMPTS = ["Once upon a time", "One fine day", "A", "The little dog", "Once upon a hill", ""] * 3
FAMILIES = [
    "llama",
    "mistral",
    "deepseek_v2",
    "lfm3",
    "qwen3_next",
    "mamba2",
    "falcon_h1-norm",
    "phi3-longer",
    "phimoe",
]


@pytest.fixture(scope="module")
def model(stories):
    with heads.Model(stories) as m:
        yield m


def said(run, model, prompt: str, *options) -> str:
    """What ./run adds to a prompt."""
    done = run(model, "-p", prompt, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()[len(prompt) :]


def test_generates_what_run_does(run, stories, model):
    for seed, temp in ((0, 0.8), (3, 0.8), (3, 1.5), (0, 0)):
        options = ("-s", seed, "--temp", temp, "-n", 40)
        text = model.generate("Once upon a time", 40, temp, seed)
        assert text == said(run, stories, "Once upon a time", *options)
        assert text.stopped == "max_tokens" and len(text.tokens) == 40


def test_sampling_options_are_runs(run, stories, model):
    options = dict(top_k=7, top_p=0.9, min_p=0.02, repeat_penalty=1.2)
    flags = [x for k, v in options.items() for x in ("--" + k.replace("_", "-"), v)]
    want = said(run, stories, "One day", "-s", 5, "-n", 30, *flags)
    assert model.generate("One day", 30, seed=5, **options) == want


@pytest.mark.parametrize("parallel", [1, 3, 16])
def test_many_prompts_give_what_each_gives(model, parallel):
    together = model.generate(PROMPTS, 24, seed=2, parallel=parallel)
    assert together == [model.generate(p, 24, seed=2) for p in PROMPTS]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_mixer_beside_others_and_forked(exported, run, family, tmp_path):
    """Beginnings that are shared, and one that crosses a window or a longer table."""
    path = exported(family)
    rng = np.random.default_rng(4)
    with heads.Model(path, chunk=32) as m:
        size = m.shape.vocab_size
        shared = rng.integers(0, size, 50).tolist()
        prompts = [shared + rng.integers(0, size, n).tolist() for n in (1, 5, 30)] + [shared[:20]]
        got = m.generate(prompts, 16, seed=1, parallel=3)
    lines = "".join(json.dumps({"tokens": p, "seed": 1, "max_tokens": 16}) + "\n" for p in prompts)
    (tmp_path / "in").write_text(lines)
    done = run(path, "--batch", tmp_path / "in")
    assert [t.tokens for t in got] == [json.loads(x)["tokens"] for x in done.stdout.splitlines()]


def test_stop_strings(model):
    whole = model.generate("Once upon a time", 60, seed=1)
    stop = whole[30:33]
    text = model.generate("Once upon a time", 60, seed=1, stop=["never in it", stop])
    assert text == whole[: whole.index(stop)] and text.stopped == "stop"
    streamed = "".join(model.generate("Once upon a time", 60, seed=1, stop=stop, stream=True))
    assert streamed == text


def test_streams_what_it_returns(model):
    pieces = list(model.generate(PROMPTS, 24, seed=2, stream=True))
    texts = [""] * len(PROMPTS)
    for index, piece in pieces:
        texts[index] += piece
    assert texts == model.generate(PROMPTS, 24, seed=2) and len(pieces) > len(PROMPTS)


def test_a_stream_that_is_left_frees_its_place(model):
    stream = model.generate("Once upon a time", 60, stream=True)
    next(stream)
    stream.close()
    assert model.generate("Once", 5, seed=1) == model.generate("Once", 5, seed=1)


def test_context_ends_a_text(stories):
    with heads.Model(stories, context=20) as m:
        ids = m.encode("Once upon a time")
        text = m.generate("Once upon a time", 60, seed=1)
        assert text.stopped == "context" and len(ids) + len(text.tokens) == 21


# ---- scores, logits ----


def log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows.astype(np.float64) - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_logits_are_runs(run, stories, model, tmp_path):
    text = "One fine day, a curious hedgehog " * 9
    run(stories, "-p", text, "--logits", tmp_path / "l")
    want = np.fromfile(tmp_path / "l", "<f4").reshape(-1, model.shape.vocab_size)
    assert np.array_equal(model.logits(text), want)


def test_scores_are_sums_of_log_softmax(model):
    contexts = ["Once upon a", "Once upon a", "One fine day, a curious"]
    continuations = [" time", " potato", " hedgehog named Clara"]
    for context, continuation, (got, greedy) in zip(
        contexts, continuations, model.score(contexts, continuations)
    ):
        n = len(model.encode(context))
        ids = model.encode(context + continuation)
        rows = log_softmax(model.logits(ids[:-1]))[n - 1 :]
        assert got == pytest.approx(sum(r[i] for r, i in zip(rows, ids[n:])), rel=1e-6, abs=1e-6)
        assert greedy == (rows.argmax(1).tolist() == ids[n:])
    assert model.score(contexts, continuations, parallel=1) == model.score(contexts, continuations)


def test_trailing_spaces_belong_to_the_continuation(model):
    assert model.score(["Once upon a "], ["time"]) == model.score(["Once upon a"], [" time"])


def test_perplexity_is_runs(run, stories, model, tmp_path):
    text = "Once upon a time there was a dog. " * 60
    (tmp_path / "t").write_text(text)
    printed = run(stories, "--ppl", tmp_path / "t").stdout.decode()
    assert f"perplexity {model.perplexity(text):.4f} " in printed


def test_logits_that_are_no_numbers(stories, tmp_path, model):
    """They are an error wherever a text has them, never a wrong number."""
    path, texts = tmp_path / "nan.bin", ["A dog", "Once upon a time"]
    bad = model.encode(texts[1])[-1]
    path.write_bytes(checkpoints.with_nan(checkpoints.random_model(tokenizer=stories), bad))
    with heads.Model(path) as m:
        assert m.generate(texts[0], 1)
        for ask in (
            lambda: m.generate(texts, 1),
            lambda: list(m.generate(texts, 1, stream=True)),
            lambda: m.score(texts, [" b"] * 2),
            lambda: m.perplexity(texts[1] + " there"),
            lambda: m.logits(m.encode(texts[1])),
        ):
            with pytest.raises(heads.HeadsError, match="are no finite numbers"):
                ask()


# ---- attention ----


@pytest.mark.parametrize(
    "family", ["gpt_oss", "gemma4", "deepseek_v3", "qwen3_next", "lfm3", "phi3-longer"]
)
def test_attention_is_runs(exported, run, family, tmp_path):
    """Of windows, sinks, latents, other layers' keys, and layers that have none."""
    path = exported(family)
    with heads.Model(path, chunk=16) as m:
        ids = np.random.default_rng(6).integers(0, m.shape.vocab_size, 40).tolist()
        found = m.attention(ids)
        before = m.logits(ids)
    run(path, "--tokens", " ".join(map(str, ids)), "--heads", tmp_path / "heads.json")
    layers = json.loads((tmp_path / "heads.json").read_text())["layers"]
    want, sinks = np.zeros_like(found.weights), np.zeros_like(found.sinks)
    for layer in layers:
        for head in layer.get("heads", []):
            at = (layer["layer"], head["head"])
            for i, row in enumerate(head["map"]):
                want[(*at, i)][: len(row)] = row
            sinks[at] = head.get("sink", 0)
    assert found.tokens == ids and found.weights.dtype == np.float32 and want.any()
    assert np.allclose(found.weights, want, rtol=1e-5, atol=1e-12)
    assert np.allclose(found.sinks, sinks, rtol=1e-5) and sinks.any() == (family == "gpt_oss")
    rows = found.weights.sum(-1) + found.sinks
    has = [bool(layer.get("heads")) for layer in layers]
    assert np.allclose(rows[has], 1) and not rows[[not h for h in has]].any()
    with heads.Model(path) as m:
        assert np.array_equal(m.logits(ids), before)


@pytest.mark.parametrize(
    "name", ["encoder_decoders/bart", "encoder_decoders/t5-gated", "encoders/modernbert"]
)
def test_attention_of_texts_that_see_all(name, run, tmp_path):
    """The encoder's, the decoder's, and from one to the other."""
    golden = test_encoders.GOLDEN.parent / name
    path = test_encoders.exported(golden, tmp_path / "model.bin")
    source, target = [5, 6, 7, 8, 9] * 7, [2, 9, 8, 9, 8, 7]
    both = "decoders" in name
    with heads.Model(path, chunk=4) as m:
        read = (target, source) if both else (source, None)
        found = m.attention(read[0], source=read[1])
        with pytest.raises(heads.HeadsError, match="encoder-decoder, so"):
            m.attention(target, source=None if both else source)
        with pytest.raises(heads.HeadsError, match="and max_bytes is 99"):
            m.attention(read[0], 99, source=read[1])
    more = ("--target", " ".join(map(str, target))) if both else ()
    run(path, "--tokens", " ".join(map(str, source)), *more, "--heads", tmp_path / "heads.json")
    layers = json.loads((tmp_path / "heads.json").read_text())["layers"]
    arrays = {
        "encoder": found.encoder if both else found.weights,
        "decoder": found.weights,
        "cross": found.cross,
    }
    assert (found.source, found.tokens) == ((source, target) if both else (None, source))
    for layer in layers:
        for head in layer["heads"]:
            rows = arrays[layer["kind"]][layer["layer"], head["head"]]
            assert np.allclose(rows.sum(-1), 1, atol=1e-6) and len(rows) == len(head["map"])
            for i, row in enumerate(head["map"]):
                assert np.allclose(rows[i][: len(row)], row, rtol=1e-5, atol=1e-12)


def test_attention_has_a_limit(model):
    text = "Once upon a time"
    n = 4 * 4 * 8 * 5 * 5
    assert model.attention(text, max_bytes=n).weights.nbytes == n
    with pytest.raises(heads.HeadsError, match=f"take {n:,} bytes, and max_bytes is {n - 1:,}"):
        model.attention(text, max_bytes=n - 1)


# ---- text and ids ----


def test_ids_are_runs(run, stories, model):
    for text in ("Once upon a time", "  spaces \n and lines", "Grüße 😀", ""):
        printed = run(stories, "--tokenize", "-p", text).stdout.decode()
        assert model.encode(text) == [int(i) for i in printed.split()]
        assert model.decode(model.encode(text)) == text


# ---- sessions ----


def test_sessions_fork_rewind_and_save(model, tmp_path):
    more = model.encode(", there was", special=False)
    with model.session() as s:
        s.feed("Once upon a time")
        assert s.tokens == model.encode("Once upon a time")
        fork, want = s.fork(), s.feed(more)
        assert want.shape == (model.shape.vocab_size,) and np.array_equal(fork.feed(more), want)
        s.rewind(len(s) - len(more))
        s.save(tmp_path / "s")
        assert np.array_equal(model.session(tmp_path / "s").feed(more), want)
        assert np.array_equal(model.logits(s.tokens + more)[-1], want)


def test_sessions_in_memory(exported, tmp_path):
    """The bytes of the file, which go on as it does; and bytes that are none."""
    for family in ("llama", "mistral", "qwen3_next"):
        with heads.Model(exported(family), threads=1) as m, m.session() as session:
            session.feed(list(range(5, 45)))
            session.save(tmp_path / family)
            data = session.to_bytes()
            assert data == (tmp_path / family).read_bytes()
            with m.session(data) as again, m.session(tmp_path / family) as mapped:
                assert again.tokens == session.tokens
                rows = [s.feed([7, 8], all_rows=True) for s in (session, again, mapped)]
                assert rows[0].tobytes() == rows[1].tobytes() == rows[2].tobytes()
            for bad in (b"", b"\xff", data[:100], data[:-1], data + b"\0"):
                with pytest.raises(heads.FileError, match="session"):
                    m.session(bad)
            damaged = bytearray(data)
            damaged[-9] ^= 1
            with pytest.raises(heads.HeadsError, match="damaged"):
                m.session(bytes(damaged)).feed([7])
            with pytest.raises(heads.HeadsError, match="nothing to save"):
                m.session().to_bytes()


def test_a_session_ends_with_its_model(stories):
    m = heads.Model(stories)
    s = m.session()
    m.close()
    with pytest.raises(heads.HeadsError, match="closed"):
        s.feed("Once")


# ---- threads and processes ----


def test_threads_take_turns(model):
    want = [model.generate("Once upon a time", 20, seed=i) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: model.generate("Once upon a time", 20, seed=i), range(8)))
    assert got == want


def test_pickled(model):
    copy = pickle.loads(pickle.dumps(model))
    assert copy.generate("Once", 9, seed=1) == model.generate("Once", 9, seed=1)


def test_a_relative_path_is_of_the_folder_that_it_was_given_in(tmp_path, stories, monkeypatch):
    for name, data in (("a", stories.read_bytes()), ("b", b"another file")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.bin").write_bytes(data)
    monkeypatch.chdir(tmp_path / "a")
    with heads.Model("m.bin", threads=1) as m:
        want = m.generate("Once", 5)
        monkeypatch.chdir(tmp_path / "b")
        for other in (copy.copy(m), pickle.loads(pickle.dumps(m))):
            assert other.generate("Once", 5) == want
            other.close()
        assert in_child(lambda: m.generate("Once", 5)) == want.encode()
        with pytest.raises(heads.FileError, match="^[^/]*m.bin"):
            heads.Model("m.bin")


def in_child(work) -> bytes:
    """What work() returns in a child of fork()."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def test_used_after_fork(model):
    want = model.generate("Once", 9, seed=1)
    assert in_child(lambda: model.generate("Once", 9, seed=1)).decode() == want
    with model.session() as s:
        s.feed("Once")

        def use() -> str:
            with pytest.raises(heads.HeadsError, match="closed"):
                s.feed(" upon")
            return "refused"

        assert in_child(use) == b"refused"
        stream = model.generate("Once", stream=True)
        next(stream)

        def go_on() -> str:
            with pytest.raises(heads.HeadsError, match="the process forked"):
                next(stream)
            return "refused"

        assert in_child(go_on) == b"refused"
    assert model.generate("Once", 9, seed=1) == want


def test_threads_as_the_environment_says(stories, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1,2")
    assert heads.Model(stories).info()["threads"] == 1
    assert heads.Model(stories, threads=2).info()["threads"] == 2


def test_interrupted(stories):
    """Ctrl-C ends generate with KeyboardInterrupt, and the model can be used again."""
    script = f"""
import threading, _thread
import heads
from heads.server.templates import template_text
m = heads.Model({str(stories)!r})
threading.Timer(0.3, _thread.interrupt_main).start()
try:
    while True:
        m.generate(["Once"] * 50, 400)
except KeyboardInterrupt:
    print(len(m.generate("Once", 5, seed=1).tokens))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=PYTHONPATH, capture_output=True, timeout=60
    )
    assert done.stdout == b"5\n", done.stderr.decode()


# ---- vectors ----


@pytest.mark.parametrize("options", [{}, {"threads": 1, "chunk": 7}, {"isa": "scalar"}])
def test_vectors_are_runs(run, tmp_path, options):
    """Bit for bit, of texts in any order, beside others or alone, and of ids."""
    source = test_encoders.with_texts(tmp_path / "source")
    path = test_encoders.exported(source, tmp_path / "model.bin")
    texts = [*test_encoders.TEXTS, "the long words of a text that is cut"] * 40
    (tmp_path / "lines").write_text("".join(text + "\n" for text in texts))
    want = test_encoders.vectors(run, path, "-f", tmp_path / "lines")
    with heads.Model(path, **options) as m:
        assert m.embed(texts).dtype == np.float32
        assert m.embed(texts).tobytes() == want.tobytes()
        assert m.embed(texts[3]).tobytes() == want[3].tobytes()
        assert m.embed([test_encoders.spell(texts[0])]).tobytes() == want[:1].tobytes()
        assert m.embed([]).shape == (0, m.shape.n_embd)
        for bad, says in (([[]], "text 0 has no ids"), ([[999]], "999 is no token of this model")):
            with pytest.raises(heads.HeadsError, match=says):
                m.embed(bad)


# ---- exporting ----

LLAMA = ROOT / "tests" / "golden" / "llama"


def export_command(*args: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "heads", "export", *map(str, args)]
    return subprocess.run(command, env=PYTHONPATH, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [{}, {"dtype": "q4"}, {"kv_heads": 1}, {"shape_only": True}])
def test_exports_what_export_does(tmp_path, options):
    """The same bytes from the function, python -m heads export, and export.py."""
    flags = [
        x
        for name, value in options.items()
        for x in ("--" + name.replace("_", "-"), value)
        if value is not True or x is not value
    ]
    with warnings.catch_warnings(record=True):  # it has no tokenizer
        heads.export(LLAMA, tmp_path / "function", **options)
    done = export_command(LLAMA, tmp_path / "module", *flags)
    assert done.returncode == 0 and "llama: llama, " in done.stdout, done.stderr
    assert export.main([str(x) for x in (LLAMA, tmp_path / "script", *flags)]) == 0
    for name in ("module", "script"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "function").read_bytes()
    if not options:
        with heads.Model(tmp_path / "function") as m:
            assert len(m.generate([5, 6], 3).tokens) == 3


@pytest.mark.parametrize("command", [[ROOT / "export.py"], ["-m", "heads", "export"]])
def test_numpy_exports_with_one_thread(tmp_path, command):
    """More would give other moments, and take many times as long."""
    say = "import os, sys; sys.exit(f'threads: {os.environ.get(\"OPENBLAS_NUM_THREADS\")}')"
    (tmp_path / "numpy.py").write_text(say)
    path = f"{tmp_path}{os.pathsep}{PYTHONPATH['PYTHONPATH']}"
    env = {k: v for k, v in PYTHONPATH.items() if k != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**env, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "threads: 1\n"


@pytest.mark.parametrize(
    ("src", "options", "says"),
    [
        (LLAMA, {"dtype": "q7"}, "dtype: 'q7' is none of f32, bf16, q8, q6"),
        (LLAMA, {"kv_heads": 5}, "5"),
        (LLAMA, {"revision": "main"}, "revision is for hub ids"),
        ("no/such/file", {}, "no such file or directory"),
    ],
)
def test_a_failed_export_raises_and_leaves_what_there_was(tmp_path, src, options, says):
    out = tmp_path / "model.bin"
    out.write_text("mine")
    with pytest.raises(heads.HeadsError, match=says):
        heads.export(src, out, **options)
    assert out.read_text() == "mine" and [p.name for p in tmp_path.iterdir()] == ["model.bin"]


def test_an_interrupted_export_leaves_nothing(tmp_path):
    """In the function, whose caller sees the interrupt, and in the command."""
    script = f"""
import threading, _thread, os, time
import heads
from heads.server.templates import template_text
def interrupt():
    while not os.listdir({str(tmp_path)!r}): time.sleep(0.001)
    _thread.interrupt_main()
import heads.exporter.checkpoint as checkpoint
pack = checkpoint.pack
checkpoint.pack = lambda *a: (time.sleep(0.2), pack(*a))[1]
threading.Thread(target=interrupt).start()
try:
    heads.export({str(LLAMA)!r}, {str(tmp_path / "x.bin")!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=PYTHONPATH, capture_output=True, timeout=60
    )
    assert done.stdout == b"interrupted\n" and not list(tmp_path.iterdir()), done.stderr
    command = [sys.executable, "-m", "heads", "export", "--random", "smollm-135m"]
    process = subprocess.Popen(
        [*command, tmp_path / "x.bin"], env=PYTHONPATH, text=True, stderr=subprocess.PIPE
    )
    while process.poll() is None and not list(tmp_path.iterdir()):
        time.sleep(0.01)
    process.terminate()
    assert "export: interrupted; nothing was written" in process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM and not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["argparse", "numpy"])
def test_ctrl_c_while_modules_are_imported(tmp_path, module):
    (tmp_path / f"{module}.py").write_text("import os\nos.kill(os.getpid(), 2)\n1 / 0\n")
    path = f"{tmp_path}{os.pathsep}{PYTHONPATH['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "heads", "export", LLAMA, tmp_path / "x.bin"],
        env={**PYTHONPATH, "PYTHONPATH": path},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (130, b"")


def test_what_a_user_should_know_of_an_export_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="no tokenizer found") as caught:
        heads.export(LLAMA, tmp_path / "x.bin")
    assert caught[0].filename == __file__


def test_the_command_says_what_is_wrong():
    done = export_command("a")
    assert done.returncode == 2
    assert "see python -m heads export --help" in done.stderr


def heads_command(*args: object, **options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "heads", *map(str, args)]
    return subprocess.run(
        command, env=PYTHONPATH, capture_output=True, text=True, timeout=120, **options
    )


def test_the_command_runs_the_engine(run):
    """What is no command of Python's is the program's, which then calls itself heads."""
    options = [ROOT / "models" / "stories.bin", "-p", "One day", "-s", 1, "-n", 12]
    done = heads_command(*options)
    assert (done.returncode, done.stdout) == (0, run(*options).stdout.decode())
    done = heads_command("no-such.bin")
    assert done.returncode == 1 and done.stderr.startswith("heads: cannot open no-such.bin")
    done = heads_command("sreve", "x.bin")
    assert done.returncode == 2 and "command 'sreve': did you mean serve?" in done.stderr
    done = heads_command("x.bin", "--sead", 1)
    assert done.returncode == 2 and "(heads --help lists the options)" in done.stderr
    done = heads_command("--help")
    assert done.returncode == 0 and done.stdout.startswith("heads [MODEL] [options] ")
    assert "heads serve MODEL" in done.stdout and "--prompt-cache" in done.stdout
    done = heads_command("-s", 1)
    assert done.stdout == run("models/stories.bin", "-s", 1).stdout.decode()


def test_an_encoder_continues_nothing(tmp_path):
    """It is refused before anything runs."""
    path = test_encoders.exported(test_encoders.with_texts(tmp_path / "source"), tmp_path / "m")
    with heads.Model(path) as m:
        assert m.info()["encoder"]
        m._run = m.session = None
        for call in (
            lambda: m.generate("the words"),
            lambda: m.generate("the words", stream=True),
            lambda: m.chat([{"role": "user", "content": "the"}]),
            lambda: m.score(["the"], ["words"]),
            lambda: m.perplexity("the words of"),
        ):
            with pytest.raises(heads.HeadsError, match="is an encoder: it reads texts as a whole"):
                call()


# ---- what it says of itself, and of bad calls ----


def test_cache_is_runs(run, stories, model):
    report = json.loads(run(stories, "--kv", "--json").stdout)
    text = json.dumps(report)
    assert f'"bytes_per_token": {model.kv()["bytes_per_token"]}' in text
    assert model.kv(64)["reserved"] == 64 * model.kv()["bytes_per_token"]


REFUSED = {
    heads.InputError: [
        (lambda m: m.generate([5, 99999]), "99999 is no token of this model"),
        (lambda m: m.generate([[]]), "the prompt is empty"),
        (lambda m: m.generate(5), "prompts: expected a text or a list of ids, or several"),
        (lambda m: m.generate(["a", 3]), "expected a text or a list of ids, found 3"),
        (lambda m: m.logits(["a"]), "expected a text or a list of ids, found ['a']"),
        (lambda m: m.decode([2**32 + 5]), "ids: 4294967301 is no token"),
        (lambda m: heads.Model(m.path, context=10**12), "context: expected a whole number from 0"),
        (
            lambda m: heads.Model(m.path, chunk=-1),
            "chunk: expected a whole number from 1 to 2147483647, found -1",
        ),
        (
            lambda m: m.generate("Once", temperature=-1),
            "temperature: expected a number from 0 to 1000, found -1",
        ),
        (lambda m: m.generate("Once", top_p=2), "top_p: expected a number"),
        (lambda m: m.generate("Once", seed=-1), "seed: expected a whole number from 0"),
        (lambda m: m.generate("Once", max_tokens=0), "max_tokens: expected a whole number from 1"),
        (lambda m: m.generate("Once", stop=""), "stop string cannot be empty"),
        (lambda m: m.generate("Once", lang="en"), "no encoder-decoder"),
        (lambda m: m.chat([{"role": "user", "content": "Hi"}]), "no chat template"),
        (lambda m: m.score([""], [""]), "at least one token each"),
        (lambda m: m.score(["a"], [[5]]), "contexts and continuations are both texts or both ids"),
        (lambda m: m.score(["a", "b"], ["c"]), "2 contexts and 1 continuation"),
        (lambda m: m.embed(["Once"]), "does not say how hidden states become a text's vector"),
        (lambda m: m.session().rewind(1), "1"),
        (
            lambda m: heads.Model(m.path, kv="q5"),
            "kv: expected f16, f32, q8 or q4, or a pair of these, found 'q5'",
        ),
        (lambda m: heads.Model(m.path, isa="sse"), "sse"),
    ],
    heads.ContextError: [
        (lambda m: m.generate("Once " * 600), "the context has room for 512"),
        (lambda m: m.logits([5] * 513), "the context has room for 512"),
        (
            lambda m: [s.feed([5] * n) for s in [m.session()] for n in (500, 13)],
            "13 tokens after 500 do not fit into a context of 512",
        ),
    ],
    heads.FileError: [
        (lambda m: m.session("/nonexistent"), "/nonexistent"),
        (lambda m: heads.Model("/nonexistent"), "/nonexistent"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "call", "says"), [(kind, *row) for kind, rows in REFUSED.items() for row in rows]
)
def test_errors_are_sentences_of_a_kind(model, kind, call, says):
    with pytest.raises(heads.HeadsError) as error:
        call(model)
    assert says in str(error.value) and type(error.value) is kind


def test_a_closed_model_says_so(stories):
    """Whatever it is asked, and what was begun before."""
    m = heads.Model(stories)
    begun, unbegun = (m.generate(["Once", "A"], stream=True) for _ in range(2))
    next(begun)
    m.close()
    for call in (
        lambda: m.generate("a"),
        lambda: m.generate([5]),
        lambda: m.embed([[5]]),
        m.info,
        lambda: m.logits([5]),
        lambda: m.score([[5]], [[6]]),
        lambda: m.attention([5]),
        lambda: m.chat([]),
        lambda: m.encode("a"),
        lambda: m.decode([5]),
        m.session,
        m.kv,
        lambda: m.perplexity("a b"),
        lambda: list(begun),
        lambda: list(unbegun),
    ):
        with pytest.raises(heads.HeadsError, match="closed"):
            call()
    m.close()


# ---- the page that explains it ----


@pytest.mark.parametrize("example", documents.python_blocks(ROOT / "docs" / "python.md"))
def test_examples_of_the_page_run(example, tmp_path):
    if "import ray" in example:
        pytest.skip("tests/extras/test_ray.py runs it")
    (tmp_path / "models").symlink_to(ROOT / "models")
    if not ALL:  # it takes 20 seconds, and tests/export/test_calibrate.py has smaller ones
        lines = [ast.get_source_segment(example, part) for part in ast.parse(example).body]
        example = "\n".join(line for line in lines if "calibrate=True" not in line)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=PYTHONPATH,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert list(tmp_path.iterdir()) != [tmp_path / "models"]  # it made a file


def test_the_text_of_a_template(tmp_path, stories, model):
    """As the checkpoint keeps it, for what the compiled form does not know."""
    (tmp_path / "talker.bin").write_bytes(
        talkers.with_template(stories.read_bytes(), talkers.PLAIN)
    )
    with heads.Model(tmp_path / "talker.bin") as talker:
        assert template_text(talker) == talkers.PLAIN
    assert template_text(model) == ""


def test_an_encoders_text_runs_whole(tmp_path):
    """Longer than what a decoder would run at a time, in every call that takes a text."""
    path = test_encoders.exported(test_encoders.with_texts(tmp_path / "hf"), tmp_path / "e.bin")
    with heads.Model(path, threads=1) as m, heads.Model(path, threads=1, chunk=4) as small:
        ids = m.encode("a b c d e f g h i j")
        for ask in (
            lambda x: x.logits(ids),
            lambda x: x.session().feed(ids),
            lambda x: x.lens(ids),
            lambda x: x.attention(ids).weights,
            lambda x: np.array(x.probs(ids)),
        ):
            assert np.array_equal(ask(small), ask(m)) and len(ids) > 8


def test_what_stdouts_encoding_lacks_is_escaped():
    """As `heads serve 模型.bin` names its model where Windows' code page knows no Chinese."""
    code = "from heads.exporter.streams import open_streams as o; o(); print('模型.bin')"
    env = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
    assert done.stdout.strip() == rb"\u6a21\u578b.bin", done.stderr
