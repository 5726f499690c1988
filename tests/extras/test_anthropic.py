"""POST /v1/messages as the anthropic package asks and reads."""

from __future__ import annotations

import asyncio

import anthropic
import httpx2
import jsonschema
import pytest
from test_tools import QUESTION, SCHEMA, models  # noqa: F401

import heads
from heads.server import app as server_app
from heads.server.engine import Engine

TOOL = {"name": "weather", "description": "d", "input_schema": SCHEMA}


def ask(model: heads.Model, work, key: str | None = None):
    engine = Engine(model, 4, 16)
    app = server_app.create_app(engine, key)

    async def run():
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))
        async with anthropic.AsyncAnthropic(
            base_url="http://localhost", api_key="-", http_client=http, max_retries=0
        ) as client:
            return await work(client.messages, engine.model_name)

    engine.start()
    try:
        return asyncio.run(asyncio.wait_for(run(), 120))
    finally:
        engine.stop()


def both(model: heads.Model, **options):
    """A whole answer, which the stream's is too."""
    options = {"messages": QUESTION, "max_tokens": 60, "extra_body": {"temperature": 0}, **options}

    async def work(messages, name):
        whole = await messages.create(model=name, **options)
        async with messages.stream(model=name, **options) as stream:
            return whole, await stream.get_final_message()

    whole, streamed = ask(model, work)
    assert (whole.stop_reason, whole.usage) == (streamed.stop_reason, streamed.usage)
    left = [[x.model_dump(exclude={"id"}) for x in m.content] for m in (whole, streamed)]
    assert left[0] == left[1] and whole.content
    return whole


def test_text(models):  # noqa: F811
    """The words of a chat's answer, and how it ended."""
    model = models["hermes"]
    said = both(model, system="Be brief.", max_tokens=30)
    assert said.stop_reason == "max_tokens" and said.usage.output_tokens == 30
    text = said.content[0].text
    cut = both(model, system=[{"type": "text", "text": "Be brief."}], stop_sequences=[text[5:9]])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", text[5:9])
    assert cut.content[0].text == text[: text.index(text[5:9])]


def test_thoughts(models):  # noqa: F811
    said = both(models["thinking"])
    assert said.content[0].type == "thinking" and said.content[0].thinking


@pytest.mark.parametrize("name", ["hermes", "mistral", "llama", "deepseek"])
def test_tools(models, name):  # noqa: F811
    """A call that is forced, and given back with what the tool said."""
    chance = {"temperature": 1.5, "seed": 1, "cache_control": {"type": "ephemeral"}}
    options = dict(max_tokens=300, tools=[TOOL], extra_body=chance)
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        choice["disable_parallel_tool_use"] = True
        said = both(models[name], tool_choice=choice, **options)
        (call,) = said.content
        assert (said.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
        jsonschema.validate(call.input, SCHEMA)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    again = [
        *QUESTION,
        {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    more = both(models[name], messages=again, tools=[TOOL], max_tokens=9)
    assert more.usage.input_tokens > said.usage.input_tokens


def test_refusals(models):  # noqa: F811
    async def work(messages, name):
        create = messages.create
        options = dict(model=name, max_tokens=5, messages=QUESTION)
        image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
        for more, says in (
            ({"messages": image}, "only blocks of type text"),
            ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools that a server runs"),
            ({"extra_body": {"beams": 1}}, "unknown parameter: beams"),
            ({"extra_body": {"thinking": 1}}, "thinking: expected"),
            ({"extra_body": {"tool_choice": 1}}, "tool_choice: expected"),
            ({"extra_body": {"temperature": -1}}, "temperature: expected"),
        ):
            with pytest.raises(anthropic.BadRequestError, match=says) as failed:
                await create(**{**options, **more})
            assert failed.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.NotFoundError):
            await create(**{**options, "model": "other"})

    ask(models["hermes"], work)


def test_the_key(models):  # noqa: F811
    async def work(messages, name):
        return await messages.create(model=name, max_tokens=2, messages=QUESTION)

    assert ask(models["hermes"], work, "-").usage.output_tokens == 2
    with pytest.raises(anthropic.AuthenticationError):
        ask(models["hermes"], work, "secret")
