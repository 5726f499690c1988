"""What llama-server's clients ask: /completion, /apply-template, /props and /slots, as its README has
them."""

from __future__ import annotations

import json

import httpx
import pytest
from conftest import STORIES, Server, run

import heads

QUESTION = [{"role": "user", "content": "what is it?"}]


@pytest.fixture(scope="module")
def server(talker):
    made = Server(f"stories={STORIES}", f"talker={talker}", "--parallel", 3)
    yield made
    made.stop()


@pytest.fixture
def post(server):
    return lambda path, **body: httpx.post(server.url + path, json=body, timeout=60)


def test_completion(post):
    """What ./run writes, whole and as events."""
    body = {"model": "stories", "prompt": "Once upon a time", "seed": 7, "n_predict": 20}
    extra = {"mirostat": 0, "id_slot": 1, "min_p": 0, "top_k": 0, "cache_prompt": True}
    said = run(STORIES, "-p", body["prompt"], "-s", 7, "-n", 20)[len(body["prompt"]) :]
    whole = post("/completion", **body, **extra).json()
    assert (whole["content"], whole["stop"], whole["stop_type"]) == (said, True, "limit")
    assert (whole["tokens_predicted"], whole["tokens_evaluated"]) == (20, 5)
    settings = whole["generation_settings"]
    assert (settings["n_predict"], settings["seed"], whole["model"]) == (20, 7, "stories")
    lines = post("/completion", stream=True, **body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line]
    assert "".join(x["content"] for x in events) == said
    assert [x["stop"] for x in events] == [False] * (len(events) - 1) + [True]
    assert events[-1] == {**whole, "content": ""}
    cut = post("/completion", **body, stop=[said[9:12]]).json()
    assert (cut["stop_type"], cut["stopping_word"]) == ("word", said[9:12])
    schema = {"type": "array", "items": {"const": 5}, "minItems": 2, "maxItems": 2}
    assert post("/completion", **body, json_schema=schema).json()["content"] == "[5, 5]"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mirostat": 2}, "unknown parameter: mirostat"),
        ({"prompt": ["a", "b"]}, "is for one text"),
        ({"n_predict": 0}, "max_tokens is 0"),
        ({"grammar": "root ::= a"}, "not in llama-server's form"),
    ],
)
def test_refused_completions(post, more, says):
    answer = post("/completion", **{"model": "stories", "prompt": "a", **more})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"]


def test_templates(post, talker):
    """A prompt that, sent back, is the chat's."""
    asked = {"model": "talker", "messages": QUESTION}
    prompt = post("/apply-template", **asked).json()["prompt"]
    with heads.Model(talker) as model:
        assert model.encode(prompt) == model.chat_ids(QUESTION)
    options = {"model": "talker", "temperature": 0, "max_tokens": 20, "repeat_penalty": 1}
    said = post("/v1/completions", prompt=prompt, **options).json()["choices"][0]["text"]
    chat = post("/v1/chat/completions", messages=QUESTION, **options).json()
    assert said == chat["choices"][0]["message"]["content"]
    goes_on = [*QUESTION, {"role": "assistant", "content": "It"}]
    answer = post("/apply-template", **{**asked, "messages": goes_on}, continue_final_message=True)
    assert answer.json()["prompt"] == prompt + "It"
    assert post("/apply-template", model="stories", messages=QUESTION).status_code == 400


def test_what_a_model_is(server, talker):
    props = httpx.get(server.url + "/props?model=talker").json()
    slots = httpx.get(server.url + "/slots?model=talker&fail_on_no_slot=1").json()
    assert props["total_slots"] == len(slots) == 3
    with heads.Model(talker) as model:
        assert props["default_generation_settings"]["n_ctx"] == slots[0]["n_ctx"] == model.context
    assert not any(slot["is_processing"] for slot in slots)
    assert props["chat_template"] and props["model_path"] == "talker.bin"
    assert props["modalities"] == {"vision": False, "audio": False}
    assert httpx.get(server.url + "/props").json()["model_alias"] == "stories"
    for path in ("/props", "/slots"):
        assert httpx.get(server.url + path + "?model=x").status_code == 404
    first, second = httpx.get(server.url + "/v1/models").json()["data"]
    assert (first["id"], second["id"]) == ("stories", "talker")
    assert second["max_model_len"] == second["meta"]["n_ctx"] == slots[0]["n_ctx"]


def test_places_at_work(serve, endless):
    server = serve(endless, "--parallel", 1)
    body = {"prompt": "abc", "n_predict": 100_000, "stream": True, "temperature": 0}
    with httpx.stream("POST", server.url + "/completion", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert httpx.get(server.url + "/slots").json()[0]["is_processing"]
        assert httpx.get(server.url + "/slots?fail_on_no_slot=1").status_code == 503
