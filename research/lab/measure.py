"""What export.py and ./run report on a checkpoint: the laboratory's measurements."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from research import ROOT

KV_DTYPES = ("f32", "f16", "q8")


def output(*command: object) -> str:
    """What a command prints; RuntimeError with what it said if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def engine(model: Path, *options: object) -> str:
    return output(ROOT / "run", model, "-t", 1, *options)


def export(source: Path, model: Path, *options: object) -> int:
    """Writes a checkpoint for ./run, in f32 so that no weight is rounded; how many weights it
    has."""
    said = output(sys.executable, ROOT / "export.py", source, model, "--dtype", "f32", *options)
    return int(re.search(r"([\d,]+) weights", said)[1].replace(",", ""))


def cache(dtype: str) -> list[str]:
    return ["-ctk", dtype, "-ctv", dtype]


def loss(model: Path, text: Path, length: int, dtype: str) -> float:
    """--ppl of a text whose windows are documents of `length` tokens: nats a token."""
    said = engine(model, "--ppl", text, "-c", length, *cache(dtype))
    return float(re.search(r"\(([\d.]+) nats a token", said)[1])


def bytes_per_token(model: Path, dtype: str) -> tuple[int, int]:
    """--kv: bytes that the cache takes for a token, as the report counts them; and the bytes that
    are resident after it has run 256 tokens."""
    report = json.loads(engine(model, "--kv", "--json", "-c", 256, *cache(dtype)))
    own = next(row for row in report["rows"] if row["own"])
    return own["bytes_per_token"], report["resident_bytes"]


def decode_speed(model: Path, context: int, dtype: str) -> dict[int, float]:
    """--bench: tokens a second at each depth, in the fastest of its rounds: the one that other
    programs disturbed least."""
    report = json.loads(engine(model, "--bench", "--json", "-c", context, *cache(dtype)))
    return {row["depth"]: row["tok_s_max"] for row in report["decode"]}


def logits(model: Path, ids: np.ndarray, scratch: Path) -> np.ndarray:
    """--logits of a row of token ids, [tokens][vocabulary]."""
    engine(model, "--tokens", " ".join(map(str, ids)), "--logits", scratch)
    return np.fromfile(scratch, dtype="<f4").reshape(len(ids), -1)
