#!/usr/bin/env python3
"""How far a GGUF file's own numbers are from what runs, here and in llama.cpp.

    python tests/reference/compare_kept.py FOLDER FILE.gguf.. [--tokens 300] [--text FILE]

FOLDER keeps exports between runs: each file in f32, which stands for its numbers, and kept. Prints
the mean KL divergence from f32 of what is expected next (nats a token) after each of the first
tokens of each text, and how many times the likeliest token is the same. Texts are those in texts/,
and --text. The caches are f16. Wants llama-cpp-python; without it only ours is measured."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted((Path(__file__).parent / "texts").glob("*.txt"))
ROWS = 50  # of logits at a time, in float64


def exported(source: Path, folder: Path, dtype: str) -> Path:
    out = folder / f"{source.stem}-{dtype}.bin"
    if not out.exists():
        command = [sys.executable, ROOT / "export.py", source, out, "--dtype", dtype]
        subprocess.run(command, check=True, capture_output=True)
    return out


def run(*arguments: object) -> str:
    done = subprocess.run([ROOT / "run", *map(str, arguments)], check=True, capture_output=True)
    return done.stdout.decode()


def ours(binary: Path, ids: list[int]) -> np.ndarray:
    with tempfile.NamedTemporaryFile() as out:
        run(binary, "--tokens", " ".join(map(str, ids)), "--logits", out.name)
        return np.fromfile(out.name, "<f4").reshape(len(ids), -1)


def theirs(llama, ids: list[int]) -> np.ndarray:
    llama.reset()
    llama.eval(ids)
    return np.array(llama.scores[: len(ids)])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def compared(truth: np.ndarray, found: np.ndarray) -> str:
    total = 0.0
    for i in range(0, len(truth), ROWS):
        p, q = (log_softmax(logits[i : i + ROWS]) for logits in (truth, found))
        total += float((np.exp(p) * (p - q)).sum())
    same = int((truth.argmax(1) == found.argmax(1)).sum())
    return f"{total / len(truth):.5f}, {same} of {len(truth)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.gguf")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--text", type=Path, action="append", default=[])
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True, parents=True)
    try:
        import llama_cpp
    except ImportError:
        llama_cpp = None
    texts = TEXTS + args.text
    print("| | MB |", " | ".join(text.stem for text in texts), "|")
    print("|---" * (len(texts) + 2) + "|")
    for source in args.files:
        f32, kept = (exported(source, args.folder, dtype) for dtype in ("f32", "keep"))
        llama = llama_cpp and llama_cpp.Llama(
            str(source), n_ctx=args.tokens, logits_all=True, flash_attn=True, verbose=False
        )
        here, there = [], []
        for text in texts:
            beginning = text.read_text(encoding="utf-8")[: 8 * args.tokens]
            ids = [int(id_) for id_ in run(f32, "--tokenize", "-p", beginning).split()]
            ids = ids[: args.tokens]
            truth = ours(f32, ids)
            here.append(compared(truth, ours(kept, ids)))
            if llama:
                there.append(compared(truth, theirs(llama, ids)[:, : truth.shape[1]]))
        for name, file, row in ((source.name, kept, here), ("llama.cpp", source, there)):
            if row:
                print(f"| {name} | {file.stat().st_size / 1e6:.1f} |", " | ".join(row), "|")


if __name__ == "__main__":
    main()
