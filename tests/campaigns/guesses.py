"""guesses.py N [--seed S]: no text depends on guesses by the model's own layers. N texts, of small
models of each family that has such layers (torch and transformers make them), greedy and sampled,
with penalties, with stop strings, to the context's edge; each with 1 to 7 guesses, alone and beside
seven others, is compared with what the model writes without guesses. No pass takes time, so the
guard lets all guesses be made. 1000 texts are the whole of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("reference", "")]

import conftest  # noqa: E402, F401  (which sets sys.path)
import export  # noqa: E402
import guess_layers  # noqa: E402
import live_guesses  # noqa: E402
import talkers  # noqa: E402

CONTEXT, BATCH = 160, 25  # positions; texts of a model


def checkpoint(name: str, seed: int, out: Path) -> tuple[Path, list[int]]:
    """A model of the family, with letters for tokens, and a prompt."""
    directory = live_guesses.make(name, seed, out)
    golden = json.loads((directory / "golden.json").read_text())
    guess_layers.teach(directory, golden["prompt"][-2:] + golden["greedy"])
    plain = out / "plain.bin"
    assert export.main([str(directory), str(plain), "--dtype", "f32"]) == 0
    model = talkers.make(plain, out / "model.bin", talkers.PLAIN, CONTEXT)
    return model, golden["prompt"]


def requests(rng: random.Random, prompt: list[int]) -> list[dict]:
    lines = []
    for i in range(BATCH):
        line = {"id": i, "tokens": prompt[: 96 - 2 * i]}
        line["max_tokens"] = rng.choice((1, 5, 40, 40, CONTEXT))
        line |= rng.choice(
            ({"temperature": 0}, {"temperature": 0.8}, {"temperature": 1.5, "top_p": 1})
        )
        if rng.random() < 0.4:
            line |= {"repeat_penalty": 1.2, "frequency_penalty": 0.2}
        if rng.random() < 0.4:
            letters = [rng.choice(talkers.LETTERS) for _ in range(3)]
            line["stop"] = [letters[0], letters[1] + letters[2]]
        lines.append({**line, "seed": rng.randrange(10**6)})
    return lines


def texts(model: Path, path: Path, places: int, most: int) -> tuple[list[str], int]:
    """The lines that a batch gives, and how many guesses were right."""
    command = [ROOT / "run", model, "--batch", path, "-np", places, "-c", CONTEXT, "-t", 1]
    command += ["-ctk", "f32", "-ctv", "f32", "--guess", most]
    env = {**os.environ, **(guess_layers.STOPPED if most else {})}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    right = done.stderr.rpartition("accepted ")[2] if "accepted " in done.stderr else "0"
    return done.stdout.splitlines(), int(right.replace(",", ""))


def campaign(n: int, seed: int) -> tuple[int, int, int]:
    """Texts compared, those that differed, and right guesses."""
    rng, compared, differed, right = random.Random(seed), 0, 0, 0
    names = rng.sample(live_guesses.NAMES, len(live_guesses.NAMES))
    while compared < n:
        name = names[compared // BATCH % len(names)]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            with contextlib.redirect_stdout(None):
                model, prompt = checkpoint(name, rng.randrange(10**6), out)
            (out / "requests").write_text(
                "".join(json.dumps(line) + "\n" for line in requests(rng, prompt))
            )
            want, _ = texts(model, out / "requests", 1, 0)
            for places in (1, 8):
                most = rng.choice((1, 3, 7))
                found, accepted = texts(model, out / "requests", places, most)
                right += accepted
                for line in [line for line, other in zip(want, found) if line != other]:
                    differed += 1
                    print(f"{name}, {most} guesses, -np {places}: not {line}", flush=True)
                assert len(want) == len(found) == BATCH
            compared += BATCH
    return compared, differed, right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    compared, differed, right = campaign(args.n, args.seed)
    print(f"guesses: {compared} texts twice, {differed} differ, {right} guesses right; ", end="")
    print(f"seed {args.seed}")
    return int(differed > 0 or right == 0)


if __name__ == "__main__":
    sys.exit(main())
