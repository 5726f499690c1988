"""Adapters apart in the module: the bits of ./run, for each text its own, and handles that last."""

from __future__ import annotations

import json
from functools import partial

import checkpoints
import classifiers
import guess_layers
import numpy as np
import peft_folders
import pytest
import talkers
import test_encoders

import heads

IDS = list(range(5, 35))
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def files(stories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    kinds = ("attn_q", "attn_v", "ffn_down")
    return [peft_folders.file_for(stories, folder / f"{i}.adapter", kinds, i) for i in (1, 2)]


@pytest.fixture(scope="module")
def model(stories):
    with heads.Model(stories, threads=1) as m:
        yield m


def test_texts_have_their_adapters(model, stories, files, run, tmp_path):
    """Beside each other as alone, and as by ./run."""
    one, two = (model.adapter(file) for file in files)
    asked = [None, one, two, one.scaled(-0.5), one.scaled(0)]
    prompts = [PROMPT] * len(asked)
    texts = model.generate(prompts, 12, 0, adapter=asked)
    assert texts == [model.generate(PROMPT, 12, 0, adapter=x) for x in asked]
    assert texts[0] == texts[4] == model.generate(PROMPT, 12, 0) and len(set(texts)) == 4
    request = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    names = ("", files[0], files[1], f"{files[0]}:-0.5", f"{files[0]}:0")
    lines = [{**request, "adapter": name} for name in names]
    lines = "".join(json.dumps(line, default=str) + "\n" for line in lines).encode()
    done = run(stories, "--batch", "-", "-t", 1, input=lines)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == texts
    assert "".join(model.generate(PROMPT, 12, 0, adapter=one, stream=True)) == texts[1]
    assert model.generate(prompts[:2], 12, 0, adapter=two) == [texts[2]] * 2


def test_what_is_looked_at(model, files, run, stories, tmp_path):
    one = model.adapter(files[0])
    want, plain = model.logits(IDS, adapter=one), model.logits(IDS)
    ids, out = " ".join(map(str, IDS)), tmp_path / "logits"
    done = run(stories, "--tokens", ids, "--logits", out, "-t", 1, "--adapter", files[0])
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.fromfile(out, "<f4").reshape(want.shape), want)
    assert not np.array_equal(plain, want) and np.array_equal(model.logits(IDS), plain)
    assert np.array_equal(model.lens(IDS, adapter=one)[:, -1], want)
    assert model.probs(IDS, 3, adapter=one) != model.probs(IDS, 3)
    assert model.score(["a"], [" b"], adapter=one) != model.score(["a"], [" b"])
    assert model.perplexity(PROMPT, adapter=one) != model.perplexity(PROMPT)
    seen = [np.asarray(model.attention(IDS, adapter=x).weights) for x in (one, None)]
    assert not np.array_equal(*seen)


def test_experiments(model, files):
    """A token's stream before the first layer is that of the other token."""
    one, other = model.adapter(files[0]), [99, *IDS[1:]]
    want = model.logits(IDS, adapter=one)[-1], model.logits(other, adapter=one)[-1]
    found = model.patch(IDS, other, 5, 7, of="layers", adapter=one)
    assert found[0, 0] == want[0][5] - want[0][7] and found[0, 1] == want[1][5] - want[1][7]
    assert not np.array_equal(found, model.patch(IDS, other, 5, 7, of="layers"))
    parts = model.attribute(IDS, 5, 7, adapter=one)
    assert parts.logit == np.float64(want[0][5]) - np.float64(want[0][7])
    assert not np.array_equal(model.parts(IDS, 1, 1, adapter=one).out, model.parts(IDS, 1, 1).out)


def test_sessions(model, files, tmp_path):
    one = model.adapter(files[0])
    want = model.logits(IDS, adapter=one)[-1]
    session = model.session(adapter=one)
    one.close()  # the session goes on with it
    assert repr(one).endswith("closed>")
    session.feed(IDS[:10])
    with session.fork() as fork:
        assert np.array_equal(fork.feed(IDS[10:]), want)
    session.save(tmp_path / "s")
    with pytest.raises(heads.HeadsError, match="is closed, or its model is"):
        model.session(adapter=one)
    with model.adapter(files[0]) as again:
        with model.session(tmp_path / "s", adapter=again) as loaded:
            assert np.array_equal(loaded.feed(IDS[10:]), want)
        with pytest.raises(heads.HeadsError, match="another adapter or scale"):
            model.session(tmp_path / "s", adapter=again.scaled(2))
    for path in (tmp_path / "s", session.to_bytes()):
        with pytest.raises(heads.HeadsError, match="another adapter or scale"):
            model.session(path)
    assert np.array_equal(session.feed(IDS[10:]), want)


@pytest.mark.parametrize("kind", ["vectors", "classes"])
def test_what_reads_texts(kind, tmp_path):
    """Vectors, words and classes of an encoder."""
    source = tmp_path / "source"
    make = test_encoders.with_texts if kind == "vectors" else partial(classifiers.make, "bert")
    binary = test_encoders.exported(make(source), tmp_path / "model.bin")
    file = peft_folders.file_for(binary, tmp_path / "a", ("attn_q", "attn_v", "ffn_down"))
    with heads.Model(binary, threads=1) as model:
        one, texts = model.adapter(file), [IDS[:4], IDS[4:6]]
        calls = [model.embed, model.token_vectors, model.sparse]
        for call in calls if kind == "vectors" else [model.classify]:
            plain, found = call(texts), call(texts, adapter=one)
            for i, text in enumerate(texts):
                assert not np.array_equal(numbers(plain[i]), numbers(found[i]))
                assert np.array_equal(numbers(call(text)), numbers(plain[i]))
                assert np.array_equal(numbers(call(text, adapter=one)), numbers(found[i]))


def numbers(found) -> np.ndarray:
    """What a call gave for one text."""
    if isinstance(found, dict):
        return np.array(sorted(found.items()))
    if isinstance(found, list):
        return np.array([label.score for label in sorted(found)])
    return np.asarray(found)


def test_what_is_refused(model, files, stories, tmp_path):
    one = model.adapter(files[0])
    assert repr(one.scaled(0.5).scaled(3)) == f"<heads.Adapter {str(files[0])!r}, scale 1.5>"
    with heads.Model(stories, threads=1) as other:
        foreign = other.adapter(files[0])
        for says, make in {
            "was opened for another model": lambda: model.generate("a", adapter=foreign),
            "a heads.Adapter, which Model.adapter": lambda: model.session(adapter="x"),
            "2 of them for 1 prompts": lambda: model.generate("a", adapter=[one, one]),
            "scale: expected a number": lambda: one.scaled(np.inf),
        }.items():
            with pytest.raises(heads.InputError, match=says):
                make()
    with pytest.raises(heads.HeadsError, match="is closed, or its model is"):
        foreign.scaled(2)
    for path, says in ((stories, "no adapter, since"), (tmp_path / "none", "No such file")):
        with pytest.raises(heads.FileError, match=says):
            model.adapter(path)
    with pytest.raises(TypeError, match="made by heads.Model.adapter"):
        heads.Adapter(model, "x", None)


# ---- ./run's verbs ----


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("talker")
    (folder / "plain").write_bytes(checkpoints.random_model(context=128))
    talkers.make(folder / "plain", folder / "talker.bin", talkers.PLAIN, 128)
    kinds = ("attn_v", "attn_out", "ffn_down")
    return folder / "talker.bin", peft_folders.file_for(folder / "talker.bin", folder / "a", kinds)


def said(run, binary, *options: object, **more) -> bytes:
    done = run(binary, *options, "-t", 1, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_conversations_have_it(talker, run, tmp_path):
    binary, file = talker
    question = [{"role": "user", "content": "ab"}]
    (tmp_path / "m").write_text(json.dumps(question))
    options = ("--temp", 0, "-n", 12)
    for verb, more in (("--messages", [tmp_path / "m"]), ("--chat", [])):
        plain, none, found = (
            said(run, binary, verb, *more, *options, *own, input=b"ab\n")
            for own in ((), ("--adapter", f"{file}:0"), ("--adapter", file))
        )
        assert plain == none != found
        if verb == "--messages":
            with heads.Model(binary, threads=1) as m:
                assert m.chat(question, 12, 0, adapter=m.adapter(file)) == found.decode()


def test_a_draft_model_changes_nothing(model, stories, files, run):
    options = ("-p", PROMPT, "-n", 20, "--temp", 0, "--adapter", files[0])
    want = said(run, stories, *options)
    assert said(run, stories, *options, "-md", stories, env=guess_layers.STOPPED) == want
    assert said(run, stories, *options[:-2]) != want
    with heads.Model(stories, threads=1, draft=stories) as guesses:
        text = guesses.generate(PROMPT, 20, 0, adapter=guesses.adapter(files[0]))
    assert text == model.generate(PROMPT, 20, 0, adapter=model.adapter(files[0]))


@pytest.mark.parametrize("verb", ["--embed", "--classify", "--rank"])
def test_readers_have_it(verb, tmp_path, run):
    source = tmp_path / "source"
    make = partial(classifiers.make, "reranker" if verb == "--rank" else "bert")
    make = test_encoders.with_texts if verb == "--embed" else make
    binary = test_encoders.exported(make(source), tmp_path / "model.bin")
    file = peft_folders.file_for(binary, tmp_path / "a", ("attn_q", "attn_v", "ffn_down"))
    (tmp_path / "lines").write_text("hello world\nzz top\na\n")
    verbs = {"--embed": ["--embed"], "--classify": ["--classify"], "--rank": ["--rank", "fox"]}
    options = (*verbs[verb], "-f", tmp_path / "lines")
    plain, none, found = (
        said(run, binary, *options, *own)
        for own in ((), ("--adapter", f"{file}:0"), ("--adapter", file))
    )
    assert plain == none != found
