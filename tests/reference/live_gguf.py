#!/usr/bin/env python3
"""GGUF files of every architecture, type and tokenizer, as llama.cpp's converter writes them, give
transformers' numbers and the ids that their README.md says; what is no model is refused by name.

    python tests/reference/live_gguf.py FOLDER [--seed S] [--sample N] [NAME...]

FOLDER has index.json, the files packed with xz, and the answers. A line a file; exit status 1 if
any differs."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import lzma
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402
import gguf_files  # noqa: E402
from test_golden import TOLERANCE  # noqa: E402

import export  # noqa: E402
import heads  # noqa: E402
from exporter.checkpoint import Checkpoint  # noqa: E402


# Pre-tokenizers that are refused by name, and two whose ids differ where a character has no token.
NOT_YET = {
    f"pre-{name}"
    for name in (
        *("default", "chameleon", "tiny_aya", "cohere2moe", "superbpe", "kimi-k2", "afmoe"),
        *("sarvam-moe", "granite-embed-multi-311m"),
    )
}


def unpacked(folder: Path, entry: dict, out: Path) -> Path:
    """The file of an entry, and its other parts beside it. With `pre`, its tokenizer is cut
    that way."""
    for name in entry.get("parts", [entry["file"]]):
        (out / Path(name).stem).write_bytes(lzma.open(folder / name).read())
    path = out / Path(entry["file"]).stem
    if "pre" in entry:
        gguf_files.with_string(path, "tokenizer.ggml.pre", entry["pre"])
    return path


def exported(path: Path, out: Path) -> tuple[int, str]:
    """The status and the words of an export to f32."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words), contextlib.redirect_stdout(words):
        status = export.main([str(path), str(out), "--dtype", "f32"])
    return status, words.getvalue().strip()


def rows(binary: Path, n_columns: int, *arguments: object) -> np.ndarray:
    """float32 [tokens][n_columns] that ./run writes to the file named last."""
    done = conftest.run_command(binary, *arguments)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return np.fromfile(arguments[-1], "<f4").reshape(-1, n_columns)


def error_of(binary: Path, entry: dict, answer) -> float:
    """The largest difference of any number, over the largest of its position."""
    if entry["kind"] == "pooled":
        with heads.Model(str(binary)) as model:
            found, expected = model.embed(entry["texts"]), answer["pooled"]
    else:
        what = "hidden" if entry["kind"] == "encoder" else "logits"
        expected = answer[what]
        more = [] if entry["kind"] == "encoder" else ["-ctk", "f32", "-ctv", "f32"]
        more += ["-c", entry["n_ctx"]] if "n_ctx" in entry else []
        if "target" in answer:
            more += ["--target", " ".join(map(str, answer["target"]))]
        ids = ["--tokens", " ".join(map(str, answer["ids"]))]
        found = rows(
            binary, expected.shape[1], *ids, *more, f"--{what}", binary.with_suffix(".rows")
        )
    if found.shape != expected.shape:
        raise RuntimeError(f"{found.shape} numbers, expected {expected.shape}")
    return float((abs(found - expected).max(1) / abs(expected).max(1)).max())


def wrong_ids(binary: Path, texts: list[str], expected: list) -> str:
    """What the texts whose ids differ are, and what they give."""
    with heads.Model(str(binary)) as model:
        found = [model.encode(text) for text in texts]
    wrong = [i for i, ids in enumerate(expected) if ids is not None and ids != found[i]]
    told = "; ".join(f"{texts[i]!r} gives {found[i]}, not {expected[i]}" for i in wrong[:2])
    return f"{len(wrong)} texts, {told}" if wrong else ""


def check(folder: Path, entry: dict, texts: list[str], out: Path) -> tuple[bool, str]:
    """Whether an entry's file does what it must, and what it does."""
    path, binary = unpacked(folder, entry, out), out / "model.bin"
    status, words = exported(path, binary)
    if entry["kind"] == "refuse":
        said = any(word in words.lower() for word in entry["words"])
        return status == 1 and said and not binary.exists(), words
    if status:
        return False, words
    found = []
    if entry["kind"] != "ids":
        with np.load(folder / f"{entry.get('answer', entry['name'])}.npz") as answer:
            error = error_of(binary, entry, answer)
        found.append((error <= TOLERANCE, f"numbers differ by {error:.1e}"))
    if entry.get("ids"):
        wrong = wrong_ids(binary, texts, entry["ids"])
        found.append((not wrong, wrong or "the ids are right"))
    if "templates" in entry:
        others = sorted(set(entry["templates"]) - {"default"})
        told = f"left out: {', '.join(others)}" in words
        chats = b"[" not in bytes(Checkpoint(str(binary)).metadata["chat.template"]).split(b"{{")[0]
        found.append((told and chats, f"the default template of {len(others) + 1}"))
    return all(good for good, _ in found), ", ".join(words for _, words in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="files to look at (all)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000)
    parser.add_argument("--sample", type=int, help="so many, chosen by the seed")
    args = parser.parse_args()
    index = json.loads((args.folder / "index.json").read_text())
    entries = [e for e in index["files"] if not args.names or e["name"] in args.names]
    if args.sample is not None:
        entries = random.Random(args.seed).sample(entries, min(args.sample, len(entries)))
    bad = 0
    for entry in entries:
        with tempfile.TemporaryDirectory() as out:
            try:
                good, words = check(args.folder, entry, index["texts"], Path(out))
            except (RuntimeError, heads.HeadsError) as error:
                good, words = False, str(error)
        wanted = entry["name"] not in NOT_YET
        print(f"{'ok' if good else 'not ok'} {entry['name']}: {words}", flush=True)
        bad += good != wanted
    print(f"{len(entries) - bad} of {len(entries)} files are as expected, seed {args.seed}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
