"""soak.py MODEL [SECONDS]: 32 clients that stream for two minutes and hang up at random. Every whole
answer must have the bytes that its request gives alone, no place may be lost, and memory must stay
what it was. Prints what part of --batch's speed the server reaches at the same parallelism."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from conftest import ROOT, Server

CLIENTS = 32
PROMPTS = ["Once upon a time", "The sea was calm, and", "To bake bread, you need", "One day, a dog"]


def body(i: int, tokens: int) -> dict:
    return {"prompt": f"{PROMPTS[i % 4]} ({i % 50})", "max_tokens": tokens, "seed": i % 50}


async def ask(http: httpx.AsyncClient, i: int, tokens: int, patience: int | None) -> str | None:
    """The text; None if the client hung up after `patience` pieces."""
    text, pieces = "", 0
    async with http.stream("POST", "/v1/completions", json={**body(i, tokens), "stream": True}) as r:
        assert r.status_code == 200, await r.aread()
        async for line in r.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                pieces += 1
            if pieces == patience:
                return None
    assert line == "" or line == "data: [DONE]", line
    return text


def batch_texts(model: str, requests: list[dict], folder: Path) -> tuple[list[str], float]:
    """What ./run --batch gives, and its seconds."""
    (folder / "in").write_text("".join(json.dumps(r) + "\n" for r in requests))
    start = time.monotonic()
    done = subprocess.run([ROOT / "run", model, "--batch", folder / "in", "-np", str(CLIENTS)],
                          capture_output=True, check=True)  # fmt: skip
    seconds = time.monotonic() - start
    return [json.loads(line)["text"] for line in done.stdout.splitlines()], seconds


async def speed(url: str, n: int, tokens: int) -> float:
    """Seconds for n requests of as many clients as there are places."""
    numbers = iter(range(n))
    start = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:

        async def client() -> None:
            for i in numbers:
                await ask(http, i, tokens, None)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.monotonic() - start


async def soak(url: str, want: list[str], seconds: float) -> tuple[int, int]:
    """How many answers were read to their end, and how many were not."""
    rng, whole, cut = random.Random(1), 0, 0
    end = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:

        async def client() -> None:
            nonlocal whole, cut
            while time.monotonic() < end:
                i = rng.randrange(10_000)
                text = await ask(http, i, 40, rng.choice([None, None, rng.randrange(1, 20)]))
                if text is None:
                    cut += 1
                else:
                    assert text == want[i % 100], (i, text, want[i % 100])
                    whole += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return whole, cut


def resident(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def main() -> None:
    model, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 120
    with tempfile.TemporaryDirectory() as folder:
        want, _ = batch_texts(model, [body(i, 40) for i in range(100)], Path(folder))
        server = Server(model, "--parallel", CLIENTS)
        asyncio.run(soak(server.url, want, seconds / 4))
        before = resident(server)
        whole, cut = asyncio.run(soak(server.url, want, seconds * 3 / 4))
        time.sleep(1)
        after = resident(server)
        running = server.metric("texts_running") + server.metric("texts_waiting")
        print(f"{whole} answers read, {cut} cut off; resident {before} MB, then {after} MB")
        assert running == 0 and whole > CLIENTS and cut > 0 and after < 1.05 * before + 8
        ratios = []
        for _ in range(3):
            _, alone = batch_texts(model, [body(i, 64) for i in range(128)], Path(folder))
            ratios.append(alone / asyncio.run(speed(server.url, 128, 64)))
        print(f"of --batch's speed: {', '.join(f'{100 * r:.0f} %' for r in ratios)}")
        server.stop()


if __name__ == "__main__":
    main()
