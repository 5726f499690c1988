"""--kv against figures computed here, --info and --check."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import checkpoints
from conftest import on_linux, run_command

PAGE = os.sysconf("SC_PAGESIZE")


def kv_json(*arguments: object):
    done = run_command(*arguments, "--kv", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


BYTES_OF_32 = {"f32": 128, "f16": 64, "q8": 34, "q4": 18}


@pytest.mark.parametrize("keys", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("values", ["f32", "f16", "q8", "q4"])
def test_kv_formula(run, tmp_path, keys, values):
    layers, heads, kv_heads, head_dim, context = 3, 12, 4, 64, 300
    model = tmp_path / "model.bin"
    model.write_bytes(
        checkpoints.random_model(
            n_layers=layers, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim
        )
    )
    report = kv_json(model, "-c", context, "-ctk", keys, "-ctv", values, "--memory", "1.5G")
    assert report["memory_bytes"] == 3 << 29
    assert set(report["rows"][0]["tokens_that_fit"]) == {"f32", "f16", "q8", "q4"} | (
        {f"{keys}/{values}"} if keys != values else set()
    )
    names = "model shape context model_context memory_bytes weight_bytes rows reserved_bytes"
    names += " state_bytes padding_per_token resident_bytes fork_shared_bytes"
    assert list(report) == names.split() and report["padding_per_token"] == 0
    assert report["context"] == context
    per_head = layers * head_dim * (BYTES_OF_32[keys] + BYTES_OF_32[values]) // 32
    assert [row["scheme"] for row in report["rows"]] == ["MHA", *["GQA"] * 4, "MQA", "MLA"]
    assert [row["n_kv_heads"] for row in report["rows"]] == [12, 6, 4, 3, 2, 1, None]
    for row in report["rows"][:-1]:
        n = row["n_kv_heads"]
        names = "scheme n_kv_heads bytes_per_token growing_per_token window_bytes bytes_at_2048"
        names += " bytes_at_context ratio_to_mha own tokens_that_fit curve"
        assert list(row) == names.split()
        assert row["growing_per_token"] == row["bytes_per_token"] and row["window_bytes"] == 0
        assert row["curve"] == [
            [t, t * n * per_head] for t in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)
        ]
        for types, fits in row["tokens_that_fit"].items():
            k, v = types.split("/") if "/" in types else (types, types)
            one = n * layers * head_dim * (BYTES_OF_32[k] + BYTES_OF_32[v]) // 32
            assert fits == report["memory_bytes"] // one
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
        begin = i * -(-layer_bytes // PAGE) * PAGE
        pages |= set(range(begin // PAGE, (begin + filled - 1) // PAGE + 1))
    return len(pages) * PAGE


@pytest.mark.parametrize("context", [512, 300, 256, 17, 1])
def test_kv_measured(run, bare, context):
    report = kv_json(bare, "-c", context)
    per_token = 2 * 2 * 16 * 2  # of a layer: KV heads, keys and values, head_dim, f16
    slots = -(-context // 16) * 16
    assert report["reserved_bytes"] == 3 * -(-slots * per_token // PAGE) * PAGE  # a page each
    run_tokens = min(context, 256)
    if run_tokens % 16 == 0:
        assert report["resident_bytes"] == resident(3, slots * per_token, run_tokens * per_token)
    text = run(bare, "--kv", "-c", context).stdout.decode()
    assert text.count("as the formula says") == 2 and "NOT" not in text
    assert re.search(
        rf"after a run of {run_tokens} tokens:\n +resident {report['resident_bytes']:,} bytes", text
    )


@pytest.mark.parametrize(("values", "padding"), [("f32", 32), ("f16", 16), ("q8", 24), ("q4", 12)])
def test_kv_padding(run, tmp_path, values, padding):
    """Values of 8 numbers are kept as 16, and in q8 and q4, whose blocks have 32, as 32."""
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


@pytest.mark.parametrize("options", [[], ["-ctk", "q8"], ["-ctv", "q4"], ["-c", 4000], ["-c", 40]])
@pytest.mark.parametrize(
    "name",
    [
        "gemma3",
        "lfm3",
        "mistral",
        "qwen3_next",
        "nemotron_h",
        "falcon_h1-norm",
        "zamba2",
        "gpt_oss",
        "gemma4",
    ],
)
def test_kv_grows_and_stays(name, options, exported):
    """What a context costs is what grows with it, and what does not."""
    report = kv_json(exported(name), *options)
    for row in report["rows"]:
        grown = row["growing_per_token"] * report["context"]
        assert row["bytes_at_context"] == grown + row["window_bytes"] + report["state_bytes"]
    if name == "lfm3":
        assert report["state_bytes"] > 0
    if name == "gemma3" and options != ["-c", 40]:
        assert 0 < row["growing_per_token"] < row["bytes_per_token"] or row["scheme"] == "MLA"


def test_kv_counts_beyond_the_context(run, bare):
    """Nobody runs it there, so it is arithmetic; what is measured is the model's own context."""
    report = kv_json(bare, "-c", 100_000)
    assert (report["context"], report["model_context"]) == (100_000, 512)
    assert next(r for r in report["rows"] if r["own"])["bytes_at_context"] == 100_000 * 384
    assert report["reserved_bytes"] == 512 * 384
    text = run(bare, "--kv", "-c", 100_000).stdout.decode()
    assert text.count("as the formula says") == 2 and "NOT" not in text
    assert f"note: {bare} was made for 512 tokens; 100,000 is what they would cost." in text
    assert "measured at the context it was made for:\n  reserved 196,608 bytes" in text
    assert run(bare, "-p", "x", "-c", 100_000).returncode == 2


def test_kv_memory(run, bare):
    for size, n in (("384", 1), ("383", 0), ("3k", 8), ("0.75M", 2048), ("1G", (1 << 30) // 384)):
        report = kv_json(bare, "--memory", size)
        own = next(r for r in report["rows"] if r["own"])
        assert own["tokens_that_fit"]["f16"] == n, size
    text = run(bare, "--kv", "--memory", "3K").stdout
    assert b"tokens that fit in 3,072 bytes (--memory)" in text
    for size in ("x", "3x", "3KB", "0", "-1", "", "nan", "inf", "1e30", "K"):
        done = run(bare, "--kv", "--memory", size)
        assert done.returncode == 2 and "--memory wants a size such as 8G" in done.stderr
    assert "--memory means nothing for generation" in run(bare, "--memory", "1G").stderr


# ---- the picture ----

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(picture: Path) -> list[tuple[str, list[tuple[float, float]]]]:
    """What the lines are called, and their points; the second polyline of a group leads to the
    name."""
    root = ElementTree.parse(picture).getroot()
    names = [t.text for t in root.iter(f"{SVG}text") if ": " in (t.text or "")]
    groups = [group.find(f"{SVG}polyline").get("points") for group in root.iter(f"{SVG}g")]
    points = [[tuple(map(float, p.split(","))) for p in group.split()] for group in groups]
    return list(zip(names, points))


def ticks_of(picture: Path, anchor: str) -> list[tuple[float, float]]:
    """(place, what it means) of the ticks: of bytes where the anchor is end, else of tokens."""
    units = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    found = []
    for text in ElementTree.parse(picture).getroot().iter(f"{SVG}text"):
        match = re.fullmatch(r"(\d+) ?([KMGTB]?)(iB)?", text.text or "")
        if match and text.get("text-anchor") == anchor:
            at = float(text.get("y")) - 4 if anchor == "end" else float(text.get("x"))
            found.append((at, int(match[1]) * units[match[2]]))
    return sorted(found)


def value_at(ticks: list[tuple[float, float]], place: float) -> float:
    (a, x), (b, y) = ticks[0], ticks[-1]
    return x * (y / x) ** ((place - a) / (b - a))


def test_svg_of_schemes(run, tmp_path):
    """The lines are where the figures of --json say."""
    model, picture = tmp_path / "a <b> & c.bin", tmp_path / "x.svg"
    model.write_bytes(checkpoints.random_model(window=32, context=4096))
    report = json.loads(run(model, "--kv", "--svg", picture, "--json").stdout)
    title = [t.text for t in ElementTree.parse(picture).getroot().iter(f"{SVG}text")][0]
    assert title == "KV cache of a <b> & c.bin"
    tokens, size = ticks_of(picture, "middle"), ticks_of(picture, "end")
    assert [n for _, n in tokens] == [2**k for k in range(4, 13)] and 4 <= len(size) <= 10
    lines = dict(lines_of(picture))
    assert len(lines) == len(report["rows"])
    for row in report["rows"]:
        curve, heads = dict(row["curve"]), row["n_kv_heads"]
        label = f"{row['scheme']}, {heads} KV head" if heads else "MLA of rank"
        (points,) = (p for name, p in lines.items() if name.startswith(label))
        assert value_at(tokens, points[-1][0]) == pytest.approx(4096, rel=0.01)
        for x, y in points:
            n = value_at(tokens, x)
            if abs(n - (at := 2 ** round(math.log2(n)))) < 0.01 * n:
                assert value_at(size, y) == pytest.approx(curve[at], rel=0.02)


def test_svg_of_models(run, tmp_path, bare, stories):
    picture = tmp_path / "x.svg"
    text = run(bare, stories, "--kv", "-c", 2048, "--memory", "1M", "--svg", picture).stdout
    assert text == run(bare, stories, "--kv", "-c", 2048, "--memory", "1M").stdout
    root = ElementTree.parse(picture).getroot()
    assert [name.split(":")[0] for name, _ in lines_of(picture)] == ["bare.bin", "stories.bin"]
    assert len(list(root.iter(f"{SVG}circle"))) == 2  # both were made for less
    assert "1 MiB of memory" in [t.text for t in root.iter(f"{SVG}text")]
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text
    places = [float(t.get("y")) for t in root.iter(f"{SVG}text") if ": " in (t.text or "")]
    assert abs(places[0] - places[1]) >= 17


def test_svg_of_a_name_that_xml_forbids(run, tmp_path, bare):
    """Control characters, U+FFFE and U+FFFF may not even be spelled in XML."""
    model = tmp_path / "a\x01\ufffe\uffff\ufffd\uffbd b.bin"
    model.write_bytes(bare.read_bytes())
    assert run(model, "--kv", "--svg", tmp_path / "x.svg").returncode == 0
    texts = "".join(ElementTree.parse(tmp_path / "x.svg").getroot().itertext())
    assert "a\ufffd\ufffd\ufffd\ufffd\uffbd b.bin" in texts


def test_svg_is_whole_or_not_there(run, tmp_path, bare):
    """Of many lines too; and the file is no model."""
    model = tmp_path / "model.svg"
    model.write_bytes(bare.read_bytes())
    done = run(bare, model, "--kv", "--svg", model)
    assert done.returncode == 1 and done.stdout == b"" and "it is the model itself" in done.stderr
    done = run(bare, "--kv", "--svg", tmp_path / "x.png")
    assert done.returncode == 2 and "ends in .svg, found" in done.stderr
    assert run(bare, "--kv", "--svg", tmp_path / "no" / "x.svg").returncode == 1
    done = run(*[bare] * 40, "--kv", "--svg", tmp_path / "x.svg")
    assert done.returncode == 0 and f"the picture is in {tmp_path / 'x.svg'}\n" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.svg", "x.svg"]
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    places = [float(t.get("y")) for t in root.iter(f"{SVG}text") if ": " in (t.text or "")]
    assert len(places) == 40 and max(places) < int(root.get("height"))
    assert all(b - a > 16 for a, b in zip(places[::-1], places[-2::-1]))
    model.write_bytes(checkpoints.random_model(n_layers=40, n_kv_heads=6))  # all others lie low
    assert run(model, *[bare] * 20, "--kv", "--svg", tmp_path / "x.svg").returncode == 0
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    low = [float(t.get("y")) for t in root.iter(f"{SVG}text") if ": " in (t.text or "")]
    assert len(low) == 21 and max(low) < 460
    assert "--svg means nothing for --info" in run(bare, "--info", "--svg", "x.svg").stderr
    model.write_bytes(checkpoints.random_model(context=1, n_layers=1))
    assert run(model, "--kv", "--svg", tmp_path / "x.svg").returncode == 0
    assert "nan" not in (tmp_path / "x.svg").read_text()


def test_kv_several_models(run, tmp_path):
    paths = [tmp_path / f"{name}.bin" for name in ("mha", "gqa", "mqa")]
    for path, n in zip(paths, (6, 2, 1)):
        path.write_bytes(checkpoints.random_model(n_kv_heads=n))
    reports = kv_json(*paths, "--memory", "1G")
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
    assert reports[1] == kv_json(paths[1], "--memory", "1G")
    text = run(*paths, "--kv").stdout.decode()
    heads, sizes = text.split("\n\n")[:2]
    assert all(len(line) <= 80 for line in text.splitlines())
    for path, line, n in zip(paths, heads.splitlines()[1:], (6, 2, 1)):
        name, _, shown, own = line.split()[:4]
        assert name == ".." + str(path)[-22:] and (shown, own) == ("6", str(n))
    for line, report in zip(sizes.splitlines()[1:], reports):
        bytes_of = (f"{report[key]:,}" for key in ("reserved_bytes", "resident_bytes"))
        assert line.split()[1:] == ["0", *bytes_of, "256"]


@on_linux
def test_kv_text(run, bare):
    lines = run(bare, "--kv").stdout.decode().splitlines()
    assert all(len(line) <= 80 for line in lines[1:])
    assert (
        "3 layers, 6 query heads, 2 KV heads, head_dim 16; keys f16, values f16; context 512"
        in lines[0]
    )
    own, fits = ([line] for line in lines if line.startswith("* ") and "this model" not in line)
    assert own[0].split()[1:] == "GQA 2 384 196,608 786,432 0.3333".split()
    weights = sum(len(t.data) for t in checkpoints.parse(bare.read_bytes())[1].values())
    assert f"weights: {weights:,} bytes, beside the cache." in lines
    free = int(
        re.search(r"fit in ([\d,]+) bytes \([\d.]+ GiB\) \(what is free now\)", "\n".join(lines))[
            1
        ].replace(",", "")
    )
    # In q8 and q4 16 numbers take the room of 32, and keys an odd block's padding.
    assert fits[0].split()[3:] == [f"{free // n:,}" for n in (768, 384, 420, 228)]
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
