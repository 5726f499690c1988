"""Conversations with tools, written by the checkpoint's own chat template in jinja2's sandbox. Those
without are the library's: its compiled form of a template knows no tools."""

from __future__ import annotations

import json
import threading
import weakref
from ctypes import byref, c_size_t, string_at
from datetime import datetime
from typing import TYPE_CHECKING

from .._native import HeadsError, InputError, calls
from ..exporter.templates.jinja import Template, TemplateFails

if TYPE_CHECKING:
    from ..model import Model

_templates: weakref.WeakKeyDictionary[Model, Template] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def template_text(model: Model) -> str:
    """The template as the checkpoint keeps it, "" if there is none."""
    size = c_size_t()
    text = calls.chat_template(model.opened.model, byref(size))
    return string_at(text, size.value).decode("utf-8", "replace") if text else ""


def _special_tokens(model: Model) -> dict[str, str]:
    begin, ends = model.encode("")[:1], model.eos_ids()
    found = {"bos_token": begin, "eos_token": ends}
    return {name: model.token_text(ids[0]) for name, ids in found.items() if ids}


def _template(model: Model) -> Template:
    """Errors: InputError, there is none, or jinja2 writes another text than the library."""
    with _lock:
        if model not in _templates:
            text = template_text(model)
            if not text:
                raise InputError("this checkpoint has no chat template, which tools need")
            template = Template(text, _special_tokens(model))
            sample = [{"role": "user", "content": "a"}]
            try:
                known = model.chat_ids(sample)
            except HeadsError:  # the library does not have it
                known = None
            template.now = datetime.now()
            if known not in (None, _ids(model, template.render(sample, True, {}))):
                raise InputError("this checkpoint's chat template is not reproduced with tools")
            _templates[model] = template
        return _templates[model]


def _ids(model: Model, text: str) -> list[int]:
    return model.encode(text, special=False)


def _forms(messages: list[dict]):
    """What templates want differs: a call's arguments as an object or as JSON, beside calls an empty
    content or none, and thoughts beside a content and calls or not."""
    for thoughts in (True, False):
        for content in ("", None):
            for write in (lambda x: x, lambda x: json.dumps(x, ensure_ascii=False)):
                yield [_in_form(message, thoughts, content, write) for message in messages]


def _in_form(message: dict, thoughts: bool, content: str | None, write) -> dict:
    if "tool_calls" not in message:
        return message
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": write(call["function"]["arguments"])},
        }
        for call in message["tool_calls"]
    ]
    made = {**message, "content": message["content"] or content, "tool_calls": calls}
    if message["content"] and not thoughts:
        made.pop("reasoning_content", None)
    return made


def _in_order(names: list[str], text: str) -> bool:
    """Whether a text has each of these behind the one before it, found in one pass."""
    at = 0
    for name in names:
        at = text.find(name, at) + len(name)
        if at < len(name):
            return False
    return True


def _text(template: Template, messages: list[dict], tools, variables: dict) -> str:
    """In the first form that the template takes, and of which it writes all calls."""
    names = [call["function"]["name"] for m in messages for call in m.get("tool_calls", ())]
    written, refusal = None, None
    for form in _forms(messages) if names else (messages,):
        try:
            text = template.render(form, True, variables, tools)
        except TemplateFails as error:
            refusal = refusal or error
            continue
        if _in_order(names, text):
            return text
        written = written or text
    if written is None:
        raise refusal
    return written


def shows_tools(model: Model) -> bool:
    """Whether its template writes the tools that may be called. Errors: InputError."""
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    texts = []
    for tools in ([tool], None):
        try:
            texts.append(
                _template(model).render([{"role": "user", "content": "a"}], True, {}, tools)
            )
        except TemplateFails:  # a longer conversation may do
            return True
    return texts[0] != texts[1]


def tool_chat_ids(
    model: Model, messages: list[dict], tools: list[dict] | None, no_think: bool
) -> list[int]:
    """The ids of a conversation in which tools are called, and of the beginning of an answer.
    Errors: InputError, what the template says."""
    try:
        template = _template(model)
        template.now = datetime.now()
        variables = {"enable_thinking": False} if no_think else {}
        return _ids(model, _text(template, messages, tools, variables))
    except TemplateFails as error:
        raise InputError(f"the chat template refuses this: {error}") from None
