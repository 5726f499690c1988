"""What a model says of a given text: its logits as a file, and its perplexity."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import checkpoints
from conftest import ROOT
from outputs import ids_of, logits


def test_logits_predict_the_greedy_text(run, bare, tmp_path):
    ids = ids_of(run(bare, "--tokens", "5 6 7", "--temp", 0, "-n", 20))
    rows = logits(bare, tmp_path / "logits", "--tokens", " ".join(map(str, ids)))
    assert rows.shape == (23, 300)
    assert rows[2:-1].argmax(axis=1).tolist() == ids[3:]


def test_logits_do_not_depend_on_chunks(run, bare, tmp_path):
    ids = " ".join(str(i * 7 % 300) for i in range(50))
    want = logits(bare, tmp_path / "a", "--tokens", ids)
    for chunk in (1, 7, 64):
        assert (
            logits(bare, tmp_path / "b", "--tokens", ids, "-b", chunk).tobytes() == want.tobytes()
        )


def test_logits_file_cannot_be_written(run, stories, tmp_path):
    done = run(stories, "-p", "Once", "--logits", tmp_path / "missing" / "logits")
    assert done.returncode == 1 and "cannot write" in done.stderr


@pytest.mark.parametrize("context", [512, 40])
def test_perplexity(run, stories, tmp_path, context):
    text = tmp_path / "text.txt"
    sentence = "Once upon a time there was a small fox who lived near the river. "
    text.write_text((sentence + "One day she lost her red ball. ") * 3)
    prefix = ids_of(run(stories, "--tokenize"))
    ids = ids_of(run(stories, "--tokenize", "-f", text))[len(prefix) :]
    total, scored = 0.0, 0
    for at in range(0, len(ids), context - len(prefix)):
        window = prefix + ids[at : at + context - len(prefix)]
        rows = logits(stories, tmp_path / "logits", "--tokens", " ".join(map(str, window))).astype(
            float
        )
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        for i in range(max(len(prefix), 1), len(window)):
            total -= rows[i - 1, window[i]]
            scored += 1
    done = run(stories, "--ppl", text, "-c", context)
    match = re.fullmatch(
        r"perplexity ([\d.]+) \(([\d.]+) nats a token; (\d+) tokens scored in windows of (\d+)\)\n",
        done.stdout.decode(),
    )
    assert match, (done.stdout, done.stderr)
    assert float(match[1]) == pytest.approx(np.exp(total / scored), abs=2e-4, rel=1e-5)
    assert float(match[2]) == pytest.approx(total / scored, abs=2e-5)
    assert (int(match[3]), int(match[4])) == (scored, context)


@pytest.mark.parametrize("chunk", [1, 128])
def test_perplexity_of_tokens_that_the_model_has_no_row_for(run, stories, tmp_path, chunk):
    """A tokenizer may know more tokens than the model has logits for."""
    model, text = tmp_path / "few.bin", tmp_path / "text.txt"
    model.write_bytes(checkpoints.random_model(vocab=300, tokenizer=stories))
    text.write_text("Once upon a time there was a fox. " * 20)
    done = run(model, "--ppl", text, "-b", chunk)
    assert done.returncode == 1 and done.stdout == b""
    assert re.search(r"token \d+, which the tokenizer knows and the model does not", done.stderr)


def at_a_terminal(*arguments: object) -> str:
    """What the program prints to stderr if that is a terminal."""
    ours, theirs = pty.openpty()
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    assert done.returncode == 0
    found = b""
    try:
        while piece := os.read(ours, 1 << 16):
            found += piece
    except OSError:  # how the end of a terminal is told
        pass
    os.close(ours)
    return found.decode()


def test_progress_is_a_bar_at_a_terminal(run, stories, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a small fox. " * 100)
    bar = at_a_terminal(stories, "--ppl", text, "-b", 7)
    assert re.match(r"\r\[\.{40}\]   0%  \d+ of \d+ tokens, \d+ tok/s\x1b\[K\r\[", bar)
    assert re.search(r"\r\[#{40}\] 100%  (\d+) of \1 tokens, \d+ tok/s\x1b\[K\r?\n$", bar)
    lines = run(stories, "--ppl", text, "-b", 7).stderr.splitlines()
    assert [line[:4] for line in lines] == [f"{tenth:3}%" for tenth in range(10, 101, 10)]


# ---- the file of --logits ----


@pytest.mark.parametrize("link", [None, os.symlink, os.link], ids=["itself", "symlink", "link"])
def test_logits_never_replace_the_model(run, bare, tmp_path, link):
    model = out = tmp_path / "model.bin"
    shutil.copyfile(bare, model)
    if link:
        out = tmp_path / "logits"
        link(model, out)
    done = run(model, "--tokens", "1 2 3", "--logits", out)
    assert done.returncode == 1 and "it is the model itself" in done.stderr
    assert model.read_bytes() == bare.read_bytes()


def test_logits_follow_links_and_keep_permissions(run, bare, tmp_path):
    want = logits(bare, tmp_path / "plain", "--tokens", "1 2 3")
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to("target")
    assert logits(bare, link, "--tokens", "1 2 3").tobytes() == want.tobytes()
    assert link.is_symlink() and target.read_bytes() == want.tobytes()
    assert target.stat().st_mode & 0o777 == 0o640
    link.unlink()
    link.symlink_to("not there yet")
    assert logits(bare, link, "--tokens", "1 2 3").tobytes() == want.tobytes()
    assert sorted(os.listdir(tmp_path)) == ["link", "not there yet", "plain", "target"]


def test_logits_to_stdout_and_pipes(run, bare, tmp_path):
    want = logits(bare, tmp_path / "plain", "--tokens", "1 2 3").tobytes()
    arguments = [bare, "--tokens", "1 2 3", "--logits"]
    assert run(*arguments, "/dev/stdout").stdout == want
    with open(tmp_path / "all", "wb") as stdout:
        stdout.write(b"before")
        stdout.flush()
        assert run(*arguments, "/dev/stdout", stdout=stdout).returncode == 0
    assert (tmp_path / "all").read_bytes() == b"before" + want
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    assert run(*arguments, tmp_path / "pipe").returncode == 0
    assert reader.communicate(timeout=60)[0] == want
    assert sorted(os.listdir(tmp_path)) == ["all", "pipe", "plain"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_logits_killed_midway(tmp_path, name):
    """The old file stays; what was written so far goes, unless nothing could be done."""
    model, out = tmp_path / "model.bin", tmp_path / "logits"
    model.write_bytes(checkpoints.random_model(n_embd=256, n_layers=8, d_ff=1024, context=2048))
    out.write_bytes(b"old")
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    ids = " ".join(["7"] * 2000)
    command = [program, model, "--tokens", ids, "-t", "1", "-b", "1", "--logits", out]
    env = {**os.environ, "HEADS_ISA": "scalar"}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, env=env)
    deadline = time.monotonic() + 60
    while len(os.listdir(tmp_path)) < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    child.send_signal(getattr(signal, name))
    stderr = child.communicate(timeout=60)[1]
    assert child.returncode == -getattr(signal, name), stderr
    assert out.read_bytes() == b"old"
    assert len(os.listdir(tmp_path)) == (3 if name == "SIGKILL" else 2)
