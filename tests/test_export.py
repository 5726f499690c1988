"""export.py: packing, the container, sources, families' configs, pooling of KV heads, each refusal
with its sentence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import export
import exporter.checkpoint
import exporter.huggingface
from exporter import quantize, random_weights
from exporter.checkpoint import Checkpoint, Entry, write_checkpoint
from exporter.config import Config
from exporter.convert import HUB_ID
from exporter.families import FAMILIES
from exporter.jinja import chat_template
from exporter.rope import rope_frequencies
from exporter.tensor import ExportError, Tensor

GOLDEN = Path(__file__).parent / "golden"
EXPORT = GOLDEN.parent.parent / "export.py"
SIZES = [(1, 1), (16, 32), (17, 33), (3, 100), (50, 31), (33, 64), (16, 96)]


def in_memory(array: np.ndarray, name: str = "w") -> Tensor:
    return Tensor(name, array.shape, lambda: lambda a, b: array[a:b].astype(np.float32))


# ---- panels, read element by element as docs/format.md has them ----------------------------------


def element(data: bytes, dtype: str, n_in: int, row: int, k: int) -> float:
    """The number at (row, k), found by the offsets that docs/format.md gives; of q8 and q4 it is a
    turned weight."""
    panel, r, blocks = row // 16, row % 16, -(-n_in // 32)
    b, g, j = k // 32, k % 32 // 4, k % 4
    if dtype == "f32":
        return struct.unpack_from("<f", data, 64 * n_in * panel + 4 * (16 * k + r))[0]
    if dtype == "bf16":
        at = 32 * 32 * blocks * panel + 2 * (32 * (k // 2) + 2 * r + k % 2)
        return struct.unpack("<f", b"\0\0" + data[at : at + 2])[0]
    body = (512 if dtype == "q8" else 256) * blocks
    start = (body + 64 * -(-blocks // 2)) * panel
    scale = struct.unpack_from("<e", data, start + body + 2 * (16 * b + r))[0]
    if dtype == "q8":
        return (data[start + 512 * b + 64 * g + 4 * r + j] - 128) * scale
    byte = data[start + 256 * b + 64 * (g // 2) + 4 * r + j]
    return [-127, -95, -74, -58, -44, -31, -20, -8, 4, 16, 29, 42, 56, 72, 91, 114][
        byte >> 4 if g % 2 else byte & 15
    ] * scale


@pytest.mark.parametrize("dtype", quantize.DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed_weights_lie_where_the_format_says(dtype, size):
    weights = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    data, error = quantize.pack(weights, dtype)
    assert (
        len(data) == -(-size[0] // 16) * quantize.panel_bytes(dtype, size[1])
        and len(data) % 64 == 0
    )
    unpacked = quantize.unpack(data, dtype, *size)
    turned = dtype in ("q8", "q4")
    columns = -(-size[1] // 32) * 32 if turned else size[1]
    read = np.array(
        [[element(data, dtype, size[1], i, k) for k in range(columns)] for i in range(size[0])]
    )
    if turned:
        hadamard = np.array([[(-1) ** bin(i & k).count("1") for k in range(32)] for i in range(32)])
        read = (read.reshape(-1, 32) @ hadamard / 8).reshape(read.shape)[:, : size[1]]
    assert np.allclose(unpacked, read, rtol=1e-6, atol=1e-6 if turned else 0)
    # The error of a last block that is not full falls on its padding too.
    of_padding = size[1] % 32 / 32 if turned else 0
    assert error == pytest.approx(
        ((unpacked - weights) ** 2).sum(), rel=1e-3 + of_padding, abs=1e-9
    )
    assert (
        np.sqrt(error / (weights**2).sum())
        <= {"f32": 0, "bf16": 0.002, "q8": 0.006, "q4": 0.09}[dtype]
    )


def test_padding_weighs_nothing():
    ones = np.ones((17, 33), np.float32)
    for dtype, body in (("q8", 2 * 512), ("q4", 2 * 256)):
        second = np.frombuffer(quantize.pack(ones, dtype)[0], np.uint8)[
            quantize.panel_bytes(dtype, 33) :
        ]
        scales = second[body : body + 64].view(np.float16).reshape(2, 16)
        assert (scales[:, 0] != 0).all() and (
            scales[:, 1:] == 0
        ).all()  # row 16 is there, rows 17.. are not
        codes = second[:body].reshape(2, -1, 16, 4)
        assert (codes[:, :, 1:] == (128 if dtype == "q8" else 0x88)).all()
    bf16 = np.frombuffer(quantize.pack(ones, "bf16")[0], np.uint16).reshape(2, 32, 16, 2)
    assert (bf16[:, 17:] == 0).all() and (bf16[1, :, 1:] == 0).all()


@pytest.mark.parametrize("dtype, bound", [("bf16", 0.0017), ("q8", 0.0050), ("q4", 0.0735)])
def test_rounding_error_of_normal_weights(dtype, bound):
    """q8 by the largest weight alone gives 0.0054, q4 with one candidate scale 0.077."""
    weights = np.random.default_rng(2).standard_normal((64, 1024)).astype(np.float32)
    _, error = quantize.pack(weights, dtype)
    assert np.sqrt(error / (weights**2).sum()) < bound


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_odd_blocks(dtype):
    weights = np.zeros((16, 128), np.float32)
    weights[1] = 0.25  # all equal
    weights[2, 5] = -3  # one weight alone, negative
    weights[3] = 1e-12  # smaller than any f16 scale makes
    # Close to the largest that an f16 scale reaches: their sum / 4 counts.
    weights[4] = -(1e6 if dtype == "q8" else 6e5)
    unpacked = quantize.unpack(quantize.pack(weights, dtype)[0], dtype, 16, 128)
    assert (unpacked[0] == 0).all() and (unpacked[3] == 0).all()
    assert unpacked[2, 5] == pytest.approx(-3, rel=0.05)
    for row in (
        1,
        4,
    ):  # turned they are one number a block, and q4 has no code for the zeros beside it
        assert np.linalg.norm(unpacked[row] - weights[row]) < (
            0.005 if dtype == "q8" else 0.2
        ) * np.linalg.norm(weights[row])


@pytest.mark.parametrize(
    "dtype, weight", [("q8", 9e6), ("q8", 3e38), ("q4", 9e6), ("q4", 3e38), ("bf16", 3.4e38)]
)
def test_a_weight_too_large_for_the_dtype_is_refused(dtype, weight, tmp_path):
    array = np.full((2, 40), weight, np.float32)
    with pytest.raises(
        ExportError, match=f"tensor w: a weight of magnitude .* is too large for {dtype}"
    ):
        write_checkpoint(str(tmp_path / "x"), {}, [Entry("embed", dtype, in_memory(array))])
    assert not list(tmp_path.iterdir())


# ---- the container -------------------------------------------------------------------------------


def test_container_as_another_reader_sees_it(tmp_path):
    """tests/support/checkpoints.py reads files by docs/format.md and knows nothing of the
    exporter."""
    rng = np.random.default_rng(3)
    matrix, vector = (
        rng.standard_normal((300, 70)).astype(np.float32),
        rng.standard_normal(9).astype(np.float32),
    )
    meta = {
        "model.a": 7,
        "layer.b": [1, -2, 3],
        "model.c": 0.5,
        "model.d": np.float32([1, 2]),
        "info.e": "é",
        "tokenizer.f": b"\0\1",
        "tokenizer.g": np.uint8([9]),
        "info.empty": "",
    }
    progress = []
    path = tmp_path / "x.bin"
    stats = write_checkpoint(
        str(path),
        meta,
        [Entry("embed", "q8", in_memory(matrix)), Entry("norm", "f32", in_memory(vector))],
        progress.append,
    )
    file_meta, tensors = checkpoints.parse(path.read_bytes())
    assert {key: (value.type, value.array().tolist()) for key, value in file_meta.items()} == {
        "model.a": (2, [7]),
        "layer.b": (2, [1, -2, 3]),
        "model.c": (3, [0.5]),
        "model.d": (3, [1, 2]),
        "info.e": (1, list("é".encode())),
        "tokenizer.f": (1, [0, 1]),
        "tokenizer.g": (1, [9]),
        "info.empty": (1, []),
    }
    assert [(name, t.dtype, t.rows, t.cols) for name, t in tensors.items()] == [
        ("embed", 2, 300, 70),
        ("norm", 0, 1, 9),
    ]
    assert tensors["embed"].data == quantize.pack(matrix, "q8")[0]
    assert tensors["norm"].data == vector.tobytes()
    assert stats.file_bytes == path.stat().st_size and stats.n_weights == 300 * 70 + 9
    assert sum(progress) == stats.data_bytes == sum(len(t.data) for t in tensors.values())
    again = Checkpoint(str(path))
    assert np.array_equal(again.tensor("norm"), vector)
    assert 0 < np.abs(again.tensor("embed") - matrix).max() < 0.03


def test_nothing_is_left_of_an_interrupted_export(tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        assert [p.name for p in tmp_path.iterdir()] == [f"x.bin.{os.getpid()}-{threading.get_ident()}.tmp"]
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter.checkpoint, "pack", interrupt)
    assert export.main([str(GOLDEN / "llama"), str(tmp_path / "x.bin")]) == 1
    assert "export: interrupted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_nothing_is_left_of_an_export_that_is_stopped(tmp_path, name):
    command = [sys.executable, EXPORT, "--random", "smollm-135m", tmp_path / "x.bin"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.iterdir()):
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    assert "export: interrupted; nothing was written" in process.communicate(timeout=60)[1]
    assert process.returncode == 1 and not list(tmp_path.iterdir())


def test_a_hangup_that_nohup_ignores_stays_ignored(tmp_path):
    """Or nohup would not help."""
    out = tmp_path / "x.bin"
    command = ["nohup", sys.executable, EXPORT, "--random", "smollm-135m", out]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(tmp_path.iterdir()):
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=120) == 0 and [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    for target in ("old.bin", "new.bin"):
        real, link = tmp_path / "there" / target, tmp_path / f"to-{target}"
        link.symlink_to(real)
        if target == "old.bin":
            real.write_bytes(b"old")
        assert export.main([str(GOLDEN / "llama"), str(link)]) == 0
        assert link.is_symlink() and real.is_file() and not real.is_symlink()
        assert Checkpoint(str(real)).metadata["info.source"] == b"llama"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["there", "to-new.bin", "to-old.bin"]
    assert len(list((tmp_path / "there").iterdir())) == 2


def test_what_is_no_file_is_not_replaced(tmp_path, capsys, monkeypatch):
    """Devices, pipes, and links to them or to themselves; a root may replace a device."""

    def replace(*_):
        raise AssertionError("a device or a pipe would have been replaced")

    monkeypatch.setattr(os, "replace", replace)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-null").symlink_to("/dev/null")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for out, said in [
        ("/dev/null", "/dev/null is a device, which a file cannot replace; name a file"),
        (tmp_path / "to-null", "to-null is a device"),
        (tmp_path / "pipe", "pipe is a pipe"),
        (tmp_path / "loop", "loop is a link that leads to itself"),
    ]:
        assert said in refusal(capsys, GOLDEN / "llama", out)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """fsync of the file, rename, fsync of the directory: a crash leaves the old file or the new."""
    steps = []
    replace = os.replace

    def fsync(number):
        is_directory = stat.S_ISDIR(os.fstat(number).st_mode)
        steps.append("sync directory" if is_directory else "sync file")

    def rename(*paths):
        steps.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    assert export.main([str(GOLDEN / "llama"), str(tmp_path / "x.bin")]) == 0
    assert steps == ["sync file", "rename", "sync directory"]


# ---- what a good export says, and what it makes --------------------------------------------------


@pytest.mark.parametrize(
    "dtype, error", [("bf16", (0.10, 0.20)), ("q8", (0.3, 0.5)), ("q4", (5, 8))]
)
def test_export_reports_and_the_engine_runs_it(dtype, error, tmp_path, capsys, run):
    out = tmp_path / "x.bin"
    assert export.main([str(GOLDEN / "qwen2"), str(out), "--dtype", dtype]) == 0
    said = capsys.readouterr().out
    assert (
        "qwen2: qwen2, 2 layers of 36, 6 query and 3 KV heads (GQA) of 6, feed-forward 49, "
        "vocabulary 149" in said
    )
    assert f"{out.stat().st_size:,} bytes" in said
    file = Checkpoint(str(out))
    bits = (
        8
        * sum(t[4] for t in file.tensors.values())
        / sum(t[1] * t[2] for t in file.tensors.values())
    )
    assert f"{bits:.2f} bits per weight" in said
    percent = float(said.split("relative quantization error: ")[1].split(" %")[0])
    assert error[0] < percent < error[1]
    assert {t[0] for name, t in file.tensors.items() if "norm" in name or "bias" in name} == {"f32"}
    assert (
        file.metadata["info.source"] == b"qwen2" and file.metadata["info.dtype"] == dtype.encode()
    )
    assert run(out, "--check").returncode == 0
    assert run(out, "--tokens", "5 6 7", "-n", 3, "--temp", 0).returncode == 0


def test_learned_positions_stay_f32(tmp_path):
    assert export.main([str(GOLDEN / "gpt2"), str(tmp_path / "x.bin")]) == 0
    tensors = Checkpoint(str(tmp_path / "x.bin")).tensors
    assert tensors["embed_pos"][0] == "f32" and tensors["embed"][0] == "q8"


def test_chat_template_goes_into_the_file(tmp_path):
    directory = copy(tmp_path, "llama")
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "chat_template": [
                    {"name": "tool_use", "template": "no"},
                    {"name": "default", "template": "{{ messages }}\ud800"},
                ]
            }
        )
    )
    assert chat_template(str(directory)) == "{{ messages }}\ud800"
    assert export.main([str(directory), str(tmp_path / "x.bin")]) == 0
    assert Checkpoint(str(tmp_path / "x.bin")).metadata["chat.template"] == b"{{ messages }}?"
    (directory / "chat_template.jinja").write_text("from a file")
    assert chat_template(str(directory)) == "from a file"


def test_memory_stays_near_one_tensor(tmp_path):
    """100 MB of weights in tensors of 4 MB at most, in a process that needs about 40 MB to begin
    with."""
    layers, d, ff = 12, 512, 2048
    rng = np.random.default_rng(4)
    block = rng.standard_normal(ff * d).astype(np.float16)
    norm = np.ones(d, np.float16)

    def weights(*shape):
        return block[: shape[0] * shape[1]].reshape(shape)

    tensors = {"model.embed_tokens.weight": weights(1000, d), "model.norm.weight": norm}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors |= {p + f"self_attn.{n}_proj.weight": weights(d, d) for n in "qkvo"}
        tensors |= {p + f"mlp.{n}_proj.weight": weights(ff, d) for n in ("gate", "up")}
        tensors[p + "mlp.down_proj.weight"] = weights(d, ff)
        tensors |= {p + "input_layernorm.weight": norm, p + "post_attention_layernorm.weight": norm}
    save_file(tensors, tmp_path / "model.safetensors")
    config = dict(
        model_type="llama",
        vocab_size=1000,
        hidden_size=d,
        intermediate_size=ff,
        num_hidden_layers=layers,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = (  # VmHWM, because ru_maxrss would begin at what pytest itself has
        "import sys; sys.path.insert(0, sys.argv[1]); import export; status = "
        "export.main(sys.argv[2:]); "
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(status)"
    )
    arguments = [EXPORT.parent, tmp_path, tmp_path / "x.bin", "--dtype", "bf16"]
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 80_000, "KB of memory at the peak"


# ---- sources -------------------------------------------------------------------------------------


def copy(tmp_path: Path, name: str) -> Path:
    """A golden checkpoint that a test may change."""
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def edit_config(directory: Path, **changes) -> None:
    config = json.loads((directory / "config.json").read_text())
    config.update(changes)
    (directory / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v != "ABSENT"})
    )


def edit_tensors(directory: Path, edit) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def exported(source: Path, *options: str) -> Checkpoint:
    out = source.parent / "exported.bin"
    assert export.main([str(source), str(out), "--dtype", "f32", *options]) == 0
    return Checkpoint(str(out))


def same(a: Checkpoint, b: Checkpoint) -> bool:
    knobs = {k for k in {**a.metadata, **b.metadata} if k.startswith(("model.", "layer."))}
    return (
        a.tensors.keys() == b.tensors.keys()
        and all(np.array_equal(a.tensor(n), b.tensor(n)) for n in a.tensors)
        and all(np.array_equal(a.metadata.get(k), b.metadata.get(k)) for k in knobs)
    )


def refusal(capsys, *args) -> str:
    """What an export that must fail says; it must be one line."""
    capsys.readouterr()
    assert export.main([str(a) for a in args]) == 1
    said = capsys.readouterr().err.strip().split("\n")
    assert said[-1].startswith("export: ") and "Traceback" not in "".join(said)
    return said[-1]


def test_one_file_and_shards_give_the_same(tmp_path):
    directory = copy(tmp_path, "mistral")
    sharded = exported(directory)
    tensors = {
        k: v for shard in directory.glob("*.safetensors") for k, v in load_file(shard).items()
    }
    for file in directory.glob("model*"):
        file.unlink()
    save_file(tensors, directory / "model.safetensors")
    assert len(sharded.tensors) == 3 + 2 * 9 and same(sharded, exported(directory))


def test_one_file_comes_before_shards(tmp_path, monkeypatch):
    """And safetensors before pytorch_model.bin: the order of transformers 5.23.0,
    modeling_utils._get_resolved_checkpoint_files."""
    for reader in ("open_safetensors", "open_torch"):
        monkeypatch.setattr(
            exporter.huggingface, reader, lambda path: {"w": os.path.basename(path)}
        )
    order = ["model.safetensors", "model-1-of-1.safetensors"]
    order += ["pytorch_model.bin", "pytorch_model-1-of-1.bin"]
    for single, shard in zip(order[::2], order[1::2]):
        (tmp_path / single).touch()
        (tmp_path / shard).touch()
        index = {"weight_map": {"w": shard}}
        (tmp_path / f"{single}.index.json").write_text(json.dumps(index))
    for name in order:
        tensors, files = exporter.huggingface._open_weights(str(tmp_path))
        assert tensors == {"w": name} and str(tmp_path / name) in files
        os.unlink(tmp_path / name if len(files) == 1 else files[0])


def test_names_without_prefix_and_buffers(tmp_path):
    directory = copy(tmp_path, "gpt2")
    before = exported(directory)

    def edit(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
        tensors["h.1.attn.masked_bias"] = np.float32([-1e4])

    edit_tensors(directory, edit)
    assert same(before, exported(directory))


def test_f16_and_f64_weights(tmp_path):
    directory = copy(tmp_path, "smollm2")
    expected = {
        k: v.astype(np.float16).astype(np.float32)
        for k, v in load_file(directory / "model.safetensors").items()
    }
    for dtype in (np.float16, np.float64):
        edit_tensors(
            directory,
            lambda t, dtype=dtype: t.update({k: v.astype(dtype) for k, v in expected.items()}),
        )
        file = exported(directory)
        assert np.array_equal(file.tensor("embed"), expected["model.embed_tokens.weight"])


def test_bf16_weights(tmp_path):
    """The file is written by hand, since numpy has no bf16."""
    directory = copy(tmp_path, "smollm2")
    header, data, expected = {}, b"", {}
    for name, w in load_file(directory / "model.safetensors").items():
        raw = (w.view(np.uint32) >> 16).astype(np.uint16)
        expected[name] = (raw.astype(np.uint32) << 16).view(np.float32)
        header[name] = dict(
            dtype="BF16", shape=w.shape, data_offsets=[len(data), len(data) + raw.nbytes]
        )
        data += raw.tobytes()
    head = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    file = exported(directory)
    assert np.array_equal(
        file.tensor("layers.1.ffn_down"), expected["model.layers.1.mlp.down_proj.weight"]
    )
    assert np.array_equal(file.tensor("norm"), expected["model.norm.weight"])


def test_a_hub_id_is_downloaded(tmp_path, monkeypatch, capsys):
    import huggingface_hub

    def snapshot_download(hub_id, revision, allow_patterns):
        assert hub_id == "some-org/tiny-llama" and "*.json" in allow_patterns
        asked.append(revision)
        return str(GOLDEN / "llama")

    asked = []
    out = tmp_path / "x.bin"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert export.main(["some-org/tiny-llama", str(out)]) == 0
    assert Checkpoint(str(out)).metadata["info.source"] == b"some-org/tiny-llama"
    said = "export: some-org/tiny-llama is no file or directory here: downloading it from the hub\n"
    assert capsys.readouterr().err.startswith(said)
    assert export.main(["some-org/tiny-llama", str(out), "--revision", "v1.5"]) == 0
    assert Checkpoint(str(out)).metadata["info.source"] == b"some-org/tiny-llama@v1.5"
    assert "downloading its revision v1.5 from the hub\n" in capsys.readouterr().err
    assert asked == [None, "v1.5"]

    def offline(*_, **__):
        raise OSError("no network\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    said = refusal(capsys, "some-org/other", tmp_path / "y.bin")
    assert said == "export: cannot download some-org/other: no network"


PATHS = ["./modles/foo", "/modles/foo", "../modles/foo", "modles/foo/", "modles/foo/bar", "foo",
         r"modles\foo", "~/foo", "modles/x.gguf", "modles/x.bin", "modles/model.safetensors",
         "tests/foo"]  # fmt: skip


@pytest.mark.parametrize("source", PATHS)
def test_a_mistyped_path_is_no_hub_id(source, tmp_path, monkeypatch, capsys):
    """Nothing is asked of the hub for what has the form of a path, or whose owner is a directory
    here."""
    import huggingface_hub

    assert HUB_ID.fullmatch("some-org/model-v1.5-gguf")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    monkeypatch.chdir(GOLDEN.parent.parent)
    said = refusal(capsys, source, tmp_path / "x.bin")
    assert said == f"export: {source}: no such file or directory, and not a hub id such as org/name"


def test_a_revision_belongs_to_a_hub_id(tmp_path, capsys):
    model = tmp_path / "model.bin"
    llama2c_file(model, llama2c_tensors(), True, 0)
    for source in (GOLDEN / "llama", model):
        said = refusal(capsys, source, tmp_path / "x.bin", "--revision", "main")
        assert said == f"export: --revision is for hub ids; {source} is a file or directory here"


def llama2c_tensors() -> dict[str, np.ndarray]:
    """The golden llama's weights with llama2.c's order of rope pairs: x[i], x[i + d / 2] to x[2 i],
    x[2 i + 1]."""
    tensors = load_file(GOLDEN / "llama" / "model.safetensors")
    for name, w in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = np.ascontiguousarray(
                w.reshape(4, 2, 5, 40).transpose(0, 2, 1, 3)
            ).reshape(40, 40)
    return tensors


def llama2c_file(
    path: Path, tensors: dict[str, np.ndarray], shared: bool, version: int
) -> dict[str, np.ndarray]:
    """Writes a llama2.c file, and returns the weights as it holds them."""
    held = {}

    def layers(part):
        return [f"model.layers.{i}.{part}.weight" for i in range(2)]

    def put(name):
        w = held[name] = tensors[name]
        file.write(w.astype("<f4").tobytes())

    def put_q8(name, group=4):
        w = tensors[name].reshape(-1, group)
        scale = (np.abs(w).max(1) / 127).astype(np.float32)
        q = np.rint(w / scale[:, None]).astype(np.int8)
        held[name] = (q * scale[:, None]).reshape(tensors[name].shape)
        file.write(q.tobytes() + scale.tobytes())

    parts = (
        [f"self_attn.{n}_proj" for n in "qkvo"],
        [f"mlp.{n}_proj" for n in ("gate", "down", "up")],
    )
    with open(path, "wb") as file:
        if version == 0:
            file.write(struct.pack("<7i", 40, 54, 2, 4, 4, 131 if shared else -131, 192))
            order = [
                "model.embed_tokens.weight",
                *layers("input_layernorm"),
                *sum(map(layers, parts[0]), []),
                *layers("post_attention_layernorm"),
                *sum(map(layers, parts[1]), []),
                "model.norm.weight",
            ]
            for name in order:
                put(name)
            file.write(bytes(4 * 192 * 10))  # two tables of rope, unused
            if not shared:
                put("lm_head.weight")
        else:
            file.write(
                struct.pack("<Ii7iBi", 0x616B3432, 2, 40, 54, 2, 4, 4, 131, 192, shared, 4).ljust(
                    256, b"\0"
                )
            )
            for name in [
                *layers("input_layernorm"),
                *layers("post_attention_layernorm"),
                "model.norm.weight",
            ]:
                put(name)
            for name in [
                "model.embed_tokens.weight",
                *sum(map(layers, parts[0] + parts[1]), []),
                *["lm_head.weight"] * (not shared),
            ]:
                put_q8(name)
    return held


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_llama2c_files_give_the_same_model(version, shared, tmp_path):
    path = tmp_path / "model.bin"
    held = llama2c_file(path, llama2c_tensors(), shared, version)
    got = exported(path)
    directory = copy(tmp_path, "llama")  # the same weights, as a Hugging Face checkpoint

    def edit(tensors):
        for name, w in held.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                w = np.ascontiguousarray(w.reshape(4, 5, 2, 40).transpose(0, 2, 1, 3)).reshape(
                    40, 40
                )
            tensors[name] = w
        if shared:
            del tensors["lm_head.weight"]

    edit_tensors(directory, edit)
    edit_config(directory, tie_word_embeddings=shared)
    assert same(got, exported(directory))
    assert ("output" in got.tensors) == (not shared)


def test_llama2c_files_that_are_none(tmp_path, capsys):
    path, out = tmp_path / "model.bin", tmp_path / "x.bin"
    llama2c_file(path, llama2c_tensors(), True, 0)
    whole = path.read_bytes()
    for data, said in [
        (whole[:-4], "a llama2.c checkpoint with its header has"),
        (whole + b"\0", "a llama2.c checkpoint with its header has"),
        (b"ggml" + bytes(300), "no llama2.c checkpoint"),
        (b"x", "too short for a llama2.c checkpoint"),
        (
            struct.pack("<Ii", 0x616B3432, 1) + bytes(300),
            "is a llama2.c checkpoint of version 1; supported: 0 and 2",
        ),
        (
            struct.pack("<Ii7iBi", 0x616B3432, 2, 40, 54, 2, 4, 4, 131, 192, 1, 0) + bytes(300),
            "the group size is 0",
        ),
        (
            struct.pack("<Ii7iBi", 0x616B3432, 2, 40, 54, 2, 4, 4, 131, 192, 1, 3) + bytes(300),
            "group size 3 does not divide",
        ),
        (b"heads.c\0" + bytes(300), "is a heads.c checkpoint already"),
    ]:
        path.write_bytes(data)
        assert said in refusal(capsys, path, out)
    path.write_bytes(whole)
    for name in ("tok1.bin", "tok2.bin"):
        (tmp_path / name).write_bytes(b"")
    assert "holds several tokenizers (tok1.bin, tok2.bin); name one with --tokenizer" in refusal(
        capsys, path, out
    )
    assert "no such file" in refusal(capsys, path, out, "--tokenizer", tmp_path / "nowhere")
    assert "--tokenizer is for llama2.c files" in refusal(
        capsys, GOLDEN / "llama", out, "--tokenizer", path
    )
    assert not out.exists()


# ---- pooling -------------------------------------------------------------------------------------


def test_pooled_heads_are_the_means(tmp_path, capsys, run):
    directory = copy(tmp_path, "llama")
    edit_config(directory, attention_bias=True)
    rng = np.random.default_rng(5)
    edit_tensors(
        directory,
        lambda t: t.update(
            {
                f"model.layers.{i}.self_attn.{n}_proj.bias": rng.standard_normal(40).astype(
                    np.float32
                )
                for i in range(2)
                for n in "qkvo"
            }
        ),
    )
    before = exported(directory)
    capsys.readouterr()
    for n in (4, 2, 1):
        after = exported(directory, "--kv-heads", str(n))
        said = capsys.readouterr().out
        assert (
            f"pooled: 4 KV heads to {n}" in said
            and f"KV cache 320 to {80 * n} bytes per token (f16)" in said
        )
        assert after.metadata["layer.n_kv_heads"].tolist() == [n]
        for name in before.tensors:
            expected = before.tensor(name)
            if ".attn_k" in name or ".attn_v" in name:
                expected = (
                    expected.reshape(n, 4 // n, 10, -1).mean(1).reshape(-1, *expected.shape[1:])
                )
            assert np.allclose(after.tensor(name), expected, rtol=1e-6, atol=1e-7), name
        assert run(tmp_path / "exported.bin", "--tokens", "3 4 5", "-n", 2).returncode == 0
    assert same(before, exported(directory, "--kv-heads", "4"))
    assert "--kv-heads 3 does not divide the model's 4 KV heads; possible: 1, 2, 4" in refusal(
        capsys, directory, tmp_path / "x.bin", "--kv-heads", "3"
    )
    assert "--kv-heads 0 does not divide" in refusal(
        capsys, directory, tmp_path / "x.bin", "--kv-heads", "0"
    )
    assert "--kv-heads: the model has no attention" in refusal(
        capsys, GOLDEN / "mamba2", tmp_path / "x.bin", "--kv-heads", "1"
    )


def test_fused_and_transposed_heads_are_pooled_too(tmp_path):
    before = exported(copy(tmp_path, "gpt2"))
    after = exported(tmp_path / "gpt2", "--kv-heads", "1")
    for name in ("attn_k", "attn_v.bias"):
        w = before.tensor("layers.1." + name)
        assert np.allclose(
            after.tensor("layers.1." + name),
            w.reshape(3, 12, -1).mean(0).reshape(12, *w.shape[1:]),
            atol=1e-7,
        )


# ---- configs -------------------------------------------------------------------------------------

# fmt: off
LLAMA32 = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0,
    bos_token_id=128000, eos_token_id=128001, head_dim=64, hidden_act="silu", hidden_size=2048,
    initializer_range=0.02, intermediate_size=8192, max_position_embeddings=131072, mlp_bias=False,
    model_type="llama", num_attention_heads=32, num_hidden_layers=16, num_key_value_heads=8,
    pretraining_tp=1, rms_norm_eps=1e-05, rope_theta=500000.0, tie_word_embeddings=True,
    rope_scaling=dict(factor=32.0, high_freq_factor=4.0, low_freq_factor=1.0,
                      original_max_position_embeddings=8192, rope_type="llama3"),
    torch_dtype="bfloat16", transformers_version="4.45.0.dev0", use_cache=True, vocab_size=128256)
SMOLLM2 = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, bos_token_id=0, eos_token_id=0,
    hidden_act="silu", hidden_size=576, initializer_range=0.04, intermediate_size=1536,
    is_llama_config=True, max_position_embeddings=8192, model_type="llama", num_attention_heads=9,
    num_hidden_layers=30, num_key_value_heads=3, pretraining_tp=1, rms_norm_eps=1e-05,
    rope_interleaved=False, rope_scaling=None, rope_theta=100000, tie_word_embeddings=True,
    torch_dtype="bfloat16", use_cache=True, vocab_size=49152)
MISTRAL = dict(
    hidden_act="silu", hidden_size=4096, intermediate_size=14336, max_position_embeddings=32768,
    model_type="mistral", num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8,
    rms_norm_eps=1e-05, rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False,
    vocab_size=32000)
QWEN25 = dict(
    attention_dropout=0.0, bos_token_id=151643, eos_token_id=151643, hidden_act="silu",
    hidden_size=896, intermediate_size=4864, max_position_embeddings=32768, max_window_layers=24,
    model_type="qwen2", num_attention_heads=14, num_hidden_layers=24, num_key_value_heads=2,
    rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=32768, tie_word_embeddings=True,
    use_mrope=False, use_sliding_window=False, vocab_size=151936)
QWEN3 = dict(
    attention_bias=False, hidden_act="silu", hidden_size=1024, intermediate_size=3072,
    max_position_embeddings=40960, max_window_layers=28, model_type="qwen3",
    num_attention_heads=16, num_hidden_layers=28, num_key_value_heads=8, rms_norm_eps=1e-06,
    rope_scaling=None, rope_theta=1000000, sliding_window=None, tie_word_embeddings=True,
    use_sliding_window=False, vocab_size=151936)
GPT2 = dict(
    activation_function="gelu_new", attn_pdrop=0.1, embd_pdrop=0.1, layer_norm_epsilon=1e-05,
    model_type="gpt2", n_ctx=1024, n_embd=768, n_head=12, n_layer=12, n_positions=1024,
    resid_pdrop=0.1, summary_activation=None, summary_first_dropout=0.1,
    summary_proj_to_labels=True, summary_type="cls_index", summary_use_proj=True, vocab_size=50257,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}})
FALCON = dict(
    alibi=False, apply_residual_connection_post_layernorm=False, attention_dropout=0.0,
    auto_map={"AutoConfig": "x"}, bias=False, hidden_dropout=0.0, hidden_size=4544,
    initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="falcon", multi_query=True,
    new_decoder_architecture=False, num_attention_heads=71, num_hidden_layers=32,
    parallel_attn=True, vocab_size=65024)
GEMMA = dict(
    attention_bias=False, head_dim=256, hidden_act="gelu", hidden_activation=None,
    hidden_size=2048, intermediate_size=16384, max_position_embeddings=8192, model_type="gemma",
    num_attention_heads=8, num_hidden_layers=18, num_key_value_heads=1, rms_norm_eps=1e-06,
    rope_scaling=None, rope_theta=10000.0, vocab_size=256000)
# fmt: on


def knobs(config: dict):
    c = Config(config)
    result = FAMILIES[config["model_type"]][0](c)
    c.get("model_type")
    c.finish()
    return result


@pytest.mark.parametrize(
    "config, expected",
    [
        (LLAMA32, dict(head_dim=64, n_kv_heads=8, tied=True, act=0, context=131072, norm_eps=1e-5)),
        (SMOLLM2, dict(head_dim=64, n_kv_heads=3, tied=True, window=[0])),
        (MISTRAL, dict(head_dim=128, n_kv_heads=8, tied=False, window=[4096] * 32)),
        ({**MISTRAL, "sliding_window": None}, dict(window=[0] * 32)),
        ({k: v for k, v in MISTRAL.items() if k != "sliding_window"}, dict(window=[4096] * 32)),
        (
            {**MISTRAL, "layer_types": ["full_attention"] * 31 + ["sliding_attention"]},
            dict(window=[0] * 31 + [4096]),
        ),
        (
            QWEN25,
            dict(
                head_dim=64,
                n_kv_heads=2,
                tied=True,
                window=[0] * 24,
                biased=("attn_q", "attn_k", "attn_v"),
            ),
        ),
        (
            {**QWEN25, "use_sliding_window": True, "max_window_layers": 20},
            dict(window=[0] * 20 + [32768] * 4),
        ),
        (QWEN3, dict(head_dim=128, n_kv_heads=8, tied=True, biased=())),
        (
            GPT2,
            dict(head_dim=64, n_kv_heads=12, d_ff=3072, act=2, tied=True, layernorm=True, ropes=[]),
        ),
        (
            FALCON,
            dict(
                head_dim=64,
                n_heads=71,
                n_kv_heads=1,
                d_ff=18176,
                act=1,
                tied=True,
                parallel=True,
                context=2048,
            ),
        ),
        (
            GEMMA,
            dict(
                head_dim=256, n_kv_heads=1, act=2, tied=True, norm_offset=1.0, emb_scale=2048**0.5
            ),
        ),
    ],
    ids=lambda c: c.get("model_type", ""),
)
def test_configs_as_they_are_on_the_hub(config, expected):
    got = knobs(config)
    assert {name: getattr(got, name) for name in expected} == expected


def test_class_defaults_of_absent_keys():
    """Those of transformers' configuration classes."""
    assert knobs({k: v for k, v in QWEN3.items() if k != "head_dim"}).head_dim == 128
    assert knobs({**QWEN3, "head_dim": None}).head_dim == 64
    assert knobs({k: v for k, v in GEMMA.items() if k != "head_dim"}).head_dim == 256
    assert knobs({k: v for k, v in MISTRAL.items() if k != "num_key_value_heads"}).n_kv_heads == 8
    assert knobs({**MISTRAL, "num_key_value_heads": None}).n_kv_heads == 32
    assert knobs({k: v for k, v in LLAMA32.items() if k != "num_key_value_heads"}).n_kv_heads == 32
    assert knobs({k: v for k, v in LLAMA32.items() if k != "rms_norm_eps"}).norm_eps == 1e-6
    assert not knobs({k: v for k, v in LLAMA32.items() if k != "tie_word_embeddings"}).tied


def test_rope_frequencies():
    i = np.arange(32)
    plain = 500000.0 ** (-2 * i / 64)
    wave = 2 * np.pi / plain
    smooth = (8192 / wave - 1) / 3
    scaled = np.where(
        wave > 8192,
        plain / 32,
        np.where(wave < 2048, plain, (1 - smooth) * plain / 32 + smooth * plain),
    )
    assert ((wave > 2048) & (wave < 8192)).any()
    assert np.allclose(knobs(LLAMA32).ropes[0].inv_freq, scaled, rtol=1e-6)
    new = {k: v for k, v in LLAMA32.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**LLAMA32["rope_scaling"], "rope_theta": 500000.0}
    assert np.array_equal(knobs(new).ropes[0].inv_freq, knobs(LLAMA32).ropes[0].inv_freq)
    inner = knobs({**new, "rope_theta": 10000.0}).ropes[0].inv_freq  # the inner one wins
    assert np.array_equal(inner, knobs(LLAMA32).ropes[0].inv_freq)
    linear = rope_frequencies(
        Config({"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 4}}), 64, 100
    )
    assert np.allclose(linear, plain / 4, rtol=1e-6)
    assert np.allclose(rope_frequencies(Config({}), 64, 100), 10000.0 ** (-2 * i / 64), rtol=1e-6)
    without = {
        k: v for k, v in LLAMA32["rope_scaling"].items() if k != "original_max_position_embeddings"
    }
    assert np.array_equal(
        rope_frequencies(Config({"rope_theta": 5e5, "rope_scaling": without}), 64, 8192),
        knobs(LLAMA32).ropes[0].inv_freq,
    )


REFUSED = [
    (
        "llama",
        dict(model_type="mamba9"),
        "model_type is 'mamba9', which is not supported; supported: apertus, arcee, bitnet",
    ),
    ("llama", dict(model_type="ABSENT"), "model_type is None"),
    ("llama", dict(model_type=["llama"]), "model_type is ['llama']"),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="spiral", factor=4.0)),
        "rope_parameters: rope_type is 'spiral', which is not supported; supported: default, "
        "linear",
    ),
    (
        "llama",
        dict(rope_parameters=None, rope_scaling=dict(type="dynamic", factor=2.0)),
        "rope_scaling: type is 'dynamic'",
    ),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="longrope", short_factor=[1])),
        "short_factor is no list of 5 positive",
    ),
    ("llama", dict(rope_parameters=dict(rope_type="linear")), "rope_parameters lacks factor"),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="linear", factor=2, attention_factor=2)),
        "attention_factor (2) is unknown",
    ),
    (
        "llama",
        dict(rope_parameters=dict(rope_type="linear", factor=0)),
        "factor is 0, expected a positive number",
    ),
    ("llama", dict(rope_parameters="yes"), "rope_parameters is 'yes', expected an object"),
    (
        "llama",
        dict(rope_scaling=dict(type="linear", factor=2.0)),
        "both rope_scaling and rope_parameters",
    ),
    (
        "llama",
        dict(partial_rotary_factor=0.5),
        "partial_rotary_factor is 0.5, which is not supported",
    ),
    (
        "llama",
        dict(hidden_act="mish"),
        "hidden_act is 'mish', which is not supported; supported: silu",
    ),
    ("llama", dict(hidden_act=["silu"]), "hidden_act is ['silu']"),
    ("llama", dict(sliding_window=8), "sliding_window (8) is unknown for this family"),
    ("llama", dict(attn_logit_softcapping=50.0), "attn_logit_softcapping (50.0) is unknown"),
    ("llama", dict(rope_interleaved=True), "rope_interleaved is True, which is not supported"),
    ("llama", dict(quantization_config=dict(quant_method="fp8")), "quantization_config"),
    ("llama", dict(hidden_size="40"), "hidden_size is '40', expected a whole number"),
    ("llama", dict(hidden_size=-40), "hidden_size is -40"),
    ("llama", dict(hidden_size="ABSENT"), "lacks hidden_size"),
    ("llama", dict(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    ("llama", dict(num_hidden_layers=3), "lacks the tensor model.layers.2.input_layernorm.weight"),
    (
        "llama",
        dict(num_hidden_layers=1),
        "holds model.layers.1.input_layernorm.weight and 8 more tensors, which nothing",
    ),
    (
        "llama",
        dict(num_attention_heads=7, head_dim=None),
        "hidden_size 40 is no multiple of num_attention_heads 7",
    ),
    ("llama", dict(num_key_value_heads=3), "4 query heads are no multiple of 3 KV heads"),
    (
        "llama",
        dict(num_key_value_heads=2),
        "k_proj.weight has shape [40, 40], config.json makes it [20, 40]",
    ),
    (
        "llama",
        dict(head_dim=5, num_attention_heads=8, num_key_value_heads=8),
        "head_dim is 5, of which 5 elements are rotated; rope needs an even number",
    ),
    (
        "llama",
        dict(vocab_size=132),
        "embed_tokens.weight has shape [131, 40], config.json makes it [132, 40]",
    ),
    (
        "llama",
        dict(tie_word_embeddings="no"),
        "tie_word_embeddings is 'no', expected true or false",
    ),
    (
        "mistral",
        dict(layer_types=["full_attention"]),
        "layer_types has not one entry for each of the 2 layers",
    ),
    (
        "mistral",
        dict(layer_types=["full_attention", "chunked_attention"]),
        "layer_types holds 'chunked_attention'",
    ),
    (
        "mistral",
        dict(sliding_window=None, layer_types=["sliding_attention"] * 2),
        "lacks sliding_window",
    ),
    ("qwen2", dict(use_mrope=True), "use_mrope is True"),
    ("qwen2", dict(max_window_layers="all"), "max_window_layers is 'all'"),
    ("gemma", dict(use_bidirectional_attention=True), "use_bidirectional_attention is True"),
    ("gpt2", dict(add_cross_attention=True), "add_cross_attention is True"),
    ("gpt2", dict(activation_function="mish"), "activation_function is 'mish'"),
    (
        "falcon",
        dict(new_decoder_architecture=True),
        "lacks the tensor transformer.h.0.ln_attn.weight",
    ),
    (
        "falcon",
        dict(multi_query=False),
        "query_key_value.weight has shape [56, 40], config.json makes it [120, 40]",
    ),
    (
        "falcon",
        dict(parallel_attn=False),
        "lacks the tensor transformer.h.0.post_attention_layernorm.weight",
    ),
    ("falcon", dict(num_ln_in_parallel_attn=2), "num_ln_in_parallel_attn is 2"),
]


@pytest.mark.parametrize(
    "name, changes, said",
    REFUSED,
    ids=[f"{n}-{'-'.join(c)}-{i}" for i, (n, c, _) in enumerate(REFUSED)],
)
def test_configs_that_ask_for_more_are_refused(name, changes, said, tmp_path, capsys):
    directory = copy(tmp_path, name)
    edit_config(directory, **changes)
    assert said in refusal(capsys, directory, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()


# ---- tying ---------------------------------------------------------------------------------------


def test_tied_embeddings(tmp_path, capsys):
    directory = copy(tmp_path, "smollm2")
    tied = exported(directory)
    assert "output" not in tied.tensors
    head = "lm_head.weight"
    embed = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]

    edit_tensors(directory, lambda t: t.update({head: embed}))
    assert same(tied, exported(directory))
    edit_tensors(directory, lambda t: t.pop("model.embed_tokens.weight"))
    assert same(tied, exported(directory))
    capsys.readouterr()
    edit_tensors(
        directory, lambda t: t.update({"model.embed_tokens.weight": embed, head: embed + 1})
    )
    assert np.array_equal(exported(directory).tensor("output"), embed + 1)
    assert (
        "lm_head.weight differs from the embedding: kept, as transformers does"
        in capsys.readouterr().err
    )
    edit_config(directory, tie_word_embeddings=False)
    edit_tensors(directory, lambda t: t.pop(head))
    assert "lacks the tensor lm_head.weight" in refusal(capsys, directory, tmp_path / "x.bin")


def test_biases_follow_the_flag(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    plain = exported(directory)
    edit_config(directory, attention_bias=True)
    assert same(plain, exported(directory))  # a flag without tensors means zeros
    edit_config(directory, attention_bias=False)
    edit_tensors(
        directory,
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.ones(40, np.float32)}),
    )
    assert "holds model.layers.0.self_attn.q_proj.bias, which nothing" in refusal(
        capsys, directory, tmp_path / "x.bin"
    )


# ---- bad files and bad options -------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, said", [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")]
)
@pytest.mark.parametrize(
    "tensor", ["model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"]
)
def test_a_weight_that_is_no_number_is_refused_by_name(tensor, value, said, tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    edit_tensors(directory, lambda t: t[tensor].reshape(-1).__setitem__(7, value))
    for dtype in quantize.DTYPES:
        assert f"tensor {tensor}: a weight is {said}" in refusal(
            capsys, directory, tmp_path / "x.bin", "--dtype", dtype
        )
    assert [p.name for p in tmp_path.iterdir()] == ["llama"]


def test_missing_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(GOLDEN.parent.parent)
    out = tmp_path / "x.bin"
    directory = copy(tmp_path, "mistral")
    shard = directory / "model-00002-of-00003.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    assert f"the shard {shard.name} is missing from {directory}" in refusal(capsys, directory, out)
    shard.write_bytes(content)
    index = directory / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps(dict(weight_map={**weight_map, "model.norm.weight": shard.name})))
    assert f"tensor model.norm.weight is not in {shard.name}" in refusal(capsys, directory, out)
    index.write_text(
        json.dumps(dict(weight_map={**weight_map, "model.norm.weight": "../../secret"}))
    )
    assert "the shard ../../secret is missing" in refusal(capsys, directory, out)
    index.write_text("{}")
    assert "has no weight_map" in refusal(capsys, directory, out)
    for file in directory.glob("model*"):
        file.unlink()
    assert "has no model.safetensors and no pytorch_model.bin" in refusal(capsys, directory, out)
    (directory / "config.json").write_text("[1]")
    assert "holds no JSON object" in refusal(capsys, directory, out)
    (directory / "config.json").write_text("{")
    assert "cannot read" in refusal(capsys, directory, out)
    (directory / "config.json").unlink()
    assert "has no config.json" in refusal(capsys, directory, out)


def test_damaged_safetensors(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def with_entry(**changes):
        head = json.dumps(
            {**header, "model.norm.weight": {**header["model.norm.weight"], **changes}}
        ).encode()
        return struct.pack("<Q", len(head)) + head + whole[8 + length :]

    for data, said in [
        (whole[:-1000], "lies outside the file"),
        (whole[:100], "its header claims"),
        (b"", "its header claims"),
        (b"\xff" * 100, "its header claims"),
        (struct.pack("<Q", 4) + b"null", "is no safetensors file"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "is no safetensors file"),
        (with_entry(shape=[41]), "has 160 bytes, its shape makes 164"),
        (with_entry(data_offsets=[10, -10]), "lies outside the file"),
        (
            with_entry(dtype="F8_E5M2"),
            "model.norm.weight is stored as F8_E5M2, which is not supported",
        ),
    ]:
        file.write_bytes(data)
        assert said in refusal(capsys, directory, tmp_path / "x.bin")


def test_pytorch_files_need_torch(tmp_path, capsys, monkeypatch):
    directory = copy(tmp_path, "llama")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "needs torch, which is not installed" in refusal(capsys, directory, tmp_path / "x.bin")
    for version in ("1.13.1", "2.5.1+cu121", "2.0"):
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
        said = refusal(capsys, directory, tmp_path / "x.bin")
        assert f"needs torch 2.6 or later, and {version} is installed" in said
        assert "CVE-2025-32434" in said
    for version in ("2.6.0", "2.13.0+cpu", "3.0.0a1"):
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
        said = refusal(capsys, directory, tmp_path / "x.bin")
        assert "has no attribute 'load'" in said


def test_the_source_is_not_overwritten(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    (tmp_path / "link").symlink_to(directory / "config.json")
    for out in (directory / "model.safetensors", directory / "config.json", tmp_path / "link"):
        assert "belongs to the source" in refusal(capsys, directory, out)
    path = tmp_path / "model.bin"
    llama2c_file(path, llama2c_tensors(), True, 0)
    assert "belongs to the source" in refusal(capsys, path, path)
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
    assert f"{directory} is a directory" in refusal(capsys, directory, directory)
    assert "its directory does not exist" in refusal(capsys, directory, tmp_path / "no" / "x.bin")


# ---- random weights ------------------------------------------------------------------------------


def random_file(path: Path, *options: str) -> Path:
    assert export.main(["--random", "stories-260k", str(path), *options]) == 0
    return path


@pytest.mark.parametrize(
    "name, millions, heads",
    [
        ("stories-260k", 0.260, (8, 4, 8)),
        ("smollm-135m", 134.5, (9, 3, 64)),
        ("smollm-360m", 361.8, (15, 5, 64)),
        ("qwen3-0.6b", 596.0, (16, 8, 128)),
        ("llama-1b", 1038.7, (32, 8, 64)),
        ("tinyllama-1.1b", 1100.0, (32, 4, 64)),
        ("llama-3.2-1b", 1235.8, (32, 8, 64)),
    ],
)
def test_random_shapes_have_the_weights_of_their_models(name, millions, heads):
    source = random_weights.open_random(name, 1)
    count = sum(int(np.prod(t.shape)) for t in source.tensors.values())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)
    assert (source.knobs.n_heads, source.knobs.n_kv_heads, source.knobs.head_dim) == heads


def test_random_weights_are_those_of_the_seed(tmp_path):
    first = random_file(tmp_path / "a").read_bytes()
    assert random_file(tmp_path / "b", "--seed", "1").read_bytes() == first
    assert random_file(tmp_path / "c", "--seed", "2").read_bytes() != first
    assert b"random weights in the shape of stories-260k, seed 1" in first


@pytest.mark.parametrize("dtype", quantize.DTYPES)
def test_random_weights_are_packed_as_any_others(dtype, tmp_path, monkeypatch):
    """Panel by panel from the pool, in slabs, and the last panel of a matrix whose rows do not fill
    it."""
    monkeypatch.setattr(exporter.checkpoint, "SLAB", 1 << 12)
    file = Checkpoint(str(random_file(tmp_path / "x", "--dtype", dtype)))
    for name, tensor in random_weights.open_random("stories-260k", 1).tensors.items():
        if len(tensor.shape) == 2:
            whole, kind = tensor.array(), exporter.checkpoint.dtype_of(name, tensor, dtype)
            kind = "q8" if dtype == "q4" and name.endswith("attn_v") else kind
            packed = quantize.unpack(quantize.pack(whole, kind)[0], kind, *whole.shape)
            assert np.array_equal(file.tensor(name), packed), name
            assert whole.std() == pytest.approx(whole.shape[1] ** -0.5, rel=0.1)
            assert abs(whole.mean()) < 0.1 * whole.std()


def test_random_weights_of_fewer_kv_heads(tmp_path):
    file = Checkpoint(str(random_file(tmp_path / "x", "--kv-heads", "1")))
    assert file.metadata["layer.n_kv_heads"] == 1 and file.tensors["layers.4.attn_k"][1] == 8


def test_random_refusals(tmp_path, capsys):
    assert export.main(["--random", "gpt-5", str(tmp_path / "x")]) == 1
    assert (
        "--random gpt-5: no such shape; there are stories-260k, smollm-135m"
        in capsys.readouterr().err
    )
    assert export.main(["--random", "stories-260k", str(tmp_path / "x"), "--seed", "-1"]) == 1
    assert "--seed -1: expected a whole number from 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "the following arguments are required: OUT"),
        (["a"], "give SRC and OUT, or --random SHAPE and OUT"),
        (["a", "b", "--random", "llama-1b"], "give SRC and OUT, or --random SHAPE and OUT"),
        (
            ["a", "--random", "llama-1b", "--tokenizer", "t"],
            "--tokenizer: random weights have none",
        ),
        (["a", "--random", "llama-1b", "--revision", "x"], "--revision: random weights have none"),
        (["a", "b", "--shape-only", "--tokenizer", "t"], "--tokenizer: a shape has none"),
        (["a", "b", "--seed", "1"], "--seed belongs to --random"),
        (["a", "b", "--dtype", "q5"], "argument --dtype: invalid choice: 'q5'"),
        (["a", "b", "--kv-heads", "x"], "argument --kv-heads: invalid int value: 'x'"),
        (["a", "b", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_usage(args, said, capsys):
    with pytest.raises(SystemExit) as stop:
        export.main(args)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"export: {said}")


def test_as_a_command(tmp_path):
    done = subprocess.run(
        [sys.executable, EXPORT, GOLDEN / "gemma", tmp_path / "x.bin", "--dtype", "q4"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "gemma: gemma, 2 layers of 34" in done.stdout
    done = subprocess.run(
        [sys.executable, EXPORT, tmp_path, tmp_path / "y.bin"], capture_output=True, text=True
    )
    assert (
        done.returncode == 1
        and done.stderr
        == f"export: {tmp_path} has no config.json, so it is no Hugging Face checkpoint\n"
    )
