"""The server: the openai client's calls, ./run's answers, refusals in OpenAI's shape, and places
that are freed."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from conftest import ROOT, STORIES, Server, run

import heads
from heads.serve import Engine, create_app

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
        answer = create(model="translator", prompt=["cab", "a bad egg"], max_tokens=12,
                        extra_body={"lang": lang})  # fmt: skip
        assert [choice.text for choice in answer.choices] == expected
        assert answer.usage.prompt_tokens == 6 + 12
        several = create(model="translator", prompt="cab", max_tokens=12, n=2, temperature=2, seed=4,
                         logprobs=1, extra_body={"lang": lang})  # fmt: skip
        chance = [run(translator, "-p", "cab", "-n", 12, "--temp", 2, "-s", s, *option)
                  for s in (4, 5)]  # fmt: skip
        assert [choice.text for choice in several.choices] == chance
    refused = [dict(extra_body={"lang": "de_DE"}), dict(extra_body={"lang": 5}), dict(echo=True),
               dict(extra_body={"lang": "fr\0"})]  # fmt: skip
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
            .completions.create(model="stories", prompt=prompt, max_tokens=max_tokens,
                                echo=True, logprobs=2, temperature=0)  # fmt: skip
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


def test_chat_is_runs(talking, talker, tmp_path):
    (tmp_path / "m").write_text(json.dumps(QUESTION))
    options = dict(model="talker", messages=QUESTION, max_tokens=40, seed=5)
    answer = client(talking).chat.completions.create(logprobs=True, top_logprobs=3, **options)
    want = run(talker, "--messages", tmp_path / "m", "-s", 5, "-n", 40)
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
            found = [np.frombuffer(base64.b64decode(x.embedding), "<f4")
                     if isinstance(x.embedding, str) else x.embedding
                     for x in answer.data]  # fmt: skip
            assert np.array_equal(np.array(found, np.float32), want)
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    one = create(model="encoder", input="zz top")
    assert np.array_equal(np.array(one.data[0].embedding, np.float32), want[2])
    assert np.array_equal(np.array(create(model="encoder", input=ids[2]).data[0].embedding,
                                   np.float32), want[2])  # fmt: skip


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
        ({"input": "a", "dimensions": 4}, "dimensions", "dimensions is not implemented"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float or base64"),
        ({"input": "a", "temperature": 1}, "temperature", "unknown parameter"),
        ({"input": []}, "input", "expected a string"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": [[99999]]}, None, "99999 is no token"),
        ({"input": [[5] * 500]}, None, "500 tokens"),
        ({}, "input", "expected a string"),
    ],
)
def test_refused_vectors(vectors, body, param, says):
    answer = httpx.post(vectors.url + "/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and says in error["message"]


def test_what_a_model_does_not_do_is_refused(vectors, stories):
    for path, body in (("completions", {"prompt": "a"}),
                       ("chat/completions", {"messages": QUESTION})):  # fmt: skip
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
        ({"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty", 400),
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
    assert httpx.get(stories.url, headers={"host": "evil.example"}).status_code == 403


def test_key(serve):
    server = serve(STORIES, "--api-key", "secret")
    assert len(list(client(server, "secret").models.list())) == 1
    with pytest.raises(openai.AuthenticationError):
        client(server, "wrong").models.list()


def test_others_need_a_key():
    command = [sys.executable, "-m", "heads", "serve", str(STORIES), "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT / "python", timeout=60)
    assert done.returncode == 2 and b"needs --api-key" in done.stderr


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


# ---- bodies that make no sense ----

WORDS = ["prompt", "messages", "max_tokens", "n", "stop", "stream", "temperature", "seed", "echo",
         "logprobs", "top_logprobs", "role", "content", "user", "model", "top_k", "stream_options",
         "logit_bias", "tools", "chat_template_kwargs", "response_format", "x", "input",
         "encoding_format", "dimensions"]  # fmt: skip


def nonsense(rng: random.Random, depth: int = 0):
    leaves = [None, True, False, 0, 1, -1, 2**70, 1.5, -1e300, "", "a", "user", "\ud800", [], {}]
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice(leaves)
    if kind < 0.7:
        return [nonsense(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS): nonsense(rng, depth + 1) for _ in range(rng.randrange(5))}


def bodies(rng: random.Random):
    while True:
        body = {rng.choice(WORDS): nonsense(rng) for _ in range(rng.randrange(1, 6))}
        body["beams"] = 1  # so that none of them is right
        text = json.dumps(body).encode()
        if rng.random() < 0.3:
            at = rng.randrange(len(text))
            text = text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randrange(2) :]
        yield text


def test_ten_thousand_bad_bodies():
    rng = random.Random(3)
    with heads.Model(STORIES) as model:
        engine = Engine(model, 4, 8)
        engine.start()
        asyncio.run(post_all(create_app(engine), bodies(rng)))
        engine.stop()


async def post_all(app, texts) -> None:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for i, text in zip(range(10_000), texts):
            path = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")[i % 3]
            answer = await http.post(path, content=text,
                                     headers={"content-type": "application/json"})  # fmt: skip
            assert 400 <= answer.status_code < 500, (text, answer.text)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
