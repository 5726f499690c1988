"""Fields of requests: each that the openai package has is done, refused by name, or documented as
without effect."""

from __future__ import annotations

import re

import anthropic.types as of_anthropic
import chats
import pytest
import talkers
from anthropic.types.message_create_params import MessageCreateParamsBase
from conftest import ROOT, STORIES
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params, response_includable
from openai.types.shared_params import reasoning, reasoning_effort
from typing_extensions import get_args, get_type_hints

import heads
from heads.server.anthropic import messages_request
from heads.server.app import chat_request, completion_request, responses_request, vector_request
from heads.server.engine import Engine
from heads.server.messages import Refused
from heads.server.requests import EFFORTS
from heads.server.responses import INCLUDED
from heads.server.texts import Answer
from test_tools import ask

QUESTION = [{"role": "user", "content": "what is it?"}]
DOCS = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
WITHOUT_EFFECT = set(re.findall(r"`([\w*]+)`", re.search(r"Without effect: ([^.]*)\.", DOCS)[1]))
# Of each request: its parser, a body, the package's own type, and which of its fields are done.
SAMPLED = "model frequency_penalty logit_bias presence_penalty seed stop temperature top_p n"
CHAT = (
    f"{SAMPLED} messages max_tokens max_completion_tokens logprobs top_logprobs tools tool_choice"
)
CHAT += " parallel_tool_calls response_format reasoning_effort stream_options"
REQUESTS = {
    "chat": (
        chat_request,
        {"messages": QUESTION},
        chat_create_params.CompletionCreateParamsBase,
        CHAT,
    ),
    "text": (
        completion_request,
        {"prompt": "a"},
        completion_create_params.CompletionCreateParamsBase,
        f"{SAMPLED} prompt max_tokens logprobs echo stream_options",
    ),
    "response": (
        responses_request,
        {"input": "a"},
        response_create_params.ResponseCreateParamsBase,
        "model input instructions temperature top_p max_output_tokens tools tool_choice text "
        "parallel_tool_calls reasoning stream_options include truncation",
    ),
    "vectors": (
        vector_request,
        {"input": "a"},
        embedding_create_params.EmbeddingCreateParams,
        "model input encoding_format",
    ),
    "message": (
        messages_request,
        {"messages": QUESTION, "max_tokens": 5},
        MessageCreateParamsBase,
        "model messages max_tokens system stop_sequences tools tool_choice thinking output_config",
    ),
}
# What says that nothing special is wanted, so that it is taken although nothing else is.
PLAIN = {"best_of": 1, "suffix": "", "modalities": ["text"], "speed": "standard"}
PLAIN |= {"defer_loading": False, "allowed_callers": ["direct"], "caller": {"type": "direct"}}


def is_without_effect(name: str) -> bool:
    starred = name.startswith("prompt_cache_") and "prompt_cache_*" in WITHOUT_EFFECT
    return starred or name in WITHOUT_EFFECT


@pytest.mark.parametrize("kind", REQUESTS)
def test_each_field_is_done_or_refused_or_documented(kind):
    parse, body, its_type, done = REQUESTS[kind]
    fields = set(its_type.__annotations__)
    assert set(done.split()) <= fields
    for name in fields - set(done.split()):
        try:
            parse({**body, name: {"a": 1}}, "m")
        except Refused as error:
            assert name in str(error), (name, error)
            if name in PLAIN:
                parse({**body, name: PLAIN[name]}, "m")
        else:
            assert is_without_effect(name), f"{name} is accepted, and ignored without a word"
    for name in WITHOUT_EFFECT & fields:
        parse({**body, name: "a"}, "m")


def says(role: str):
    return lambda block: {"messages": [{"role": role, "content": [block]}]}


# Of Anthropic's objects: one with the fields that are done, and the request that it stands in.
USED = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "b"}
FORM = {"effort": "low", "format": {"type": "json_schema", "schema": {}}}
OBJECTS = {
    "TextBlockParam": ({"type": "text", "text": "a"}, says("user")),
    "ThinkingBlockParam": ({"type": "thinking", "thinking": "a"}, says("assistant")),
    "ToolUseBlockParam": (USED, says("assistant")),
    "ToolResultBlockParam": (RESULT, says("user")),
    "UserMessageParam": ({"role": "user", "content": "a"}, lambda x: {"messages": [x]}),
    "AssistantMessageParam": ({"role": "assistant", "content": "a"}, lambda x: {"messages": [x]}),
    "SystemMessageParam": ({"role": "system", "content": "a"}, lambda x: {"messages": [x]}),
    "ToolParam": (
        {"type": "custom", "name": "f", "description": "a", "input_schema": {}},
        lambda x: {"tools": [x]},
    ),
    "ThinkingConfigEnabledParam": ({"type": "enabled"}, lambda x: {"thinking": x}),
    "ThinkingConfigAdaptiveParam": ({"type": "adaptive"}, lambda x: {"thinking": x}),
    "ThinkingConfigDisabledParam": ({"type": "disabled"}, lambda x: {"thinking": x}),
    "OutputConfigParam": (FORM, lambda x: {"output_config": x}),
}
CHOICES = {
    "ToolChoiceAutoParam": {"type": "auto", "disable_parallel_tool_use": True},
    "ToolChoiceAnyParam": {"type": "any", "disable_parallel_tool_use": True},
    "ToolChoiceToolParam": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "ToolChoiceNoneParam": {"type": "none"},
}
OBJECTS |= {
    name: (choice, lambda x: {"tools": [{"name": "f"}], "tool_choice": x})
    for name, choice in CHOICES.items()
}


@pytest.mark.parametrize("name", OBJECTS)
def test_each_field_of_anthropics_objects(name):
    made, request = OBJECTS[name]

    def parse(**more):
        body = {"messages": QUESTION, "max_tokens": 5, **request({**made, **more})}
        messages_request(body, "m")

    parse()
    fields = set(getattr(of_anthropic, name).__annotations__)
    assert set(made) <= fields
    for field in fields - set(made):
        try:
            parse(**{field: {"a": 1}})
        except Refused as error:
            assert f".{field}" in str(error), (field, error)
            if field in PLAIN:
                parse(**{field: PLAIN[field]})
        else:
            assert is_without_effect(field), f"{field} is accepted, and ignored without a word"
    with pytest.raises(Refused, match="unknown parameter: .*[.]beams"):
        parse(beams=1)


@pytest.mark.parametrize(
    ("union", "request_of"),
    [
        ("ContentBlockParam", says("user")),
        ("ContentBlockParam", says("assistant")),
        ("ToolUnionParam", lambda x: {"tools": [x]}),
        ("ThinkingConfigParam", lambda x: {"thinking": x}),
        ("ToolChoiceParam", lambda x: {"tool_choice": x}),
    ],
)
def test_each_kind_of_anthropics_objects(union, request_of):
    """It is one of the above, or refused by its place."""
    for kind in get_args(getattr(of_anthropic, union)):
        (type_, *_) = get_args(get_args(get_type_hints(kind, include_extras=True)["type"])[0])
        if kind.__name__ not in OBJECTS:
            body = {"messages": QUESTION, "max_tokens": 5, **request_of({"type": type_})}
            with pytest.raises(Refused, match=r"^(messages|tools)\[0]|^thinking|^tool_choice"):
                messages_request(body, "m")


@pytest.mark.parametrize("odd", [[], {}, 1])
def test_odd_types_of_anthropics_objects(odd):
    for more in (
        says("user")({"type": odd}),
        {"tools": [{"name": "f", "type": odd}]},
        {"tool_choice": {"type": odd}},
        {"thinking": {"type": odd}},
        {"output_config": {"format": {"type": odd}}},
        {"output_config": {"effort": odd}},
        {"messages": [{"role": odd, "content": "a"}]},
    ):
        with pytest.raises(Refused):
            messages_request({"messages": QUESTION, "max_tokens": 5, **more}, "m")


def test_efforts_are_the_packages():
    assert set(get_args(get_args(reasoning_effort.ReasoningEffort)[0])) == set(EFFORTS)
    assert {*get_args(response_includable.ResponseIncludable)} == INCLUDED | {
        "message.output_text.logprobs"
    }
    known = {"effort", "summary", "generate_summary", "context"}
    assert set(reasoning.Reasoning.__annotations__) - known == {"mode"}  # which is refused


@pytest.mark.parametrize(
    ("parse", "more", "says"),
    [
        (chat_request, {"reasoning_effort": "hard"}, "reasoning_effort: expected none, minimal"),
        (chat_request, {"chat_template_kwargs": {"reasoning_effort": 5}}, "reasoning_effort: exp"),
        (chat_request, {"chat_template_kwargs": {"a": 5}}, "only enable_thinking and reasoning_e"),
        (responses_request, {"reasoning": {"effort": "hard"}}, "reasoning_effort: expected none"),
        (responses_request, {"reasoning": {"mode": "pro"}}, "reasoning: expected an object"),
        (responses_request, {"include": ["message.output_text.logprobs"]}, "include: log-prob"),
        (responses_request, {"include": "a"}, "include: "),
        (responses_request, {"truncation": "auto"}, "truncation: only disabled"),
        (responses_request, {"stream_options": {"include_usage": True}}, "stream_options: only"),
        (chat_request, {"response_format": {"type": "json_object", "schema": 5}}, "schema: exp"),
    ],
)
def test_refused_values(parse, more, says):
    body = {"messages": QUESTION} if parse is chat_request else {"input": "a"}
    with pytest.raises((Refused, heads.InputError), match=says):
        parse({**body, **more}, "m")


def test_the_newer_limit_wins():
    for limits, want in (((5, 9), 9), ((5, None), 5), ((None, 9), 9), ((5, -1), None)):
        names = ("max_tokens", "max_completion_tokens")
        body = {"messages": QUESTION, **dict(zip(names, limits))}
        assert chat_request(body, "m").max_tokens == want


# As gpt-oss, Qwen3, and a model that has no thoughts.
EFFORT = """{%- if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}
{{- '[' + reasoning_effort + ']' }}{% for m in messages %}{{ m.content }}{% endfor %}[a]"""
SWITCH = """{%- for m in messages %}[{{ m.role[0] }}]{{ m.content }}{% endfor %}[a]
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"""
TEMPLATES = {"effort": EFFORT, "switch": SWITCH, "plain": SWITCH.partition("[a]")[0] + "[a]"}
SAYS = {  # template: effort: what the prompt ends with, or begins with
    "effort": {None: "[medium]", "low": "[low]", "xhigh": "[xhigh]", "none": "[low]"},
    "switch": {None: "[a]", "high": "[a]", "none": "[a]<think></think>"},
    "plain": {None: "[a]", "high": "[a]", "none": "[a]"},
}


@pytest.mark.parametrize("name", SAYS)
def test_effort_is_the_templates_variable(tmp_path, name):
    template = TEMPLATES[name]
    metadata = {**talkers.template_metadata(template), "chat.template": template}
    (tmp_path / "m.bin").write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
    with heads.Model(tmp_path / "m.bin", threads=1) as model:
        engine = Engine(model, 1, 1)
        for effort, said in SAYS[name].items():
            bodies = [{"reasoning_effort": effort}]
            bodies += [{"chat_template_kwargs": {"reasoning_effort": effort}}]
            requests = [chat_request({"messages": QUESTION, **x}, "m") for x in bodies]
            given = {"input": "what is it?", "reasoning": {"effort": effort}}
            requests.append(responses_request(given, "m"))
            for request in requests:
                (ids,) = Answer(engine, request).prompts
                text = model.decode(ids, skip_special=False).replace("<s>", "").strip()
                assert text.startswith(said) or text.endswith(said), (effort, text)


def test_a_json_object_with_a_schema(tmp_path):
    template = TEMPLATES["plain"]
    metadata = {**talkers.template_metadata(template), "chat.template": template}
    (tmp_path / "m.bin").write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
    form = {"type": "json_object", "schema": {"const": {"a": 1}}}
    with heads.Model(tmp_path / "m.bin", threads=1) as model:
        answer = ask(model, messages=QUESTION, max_tokens=50, response_format=form)
    assert answer.choices[0].message.content == '{"a": 1}'
