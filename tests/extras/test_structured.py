"""Answers that keep to a schema or a grammar, and what else says how tokens are chosen: the fields of
OpenAI's protocol that llguidance and the scheduler's biases and penalties serve."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import contextmanager

import checkpoints
import httpx
import jsonschema
import openai
import pydantic
import pytest
import talkers
import tokenizer_forms
from alarms import interrupted_after
from conftest import STORIES

import heads
import heads.ray
from exporter.tokenizers.files import tokenizer_metadata
from exporter.tokenizers.normalizers import SPACE_MARK
from heads import _grammars as grammars
from heads.server import app as server_app
from heads.server.engine import Engine

QUESTION = [{"role": "user", "content": "what is it?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["dog", "c\u00e4t", 5, None]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        "toys": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "legs", "toys"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def storyteller(tmp_path_factory):
    """A model that knows all bytes, with a chat template."""
    path = tmp_path_factory.mktemp("storyteller") / "storyteller.bin"
    path.write_bytes(talkers.with_template(STORIES.read_bytes(), talkers.PLAIN))
    return path


@pytest.fixture(scope="module")
def create(storyteller):
    """chat.completions.create of a client of an application in this process."""
    with heads.Model(storyteller) as model:
        engine = Engine(model, 8, 64)
        engine.start()
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=server_app.create_app(engine)))
        client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="-", http_client=http)

        def ask(path: str = "chat", **options):
            async def run():
                if path == "parse":
                    return await client.chat.completions.parse(model="storyteller", **options)
                calls = client.chat.completions if path == "chat" else client.completions
                answer = await calls.create(model="storyteller", **options)
                return [chunk async for chunk in answer] if options.get("stream") else answer

            return asyncio.run(asyncio.wait_for(run(), 120))

        yield ask
        engine.stop()


@contextmanager
def app_of(path):
    with heads.Model(path) as model:
        engine = Engine(model, 2, 4)
        engine.start()
        yield server_app.create_app(engine)
        engine.stop()


def posted(app, body: dict) -> httpx.Response:
    async def run():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/chat/completions", json=body)

    return asyncio.run(asyncio.wait_for(run(), 60))


def form(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


def texts(answer) -> list[str]:
    assert all(choice.finish_reason == "stop" for choice in answer.choices)
    return [choice.message.content for choice in answer.choices]


# ---- grammars ----


def test_answers_keep_to_a_schema(create):
    """Of a model with random weights, at a high temperature."""
    options = dict(messages=QUESTION, temperature=3, seed=1, n=12, max_tokens=400)
    answer = create(response_format=form(SCHEMA), logprobs=True, top_logprobs=2, **options)
    for text in texts(answer):
        jsonschema.validate(json.loads(text), SCHEMA)
    for choice in answer.choices:
        assert all(token.logprob <= 0 for token in choice.logprobs.content)
    assert len(set(texts(answer))) > 6
    chunks = create(response_format=form(SCHEMA), stream=True, **options)
    streamed = [""] * 12
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts(answer)
    free = create(messages=QUESTION, temperature=3, seed=1, max_tokens=40)
    assert free.choices[0].message.content[:9] != streamed[0][:9]


def test_schemas_with_less(create):
    """Formats of any string say nothing; items that differ are as many as can be written out."""
    kind = {"enum": ["a", "b", 3], "type": ["string", "integer"]}
    text = {"type": "string", "maxLength": 3}
    places = [{**text, "format": "path"}, {**text, "format": "password"}]
    schema = {
        "type": "object",
        "properties": {
            "format": {"anyOf": [*places, {"type": "string", "format": "binary", "maxLength": 3}]},
            "kinds": {"type": "array", "items": {"$ref": "#/$defs/kind"}, "uniqueItems": True},
            "flags": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
            "one": {"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"const": 5}},
            "any": {"type": "array", "uniqueItems": False, "maxItems": 2, "items": {"const": 5}},
            "kept": {"const": {"format": "path", "uniqueItems": True}},
        },
        "$defs": {"kind": kind},
        "additionalProperties": False,
    }
    schema["required"] = list(schema["properties"])
    schema["properties"]["kinds"]["minItems"] = 2
    options = dict(messages=QUESTION, temperature=3, seed=1, max_tokens=400)
    found = [json.loads(x) for x in texts(create(response_format=form(schema), n=24, **options))]
    for value in found:
        jsonschema.validate(value, schema)
    assert {len(value["kinds"]) for value in found} <= {2, 3}
    assert len({str(value["kinds"]) for value in found}) > 1
    with pytest.raises(openai.BadRequestError, match="uniqueItems: a grammar cannot compare"):
        create(response_format=form({"type": "array", "uniqueItems": True}), **options)


def test_grammars_of_bad_intent(create, talker):
    """Rules within rules, which end a process whose stack is small; more text than is read; what
    the model's letters cannot write."""
    deep = {"$ref": "#/$defs/d0", "$defs": {"d3000": {"const": 5}}}
    deep["$defs"].update({f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)})
    deep["$defs"]["d0"] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d1"}}}
    chain = "\n".join(f'r{i}: "a" r{i + 1}?' for i in range(6000)) + '\nr6000: "b"'
    options = dict(messages=QUESTION, max_tokens=4, n=1)
    assert create(response_format=form(deep), **options).choices
    lark = {"type": "grammar", "syntax": "lark", "definition": "start: r0\n" + chain}
    assert set(create(response_format=lark, **options).choices[0].message.content) == {"a"}
    with pytest.raises(openai.BadRequestError, match="characters, and at most 131072"):
        create(response_format={**lark, "definition": "start: r0\n" + chain * 2}, **options)
    with app_of(talker) as app:
        for stream in (False, True):
            body = {"messages": QUESTION, "response_format": {"type": "json_object"}}
            answer = posted(app, {**body, "stream": stream})
            assert "this model's tokens cannot write what the grammar asks for" in answer.text
            assert answer.status_code == (200 if stream else 400)


def test_grammars_that_take_for_ever(monkeypatch):
    """They are given up; two of them hold no other request for long, and end when they end."""
    monkeypatch.setattr(grammars, "SECONDS", 0.05)
    end = threading.Event()
    for says in ("takes more than", "takes more than", "are still being read"):
        with pytest.raises(heads.InputError, match=says):
            grammars._deeply(end.wait)
    end.set()
    monkeypatch.setattr(grammars, "SECONDS", 60)
    assert grammars._deeply(lambda: 5) == 5


def test_other_grammars(create):
    options = dict(messages=QUESTION, temperature=3, seed=1, n=4, max_tokens=400)
    lark = 'start: word ("-" word)*\nword: /[a-c]{2}/'
    for given, pattern in (
        ({"type": "grammar", "syntax": "lark", "definition": lark}, "[a-c]{2}(-[a-c]{2})*"),
        (
            {"type": "grammar", "syntax": "regex", "definition": "(ab|\u00e9){3}z"},
            "(ab|\u00e9){3}z",
        ),
    ):
        for text in texts(create(response_format=given, **options)):
            assert re.fullmatch(pattern, text), text
    anything = create(response_format={"type": "json_object"}, **{**options, "max_tokens": 300})
    for choice in anything.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        assert choice.message.content.startswith("{")
    completion = create("text", prompt="a", max_tokens=50, extra_body={
        "response_format": {"type": "grammar", "syntax": "regex", "definition": "x{7}"}
    })  # fmt: skip
    assert completion.choices[0].text == "xxxxxxx"


def test_answers_as_objects(create):
    class Pet(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=5)
        legs: int = pydantic.Field(ge=0, le=9)

    answer = create("parse", messages=QUESTION, response_format=Pet, max_tokens=200, seed=3)
    assert isinstance(answer.choices[0].message.parsed, Pet)


def test_the_module_keeps_to_a_schema(storyteller):
    with heads.Model(storyteller) as m:
        several = m.generate(["a", "b", "c"], 400, 3.0, seed=2, schema=SCHEMA)
        for text in [*several, m.chat(QUESTION, 400, 3.0, schema=json.dumps(SCHEMA))]:
            jsonschema.validate(json.loads(text), SCHEMA)
            assert text.stopped == "eos"
        assert several[1] == m.generate("b", 400, 3.0, seed=2, schema=SCHEMA)  # alone
        each = [SCHEMA, None, {"const": 5}]
        plain = m.generate("b", 400, 3.0, seed=2)
        assert m.generate(["a", "b", "c"], 400, 3.0, seed=2, schema=each) == [
            several[0],
            plain,
            "5",
        ]
        with pytest.raises(heads.InputError, match="schema: 3 of them for 1 prompts"):
            m.generate("a", schema=each)
        rows = {"prompt": ["a", "b", "c"], "schema": [json.dumps(SCHEMA), None, {"const": 5}]}
        batch = heads.ray.Generate(storyteller, dict(max_tokens=400, temperature=3.0, seed=2))
        assert list(batch(rows)["text"]) == [several[0], plain, "5"]
        for schema, says in (
            ({"type": "dogs"}, "the grammar cannot be used: "),
            ("{", "schema: it is not JSON"),
            ({"a": {1}}, "schema: it is not JSON"),
            ({"type": "string", "pattern": "(?<=a)b"}, "look-around"),
        ):
            with pytest.raises(heads.InputError, match=re.escape(says)):
                m.generate("a", schema=schema)


def test_a_vocabulary_that_cannot_write_what_it_must(talker):
    """It has no braces, so the text fails, with a reason."""
    with heads.Model(talker) as m, pytest.raises(heads.HeadsError, match="the grammar: "):
        m.generate("a", schema=SCHEMA)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("json", "expected type text"),
        ({"type": "xml"}, "expected type text"),
        ({"type": "json_schema"}, "needs a schema"),
        ({"type": "json_schema", "json_schema": {"schema": 5}}, "needs a schema"),
        (form({"type": "dogs"}), "the grammar cannot be used"),
        ({"type": "grammar", "syntax": "gbnf", "definition": "a"}, "lark or regex"),
        ({"type": "grammar", "syntax": "regex", "definition": "("}, "the grammar cannot be used"),
        ({"type": "grammar", "syntax": "lark", "definition": "start: b"}, "cannot be used"),
    ],
)
def test_grammars_that_are_refused(create, given, says):
    with pytest.raises(openai.BadRequestError, match=says):
        create(messages=QUESTION, extra_body={"response_format": given})


def test_a_grammar_of_llama_server_is_refused(create):
    with pytest.raises(openai.BadRequestError, match="not in llama-server's form"):
        create(messages=QUESTION, extra_body={"grammar": 'root ::= "a"'})


# ---- biases, penalties and limits ----


def test_biases_and_penalties(create, storyteller):
    options = dict(messages=QUESTION, max_tokens=30, temperature=0)
    free = create(**options).choices[0].message.content
    with heads.Model(storyteller) as m:
        first = m.chat(QUESTION, 30, 0.0).tokens[0]
        (wanted,) = m.encode("q", special=False)[-1:]
    banned = create(logit_bias={str(first): -100}, **options).choices[0].message.content
    assert banned != free
    forced = create(logit_bias={str(wanted): 100}, **options).choices[0].message.content
    assert set(forced.replace(" ", "")) == {"q"}
    for name in ("frequency_penalty", "presence_penalty"):
        assert create(**{name: 2}, **options).choices[0].message.content != free
        assert create(**{name: 0}, **options).choices[0].message.content == free


def test_fields_that_change_nothing(create):
    options = dict(messages=QUESTION, max_tokens=10, seed=4)
    free = create(**options).choices[0].message.content
    ignored = dict(
        user="a", metadata={"a": "b"}, store=True, prompt_cache_key="k", service_tier="flex",
        reasoning_effort="low", verbosity="low", safety_identifier="s", parallel_tool_calls=False,
    )  # fmt: skip
    assert create(**ignored, **options).choices[0].message.content == free


def test_as_many_tokens_as_fit(create):
    """-1, as null is for a chat."""
    grammar = {"type": "grammar", "syntax": "regex", "definition": "(ab){40}"}
    for name in ("max_tokens", "max_completion_tokens"):
        answer = create(messages=QUESTION, extra_body={name: -1, "response_format": grammar})
        assert texts(answer) == ["ab" * 40]
    text = create("text", prompt="a", extra_body={"max_tokens": -1, "response_format": grammar})
    assert text.choices[0].text == "ab" * 40


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"99999": 1}),
        ("logit_bias", [5]),
        ("logit_bias", {"5": None}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("frequency_penalty", 3),
        ("presence_penalty", "a"),
        ("max_tokens", -2),
        ("best_of", 2),
    ],
)
def test_refusals(create, field, value):
    with pytest.raises(openai.BadRequestError, match=field):
        create(messages=QUESTION, extra_body={field: value})


def test_steering(create, storyteller):
    """Vectors of a request alone, with their layers and scales."""
    with heads.Model(storyteller) as m:
        vector = [float(i % 7 - 3) for i in range(m.shape.n_embd)]
        vectors = {0: vector, 2: vector[::-1]}
        v = 0.25 * heads.Steering(vectors)
        want = [m.generate("One", 9, 0), m.generate("One", 9, 0, steer=v)]
        wide = m.shape.n_embd + 1
    steer = [{"layer": 0, "vector": vector, "scale": 0.25}]
    steer += [{"layer": 2, "vector": vector[::-1], "scale": 0.125}] * 2  # of one layer: they add up
    options = dict(prompt="One", max_tokens=9, temperature=0)
    for more in ({}, {"extra_body": {"steer": steer}}, {"extra_body": {"steer": []}}):
        text = create("text", **options, **more).choices[0].text
        assert text == want[more == {"extra_body": {"steer": steer}}]
    assert want[0] != want[1]
    one = {"layer": 0, "vector": vector}
    for bad in (1, [1], [{}], [{**one, "x": 1}], [{**one, "layer": -1}], [{**one, "layer": 99}],
                [{**one, "vector": [0.0] * wide}], [{**one, "vector": "a"}], [{**one, "scale": "a"}],
                [{**one, "vector": [1e39]}], [{**one, "scale": 1e39}]):  # fmt: skip
        with pytest.raises(openai.BadRequestError, match="steer"):
            create("text", **options, extra_body={"steer": bad})
    with pytest.raises(openai.BadRequestError, match="steer: not with echo"):
        create("text", **options, echo=True, extra_body={"steer": steer})


def test_the_stories_have_a_grammar_too():
    """Their tokenizer knows bytes by their names."""
    with heads.Model(STORIES) as m:
        text = m.generate("Once", 200, 1.0, schema={"enum": ["\u00e9\U0001f600 x"]})
    assert json.loads(text) == "\u00e9\U0001f600 x"


def test_a_tokenizer_that_begins_texts_with_a_space(tmp_path):
    """As those of SentencePiece do. What a grammar forces begins with none, and is written."""
    mark, few = SPACE_MARK, ['{"', "{", '"', "a", "}", ": ", "1"]
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    few = [mark, *(x.replace(" ", mark) for x in few), mark + "{", mark + '{"']
    pieces += [(x, -float(i), 1) for i, x in enumerate(few)]
    (tmp_path / "tokenizer.model").write_bytes(tokenizer_forms.sentencepiece(pieces))
    metadata = tokenizer_metadata(str(tmp_path / "tokenizer.model"))
    meta, tensors = checkpoints.parse(checkpoints.random_model(vocab=len(pieces)))
    for name, values in metadata.items():
        data = values if isinstance(values, bytes) else values.tobytes()
        kind = checkpoints.U8 if isinstance(values, bytes) else checkpoints.I32
        size = len(data) // (1 if kind == checkpoints.U8 else 4)
        meta[name] = checkpoints.Meta(kind, size, data)
    (tmp_path / "model.bin").write_bytes(checkpoints.build(meta, tensors))
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    with heads.Model(tmp_path / "model.bin") as model:
        assert model.token_bytes(model.encode("a", special=False)[0]).startswith(b" ")
        for seed in range(4):
            text = model.generate(
                "a", 40, 2.0, seed, schema={**schema, "additionalProperties": False}
            )
            assert json.loads(text) == {"a": 1} and text.stopped == "eos"


def test_a_signal_during_a_pass_is_not_lost(storyteller):
    """The next line of Python after it is a mask's first, whose exceptions ctypes forgets."""
    with heads.Model(storyteller) as model:
        for delay in (20, 23, 27, 31, 36):
            with pytest.raises(KeyboardInterrupt), interrupted_after(delay):
                for _ in range(20):
                    model.generate("a", max_tokens=100, schema=SCHEMA)
        assert json.loads(model.generate("a", max_tokens=200, schema=SCHEMA))
