"""What http_bodies.py and server.py send: a small checkpoint that talks and makes vectors, and requests that
are right, of every kind."""

from __future__ import annotations

import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
sys.path.append(str(ROOT / "python"))  # PYTHONPATH may have a library with sanitizers

import checkpoints  # noqa: E402
import numpy as np  # noqa: E402
import talkers  # noqa: E402

CONTEXT = 160
WORDS = "a dog the sea two birds was calm and it ran 42 home. who? yes: no, again".split()


def checkpoint(folder: Path) -> Path:
    """served.bin in this folder."""
    plain, path = folder / "plain.bin", folder / "served.bin"
    plain.write_bytes(checkpoints.random_model(context=CONTEXT, n_layers=2, n_embd=32, d_ff=48))
    talkers.make(plain, path, talkers.PLAIN, CONTEXT)
    meta, tensors = checkpoints.parse(path.read_bytes())
    for name, value in (("pooling", 1), ("pooling_unit", 1)):
        meta[f"model.{name}"] = checkpoints.Meta(checkpoints.I32, 1, np.int32(value).tobytes())
    path.write_bytes(checkpoints.build(meta, tensors))
    return path


def text(rng: random.Random, most: int = 12) -> str:
    said = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))
    return said + rng.choice(["", "", "", " 😀", "é\n", "\0"])


def messages(rng: random.Random) -> list[dict]:
    found = [{"role": "system", "content": text(rng, 5)}] if rng.random() < 0.3 else []
    for _ in range(rng.randrange(2)):
        found += [
            {"role": "user", "content": text(rng, 6)},
            {"role": "assistant", "content": text(rng, 6)},
        ]
    return [*found, {"role": "user", "content": text(rng, 8)}]


def sampling(rng: random.Random) -> dict:
    options = {
        "temperature": rng.choice([0, 0.5, 0.8, 1.5]),
        "top_p": rng.choice([1, 0.9, 0.5]),
        "top_k": rng.choice([0, 5]),
        "min_p": rng.choice([0, 0.05]),
        "repeat_penalty": rng.choice([1, 1.2]),
    }
    return {name: value for name, value in options.items() if rng.random() < 0.3}


def request(rng: random.Random) -> tuple[str, dict]:
    """A path and a body that are right. Each has a seed, so that its answer is known."""
    kind = rng.choice(["completions", "completions", "chat/completions", "embeddings"])
    if kind == "embeddings":
        several = [text(rng) for _ in range(rng.randrange(1, 6))]
        body = {"input": rng.choice([several, several[0]])}
        body |= rng.choice([{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
        return f"/v1/{kind}", body
    body = {"seed": rng.randrange(2**40), "max_tokens": rng.randrange(1, 40), **sampling(rng)}
    if rng.random() < 0.4:
        body["stream"] = True
    if rng.random() < 0.2 and body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.3:
        body["stop"] = rng.choice(["e", ["ab", " "], "\n", ["no such text"]])
    if rng.random() < 0.2:
        body["n"] = rng.randrange(1, 4)
    if kind == "completions":
        prompts = [text(rng) for _ in range(rng.randrange(1, 4))]
        body["prompt"] = rng.choice([prompts, prompts[0], prompts[0], [5, 6, 7, 8]])
        if rng.random() < 0.2:
            body["logprobs"] = rng.randrange(4)
        if rng.random() < 0.1:
            body["echo"] = True
    else:
        body["messages"] = messages(rng)
        if rng.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": rng.randrange(3)}
    return f"/v1/{kind}", body
