"""One SHA-256 of logits per weight and KV dtype, the same for every thread count, chunk,
instruction set and machine.

The checkpoints in tests/hashes/ are committed, so that the hashes test the engine and not the
exporter's arithmetic. `python tests/engine/test_hashes.py --update` remakes both, with ./run; look at
the difference before you commit it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ALL, in_part

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "hashes"
HASHES = ROOT / "tests" / "hashes.json"
WEIGHTS = ["f32", "bf16", "q8", "q4", "kept", "turned"]
CACHES = list(itertools.product(["f32", "f16", "q8", "q4"], repeat=2))
PROMPT = " ".join(
    str((i * 37 + 11) % 100) for i in range(290)
)  # more than a tile of positions, and than the window's ring
SPLITS = [(1, 512), (1, 1), (2, 7), (3, 64), (3, 512)]  # threads, chunk


def logits_hash(
    weights: str, keys: str, values: str, threads: int, chunk: int, isa: str, out: Path
) -> str:
    """SHA-256 of the logits of all tokens of the prompt."""
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    env = {**os.environ, "HEADS_ISA": isa}
    done = subprocess.run(
        [
            *os.environ.get("HEADS_EMULATOR", "").split(),
            program,
            MODELS / f"{weights}.bin",
            "--tokens",
            PROMPT,
            "-ctk",
            keys,
            "-ctv",
            values,
            "-t",
            str(threads),
            "-b",
            str(chunk),
            "--logits",
            out,
        ],
        env=env,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return hashlib.sha256(out.read_bytes()).hexdigest()


def instruction_sets() -> list[str]:
    """Those that this processor has."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    if os.environ.get("HEADS_EMULATOR"):
        return os.environ.get("HEADS_ISAS", "scalar neon").split()
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
    wanted = {
        "avx2": avx2,
        "avxvnni": avx2 | {"avx_vnni"},
        "avx512": avx512,
        "avx512bf16": avx512 | {"avx512_bf16"},
        "amx": avx512 | {"amx_tile", "amx_bf16", "amx_int8"},
        "neon": {"asimddp"},
    }
    return ["scalar", *[isa for isa, needs in wanted.items() if needs <= flags]]


@in_part(1)
@pytest.mark.parametrize(("keys", "values"), CACHES, ids=["-".join(c) for c in CACHES])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_same_bits(weights, keys, values, tmp_path):
    want = json.loads(HASHES.read_text())[f"{weights} {keys} {values}"]
    turn = WEIGHTS.index(weights) * len(CACHES) + CACHES.index((keys, values))
    turn += int(os.environ["HEADS_SEED"])
    split = SPLITS[turn % len(SPLITS)]
    for isa in instruction_sets():
        if isa == "scalar" and turn % 3 and len(instruction_sets()) > 1 and not ALL:
            continue  # a third of them
        if isa == "avx512bf16" and weights == "bf16":
            continue  # rounds in its own way: test_own_rounding
        # The scalar kernels and emulators are slow: one of the splits here, all of them over the
        # test's parameters; of each without HEADS_TESTS=all.
        slow = isa == "scalar" or "HEADS_EMULATOR" in os.environ
        every = os.environ.get("HEADS_TESTS") == "all" and not slow
        for threads, chunk in SPLITS if every else [split]:
            found = logits_hash(weights, keys, values, threads, chunk, isa, tmp_path / "logits")
            assert found == want, f"HEADS_ISA={isa} -t {threads} -b {chunk}"


@pytest.mark.skipif(
    "avx512bf16" not in instruction_sets(), reason="the processor has no bf16 dot product"
)
def test_own_rounding(tmp_path):
    """The bf16 dot product gives one result for all threads and chunks, close to that of the other
    kernels."""
    hashes = {
        logits_hash("bf16", "f16", "f16", *split, "avx512bf16", tmp_path / "logits")
        for split in SPLITS
    }
    assert len(hashes) == 1
    logits_hash("bf16", "f16", "f16", 1, 512, "avx512", tmp_path / "others")
    own, others = (np.fromfile(tmp_path / name, np.float32) for name in ("logits", "others"))
    assert 0 < np.abs(own - others).max() < 2e-2 * np.abs(others).max()


def test_hashes_differ():
    """Each combination computes something of its own."""
    hashes = json.loads(HASHES.read_text())
    assert len(set(hashes.values())) == len(hashes) == len(WEIGHTS) * len(CACHES)


# ---- the committed files ----


def write_models() -> None:
    """Three layers that differ in rope, window, activation, topology and gate, with sizes that are
    multiples of nothing."""
    sys.path.insert(0, str(ROOT))
    from exporter.checkpoint import Entry, write_checkpoint
    from exporter.quantize.panels import DTYPES, LANES, panel_bytes
    from exporter.tensor import Tensor

    vocab, n_embd, heads, kv_heads, head_dim, d_ff = 100, 40, 6, 2, 20, 56
    state = 1

    def numbers(*shape: int, scale: float) -> np.ndarray:
        nonlocal state
        values = []
        for _ in range(int(np.prod(shape))):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            values.append((state >> 48) - 32768)
        return (np.array(values, np.float64).reshape(shape) * (scale / 32768)).astype(np.float32)

    def random_bytes(n: int) -> np.ndarray:
        return (numbers(n, scale=128) + 128).astype(np.uint8)

    def panels(dtype: str, rows: int, cols: int) -> bytes:
        """Random codes, and scales of a size that makes weights of a size: all of 8 bits are
        below 64, all of f16 positive and small."""
        kind, n, blocks = DTYPES[dtype], -(-rows // LANES), -(-cols // 32)
        out = np.zeros((n, panel_bytes(dtype, cols)), np.uint8)
        codes, after = 64 * kind.bits * blocks, kind.scales * (blocks + blocks % 2)
        out[:, :codes] = random_bytes(n * codes).reshape(n, -1)
        if kind.shared:
            out[:, codes : codes + after] = random_bytes(n * after).reshape(n, -1) & 63
        f16 = out[:, codes + after if kind.shared else codes :].view(np.float16)
        size = 0.02 / 2 ** (kind.bits - 4) / (32 if kind.shared else 1)
        size = 0.02 if kind.rounded else size  # numbers of all widths are as large
        f16[:] = np.abs(numbers(*f16.shape, scale=size))
        return out.tobytes()

    metadata = {
        "model.vocab_size": vocab,
        "model.n_embd": n_embd,
        "model.n_layers": 3,
        "model.context": 512,
        "model.norm": 0,
        "model.norm_eps": 1e-5,
        "model.emb_scale": 1.5,
        "model.rope.0.inv_freq": [0.5**i for i in range(head_dim // 2)],
        "model.rope.1.inv_freq": [0.75**i for i in range(4)],
        "model.rope.1.multiplier": 1.125,
        "layer.n_heads": heads,
        "layer.n_kv_heads": kv_heads,
        "layer.head_dim": head_dim,
        "layer.rope": [0, 1, -1],
        "layer.window": [0, 24, 0],
        "layer.attn_scale": [0.25, 0.5, 0.125],
        "layer.topology": [0, 1, 0],
        "layer.d_ff": d_ff,
        "layer.ffn": [1, 0, 1],
        "layer.act": [0, 1, 2],
        "info.source": "tests/test_hashes.py --update",  # as the committed files say
    }
    tensors = {"embed": numbers(vocab, n_embd, scale=2), "norm": 1 + numbers(n_embd, scale=0.5)}
    for i in range(3):
        sizes = {
            "attn_q": (heads * head_dim, n_embd),
            "attn_k": (kv_heads * head_dim, n_embd),
            "attn_v": (kv_heads * head_dim, n_embd),
            "attn_o": (n_embd, heads * head_dim),
            "ffn_gate": (d_ff, n_embd),
            "ffn_up": (d_ff, n_embd),
            "ffn_down": (n_embd, d_ff),
        }
        if i == 1:
            del sizes["ffn_gate"]
        tensors |= {f"layers.{i}.{name}": numbers(*size, scale=0.4) for name, size in sizes.items()}
        tensors |= {
            f"layers.{i}.{name}.bias": numbers(sizes[name][0], scale=0.3)
            for name in ("attn_q", "attn_k", "attn_v")
        }
        for name in ("attn_norm", "ffn_norm") if i != 1 else ("attn_norm",):
            tensors[f"layers.{i}.{name}"] = 1 + numbers(n_embd, scale=0.5)
    for name in ("attn_q_norm", "attn_k_norm"):
        tensors[f"layers.2.{name}"] = 1 + numbers(head_dim, scale=0.5)
    MODELS.mkdir(exist_ok=True)
    blocks = {
        "kept": [name for name, kind in DTYPES.items() if kind.scales and not kind.rounded],
        "turned": [name for name, kind in DTYPES.items() if kind.shared and kind.rounded],
    }
    several = {name: itertools.cycle(types) for name, types in blocks.items()}
    for dtype in WEIGHTS:
        entries = []
        for n, a in tensors.items():
            of = "f32" if a.ndim == 1 else next(several[dtype]) if dtype in several else dtype
            made = panels(of, *a.shape) if of != "f32" and dtype in several else None
            tensor = Tensor(
                n,
                a.shape,
                lambda a=a: lambda i, j: a[i:j].copy(),
                packed=made and (lambda of, i, j, made=made: (made, 0.0)),
            )
            entries.append(Entry(n, of, tensor))
        write_checkpoint(str(MODELS / f"{dtype}.bin"), metadata, entries)


def update() -> None:
    """Remakes the checkpoints and their hashes."""
    import tempfile

    write_models()
    with tempfile.TemporaryDirectory() as folder:
        hashes = {
            f"{w} {k} {v}": logits_hash(w, k, v, 1, 512, "scalar", Path(folder) / "logits")
            for w in WEIGHTS
            for k, v in CACHES
        }
    HASHES.write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python tests/engine/test_hashes.py --update")
    update()
