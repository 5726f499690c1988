"""http_bodies.py N [--seed S]: N mutated requests against the server's application, in this process.

Bodies are changed as trees and as bytes; headers, methods, paths and sizes are changed; bodies come
in pieces or in part, and clients hang up. Each answer is a 2xx that is whole, or a 4xx whose body is
an error in OpenAI's shape; no request hangs; and between them a request that is right always gets
the same bytes. Request i with seed S is request 0 with seed S + i, so `1 --seed S+i` repeats it."""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import served

import heads
from heads.server.app import create_app
from heads.server.bodies import MAX_BODY
from heads.server.engine import Engine

BESIDE = 8  # requests at a time
EVERY = 400  # requests between two that are right
NAMES = """model prompt messages max_tokens max_completion_tokens n stop stream stream_options seed
temperature top_p top_k min_p repeat_penalty echo logprobs top_logprobs role content name user input
type text encoding_format dimensions logit_bias tools response_format chat_template_kwargs
include_usage enable_thinking lang best_of suffix tool_choice tool_calls tool_call_id function
arguments parameters parallel_tool_calls frequency_penalty instructions max_output_tokens call_id
output tokens reasoning_content x""".split()
LEAVES = [None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**70, 1.5, -1e300, float("inf")]
LEAVES += [float("nan"), "", "a", "\0", "user", "system", "\ud800", "é" * 50, "a " * 400, [], {}]
LEAVES += [[5, 6], ["a", 5], [[]], [[5], [6]], {"type": "text", "text": "a"}, "served", "fr_XX"]
TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}
LEAVES += [TOOL, [TOOL], "tool", "required", {"type": "json_object"}, {"5": 1.5}]
LEAVES += [[{"id": "a", "type": "function", "function": {"name": "a", "arguments": "{}"}}]]
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json")]
WHOLE = json.dumps({"prompt": "a dog", "max_tokens": 12, "seed": 3, "logprobs": 2}).encode()


# ---- mutations ----


def leaf(rng: random.Random):
    return copy.deepcopy(rng.choice(LEAVES))


def nodes(tree, at: tuple = ()) -> list[tuple]:
    """The places in a tree."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    return [at, *(place for key, value in inner for place in nodes(value, (*at, key)))]


def put(tree, at: tuple, value):
    if not at:
        return value
    node = tree
    for key in at[:-1]:
        node = node[key]
    node[at[-1]] = value
    return tree


def get(tree, at: tuple):
    for key in at:
        tree = tree[key]
    return tree


def changed_tree(rng: random.Random, tree):
    at = rng.choice(nodes(tree))
    node, kind = get(tree, at), rng.randrange(6)
    if kind == 0:
        return put(tree, at, leaf(rng))
    if kind == 1 and isinstance(node, dict):
        node[rng.choice(NAMES)] = leaf(rng)
    elif kind == 2 and node and isinstance(node, (dict, list)):
        del node[rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))]
    elif kind == 3:
        return put(
            tree, at, rng.choice([[node], {"x": node}, [node, node], str(node), [node] * 12])
        )
    elif kind == 4 and isinstance(node, dict) and node:
        node[rng.choice(NAMES)] = node.pop(rng.choice(list(node)))
    else:  # another part of the tree
        return put(tree, at, copy.deepcopy(get(tree, rng.choice(nodes(tree)))))
    return tree


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    at, n, kind = rng.randrange(len(data) + 1), rng.randrange(1, 9), rng.randrange(6)
    if kind == 0:
        return data[:at] + bytes(rng.randrange(256) for _ in range(n)) + data[at + n :]
    if kind == 1:
        return data[:at] + data[at + n :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + data[at : at + n] * rng.choice([2, 50]) + data[at + n :]
    if kind == 4:
        noise = [
            b"\xef\xbb\xbf",
            b"[" * 5000,
            b"\\ud800",
            b"\0",
            b"9" * 5000,
            b"1e999",
            b"NaN",
            b"\xff",
        ]
        return data[:at] + rng.choice(noise) + data[at:]
    return data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"]))


def changed_headers(rng: random.Random, headers: list) -> list:
    name = rng.choice(
        [b"content-type", b"host", b"content-length", b"authorization", b"accept", b"x"]
    )
    values = {
        b"content-type": [
            b"",
            b"application/json; charset=utf-16",
            b"text/plain",
            b"application/JSON",
        ],
        b"host": [
            b"",
            b"[::1",
            b"[::1]:80",
            b"localhost:x",
            b"evil.example",
            b"localhost:99999",
            b"@",
        ],
        b"content-length": [b"0", b"5", b"-1", b"99999999999", b"x"],
    }
    noise = bytes(rng.choice(range(33, 256)) for _ in range(rng.randrange(40)))
    value = rng.choice([*values.get(name, [b"Bearer secret"]), noise])
    kept = [pair for pair in headers if pair[0] != name or rng.random() < 0.2]
    return kept if rng.random() < 0.2 else [*kept, (name, value)]


class Sent:
    """A request: what a client sends, in which pieces, and when it goes away."""

    def __init__(self, rng: random.Random):
        self.path, body = of_kind(rng)
        self.method, self.hangs_up, self.cut = "POST", None, False
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8])):
            body = changed_tree(rng, body)
        try:
            data = json.dumps(body, ensure_ascii=rng.random() < 0.7).encode()
        except UnicodeEncodeError:
            data = json.dumps(body).encode()
        for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 5])):
            data = changed_bytes(rng, data)
        self.headers = [*HEADERS]
        if rng.random() < 0.1:
            self.headers = changed_headers(rng, self.headers)
        if rng.random() < 0.004:
            data = data + b" " * rng.choice([MAX_BODY - len(data), MAX_BODY, 20 * MAX_BODY])
        if rng.random() < 0.03:
            self.path = rng.choice(
                ["/", "/health", "/metrics", "/v1/models", "/v1/models/%00x", "//", ""]
            )
            self.path += rng.choice(["", "/", "?a=%ff", "\udcff", "é" * 200])
        if rng.random() < 0.05:
            self.method = rng.choice(["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "BREW"])
        size = rng.choice([len(data) + 1, 1 << 16, 7 if len(data) < 2000 else 1 << 16])
        self.pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        if rng.random() < 0.05:
            self.cut = True  # in the middle of its body
            del self.pieces[rng.randrange(len(self.pieces)) :]
        elif rng.random() < 0.05:
            self.hangs_up = rng.randrange(4)  # after so many messages of the answer


# ---- one request ----


async def answer(app, sent: Sent) -> tuple[int, bytes, bool]:
    """The status, the body, and whether it is whole."""
    path, _, query = sent.path.partition("?")
    raw = path.encode("utf-8", "surrogateescape")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": unquote(raw.decode("latin-1")),
        "raw_path": raw,
        "query_string": query.encode(),
        "root_path": "",
        "headers": sent.headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }
    pieces, gone, got = list(sent.pieces), asyncio.Event(), []
    if sent.hangs_up == 0:
        gone.set()

    async def receive() -> dict:
        if pieces:
            body = pieces.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(pieces) or sent.cut}
        if not sent.cut:
            await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        got.append(message)
        if not message.get("more_body", True) or len(got) == sent.hangs_up:
            gone.set()
        await asyncio.sleep(0)

    await app(scope, receive, send)
    whole = bool(got) and got[-1]["type"] == "http.response.body" and not got[-1].get("more_body")
    body = b"".join(message.get("body", b"") for message in got[1:])
    return (got[0]["status"] if got else 0), body, whole


def check_error(error) -> None:
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str) and len(error["message"]) > 5, error
    assert isinstance(error["type"], str), error
    json.dumps(error, ensure_ascii=False).encode()


def check(sent: Sent, status: int, body: bytes, whole: bool) -> str:
    """What kind of answer it is. Errors: AssertionError, it is none that may be."""
    if sent.cut or sent.hangs_up is not None:
        assert status < 500, (status, body)
        return "cut off"
    assert whole and (200 <= status < 300 or 400 <= status < 500), (status, body[:500])
    if sent.method == "HEAD":
        return "HEAD"
    if body == b"Invalid host header":
        return "no such host"
    if status >= 400:
        check_error(json.loads(body)["error"])
    elif body.startswith(b"data: "):
        events = body.decode().split("\n\n")
        assert events.pop() == "" and events[-1] == "data: [DONE]", body
        for event in events[:-1]:
            assert json.loads(event[6:])["choices"] is not None
    elif body.startswith(b"event: "):
        events = [event.partition("\ndata: ") for event in body.decode().split("\n\n")[:-1]]
        told = [json.loads(data) for _, _, data in events]
        assert [f"event: {x['type']}" for x in told] == [name for name, _, _ in events]
        assert [x["sequence_number"] for x in told] == list(range(len(told)))
        assert told[-1]["type"] in ("response.completed", "response.incomplete", "error"), body
    elif sent.path.startswith("/v1/"):
        assert json.loads(body)["object"]
    return str(status)


def of_kind(rng: random.Random) -> tuple[str, dict]:
    """A path and a body that are right."""
    kind = rng.randrange(8)
    if kind > 1:
        return served.request(rng)
    if kind == 1:
        ids = [rng.randrange(20) for _ in range(rng.randrange(1, 9))]
        text = {rng.choice(["content", "prompt"]): "a dog", "add_special": True}
        return rng.choice([("/tokenize", text), ("/detokenize", {"tokens": ids})])
    call = {"type": "function_call", "call_id": "a", "name": "a", "arguments": "{}"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a dog"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]},
        call,
        {"type": "function_call_output", "call_id": "a", "output": "b"},
    ]
    body = {"input": rng.choice(["a dog", items[:1], items]), "max_output_tokens": 9, "seed": 1}
    if rng.random() < 0.5:
        body["stream"] = True
    if rng.random() < 0.3:
        body |= {"tools": [{"type": "function", "name": "a"}], "instructions": "be brief"}
    if rng.random() < 0.2:
        body["text"] = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    return "/v1/responses", body


def right_request() -> Sent:
    sent = Sent(random.Random(0))
    sent.path, sent.method, sent.hangs_up, sent.cut = "/v1/completions", "POST", None, False
    sent.headers, sent.pieces = [*HEADERS], [WHOLE]
    return sent


async def campaign(engine: Engine, n: int, seed: int) -> Counter:
    app, kinds, same = create_app(engine, hosts=("localhost", "[::1]")), Counter(), []

    async def ask(number: int) -> None:
        sent = Sent(random.Random(number))
        try:
            kinds[check(sent, *await asyncio.wait_for(answer(app, sent), 60))] += 1
        except Exception:
            print(f"python tests/campaigns/http_bodies.py 1 --seed {number}", file=sys.stderr)
            print(sent.method, sent.path, sent.headers, sent.pieces[:3], file=sys.stderr)
            raise

    async def ask_right() -> None:
        status, body, _ = await asyncio.wait_for(answer(app, right_request()), 60)
        same.append(json.loads(body)["choices"])
        assert status == 200 and same[-1] == same[0], body

    for at in range(0, n, BESIDE):
        asked = [ask(seed + i) for i in range(at, min(at + BESIDE, n))]
        await asyncio.gather(*asked, *([ask_right()] if at % EVERY == 0 else []))
        assert len(os.listdir("/proc/self/fd")) < 100
    await ask_right()
    deadline = time.monotonic() + 30
    while (engine.listeners or engine.new) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not engine.listeners and engine.is_alive(), "a request that was given up has its place"
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    sys.setswitchinterval(5e-4)
    with tempfile.TemporaryDirectory() as folder:
        model = heads.Model(served.checkpoint(Path(folder)), threads=1)
        engine = Engine(model, 4, 200)
        engine.start()
        start = time.monotonic()
        kinds = asyncio.run(campaign(engine, o.n, o.seed))
        engine.stop()
        model.close()
    counts = ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items()))
    print(f"{o.n:,} requests in {time.monotonic() - start:.0f} s: {counts}")


if __name__ == "__main__":
    main()
