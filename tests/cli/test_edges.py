"""Sentences of the command line that no other test reads: each input, and what is said of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import talkers
from test_encoder_decoders import GOLDEN as TRANSLATORS
from test_encoder_decoders import exported as export_to
from test_encoders import with_texts

import checkpoints
import export
from checkpoints import I32, Meta
from conftest import ROOT

DATED = "{{ '[S]' + strftime_now('%Y/%m/%d') + '<end>' }}" + talkers.PLAIN
EXPECTED = 'expected an object with the strings "role" and "content", and nothing else'
MESSAGES = [
    ("{}", 'messages: expected an array of {"role", "content"}'),
    ("[]", "messages: the array is empty"),
    ('[{"role": "user"}]', f"message 1: {EXPECTED}"),
    ('[{"role": "user", "role2": "x"}]', f"message 1: {EXPECTED}"),
    ('[{"role": 1, "content": "a"}]', f"message 1: {EXPECTED}"),
    ('[{"role": "user", "content": 1}]', f"message 1: {EXPECTED}"),
    ('[{"role": "user", "content": "a", "name": "b"}]', f"message 1: {EXPECTED}"),
    ('[{"role": "tool", "content": "a"}]', 'message 1: role is "tool", expected system, user or'),
    ('[{"role": "user", "content": "a"}', "expected a comma or ]"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    small = {"n_embd": 16, "d_ff": 16, "n_layers": 1, "context": 128}
    (folder / "bare.bin").write_bytes(checkpoints.random_model(**small))
    stories = ROOT / "models" / "stories.bin"
    (folder / "tiny.bin").write_bytes(checkpoints.random_model(tokenizer=stories, **small))
    talkers.make(folder / "bare.bin", folder / "dated.bin", DATED, 128)
    export_to(with_texts(folder / "bert"), folder / "bert.bin")
    meta, tensors = checkpoints.parse((folder / "bert.bin").read_bytes())
    meta["model.head"] = Meta(I32, 1, bytes(4))
    meta.pop("model.head_act")
    tensors = {k: t for k, t in tensors.items() if not k.startswith(("head_", "output"))}
    (folder / "headless.bin").write_bytes(checkpoints.build(meta, tensors))
    export_to(TRANSLATORS / "t5", folder / "t5.bin")
    return {path.stem: path for path in folder.glob("*.bin")}


@pytest.mark.parametrize(("text", "message"), MESSAGES)
def test_messages_that_are_none(models, tmp_path, run, text, message):
    (tmp_path / "talk.json").write_text(text)
    done = run(models["dated"], "--messages", tmp_path / "talk.json", "-n", 1)
    assert done.returncode == 1 and done.stdout == b"", done.stderr
    assert str(tmp_path / "talk.json") in done.stderr and message in done.stderr


def test_the_date_of_a_conversation(models, tmp_path, run):
    """A fixed one, or today's."""
    (tmp_path / "talk.json").write_text('[{"role": "user", "content": "a"}]')
    command = (
        models["dated"],
        "--messages",
        tmp_path / "talk.json",
        "--heads",
        tmp_path / "h.json",
    )
    for epoch, status, date in (
        ("86400", 0, "1970/01/02"),
        ("", 0, "/"),
        ("x", 2, ""),
        ("-1", 2, ""),
    ):
        done = run(*command, env={"SOURCE_DATE_EPOCH": epoch, "TZ": "UTC"})
        assert done.returncode == status, done.stderr
        if status:
            message = f'SOURCE_DATE_EPOCH wants seconds since 1970, found "{epoch}"'
            assert message in done.stderr
        else:
            tokens = json.loads((tmp_path / "h.json").read_text())["tokens"]
            assert date in "".join(token["text"] for token in tokens)


def test_lines_of_a_batch(models, run):
    talk = '{"messages": [{"role": "user", "content": "a"}]}\n'
    for name, line, message in (
        ("bare", talk, "messages: the checkpoint has no chat template: it is a base model"),
        ("bare", '{"tokens": [1], "stop": "x"}\n', '\\"stop\\" needs a tokenizer'),
        ("bare", '{"prompt": "x"}\n', 'the model has no tokenizer; give \\"tokens\\" instead'),
        ("tiny", '{"prompt": "x", "lang": "fr"}\n', '\\"lang\\" means nothing here'),
        ("dated", '{"messages": []}\n', "messages: the array is empty"),
    ):
        done = run(models[name], "--batch", "-", input=line.encode())
        assert done.returncode == 1 and message in done.stdout.decode(), done.stdout
    meta, tensors = checkpoints.parse(models["tiny"].read_bytes())
    few = tensors["embed"]._replace(rows=99, data=tensors["embed"].data[: 4 * 16 * 112])
    path = models["tiny"].with_name("few.bin")
    meta["model.vocab_size"] = Meta(I32, 1, (99).to_bytes(4, "little"))
    path.write_bytes(checkpoints.build(meta, {**tensors, "embed": few}))
    done = run(path, "--batch", "-", input=b'{"prompt": "Once upon a time"}\n')
    assert b"which the tokenizer knows and the model does not" in done.stdout, done
    done = run(models["dated"], "--batch", "-", "-n", 2, input=talk.encode())
    assert done.returncode == 0 and len(json.loads(done.stdout)["tokens"]) == 2


def test_masks(models, run):
    """Filled in the text itself, or in what the ids decode to."""
    text = run(models["bert"], "-p", "abc [MASK] de")
    ids = run(models["bert"], "--tokens", "2 5 4 6 3")
    assert text.returncode == ids.returncode == 0, ids.stderr
    assert text.stdout.startswith(b"abc ") and text.stdout.endswith(b"de\n")
    words = ids.stdout.decode().split()
    assert "a" in words and "b" in words and ids.stderr.startswith("mask 1: ")
    for name, message in (
        ("bert", "the prompt has no mask to fill; write [MASK] where a word is left out"),
        ("headless", "has no head that fills masks; it has --embed and --hidden"),
    ):
        done = run(models[name], "--tokens", "2 5 3")
        assert done.returncode == 2 and message in done.stderr, done.stderr
    done = run(models["headless"], "--tokens", "2 5 3", "--logits", os.devnull)
    assert done.returncode == 2 and "has no head that gives logits" in done.stderr


def test_the_cache_of_an_encoder_and_a_decoder(models, run):
    text = run(models["t5"], "--kv").stdout.decode()
    assert " of an encoder and a decoder, whose 2 keep a cache" in text
    bytes_ = json.loads(run(models["t5"], "--kv", "--json").stdout)["bytes_per_source_token"]
    assert f"cross-attention: {bytes_:,} bytes for each token of the source" in text
    assert bytes_ == 2 * 3 * 2 * (10 + 16)  # f16 of 3 heads in 2 layers, values padded to 16


def test_links_that_lead_nowhere(models, tmp_path, run):
    (tmp_path / "loop").symlink_to("loop")
    deep = str(tmp_path) + "/." * 1900
    (tmp_path / "far").symlink_to("n" * 250)
    for path, reason in (
        (tmp_path / "loop", "Too many levels of symbolic links"),
        (f"{deep}/far", "File name too long"),
    ):
        done = run(models["bare"], "--tokens", "1", "--logits", path)
        assert done.returncode == 1 and f"cannot write {path}"[:150] in done.stderr, done.stderr
        assert done.stderr.endswith(f"{str(path)[-100:]}: {reason}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "loop"]


def test_texts_that_are_empty(models, tmp_path, run):
    (tmp_path / "empty").write_text("")
    done = run(models["dated"], "-f", tmp_path / "empty")
    assert done.returncode == 2 and "the prompt is empty, and this model's tokenizer" in done.stderr


def test_what_a_report_leaves_out(models, exported, tmp_path, run):
    picture, shape = tmp_path / "x.svg", tmp_path / "g.shape"
    differing = exported("gemma4")
    text = run(differing, "--kv", "--svg", picture).stdout.decode()
    assert "head_dim 8 (layer 0; others differ); keys f16" in text and picture.exists()
    golden = str(ROOT / "tests" / "golden" / "gemma4")
    assert export.main([golden, str(shape), "--shape-only"]) == 0
    text = run(shape, "--kv").stdout.decode()
    assert "measured: nothing, since this is a shape without weights" in text
    done = run(models["bert"], "--similar", "a")
    assert done.returncode == 2 and "--similar needs -f FILE" in done.stderr
