"""Requests of OpenAI's protocol: which fields there are, what they may hold, and what is refused by
name. https://platform.openai.com/docs/api-reference"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from ._batch import BOUNDS, Sampling

MAX_CHOICES = 128  # prompts x n of one request
MAX_LOGPROBS = 20
MAX_VECTORS = 2048  # of one request


class Refused(Exception):
    """What is answered with an error's status, in OpenAI's shape."""

    def __init__(self, message: str, param: str | None = None, status: int = 400,
                 code: str | None = None):  # fmt: skip
        super().__init__(message)
        self.status = status
        kind = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}.get(
            status, "invalid_request_error"
        )
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass
class Request:
    """One request for texts, whatever its endpoint."""

    prompts: list  # texts or ids; of a chat, one list of messages
    is_chat: bool
    max_tokens: int | None
    sampling: Sampling
    n: int = 1
    stop: list[str] = field(default_factory=list)
    stream: bool = False
    usage_in_stream: bool = False
    by_chance: bool = False  # a field says how tokens are chosen
    echo: bool = False
    n_top: int | None = None  # tokens to name beside each; None: no log-probabilities
    no_think: bool = False
    lang: str | None = None  # that the texts of an encoder-decoder are in


@dataclass
class VectorRequest:
    """One request for the vectors of texts."""

    texts: list  # or ids
    base64: bool


def _number(body: dict, name: str, default, low: float, high: float, kind: type = float):
    value = body.get(name)
    if value is None:
        return default
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float))) or not low <= value <= high:
        what = "whole number" if kind is int else "number"
        raise Refused(f"{name}: expected a {what} from {low} to {high}", name)
    return kind(value)


def _flag(body: dict, name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, (bool, type(None))):
        raise Refused(f"{name}: expected true or false", name)
    return bool(value)


def _stop(body: dict) -> list[str]:
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else value or []
    ok = isinstance(stops, list) and len(stops) <= 16
    if not ok or not all(isinstance(s, str) and s for s in stops):
        raise Refused("stop: expected a string or up to 16 of them, none of them empty", "stop")
    return stops


def _is_ids(value) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(i) is int for i in value)


def _prompts(body: dict, name: str = "prompt") -> list:
    value = body.get(name)
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    ok = isinstance(prompts, list) and len(prompts) > 0
    if not ok or not all(isinstance(p, str) or _is_ids(p) for p in prompts):
        raise Refused(f"{name}: expected a string, an array of token ids, or an array of these",
                      name)  # fmt: skip
    return prompts


def _content(message: dict, where: str) -> str:
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(p, dict) and set(p) == {"type", "text"} and p["type"] == "text"
                   and isinstance(p["text"], str) for p in content):  # fmt: skip
            raise Refused(f"{where}.content: only parts of type text are known", where)
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Refused(f"{where}.content: expected a string", where)
    return content


def _messages(body: dict) -> list[dict]:
    value = body.get("messages")
    if not isinstance(value, list) or not value:
        raise Refused("messages: expected an array of messages", "messages")
    messages = []
    for i, message in enumerate(value):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or not set(message) <= {"role", "content", "name"}:
            raise Refused(f"{where}: expected an object with role and content", where)
        role = message.get("role")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise Refused(f"{where}.role: expected system, user or assistant", where)
        messages.append({"role": role, "content": _content(message, where)})
    return messages


COMMON = {"model", "max_tokens", "n", "stop", "stream", "stream_options", "user", *BOUNDS}
# Known fields whose other values are not implemented, and the values that say nothing.
NEUTRAL = {
    "frequency_penalty": (None, 0), "presence_penalty": (None, 0), "logit_bias": (None, {}),
    "best_of": (None, 1), "suffix": (None, ""), "response_format": (None, {"type": "text"}),
    "tools": (None, []), "tool_choice": (None, "none", "auto"), "parallel_tool_calls": (None, True),
    "modalities": (None, ["text"]), "store": (None, False), "metadata": (None, {}),
    "service_tier": (None, "auto", "default"), "dimensions": (None,),
}  # fmt: skip


def _check_names(body: dict, known: set[str], model: str) -> None:
    for name, value in body.items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise Refused(f"{name} is not implemented here", name, code="unsupported_parameter")
        elif name not in known:
            raise Refused(f"unknown parameter: {name[:80]}", name[:80], code="unknown_parameter")
    if body.get("model") not in (None, model):
        raise Refused(f"the model here is {model}", "model", 404, "model_not_found")
    if not isinstance(body.get("user"), (str, type(None))):
        raise Refused("user: expected a string", "user")


def _sampling(body: dict) -> Sampling:
    defaults = Sampling(seed=secrets.randbits(32))
    return Sampling(**{name: _number(body, name, getattr(defaults, name), low, high, kind)
                       for name, (kind, low, high) in BOUNDS.items()})  # fmt: skip


def _stream_usage(body: dict) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not set(options) <= {"include_usage"}:
        raise Refused("stream_options: only include_usage is known", "stream_options")
    return _flag(options, "include_usage")


def _request(body: dict, model: str, known: set[str], prompts: list, is_chat: bool,
             max_tokens: int | None) -> Request:  # fmt: skip
    _check_names(body, COMMON | known, model)
    n = _number(body, "n", 1, 1, MAX_CHOICES, int)
    if len(prompts) * n > MAX_CHOICES:
        raise Refused(f"a request has at most {MAX_CHOICES} texts, prompts times n", "n")
    request = Request(prompts, is_chat, max_tokens, _sampling(body), n, _stop(body),
                      _flag(body, "stream"), _stream_usage(body))  # fmt: skip
    request.by_chance = any(body.get(name) is not None for name in BOUNDS if name != "seed")
    return request


def completion_request(body: dict, model: str) -> Request:
    """POST /v1/completions."""
    max_tokens = _number(body, "max_tokens", 16, 0, 10**9, int)
    request = _request(body, model, {"prompt", "echo", "logprobs", "lang"}, _prompts(body), False,
                       max_tokens)  # fmt: skip
    request.lang = body.get("lang")
    if not isinstance(request.lang, (str, type(None))) or "\0" in (request.lang or ""):
        raise Refused("lang: expected a string, the language to write, or FROM:TO", "lang")
    request.echo = _flag(body, "echo")
    request.n_top = _number(body, "logprobs", None, 0, MAX_LOGPROBS, int)
    if max_tokens == 0 and not request.echo:
        raise Refused("max_tokens is 0, which makes sense with echo only", "max_tokens")
    return request


def chat_request(body: dict, model: str) -> Request:
    """POST /v1/chat/completions."""
    newer = _number(body, "max_completion_tokens", None, 1, 10**9, int)
    max_tokens = _number(body, "max_tokens", newer, 1, 10**9, int)
    known = {"messages", "max_completion_tokens", "logprobs", "top_logprobs",
             "chat_template_kwargs"}  # fmt: skip
    request = _request(body, model, known, [_messages(body)], True, max_tokens)
    n_top = _number(body, "top_logprobs", 0, 0, MAX_LOGPROBS, int)
    request.n_top = n_top if _flag(body, "logprobs") else None
    if n_top and request.n_top is None:
        raise Refused("top_logprobs needs logprobs: true", "top_logprobs")
    template = body.get("chat_template_kwargs") or {}
    if not isinstance(template, dict) or not set(template) <= {"enable_thinking"}:
        raise Refused("chat_template_kwargs: only enable_thinking is known", "chat_template_kwargs")
    request.no_think = template.get("enable_thinking") is False
    return request


def vector_request(body: dict, model: str) -> VectorRequest:
    """POST /v1/embeddings."""
    _check_names(body, {"input", "model", "encoding_format", "user"}, model)
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise Refused("encoding_format: expected float or base64", "encoding_format")
    texts = _prompts(body, "input")
    if len(texts) > MAX_VECTORS:
        raise Refused(f"input: a request has at most {MAX_VECTORS} texts", "input")
    return VectorRequest(texts, encoding == "base64")
