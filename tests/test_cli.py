"""The command line: output, ends, options, bad use, and the reports against figures computed here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import checkpoints
from conftest import ROOT, run_command

PAGE = os.sysconf("SC_PAGESIZE")


def ids_of(done: subprocess.CompletedProcess) -> list[int]:
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rb"(\d+( \d+)*)?\n", done.stdout), done.stdout[:200]
    return [int(word) for word in done.stdout.split()]


def closing(done: subprocess.CompletedProcess) -> dict[str, str]:
    """The parts of the closing line."""
    match = re.fullmatch(
        r"prompt (?P<prompt>\d+) tokens, [\d.]+ tok/s; "
        r"generated (?P<generated>\d+), (?P<rate>[\d.]+) tok/s, (?P<gbs>[\d.]+) GB/s; "
        r"KV cache (?P<used>[\d,]+) of (?P<reserved>[\d,]+) bytes in use(; seed (?P<seed>\d+))?; stopped: (?P<stop>.*)",
        done.stderr.strip().splitlines()[-1],
    )
    assert match, done.stderr
    return match.groupdict()


# ---- generation ----


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
    want[prompt] = np.where(want[prompt] > 0, want[prompt] / np.float32(1.5), want[prompt] * np.float32(1.5))
    assert want.argmax() != row.argmax()
    done = run(bare, "--tokens", " ".join(map(str, prompt)), "--temp", 0, "--repeat-penalty", 1.5, "-n", 1)
    assert ids_of(done)[-1] == want.argmax()


# ---- how it ends ----


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
    assert done.stdout == b"One day" and closing(done)["stop"] == "-n reached" and closing(done)["generated"] == "0"


def test_closing_line_counts_bytes(run, bare):
    parts = closing(run(bare, "--tokens", "1 2 3", "-n", 5, "-c", 64, "-s", 1))
    per_token = 3 * 2 * 2 * 16 * 2  # layers, KV heads, keys and values, head_dim, f16
    assert parts["prompt"] == "3" and parts["generated"] == "5"
    assert int(parts["used"].replace(",", "")) == per_token * (3 + 4)  # the last token is not run
    assert int(parts["reserved"].replace(",", "")) == -(-per_token * 64 // PAGE) * PAGE


def test_bandwidth_is_bytes_times_speed(run, bare):
    parts = closing(run(bare, "--tokens", "1", "-n", 500, "-ctk", "f32", "-ctv", "f32", "-s", 1))
    weights = json.loads(run(bare, "--info", "--json").stdout)["weight_bytes"]
    cache = 3 * 2 * 2 * 16 * 4 * (2 + 500) / 2  # bytes that a token reads, on average
    assert float(parts["gbs"]) == pytest.approx(float(parts["rate"]) * (weights + cache) / 1e9, rel=0.01, abs=0.006)
    assert cache > 0.2 * weights


def packets(command: list[object], **options) -> tuple[subprocess.Popen, socket.socket]:
    """Starts the program with a socket as stdout that keeps each write apart and holds few of them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    child = subprocess.Popen(
        [program, *map(str, command)], stdin=subprocess.DEVNULL, stdout=theirs.fileno(), stderr=subprocess.PIPE, **options
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
    assert child.returncode == 0, stderr
    assert stderr.strip().endswith("stopped: interrupted")
    assert re.fullmatch(rb"1( \d+)+\n", b"".join(pieces))


def test_ctrl_c_before_the_first_token(run, bare):
    child, ours = packets([bare, "--tokens", "7 " * 500, "-s", 1])
    pieces = [ours.recv(1 << 16)]
    time.sleep(0.2)  # it waits while it prints the prompt
    child.send_signal(signal.SIGINT)
    pieces += drain(ours)
    stderr = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 0 and b"".join(pieces) == b"7 " * 499 + b"7\n"
    assert stderr.startswith("prompt 0 tokens") and stderr.strip().endswith("stopped: interrupted")


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
    child, ours = packets([tiny, "--tokens", " ".join(map(str, ids * 20)), "-n", 100, "--temp", 100, "--top-p", 1, "-s", 2])
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


# ---- bad use ----

USAGE = [
    (["MODEL", "--no-such-flag"], 'there is no option "--no-such-flag"'),
    (["MODEL", "-x"], 'there is no option "-x"'),
    (["MODEL", "-p"], "-p wants a value"),
    (["MODEL", "--temp"], "--temp wants a value"),
    (["MODEL", "-t", "0.8"], "use --temp"),
    (["MODEL", "-t", "0"], "-t wants a number from 1"),
    (["MODEL", "-n", "x"], '-n wants a whole number, found "x"'),
    (["MODEL", "-n", ""], "-n wants a whole number"),
    (["MODEL", "-n", "5x"], "-n wants a whole number"),
    (["MODEL", "-n", "1.5"], "-n wants a whole number"),
    (["MODEL", "-n", "-3"], "-n wants a number from 0"),
    (["MODEL", "-n", "99999999999999999999"], "-n wants a number from 0"),
    (["MODEL", "-n", "nan"], "-n wants a whole number"),
    (["MODEL", "-c", "0"], "-c wants a number from 1"),
    (["MODEL", "-c", "16777216"], "was made for 512 positions"),
    (["MODEL", "-b", "0"], "-b wants a number from 1"),
    (["MODEL", "-s", "-1"], "-s wants a whole number"),
    (["MODEL", "-s", "18446744073709551616"], "-s wants a whole number"),
    (["MODEL", "--temp", "hot"], "--temp wants a number"),
    (["MODEL", "--temp", "-1"], "--temp wants a number from 0"),
    (["MODEL", "--temp", "inf"], "--temp wants a number from 0"),
    (["MODEL", "--top-p", "0"], "--top-p wants a number"),
    (["MODEL", "--top-p", "1.5"], "--top-p wants a number"),
    (["MODEL", "--min-p", "2"], "--min-p wants a number"),
    (["MODEL", "--top-k", "-1"], "--top-k wants a number"),
    (["MODEL", "--repeat-penalty", "0"], "--repeat-penalty wants a number"),
    (["MODEL", "-ctk", "q4"], "-ctk wants f32, f16 or q8"),
    (["MODEL", "-ctv", ""], "-ctv wants f32, f16 or q8"),
    (["MODEL", "--tokens", "1 x 3"], '--tokens wants ids such as "1 2 3"'),
    (["MODEL", "--tokens", "1 2.5"], "--tokens wants ids"),
    (["MODEL", "--tokens", "1+2"], "--tokens wants ids"),
    (["MODEL", "--tokens", "1 300"], "300 is no token of this model; its ids are 0 to 299"),
    (["MODEL", "--tokens", "-1"], "-1 is no token of this model"),
    (["MODEL", "--tokens", "99999999999999999999"], "is no token of this model"),
    (["MODEL", "--tokens", " "], "--tokens is empty"),
    (["MODEL", "--tokens", "1", "-p", "text"], "give one of them"),
    (["MODEL", "-f", "a", "-p", "b"], "give one of them"),
    (["MODEL", "--tokens", "1 2 3 4 5", "-c", "4"], "the prompt has 5 tokens and the context has room for 4"),
    (["MODEL", "--kv", "--info"], "one thing at a time"),
    (["MODEL", "--check", "--ppl", "x"], "one thing at a time"),
    (["MODEL", "--check", "-p", "x"], "-p means nothing for --check"),
    (["MODEL", "--kv", "-n", "5"], "-n means nothing for --kv"),
    (["MODEL", "--json"], "--json means nothing for generation"),
    (["MODEL", "--bench", "-p", "x"], "-p means nothing for --bench"),
    (["MODEL", "--bench", "-n", "5"], "-n means nothing for --bench"),
    (["MODEL", "--bench", "--temp", "0"], "--temp means nothing for --bench"),
    (["MODEL", "--bench", "--tokens", "1"], "--tokens means nothing for --bench"),
    (["MODEL", "--bench", "--kv"], "one thing at a time"),
    (["MODEL", "--info", "-b", "5"], "-b means nothing for --info"),
    (["MODEL", "--bench", "-c", "16777216"], "was made for 512 positions"),
    (["MODEL", "MODEL", "--bench"], "only --kv takes several"),
    (["MODEL", "--tokenize", "--tokens", "1"], "--tokens means nothing for --tokenize"),
    (["MODEL", "MODEL"], "only --kv takes several"),
    (["-p", "text"], "which model"),
    ([], "which model"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE, ids=[" ".join(a) or "nothing" for a, _ in USAGE])
def test_wrong_usage(run, bare, arguments, message):
    done = run(*[str(bare) if a == "MODEL" else a for a in arguments])
    assert done.returncode == 2 and message in done.stderr and "--help" in done.stderr
    assert done.stdout == b"" and len(done.stderr.splitlines()) == 1


def test_long_prompt_says_both_numbers(run, stories):
    done = run(stories, "-p", "word " * 200, "-c", 100)
    assert done.returncode == 2
    match = re.search(r"the prompt has (\d+) tokens and the context has room for 100; shorten it or raise -c", done.stderr)
    assert match and int(match[1]) > 100


def test_invalid_utf8_is_read_as_replacement(run, stories):
    done = run(stories, "-p", b"One \xff\xc3 day".decode("utf-8", "surrogateescape"), "-n", 3, "-s", 1)
    assert done.returncode == 0 and "not UTF-8 at byte 4" in done.stderr
    assert done.stdout.decode().startswith("One \ufffd\ufffd day")


def test_zero_bytes_in_a_prompt(run, stories):
    done = run(stories, "-p", "-", "-n", 2, "-s", 1, input=b"One\0day")
    assert done.returncode == 0 and done.stdout.startswith(b"One\0day")


def test_unreadable_prompt(run, stories, tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        for mode in (["-f", path], ["--ppl", path]):
            done = run(stories, *mode)
            assert done.returncode == 1 and str(path) in done.stderr and done.stdout == b""


def test_logits_file_cannot_be_written(run, stories, tmp_path):
    done = run(stories, "-p", "Once", "--logits", tmp_path / "missing" / "logits")
    assert done.returncode == 1 and "cannot write" in done.stderr


def test_unknown_instruction_set(run, stories):
    done = run(stories, "-p", "Once", env={"HEADS_ISA": "abacus"})
    assert done.returncode == 1 and "HEADS_ISA" in done.stderr and done.stdout == b""


def test_help_names_every_option(run):
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    options = "-p -f -n -c -t -b -s -ctk -ctv --temp --top-k --top-p --min-p --repeat-penalty"
    modes = "--kv --info --bench --ppl --check --tokenize --tokens --logits --json"
    for option in options.split() + modes.split():
        assert f"  {option} " in done.stdout.decode(), option


# ---- logits and perplexity ----


def logits(model: Path, out: Path, *arguments: object) -> np.ndarray:
    """The prompt's logits, shape (tokens, vocabulary)."""
    done = run_command(model, "--logits", out, *arguments)
    assert done.returncode == 0 and done.stdout == b"", done.stderr
    vocab = json.loads(run_command(model, "--info", "--json").stdout)["vocab_size"]
    return np.fromfile(out, "<f4").reshape(-1, vocab)


def test_logits_predict_the_greedy_text(run, bare, tmp_path):
    ids = ids_of(run(bare, "--tokens", "5 6 7", "--temp", 0, "-n", 20))
    rows = logits(bare, tmp_path / "logits", "--tokens", " ".join(map(str, ids)))
    assert rows.shape == (23, 300)
    assert rows[2:-1].argmax(axis=1).tolist() == ids[3:]


def test_logits_do_not_depend_on_chunks(run, bare, tmp_path):
    ids = " ".join(str(i * 7 % 300) for i in range(50))
    want = logits(bare, tmp_path / "a", "--tokens", ids)
    for chunk in (1, 7, 64):
        assert logits(bare, tmp_path / "b", "--tokens", ids, "-b", chunk).tobytes() == want.tobytes()


@pytest.mark.parametrize("context", [512, 40])
def test_perplexity(run, stories, tmp_path, context):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a small fox who lived near the river. One day she lost her red ball. " * 3)
    prefix = ids_of(run(stories, "--tokenize"))
    ids = ids_of(run(stories, "--tokenize", "-f", text))[len(prefix) :]
    total, scored = 0.0, 0
    for at in range(0, len(ids), context - len(prefix)):
        window = prefix + ids[at : at + context - len(prefix)]
        rows = logits(stories, tmp_path / "logits", "--tokens", " ".join(map(str, window))).astype(float)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        for i in range(max(len(prefix), 1), len(window)):
            total -= rows[i - 1, window[i]]
            scored += 1
    done = run(stories, "--ppl", text, "-c", context)
    match = re.fullmatch(
        r"perplexity ([\d.]+) \(([\d.]+) nats a token; (\d+) tokens scored in windows of (\d+)\)\n", done.stdout.decode()
    )
    assert match, (done.stdout, done.stderr)
    assert float(match[1]) == pytest.approx(np.exp(total / scored), abs=2e-4, rel=1e-5)
    assert float(match[2]) == pytest.approx(total / scored, abs=2e-5)
    assert (int(match[3]), int(match[4])) == (scored, context)
    assert re.search(r"\r\[#{40}\] 100%", done.stderr)


# ---- reports ----


def kv_json(*arguments: object):
    done = run_command(*arguments, "--kv", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


BYTES_OF_32 = {"f32": 128, "f16": 64, "q8": 34}


@pytest.mark.parametrize("keys", ["f32", "f16", "q8"])
@pytest.mark.parametrize("values", ["f32", "f16", "q8"])
def test_kv_formula(run, tmp_path, keys, values):
    layers, heads, kv_heads, head_dim, context = 3, 12, 4, 64, 300
    model = tmp_path / "model.bin"
    model.write_bytes(checkpoints.random_model(n_layers=layers, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim))
    report = kv_json(model, "-c", context, "-ctk", keys, "-ctv", values)
    assert list(report) == ["context", "rows", "reserved_bytes", "resident_bytes", "state_bytes"]
    assert report["context"] == context
    per_head = layers * head_dim * (BYTES_OF_32[keys] + BYTES_OF_32[values]) // 32
    assert [row["scheme"] for row in report["rows"]] == ["MHA", "GQA", "GQA", "GQA", "GQA", "MQA", "MLA"]
    assert [row["n_kv_heads"] for row in report["rows"]] == [12, 6, 4, 3, 2, 1, None]
    for row in report["rows"][:-1]:
        n = row["n_kv_heads"]
        assert list(row) == [
            "scheme", "n_kv_heads", "bytes_per_token", "bytes_at_2048", "bytes_at_context", "ratio_to_mha", "own"
        ]  # fmt: skip
        assert row["bytes_per_token"] == n * per_head
        assert row["bytes_at_2048"] == n * per_head * 2048
        assert row["bytes_at_context"] == n * per_head * context
        assert row["ratio_to_mha"] == pytest.approx(n / heads)
        assert row["own"] == (n == kv_heads)
    # MLA: the largest rank r with layers (r + head_dim / 2) bytes an element under an eighth of MHA
    limit, rank = heads * per_head / 8, 0
    while layers * (rank + 1 + head_dim // 2) * BYTES_OF_32[keys] / 32 < limit:
        rank += 1
    mla = report["rows"][-1]
    assert mla["bytes_per_token"] == layers * (rank + head_dim // 2) * BYTES_OF_32[keys] // 32
    assert mla["ratio_to_mha"] < 1 / 8 and not mla["own"]
    text = run_command(model, "--kv", "-c", context, "-ctk", keys, "-ctv", values).stdout.decode()
    assert f"latent rank under 1/8 of MHA is {rank}, with a rope dim of {head_dim // 2}" in text


def resident(layers: int, layer_bytes: int, filled: int) -> int:
    """Bytes of the pages that the first `filled` bytes of each layer's part touch."""
    pages = set()
    for i in range(layers):
        begin = i * layer_bytes
        pages |= set(range(begin // PAGE, (begin + filled - 1) // PAGE + 1))
    return len(pages) * PAGE


@pytest.mark.parametrize("context", [512, 300, 256, 17, 1])
def test_kv_measured(run, bare, context):
    report = kv_json(bare, "-c", context)
    per_token = 2 * 2 * 16 * 2  # of a layer: KV heads, keys and values, head_dim, f16
    slots = -(-context // 16) * 16
    assert report["reserved_bytes"] == -(-3 * slots * per_token // PAGE) * PAGE
    run_tokens = min(context, 256)
    if run_tokens % 16 == 0:
        assert report["resident_bytes"] == resident(3, slots * per_token, run_tokens * per_token)
    text = run(bare, "--kv", "-c", context).stdout.decode()
    assert text.count("as the formula says") == 2 and "NOT" not in text
    assert re.search(rf"after a run of {run_tokens} tokens, resident {report['resident_bytes']:,} bytes", text)


def test_kv_window_is_a_ring(run, tmp_path):
    model = tmp_path / "window.bin"
    model.write_bytes(checkpoints.random_model(window=32, context=4096))
    own = next(row for row in kv_json(model)["rows"] if row["own"])
    assert own["bytes_at_context"] == own["bytes_at_2048"] < 300 * own["bytes_per_token"]
    text = run(model, "--kv").stdout.decode()
    assert text.count("as the formula says") == 2 and "any" in text


def test_kv_several_models(run, tmp_path):
    paths = [tmp_path / f"{name}.bin" for name in ("mha", "gqa", "mqa")]
    for path, n in zip(paths, (6, 2, 1)):
        path.write_bytes(checkpoints.random_model(n_kv_heads=n))
    reports = kv_json(*paths)
    assert [[row["n_kv_heads"] for row in r["rows"] if row["own"]] for r in reports] == [[6], [2], [1]]
    assert reports[0]["reserved_bytes"] == 3 * reports[1]["reserved_bytes"] == 6 * reports[2]["reserved_bytes"]
    assert reports[1] == kv_json(paths[1])
    lines = run(*paths, "--kv").stdout.decode().splitlines()
    for path, line, report in zip(paths, lines[1:], reports):
        assert line.startswith(str(path))
        assert f" {report['reserved_bytes']:,} " in line and line.endswith(f" {report['resident_bytes']:,}")


def test_kv_text(run, bare):
    lines = run(bare, "--kv").stdout.decode().splitlines()
    assert "3 layers, 6 query heads, 2 KV heads, head_dim 16; keys f16, values f16; context 512" in lines[0]
    own = [line for line in lines if line.startswith("* ") and "this model" not in line]
    assert len(own) == 1
    fields = own[0].split()
    assert fields[1:7] == ["GQA", "2", "384", "786,432", "196,608", "0.3333"]
    free = int(re.search(r"in the ([\d,]+) bytes of memory that are free", "\n".join(lines))[1].replace(",", ""))
    assert int(fields[7].replace(",", "")) == free // 384
    now = int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    assert free % 1024 == 0 and now / 2 < free < now * 2


SPREAD = ("{0}", "{0}_min", "{0}_max")


def assert_share(row: dict, share: str, rate: float, report: dict, ceiling: str):
    """A share is a median of ratios of pairs, so it lies between those of the extremes."""
    unit = rate / row["tok_s"]
    low = row["tok_s_min"] * unit / report[ceiling + "_max"]
    high = row["tok_s_max"] * unit / report[ceiling + "_min"]
    assert 0 < low * (1 - 1e-4) <= row[share] <= high * (1 + 1e-4)


def bench_json(*arguments: object) -> dict:
    done = run_command(*arguments, "--bench", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for figures in [report, *report["prefill"], *report["decode"]]:
        for low, high in [(key, key[:-4]) for key in figures if key.endswith("_min")]:
            assert 0 < figures[low] <= figures[high] <= figures[high + "_max"]
    return report


def test_bench_json(run, bare):
    """The figures' names and what can be told of them without a clock: bytes and operations from the shape alone."""
    report = bench_json(bare, "-t", 2, "-ctk", "f32", "-ctv", "f16")
    assert [report[key] for key in ("threads", "dtype", "k_dtype", "v_dtype")] == [2, "f32", "f32", "f16"]
    assert report["isa"] == json.loads(run(bare, "--info", "--json").stdout)["isa"]
    assert report["read_over"] == "buffer" and 3 <= report["rounds"] <= 15
    names = {name.format(key) for name in SPREAD for key in ("read_gb_s", "peak_gflop_s", "parallel_for_us")}
    assert names < set(report)
    assert [row["tokens"] for row in report["prefill"]] == [16, 128, 512]
    assert [row["depth"] for row in report["decode"]] == [0, 496] and report["filled"] == 496
    layer = 2 * (40 * 6 * 16 + 40 * 2 * 16) + 3 * 40 * 72
    for row in report["prefill"]:
        operations = 2 * (3 * layer + 300 * 40 / row["tokens"])
        assert row["gflop_s"] == pytest.approx(row["tok_s"] * operations * 1e-9, rel=1e-4)
        assert_share(row, "share_of_peak", row["gflop_s"], report, "peak_gflop_s")
    weights = json.loads(run(bare, "--info", "--json").stdout)["weight_bytes"]
    for row in report["decode"]:
        read = row["gb_s"] / row["tok_s"] * 1e9 - weights  # of the cache: between the first and the last timed token
        per_token = 3 * 2 * 16 * (4 + 2)
        assert (row["depth"] + 1) * per_token * 0.99 <= read <= (row["depth"] + 16) * per_token * 1.01
        assert_share(row, "share_of_read", row["gb_s"], report, "read_gb_s")


def test_bench_goes_as_deep_as_the_context(run, tmp_path):
    model = tmp_path / "model.bin"
    model.write_bytes(checkpoints.random_model(context=4200, n_layers=1, window=32))
    report = bench_json(model, "-t", 1, "-b", 512)
    assert [row["depth"] for row in report["decode"]] == [0, 1024, 4096, 4184]
    report = bench_json(model, "-c", 100)
    assert [row["tokens"] for row in report["prefill"]] == [16]
    assert [row["depth"] for row in report["decode"]] == [0, 84]
    done = run(model, "--bench", "-c", 20)
    assert done.returncode == 1 and "--bench needs a context of 32 at least, this one is 20" in done.stderr


def test_bench_text(run, stories):
    done = run(stories, "--bench", "-t", 1)
    text = done.stdout.decode()
    assert done.returncode == 0 and "nan" not in text and "inf" not in text
    assert re.search(r"^ceiling +arithmetic of q8 weights +[\d.]+ GOP/s", text, re.M)
    assert re.search(r"^ +streaming read +[\d.]+ GB/s \([\d.]+-[\d.]+\) over \d+ MB, a buffer$", text, re.M)
    assert re.search(r"^pool +an empty parallel_for +[\d.]+ us", text, re.M)
    assert re.findall(r"^prefill +(\d+) +[\d.]+ +[\d.]+-[\d.]+ +[\d.]+ +[\d.]+ %$", text, re.M) == ["16", "128", "512"]
    assert re.findall(r"^decode +(\d+) +[\d.]+ +[\d.]+-[\d.]+ +[\d.]+ +[\d.]+ %$", text, re.M) == ["0", "496"]
    assert "round 3 of 15" in done.stderr


def test_info(run, stories, bare):
    text = run(stories, "--info").stdout.decode()
    shape = json.loads(run(stories, "--info", "--json").stdout)
    assert shape["file"] == str(stories) and shape["bytes"] == stories.stat().st_size
    meta, tensors = checkpoints.parse(stories.read_bytes())
    assert shape["vocab_size"] == meta["model.vocab_size"].array()[0]
    assert shape["n_layers"] == len(shape["layers"]) == meta["model.n_layers"].array()[0]
    assert [t["name"] for t in shape["tensors"]] == list(tensors)
    assert [t["bytes"] for t in shape["tensors"]] == [len(t.data) for t in tensors.values()]
    assert all(name in text for name in tensors)
    assert shape["tokenizer"] in text and shape["isa"] in text
    assert json.loads(run(bare, "--info", "--json").stdout)["tokenizer"] is None


def test_info_of_hostile_strings(run, bare, tmp_path):
    meta, tensors = checkpoints.parse(bare.read_bytes())
    value = b'\x1b[2J"\\\xff\n'
    meta["info.source"] = checkpoints.Meta(checkpoints.U8, len(value), value)
    path = tmp_path / "hostile.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    done = run(path, "--info")
    assert done.returncode == 0 and b"\x1b" not in done.stdout
    assert '\\u001b[2J\\"\\\\\ufffd\\u000a' in done.stdout.decode()


def test_check_finds_a_flipped_byte(run, stories, tmp_path):
    done = run(stories, "--check")
    assert done.returncode == 0 and b"is right" in done.stdout
    copy = tmp_path / "copy.bin"
    shutil.copyfile(stories, copy)
    with open(copy, "r+b") as f:
        f.seek(-1000, os.SEEK_END)
        byte = f.read(1)[0]
        f.seek(-1000, os.SEEK_END)
        f.write(bytes([byte ^ 0x10]))
    done = run(copy, "--check")
    assert done.returncode == 1 and f"{copy}: the checksum is" in done.stderr and done.stdout == b""


def test_check_needs_no_tokenizer(run, tiny, tmp_path):
    meta, tensors = checkpoints.parse(tiny.read_bytes())
    meta = {key: m for key, m in meta.items() if not key.startswith("tokenizer.")}
    meta["tokenizer.kind"] = checkpoints.Meta(checkpoints.U8, 3, b"???")
    path = tmp_path / "broken.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    assert run(path, "--check").returncode == 0
    done = run(path, "-p", "text")
    assert done.returncode == 1 and "tokenizer" in done.stderr and done.stdout == b""
