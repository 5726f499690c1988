"""The server as clients and operators use it: what takes long holds up nobody, a client that stalls
is let go, HTTP's own rules hold, and it ends in order."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import chats
import httpx
import openai
import pytest
import talkers
from conftest import ROOT, STORIES, Server
from test_tools import TEMPLATES

import heads
from heads.server import app as server_app, bodies, likely, rendering, serve as command
from heads.server.texts import Answer
from heads._batch import Batch
from heads.server.engine import Engine

QUESTION = [{"role": "user", "content": "what is it?"}]
COMPLETION = ("completions", {"prompt": "Once", "max_tokens": 2})
CHAT = ("chat/completions", {"messages": QUESTION, "max_tokens": 2})


@pytest.fixture(scope="module")
def stories():
    server = Server(STORIES, "--parallel", 4)
    yield server
    server.stop()


@contextmanager
def in_process(model, parallel: int = 2):
    with heads.Model(model) as opened:
        engine = Engine(opened, parallel, 8)
        engine.start()
        yield engine
        engine.stop()


@contextmanager
def served(engine: Engine):
    """The command's server in a thread; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = command.Server(server_app.create_app(engine), [engine], 0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


# ---- what takes long ----


@pytest.mark.parametrize(
    ("where", "what", "path", "body"),
    [
        (heads.Model, "encode", *COMPLETION),
        (heads.Model, "chat_ids", *CHAT),
        (Batch, "submit", *COMPLETION),
        (Answer, "whole", *COMPLETION),
    ],
)
def test_others_are_answered_meanwhile(talker, monkeypatch, where, what, path, body):
    """Texts become tokens, tokens join the batch, and answers are written while others are heard."""
    begun, answered, real = threading.Event(), threading.Event(), getattr(where, what)
    waited = []

    def slow(*args, **options):
        begun.set()
        waited.append(answered.wait(10))
        return real(*args, **options)

    async def run(engine: Engine) -> None:
        transport = httpx.ASGITransport(app=server_app.create_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            first = asyncio.ensure_future(http.post(f"/v1/{path}", json=body))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            second = asyncio.ensure_future(http.post(f"/v1/{path}", json=body))
            await asyncio.sleep(0.05)
            assert (await http.get("/health")).status_code == 200
            answered.set()
            assert [(await x).status_code for x in (first, second)] == [200, 200]

    with in_process(talker) as engine:
        monkeypatch.setattr(where, what, slow)
        asyncio.run(asyncio.wait_for(run(engine), 60))
    assert all(waited)


def test_many_texts_of_one_request(stories):
    """More than may wait and run, on a server that has nothing else to do."""
    body = {"prompt": "Once", "n": 100, "max_tokens": 1}
    answer = httpx.post(stories.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200 and len(answer.json()["choices"]) == 100


# ---- clients that stall ----


def test_half_a_request_is_let_go(monkeypatch):
    """Its connection is closed: half of a head, half of a second one, half of a body."""
    monkeypatch.setattr(command, "HEAD_SECONDS", 0)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 1)
    with in_process(STORIES) as engine, served(engine) as address:
        half = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        whole = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        body = half + "content-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        connections = [socket.create_connection(address) for _ in range(4)]
        for connection, text in zip(connections, ("", half, whole + half, body)):
            connection.settimeout(20)
            connection.sendall(text.encode())
        try:
            said = [b"".join(iter(lambda: c.recv(999), b"")).decode() for c in connections]
        finally:
            for connection in connections:
                connection.close()
    assert said[:2] == ["", ""] and '{"status":"ok"}' in said[2]
    assert said[3].startswith("HTTP/1.1 408") and "did not come within" in said[3]


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SLOW = {"messages": [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model whose template takes for ever for calls."""
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = f"{{% if messages[-1].tool_calls %}}{loops}{{% endif %}}{TEMPLATES['hermes']}"
    metadata = {**talkers.template_metadata(TEMPLATES["hermes"]), "chat.template": template}
    path = tmp_path_factory.mktemp("slow") / "slow.bin"
    path.write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
    return path


def renderings(server: Server) -> int:
    """How many processes of it run templates."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            renders = b"heads.server.rendering" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        found += parent == server.process.pid and renders
    return found


def sent(path: str, body: dict, version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json"
    return f"{head}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def test_a_rendering_ends_with_its_client(serve, slow):
    server = serve(slow)
    for times in range(2):  # another one is there for the next
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(sent("chat/completions", SLOW))
            until = time.monotonic() + 30
            while not renderings(server) and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.5)
            assert renderings(server) == 1
        until = time.monotonic() + 3
        while renderings(server) and time.monotonic() < until:
            time.sleep(0.05)
        assert renderings(server) == 0
    assert server.stop() == ""


def test_a_half_closed_client_gets_its_answer(serve, endless):
    """Whole or as events, however long it takes, and of each request that it sent."""
    server = serve(endless)
    body = {"prompt": "abc", "max_tokens": 200, "temperature": 0}
    want = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"]

    def answers(*requests: bytes) -> str:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(60)
            client.sendall(b"".join(requests))
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()

    one = sent("completions", body)
    for requests in ([one], [one, one]):
        found = [x for x in answers(*requests).split("HTTP/1.1 ") if x[:3] != "100"]
        assert found.pop(0) == "" and len(found) == len(requests)
        for answer in found:
            assert json.loads(answer.partition("\r\n\r\n")[2])["choices"] == want
    lines = answers(sent("completions", {**body, "stream": True})).splitlines()
    events = [line[6:] for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(x)["choices"][0]["text"] for x in events) == want[0]["text"]
    assert server.stop() == ""


# ---- HTTP ----


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("evil.example", 400),
        ("a{b.evil.example", 400),
        ("localhost.evil.example", 400),
        ("localhost@evil.example", 400),
        ("", 400),
    ],
)
def test_names_that_it_answers_to(stories, host, status):
    answer = httpx.get(stories.url + "/health", headers={"host": host})
    assert answer.status_code == status
    if status == 400 and "{" not in host and host:
        assert "this server is localhost or" in answer.json()["error"]["message"]


def test_headers_have_a_bound():
    """However they come: many, or one that does not end."""
    with in_process(STORIES) as engine, served(engine) as address:
        for begins in (b"a: " + b"b" * 99, b"".join(b"a%d: b\r\n" % i for i in range(9999))):
            with socket.create_connection(address) as c, contextlib.suppress(ConnectionError):
                c.settimeout(20)
                c.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
                sent = 0
                while sent < 1 << 22:
                    c.sendall(begins)
                    sent += len(begins)
                    if select.select([c], [], [], 0)[0]:
                        break
                assert c.recv(99).startswith(b"HTTP/1.1 400") and sent < 1 << 22


def test_idle_connections_stay(monkeypatch):
    """Longer than half a request would."""
    monkeypatch.setattr(command, "HEAD_SECONDS", 0)
    whole = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert command.IDLE_SECONDS == 60
    with in_process(STORIES) as engine, served(engine) as address:
        with socket.create_connection(address) as c:
            c.settimeout(20)
            for _ in range(2):
                c.sendall(whole)
                time.sleep(2.5)
                assert c.recv(999).startswith(b"HTTP/1.1 200")


def test_methods_and_types(stories):
    head = httpx.head(stories.url + "/health")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len('{"status":"ok"}'))
    for path, allowed in (("/v1/completions", {"POST"}), ("/v1/models", {"GET", "HEAD"})):
        answer = httpx.put(stories.url + path)
        assert answer.status_code == 405 and "there is no PUT" in answer.json()["error"]["message"]
        assert set(answer.headers["allow"].split(", ")) == allowed
    answer = httpx.post(
        stories.url + "/v1/completions",
        content=b'{"prompt": "Once", "max_tokens": 1}',
        headers={"content-type": "Application/JSON; charset=UTF-8"},
    )
    assert answer.status_code == 200


def test_the_page_runs_nothing_but_its_own(stories):
    page = httpx.get(stories.url)
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert page.headers["x-frame-options"] == "DENY" and policy["frame-ancestors"] == "'none'"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cross-origin-embedder-policy"] == "require-corp"
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (inline,) = re.findall(f"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"\son\w+=|\sstyle=", page.text)  # which the policy forbids


def test_messages_may_hold_nulls(talker):
    """As the client's own objects do."""
    with in_process(talker) as engine:
        app = server_app.create_app(engine)

        async def run() -> None:
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
            client = openai.AsyncOpenAI(
                base_url="http://localhost/v1", api_key="-", http_client=http
            )
            create = client.chat.completions.create
            options = dict(model="talker", max_tokens=4, seed=1)
            message = (await create(messages=QUESTION, **options)).choices[0].message.model_dump()
            assert None in message.values()
            await create(messages=[*QUESTION, message, *QUESTION], **options)
            with pytest.raises(openai.BadRequestError, match=r"messages\[0\].audio is not"):
                await create(messages=[{**QUESTION[0], "audio": {"id": "a"}}], **options)

        asyncio.run(run())


def test_a_token_of_half_a_character_has_its_bytes():
    """In log-probabilities, where the text of such a token is a replacement character."""
    with heads.Model(STORIES) as m:
        ids = m.encode("\U0001f600")[-4:]
        own = [[*m.token_bytes(id)] for id in ids]
        assert b"".join(m.token_bytes(id) for id in ids) == "\U0001f600".encode()
        for id, bytes_of in zip(ids, own):
            entry = likely.of_chat(m, heads._batch.Likely(id, -1.0, [(id, -1.0)]))
            assert entry["bytes"] == entry["top_logprobs"][0]["bytes"] == bytes_of
            assert entry["token"] == "\ufffd"


# ---- what clients send ----


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_p": 0}, {"temperature": 0, "top_p": 1}),
        ({"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        ({"cache_prompt": True, "slot": None}, {}),
        ({"stream_options": {"include_obfuscation": False}}, {}),
    ],
)
def test_other_words_for_the_same(stories, theirs, ours):
    body = {"prompt": "Once", "max_tokens": 12, "seed": 3, "temperature": 1.5}
    said = []
    for more in (theirs, ours):
        answer = httpx.post(stories.url + "/v1/completions", json={**body, **more}, timeout=60)
        assert answer.status_code == 200, answer.text
        said.append(answer.json()["choices"][0]["text"])
    assert said[0] == said[1]


def test_any_seed(stories):
    """-1 is a new one each time."""
    body = {"prompt": "Once", "max_tokens": 30, "seed": -1, "temperature": 2}
    asked = [httpx.post(stories.url + "/v1/completions", json=body, timeout=60) for _ in range(2)]
    assert len({x.json()["choices"][0]["text"] for x in asked}) == 2


def test_shapes_of_messages(talker):
    """Marks of caches, annotations, nulls, and unknown fields that hold nothing."""
    text = {"type": "text", "text": "what is it?", "cache_control": {"type": "ephemeral"}}
    said = {"role": "assistant", "content": None, "annotations": [], "refusal": None}
    schema = {"type": "json_schema", "schema": {"const": 5}}
    messages = [{"role": "user", "content": [text]}, said, QUESTION[0]]
    body = {"messages": messages, "response_format": schema, "audio": None, "max_tokens": 5}
    server = Server(talker)
    try:
        url = server.url + "/v1/chat/completions"
        answer = httpx.post(url, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "5"
        for bad in ([{**text, "image": 1}], [{"type": "text"}], [{"text": "a"}]):
            answer = httpx.post(url, json={"messages": [{"role": "user", "content": bad}]})
            assert answer.status_code == 400 and "only parts of type text" in answer.text
    finally:
        server.stop()


def test_packed_bodies(stories):
    """What unpacks to too much, or not at all, is refused."""
    head = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(b'{"prompt": "Once", "max_tokens": 1}')
    large = gzip.compress(b" " * (1 << 26))
    for data, status in ((body, 200), (body[:-4], 400), (b"{}", 400), (large, 413)):
        answer = httpx.post(stories.url + "/v1/completions", content=data, headers=head)
        assert answer.status_code == status, answer.text
    head["content-encoding"] = "br"
    answer = httpx.post(stories.url + "/v1/completions", content=b"{}", headers=head)
    assert answer.status_code == 415


# ---- the key ----


def test_the_key_is_in_a_file_or_in_the_environment(serve, tmp_path):
    """Not among the arguments, which every user of the machine can read."""
    (tmp_path / "key").write_text("secret\n")
    for server in (
        serve(STORIES, "--api-key-file", tmp_path / "key"),
        serve(STORIES, key="secret"),
    ):
        assert b"secret" not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        url = server.url + "/v1/models"
        for given in ("Bearer secret", "bearer secret", "BEARER  secret"):
            assert httpx.get(url, headers={"authorization": given}).status_code == 200
        for given in ("", "secret", "Basic secret", "Bearer", "Bearer secrets", "Bearer s\u00e9"):
            answer = httpx.get(url, headers={"authorization": given.encode()})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert httpx.get(server.url + "/health").status_code == 200
        assert server.stop() == ""


def test_a_name_is_one_line():
    """Whatever is in it."""
    assert command._printable("a\nheads: b\x1b[2J\u2028模.bin") == (
        "a\\nheads: b\\x1b[2J\\u2028模.bin"
    )


def test_options_of_a_key_that_are_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    for options, says in (
        (["--api-key", "secret"], "unrecognized arguments"),
        (["--api-key-file", tmp_path / "none"], "No such file"),
        (["--api-key-file", tmp_path / "empty"], "is empty"),
        (["--host", "0.0.0.0"], "needs --api-key-file or HEADS_API_KEY"),
    ):
        line = [sys.executable, "-m", "heads", "serve", STORIES, *options]
        done = subprocess.run(
            [str(x) for x in line], capture_output=True, cwd=ROOT / "python", timeout=60
        )
        assert done.returncode == 2 and says in done.stderr.decode(), done.stderr


# ---- the end ----


def stream_lines(server: Server, body: dict):
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        yield from (line for line in answer.iter_lines() if line)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_answers_are_finished_at_the_end(serve, endless, how):
    server = serve(endless, "--grace", 60)
    body = {"prompt": "abc", "max_tokens": 300, "stream": True, "temperature": 0}
    lines = stream_lines(server, body)
    first = next(lines)
    server.process.send_signal(how)
    rest = list(lines)
    assert rest[-1] == "data: [DONE]" and '"length"' in rest[-2] and "choices" in first
    assert server.process.wait(20) == 0 and server.stop() == ""


def test_answers_that_take_longer_are_ended_in_order(serve, endless):
    """A stream by an event, another answer by an error, a half-sent request somehow; no tracebacks."""
    server = serve(endless, "--grace", 1)
    body = {"prompt": "abc", "max_tokens": 100_000, "temperature": 0}
    whole = []
    ask = lambda: whole.append(  # noqa: E731
        httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    )
    thread = threading.Thread(target=ask)
    thread.start()
    lines = stream_lines(server, {**body, "stream": True})
    next(lines)
    while server.metric("texts_running") < 2:
        pass
    half = socket.create_connection(("127.0.0.1", server.port))
    half.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    )
    server.process.send_signal(signal.SIGTERM)
    *_, last = lines
    thread.join()
    for error in (json.loads(last[6:])["error"], whole[0].json()["error"]):
        assert error["type"] == "server_error" and "shutting down" in error["message"]
    assert whole[0].status_code == 503 and server.process.wait(20) == 0
    half.close()
    assert "Traceback" not in server.stop()


@pytest.mark.parametrize(("size", "sent", "grace"), [(60 << 20, 5 << 20, 3), (99, 1, 0)])
def test_bodies_that_still_come_at_the_end(serve, size, sent, grace):
    """One that is dropped for its size ends at once, and another with the grace."""
    server = serve(STORIES, "--grace", grace)
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(f"{head}\r\ncontent-length: {size}\r\n\r\n".encode() + b" " * sent)
        time.sleep(0.5)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0 and time.monotonic() - begin < 1.5
    assert server.stop() == ""


def test_it_ends_whatever_runs(serve, slow):
    """Templates that take for ever end with the grace of those who wait for them."""
    server = serve(slow, "--grace", 0)

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(server.url + "/v1/chat/completions", json=SLOW, timeout=60)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while renderings(server) < 4:
        time.sleep(0.02)
    begin = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0 and time.monotonic() - begin < rendering.SECONDS - 1
    for thread in threads:
        thread.join()
    assert renderings(server) == 0 and "Traceback" not in server.stop()


def test_a_file_that_becomes_shorter(serve, tmp_path):
    """Between two passes: a sentence, where the process would end at the next byte that it reads."""
    path = tmp_path / "model.bin"
    path.write_bytes(STORIES.read_bytes())
    server = serve(path)
    body = COMPLETION[1]
    assert httpx.post(server.url + "/v1/completions", json=body).status_code == 200
    os.truncate(path, 4096)
    for answer in (
        httpx.post(server.url + "/v1/completions", json=body),
        httpx.get(server.url + "/health"),
    ):
        assert answer.status_code == 503 and "was cut short" in answer.json()["error"]["message"]
    said = server.stop()
    assert said.startswith("heads: model: the model's file was cut short") and said.count("\n") == 1
