"""--kv against figures computed here, --info and --check."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import checkpoints
from conftest import run_command

PAGE = os.sysconf("SC_PAGESIZE")


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
    model.write_bytes(
        checkpoints.random_model(
            n_layers=layers, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim
        )
    )
    report = kv_json(model, "-c", context, "-ctk", keys, "-ctv", values)
    names = "context rows reserved_bytes resident_bytes state_bytes padding_per_token"
    names += " fork_shared_bytes"
    assert list(report) == names.split() and report["padding_per_token"] == 0
    assert report["context"] == context
    per_head = layers * head_dim * (BYTES_OF_32[keys] + BYTES_OF_32[values]) // 32
    assert [row["scheme"] for row in report["rows"]] == ["MHA", *["GQA"] * 4, "MQA", "MLA"]
    assert [row["n_kv_heads"] for row in report["rows"]] == [12, 6, 4, 3, 2, 1, None]
    for row in report["rows"][:-1]:
        n = row["n_kv_heads"]
        names = "scheme n_kv_heads bytes_per_token bytes_at_2048 bytes_at_context ratio_to_mha own"
        assert list(row) == names.split()
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
    assert re.search(
        rf"after a run of {run_tokens} tokens, resident {report['resident_bytes']:,} bytes", text
    )


@pytest.mark.parametrize(("values", "padding"), [("f32", 32), ("f16", 16), ("q8", 24)])
def test_kv_padding(run, tmp_path, values, padding):
    """Values of 8 numbers are kept as 16, and in q8, whose blocks have 32, as 32."""
    model = tmp_path / "model.bin"
    model.write_bytes(checkpoints.random_model(n_layers=5, n_heads=8, n_kv_heads=4, head_dim=8))
    report = kv_json(model, "-ctv", values)
    assert report["padding_per_token"] == 5 * 4 * padding
    own = next(row for row in report["rows"] if row["own"])
    text = run(model, "--kv", "-ctv", values).stdout.decode()
    figures = f"{report['padding_per_token']:,} of this model's {own['bytes_per_token']:,} bytes"
    assert "padding: " + figures in text and text.count("as the formula says") == 2
    if values == "f16":
        assert own["bytes_per_token"] == 5 * 4 * (8 + 16) * 2 == 960


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
    assert [[row["n_kv_heads"] for row in r["rows"] if row["own"]] for r in reports] == [
        [6],
        [2],
        [1],
    ]
    assert (
        reports[0]["reserved_bytes"]
        == 3 * reports[1]["reserved_bytes"]
        == 6 * reports[2]["reserved_bytes"]
    )
    assert reports[1] == kv_json(paths[1])
    lines = run(*paths, "--kv").stdout.decode().splitlines()
    for path, line, report in zip(paths, lines[1:], reports):
        assert line.startswith(str(path))
        assert f" {report['reserved_bytes']:,} " in line and line.endswith(
            f" {report['resident_bytes']:,}"
        )


def test_kv_text(run, bare):
    lines = run(bare, "--kv").stdout.decode().splitlines()
    assert (
        "3 layers, 6 query heads, 2 KV heads, head_dim 16; keys f16, values f16; context 512"
        in lines[0]
    )
    own = [line for line in lines if line.startswith("* ") and "this model" not in line]
    assert len(own) == 1
    fields = own[0].split()
    assert fields[1:7] == ["GQA", "2", "384", "786,432", "196,608", "0.3333"]
    free = int(
        re.search(r"in the ([\d,]+) bytes of memory that are free", "\n".join(lines))[1].replace(
            ",", ""
        )
    )
    assert int(fields[7].replace(",", "")) == free // 384
    now = int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    assert free % 1024 == 0 and now / 2 < free < now * 2


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


def test_info_of_hostile_keys(run, bare, tmp_path):
    meta, tensors = checkpoints.parse(bare.read_bytes())
    meta["info.\x1b[2J\x7f\n"] = checkpoints.Meta(checkpoints.U8, 5, b"value")
    meta["info.csi"] = checkpoints.Meta(checkpoints.U8, 7, "csi \x9b.".encode())
    path = tmp_path / "hostile.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    text = run(path, "--info").stdout.decode()
    assert not set(text) & set(map(chr, [*range(10), *range(11, 32), *range(127, 160)]))
    assert "\ninfo.\\u001b[2J\\u007f\\u000a value\n" in text
    assert re.search(r"^info.csi +csi \\u009b\.$", text, re.M)


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
