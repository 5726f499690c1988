"""/v1/responses as the openai client uses it: create, stream and parse, tools, thoughts, refusals."""

from __future__ import annotations

import asyncio
import json

import chats
import httpx
import openai
import pydantic
import pytest
import talkers
from conftest import STORIES
from test_tools import SCHEMA, TEMPLATES

import heads
from heads.server.app import create_app
from heads.server.engine import Engine
from heads.server.responses import Output, responses_request

TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
OPTIONS = dict(model="m", input="what is it?", temperature=1, extra_body={"seed": 1})


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """ask(name, work): what `await work(client.responses)` gives, of a model with a template."""
    folder, engines = tmp_path_factory.mktemp("responses"), {}
    for name in ("hermes", "thinking"):
        metadata = {**talkers.template_metadata(TEMPLATES[name]), "chat.template": TEMPLATES[name]}
        (folder / f"{name}.bin").write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
        engines[name] = Engine(heads.Model(folder / f"{name}.bin"), 2, 8, "m")
        engines[name].start()

    def run(name: str, work):
        async def go():
            transport = httpx.ASGITransport(app=create_app(engines[name]))
            http = httpx.AsyncClient(transport=transport)
            client = openai.AsyncOpenAI(
                base_url="http://localhost/v1", api_key="-", http_client=http, max_retries=0
            )
            return await asyncio.wait_for(work(client.responses), 60)

        return asyncio.run(go())

    yield run
    for engine in engines.values():
        engine.stop()
        engine.model.close()


def created(ask, name: str = "hermes", **options):
    async def work(responses):
        made = await responses.create(**{**OPTIONS, **options})
        return [event async for event in made] if options.get("stream") else made

    return ask(name, work)


def told(item) -> dict:
    return item.model_dump(exclude={"id", "call_id"})


def check_events(events, whole) -> None:
    """They are numbered, say what they build up, and end with the whole response."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert [told(x) for x in last.response.output] == [told(x) for x in whole.output]
    assert last.response.usage == whole.usage
    for index, item in enumerate(last.response.output):
        of = [e for e in events[2:-1] if e.output_index == index]
        pieces = "".join(e.delta for e in of if e.type.endswith(".delta"))
        called = {"function_call": "arguments", "custom_tool_call": "input"}.get(item.type)
        text = getattr(item, called) if called else item.content[0].text
        assert pieces == text and of[-1].item == item
        assert of[0].type == "response.output_item.added" and of[-1].type.endswith("item.done")


def test_text(ask):
    whole = created(ask, max_output_tokens=12, instructions="be brief", metadata={"a": "b"})
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.output_text and whole.usage.output_tokens == 12
    assert (whole.instructions, whole.metadata, whole.model) == ("be brief", {"a": "b"}, "m")
    same = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "what is it?"},
    ]
    assert created(ask, max_output_tokens=12, input=same).output_text == whole.output_text
    check_events(created(ask, max_output_tokens=12, instructions="be brief", stream=True), whole)


def test_calls_and_what_they_gave(ask):
    options = dict(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    whole = created(ask, **options)
    (call,) = whole.output
    assert (call.type, call.name, whole.status) == ("function_call", "weather", "completed")
    assert set(json.loads(call.arguments)) == {"city", "days"}
    check_events(created(ask, stream=True, **options), whole)
    after = [{"role": "user", "content": "what is it?"}, call.model_dump()]
    after += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert created(ask, input=after, tools=[TOOL], max_output_tokens=5).output
    request = responses_request({"input": after, "tools": [TOOL]}, "m")
    roles = [message["role"] for message in request.prompts[0]]
    assert roles == ["user", "assistant", "tool"]
    assert request.prompts[0][2]["tool_call_id"] == call.call_id


def test_custom_tools(ask):
    tool = {"type": "custom", "name": "shell", "description": "d", "format": {"type": "text"}}
    named = {"type": "custom", "name": "shell"}
    options = dict(tools=[tool], tool_choice=named, parallel_tool_calls=False)
    whole = created(ask, **options)
    (call,) = whole.output
    assert (call.type, call.name, whole.status) == ("custom_tool_call", "shell", "completed")
    check_events(created(ask, stream=True, **options), whole)
    after = [{"role": "user", "content": "what is it?"}, call.model_dump()]
    after += [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}]
    assert created(ask, input=after, tools=[tool], max_output_tokens=5).output
    (_, said, gave) = responses_request({"input": after, "tools": [tool]}, "m").prompts[0]
    assert said["tool_calls"][0]["function"]["arguments"] == {"input": call.input}
    assert gave["tool_call_id"] == call.call_id


def test_each_call_is_an_item():
    output = Output()
    parts = [
        ("name", "a"),
        ("arguments", "{}"),
        ("name", "b"),
        ("arguments", '{"c"'),
        ("arguments", ":1}"),
    ]
    for part in [*parts, ("custom", "d"), ("input", "x"), ("custom", "d"), ("input", "y")]:
        output.add(*part)
    output.close()
    assert [x.get("arguments", x.get("input")) for x in output.items] == ["{}", '{"c":1}', "x", "y"]
    assert [x["status"] for x in output.items] == ["completed"] * 4


def test_thoughts(ask):
    whole = created(ask, "thinking", max_output_tokens=9)
    (item,) = whole.output
    assert (item.type, item.status) == ("reasoning", "incomplete") and item.content[0].text
    assert whole.usage.output_tokens_details.reasoning_tokens == 9
    check_events(created(ask, "thinking", max_output_tokens=9, stream=True), whole)
    again = [{"role": "user", "content": "a"}, item.model_dump(), {"role": "user", "content": "b"}]
    assert created(ask, input=again, max_output_tokens=3).output


class Pet(pydantic.BaseModel):
    legs: int
    kind: str = pydantic.Field(max_length=9)


def test_the_clients_helpers(ask):
    """parse() and stream() with a type."""

    async def parse(responses):
        return await responses.parse(text_format=Pet, **OPTIONS)

    async def stream(responses):
        async with responses.stream(text_format=Pet, **OPTIONS) as events:
            async for _ in events:
                pass
            return await events.get_final_response()

    for work in (parse, stream):
        assert isinstance(ask("hermes", work).output_parsed, Pet)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"previous_response_id": "resp_1"}, "no response is kept here"),
        ({"background": True}, "no response is kept here"),
        ({"input": []}, "input: expected"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0..type: expected"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.: expected"),
        ({"input": [{"type": "function_call", "name": 5}]}, "tool_calls: expected"),
        ({"tools": [{"type": "web_search"}]}, "only types function and custom"),
        ({"text": {"format": {"type": "json_schema"}}}, "needs a schema"),
        ({"extra_body": {"messages": []}}, "unknown parameter: messages"),
        ({"model": "n"}, "the model here is m"),
    ],
)
def test_refusals(ask, options, says):
    with pytest.raises(openai.APIStatusError, match=says) as refused:
        created(ask, **options)
    assert refused.value.status_code == (404 if "model" in options else 400)


def test_store_is_ignored(ask):
    assert created(ask, store=True, max_output_tokens=3).store is False
