"""POST /v1/messages, a chat in Anthropic's words. https://docs.anthropic.com/en/api/messages"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .messages import Refused
from .reader import SAID, THOUGHT
from .requests import Request, chat_request
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
OURS = {"messages", "system", "tools", "tool_choice", "thinking"}
OURS |= {"cache_control"}  # of no effect: every beginning is kept
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

# ---- requests ----


def messages_request(body: dict, model: str) -> Request:
    body = {name: value for name, value in body.items() if value is not None}
    for name in body:
        if name not in PASSED and name not in OURS:
            raise Refused(f"unknown parameter: {name[:80]}", name[:80], code="unknown_parameter")
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
    thinking = body.get("thinking")
    if not isinstance(thinking, (dict, type(None))):
        raise Refused("thinking: expected an object with a type", "thinking")
    if thinking and thinking.get("type") == "disabled":
        chat["chat_template_kwargs"] = {"enable_thinking": False}
    return chat_request(chat, model)


def _blocks(content, where: str) -> list[dict]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(x, dict) for x in content):
        raise Refused(f"{where}: expected a string or an array of blocks", where)
    return content


def _text(content, where: str) -> str:
    blocks = _blocks(content, where)
    if not all(x.get("type") == "text" and isinstance(x.get("text"), str) for x in blocks):
        raise Refused(f"{where}: only blocks of type text are known here", where)
    return "".join(x["text"] for x in blocks)


def _messages(message, where: str) -> list[dict]:
    """A chat's messages of one: what tools said comes before what a user says."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant"):
        raise Refused(f"{where}.role: expected user or assistant", where)
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
        names = {"name": "name", "description": "description", "input_schema": "parameters"}
        function = {ours: tool[name] for name, ours in names.items() if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    return found


def _choice(choice):
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in CHOICES:
        raise Refused("tool_choice: expected type auto, any, none or tool", "tool_choice")
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
