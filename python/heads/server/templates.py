"""Conversations with tools, written by the checkpoint's own chat template. Those without are the
library's: its compiled form of a template knows no tools."""

from __future__ import annotations

import re
import threading
import weakref
from ctypes import byref, c_size_t, string_at
from typing import TYPE_CHECKING

from .._native import HeadsError, InputError, calls
from ..exporter.templates.jinja import TemplateFails
from .messages import PROMPT
from .rendering import Rendered
from .requests import EFFORT
from .tools import is_harmony

if TYPE_CHECKING:
    from ..model import Model
    from .requests import Request

_templates: weakref.WeakKeyDictionary[Model, Rendered] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def template_text(model: Model) -> str:
    """The template as the checkpoint keeps it, "" if there is none."""
    size = c_size_t()
    text = calls.chat_template(model._handles.model, byref(size))
    return string_at(text, size.value).decode("utf-8", "replace") if text else ""


def special_tokens(model: Model) -> dict[str, str]:
    begin, ends = model.encode("")[:1], model.eos_ids()
    found = {"bos_token": begin, "eos_token": ends}
    return {name: model.token_text(ids[0]) for name, ids in found.items() if ids}


def _template(model: Model) -> Rendered:
    """Errors: InputError, there is none, or jinja2 writes another text than the library."""
    with _lock:
        if model not in _templates:
            text = template_text(model)
            if not text:
                raise InputError("this checkpoint has no chat template")
            template = Rendered(text, special_tokens(model))
            sample = [{"role": "user", "content": "a"}]
            try:
                known = model.chat_ids(sample)
            except HeadsError:  # the library does not have it
                known = None
            if known not in (None, _ids(model, template.render(sample))):
                raise InputError("this checkpoint's chat template is not reproduced with tools")
            _templates[model] = template
        return _templates[model]


def _ids(model: Model, text: str) -> list[int]:
    return model.encode(text, special=False)


def shows_tools(model: Model) -> bool:
    """Whether its template writes the tools that may be called. Errors: InputError."""
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    texts = []
    for tools in ([tool], None):
        try:
            texts.append(_template(model).render([{"role": "user", "content": "a"}], tools))
        except TemplateFails:  # a longer conversation may do
            return True
    return texts[0] != texts[1]


def chat_text(
    model: Model, messages: list[dict], tools: list[dict] | None, variables: dict, end: str = PROMPT
) -> str:
    """The text of a conversation in which tools are called, or which ends otherwise than with the
    beginning of an answer. Errors: InputError, what the template says."""
    try:
        return _template(model).render(messages, tools, variables, end)
    except TemplateFails as error:
        raise InputError(f"the chat template refuses this: {error}") from None


def thinking(model: Model, r: Request) -> dict:
    """What the template is told of thoughts, by the names that templates have for it."""
    template = template_text(model)
    thinks = "</think>" in template or is_harmony(template) or EFFORT in template
    told = {EFFORT: r.effort} if r.effort and EFFORT in template else {}
    if not r.no_think and not (r.effort == "none" and thinks):
        return told
    least = "none" if re.search("[\"']none[\"']", template) else "low"
    return {"enable_thinking": False, "thinking": False, **dict.fromkeys(told, least)}


def chat_ids(model: Model, request: Request) -> list[int]:
    """Of a chat's only prompt."""
    r, (messages,) = request, request.prompts
    variables = thinking(model, r)
    off = "enable_thinking" in variables
    if r.tools or r.with_more or r.end != PROMPT or (variables and not off):
        return _ids(model, chat_text(model, messages, r.tools or None, variables, r.end))
    return model.chat_ids(messages, no_think=off)
