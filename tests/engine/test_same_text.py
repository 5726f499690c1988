"""--prompt-cache, --lookup and -md save work and change nothing: the text, byte for byte, is that of a plain run."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import time
from pathlib import Path

import guess_layers
import numpy as np
import pytest

from conftest import ROOT, on_linux

# A plain decoder, windows (one on every layer, some layers), latent attention, short convolution, the delta rule,
# a rope that depends on the text's length, experts, chunks.
FAMILIES = [
    "llama",
    "mistral",
    "gemma3",
    "deepseek_v2",
    "lfm3",
    "kimi_linear",
    "llama4",
    "qwen3_next",
    "mamba2",
    "falcon_h1-norm",
    "zamba2",
    "phi3-longer",
    "granitemoe",
]
SAMPLING = [
    ["--temp", "0"],
    ["-s", "5"],
    ["-s", "6", "--temp", "1.5", "--top-p", "1", "--repeat-penalty", "1.3"],
]


def context(run, model: Path) -> int:
    return int(re.search(r'"context": (\d+)', run(model, "--info", "--json").stdout.decode())[1])


def prompt(n: int, seed: int = 3) -> str:
    """Ids that repeat themselves, so that there is something to look up."""
    few = np.random.default_rng(seed).integers(3, 60, 9)
    return " ".join(str(few[i % 9]) for i in range(n))


def generate(run, model: Path, *options: object) -> tuple[bytes, str]:
    done = run(model, *options, env=guess_layers.STOPPED if "-md" in options else {})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


# ---- guesses ----


@pytest.mark.parametrize("name", FAMILIES)
def test_guesses_change_nothing(run, exported, name):
    model = exported(name)
    tokens = ["--tokens", prompt(20), "-n", min(60, context(run, model) - 20)]
    drafted = 0
    for sampling in SAMPLING:
        want, _ = generate(run, model, *tokens, *sampling)
        for guesses in (
            ["--lookup", 3],
            ["--lookup", 7],
            ["-md", model],
            ["-md", model, "--draft", 9],
        ):
            found, closing = generate(run, model, *tokens, *sampling, *guesses)
            assert found == want, (sampling, guesses)
            drafted += int(re.search(r"drafted (\d+), accepted \d+; ", closing)[1])
    assert drafted > 0 or not guess_layers.STOPPED


@pytest.mark.skipif(not guess_layers.STOPPED, reason="such a draft model costs too much")
def test_the_same_model_guesses_right(run, exported):
    """At temperature 0 a draft model that is the model itself is never wrong."""
    _, closing = generate(
        run, exported("llama"), "--tokens", "5 6 7", "-n", 40, "--temp", 0, "-md", exported("llama")
    )
    drafted, accepted = map(int, re.search(r"drafted (\d+), accepted (\d+)", closing).groups())
    assert drafted == accepted > 0


def test_guesses_in_a_text(run, stories):
    text = "Max saw a dog. Max saw a cat. Max saw a"
    for sampling in SAMPLING:
        want, _ = generate(run, stories, "-p", text, "-n", 120, *sampling)
        assert generate(run, stories, "-p", text, "-n", 120, "--lookup", 7, *sampling)[0] == want


def test_guesses_end_where_the_text_does(run, exported):
    """At -n and at the context's end, with the same reason."""
    model = exported("llama")
    for options in (["-n", 1], ["-n", 0], ["-n", 7], ["-c", 40, "-n", 100]):
        want, closing = generate(run, model, "--tokens", prompt(20), "--temp", 0, *options)
        found, other = generate(
            run, model, "--tokens", prompt(20), "--temp", 0, "--lookup", 7, *options
        )
        assert found == want and closing.split("stopped:")[1] == other.split("stopped:")[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lookup", "3", "-md", "x"], "--lookup and -md: give one of them"),
        (["--lookup", "0"], "--lookup wants a number from 1 to 32"),
        (["-md", "nowhere.bin"], "cannot open nowhere.bin"),
        (["--info", "--lookup", "3"], "--lookup means nothing for --info"),
    ],
)
def test_wrong_use_of_guesses(run, stories, options, message):
    done = run(stories, *options)
    assert done.returncode != 0 and message in done.stderr


def test_a_draft_model_of_another_vocabulary(run, stories, bare):
    done = run(stories, "-p", "One", "-md", bare)
    assert done.returncode == 1 and "its vocabulary is not that of" in done.stderr


def test_a_draft_model_that_is_too_large(run, stories):
    done = run(stories, "-p", "One", "-n", 3, "-md", stories)
    assert done.returncode == 0 and "so it guesses nothing" in done.stderr


# ---- the prompt cache ----


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "cache", [["-ctk", "f16", "-ctv", "f16"], ["-ctk", "q8", "-ctv", "f32"]], ids=["f16", "q8-f32"]
)
def test_a_continued_text(run, exported, tmp_path, name, cache):
    """The whole text in one run, and in three that hand the cache on, with other threads and chunks each."""
    model, file = exported(name), tmp_path / "session"
    n = min(96, context(run, model))
    ids = prompt(n)
    run(model, "--tokens", ids, "--logits", tmp_path / "whole", *cache)
    whole = (tmp_path / "whole").read_bytes()
    row, done = len(whole) // n, 0
    for part, split in zip(
        (n // 3, 2 * n // 3, n), (["-t", 1, "-b", 7], ["-t", 2], ["-t", 3, "-b", 1])
    ):
        text = " ".join(ids.split()[:part])
        closing = generate(
            run,
            model,
            "--tokens",
            text,
            "--logits",
            tmp_path / "x",
            "--prompt-cache",
            file,
            *cache,
            *split,
        )
        rows = (tmp_path / "x").read_bytes()
        assert rows == whole[done * row : part * row], closing
        done = part


@pytest.mark.parametrize("name", FAMILIES)
def test_another_text_with_the_same_beginning(run, exported, tmp_path, name):
    """A window or a state that has gone on cannot go back; the result is right all the same."""
    model, file = exported(name), tmp_path / "session"
    first, second = prompt(40), prompt(25) + " 60 1 60 1"
    generate(run, model, "--tokens", first, "-n", 10, "--temp", 0, "--prompt-cache", file)
    want, _ = generate(run, model, "--tokens", second, "-n", 15, "--temp", 0)
    found, closing = generate(
        run, model, "--tokens", second, "-n", 15, "--temp", 0, "--prompt-cache", file
    )
    assert found == want
    if name == "llama":
        assert "prompt 4 tokens" in closing and f"25 from {file}" in closing


def test_the_generated_text_is_kept_too(run, stories, tmp_path):
    file = tmp_path / "session"
    text = "One day, a girl named Mia"
    whole, _ = generate(run, stories, "-p", text, "-n", 60, "--temp", 0)
    part, _ = generate(
        run, stories, "-p", text, "-n", 30, "--temp", 0, "--prompt-cache", file, "--lookup", 7
    )
    rest, closing = generate(
        run, stories, "-p", part.decode(), "-n", 30, "--temp", 0, "--prompt-cache", file
    )
    assert rest == whole and int(re.search(r"(\d+) from ", closing)[1]) > 30


def test_a_session_of_another_context(run, tiny, tmp_path):
    """Any context that has room for it will do, and it is mapped in each."""
    file, text = tmp_path / "session", ["--tokens", prompt(40), "-n", 5, "--temp", 0]
    want, _ = generate(run, tiny, *text)
    for context in (512, 400, 77, 100, 45, 333):
        found, closing = generate(run, tiny, *text, "-c", context, "--prompt-cache", file)
        assert found == want and (context == 512 or "39 from" in closing), closing


def test_read_only(run, stories, tmp_path):
    file = tmp_path / "session"
    generate(run, stories, "-p", "One day", "-n", 5, "--prompt-cache", file)
    before = file.read_bytes()
    generate(
        run, stories, "-p", "One day, Max", "-n", 5, "--prompt-cache", file, "--prompt-cache-ro"
    )
    assert file.read_bytes() == before
    done = run(stories, "-p", "x", "--prompt-cache", tmp_path / "none", "--prompt-cache-ro")
    assert done.returncode == 1 and "cannot open" in done.stderr


@pytest.fixture()
def session(run, stories, tmp_path) -> Path:
    file = tmp_path / "session"
    generate(
        run,
        stories,
        "-p",
        "One day, a girl named Mia found a key",
        "-n",
        40,
        "--prompt-cache",
        file,
    )
    return file


def refused(run, model: Path, file: Path, message: str, *options: object) -> None:
    """A sentence, status 1, and the file is as it was."""
    before = file.read_bytes()
    done = run(
        model,
        "-p",
        "One day, a girl named Mia found a key in",
        "-n",
        3,
        "--prompt-cache",
        file,
        *options,
    )
    assert (
        done.returncode == 1
        and re.search(message, done.stderr)
        and len(done.stderr.splitlines()) <= 2
    ), done.stderr
    assert file.read_bytes() == before


def test_files_that_do_not_fit(run, stories, tiny, session, tmp_path):
    refused(run, tiny, session, "it was made with another checkpoint")
    refused(
        run,
        stories,
        session,
        "its keys and values are f16 and f16, here they are q8 and f16",
        "-ctk",
        "q8",
    )
    refused(run, stories, session, "it holds 5. tokens, the context has room for 20", "-c", 20)
    other = tmp_path / "other"
    other.write_bytes(stories.read_bytes())
    refused(run, stories, other, "not a saved session: .*; name another file, or remove this one$")
    other.write_bytes(b"")
    refused(run, stories, other, f"{other}: it is empty; name another file, or remove this one$")
    refused(run, stories, other, f"{other}: it is empty$", "--prompt-cache-ro")
    data = session.read_bytes()
    for size in (1, 60, len(data) // 2, len(data) - 1):
        session.write_bytes(data[:size])
        refused(run, stories, session, "truncated|not a saved session")
    session.write_bytes(data + b"\0" * 64)
    refused(run, stories, session, "truncated or has grown")


def test_every_flipped_bit_is_seen(run, stories, session):
    """In the header, the table, the tokens and the cache; only the gaps between parts hold nothing."""
    data = session.read_bytes()
    places = [
        *range(0, 64, 5),
        100,
        140,
        *np.flatnonzero(np.frombuffer(data, np.uint8))[:: len(data) // 40],
    ]
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 16
        session.write_bytes(flipped)
        refused(
            run,
            stories,
            session,
            "damaged|not a saved session|version|another checkpoint|keys and values|header says|holds",
        )


def layers_of(data: bytes) -> list[tuple[int, int]]:
    """Where the layers' bytes are in a saved session: offset and length of each."""
    n = struct.unpack_from("<8sIIQ4I", data)[7]
    return [struct.unpack_from("<2Q", data, 64 + 32 * i) for i in range(n)]


def damages(data: bytes):
    """What a checksum must see: lines and pages swapped, repeated, shifted; a bit flipped twice."""
    for at, size in (layer for layer in layers_of(data) if layer[1]):
        for unit in (64, 4096):
            for gap in (1, 2, 7):
                a, b = at, at + gap * unit
                if b + unit > at + size or data[a : a + unit] == data[b : b + unit]:
                    continue
                one, other = data[a : a + unit], data[b : b + unit]
                yield data[:a] + other + data[a + unit : b] + one + data[b + unit :]
                yield data[:b] + one + data[b + unit :]
                yield data[:b] + one + data[b : at + size - unit] + data[at + size :]
        for bit in (0, 31, 63):
            for gap in (8, 32, 64, 512, 4096):
                flipped = bytearray(data)
                for i in (at, at + gap):
                    flipped[i + bit // 8] ^= 1 << bit % 8
                if gap < size:
                    yield bytes(flipped)


def test_every_damage_is_seen(run, stories, session):
    data, n = session.read_bytes(), 0
    for n, damaged in enumerate(damages(data), 1):
        assert len(damaged) == len(data)
        session.write_bytes(damaged)
        refused(run, stories, session, "damaged in layer")
    assert n > 60


def fnv(data: bytes) -> int:
    total = 2166136261
    for (word,) in struct.iter_unpack("<I", data):
        total = (total ^ word) * 16777619 % 2**32
    return total


def test_sessions_of_older_builds_are_read(run, stories, session, tmp_path):
    """Version 2: exclusive ors for sums, and layers that begin where they did in the cache."""
    text = ["-p", "One day, a girl named Mia found a key and", "-n", 9, "--temp", 0]
    want, closing = generate(run, stories, *text, "--prompt-cache", session, "--prompt-cache-ro")
    data = session.read_bytes()
    layers = layers_of(data)
    head = bytearray(data[: 64 + 32 * len(layers) + 4 * struct.unpack_from("<i", data, 40)[0]])
    for shift in (0, 64, 4096, 5000 * 4):
        old, body = bytearray(head), bytearray()
        for i, (at, size) in enumerate(layers):
            place, layer = at + shift * (i + 1), data[at : at + size]
            total = int(np.bitwise_xor.reduce(np.frombuffer(layer, "<u8")))
            struct.pack_into("<2Q", old, 64 + 32 * i, place, size)
            struct.pack_into("<Q", old, 64 + 32 * i + 24, total)
            body += b"\0" * (place - len(head) - len(body)) + layer
        struct.pack_into("<2IQ", old, 8, 2, 0, len(old) + len(body))
        struct.pack_into("<I", old, 12, fnv(old[16:]))
        file = tmp_path / "old"
        file.write_bytes(old + body)
        found, same = generate(run, stories, *text, "--prompt-cache", file, "--prompt-cache-ro")
        assert found == want and same.count(" from ") == closing.count(" from ") == 1
        file.write_bytes(old + body[:-5] + bytes([body[-5] ^ 1]) + body[-4:])
        refused(run, stories, file, "damaged in layer")


@on_linux
def test_a_file_that_is_read_is_replaced(run, stories, bare, tmp_path):
    """Windows refuses that while it is open, so the program waits until the reader is done."""
    program, target = os.environ.get("HEADS_RUN", str(ROOT / "run")), tmp_path / "target"
    target.write_bytes(stories.read_bytes())
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [program, target, "-p", "-", "-n", "1"], stdin=subprocess.PIPE, **quiet
    ) as reader:
        maps = Path(f"/proc/{reader.pid}/maps")
        while reader.poll() is None and str(target) not in maps.read_text():
            time.sleep(0.01)
        with subprocess.Popen(
            [program, bare, "--tokens", "1", "--logits", target], **quiet
        ) as writer:
            while writer.poll() is None and not list(tmp_path.glob("*.tmp")):
                time.sleep(0.001)
            time.sleep(0.1)  # it has tried to
            reader.communicate(b"Once")
            assert writer.wait() == 0, writer.stderr.read()
    assert np.fromfile(target, np.float32).size == 300


def test_a_kill_leaves_the_old_file(run, stories, session):
    """Killed at any moment, the file is the old one or the new one, whole."""
    text = "One day, a girl named Mia found a key"
    before = session.read_bytes()
    for delay in (0, 0.002, 0.005, 0.01, 0.02, 0.03):
        program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
        with subprocess.Popen(
            [program, stories, "-p", text, "-n", "400", "--prompt-cache", session],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        if session.read_bytes() != before:
            done = run(stories, "-p", text, "-n", 3, "--prompt-cache", session, "--prompt-cache-ro")
            assert done.returncode == 0 and " from " in done.stderr
