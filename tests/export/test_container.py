"""The exporter's files: panels read as docs/format.md lays them out, the container around them, and
the file's way to its place on the disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from typing import Iterator

import checkpoints
import numpy as np
import pytest
from conftest import ROOT, on_linux
from golden_copies import GOLDEN, refusal

import export
import exporter.checkpoint
from exporter.quantize import panels
from exporter.checkpoint import Checkpoint, Entry, write_checkpoint
from exporter.tensor import ExportError, Tensor

EXPORT = ROOT / "export.py"
SIZES = [(1, 1), (16, 32), (17, 33), (3, 100), (50, 31), (33, 64), (16, 96)]


def in_memory(array: np.ndarray, name: str = "w") -> Tensor:
    return Tensor(name, array.shape, lambda: lambda a, b: array[a:b].astype(np.float32))


# ---- panels, read element by element as docs/format.md has them ----------------------------------


def element(data: bytes, dtype: str, n_in: int, row: int, k: int) -> float:
    """The number at (row, k), found by the offsets that docs/format.md gives; of blocks it is a
    turned weight."""
    panel, r, blocks = row // 16, row % 16, -(-n_in // 32)
    b, g, j = k // 32, k % 32 // 4, k % 4
    if dtype == "f32":
        return struct.unpack_from("<f", data, 64 * n_in * panel + 4 * (16 * k + r))[0]
    if dtype == "bf16":
        at = 32 * 32 * blocks * panel + 2 * (32 * (k // 2) + 2 * r + k % 2)
        return struct.unpack("<f", b"\0\0" + data[at : at + 2])[0]
    bits, even = int(dtype[1:]), blocks + blocks % 2
    body, scales = 64 * bits * blocks, 16 * even + 32 * -(-blocks // 8)
    if dtype in ("q8", "q4"):
        start = (body + 32 * even) * panel
        scale = struct.unpack_from("<e", data, start + body + 2 * (16 * b + r))[0]
    else:
        start = (body + -(-scales // 64) * 64) * panel
        (integer,) = struct.unpack_from("<b", data, start + body + 16 * b + r)
        shared = start + body + 16 * even + 2 * (16 * (b // 8) + r)
        scale = integer * struct.unpack_from("<e", data, shared)[0] / 128
    code = plane = 0
    for width in PLANES[bits]:  # lower bits first
        byte = data[start + 64 * (bits * b + plane + g * width // 8) + 4 * r + j]
        code |= (byte >> g * width % 8) % 2**width << plane
        plane += width
    return NUMBERS[dtype][code] * scale


PLANES = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 8: [8]}
NUMBERS = {
    "q8": range(-128, 128),
    "q6": range(-32, 32),
    "q5": range(-16, 16),
    "q4": [-127, -95, -74, -58, -44, -31, -20, -8, 4, 16, 29, 42, 56, 72, 91, 114],
    "q3": [-29, -17, -10, -4, 2, 8, 15, 24],
    "q2": [-30, -10, 5, 22],
}


def hostile_rows() -> Iterator[np.ndarray]:
    """Weights on which two ways to round would part: ties, zeros of both signs, numbers next to the
    least and the largest, and blocks of all sizes."""
    random = np.random.RandomState(2)
    for rows, cols in [(1, 1), (17, 33), (40, 100), (16, 256)]:
        w = random.randn(rows, cols)
        yield w
        yield np.rint(2 * w)
        yield w * np.exp(6 * random.randn(rows, cols))
        yield w * np.exp(20 * random.randn(rows, 1) - 15)
        yield np.where(random.rand(rows, cols) < 0.9, -0.0, w)
        yield np.sign(w) * 2.0 ** random.randint(-30, 16, w.shape)
        yield 1e6 * w  # near the largest scale
        yield np.where(np.arange(cols) < 2, 1e-38, 0.0) * np.ones((rows, 1))
        yield np.where(random.rand(rows, cols) < 0.5, 1e-41, 1e-7 * w)


ROUNDED = [name for name, kind in panels.DTYPES.items() if kind.rounded]


@pytest.mark.parametrize("dtype", ROUNDED)
def test_the_library_packs_as_numpy_does(dtype):
    assert panels._library()
    for weights in hostile_rows():
        most = 7e3 * max(np.abs(panels.DTYPES[dtype].rounded.trials))
        weights = np.clip(weights, -most, most).astype(np.float32)  # turned, 8 times as much fits
        data, error = panels.pack(weights, dtype)
        by_numpy, its_error = panels.pack_numpy(weights, dtype)
        assert data == by_numpy
        assert error == pytest.approx(its_error, rel=1e-4)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, -3.4e7])
@pytest.mark.parametrize("at", [(0, 0), (16, 32)])
def test_neither_packs_what_is_too_large(dtype, number, at):
    weights = np.zeros((17, 33), np.float32)
    weights[at] = number
    for pack in (panels.pack, panels.pack_numpy):
        with pytest.raises(OverflowError), np.errstate(all="ignore"):
            pack(weights, dtype)


def test_without_the_library_numpy_packs(tmp_path):
    shutil.copytree(ROOT / "exporter", tmp_path / "exporter")
    code = "from exporter.quantize import panels as p; assert not p._library(); "
    code += "import numpy as n; print(p.pack(n.eye(16, 32, dtype=n.float32), 'q4')[0].hex())"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.strip() == panels.pack(np.eye(16, 32, dtype=np.float32), "q4")[0].hex()


@pytest.mark.parametrize(
    "dtype, rows, cols, size, sentence",
    [
        (b"q5_k", 16, 32, 576, "weights cannot be packed as q5_k: q8, q6, q5, q4, q3 or q2"),
        (b"q8", 16, 32, 575, "16 rows of 32 q8 weights do not fill 575 bytes of panels"),
        (b"q4", 17, 32, 320, "17 rows of 32 q4 weights do not fill 320 bytes of panels"),
        (b"q8", 2**40, 2**40, 576, f"{2**40} rows of {2**40} q8 weights do not fill 576 bytes"),
        (None, 16, 32, 576, "NULL"),
    ],
)
def test_heads_pack_says_what_is_wrong(dtype, rows, cols, size, sentence):
    library = panels._library()
    weights, out = np.zeros((16, 32), np.float32), np.full(576, 7, np.uint8)
    with pytest.raises(library.InputError, match=sentence):
        library.calls.pack(dtype, weights.ctypes.data, rows, cols, out.ctypes.data, size, None)
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", panels.WEIGHTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed_weights_lie_where_the_format_says(dtype, size):
    weights = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    data, error = panels.pack(weights, dtype)
    assert (
        len(data) == -(-size[0] // 16) * panels.panel_bytes(dtype, size[1]) and len(data) % 64 == 0
    )
    unpacked = panels.unpack(data, dtype, *size)
    turned = dtype in NUMBERS
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
        <= {
            "f32": 0,
            "bf16": 0.002,
            "q8": 0.006,
            "q6": 0.025,
            "q5": 0.05,
            "q4": 0.09,
            "q3": 0.18,
            "q2": 0.36,
        }[dtype]
    )


def test_padding_weighs_nothing():
    ones = np.ones((17, 33), np.float32)
    for dtype, body in (("q8", 2 * 512), ("q4", 2 * 256)):
        second = np.frombuffer(panels.pack(ones, dtype)[0], np.uint8)[
            panels.panel_bytes(dtype, 33) :
        ]
        scales = second[body : body + 64].view(np.float16).reshape(2, 16)
        assert (scales[:, 0] != 0).all() and (
            scales[:, 1:] == 0
        ).all()  # row 16 is there, rows 17.. are not
        codes = second[:body].reshape(2, -1, 16, 4)
        assert (codes[:, :, 1:] == (128 if dtype == "q8" else 0x88)).all()
    bf16 = np.frombuffer(panels.pack(ones, "bf16")[0], np.uint16).reshape(2, 32, 16, 2)
    assert (bf16[:, 17:] == 0).all() and (bf16[1, :, 1:] == 0).all()


@pytest.mark.parametrize(
    "dtype, bound",
    [
        ("bf16", 0.0017),
        ("q8", 0.0050),
        ("q4", 0.0735),
        ("q6", 0.0203),
        ("q5", 0.0408),
        ("q3", 0.1535),
        ("q2", 0.319),
    ],
)
def test_rounding_error_of_normal_weights(dtype, bound):
    """q8 by the largest weight alone gives 0.0054, q4 with one candidate scale 0.077."""
    weights = np.random.default_rng(2).standard_normal((64, 1024)).astype(np.float32)
    _, error = panels.pack(weights, dtype)
    assert np.sqrt(error / (weights**2).sum()) < bound


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_odd_blocks(dtype):
    weights = np.zeros((16, 128), np.float32)
    weights[1] = 0.25  # all equal
    weights[2, 5] = -3  # one weight alone, negative
    weights[3] = 1e-12  # smaller than any f16 scale makes
    # Close to the largest that an f16 scale reaches: their sum / 4 counts.
    weights[4] = -(1e6 if dtype == "q8" else 6e5)
    unpacked = panels.unpack(panels.pack(weights, dtype)[0], dtype, 16, 128)
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
    assert tensors["embed"].data == panels.pack(matrix, "q8")[0]
    assert tensors["norm"].data == vector.tobytes()
    assert stats.file_bytes == path.stat().st_size and stats.n_weights == 300 * 70 + 9
    assert sum(progress) == stats.data_bytes == sum(len(t.data) for t in tensors.values())
    again = Checkpoint(str(path))
    assert np.array_equal(again.tensor("norm"), vector)
    assert 0 < np.abs(again.tensor("embed") - matrix).max() < 0.03


def test_nothing_is_left_of_an_interrupted_export(tmp_path, monkeypatch, capsys):
    temporary = f"x.bin.{os.getpid()}-{threading.get_ident()}.tmp"

    def interrupt(*_):
        assert [p.name for p in tmp_path.iterdir()] == [temporary]
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter.checkpoint, "pack", interrupt)
    assert export.main([str(GOLDEN / "llama"), str(tmp_path / "x.bin")]) == 130
    assert "export: interrupted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_result_keeps_the_permissions_of_what_it_replaces(tmp_path, monkeypatch, mode):
    """From its first byte on; a new file gets those that the umask leaves."""
    out, seen = tmp_path / "x.bin", []
    pack = exporter.checkpoint.pack

    def look(*given):
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.tmp"))
        return pack(*given)

    monkeypatch.setattr(exporter.checkpoint, "pack", look)
    before = os.umask(0o022)
    try:
        for expected in (0o644, mode):
            seen.clear()
            assert export.main([str(GOLDEN / "llama"), str(out)]) == 0
            assert set(seen) == {expected} and stat.S_IMODE(out.stat().st_mode) == expected
            out.chmod(mode)
    finally:
        os.umask(before)


def test_a_full_disk_names_the_file(tmp_path):
    """A limit of sizes stands for it."""
    out = tmp_path / "x.bin"
    done = subprocess.run(
        [sys.executable, EXPORT, GOLDEN / "llama", out],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)),
    )
    assert done.returncode == 1 and f"export: {out}: File too large" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shut", ["2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_files(tmp_path, shut):
    command = ["sh", "-c", f'exec "$@" {shut}', "sh", sys.executable, EXPORT, GOLDEN / "llama"]
    assert subprocess.run([*command, tmp_path / "x.bin"], timeout=120).returncode == 0
    assert export.main([str(GOLDEN / "llama"), str(tmp_path / "y.bin")]) == 0
    assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "y.bin").read_bytes()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_nothing_is_left_of_an_export_that_is_stopped(tmp_path, name):
    command = [sys.executable, EXPORT, "--random", "smollm-135m", tmp_path / "x.bin"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.iterdir()):
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    assert "export: interrupted; nothing was written" in process.communicate(timeout=60)[1]
    assert process.returncode == 128 + getattr(signal, name) and not list(tmp_path.iterdir())


def test_ctrl_c_while_modules_are_imported(tmp_path):
    """Ends it without a traceback."""
    (tmp_path / "numpy.py").write_text("import os\nos.kill(os.getpid(), 2)\n1 / 0\n")
    done = subprocess.run(
        [sys.executable, EXPORT, GOLDEN / "llama", tmp_path / "x.bin"],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@on_linux
def test_only_results_have_to_be_written(tmp_path):
    """Not what is said on stderr."""
    command = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh", sys.executable, EXPORT, GOLDEN / "llama"]
    assert subprocess.run([*command, tmp_path / "x.bin"]).returncode == 0
    assert (tmp_path / "x.bin").exists()
    command[2] = 'exec "$@" >/dev/full'
    for env in ({**os.environ, "PYTHONUNBUFFERED": "1"}, {**os.environ, "PYTHONUNBUFFERED": ""}):
        command = [*command[:6], GOLDEN / "llama", tmp_path / "y.bin"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=env)
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1] == "export: stdout: No space left on device"


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
