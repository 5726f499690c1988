"""Tools: prompts by the checkpoint's own template, calls that a grammar forces, calls that are found
in a text, and what does not parse."""

from __future__ import annotations

import asyncio
import json
import random
import time

import chats
import httpx
import jsonschema
import openai
import pytest
import talkers
from conftest import STORIES
from tool_texts import (
    FOUND,
    HARMONY,
    QUESTION,
    SCHEMA,
    TEMPLATES,
    THOUGHT,
    TOOLS,
    functions_of,
)

import heads
from heads import _grammars as grammars
from heads.exporter.templates.jinja import Template
from heads.server import app as server_app, rendering, texts
from heads.server import tools as server_tools
from heads.server.messages import Refused
from heads.server.reader import HarmonyReader, Inputs, Reader, TaggedReader
from heads.server.texts import Answer
from heads.server.engine import Engine


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models that know all bytes, with these templates."""
    folder, found = tmp_path_factory.mktemp("tools"), {}
    for name, template in TEMPLATES.items():
        same = "thinking" if name == "thinking" else "hermes"  # those are one without tools
        metadata = talkers.template_metadata(TEMPLATES[same])
        metadata = {**metadata, "chat.template": template}
        (folder / f"{name}.bin").write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
        found[name] = heads.Model(folder / f"{name}.bin")
    yield found
    for model in found.values():
        model.close()


def ask(model: heads.Model, **options):
    engine = Engine(model, 4, 16)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=server_app.create_app(engine)))
    client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="-", http_client=http)

    async def run():
        answer = await client.chat.completions.create(model=engine.model_name, **options)
        return [chunk async for chunk in answer] if options.get("stream") else answer

    engine.start()
    try:
        return asyncio.run(asyncio.wait_for(run(), 120))
    finally:
        engine.stop()


def joined(chunks, n: int) -> list[dict]:
    """The choices of a stream, as those of a whole answer."""
    choices = [{"message": {}, "calls": []} for _ in range(n)]
    for part in (part for chunk in chunks for part in chunk.choices):
        choice = choices[part.index]
        choice["finish_reason"] = part.finish_reason
        for name, text in part.delta.model_dump(exclude_unset=True).items():
            if isinstance(text, str) and name != "role":
                choice["message"][name] = choice["message"].get(name, "") + text
        for call in part.delta.tool_calls or []:
            if call.index == len(choice["calls"]):
                assert len(call.id) == 9 and call.function.arguments == ""
                choice["calls"].append([call.function.name, ""])
            else:
                assert call.index == len(choice["calls"]) - 1 and call.function.name is None
                choice["calls"][-1][1] += call.function.arguments
    return choices


def check_stream(chunks, answer) -> None:
    for told, choice in zip(joined(chunks, len(answer.choices)), answer.choices):
        whole = choice.message.model_dump(exclude_unset=True)
        calls = [[x.function.name, x.function.arguments] for x in choice.message.tool_calls or []]
        assert (told["finish_reason"], told["calls"]) == (choice.finish_reason, calls)
        for name in ("content", "reasoning_content"):
            assert told["message"].get(name, "") == (whole.get(name) or "")


def check(calls, names: set[str]) -> None:
    for call in calls:
        assert call.function.name in names and len(call.id) == 9
        if call.function.name == "weather":
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


@pytest.mark.parametrize(
    "name",
    [
        *("hermes", "mistral", "mistral-11", "mistral-13", "llama"),
        *("deepseek", "deepseek-3.1", "harmony"),
    ],
)
def test_calls_that_are_forced(models, name):
    """Of a model that knows nothing of tools; whole and streamed, arguments in pieces."""
    options = dict(messages=QUESTION, temperature=1.5, seed=1, max_tokens=300, tools=TOOLS[:1], n=3)
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        options = {**options, "tool_choice": choice, "parallel_tool_calls": False}
        answer = ask(models[name], **options)
        called = [x for x in answer.choices if x.message.tool_calls]
        assert len(called) == 3 or name == "harmony" and called  # where it may think before
        for choice_ in called:
            check(choice_.message.tool_calls, {"weather"})
            assert (choice_.finish_reason, choice_.message.content) == ("tool_calls", None)
            assert len(choice_.message.tool_calls) == 1
    chunks = ask(models[name], stream=True, **options)
    check_stream(chunks, answer)


def test_thoughts(models):
    """A template that opens them: what comes before </think>, of which the rest is what was asked."""
    options = dict(messages=QUESTION, seed=1, max_tokens=40)
    answer = ask(models["thinking"], **options)
    message = answer.choices[0].message
    assert message.reasoning_content and not message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens
    check_stream(ask(models["thinking"], stream=True, **options), answer)


@pytest.mark.parametrize("name", ["hermes", "mistral", "llama"])
def test_parameters_that_refer_to_their_own_parts(models, name):
    """As pydantic writes nested models; parts of the same name are another tool's own."""

    def tool(number: int) -> dict:
        part = {"type": "object", "properties": {"n": {"const": number}}, "required": ["n"]}
        schema = {
            "$defs": {"Part": {**part, "additionalProperties": False}},
            "type": "object",
            "properties": {"part": {"$ref": "#/$defs/Part"}},
            "required": ["part"],
            "additionalProperties": False,
        }
        return {"type": "function", "function": {"name": f"t{number}", "parameters": schema}}

    tools, seen = [tool(1), tool(2)], set()
    options = dict(messages=QUESTION, tools=tools, temperature=5, seed=1, max_tokens=99, n=9)
    for choice in ("required", tools[0]):
        said = ask(models[name], tool_choice=choice, parallel_tool_calls=False, **options)
        for (call,) in (choice_.message.tool_calls for choice_ in said.choices):
            found = json.loads(call.function.arguments)["part"]["n"]
            assert call.function.name == f"t{found}" and (found == 1 or choice == "required")
            seen.add(found)
    assert seen == {1, 2}


def test_calls_in_the_history(models):
    """The client's own objects go back in; the prompt is what the template writes."""
    options = dict(temperature=1, seed=1, max_tokens=200, tools=TOOLS)
    named = {"type": "function", "function": {"name": "weather"}}
    said = ask(models["hermes"], messages=QUESTION, tool_choice=named, **options)
    called = said.choices[0].message
    messages = [*QUESTION, called.model_dump()]
    messages += [{"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "rain"}]
    ask(models["hermes"], messages=messages, **options)
    request = server_app.chat_request({"messages": messages, "tools": TOOLS}, "hermes")
    answer = Answer(Engine(models["hermes"], 1, 1), request)
    arguments = json.dumps(json.loads(called.tool_calls[0].function.arguments), ensure_ascii=False)
    assert models["hermes"].decode(answer.prompts[0]) == (
        f"[S]{json.dumps(TOOLS[0], ensure_ascii=False)}{json.dumps(TOOLS[1])}[u]what is it?\n"
        f'[a]\n<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>\n'
        "[t]rain\n[a]"
    )


SAID = {"role": "assistant", "content": " It is fine, "}


@pytest.mark.parametrize(
    ("name", "options", "written"),
    [
        ("hermes", {"add_generation_prompt": False}, "[u]what is it?\n[a] It is fine, \n"),
        ("hermes", {"continue_final_message": True}, "[u]what is it?\n[a] It is fine, "),
        ("stripped", {"continue_final_message": True}, "[u]what is it?\n[a]It is fine,"),
    ],
)
def test_how_a_prompt_ends(models, name, options, written):
    """With the beginning of an answer, or in the message that is to be continued."""
    body = {"messages": [*QUESTION, SAID], **options}
    answer = Answer(Engine(models[name], 1, 1), server_app.chat_request(body, name))
    assert models[name].decode(answer.prompts[0]) == written


def test_messages_that_cannot_be_continued(models):
    both = {"continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(openai.BadRequestError, match="not with add_generation_prompt"):
        ask(models["hermes"], messages=[*QUESTION, SAID], extra_body=both)
    gone = {"role": "tool", "content": "a" * 2000, "tool_call_id": "a"}
    with pytest.raises(openai.BadRequestError, match="to be continued, is not in what it writes"):
        options = {"continue_final_message": True}
        ask(models["silent"], messages=[*QUESTION, gone], extra_body=options)


# ---- tools whose input is text ----

SHELL = {"type": "custom", "custom": {"name": "shell", "description": "d"}}


@pytest.mark.parametrize("name", ["hermes", "mistral", "llama", "deepseek"])
def test_custom_tools(models, name):
    """Forced, given back, and streamed."""
    options = dict(temperature=1.5, seed=1, max_tokens=300, parallel_tool_calls=False)
    named = {"type": "custom", "custom": {"name": "shell"}}
    for choice in ("required", named):
        said = ask(models[name], messages=QUESTION, tools=[SHELL], tool_choice=choice, **options)
        (call,) = said.choices[0].message.tool_calls
        assert (call.type, call.custom.name, len(call.id)) == ("custom", "shell", 9)
    chunks = ask(
        models[name], messages=QUESTION, tools=[SHELL], tool_choice=named, stream=True, **options
    )
    deltas = [x.delta for chunk in chunks for x in chunk.choices if x.delta.tool_calls]
    calls = [x for delta in deltas for x in delta.model_dump()["tool_calls"]]
    assert calls[0]["custom"] == {"name": "shell", "input": ""} and calls[0]["index"] == 0
    assert "".join(x["custom"]["input"] for x in calls) == call.custom.input
    messages = [*QUESTION, said.choices[0].message.model_dump()]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "done"}]
    request = server_app.chat_request({"messages": messages, "tools": [SHELL]}, name)
    prompt = models[name].decode(Answer(Engine(models[name], 1, 1), request).prompts[0])
    assert json.dumps(call.custom.input, ensure_ascii=False)[1:-1] in prompt


@pytest.mark.parametrize("size", [1, 4, 99])
def test_inputs_of_custom_tools(models, size):
    """Between other calls, cut, and of another form than was asked for."""
    reader, inputs = (
        Reader(form_of(models, "hermes", [("shell", {})]), False, False),
        Inputs({"shell"}),
    )
    text = "Hm.\n"
    for called in (
        'shell", "arguments": {"input": "a\\n\\"b\\""}',
        'now", "arguments": {"input": "a"}',
    ):
        text += f'<tool_call>\n{{"name": "{called}}}\n</tool_call>\n'
    text += '<tool_call>\n{"name": "shell", "arguments": {"x": 1}}\n</tool_call>'
    text += '<tool_call>\n{"name": "shell", "arguments": {"input": "half'
    parts = []
    for at in range(0, len(text), size):
        over = at + size >= len(text)
        parts += inputs.push(reader.push(text[at : at + size], over), over)
    assert merged(parts) == [
        ["content", "Hm."],
        *(["custom", "shell"], ["input", 'a\n"b"']),
        *(["name", "now"], ["arguments", '{"input": "a"}']),
        *(["custom", "shell"], ["input", '{"x": 1}']),
        *(["custom", "shell"], ["input", "half"]),
    ]


def test_calls_of_a_template_with_a_taste_of_its_own(models):
    """DeepSeek's wants arguments as JSON, and no content at all beside them."""
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"a": "b"}'}}
    messages = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    request = server_app.chat_request({"messages": messages}, "deepseek")
    answer = Answer(Engine(models["deepseek"], 1, 1), request)
    form = form_of(models, "deepseek")
    text = models["deepseek"].decode(answer.prompts[0])
    text = text[text.index("<") : text.rindex(">") + 1]
    (found,) = read(Reader(form, False, False), text, 9)["tool_calls"]
    assert found["function"] == call["function"]


def test_thoughts_in_the_history():
    """By either name; a template that takes none beside a content and calls does without."""
    text = """{% for m in messages %}{% if m.content and m.thinking and m.tool_calls %}
{{- raise_exception('no') }}{% endif %}[{{ m.thinking or '' }}|{{ m.reasoning_content or '' }}]
{{- m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"""
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": {}}}
    message = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    template = Template(text, {})
    for content, written in (("", "[Hm.|Hm.]now"), ("I look.", "[|]now")):
        messages = [{**message, "content": content}]
        assert rendering.text_of(template, messages, None, {}) == written


def test_names_of_calls_are_looked_for_once():
    """40,000 calls that a template leaves out, or writes, take one pass of its text."""
    names = [f"f{i}" for i in range(40_000)]
    text = " ".join(names)
    begin = time.perf_counter()
    assert rendering._in_order(names, text)
    assert not rendering._in_order([*names, "g"], text)
    assert not rendering._in_order(["b", "a"], "ab")
    assert time.perf_counter() - begin < 0.5


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes more than 3 seconds",
        ),
        ("{{ '%2000000000d' % 1 }}", "too much of this"),
        ("{{ tools | tojson(indent=4) }}", "the chat template"),  # time or memory, what ends first
        ("{{ raise_exception('no') }}", "refuses this: no"),
    ],
)
def test_templates_have_bounds(monkeypatch, tmp_path, template, says):
    """A refusal in OpenAI's shape, others are answered meanwhile, and again at work afterwards."""
    monkeypatch.setattr(rendering, "SECONDS", 3)
    template = "{% if messages[-1].tool_calls %}" + template + "{% endif %}" + TEMPLATES["hermes"]
    metadata = {**talkers.template_metadata(TEMPLATES["hermes"]), "chat.template": template}
    path = tmp_path / "m.bin"
    path.write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
    inner = [1] * 100_000
    for _ in range(300):
        inner = [inner]
    deep = {"type": "object", "default": inner}
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]

    async def run(app) -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            body = {"messages": messages, "tools": tools, "max_tokens": 1}
            asked = asyncio.ensure_future(http.post("/v1/chat/completions", json=body, timeout=60))
            await asyncio.sleep(0.5)
            begin = time.perf_counter()
            assert (await http.get("/health")).status_code == 200
            assert time.perf_counter() - begin < 1
            return await asked

    with heads.Model(path) as model:
        engine = Engine(model, 1, 4)
        engine.start()
        answer = asyncio.run(run(server_app.create_app(engine)))
        engine.stop()
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text


def test_tools_that_are_allowed(models):
    """OpenAI's allowed_tools: one of two, in both modes."""
    entry = {"type": "function", "function": {"name": "weather"}}
    for mode in ("required", "auto"):
        allowed = {"mode": mode, "tools": [entry]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        body = {"messages": QUESTION, "tools": TOOLS, "tool_choice": choice}
        request = server_app.chat_request(body, "m")
        assert (request.tool_choice, request.tools) == (mode, TOOLS[:1])
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{**TOOLS[0]["function"]}]}
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        request = server_app.responses_request(
            {"input": "a", "tools": tools, "tool_choice": choice}, "m"
        )
        assert (request.tool_choice, request.tools) == (mode, TOOLS[:1])
    for wrong in ({}, {"mode": "auto", "tools": 5}, {"mode": "auto", "tools": [{"function": 1}]}):
        body["tool_choice"] = {"type": "allowed_tools", "allowed_tools": wrong}
        with pytest.raises(Refused, match="allowed_tools"):
            server_app.chat_request(body, "m")


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek"])
def test_calls_that_were_cut_come_back(models, name):
    """As the server itself gave them, at max_tokens."""
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"city": "Os'}}
    messages = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}, *QUESTION]
    answer = ask(models[name], messages=messages, max_tokens=1)
    assert answer.usage.prompt_tokens > 10
    call["function"]["arguments"] = "Oslo"
    with pytest.raises(openai.BadRequestError, match="are a JSON object"):
        ask(models[name], messages=messages, max_tokens=1)


def test_grammars_behind_thoughts(models):
    """What was asked for comes after them."""
    grammar = grammars.of_schema({"const": 5})
    outer = {
        "hermes": (server_tools.after_thoughts(models["hermes"], grammar), "Hm.\n</think>5", "5"),
        "harmony": (
            server_tools.Harmony(models["harmony"]).final(grammar),
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>5",
            "5",
        ),
    }
    for name, (made, right, wrong) in outer.items():
        for text in (right, wrong):
            matcher = grammars.matcher(models[name], made)
            read = matcher.consume_tokens(models[name].encode(text, special=False))
            assert (read and matcher.is_accepting()) == (text == right), (text, matcher.get_error())


def test_what_cannot_be_forced(models):
    for name in ("unknown", "qwen-coder"):
        with pytest.raises(openai.BadRequestError, match="none can be forced"):
            ask(models[name], messages=QUESTION, tools=TOOLS, tool_choice="required")
    with pytest.raises(openai.BadRequestError, match="has no place for them"):
        ask(models["plain"], messages=QUESTION, tools=TOOLS)
    free = ask(models["unknown"], messages=QUESTION, tools=TOOLS, max_tokens=5)
    assert free.choices[0].message.tool_calls is None


def form_of(models, name: str, calls=()) -> server_tools.Format | None:
    return server_tools.format_of(models[name], TEMPLATES[name], functions_of(calls))


def read(reader: Reader, text: str, size: int) -> dict:
    """The message that a text is, read in pieces of `size` characters."""
    parts = []
    for at in range(0, len(text), size):
        parts += reader.push(text[at : at + size])
    return texts.message(parts + reader.push("", True))


@pytest.mark.parametrize(("name", "text", "said", "calls"), FOUND)
@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_calls_that_are_found(models, name, text, said, calls, size):
    """Whole, and in pieces of a stream."""
    form = form_of(models, name, calls)
    kind = TaggedReader if isinstance(form, server_tools.Tagged) else Reader
    found = read(kind(form, False, False), text, size)
    called = [x["function"] for x in found.get("tool_calls", [])]
    assert (found["content"] or "") == said
    assert [(c["name"], json.loads(c["arguments"])) for c in called] == calls


@pytest.mark.parametrize(("name", "text"), [(f[0], f[1]) for f in FOUND if len(f[3]) == 2])
def test_the_server_finds_them(models, name, text):
    """What a grammar has a model write, whole and streamed."""
    form = {"type": "grammar", "syntax": "lark", "definition": f"start: {server_tools.lark(text)}"}
    wanted = next(calls for known, its, _, calls in FOUND if (known, its) == (name, text))
    tools = [{"type": "function", "function": x} for x in functions_of(wanted)]
    options = dict(messages=QUESTION, tools=tools, max_tokens=600, seed=1)
    options["extra_body"] = {"response_format": form}
    answer = ask(models[name], **options)
    called = [x.function for x in answer.choices[0].message.tool_calls]
    assert [(c.name, json.loads(c.arguments)) for c in called] == wanted
    check_stream(ask(models[name], stream=True, **options), answer)


@pytest.mark.parametrize("name", ["llama", "hermes", "harmony"])
def test_what_a_schema_asks_for_is_no_call(models, name):
    """Even if it looks like one: the grammar has no room for calls."""
    schema = {"const": {"name": "now", "parameters": {}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    options = dict(messages=QUESTION, tools=TOOLS, max_tokens=600, seed=1, response_format=form)
    answer = ask(models[name], **options)
    message = answer.choices[0].message
    assert message.tool_calls is None and json.loads(message.content) == schema["const"]
    check_stream(ask(models[name], stream=True, **options), answer)


def test_halves_of_pairs_in_arguments(models):
    """UTF-8 has no room for them, so that they stay escaped."""
    call = r'<tool_call>{"arguments": {"a": "\ud800"}, "name": "now"}</tool_call>'
    (found,) = read(Reader(form_of(models, "hermes"), False, False), call, 9)["tool_calls"]
    assert found["function"]["arguments"] == r'{"a": "\ud800"}'
    call = r'<tool_call><function=now><parameter=a>"\ud800"</parameter></function></tool_call>'
    form = form_of(models, "qwen-coder")
    (found,) = read(TaggedReader(form, False, False), call, 9)["tool_calls"]
    assert found["function"]["arguments"] == r'{"a": "\ud800"}'


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "1", "1"),
        ({"type": ["integer", "null"]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "[1]\n", "[1]"),
        ({"oneOf": 5, "enum": "a", "type": {}}, "1", "1"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1" * 5000, "1" * 5000),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
        ({"type": "object"}, '{"a": "\u00e9"}\n', {"a": "\u00e9"}),
        ({"type": "boolean"}, "False", False),
        ({}, "two\n\n", "two\n"),
        (5, "2", 2),
    ],
)
def test_arguments_between_tags_are_of_their_schemas_types(models, schema, text, value):
    function = {"name": "f", "parameters": {"properties": {"a": schema}}}
    template = TEMPLATES["qwen-coder"]
    form = server_tools.format_of(models["qwen-coder"], template, [function])
    call = f"<tool_call><function=f><parameter=a>\n{text}</parameter></function></tool_call>"
    (found,) = read(TaggedReader(form, False, False), call, 10**6)["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"a": value}


def test_calls_are_told_as_they_come(models):
    reader = Reader(form_of(models, "hermes"), False, False)
    assert reader.push('a \n<tool_call>{"name": "n') == [("content", "a")]
    assert reader.push('ow", "arguments": {"b') == [("name", "now"), ("arguments", '{"b')]
    assert reader.push('": {}} ') == [("arguments", '": {}}')] and reader.complete
    reader = TaggedReader(form_of(models, "qwen-coder"), False, False)
    assert reader.push("<tool_call><function=now") == []
    assert reader.push(">\n<para") == [("name", "now"), ("arguments", "{")]
    assert reader.push("meter=a>\nb\n</parameter") == [] and not reader.complete
    assert reader.push(">\n<") == [("arguments", '"a": "b"')]
    assert reader.push("/") == [("arguments", "}")] and reader.complete


@pytest.mark.parametrize("size", [1, 5, 10**6])
def test_thoughts_are_found(models, size):
    for text, message in THOUGHT:
        assert read(Reader(None, True, False), text, size) == {"role": "assistant", **message}, text
    for text, message, calls in HARMONY:
        form = form_of(models, "harmony", calls)
        found = read(HarmonyReader(form, False, False), text, size)
        called = [x["function"] for x in found.pop("tool_calls", [])]
        assert [(c["name"], c["arguments"]) for c in called] == calls
        assert found == {"role": "assistant", **message}


def merged(parts) -> list[list[str]]:
    found: list[list[str]] = []
    for kind, text in parts:
        if found and found[-1][0] == kind != "name":
            found[-1][1] += text
        else:
            found.append([kind, text])
    return found


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - {"thinking"}))
def test_a_stream_is_the_whole(models, name):
    """Texts of marks, halves of marks and noise, in any pieces."""
    calls = [call for known, _, _, calls in FOUND if known == name for call in calls]
    rng, form = random.Random(name), form_of(models, name, calls)
    words = [text for known, text, *_ in FOUND if known == name] + [text for text, *_ in HARMONY]
    words += [
        *(form.openers + form.marks + (form.close, form.end) if form else ()),
        *THOUGHT[0][:1],
    ]
    if isinstance(form, server_tools.Tagged):
        words += [form.opener, form.closer]
    words += ["<think>", "</think>", "\n", " ", "{", "}", '"', "\\", "n", '{"name": "n"}', "\u00e9"]
    for _ in range(400):
        pieces = [rng.choice(words)[rng.choice([0, 0, 0, 3]) :] for _ in range(rng.randrange(1, 9))]
        text, options = "".join(pieces), (form, rng.random() < 0.5, rng.random() < 0.3)
        kind = TaggedReader if isinstance(form, server_tools.Tagged) else Reader
        kind = HarmonyReader if rng.random() < 0.3 or name == "harmony" else kind
        whole, reader, parts = kind(*options).push(text, True), kind(*options), []
        at = 0
        while at < len(text):
            size = rng.choice([1, 2, 5, 30])
            parts += reader.push(text[at : at + size])
            at += size
        assert merged(parts + reader.push("", True)) == merged(whole), text
        assert [x for x in whole if x[0] == "arguments"][0:1] or not reader.n_calls


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tools": {"a": 1}}, "tools: expected an array"),
        ({"tools": [5]}, "tools.0.: expected"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.: expected"),
        ({"tools": [{"type": "custom"}]}, "tools.0.: expected custom with a name"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools.0.: expected"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}}]},
            "is text here",
        ),
        ({"tools": TOOLS, "tool_choice": "any"}, "expected none, auto"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "names none"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "some of the tools"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "tool_calls: expected objects"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [5]}]}, "not implemented"),
    ],
)
def test_refusals(models, options, says):
    with pytest.raises(openai.BadRequestError, match=says):
        ask(models["hermes"], **{"messages": QUESTION, "extra_body": options})
