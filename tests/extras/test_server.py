"""The server: the openai client's calls, ./run's answers, refusals in OpenAI's shape, and places
that are freed."""

from __future__ import annotations

import asyncio
import base64
import json
import resource
import socket
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import openai
import pytest
from conftest import STORIES, Server, run
from lm_eval.models.gguf import get_result

import heads
from heads._batch import Sampling
from heads.server.answers import VectorAnswer
from heads.server.app import create_app
from heads.server.engine import Engine
from heads.server.requests import VectorRequest

QUESTION = [{"role": "user", "content": "what is it?"}]


@pytest.fixture(scope="module")
def stories():
    server = Server(STORIES, "--parallel", 4)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def talking(talker):
    server = Server(talker, "--parallel", 4)
    yield server
    server.stop()


def client(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def said(prompt: str, *options: object) -> str:
    return run(STORIES, "-p", prompt, *options)[len(prompt) :]


# ---- the protocol ----


def test_models(stories):
    assert [m.id for m in client(stories).models.list()] == ["stories"]
    assert client(stories).models.retrieve("stories").id == "stories"


def test_completion_is_runs(stories):
    answer = client(stories).completions.create(
        model="stories", prompt="Once upon a time", max_tokens=30, seed=7
    )
    assert answer.choices[0].text == said("Once upon a time", "-s", 7, "-n", 30)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (30, 35)


def test_a_model_that_translates(serve, translator):
    """Each text is what ./run writes for it, in the language that the request names."""
    server = serve(translator, "--parallel", 4)
    create = client(server).completions.create
    for lang in (None, "fr_XX", "ro_RO:fr_XX"):
        option = ("--lang", lang) if lang else ()
        expected = [run(translator, "-p", text, "-n", 12, *option) for text in ("cab", "a bad egg")]
        answer = create(
            model="translator",
            prompt=["cab", "a bad egg"],
            max_tokens=12,
            extra_body={"lang": lang},
        )
        assert [choice.text for choice in answer.choices] == expected
        assert answer.usage.prompt_tokens == 6 + 12
        several = create(
            model="translator",
            prompt="cab",
            max_tokens=12,
            n=2,
            temperature=2,
            seed=4,
            logprobs=1,
            extra_body={"lang": lang},
        )
        chance = [
            run(translator, "-p", "cab", "-n", 12, "--temp", 2, "-s", s, *option) for s in (4, 5)
        ]
        assert [choice.text for choice in several.choices] == chance
    refused = [
        dict(extra_body={"lang": "de_DE"}),
        dict(extra_body={"lang": 5}),
        dict(echo=True),
        dict(extra_body={"lang": "fr\0"}),
    ]
    said = ["knows no language", "lang: expected", "echo means nothing", "lang: expected"]
    for options, message in zip(refused, said):
        with pytest.raises(openai.BadRequestError, match=message):
            create(model="translator", prompt="cab", **options)
    with pytest.raises(openai.BadRequestError, match="a conversation means nothing"):
        client(server).chat.completions.create(model="translator", messages=QUESTION)


def test_a_decoder_has_no_language(stories):
    with pytest.raises(openai.BadRequestError, match="lang means nothing"):
        client(stories).completions.create(model="stories", prompt="a", extra_body={"lang": "fr"})


def test_streamed_completions_are_the_same(stories):
    create = client(stories).completions.create
    options = dict(model="stories", prompt=["Once", "One day"], max_tokens=20, seed=3, n=2)
    whole = create(**options)
    texts, usage = [""] * 4, None
    stream = create(stream=True, stream_options={"include_usage": True}, **options)
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices] and usage == whole.usage
    assert texts[3] == said("One day", "-s", 4, "-n", 20)


def test_stop_string(stories):
    text = said("Once upon a time", "-s", 7, "-n", 60)
    answer = client(stories).completions.create(
        model="stories", prompt="Once upon a time", max_tokens=60, seed=7, stop=text[20:23]
    )
    assert answer.choices[0].text == text[: text.index(text[20:23])]
    assert answer.choices[0].finish_reason == "stop"


def log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows.astype(np.float64) - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_echo_with_logprobs(stories):
    """What evaluation asks for: the log-probabilities of given tokens."""
    prompt = "One fine day, a curious hedgehog"
    for max_tokens in (0, 3):
        choice = (
            client(stories)
            .completions.create(
                model="stories",
                prompt=prompt,
                max_tokens=max_tokens,
                echo=True,
                logprobs=2,
                temperature=0,
            )
            .choices[0]
        )
        with heads.Model(STORIES) as m:
            ids = m.encode(prompt) + m.generate(prompt, max(max_tokens, 1), 0).tokens[:max_tokens]
            want = log_softmax(m.logits(ids))
        got = choice.logprobs
        assert got.token_logprobs[0] is None and got.top_logprobs[0] is None
        assert got.token_logprobs[1:] == pytest.approx(
            [row[id] for row, id in zip(want, ids[1:])], abs=1e-5
        )
        assert all(len(top) == 2 for top in got.top_logprobs[1:])
        assert "".join(got.tokens[1:]) == choice.text and choice.text.startswith(prompt)
        for token, at in zip(got.tokens[1:], got.text_offset[1:]):  # the first is BOS
            assert choice.text[at:].startswith(token)


@pytest.mark.parametrize("context", ["Once \u732c", " Two  dogs", "<s> and </s>", "A"])
def test_offsets_are_of_the_text(stories, context):
    """Where a character is several tokens: the harness finds a continuation by its offset, and no
    piece is lost among the likeliest."""
    prompt = context + " \u732c\u732b met"
    options = dict(model="stories", prompt=prompt, max_tokens=1, temperature=0, logprobs=10)
    choice = client(stories).completions.create(echo=True, **options).choices[0]
    got = choice.logprobs
    with heads.Model(STORIES) as m:
        ids, n = m.encode(prompt), len(m.encode(context))
        assert ids[:n] == m.encode(context)
        rows = log_softmax(m.logits(ids))
    want = sum(rows[i - 1][ids[i]] for i in range(n, len(ids)))
    assert get_result(got.model_dump(), len(context))[0] == pytest.approx(want, abs=1e-4)
    pieces = [name for name in got.tokens if name.startswith("bytes:")]
    assert len(pieces) >= 6 and len(set(pieces)) > 3
    for name, at in list(zip(got.tokens, got.text_offset))[1:]:  # the first is BOS
        rest = choice.text[at:]
        assert rest.startswith((name, name.lstrip()) if at == 0 else name) or (
            name in pieces and rest[0] in "\u732c\u732b"
        )
    assert all(len(top) == 10 for top in got.top_logprobs[1:])
    alone = client(stories).completions.create(**options).choices[0].logprobs
    assert alone.text_offset == [0] and alone.tokens == got.tokens[-1:]
    stream = client(stories).completions.create(echo=True, stream=True, **options)
    told = [part.choices[0].logprobs.text_offset for part in stream if part.choices]
    assert sum(told, []) == got.text_offset


def test_echo_of_a_prompt_of_one_token(stories):
    """Beside a longer one: each has its own log-probabilities."""
    options = dict(model="stories", max_tokens=2, echo=True, logprobs=0, temperature=0)
    create = client(stories).completions.create
    both = create(prompt=[[5], [6, 7, 8]], **options).choices
    for got, prompt in zip(both, ([5], [6, 7, 8])):
        assert got.logprobs == create(prompt=prompt, **options).choices[0].logprobs
        assert len(got.logprobs.tokens) == len(prompt) + 2


def test_chat_is_runs(talking, talker, tmp_path):
    (tmp_path / "m").write_text(json.dumps(QUESTION))
    options = dict(model="talker", messages=QUESTION, max_tokens=40, seed=5)
    answer = client(talking).chat.completions.create(logprobs=True, top_logprobs=3, **options)
    want = run(talker, "--messages", tmp_path / "m", "-s", 5, "-n", 40)
    other = {"input": QUESTION, "max_output_tokens": 40, "seed": 5}
    response = httpx.post(talking.url + "/v1/responses", json=other).json()
    assert response["output"][0]["content"][0]["text"] == want
    assert (response["temperature"], response["top_p"]) == (0.5, 0.9)
    other = {"messages": QUESTION, "max_tokens": 40, "seed": 5}
    message = httpx.post(talking.url + "/v1/messages", json=other).json()
    assert message["content"][0]["text"] == want
    assert answer.choices[0].message.content == want
    said = answer.choices[0].logprobs.content
    assert len(said) == answer.usage.completion_tokens
    assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in said)
    stream = client(talking).chat.completions.create(stream=True, **options)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == want


def test_chat_grows_from_what_ran_before(talking):
    """A conversation's next turn forks the cache of the last one; its bits do not tell."""
    messages, answers = [], []
    for turn in ("one", "two", "three"):
        messages = [*messages, {"role": "user", "content": turn}]
        answer = client(talking).chat.completions.create(
            model="talker", messages=messages, max_tokens=30, temperature=0
        )
        answers.append(answer.choices[0].message.content)
        messages = [*messages, {"role": "assistant", "content": answers[-1]}]
    fresh = client(talking).chat.completions.create(
        model="talker", messages=messages[:-1], max_tokens=30, temperature=0
    )
    assert fresh.choices[0].message.content == answers[-1]


def test_page_and_health(stories):
    page = httpx.get(stories.url)
    assert page.status_code == 200 and "<title>heads</title>" in page.text
    assert "http" not in page.text.replace("http-equiv", "")  # nothing is fetched from elsewhere
    usual = Sampling.usual(True).temperature
    assert f'id="temperature" type="number" min="0" max="2" step="0.1" value="{usual}"' in page.text
    assert httpx.get(stories.url + "/health").json() == {"status": "ok"}


# ---- vectors ----


@pytest.fixture(scope="module")
def vectors(encoder):
    server = Server(encoder, "--queue", 4)
    yield server
    server.stop()


def test_vectors_are_the_modules(vectors, encoder):
    """Bit for bit, as numbers and in base64, which is what the client asks for by itself."""
    texts = ["hello world", "a", "zz top", "the long words of a text that is cut"] * 50
    create = client(vectors).embeddings.create
    with heads.Model(encoder) as m:
        want = m.embed(texts)
        ids = [m.text_ids(text) for text in texts]
    for given in (texts, ids):
        for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = create(model="encoder", input=given, **options)
            assert [x.index for x in answer.data] == list(range(200))
            found = [
                np.frombuffer(base64.b64decode(x.embedding), "<f4")
                if isinstance(x.embedding, str)
                else x.embedding
                for x in answer.data
            ]
            assert np.array_equal(np.array(found, np.float32), want)
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    one = create(model="encoder", input="zz top")
    assert np.array_equal(np.array(one.data[0].embedding, np.float32), want[2])
    assert np.array_equal(
        np.array(create(model="encoder", input=ids[2]).data[0].embedding, np.float32), want[2]
    )


def test_vectors_of_long_texts(vectors, encoder):
    """A field counts those that were cut, and another refuses them; the module warns once."""
    texts = ["a b c", "a b c d e f g " * 9, "long " * 40, "a " * 18]
    whole = httpx.post(vectors.url + "/v1/embeddings", json={"input": texts}).json()
    assert whole["truncated"] == 2
    short = httpx.post(vectors.url + "/v1/embeddings", json={"input": [texts[0], texts[3]]}).json()
    assert "truncated" not in short
    body = {"input": texts, "truncate": False}
    refused = httpx.post(vectors.url + "/v1/embeddings", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"] == "input[1] has 65 tokens and this model reads 20"
    with heads.Model(encoder) as m:
        with pytest.warns(UserWarning, match="2 of 4 texts have more than the 20 tokens"):
            found = m.embed(texts)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.array_equal(m.embed(texts), found)
    assert np.allclose([x["embedding"] for x in whole["data"]], found, atol=1e-6)


def test_forms_of_vectors(vectors, encoder):
    """What the module gives: shortened, in fewer bits, of parts; ids without special tokens."""

    def ask(path: str = "v1/embeddings", **body) -> dict:
        answer = httpx.post(f"{vectors.url}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(**body) -> np.ndarray:
        return np.array([x["embedding"] for x in ask(**body)["data"]], np.float32)

    texts, long = ["hello", " zz", " world"], "the long words of a text that is cut"
    with heads.Model(encoder) as m:
        assert np.array_equal(rows(input=texts, dimensions=8), m.embed(texts, 8))
        for form in ("int8", "binary", "ubinary"):
            want = m.embed(texts, 8, quantize=form)
            assert np.array_equal(rows(input=texts, dimensions=8, encoding_format=form), want)
        parts = m.embed(texts, late_chunking=True)
        assert np.array_equal(rows(input=texts, late_chunking=True), parts)
        bare = [m.encode(text, special=False) for text in texts]
        assert np.array_equal(rows(input=bare), m.embed(texts))
        ids = m.encode(long, special=False)
        for truncate in (True, "END"):
            cut = ask(input=[long, ids, "a"], truncate=truncate)
            assert cut["truncated"] == 2
            assert cut["data"][0]["embedding"] == cut["data"][1]["embedding"]
            assert np.float32(cut["data"][0]["embedding"]).tobytes() == (
                m.embed(long, truncate=True).tobytes()
            )
        assert "truncated" not in ask(input=texts)
        pooled = ask("pooling", input=texts)
        for found, want in zip(pooled["data"], m.token_vectors(texts)):
            assert np.array_equal(np.float32(found["data"]), want)
        sparse = ask("embed_sparse", inputs=texts)
        for found, want in zip(sparse, m.sparse(texts)):
            assert {x["index"]: x["value"] for x in found} == want
    assert httpx.post(vectors.url + "/embed_sparse", json={"inputs": 5}).status_code == 400


def test_vectors_of_many_clients(vectors, encoder):
    """They share passes, and none waits for all of another's texts."""
    texts = ["a b " * n for n in range(1, 5)]
    with heads.Model(encoder) as m:
        want = m.embed(texts)

    def ask(i: int) -> np.ndarray:
        http = client(vectors)
        for _ in range(100):
            try:
                given = [texts[i % 4]] * (91 if i == 0 else 1)
                answer = http.embeddings.create(model="encoder", input=given)
                return np.array([x.embedding for x in answer.data], np.float32)
            except openai.RateLimitError:
                time.sleep(0.02)
        raise AssertionError("always refused")

    with ThreadPoolExecutor(16) as pool:
        for i, found in enumerate(pool.map(ask, range(64))):
            assert np.array_equal(found, want[[i % 4] * len(found)])


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"input": "a", "dimensions": 37}, "dimensions", "vectors have 36"),
        ({"input": "a", "dimensions": 0}, "dimensions", "from 1 to"),
        ({"input": "a", "encoding_format": "int4"}, "encoding_format", "float, base64, int8"),
        ({"input": "a", "truncate": "START"}, "truncate", "expected true, false, END or NONE"),
        ({"input": "a", "late_chunking": 1}, "late_chunking", "expected true or false"),
        ({"input": ["a " * 9, "b " * 10], "late_chunking": True}, None, "21 tokens together"),
        ({"input": ["a", "a " * 19], "truncate": False}, "input", "input[1] has 21 tokens"),
        ({"input": "a", "temperature": 1}, "temperature", "unknown parameter"),
        ({"input": []}, "input", "expected a string"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": [[99999]]}, None, "99999 is no token"),
        ({"input": [[5] * 500], "truncate": False}, "input", "input[0] has 502 tokens"),
        ({}, "input", "expected a string"),
    ],
)
def test_refused_vectors(vectors, body, param, says):
    answer = httpx.post(vectors.url + "/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and says in error["message"]


def test_what_a_model_does_not_do_is_refused(vectors, stories):
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": QUESTION}),
    ):
        answer = httpx.post(f"{vectors.url}/v1/{path}", json=body)
        assert answer.status_code == 400
        assert "this model is an encoder" in answer.json()["error"]["message"]
    answer = httpx.post(stories.url + "/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 400 and "came without modules" in answer.text


# ---- what is refused ----


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({"prompt": "a", "beams": 3}, "beams", 400),
        ({"prompt": "a", "best_of": 2}, "best_of", 400),
        ({"prompt": "a", "temperature": "hot"}, "temperature", 400),
        ({"prompt": "a", "temperature": True}, "temperature", 400),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", 400),
        ({"prompt": "a", "n": 1000}, "n", 400),
        ({"prompt": "a", "stop": [""]}, "stop", 400),
        ({"prompt": "a", "stream": 1}, "stream", 400),
        ({"prompt": [[]]}, "prompt", 400),
        ({"prompt": [[99999]]}, None, 400),
        ({"prompt": "a " * 2000}, None, 400),
        ({}, "prompt", 400),
        ({"prompt": "a", "model": "other"}, "model", 404),
    ],
)
def test_refusals(stories, body, param, status):
    answer = httpx.post(stories.url + "/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error" and len(error["message"]) > 10


def test_chat_without_a_template(stories):
    answer = httpx.post(stories.url + "/v1/chat/completions", json={"messages": QUESTION})
    assert answer.status_code == 400 and "chat template" in answer.json()["error"]["message"]


def test_other_refusals(stories):
    post = lambda **options: httpx.post(stories.url + "/v1/completions", **options)  # noqa: E731
    json_type = {"content-type": "application/json"}
    assert post(content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert post(content=b"[" * 100_000, headers=json_type).status_code == 400
    assert post(content=b'{"prompt": "\\ud800"}', headers=json_type).status_code == 400
    assert post(content=b" " * (5 << 20), headers=json_type).status_code == 413
    long = post(json={"prompt": "a " * 2000}).json()["error"]
    assert long["code"] == "context_length_exceeded"
    assert httpx.get(stories.url + "/v1/nothing").status_code == 404
    assert httpx.get(stories.url + "/v1/completions").status_code == 405


def test_key(serve):
    server = serve(STORIES, key="secret")
    assert len(list(client(server, "secret").models.list())) == 1
    with pytest.raises(openai.AuthenticationError):
        client(server, "wrong").models.list()


def test_full_queue(serve):
    server = serve(STORIES, "--parallel", 1, "--queue", 1)
    statuses = []

    def ask() -> None:
        body = {"prompt": "Once", "max_tokens": 300, "n": 1, "temperature": 0}
        statuses.append(httpx.post(server.url + "/v1/completions", json=body).status_code)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429} and statuses.count(200) >= 2


def test_nothing_private_is_logged(serve):
    server = serve(STORIES)
    httpx.post(server.url + "/v1/completions", json={"prompt": "my secret", "max_tokens": 3})
    httpx.post(server.url + "/v1/completions?secret", content=b"secret")
    assert "secret" not in server.stop()


# ---- clients that go away ----


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(serve, endless, stream):
    server = serve(endless)
    body = {"prompt": "abc", "max_tokens": 100_000, "stream": stream, "temperature": 0}
    with pytest.raises(httpx.ReadTimeout):
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=1) as r:
            if stream:
                next(r.iter_lines())
                raise httpx.ReadTimeout("as if")
    deadline = time.monotonic() + 20
    while server.metric("texts_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.metric("texts_running") == 0
    assert server.metric("cancelled_total") == 1


def test_a_client_that_goes_away_before_its_stream_begins(endless):
    """The place is freed though nobody ever asks for the first event."""

    async def run(app, engine) -> None:
        body = {"prompt": "abc", "max_tokens": 100_000, "stream": True, "temperature": 0}
        messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict:
            if messages:
                return messages.pop()
            while not engine.listeners:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(_) -> None:
            raise OSError("the client went away")

        try:
            await app({**SCOPE, "path": "/v1/completions"}, receive, send)
        except Exception as error:
            assert "ClientDisconnect" in repr(error) or isinstance(error, OSError)
        while engine.listeners:
            await asyncio.sleep(0.02)

    with in_process(endless) as (app, engine):
        asyncio.run(asyncio.wait_for(run(app, engine), 20))
        assert engine.counts["cancelled"] == 1


SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 8080),
}


@contextmanager
def in_process(model):
    with heads.Model(model) as opened:
        engine = Engine(opened, 2, 8)
        engine.start()
        yield create_app(engine), engine
        engine.stop()


def test_half_a_body_is_no_failure_of_the_server(serve):
    server = serve(STORIES)
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    counted, pieces = "content-length: 99\r\n\r\n", "transfer-encoding: chunked\r\n\r\n63\r\n"
    for length in (counted, pieces, counted):
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(f'{head}{length}{{"prompt": '.encode())
    deadline = time.monotonic() + 20
    while server.metric("refused_total") < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.metric("refused_total") == 3
    assert httpx.post(server.url + "/v1/completions/", json={}).status_code == 404  # not elsewhere
    assert server.stop() == ""


# ---- what the machine lacks, and what fails ----


def test_idle_connections_take_all_descriptors(serve):
    """Who is connected is served, or told why not; afterwards everybody is."""
    server = serve(STORIES)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, hard))
    body = {"prompt": "Once upon a time " * 20, "max_tokens": 20, "seed": 1}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.get("/health").status_code == 200
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        statuses = {
            http.post("/v1/completions", json={**body, "seed": i}).status_code for i in range(9)
        }
        for connection in idle:
            connection.close()
        assert statuses <= {200, 500}
        assert http.get("/health").json() == {"status": "ok"}
        first = http.post("/v1/completions", json=body)
    second = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    assert first.status_code == second.status_code == 200
    assert first.json()["choices"] == second.json()["choices"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_says_that_the_engine_ended(monkeypatch):
    def fail():
        raise AssertionError("as if")

    async def run(app, engine) -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/health")).status_code == 200
            monkeypatch.setattr(engine.vectors, "step", fail)
            for path, status in (("completions", 500), ("completions", 503)):
                answer = await http.post(f"/v1/{path}", json={"prompt": "a"})
                assert answer.status_code == status
                assert "the engine has stopped" in answer.json()["error"]["message"]
            answer = await http.get("/health")
            assert answer.status_code == 503 and "has stopped" in answer.json()["error"]["message"]

    with in_process(STORIES) as (app, engine):
        asyncio.run(asyncio.wait_for(run(app, engine), 60))


def test_a_refusal_leaves_no_memory(stories):
    """An exception that is raised again and again would keep each request's frames."""
    with in_process(STORIES) as (app, engine):
        for _ in range(3):
            with pytest.raises(heads.InputError) as error:
                VectorAnswer(engine, VectorRequest(["a"], False))
        assert len(error.traceback) == 2
