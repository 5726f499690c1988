"""POST /v1/messages, a chat in Anthropic's words. https://docs.anthropic.com/en/api/messages"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .messages import Refused
from .reader import SAID, THOUGHT
from .requests import EFFORT, Request, chat_request
from .texts import Answer
from .tools import call_id

if TYPE_CHECKING:
    from .engine import Engine

# Fields, and what a chat calls the same.
PASSED = {
    "model": "model",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",  # ours
    "stop_sequences": "stop",
    "stream": "stream",
    "metadata": "metadata",
    "service_tier": "service_tier",
}
# The fields of each object: what is done, then, behind a bar, what has no effect here (every beginning
# is kept; docs/python.md names these fields).
REQUEST = f"{' '.join(PASSED)} messages system tools tool_choice thinking output_config"
REQUEST += " | cache_control"
MESSAGE = "role content |"
BLOCKS = {
    "text": "type text | cache_control citations",
    "thinking": "type thinking | signature",
    "tool_use": "type id name input | cache_control",
    "tool_result": "type tool_use_id content | cache_control is_error",
}
TOOL = "type name description input_schema | cache_control strict input_examples"
TOOL += " eager_input_streaming"
CHOICE = "type name disable_parallel_tool_use |"
THINKING = "type | budget_tokens display"
OUTPUT = "effort format |"
# Values of other fields that ask for nothing.
PLAIN = {
    "speed": "standard",
    "defer_loading": False,
    "allowed_callers": ["direct"],
    "caller": {"type": "direct"},
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

# ---- requests ----


def messages_request(body: dict, model: str) -> Request:
    body = {name: value for name, value in body.items() if value is not None}
    _check(body, REQUEST)
    if "max_tokens" not in body:
        raise Refused("max_tokens: expected a whole number", "max_tokens")
    chat = {PASSED[name]: value for name, value in body.items() if name in PASSED}
    system = _text(body.get("system") or "", "system")
    chat["messages"] = [{"role": "system", "content": system}] if system else []
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Refused("messages: expected an array of messages", "messages")
    for i, message in enumerate(given):
        chat["messages"] += _messages(message, f"messages[{i}]")
    last = chat["messages"][-1]
    chat["continue_final_message"] = last["role"] == "assistant" and not last.get("tool_calls")
    chat["tools"] = _tools(body)
    choice = body.get("tool_choice")
    if choice is not None:
        chat["tool_choice"] = _choice(choice)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    if not _thinks(body):
        chat["chat_template_kwargs"] = {"enable_thinking": False}
    output = _object_of(body, "output_config", OUTPUT)
    chat[EFFORT], chat["response_format"] = output.get("effort"), output.get("format")
    return chat_request(chat, model)


def _check(given: dict, fields: str, where: str = "") -> None:
    """Refuses by name what is not one of the fields, is not null, and asks for something."""
    known = fields.replace("|", "").split()
    for name, value in given.items():
        if name in known or value is None or (name in PLAIN and value == PLAIN[name]):
            continue
        name = f"{where}{'.' * bool(where)}{name[:80]}"
        raise Refused(f"unknown parameter: {name}", name, code="unknown_parameter")


def _object_of(body: dict, name: str, fields: str) -> dict:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise Refused(f"{name}: expected an object", name)
    _check(value, fields, name)
    return value


def _thinks(body: dict) -> bool:
    kind = _object_of(body, "thinking", THINKING).get("type")
    if "thinking" in body and kind not in ("enabled", "adaptive", "disabled"):
        raise Refused("thinking: expected type enabled, adaptive or disabled", "thinking")
    return kind != "disabled"


def _blocks(content, where: str) -> list[dict]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(x, dict) for x in content):
        raise Refused(f"{where}: expected a string or an array of blocks", where)
    for block in content:
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in BLOCKS:
            raise Refused(f"{where}: only blocks of type {', '.join(BLOCKS)} are known here", where)
        _check(block, BLOCKS[kind], where)
    return content


def _text(content, where: str) -> str:
    blocks = _blocks(content, where)
    if not all(x.get("type") == "text" and isinstance(x.get("text"), str) for x in blocks):
        raise Refused(f"{where}: only blocks of type text are known in this place", where)
    return "".join(x["text"] for x in blocks)


def _messages(message, where: str) -> list[dict]:
    """A chat's messages of one: what tools said comes before what a user says."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant", "system"):
        raise Refused(f"{where}.role: expected user, assistant or system", where)
    _check(message, MESSAGE, where)
    said, thoughts, calls, results = [], [], [], []
    for block in _blocks(message.get("content"), where):
        kind = block.get("type")
        if kind == "thinking" and role == "assistant":
            thoughts.append(_text([{"type": "text", "text": block.get("thinking")}], where))
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input"))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            content = _text(block.get("content") or "", where)
            id = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": id, "content": content})
        else:
            said.append(block)
    if results and not said:
        return results
    own = {"role": role, "content": _text(said, where)}
    more = {"reasoning_content": "".join(thoughts), "tool_calls": calls}
    return [*results, {**own, **{name: value for name, value in more.items() if value}}]


def _tools(body: dict) -> list[dict]:
    tools = body.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Refused("tools: expected an array of objects", "tools")
    found = []
    for i, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):
            raise Refused(f"tools[{i}]: tools that a server runs are not here", "tools")
        _check(tool, TOOL, f"tools[{i}]")
        names = {"name": "name", "description": "description", "input_schema": "parameters"}
        function = {ours: tool[name] for name, ours in names.items() if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    return found


def _choice(choice):
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("tool", *CHOICES):
        raise Refused("tool_choice: expected type auto, any, none or tool", "tool_choice")
    _check(choice, CHOICE, "tool_choice")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return CHOICES[kind]


# ---- answers ----


def error_body(refusal: Refused) -> dict:
    told = refusal.body["error"]
    kind = {404: "not_found_error", 503: "overloaded_error"}.get(refusal.status, told["type"])
    return {"type": "error", "error": {"type": kind, "message": told["message"]}}


class Message(Answer):
    """A chat's answer as blocks of content."""

    # A part's kind: its block, where the block keeps the text, and the name of a piece of it.
    KINDS = {
        SAID: ("text", "text", "text_delta"),
        THOUGHT: ("thinking", "thinking", "thinking_delta"),
        "arguments": ("tool_use", "partial_json", "input_json_delta"),
    }

    def __init__(self, engine: Engine, request: Request):
        super().__init__(engine, request)
        self.id, self.n_blocks, self.open = f"msg_{uuid.uuid4().hex}", 0, None

    def written(self, content: list[dict], over: bool) -> dict:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.engine.model_name,
            "content": content,
            **(self._end() if over else {"stop_reason": None, "stop_sequence": None}),
            "usage": self._usage(),
        }

    def _usage(self) -> dict:
        prompt, new = self.spent()
        return {"input_tokens": prompt, "output_tokens": new}

    def _end(self) -> dict:
        reason = REASONS[self.finish_reason(0)]
        stops = self.request.stop
        if reason == "end_turn" and self.jobs[0].stopped == "stop":
            # Of several, which one it was is not known.
            return {
                "stop_reason": "stop_sequence",
                "stop_sequence": stops[0] if len(stops) == 1 else None,
            }
        return {"stop_reason": reason, "stop_sequence": None}

    def whole(self) -> dict:
        content: list[dict] = []
        for event in self._grown(True):
            if event["type"] == "content_block_start":
                content.append({**event["content_block"], "input": ""})
            elif event["type"] == "content_block_delta":
                _, key, _ = self.KINDS[self._kind_of(content[-1])]
                name = "input" if key == "partial_json" else key
                content[-1][name] += event["delta"][key]
        for block in content:
            text = block.pop("input")
            if block["type"] == "tool_use":
                block["input"] = _object(text)
        return self.written(content, True)

    def _kind_of(self, block: dict) -> str:
        return next(kind for kind, (name, *_) in self.KINDS.items() if name == block["type"])

    def _grown(self, over: bool) -> list[dict]:
        """What is new, told as events."""
        events = []
        for kind, text in self.parts(0, over):
            if kind == "name" or kind not in ("arguments", self.open):
                events += [*self._close(), self._begin(kind, text)]
            if kind != "name":
                _, key, delta = self.KINDS[kind]
                events.append(self._of("delta", delta={"type": delta, key: text}))
        return events + (self._close() if over else [])

    def _begin(self, kind: str, text: str) -> dict:
        self.open = kind
        self.n_blocks += 1
        if kind == "name":
            block = {"type": "tool_use", "id": f"toolu_{call_id()}", "name": text, "input": {}}
        elif kind == SAID:
            block = {"type": "text", "text": ""}
        else:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        return self._of("start", content_block=block)

    def _close(self) -> list[dict]:
        if self.open is None:
            return []
        self.open = None
        return [self._of("stop")]

    def _of(self, what: str, **more) -> dict:
        return {"type": f"content_block_{what}", "index": self.n_blocks - 1, **more}

    async def events(self) -> AsyncIterator[str]:
        def written(event: dict) -> str:
            return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"

        yield written({"type": "message_start", "message": self.written([], False)})
        try:
            async for _ in self.passes():
                for event in self._grown(self.jobs[0].done):
                    yield written(event)
        except Refused as error:
            yield written(error_body(error))
            return
        yield written({"type": "message_delta", "delta": self._end(), "usage": self._usage()})
        yield written({"type": "message_stop"})


def _object(text: str) -> dict:
    """A call's input; of one that max_tokens cut, nothing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
