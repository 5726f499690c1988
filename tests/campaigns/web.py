"""Damaged checkpoints in WebAssembly, whose sizes have 32 bits: each is refused with the sentence that
it gets natively, or gives logits.

    python tests/campaigns/web.py N [--seed S]

It needs `make web lib` and node. Sentences are compared without their numbers. A failure leaves the
file in build/campaign/web and names it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

from corpus import ROOT

import checkpoints
import faults
import heads

FOLDER = ROOT / "build" / "campaign" / "web"
EXTREMES = [0, 1, -1, 2, 3, 1 << 10, 1 << 16, (1 << 16) + 1, 1 << 20, 1 << 24, (1 << 31) - 1]


def damaged(path: Path, rng: random.Random) -> bytes:
    """One to three numbers of its metadata or sizes of its tensors are others, or bytes of its head
    are."""
    data = path.read_bytes()
    meta, tensors = checkpoints.parse(data)
    for _ in range(rng.randint(1, 3)):
        ints = [
            k for k, m in meta.items() if m.type == checkpoints.I32 and m.count < 50 and m.count
        ]
        how = rng.random()
        if how < 0.6 and ints:
            key = rng.choice(ints)
            values = meta[key].array().copy()
            values[rng.randrange(len(values))] = rng.choice(EXTREMES)
            meta[key] = meta[key]._replace(values=values.tobytes())
        elif how < 0.9:
            name = rng.choice(list(tensors))
            sides = {rng.choice(["rows", "cols"]): rng.choice([x for x in EXTREMES if x > 0])}
            tensors[name] = tensors[name]._replace(**sides)
            if rng.random() < 0.5:
                tensors[name] = tensors[name]._replace(data=b"")
        else:
            head = bytearray(checkpoints.build(meta, tensors))
            head[rng.randrange(8, min(len(head), 4096))] = rng.randrange(256)
            return bytes(head)
    return checkpoints.build(meta, tensors)


def native(path: Path) -> str | None:
    try:
        with heads.Model(path, context=64, chunk=2) as model, model.session() as session:
            session.feed([1, 2])
    except heads.HeadsError as error:
        return re.sub(r"^/\S*: ", "", str(error))
    return None


def alike(mine: str | None, theirs: str | None) -> bool:
    """Whether both were refused with a sentence, or neither; the sentence may have other numbers."""
    if mine is None or theirs is None:
        return mine is theirs
    plain = [re.sub(r"\d+", "0", text) for text in (mine, theirs)]
    return plain[0] == plain[1]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    made = faults.make_models(FOLDER)  # the module refuses others in its own words
    models = [path for name, path in sorted(made.items()) if name not in ("encoder", "translator")]
    rng = random.Random(given.seed)
    script = Path(__file__).with_suffix(".mjs")
    node = subprocess.Popen(["node", script], stdin=-1, stdout=-1, text=True)
    refused = 0
    for i in range(given.n):
        path = FOLDER / "web.bin"
        path.write_bytes(damaged(rng.choice(models), rng))
        node.stdin.write(f"{path}\n")
        node.stdin.flush()
        answer = node.stdout.readline()
        mine, theirs = json.loads(answer) if answer else "node ended", native(path)
        refused += theirs is not None
        if not alike(mine, theirs):
            kept = path.rename(FOLDER / f"seed-{given.seed}-{i}.bin")
            print(f"{kept}: natively {theirs!r}, in WebAssembly {mine!r}")
            return 1
    node.stdin.close()
    print(f"{given.n} checkpoints, {refused} refused alike, 0 wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
