#!/usr/bin/env python3
"""What adapters cost in a batch: requests with several adapters and the same without, in turn.

    python tests/reference/compare_adapters.py MODEL.bin [--requests N] [--adapters N] [--rank R]
        [--dtype T] [--threads N] [--tokens N] [--rounds N]

The adapters are random, for all matrices of attention and feed-forward. Prints tokens a second of
both, and their ratio, by the median of the rounds; exit status 1 if it is below 0.9."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("", "support")]
import conftest  # noqa: E402
import peft_folders  # noqa: E402

KINDS = ("attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down")


def speed(model: Path, requests: list[dict], threads: int) -> float:
    """Tokens a second."""
    lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
    places = ("-np", len(requests), "-t", threads, "-c", 512)
    done = conftest.run_command(model, "--batch", "-", *places, input=lines)
    assert done.returncode == 0, done.stderr
    return float(re.search(r"([\d.]+) tok/s\s*$", done.stderr)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        files = [
            peft_folders.file_for(
                args.model, Path(out) / f"{i}.adapter", KINDS, i, args.rank, args.dtype
            )
            for i in range(args.adapters)
        ]
        plain = [
            {"tokens": [5 + i, 9, 12], "max_tokens": args.tokens, "temperature": 0}
            for i in range(args.requests)
        ]
        each = [{**r, "adapter": str(files[i % len(files)])} for i, r in enumerate(plain)]
        ratios = []
        for _ in range(args.rounds):
            without, with_them = (speed(args.model, r, args.threads) for r in (plain, each))
            ratios.append(with_them / without)
            print(
                f"{without:.1f} tok/s without, {with_them:.1f} with: {ratios[-1]:.3f}", flush=True
            )
    ratio = statistics.median(ratios)
    print(f"{args.requests} requests, {args.adapters} adapters of rank {args.rank}: {ratio:.3f}")
    return ratio < 0.9


if __name__ == "__main__":
    sys.exit(main())
