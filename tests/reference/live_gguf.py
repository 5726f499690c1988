#!/usr/bin/env python3
"""GGUF files of every architecture, type and tokenizer, as llama.cpp's converter writes them, give
transformers' numbers and the ids that their README.md says; what is no model is refused by name.
With their numbers kept, they hold the same ones, and give what int8 activations leave of it.

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
from operator import eq
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402
import gguf_files  # noqa: E402
from test_golden import TOLERANCE  # noqa: E402

import export  # noqa: E402
import heads  # noqa: E402
from exporter.checkpoint import Checkpoint  # noqa: E402
from exporter.sources.gguf_file import read_gguf  # noqa: E402
from exporter.sources.gguf_tokenizer import RAW  # noqa: E402
from exporter.tokenizers.normalizers import SPACE_MARK  # noqa: E402


INT8 = 0.05  # how far int8 activations take a number of error_of(); 0.027 is the most that was seen


def unpacked(folder: Path, entry: dict, out: Path) -> Path:
    """The file of an entry, and its other parts beside it. With `pre`, its tokenizer is cut
    that way."""
    for name in entry.get("parts", [entry["file"]]):
        (out / Path(name).stem).write_bytes(lzma.open(folder / name).read())
    path = out / Path(entry["file"]).stem
    if "pre" in entry:
        gguf_files.with_string(path, "tokenizer.ggml.pre", entry["pre"])
    return path


def exported(path: Path, out: Path, *options: str) -> tuple[int, str]:
    """The status and the words of an export."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words), contextlib.redirect_stdout(words):
        status = export.main([str(path), str(out), *options])
    return status, words.getvalue().strip()


def rows(binary: Path, n_columns: int, *arguments: object) -> np.ndarray:
    """float32 [tokens][n_columns] that ./run writes to the file named last."""
    done = conftest.run_command(binary, *arguments)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return np.fromfile(arguments[-1], "<f4").reshape(-1, n_columns)


WHAT = {"encoder": "hidden", "pooled": "pooled"}  # the answer of a kind of file, or "logits"


def numbers(binary: Path, entry: dict, answer) -> np.ndarray:
    """What a model gives for the answer's ids, or for the texts."""
    if entry["kind"] == "pooled":
        with heads.Model(str(binary)) as model:
            return model.embed(entry["texts"])
    what = WHAT.get(entry["kind"], "logits")
    more = [] if entry["kind"] == "encoder" else ["-ctk", "f32", "-ctv", "f32"]
    more += ["-c", entry["n_ctx"]] if "n_ctx" in entry else []
    if "target" in answer:
        more += ["--target", " ".join(map(str, answer["target"]))]
    ids = ["--tokens", " ".join(map(str, answer["ids"]))]
    out = binary.with_suffix(".rows")
    return rows(binary, answer[what].shape[1], *ids, *more, f"--{what}", out)


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of any number, over the largest of its position."""
    if found.shape != expected.shape:
        raise RuntimeError(f"{found.shape} numbers, expected {expected.shape}")
    return float((abs(found - expected).max(1) / abs(expected).max(1)).max())


def other_numbers(kept: Path, whole: Path) -> list[str]:
    """The tensors whose numbers are not those of the f32 file, to the bit; or to f16's, where that
    is what they became."""
    ours, exact = Checkpoint(str(kept)), Checkpoint(str(whole))
    wrong = [] if ours.tensors.keys() == exact.tensors.keys() else ["names"]
    for name in ours.tensors:
        expected = exact.tensor(name)
        if ours.tensors[name][0] == "f16":
            expected = expected.astype(np.float16).astype(np.float32)
        if not np.array_equal(ours.tensor(name), expected):
            wrong.append(name)
    return wrong


def ids_of_the_library(path: Path, texts: list[str]) -> list[list[int]]:
    """What `tokenizers`, and so transformers, makes of texts with Gemma 4's merges: a character
    without a token vanishes before them, in llama.cpp after them."""
    values = read_gguf(str(path)).values
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in values["tokenizer.ggml.merges"]]
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return [tokenizer.encode(text).ids for text in texts]


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
    status, words = exported(path, binary, "--dtype", "f32")
    if entry["kind"] == "refuse":
        said = any(word in words.lower() for word in entry["words"])
        return status == 1 and said and not binary.exists(), words
    if status:
        return False, words
    found = []
    if entry["kind"] != "ids":
        with np.load(folder / f"{entry.get('answer', entry['name'])}.npz") as answer:
            whole = numbers(binary, entry, answer)
            error = error_of(whole, answer[WHAT.get(entry["kind"], "logits")])
            found.append((error <= TOLERANCE, f"numbers differ by {error:.1e}"))
            kept = out / "kept.bin"
            status, said = exported(path, kept)
            wrong = [said] if status else other_numbers(kept, binary)
            error = error_of(numbers(kept, entry, answer), whole) if not wrong else 0
            found.append(
                (not wrong, f"others kept: {wrong[:3]}" if wrong else "the same ones kept")
            )
            found.append((error <= INT8, f"which give {error:.1e}"))
    if entry.get("ids"):
        expected = entry["ids"]
        if entry.get("pre") in RAW:
            bos = expected[0][: RAW[entry["pre"]]]
            expected = [bos + ids for ids in ids_of_the_library(path, texts)]
            assert sum(map(eq, expected, entry["ids"])) >= 18, "llama.cpp has others"
        wrong = wrong_ids(binary, texts, expected)
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
        print(f"{'ok' if good else 'not ok'} {entry['name']}: {words}", flush=True)
        bad += not good
    print(f"{len(entries) - bad} of {len(entries)} files are as expected, seed {args.seed}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
