"""What the server offers beside answers: tokens, several models, other sites' pages, metrics and the
access log."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from io import StringIO

import guess_layers
import httpx
import peft_folders
import pytest
import talkers
from conftest import STORIES

import heads
from heads._reading import reading
from heads.server import serve as command
from heads.server.app import create_app
from heads.server.engine import Engine
from heads.server.vectors import VectorJob, VectorQueue

LLAMA = {"prompt": "Once upon", "n_predict": 5, "temperature": 0}
COMPLETION = {"prompt": "Once upon", "max_tokens": 5, "temperature": 0}


@contextmanager
def app_of(*names: str, models=None, **options):
    models = models or [heads.Model(STORIES) for _ in names]
    engines = [Engine(model, 2, 4, name) for model, name in zip(models, names)]
    for engine in engines:
        engine.start()
    try:
        yield create_app(engines, **options)
    finally:
        for engine in engines:
            engine.stop()
            engine.model.close()


def asked(app, *requests) -> list[httpx.Response]:
    async def run():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [
                await client.request(method, path, json=body, headers=headers)
                for method, path, body, headers in requests
            ]

    return asyncio.run(asyncio.wait_for(run(), 60))


def post(path: str, body: dict, **headers: str):
    return "POST", path, body, headers


def test_tokens():
    """In llama-server's words and in vLLM's, which differ in what a text begins with."""
    with app_of("a") as app, heads.Model(STORIES) as model:
        text = "Once upon \u00e9 time"
        ours, theirs, plain = asked(
            app,
            post("/tokenize", {"content": text}),
            post("/tokenize", {"prompt": text, "model": "a"}),
            post("/tokenize", {"prompt": text, "add_special_tokens": False}),
        )
        ids = model.encode(text, special=False)
        assert ours.json()["tokens"] == plain.json()["tokens"] == ids
        assert theirs.json() == {
            "tokens": model.encode(text),
            "count": len(model.encode(text)),
            "max_model_len": model.context,
        }
        (back,) = asked(app, post("/detokenize", {"tokens": ids}))
        assert back.json() == {"content": model.decode(ids), "prompt": model.decode(ids)}
        for path, body, says in [
            ("/tokenize", {"content": 5}, "content: expected"),
            ("/tokenize", {"content": "a", "b": 1}, "unknown parameter"),
            ("/detokenize", {"tokens": ["a"]}, "tokens: expected"),
            ("/detokenize", {"tokens": [10**9]}, "ids are from 0"),
        ]:
            (refused,) = asked(app, post(path, body))
            assert refused.status_code == 400 and says in refused.text


def test_several_models():
    """A request's `model` picks one, the first without; an unknown name is a 404."""
    with app_of("a", "b:1") as app:
        listed, first, second, other, one, none = asked(
            app,
            ("GET", "/v1/models", None, {}),
            post("/v1/completions", COMPLETION),
            post("/v1/completions", {**COMPLETION, "model": "b:1"}),
            post("/v1/completions", {**COMPLETION, "model": "c"}),
            ("GET", "/v1/models/b:1", None, {}),
            ("GET", "/v1/models/c", None, {}),
        )
    assert [entry["id"] for entry in listed.json()["data"]] == ["a", "b:1"]
    assert (first.json()["model"], second.json()["model"]) == ("a", "b:1")
    assert first.json()["choices"] == second.json()["choices"]
    assert one.json()["id"] == "b:1"
    for refused in (other, none):
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "model_not_found"
        assert "the models here are a, b:1" in refused.text


def test_no_answer_depends_on_guesses(tmp_path):
    """By the model's own layers; /metrics counts them."""
    plain, prompt = guess_layers.checkpoint_with_guesses("deepseek_v3", tmp_path)
    path = talkers.make(plain, tmp_path / "talks.bin", talkers.PLAIN, 512)
    messages = [{"role": "user", "content": "what is it?"}]
    bodies = [{"temperature": 0}, {"seed": 3}, {"seed": 5, "frequency_penalty": 0.5, "stop": "e"}]
    chats = [{"messages": messages, "max_tokens": 60, **body} for body in bodies]
    texts = [{"prompt": prompt, "max_tokens": 60, **body} for body in bodies]
    found = []
    for guess in (0, 3):
        with app_of("a", models=[heads.Model(path, kv="f32", guess=guess)]) as app:
            answers = asked(
                app,
                *(post("/v1/chat/completions", body) for body in chats),
                *(post("/v1/completions", body) for body in texts),
                ("GET", "/metrics", None, {}),
            )
        *answers, metrics = answers
        assert all(answer.status_code == 200 for answer in answers), answers[0].text
        found.append([answer.json()["choices"] for answer in answers])
        line = next(x for x in metrics.text.splitlines() if x.startswith("heads_drafted_tokens_"))
        assert (float(line.split()[1]) > 0) == (guess > 0)
    assert found[0] == found[1]


def test_adapters(tmp_path):
    """Each is a model by its own name, beside the base; what it answers is what the module does."""
    kinds = ("attn_q", "ffn_down")
    files = [peft_folders.file_for(STORIES, tmp_path / f"{i}.x", kinds, i) for i in (1, 2)]
    with heads.Model(STORIES) as model:
        own = {"one": model.adapter(files[0]), "b": command._adapter(model, f"{files[1]}:-2")}
        assert own["b"].scale == -2
        engine = Engine(model, 4, 9, "a", own)
        engine.start()
        names = {"a": None, "a:one": own["one"], "a:b": own["b"]}
        want = [model.generate("Once upon", 5, 0, adapter=x) for x in names.values()]
        assert len(set(want)) == 3
        echo = {**COMPLETION, "echo": True, "logprobs": 0, "max_tokens": 0}
        listed, other, one, *texts = asked(
            create_app([engine]),
            ("GET", "/v1/models", None, {}),
            post("/v1/completions", {**COMPLETION, "model": "a:two"}),
            ("GET", "/v1/models/a:one", None, {}),
            *(post("/v1/completions", {**COMPLETION, "model": name}) for name in names),
            *(post("/completion", {**LLAMA, "model": name}) for name in names),
            *(post("/v1/completions", {**echo, "model": name}) for name in names),
        )
        engine.stop()
    found = [(x["id"], x["root"], x["parent"]) for x in listed.json()["data"]]
    assert found == [("a", "stories.bin", None), ("a:one", "1.x", "a"), ("a:b", "2.x", "a")]
    assert one.json() == listed.json()["data"][1]
    assert other.status_code == 404 and other.json()["error"]["code"] == "model_not_found"
    assert "the models here are a, a:one, a:b" in other.text
    assert [x.json()["model"] for x in texts] == [*names] * 3
    assert [x.json()["choices"][0]["text"] for x in texts[:3]] == want
    assert [x.json()["content"] for x in texts[3:6]] == want
    scores = [x.json()["choices"][0]["logprobs"]["token_logprobs"][-1] for x in texts[6:]]
    assert len(set(scores)) == 3


def test_vectors_of_adapters(encoder, tmp_path):
    """Of several requests at once, each by its own."""
    file = peft_folders.file_for(encoder, tmp_path / "x", ("attn_q", "ffn_down"))
    with heads.Model(encoder) as model:
        adapter = model.adapter(file)
        want = [model.embed("a cat", adapter=x) for x in (None, adapter)]
        queue, read = VectorQueue(model), reading(model, "a cat")
        jobs = [VectorJob([read] * 2, "vectors", x) for x in (None, adapter, None)]
        for job in jobs:
            queue.submit(job)
        queue.step()
        for job, i in zip(jobs, (0, 1, 0)):
            assert all((row == want[i]).all() for row in job.rows)
        assert (want[0] != want[1]).any()
        engine = Engine(model, 2, 9, "e", {"x": adapter})
        engine.start()
        body = {"input": "a cat", "model": "e:x"}
        (answer,) = asked(create_app([engine]), post("/v1/embeddings", body))
        engine.stop()
        assert answer.json()["model"] == "e:x"
        assert answer.json()["data"][0]["embedding"] == want[1].tolist()


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["m.bin", "--adapter", "b=x=y:2"], {"m": {"b": "x=y:2"}}),
        (["m.bin", "--adapter", "m:b=x", "--adapter", "c=x"], {"m": {"b": "x", "c": "x"}}),
        (["m=p", "n=q", "--adapter", "n:b=x"], {"m": {}, "n": {"b": "x"}}),
        (["m=p", "n=q", "--adapter", "b=x"], "expected MODEL:NAME=FILE"),
        (["m.bin", "--adapter", "x.adapter"], "expected NAME=FILE"),
        (["m.bin", "--adapter", "b=x", "--adapter", "b=y"], "two are called m:b"),
        (["m=p", "m:b=q", "--adapter", "m:b=x"], "two are called m:b"),
    ],
)
def test_names_of_adapters(given, made, capsys):
    if isinstance(made, dict):
        assert command._options(given).adapters == made
    else:
        with pytest.raises(SystemExit):
            command._options(given)
        assert made in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["x/m.bin"], {"m": "x/m.bin"}),
        (["x/m.bin", "--alias", "gpt"], {"gpt": "x/m.bin"}),
        (["a=m.bin", "b=x=y.bin"], {"a": "m.bin", "b": "x=y.bin"}),
        (["x/a=b.bin"], {"a=b": "x/a=b.bin"}),
        (["a.bin", "x/a.bin"], None),
        (["a.bin", "b.bin", "--alias", "c"], None),
        (["a.bin", "--access-log", "/none/log"], None),
    ],
)
def test_names_of_models(given, made, capsys):
    if made is None:
        with pytest.raises(SystemExit) as ended:
            command._options(given)
        assert ended.value.code == 2 and capsys.readouterr().err.startswith("heads: ")
    else:
        assert command._options(given).models == made


def test_pages_of_other_sites():
    """Only those that were named; by default none."""
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    asks = [
        ("OPTIONS", "/v1/completions", None, {**ask, "origin": o}) for o in (ask["origin"], "b")
    ]
    with app_of("a", origins=("https://a.example",), api_key="k") as app:
        let, refused, answer = asked(
            app, *asks, post("/v1/completions", COMPLETION, origin=ask["origin"])
        )
        assert let.headers["access-control-allow-origin"] == ask["origin"]
        assert "access-control-allow-origin" not in refused.headers
        assert answer.status_code == 401  # whose text the page may read
        assert answer.headers["access-control-allow-origin"] == ask["origin"]
    with app_of("a") as app:
        assert all("access-control-allow-origin" not in x.headers for x in asked(app, *asks))


def test_metrics_and_log():
    """Counts and seconds; the log has no text and no key."""
    log = StringIO()
    with app_of("a", log=log) as app:
        *_, metrics = asked(
            app,
            post("/v1/completions", COMPLETION),
            post("/v1/completions", {**COMPLETION, "stream": True}, authorization="Bearer secret"),
            post("/v1/completions?key=secret", {"prompt": 5}),
            ("GET", "/metrics", None, {}),
        )
    found = dict(x.rsplit(" ", 1) for x in metrics.text.splitlines() if x[0] != "#")
    assert {
        name: float(found[f"heads_{name}"])
        for name in ("requests_total", "refused_total", "texts_total", "generated_tokens_total")
    } == {"requests_total": 3, "refused_total": 1, "texts_total": 2, "generated_tokens_total": 10}
    for name in ("first_token", "token", "request"):
        assert float(found[f"heads_{name}_seconds_count"]) == 2
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [x["status"] for x in lines] == [200, 200, 400, 200]
    assert [x["completion_tokens"] for x in lines] == [5, 5, 0, 0]
    assert all(x["prompt_tokens"] > 0 and x["first_token_seconds"] > 0 for x in lines[:2])
    assert lines[2]["path"] == "/v1/completions" and lines[3]["method"] == "GET"
    assert "secret" not in log.getvalue() and "Once" not in log.getvalue()
