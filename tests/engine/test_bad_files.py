"""Damaged and hostile checkpoints: each gets a sentence and exit status 1, and none makes the engine read out of bounds."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import chats
import checkpoints
import export
import heads
import tokenizer_texts as texts
from chat_templates import EXACT
from checkpoints import I32, Meta
from conftest import ALL, ROOT, tries
from outputs import processor_seconds
from test_encoder_decoders import with_letters
from test_encoders import with_texts

from exporter.tokenizers.files import tokenizer_metadata


def refused(run, path: Path, message: str) -> None:
    for mode in (["--tokens", "1"], ["--kv"]):
        done = run(path, *mode)
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert done.stdout == b"" and len(done.stderr.splitlines()) == 1
        assert re.search(message, done.stderr), done.stderr
        assert str(path) in done.stderr


# ---- files that are none ----


def test_missing(run, tmp_path):
    refused(run, tmp_path / "missing.bin", "No such file")


def test_a_pointer_of_git_lfs(run, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    refused(run, path, "a pointer of Git LFS, not the file itself; fetch it: git lfs install")


def test_empty(run, tmp_path):
    (tmp_path / "empty.bin").touch()
    refused(run, tmp_path / "empty.bin", "is empty")


def test_directory(run, tmp_path):
    refused(run, tmp_path, "has no config.json")  # says export.py, which takes directories
    with pytest.raises(heads.HeadsError, match="is a directory; name a file"):
        heads._native.calls.model_open(os.fsencode(tmp_path))


def test_no_permission(run, bare, tmp_path):
    path = tmp_path / "secret.bin"
    path.write_bytes(bare.read_bytes())
    path.chmod(0)
    options = (
        {"user": 65534} if os.geteuid() == 0 else {}
    )  # root may read everything; nobody may not
    if options:
        for folder in [tmp_path, *tmp_path.parents]:
            if not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)
    program = tmp_path / "run"  # the checkout may be in a folder closed to others
    program.write_bytes(Path(os.environ.get("HEADS_RUN", ROOT / "run")).read_bytes())
    program.chmod(0o755)
    done = subprocess.run(
        [program, path, "--tokens", "1"], capture_output=True, text=True, **options
    )
    assert done.returncode == 1 and "Permission denied" in done.stderr and str(path) in done.stderr


def test_other_kinds_of_file(run, tmp_path):
    path = tmp_path / "text.bin"
    for content in (
        b"x",
        b"heads.c",
        bytes(4096),
        b"heads.d\0" + bytes(1000),
    ):
        path.write_bytes(content)
        refused(run, path, "not a heads.c checkpoint")
    path.write_bytes(b"GGUF" + bytes(100))
    refused(run, path, "export: ")  # what is no GGUF after all
    with pytest.raises(heads.HeadsError, match="a GGUF file, which export.py reads: python3 exp"):
        heads._native.calls.model_open(os.fsencode(path))


# ---- the header ----


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (8, "<I", 1, "version is 1, this build reads version 2"),
        (8, "<I", 0xFFFFFFFF, "version is 4294967295"),
        (16, "<Q", 64, "longer than it was written"),
        (16, "<Q", 1 << 63, "truncated"),
        (24, "<Q", 1 << 40, "do not fit"),
        (24, "<Q", (1 << 64) - 64, "do not fit"),
        (24, "<Q", 65, "do not fit"),
        (32, "<Q", (1 << 64) - 64, "do not fit"),
        (32, "<Q", 0, "do not fit"),
        (40, "<I", 0, "tensor|metadata"),
        (40, "<I", 0xFFFFFFFF, "do not fit"),
        (44, "<I", 0xFFFFFFFF, "do not fit"),
        (44, "<I", 0, "tensor|data"),
    ],
)
def test_header(run, bare, tmp_path, at, layout, value, message):
    data = bytearray(bare.read_bytes())
    struct.pack_into(layout, data, at, value)
    path = tmp_path / "header.bin"
    path.write_bytes(checkpoints.seal(bytes(data)))
    refused(run, path, message)


# ---- metadata ----


def ints(*values: int) -> Meta:
    return Meta(I32, len(values), np.array(values, "<i4").tobytes())


def floats(*values: float) -> Meta:
    return Meta(3, len(values), np.array(values, "<f4").tobytes())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.vocab_size", None, "model.vocab_size is missing"),
        ("model.vocab_size", ints(0), "model.vocab_size is 0, expected"),
        ("model.vocab_size", ints(-1), "model.vocab_size is -1, expected"),
        ("model.vocab_size", ints(2**31 - 1), "model.vocab_size is 2147483647, expected"),
        ("model.vocab_size", ints(301), "tensor embed"),
        ("model.vocab_size", ints(1, 2), "model.vocab_size"),
        ("model.vocab_size", Meta(3, 1, struct.pack("<f", 300)), "model.vocab_size: type is 3"),
        ("model.vocab_size", Meta(1, 0, b""), "model.vocab_size: type is 1"),
        ("model.n_embd", ints(1 << 24), "tensor embed"),
        ("model.n_layers", ints(4), "layers.3.attn_norm"),
        ("model.n_layers", ints(2), "layers.2"),
        ("model.n_layers", ints(1 << 30), "model.n_layers is 1073741824, expected"),
        ("model.context", ints(0), "model.context is 0, expected"),
        ("model.norm", ints(7), "model.norm is 7, expected"),
        (
            "model.norm_eps",
            Meta(3, 1, struct.pack("<f", float("nan"))),
            "model.norm_eps is not a finite number",
        ),
        ("model.norm_eps", floats(-1), "model.norm_eps is -1, expected 0 or more"),
        (
            "model.rope.0.inv_freq",
            Meta(3, 2, struct.pack("<2f", 1, float("inf"))),
            "inv_freq: value 1 is not a finite",
        ),
        (
            "model.rope.0.inv_freq",
            Meta(3, 9, struct.pack("<9f", *[1.0] * 9)),
            "rotates 18 elements, head_dim is 16",
        ),
        ("layer.n_heads", ints(5), "n_heads 5 is no multiple of n_kv_heads 2"),
        ("layer.n_heads", ints(6, 6), "layer.n_heads: it has 2 values, expected 1 or 3"),
        ("layer.n_heads", ints(1 << 24), "layer.n_heads of layer 0 is 16777216, expected 1..16384"),
        ("layer.n_kv_heads", ints(0), "layer.n_kv_heads of layer 0 is 0"),
        ("layer.n_kv_heads", ints(2, 2, 3), "layers.2.attn_k"),
        ("layer.head_dim", ints(1 << 24), "exceeds"),
        ("layer.rope", ints(1), "layer.rope of layer 0 is 1"),
        ("layer.window", ints(-1), "layer.window of layer 0 is -1"),
        ("layer.topology", ints(5), "layer.topology of layer 0 is 5"),
        ("layer.ffn", ints(0), "ffn_gate"),
        ("layer.act", ints(-1), "layer.act of layer 0 is -1"),
        ("layer.act", ints(1 << 20), "layer.act of layer 0 is 1048576"),
        ("layer.act", ints(5), "activation 5 takes no gate"),
        ("layer.act", ints(6), "tensor layers.0.ffn_act is missing"),
        ("layer.norms", ints(16), "layer.norms of layer 0 is 16"),
        ("layer.norms", ints(7), "tensor layers.0.attn_post_norm is missing"),
        ("layer.norms", ints(4), "tensor layers.0.attn_norm is not known"),
        ("layer.kv_source", ints(-2), "layer.kv_source of layer 0 is -2"),
        ("layer.kv_source", ints(-1, 1, -1), "layer 1: kv_source is 1, expected an earlier layer"),
        ("layer.kv_source", ints(-1, 0, 1), "layer 2: kv_source is 1, expected an earlier layer"),
        ("layer.kv_source", ints(-1, 0, -1), "tensor layers.1.attn_k is not known"),
        ("model.ple", ints(4), "tensor ple_table is missing"),
        ("model.ple", ints(1 << 24), "model.ple is 16777216, expected"),
        ("layer.qk_norm", ints(4), "layer.qk_norm of layer 0 is 4"),
        ("layer.clip", floats(-1), "layer.clip of layer 0 is -1, expected 0 or more"),
        ("layer.softcap", floats(float("nan")), "layer.softcap of layer 0 is not a finite number"),
        (
            "layer.residual_scale",
            floats(1, 2),
            "layer.residual_scale: it has 2 values, expected 1 or 3",
        ),
        ("model.final_softcap", floats(-2), "model.final_softcap is -2, expected 0 or more"),
        ("model.q_temp", floats(1, 2), "model.q_temp_length is missing"),
        ("model.q_temp", floats(1, float("inf")), "model.q_temp: value 1 is not a finite number"),
        ("model.q_temp", ints(1), "model.q_temp: expected 1"),
        ("model.q_temp_length", ints(1), "knob model.q_temp_length is not known"),
        ("model.distances", ints(0, 1), "model.distances: it has 2 numbers, expected an odd"),
        ("model.distances", ints(0, 1, 2), "model.distances needs layer.mask 1"),
        ("layer.q_temp", ints(0), "layer.q_temp is 0, but there is no model.q_temp"),
        ("layer.chunked", ints(1), "layer.chunked needs a window"),
        ("model.rope.0.long_freq", floats(1), "model.rope.0.long_freq: expected 8 numbers"),
        ("model.rope.0.long_freq", floats(*[1.0] * 8), "model.rope.0.length is missing"),
        ("layer.d_ff", ints(2**31 - 1), "layer.d_ff of layer 0 is 2147483647"),
        (
            "layer.attn_scale",
            Meta(3, 1, struct.pack("<f", float("inf"))),
            "layer.attn_scale of layer 0 is not a finite",
        ),
        ("layer.softcap", ints(1), "layer.softcap: type is 2, expected 3"),
        ("model.unheard_of", ints(1), "knob model.unheard_of is not known"),
    ],
)
def test_knobs(run, bare, tmp_path, key, value, message):
    meta, tensors = checkpoints.parse(bare.read_bytes())
    if value is None:
        del meta[key]
    else:
        meta[key] = value
    path = tmp_path / "knob.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    refused(run, path, message)


# ---- tensors ----


def table_row(data: bytes, name: str) -> int:
    """Where the tensor table's row of that name begins."""
    encoded = name.encode()
    at = data.index(encoded + bytes(8 - len(encoded) % 8 if len(encoded) % 8 else 0))
    return at - 40


@pytest.mark.parametrize(
    ("field", "layout", "value", "message"),
    [
        (0, "<I", 99, "tensor layers.1.attn_o: dtype is 99"),
        (0, "<I", 1, "tensor layers.1.attn_o"),
        (4, "<I", 0xFFFFFFFF, "name does not fit"),
        (8, "<Q", 0, "tensor layers.1.attn_o: shape is"),
        (8, "<Q", 1 << 63, "tensor layers.1.attn_o: shape is"),
        (8, "<Q", 41, "tensor layers.1.attn_o"),
        (16, "<Q", (1 << 64) - 1, "tensor layers.1.attn_o: shape is"),
        (16, "<Q", 1 << 24, "tensor layers.1.attn_o"),
        (24, "<Q", 1 << 40, "tensor layers.1.attn_o: data begin at byte 1099511627776"),
        (24, "<Q", 0, "tensor layers.1.attn_o: data begin at byte 0"),
        (24, "<Q", (1 << 64) - 64, "tensor layers.1.attn_o: data begin"),
        (32, "<Q", 1 << 40, "tensor layers.1.attn_o: its 1099511627776 bytes"),
        (32, "<Q", (1 << 64) - 1, "tensor layers.1.attn_o: its 18446744073709551615 bytes"),
        (32, "<Q", 0, "tensor layers.1"),
    ],
)
def test_tensor_table(run, bare, tmp_path, field, layout, value, message):
    data = bytearray(bare.read_bytes())
    struct.pack_into(layout, data, table_row(bytes(data), "layers.1.attn_o") + field, value)
    path = tmp_path / "tensor.bin"
    path.write_bytes(checkpoints.seal(bytes(data)))
    refused(run, path, message)


def test_tensors_overlap(run, bare, tmp_path):
    data = bytearray(bare.read_bytes())
    first, second = (table_row(bytes(data), f"layers.0.{name}") for name in ("attn_k", "attn_v"))
    inside = int.from_bytes(data[first + 24 : first + 32], "little") + 64
    data[second + 24 : second + 32] = inside.to_bytes(8, "little")
    path = tmp_path / "overlap.bin"
    path.write_bytes(checkpoints.seal(bytes(data)))
    refused(run, path, "tensor layers.0.attn_v: data begin at byte")


@pytest.mark.parametrize("bad", ["none", "last"])
def test_many_tensors_that_share_data(run, bare, tmp_path, bad):
    """Half of 160,000 share the data of the others, in the same order: each is found by a binary
    search, not by looking at all before it. (The engine has no place for them, and says so.)"""
    half = 80_000
    meta, tensors = checkpoints.parse(bare.read_bytes())
    one = checkpoints.vector(np.ones(16))
    tensors |= {f"a.{i:05}": one for i in range(half)} | {f"b.{i:05}": one for i in range(half)}
    data = bytearray(checkpoints.build(meta, tensors))
    end = len(data) - 64 * half
    entry = (
        struct.unpack_from("<Q", data, 24)[0]
        + 64
        + sum(40 + len(name) + -len(name) % 8 for name in tensors if not name.startswith("b."))
    )
    for i in range(half):
        struct.pack_into("<Q", data, entry + 48 * i + 24, end - 64 * (half - i))
    struct.pack_into("<Q", data, 16, end)
    if bad == "last":
        struct.pack_into("<Q", data, entry + 48 * (half - 1) + 24, end - 32)
    path = tmp_path / "many.bin"
    path.write_bytes(checkpoints.seal(bytes(data[:end])))
    before = processor_seconds()
    done = run(path, "--kv")
    assert processor_seconds() - before < 1.5
    said = f"tensor b.79999: data begin at byte {end - 32}, expected {end}"
    assert (said if bad == "last" else "tensor a.00000 is not known to this build") in done.stderr


@pytest.mark.parametrize("change", ["missing", "unknown", "twice", "shape"])
def test_tensor_names(run, bare, tmp_path, change):
    meta, tensors = checkpoints.parse(bare.read_bytes())
    if change == "missing":
        del tensors["layers.2.ffn_up"]
        message = "tensor layers.2.ffn_up is missing"
    elif change == "unknown":
        tensors["layers.3.ffn_up"] = tensors["layers.2.ffn_up"]
        message = "tensor layers.3.ffn_up is not known"
    elif change == "shape":
        tensors["layers.2.ffn_up"] = tensors["layers.2.ffn_down"]
        message = "tensor layers.2.ffn_up: it is"
    else:
        tensors["layers.0.ffn_uP"] = tensors["layers.2.ffn_up"]
        message = "tensor layers.0.ffn_up occurs twice"
    data = checkpoints.build(meta, tensors)
    path = tmp_path / "names.bin"
    path.write_bytes(checkpoints.seal(data.replace(b"layers.0.ffn_uP", b"layers.0.ffn_up")))
    refused(run, path, message)


# ---- many small damages, in one process ----


@pytest.fixture(scope="session")
def fuzzer(made_once) -> Path:
    """The driver; in CI's step with ASan and UBSan, if the compiler has them, and with the
    reference kernels alone, since compiling that takes half a minute. HEADS_FUZZER names another."""
    if "HEADS_FUZZER" in os.environ:
        return Path(os.environ["HEADS_FUZZER"])
    plain = ROOT / "build" / "tests" / "c" / "fuzz_checkpoint"
    if not ALL:
        return plain
    probe = subprocess.run(
        [
            os.environ.get("CC", "cc"),
            "-fsanitize=address,undefined",
            "-x",
            "c",
            "-",
            "-o",
            os.devnull,
        ],
        input="int main(void) { return 0; }",
        text=True,
        capture_output=True,
    )
    if probe.returncode != 0:
        return plain
    program = "build/asan/scalar/tests/c/fuzz_checkpoint"

    def build(_):
        command = ["make", "-s", f"-j{os.cpu_count()}", "ASAN=1", "SCALAR=1", program]
        built = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
        assert built.returncode == 0, built.stderr

    made_once("fuzzer", build)
    return ROOT / program


def fuzz(fuzzer: Path, model: Path, *how: object) -> tuple[int, int]:
    """Mutations tried, and how many of them were accepted."""
    done = subprocess.run(
        [fuzzer, model, *map(str, how)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, (done.stdout[-1000:] + done.stderr)[-3000:]
    match = re.fullmatch(r"(\d+) tried, (\d+) accepted\n", done.stdout)
    assert match, done.stdout
    return int(match[1]), int(match[2])


@pytest.fixture(scope="session")
def small(tmp_path_factory, stories) -> Path:
    """Narrow, since each of thousands of mutations runs; with three layers and a tokenizer."""
    path = tmp_path_factory.mktemp("small") / "small.bin"
    path.write_bytes(checkpoints.random_model(tokenizer=stories, n_embd=8, d_ff=8))
    return path


def test_truncated_every_4_kb(fuzzer, small):
    tried, accepted = fuzz(fuzzer, small, "truncate", 4096)
    assert tried == -(-small.stat().st_size // 4096) and accepted == 0


def test_grown(fuzzer, small):
    assert fuzz(fuzzer, small, "grow") == (64, 0)


def test_bit_flips(fuzzer, small):
    """A flip in a float, in a token's text or in an info string is a different model, not a damaged one."""
    n = tries(2000)
    tried, accepted = fuzz(fuzzer, small, "flip", n, 1)
    assert tried == n and 0 < accepted < n


def test_extreme_words(fuzzer, small):
    tried, accepted = fuzz(fuzzer, small, "overwrite", 500, 2)
    assert tried == 500 and accepted < 500


# What the absence of a knob means, where it is not 0.
USUAL = {
    "layer.kv_source": -1,
    "layer.norms": 5,
    "layer.q_temp": 1,
    "layer.residual_scale": 1,
    "layer.routed_scale": 1,
    "layer.delta_beta": 1,
    "layer.ssm_most_step": np.finfo(np.float32).max,
}


@pytest.fixture(scope="session")
def every_knob(tmp_path_factory, small) -> Path:
    """The small model with all knobs that it could do without, each saying what its absence says."""
    meta, tensors = checkpoints.parse(small.read_bytes())
    text = (ROOT / "docs" / "format.md").read_text()
    knobs = re.findall(r"^\| ((?:`layer\.\w+`(?:, )?)+) \| ((?:i32|f32|, )+) \|", text, re.M)
    for keys, types in knobs:
        types = types.split(", ")
        for i, key in enumerate(re.findall(r"`([\w.]+)`", keys)):
            make = ints if types[min(i, len(types) - 1)] == "i32" else floats
            if key not in (
                "layer.delta_eps",
                "layer.ssm_eps",
            ):  # no number says what its absence does
                meta.setdefault(key, make(*[USUAL.get(key, 0)] * 3))
    path = tmp_path_factory.mktemp("knobs") / "knobs.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    assert len([key for key in meta if key.startswith("layer.")]) > 35
    return path


def test_knobs_by_name(fuzzer, every_knob):
    """Each of them set to extremes, several at once, and each in a layer that has no use for it."""
    tried, accepted = fuzz(fuzzer, every_knob, "knobs", 3000, 3)
    assert tried == 3000 and 0 < accepted < 1000


OTHER_PARTS = [
    "deepseek_v3",
    "encoder_decoders/m2m_100",
    "encoders/modernbert",
    "falcon_h1-norm",
    "gemma4",
    "gpt_oss",
    "lfm2_moe",
    "nemotron_h",
    "olmo_hybrid",
    "phi3-longer",
    "qwen3_next",
    "zamba2",
]


@pytest.mark.parametrize("name", OTHER_PARTS)
def test_knobs_by_name_of_other_parts(name, fuzzer, tmp_path):
    path = tmp_path / "model.bin"
    assert export.main([str(ROOT / "tests" / "golden" / name), str(path), "--dtype", "q8"]) == 0
    tried, accepted = fuzz(fuzzer, path, "knobs", 300, 4)
    assert tried == 300 and accepted < 150


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3", "lfm3"])
def test_damaged_shapes(name, fuzzer, tmp_path):
    """None is run, whatever it says."""
    path = tmp_path / "x.shape"
    assert export.main([str(ROOT / "tests" / "golden" / name), str(path), "--shape-only"]) == 0
    assert fuzz(fuzzer, path, "truncate", 64)[1] == fuzz(fuzzer, path, "grow")[1] == 0
    for how, count in (("flip", 2000), ("overwrite", 1000), ("knobs", 300)):
        tried, accepted = fuzz(fuzzer, path, how, count, 5)
        assert tried == count and 0 < accepted < count


def test_damaged_chat_templates(fuzzer, tmp_path):
    """Flipped bits and extreme words in the tables of a chat, among others."""
    metadata = tokenizer_metadata(str(ROOT / "tests" / "golden" / "unigram" / "albert"))
    texts.write_model(tmp_path / "x.bin", metadata)
    model = (tmp_path / "x.bin").read_bytes()
    for name in ("thinking", "date"):
        compiled = chats.metadata_of(EXACT[name], {"bos_token": "<s>", "eos_token": "</s>"})
        (tmp_path / "x.bin").write_bytes(
            chats.with_chat(model, {**compiled, "chat.template": "x" * 9})
        )
        for how in ("flip", "overwrite", "chat"):
            n = tries(200)
            tried, accepted = fuzz(fuzzer, tmp_path / "x.bin", how, n, 3)
            assert tried == n and 0 < accepted < n


def test_damaged_languages_and_vectors(fuzzer, tmp_path):
    """A model that reads sources and knows languages, and one whose texts have vectors, each with a
    tokenizer that names them."""
    for name, make in (("mbart", with_letters), ("bert", with_texts)):
        path = tmp_path / f"{name}.bin"
        assert export.main([str(make(tmp_path / name)), str(path), "--dtype", "q8"]) == 0
        for how in ("knobs", "tokenizer"):
            tried, accepted = fuzz(fuzzer, path, how, 200, 6)
            assert tried == 200 and 0 < accepted < 100


def test_damaged_unigram(fuzzer, tmp_path):
    """The same in a vocabulary with scores, a charsmap and replacements."""
    metadata = tokenizer_metadata(str(ROOT / "tests" / "golden" / "unigram" / "albert"))
    texts.write_model(tmp_path / "x.bin", metadata)
    for how in ("flip", "overwrite", "tokenizer"):
        tried, accepted = fuzz(fuzzer, tmp_path / "x.bin", how, 700, 3)
        assert tried == 700 and 0 < accepted < 700


def test_truncated_on_the_command_line(run, bare, tmp_path):
    data = bare.read_bytes()
    path = tmp_path / "cut.bin"
    for size in (1, 63, 64, 1000, 4096, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        refused(run, path, "truncated|not a heads.c checkpoint")
