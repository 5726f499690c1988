"""soak.py SECONDS [--clients N] [--model FILE] [--seed S]: a server under more clients than places.

Half of the clients break off in the middle of a stream; of the others some read slowly, some hold
connections without a word, and the rest read answers, whole or streamed. Each answer is what ./run
writes with its seed. Once the clients have gone no place is taken, nothing was logged, and memory
and descriptors are where they were after a third of the time."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

import httpx  # noqa: E402
from servers import Server  # noqa: E402

DISTINCT, PARALLEL = 60, 8
KINDS = ["breaks off", "reads"] * 3 + ["breaks off", "reads slowly", "breaks off", "is idle"]
SMALL = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
BEGINNINGS = ["Once upon a time", "One day a little wolf", "My dog likes to", "Tom and Mia were"]


class Requests:
    """Prompts with seeds, and what ./run writes after them."""

    def __init__(self, model: Path, rng: random.Random):
        self.bodies, self.want = [], []
        for _ in range(DISTINCT):
            prompt, seed, n = rng.choice(BEGINNINGS), rng.randrange(10**6), rng.randrange(1, 300)
            self.bodies.append({"prompt": prompt, "seed": seed, "max_tokens": n})
            command = [ROOT / "run", model, "-p", prompt, "-s", seed, "-n", n, "--no-echo"]
            done = subprocess.run(list(map(str, command)), capture_output=True, check=True)
            self.want.append(done.stdout.decode("utf-8", "replace"))


class Clients:
    def __init__(self, server: Server, requests: Requests, n: int, seed: int):
        self.server, self.requests, self.n = server, requests, n
        self.rng, self.counts = random.Random(seed), Counter()

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        kinds = [KINDS[i % len(KINDS)] for i in range(self.n)]
        options = dict(base_url=self.server.url, timeout=300)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        narrow = httpx.AsyncHTTPTransport(socket_options=SMALL, limits=limits)
        async with httpx.AsyncClient(limits=limits, **options) as http:
            async with httpx.AsyncClient(transport=narrow, **options) as slow:
                ways = {"reads slowly": slow}
                tasks = (self._client(kind, ways.get(kind, http), end) for kind in kinds)
                await asyncio.gather(*tasks)

    async def _client(self, kind: str, http: httpx.AsyncClient, end: float) -> None:
        await asyncio.sleep(self.rng.random())
        while time.monotonic() < end:
            if kind == "is idle":
                await self._sit(end)
            else:
                await self._ask(kind, http)

    async def _sit(self, end: float) -> None:
        """On a connection, after nothing or half a head, until the server closes it or for good."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        if self.rng.random() < 0.5:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: local")
        until = min(end, time.monotonic() + self.rng.choice([2, 45]))
        await asyncio.sleep(max(0, until - time.monotonic()))
        writer.close()
        self.counts["idle connections"] += 1

    async def _ask(self, kind: str, http: httpx.AsyncClient) -> None:
        i = self.rng.randrange(DISTINCT)
        stream = kind != "reads" or self.rng.random() < 0.5
        body = {**self.requests.bodies[i], "stream": stream}
        left = self.rng.randrange(40) if kind == "breaks off" else None  # pieces
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code == 429:
                self.counts["told to wait"] += 1
                await asyncio.sleep(self.rng.random())
                return
            assert answer.status_code == 200, await answer.aread()
            got = b""
            async for piece in answer.aiter_raw(64 if kind == "reads slowly" else None):
                got += piece
                if kind == "reads slowly":
                    await asyncio.sleep(0.001)
                if left is not None and got.count(b"data: ") > left:
                    break
        if left is not None and b"[DONE]" not in got:
            self.counts["broken off"] += 1
            return
        text = _streamed(got) if stream else json.loads(got)["choices"][0]["text"]
        assert text == self.requests.want[i], (body, text, self.requests.want[i])
        self.counts["answers of ./run's" + (", slowly read" if kind == "reads slowly" else "")] += 1


def _streamed(got: bytes) -> str:
    lines = [line[6:] for line in got.decode().split("\n\n") if line]
    assert lines.count("[DONE]") == 1 and lines[-1] == "[DONE]", lines[-2:]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


def level(server: Server) -> tuple[int, int]:
    """Memory and descriptors, once the clients that went away are noticed."""
    deadline = time.monotonic() + 60
    while server.metric("texts_running") + server.metric("texts_waiting"):
        assert time.monotonic() < deadline, "a place is still taken"
        time.sleep(0.1)
    return server.resident(), server.descriptors()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "stories.bin")
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    requests = Requests(o.model, random.Random(o.seed))
    server = Server(o.model, "--parallel", PARALLEL)
    try:
        clients = Clients(server, requests, o.clients, o.seed)
        asyncio.run(clients.run(o.seconds / 3))
        before = level(server)
        asyncio.run(clients.run(o.seconds * 2 / 3))
        after = level(server)
    finally:
        said = server.stop()
    counts = ", ".join(f"{n:,} {kind}" for kind, n in sorted(clients.counts.items()))
    print(
        f"{o.clients} clients for {o.seconds:g} s: {counts}; no place lost; memory "
        f"{before[0] >> 10:,} KiB, then {after[0] >> 10:,}; descriptors {before[1]}, then {after[1]}"
    )
    # asyncio's own warning of what it writes to a client that has gone
    said = [line for line in said.splitlines() if line != "socket.send() raised exception."]
    assert not said, said
    assert min(clients.counts.values()) > 0 and len(clients.counts) >= 4, clients.counts
    assert after[0] < 1.03 * before[0] + (2 << 20) and after[1] <= before[1] + PARALLEL


if __name__ == "__main__":
    main()
