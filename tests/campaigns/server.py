"""server.py HOURS [--seed S]: a server's days in time-lapse.

One request for each five seconds of HOURS, more by day and fewer by night, as fast as they go:
chats, completions, vectors, streams, log-probabilities, stop strings, and requests that are wrong;
clients that hang up, that send half, that send or read slowly. Each answer comes once and is what
the module gives alone for its request (some are compared with ./run too); afterwards no place is
taken, nothing was logged, and memory and descriptors are where they were."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path

import served

sys.path.append(str(served.ROOT / "tests" / "support"))

import httpx  # noqa: E402
import numpy as np  # noqa: E402
from servers import Server  # noqa: E402

import heads  # noqa: E402
from heads._batch import BOUNDS, GenerateJob, Sampling  # noqa: E402

AN_HOUR = 720  # requests
DISTINCT = 600
CLIENTS, PARALLEL, QUEUE = 24, 8, 20  # clients at the height of the day
JSON = {"content-type": "application/json"}
WRONG = [  # path, body, status, param
    ("completions", {"prompt": "a " * 900}, 400, None),
    ("completions", {"prompt": "a", "beams": 2}, 400, "beams"),
    ("completions", {"prompt": [[9**9]]}, 400, None),
    ("completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
    ("completions", {"prompt": "a", "model": "other"}, 404, "model"),
    ("chat/completions", {"messages": "a"}, 400, "messages"),
    ("chat/completions", {"messages": [{"role": "cat", "content": ""}]}, 400, "messages[0]"),
    ("embeddings", {"input": []}, 400, "input"),
    ("completions", b'{"prompt": "a"', 400, None),
]  # fmt: skip


def day(hour: float) -> float:
    """How busy it is so many hours after noon: 1 in the afternoon, 0 in the early morning."""
    return (1 + math.cos((hour - 4) / 24 * 2 * math.pi)) / 2


# ---- what an answer should be ----


class Expected:
    """What the module gives for a request, alone."""

    def __init__(self, model: heads.Model):
        self.model = model

    def choices(self, path: str, body: dict) -> list[tuple]:
        """Text, why it ended, and the log-probabilities of what was generated, of each choice."""
        is_chat, found = path.endswith("chat/completions"), []
        prompts = [body.get("messages") or body["prompt"]]
        if not is_chat and isinstance(body["prompt"], list) and isinstance(body["prompt"][0], str):
            prompts = body["prompt"]
        for prompt in prompts:
            ids = self.ids(prompt, is_chat)
            said = (
                self.model.decode(ids)
                if body.get("echo") and not isinstance(prompt, str)
                else prompt
            )
            for i in range(body.get("n", 1)):
                text, stopped, likely = self.one(ids, body, is_chat, i)
                reason = "stop" if stopped in ("eos", "stop") else "length"
                found.append(((said if body.get("echo") else "") + text, reason, likely))
        return found

    def ids(self, prompt, is_chat: bool) -> list[int]:
        if is_chat:
            return self.model.chat_ids(prompt)
        return self.model.encode(prompt) if isinstance(prompt, str) else prompt

    def one(self, ids: list[int], body: dict, is_chat: bool, choice: int) -> tuple:
        options = {name: body[name] for name in BOUNDS if name in body}
        sampling = Sampling.usual(is_chat, **{**options, "seed": body["seed"] + choice})
        stop = body.get("stop", [])
        stops = [s.encode() for s in ([stop] if isinstance(stop, str) else stop)]
        n_top = body.get("top_logprobs", 0) if is_chat else body.get("logprobs")
        n_top = n_top if body.get("logprobs") is not None else None
        job = GenerateJob(self.model, ids, body["max_tokens"], sampling, stops, is_chat, n_top)
        self.model._run([job], 1, False)
        return job.new_text(), job.stopped, [x.log_probability for x in job.likely]

    def vectors(self, body: dict) -> bytes:
        given = body["input"]
        return self.model.embed([given] if isinstance(given, str) else given).tobytes()


def log_probabilities(choice: dict) -> list[float]:
    found = choice.get("logprobs") or {}
    if "content" in found:
        return [x["logprob"] for x in found["content"]]
    return found.get("token_logprobs", [])


def choices_of(answer: dict) -> list[tuple]:
    return [
        (
            c["message"]["content"] if "message" in c else c["text"],
            c["finish_reason"],
            log_probabilities(c),
        )
        for c in answer["choices"]
    ]


def choices_of_stream(lines: list[str], n: int) -> list[tuple]:
    """The same of server-sent events, of which nothing may be missing or come twice."""
    assert lines.count("data: [DONE]") == 1 and lines[-1] == "data: [DONE]", lines[-3:]
    found = [["", None, []] for _ in range(n)]
    for line in lines[:-1]:
        for c in json.loads(line[6:])["choices"]:
            choice = found[c["index"]]
            assert choice[1] is None, line
            choice[0] += (c["delta"].get("content") or "") if "delta" in c else c["text"]
            choice[1] = c["finish_reason"]
            choice[2] += log_probabilities(c)
    return [tuple(choice) for choice in found]


def vectors_of(answer: dict) -> bytes:
    rows = [x["embedding"] for x in answer["data"]]
    decode = lambda x: base64.b64decode(x) if isinstance(x, str) else np.float32(x).tobytes()  # noqa: E731
    return b"".join(map(decode, rows))


# ---- clients ----


class Day:
    """The clients of one server."""

    def __init__(self, url: str, expected: Expected, requests: list[tuple[str, dict]], seed: int):
        self.url, self.requests, self.rng = url, requests, random.Random(seed)
        self.expected = lru_cache(None)(lambda i: self._expected(expected, *requests[i]))
        self.counts: Counter = Counter()
        self.texts = [0, 0]  # of requests whose answer was read, and of those that were cut off

    @staticmethod
    def _expected(expected: Expected, path: str, body: dict):
        vectors = path.endswith("embeddings")
        return expected.vectors(body) if vectors else expected.choices(path, body)

    async def run(self, begin: float, end: float) -> None:
        """The requests from one hour to another, the clients of a half of an hour side by side."""
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as http:
            for at in np.arange(begin, end, 0.5):
                busy, part = day(at + 0.25), min(0.5, end - at)
                left = iter(range(round(2 * AN_HOUR * part * busy)))
                clients = 1 + round((CLIENTS - 1) * busy)
                await asyncio.gather(*(self._client(http, left) for _ in range(clients)))
                assert (await http.get("/health")).json() == {"status": "ok"}

    async def _client(self, http: httpx.AsyncClient, left) -> None:
        for _ in left:
            kind = self.rng.choices(
                ["whole", "slow reader", "slow sender", "hung up", "half sent", "wrong"],
                [70, 5, 4, 12, 3, 6],
            )[0]
            self.counts["requests"] += 1
            if kind == "wrong":
                await self._wrong(http)
            elif kind == "half sent":
                await self._half_sent()
            elif kind == "hung up":
                await self._hang_up(http)
            else:
                await self._whole(http, kind)
            self.counts[kind] += 1

    async def _wrong(self, http) -> None:
        path, body, status, param = self.rng.choice(WRONG)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await http.post(f"/v1/{path}", content=data, headers=JSON)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, param), (body, answer.text)

    def _sent(self, data: bytes, slowly: bool):
        async def pieces():
            for at in range(0, len(data), 1 + len(data) // 4):
                yield data[at : at + 1 + len(data) // 4]
                await asyncio.sleep(0.01)

        return pieces() if slowly else data

    async def _whole(self, http, kind: str) -> None:
        i = self.rng.randrange(len(self.requests))
        path, body = self.requests[i]
        want, data = self.expected(i), json.dumps(body).encode()
        while True:
            sent = self._sent(data, kind == "slow sender")
            async with http.stream("POST", path, content=sent, headers=JSON) as answer:
                if answer.status_code == 429:
                    self.counts["told to wait"] += 1
                    await asyncio.sleep(self.rng.random() / 10)
                    continue
                got = b""
                async for piece in answer.aiter_bytes(64 if kind == "slow reader" else None):
                    got += piece
                    if kind == "slow reader":
                        await asyncio.sleep(0.002)
                assert answer.status_code == 200, (body, got)
                break
        if path.endswith("embeddings"):
            found, n = vectors_of(json.loads(got)), len(want)
            self.texts[0] += len(json.loads(got)["data"])
        else:
            stream, n = body.get("stream"), len(want)
            lines = [line for line in got.decode().split("\n\n") if line] if stream else []
            found = choices_of_stream(lines, n) if stream else choices_of(json.loads(got))
            if body.get("echo") and body.get("logprobs") is not None:  # the prompt's come first
                found = [(f[0], f[1], f[2][len(f[2]) - len(w[2]) :]) for f, w in zip(found, want)]
                self.texts[0] += n // body.get("n", 1)  # are scored
            self.texts[0] += n
        assert found == want, (path, body, found, want)

    async def _hang_up(self, http) -> None:
        path, body = self.requests[self.rng.randrange(len(self.requests))]
        pieces, patience = self.rng.randrange(6), self.rng.random() / 20
        self.texts[1] += 12

        async def read() -> None:
            async with http.stream("POST", path, json=body) as answer:
                async for _ in answer.aiter_raw():
                    nonlocal pieces
                    pieces -= 1
                    if pieces < 0:
                        return

        try:
            await asyncio.wait_for(read(), patience)
        except asyncio.TimeoutError:
            pass

    async def _half_sent(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        )
        text = head + 'content-length: 999\r\n\r\n{"prompt": "a dog'
        writer.write(text[: self.rng.randrange(1, len(text))].encode())
        await writer.drain()
        writer.close()


# ---- the whole ----


def compare_with_run(path: Path, requests: list, expected: Expected) -> int:
    """Some of the module's texts with those of ./run; how many."""
    n = 0
    for where, body in requests:
        simple = isinstance(body.get("prompt"), str) and not {"stop", "echo", "n"} & set(body)
        if not simple or n == 20 or "\0" in body["prompt"]:
            continue
        options = ["-p", body["prompt"], "-s", body["seed"], "-n", body["max_tokens"]]
        names = {
            "temperature": "--temp",
            **{x: "--" + x.replace("_", "-") for x in BOUNDS if x != "seed"},
        }
        names["temperature"] = "--temp"
        for name in set(names) & set(body):
            options += [names[name], body[name]]
        command = [served.ROOT / "run", path, *options]
        done = subprocess.run(
            [str(x) for x in command], capture_output=True, check=True, timeout=60
        )
        said = done.stdout.decode("utf-8", "replace")
        prompt = expected.model.decode(expected.model.encode(body["prompt"]))
        assert said == prompt + expected.choices(where, body)[0][0], (body, said)
        n += 1
    return n


def level(server: Server) -> tuple[int, int]:
    """Memory and descriptors, once the clients that hung up are noticed."""
    deadline = time.monotonic() + 60
    while server.metric("texts_running") + server.metric("texts_waiting"):
        assert time.monotonic() < deadline, "a place is still taken"
        time.sleep(0.1)
    return server.resident(), server.descriptors()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("hours", type=float)
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    rng, start = random.Random(o.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = served.checkpoint(Path(folder))
        requests = [served.request(rng) for _ in range(DISTINCT)]
        with heads.Model(path, threads=1) as model:
            expected = Expected(model)
            compared = compare_with_run(path, requests, expected)
            server = Server(path, "--parallel", PARALLEL, "--queue", QUEUE)
            try:
                clients = Day(server.url, expected, requests, o.seed)
                asyncio.run(clients.run(0, o.hours / 4))
                before = level(server)
                asyncio.run(clients.run(o.hours / 4, o.hours))
                after = level(server)
                done = server.metric("texts_total") + server.metric("cancelled_total")
            finally:
                said = server.stop()
    counts = ", ".join(f"{n:,} {kind}" for kind, n in clients.counts.items())
    print(
        f"{o.hours:g} hours in {time.monotonic() - start:.0f} s: {counts}; {done:,} texts; "
        f"{compared} texts compared with ./run; memory {before[0] >> 10:,} KiB, then "
        f"{after[0] >> 10:,}; descriptors {before[1]}, then {after[1]}"
    )
    # asyncio's own warning of what it writes to a client that has gone
    said = [line for line in said.splitlines() if line != "socket.send() raised exception."]
    assert not said, said
    read, cut = clients.texts
    assert read <= done <= read + cut, (read, done, cut)
    assert after[0] < 1.03 * before[0] + (2 << 20) and after[1] <= before[1] + PARALLEL


if __name__ == "__main__":
    main()
