"""A session file each of whose numbers is wrong once, its sums being right: the refusal says which."""

from __future__ import annotations

import struct
from ctypes import byref
from functools import reduce
from operator import xor
from pathlib import Path

import pytest
from test_encoder_decoders import GOLDEN, exported

import checkpoints
from heads._native import HeadsError, WorkspaceOptions, calls, int_array

HEADER, LAYER = 64, 32
PRIME = 16777619


def sealed(data: bytearray) -> bytes:
    """As a build of version 2 wrote it: layers by exclusive or, and the rest by FNV-1a over words."""
    n_layers, length, n_source = (struct.unpack_from("<i", data, at)[0] for at in (36, 40, 56))
    for entry in range(HEADER, HEADER + LAYER * n_layers, LAYER):
        offset, size = struct.unpack_from("<QQ", data, entry)
        if offset + size <= len(data) and size % 8 == 0:  # and not one of the wrong numbers
            words = struct.unpack_from(f"<{size // 8}Q", data, offset)
            struct.pack_into("<Q", data, entry + 24, reduce(xor, words, 0))
    end, total = HEADER + LAYER * n_layers + 4 * (length + n_source), 2166136261
    for (word,) in struct.iter_unpack("<I", data[16:end]):
        total = (total ^ word) * PRIME & 0xFFFFFFFF
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, 12, total)
    return bytes(data)


TOKENS = HEADER + 2 * LAYER
WRONG = [  # where, how, a value, and what is said
    (24, "<I", 1, "it was made with another checkpoint"),
    (36, "<I", 3, "it was made with another checkpoint"),
    (28, "<I", 0, "its keys and values are f32 and f16, here they are f16 and f16"),
    (32, "<I", 99, "its keys and values are of an unknown type and an unknown type, here"),
    (16, "<Q", 1, "the header says 1 bytes, the file has"),
    (40, "<i", 0, "it holds 0 tokens, the context has room for 64"),
    (40, "<i", 65, "it holds 65 tokens, the context has room for 64"),
    (56, "<i", -1, "it holds -1 tokens of a source, the context has room for 64"),
    (56, "<i", 65, "it holds 65 tokens of a source"),
    (44, "<i", 19, "its header is damaged"),
    (HEADER, "<Q", 1 << 60, "its table is damaged at layer 0"),
    (HEADER + 8, "<Q", 1 << 60, "its table is damaged at layer 0"),
    (HEADER + LAYER + 8, "<Q", 1, "its table is damaged at layer 1"),
    (HEADER + LAYER + 16, "<Q", 1, "layer 1 has a window whose ring was another"),
    (TOKENS, "<i", -1, "its token 0 is -1, the vocabulary has 0..299"),
    (TOKENS + 8, "<i", 300, "its token 2 is 300, the vocabulary has 0..299"),
]


def session(run, model: Path, path: Path, n: int) -> bytearray:
    ids = " ".join(map(str, range(5, 5 + n)))
    done = run(model, "--tokens", ids, "-n", 1, "-c", 64, "--prompt-cache", path)
    assert done.returncode == 0, done.stderr
    return bytearray(path.read_bytes())


def refusal(run, model: Path, path: Path, data: bytes) -> str:
    path.write_bytes(data)
    done = run(model, "--tokens", "5 6", "-n", 1, "-c", 64, "--prompt-cache", path)
    assert done.returncode == 1 and done.stdout == b"" and path.read_bytes() == data
    assert done.stderr.endswith("; name another file, or remove this one\n")
    return done.stderr


def test_each_number(tmp_path, run):
    model, path = tmp_path / "model.bin", tmp_path / "session"
    model.write_bytes(checkpoints.random_model(n_embd=16, d_ff=16, n_layers=2, context=64))
    good = session(run, model, path, 20)
    for at, kind, value, message in WRONG:
        bad = bytearray(good)
        struct.pack_into(kind, bad, at, value)
        assert message in refusal(run, model, path, sealed(bad)), message
    furthest = bytearray(good)  # a sequence may have been longer once; any number is added to
    struct.pack_into("<i", furthest, 44, 2**31 - 1)
    path.write_bytes(sealed(furthest))
    assert run(model, "--tokens", "5 6", "-n", 9, "-c", 64, "--prompt-cache", path).returncode == 0
    sealed(good)
    good[15] ^= 1
    assert "its header is damaged" in refusal(run, model, path, bytes(good))


def test_a_token_of_the_source(tmp_path, run):
    model, path = exported(GOLDEN / "t5", tmp_path / "model.bin"), tmp_path / "session"
    bad = session(run, model, path, 3)
    n_layers, length = struct.unpack_from("<ii", bad, 36)
    struct.pack_into("<i", bad, HEADER + LAYER * n_layers + 4 * length, 61)
    assert "its source's token 0 is 61, the vocabulary has 0..60" in refusal(
        run, model, path, sealed(bad)
    )


def test_what_cannot_be_saved(bare, tmp_path):
    model = calls.model_open(str(bare).encode())
    workspace = calls.workspace_new(model, byref(WorkspaceOptions(n_threads=1)))
    sequence = calls.sequence_new(workspace, 0)
    with pytest.raises(HeadsError, match="an empty sequence has nothing to save"):
        calls.sequence_save(sequence, str(tmp_path / "s").encode())
    calls.forward(sequence, int_array([5, 6]), 2, 1)
    with pytest.raises(HeadsError, match="/dev/null: it is no regular file, so a session in it"):
        calls.sequence_save(sequence, b"/dev/null")
    calls.sequence_free(sequence)
    calls.workspace_free(workspace)
    calls.model_close(model)
