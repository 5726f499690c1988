"""Generation: where prompts come from, what options do, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import checkpoints
from conftest import ROOT
from outputs import ids_of, logits

PAGE = os.sysconf("SC_PAGESIZE")


def closing(done: subprocess.CompletedProcess) -> dict[str, str]:
    """The parts of the closing line."""
    match = re.fullmatch(
        r"prompt (?P<prompt>\d+) tokens, [\d.]+ tok/s; "
        r"generated (?P<generated>\d+), (?P<rate>[\d.]+) tok/s, (?P<gbs>[\d.]+) GB/s; "
        r"KV cache (?P<used>[\d,]+) of (?P<reserved>[\d,]+) bytes in use"
        r"(; seed (?P<seed>\d+))?; stopped: (?P<stop>.*)",
        done.stderr.strip().splitlines()[-1],
    )
    assert match, done.stderr
    return match.groupdict()


def test_prompt_then_text(run, stories):
    done = run(stories, "-p", "Once upon a time", "--temp", 0, "-n", 40)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert text.startswith("Once upon a time") and len(text) > 60
    parts = closing(done)
    assert parts["generated"] == "40" and parts["stop"] == "-n reached" and parts["seed"] is None
    assert len(done.stderr.splitlines()) == 1


def test_prompt_from_everywhere(run, stories, tmp_path):
    text = "Once upon a time"
    options = ["--temp", 0, "-n", 12]
    (tmp_path / "prompt.txt").write_text(text)
    want = run(stories, "-p", text, *options).stdout
    assert run(stories, "-i", text, *options).stdout == want
    assert run(stories, "-f", tmp_path / "prompt.txt", *options).stdout == want
    assert run(stories, "-p", "-", *options, input=text.encode()).stdout == want
    ids = run(stories, "--tokenize", "-p", text).stdout.decode().strip()
    assert run(stories, "--tokens", ids, *options).stdout == want
    assert run(stories, "--tokens", ids.replace(" ", ", "), *options).stdout == want


def test_last_newline_counts(run, stories):
    with_newline = ids_of(run(stories, "--tokenize", "-p", "-", input=b"One day\n"))
    assert with_newline != ids_of(run(stories, "--tokenize", "-p", "-", input=b"One day"))


def test_ids_echo_the_prompt(run, stories):
    prompt = ids_of(run(stories, "--tokenize", "-p", "One day"))
    done = run(stories, "-p", "One day", "--ids", "--temp", 0, "-n", 5)
    ids = ids_of(done)
    assert ids[: len(prompt)] == prompt and len(ids) == len(prompt) + 5


def test_without_tokenizer(run, bare):
    ids = ids_of(run(bare, "--tokens", "1 2 3", "--temp", 0, "-n", 7))
    assert ids[:3] == [1, 2, 3] and len(ids) == 10
    for arguments in (["-p", "text"], [], ["--tokenize", "-p", "text"], ["--ppl", __file__]):
        done = run(bare, *arguments)
        assert done.returncode == 2 and "has no tokenizer" in done.stderr
    assert run(bare, "--info").returncode == 0


def test_no_prompt_starts_from_bos(run, stories):
    prefix = ids_of(run(stories, "--tokenize"))
    for prompt in ([], ["-p", ""], ["-p", "-"]):
        done = run(stories, *prompt, "--temp", 0, "-n", 5)
        if prefix:
            assert done.returncode == 0 and closing(done)["prompt"] == str(len(prefix))
        else:
            assert done.returncode == 2 and "the prompt is empty" in done.stderr


def test_same_seed_same_text(run, stories):
    prompt = ["-p", "Once", "-n", 60]
    first = run(stories, *prompt, "-s", 5)
    assert closing(first)["seed"] == "5"
    for options in ([], ["-t", 1], ["-t", 3], ["-b", 1], ["-b", 7]):
        assert run(stories, *prompt, "-s", 5, *options).stdout == first.stdout
    assert run(stories, *prompt, "-s", 6).stdout != first.stdout
    by_clock = run(stories, *prompt)
    assert run(stories, *prompt, "-s", closing(by_clock)["seed"]).stdout == by_clock.stdout


def test_sampling_options_reach_the_sampler(run, stories):
    prompt = ["-p", "Once", "-n", 60, "-s", 3]
    plain = run(stories, *prompt, "--temp", 1.5, "--top-p", 1).stdout
    greedy = run(stories, *prompt, "--temp", 0).stdout
    assert plain != greedy
    for option in (["--top-k", 1], ["--top-p", 1e-6], ["--min-p", 1]):
        assert run(stories, *prompt, "--temp", 1.5, "--top-p", 1, *option).stdout == greedy
    assert run(stories, *prompt, "--temp", 0, "--repeat-penalty", 50).stdout != greedy


def test_penalty_counts_the_prompt(run, bare, tmp_path):
    for start in range(300):  # until the most likely token is one of the prompt's
        prompt = [(start * 31 + i * 7) % 300 for i in range(60)]
        row = logits(bare, tmp_path / "logits", "--tokens", " ".join(map(str, prompt)))[-1]
        if row.argmax() in prompt:
            break
    want = row.copy()
    want[prompt] = np.where(
        want[prompt] > 0, want[prompt] / np.float32(1.5), want[prompt] * np.float32(1.5)
    )
    assert want.argmax() != row.argmax()
    done = run(
        bare, "--tokens", " ".join(map(str, prompt)), "--temp", 0, "--repeat-penalty", 1.5, "-n", 1
    )
    assert ids_of(done)[-1] == want.argmax()


def test_stops_at_end_of_text(run, stories):
    for seed in range(8):
        done = run(stories, "-p", "Once upon a time", "-s", seed, "-n", 100000, "--ids")
        if closing(done)["stop"] == "end-of-text token":
            return
    pytest.fail("eight stories, and none ended with an end-of-text token")


def test_stops_at_full_context(run, bare):
    for prompt, context, generated in (("1 2 3", 8, 6), ("1 2 3 4 5 6 7 8", 8, 1), ("1", 1, 1)):
        done = run(bare, "--tokens", prompt, "-c", context, "-s", 1)
        parts = closing(done)
        assert parts["stop"] == "context full" and parts["generated"] == str(generated)
        assert len(ids_of(done)) == context + 1


def test_n_zero_prints_the_prompt(run, stories):
    done = run(stories, "-p", "One day", "-n", 0)
    assert (
        done.stdout == b"One day"
        and closing(done)["stop"] == "-n reached"
        and closing(done)["generated"] == "0"
    )


def test_closing_line_counts_bytes(run, bare):
    parts = closing(run(bare, "--tokens", "1 2 3", "-n", 5, "-c", 64, "-s", 1))
    per_token = 3 * 2 * 2 * 16 * 2  # layers, KV heads, keys and values, head_dim, f16
    assert parts["prompt"] == "3" and parts["generated"] == "5"
    assert int(parts["used"].replace(",", "")) == per_token * (3 + 4)  # the last token is not run
    assert int(parts["reserved"].replace(",", "")) == 3 * -(-per_token // 3 * 64 // PAGE) * PAGE


def test_bandwidth_is_bytes_times_speed(run, bare):
    parts = closing(run(bare, "--tokens", "1", "-n", 500, "-ctk", "f32", "-ctv", "f32", "-s", 1))
    weights = json.loads(run(bare, "--info", "--json").stdout)["weight_bytes"]
    cache = 3 * 2 * 2 * 16 * 4 * (2 + 500) / 2  # bytes that a token reads, on average
    assert float(parts["gbs"]) == pytest.approx(
        float(parts["rate"]) * (weights + cache) / 1e9, rel=0.01, abs=0.006
    )
    assert cache > 0.2 * weights


def packets(command: list[object], **options) -> tuple[subprocess.Popen, socket.socket]:
    """Starts the program with a socket as stdout that keeps writes apart and holds few of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    child = subprocess.Popen(
        [program, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=theirs.fileno(),
        stderr=subprocess.PIPE,
        **options,
    )
    theirs.close()
    ours.settimeout(60)
    return child, ours


def drain(ours: socket.socket) -> list[bytes]:
    found = []
    while piece := ours.recv(1 << 16):
        found.append(piece)
    return found


def test_ctrl_c_ends_cleanly(run, bare):
    child, ours = packets([bare, "--tokens", "1", "-n", 100000, "-s", 1])
    first = ours.recv(1 << 16)
    time.sleep(0.2)  # it fills the socket and waits
    child.send_signal(signal.SIGINT)
    pieces = [first, *drain(ours)]
    stderr = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 130, stderr
    assert stderr.strip().endswith("stopped: interrupted")
    assert re.fullmatch(rb"1( \d+)+\n", b"".join(pieces))


def test_ctrl_c_before_the_first_token(run, bare):
    child, ours = packets([bare, "--tokens", "7 " * 500, "-s", 1])
    pieces = [ours.recv(1 << 16)]
    time.sleep(0.2)  # it waits while it prints the prompt, which has run
    child.send_signal(signal.SIGINT)
    pieces += drain(ours)
    stderr = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 130 and b"".join(pieces) == b"7 " * 499 + b"7\n"
    assert stderr.startswith("prompt 500 tokens") and stderr.strip().endswith(
        "stopped: interrupted"
    )


def test_no_echo(run, stories, bare):
    """The rest of the text alone, to the byte; ids too."""
    for model, prompt in ((stories, ["-p", "One day, a"]), (bare, ["--tokens", "3 4"])):
        options = [model, *prompt, "-n", 12, "-s", 1]
        whole, rest = (run(*options, *more).stdout for more in ([], ["--no-echo"]))
        given = b"One day, a" if model == stories else b"3 4 "
        assert whole == given + rest and rest
    split = ["--tokens", " ".join(map(str, run_ids(run, stories, "caf\u00e9")))]
    assert run(stories, *split, "-n", 0, "--no-echo").stdout == b""


def run_ids(run, model, text: str) -> list[int]:
    return [int(i) for i in run(model, "--tokenize", "-p", text).stdout.split()]


def test_closed_pipe_is_no_error(run, stories):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(stories, "-p", "Once", "-n", 100, "-s", 1, stdout=writer)
    os.close(writer)
    assert done.returncode == 0 and closing(done)["stop"] == "output closed"
    for mode in (["--info"], ["--kv"], ["--tokenize", "-p", "Once"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = run(stories, *mode, stdout=writer)
        os.close(writer)
        assert done.returncode == 0 and done.stderr == "", mode


def test_full_disk_is_an_error(run, stories):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for mode in (["-p", "Once"], ["--info"], ["--logits", "/dev/full", "-p", "Once"]):
        with open("/dev/full", "wb") as full:
            done = run(stories, *mode, stdout=full)
        assert done.returncode == 1 and "No space left" in done.stderr, mode


def test_every_flush_is_utf8(run, tiny):
    """A model of random weights throws bytes about; each write must still be whole characters."""
    ids = ids_of(run(tiny, "--tokenize", "-p", "\U0001f98a\u20ac\u00e9"))
    child, ours = packets(
        [
            tiny,
            "--tokens",
            " ".join(map(str, ids * 20)),
            "-n",
            100,
            "--temp",
            100,
            "--top-p",
            1,
            "-s",
            2,
        ]
    )
    pieces = drain(ours)
    child.communicate(timeout=60)
    assert child.returncode == 0
    for piece in pieces:
        piece.decode("utf-8")
    text = b"".join(pieces).decode()
    assert text.startswith("\U0001f98a\u20ac\u00e9") and len(pieces) > 50


def test_split_character_waits(run, stories):
    ids = ids_of(run(stories, "--tokenize", "-p", "\U0001f98a"))
    assert len(ids) >= 4, "the tokenizer has this emoji as one token; take another"
    whole = run(stories, "--tokens", " ".join(map(str, ids)), "-n", 0).stdout.decode()
    assert whole.endswith("\U0001f98a")
    cut = run(stories, "--tokens", " ".join(map(str, ids[:-1])), "-n", 0).stdout.decode()
    assert cut.endswith("\ufffd")


def test_invalid_utf8_is_read_as_replacement(run, stories):
    done = run(
        stories, "-p", b"One \xff\xc3 day".decode("utf-8", "surrogateescape"), "-n", 3, "-s", 1
    )
    assert done.returncode == 0 and "not UTF-8 at byte 4" in done.stderr
    assert done.stdout.decode().startswith("One \ufffd\ufffd day")


def test_zero_bytes_in_a_prompt(run, stories):
    done = run(stories, "-p", "-", "-n", 2, "-s", 1, input=b"One\0day")
    assert done.returncode == 0 and done.stdout.startswith(b"One\0day")


def test_logits_that_are_no_numbers(run, bare, tmp_path):
    meta, tensors = checkpoints.parse(bare.read_bytes())
    tensors["layers.1.ffn_norm"] = checkpoints.vector(np.full(40, np.nan))
    model = tmp_path / "nan.bin"
    model.write_bytes(checkpoints.build(meta, tensors))
    done = run(model, "--tokens", "1 2 3", "--temp", 0, "-n", 5)
    assert done.returncode == 1 and done.stdout == b"1 2 3\n"
    first, second = done.stderr.splitlines()
    assert first == "stopped: error"
    assert second.startswith("run: the logits of position 2 are no ")
    done = run(model, "--tokens", "1 2 3", "--logits", tmp_path / "logits")
    assert done.returncode == 1 and "the logits of position 0 are no " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["nan.bin"]


def test_tokens_that_the_model_has_no_row_for(run, stories, tmp_path):
    model = tmp_path / "few.bin"
    model.write_bytes(checkpoints.random_model(vocab=300, tokenizer=stories))
    ids = ids_of(run(model, "--tokenize", "-p", "Once upon a time"))
    first = next(i for i in ids if i >= 300)
    done = run(model, "-p", "Once upon a time")
    assert done.returncode == 1 and done.stdout == b""
    assert f"has token {first}, which the tokenizer knows and the model does not" in done.stderr
