"""POST /v1/responses, of which nothing is stored: a chat in other words.
https://platform.openai.com/docs/api-reference/responses"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from .._batch import BOUNDS
from .messages import Refused
from .reader import SAID, THOUGHT
from .requests import EFFORT, IGNORED, PENALTIES, Request, chat_request, in_our_words
from .texts import Answer
from .tools import call_id

if TYPE_CHECKING:
    from .engine import Engine

# What a chat calls the same.
PASSED = {"model", "temperature", "top_p", "stream", "parallel_tool_calls", "logit_bias"}
PASSED |= {*BOUNDS, *PENALTIES, *IGNORED, "chat_template_kwargs"}
OURS = {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "text"}
CHECKED = {"reasoning", "include", "truncation", "stream_options", "top_logprobs"}
# What may be asked for beside the items that are there: thoughts come in the clear, and nothing else
# of it ever comes.
INCLUDED = {
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}
STATE = {"previous_response_id", "conversation", "background", "prompt"}

# ---- requests ----


def responses_request(body: dict, model: str) -> Request:
    body = {name: value for name, value in in_our_words(body).items() if value is not None}
    for name, value in body.items():
        if name in STATE and value not in (None, False):
            raise Refused(
                f"{name}: no response is kept here; give the conversation as input",
                name,
                code="unsupported_parameter",
            )
        if name not in PASSED | OURS | CHECKED | STATE:
            raise Refused(f"unknown parameter: {name[:80]}", name[:80], code="unknown_parameter")
    if body.get("top_logprobs") not in (None, 0):
        raise Refused("top_logprobs is not implemented here", "top_logprobs")
    chat = {name: value for name, value in body.items() if name in PASSED}
    chat["messages"] = _messages(body)
    chat["max_tokens"] = body.get("max_output_tokens")
    chat["tools"], chat["tool_choice"] = _tools(body), _tool_choice(body)
    chat["response_format"] = _format(body)
    chat[EFFORT] = _effort(body)
    _check(body)
    request = chat_request(chat, model)
    request.given = body
    return request


def _check(body: dict) -> None:
    """Of fields that change nothing: what they ask for that is not done."""
    include = body.get("include") or []
    if not isinstance(include, list) or not {*map(str, include)} <= INCLUDED:
        raise Refused("include: log-probabilities and unknown parts are not implemented", "include")
    if body.get("truncation") not in (None, "disabled"):
        raise Refused("truncation: only disabled is implemented here", "truncation")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict) or not set(options) <= {"include_obfuscation"}:
        raise Refused("stream_options: only include_obfuscation is known", "stream_options")


def _effort(body: dict):
    reasoning = body.get("reasoning") or {}
    known = {"effort", "summary", "generate_summary", "context"}
    if not isinstance(reasoning, dict) or not set(reasoning) <= known:
        raise Refused("reasoning: expected an object with an effort", "reasoning")
    return reasoning.get("effort")


def _messages(body: dict) -> list[dict]:
    given, messages = body.get("input"), []
    if body.get("instructions") is not None:
        messages.append({"role": "system", "content": body["instructions"]})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise Refused("input: expected a string or an array of items", "input")
    for i, item in enumerate(given):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise Refused(f"{where}: expected an object", where)
        _add(messages, item, where)
    return messages


def _add(messages: list[dict], item: dict, where: str) -> None:
    """An item; an assistant's thoughts, words and calls that follow each other are one message."""
    kind = item.get("type") or "message"
    if kind == "message":
        message = {"role": item.get("role"), "content": _text(item.get("content"), where)}
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    elif kind == "custom_tool_call":
        own = {"name": item.get("name"), "input": item.get("input")}
        call = {"id": item.get("call_id"), "type": "custom", "custom": own}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    elif kind in ("function_call_output", "custom_tool_call_output"):
        content = _text(item.get("output"), where)
        message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    elif kind == "reasoning":
        thought = _text(item.get("content") or "", where)
        message = {"role": "assistant", "content": None, "reasoning_content": thought}
    else:
        known = "message, reasoning, a function_call or custom_tool_call, or the _output of one"
        raise Refused(f"{where}.type: expected {known}", where)
    last = messages[-1] if messages else {}
    if message["role"] == last.get("role") == "assistant":
        if not (last["content"] and message["content"]):
            _join(last, message)
            return
    messages.append(message)


def _join(last: dict, message: dict) -> None:
    calls = last.get("tool_calls", []) + message.get("tool_calls", [])
    content = last["content"] or message["content"]
    last.update({**last, **message, "content": content})
    if calls:
        last["tool_calls"] = calls


def _text(content, where: str) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    kinds = ("input_text", "output_text", "reasoning_text", "text")
    if not all(
        isinstance(p, dict) and p.get("type") in kinds and isinstance(p.get("text"), str)
        for p in parts
    ):
        raise Refused(f"{where}: expected text, or parts that are text", where)
    return "".join(part["text"] for part in parts)


def _tools(body: dict) -> list[dict] | None:
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise Refused("tools: expected an array", "tools")
    found = []
    for i, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            raise Refused(f"tools[{i}]: only types function and custom are known", "tools")
        own = {k: v for k, v in tool.items() if k != "type" and v is not None}
        found.append({"type": kind, kind: own})
    return found


def _tool_choice(body: dict):
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        given = choice.get("tools")
        tools = [{"function": x} for x in given] if isinstance(given, list) else given
        return {"type": "allowed_tools", "allowed_tools": {**choice, "tools": tools}}
    kind = "custom" if choice.get("type") == "custom" else "function"
    return {"type": kind, kind: {"name": choice.get("name")}}


def _format(body: dict):
    text = body.get("text") or {}
    if not isinstance(text, dict) or not set(text) <= {"format", "verbosity"}:
        raise Refused("text: expected an object with a format", "text")
    form = text.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": form}
    return form


# ---- responses ----


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class Output:
    """The items of a response, and the events that tell of them."""

    PARTS = {SAID: "output_text", THOUGHT: "reasoning_text"}

    def __init__(self):
        self.items: list[dict] = []
        self.open: str | None = None  # the kind of the last item, while it grows

    def add(self, kind: str, text: str) -> list[dict]:
        if kind in ("arguments", "input"):
            self.items[-1][kind] += text
            name = f"response.{self.items[-1]['type']}_{kind}.delta"
            return [self._of_item(name, delta=text)]
        if kind in ("name", "custom"):
            return [*self.close(), *self._begin(kind, text)]
        events = [] if kind == self.open else [*self.close(), *self._begin(kind, text)]
        part = self.items[-1]["content"][0]
        part["text"] += text
        more = {"logprobs": []} if kind == SAID else {}
        return [*events, self._of_part(f"response.{part['type']}.delta", delta=text, **more)]

    def _begin(self, kind: str, text: str) -> list[dict]:
        self.open = kind
        if kind == "name":
            item = {"type": "function_call", "id": _id("fc"), "call_id": call_id()}
            item.update(name=text, arguments="")
        elif kind == "custom":
            item = {"type": "custom_tool_call", "id": _id("ctc"), "call_id": call_id()}
            item.update(name=text, input="")
        elif kind == SAID:
            item = {"type": "message", "id": _id("msg"), "role": "assistant", "content": []}
        else:
            item = {"type": "reasoning", "id": _id("rs"), "summary": [], "content": []}
        self.items.append({**item, "status": "in_progress"})
        added = self._of("response.output_item.added", item=_copy(self.items[-1]))
        if kind in ("name", "custom"):
            return [added]
        more = {"annotations": [], "logprobs": []} if kind == SAID else {}
        part = {"type": self.PARTS[kind], "text": "", **more}
        self.items[-1]["content"].append(part)
        return [added, self._of_part("response.content_part.added", part=_copy(part))]

    def close(self, status: str = "completed") -> list[dict]:
        """Ends the last item."""
        if self.open is None:
            return []
        kind, self.open, item = self.open, None, self.items[-1]
        item["status"] = status
        done = self._of("response.output_item.done", item=_copy(item))
        if kind == "name":
            name, text = item["name"], item["arguments"]
            event = "response.function_call_arguments.done"
            return [self._of_item(event, name=name, arguments=text), done]
        if kind == "custom":
            return [
                self._of_item("response.custom_tool_call_input.done", input=item["input"]),
                done,
            ]
        part = item["content"][0]
        more = {"logprobs": []} if kind == SAID else {}
        said = self._of_part(f"response.{part['type']}.done", text=part["text"], **more)
        return [said, self._of_part("response.content_part.done", part=_copy(part)), done]

    def _of(self, kind: str, **more) -> dict:
        return {"type": kind, "output_index": len(self.items) - 1, **more}

    def _of_item(self, kind: str, **more) -> dict:
        return self._of(kind, item_id=self.items[-1]["id"], **more)

    def _of_part(self, kind: str, **more) -> dict:
        return self._of_item(kind, content_index=0, **more)


def _copy(value: dict) -> dict:
    return json.loads(json.dumps(value))


class Response(Answer):
    """A chat's answer as a response."""

    def __init__(self, engine: Engine, request: Request):
        super().__init__(engine, request)
        self.id, self.created, self.output = _id("resp"), int(time.time()), Output()

    def written(self, status: str) -> dict:
        given, usage = self.request.given, None
        if status != "in_progress":
            usage = self._usage()
        text = given.get("text") or {}
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"),
            "metadata": given.get("metadata") or {},
            "model": self.engine.model_name,
            "output": self.output.items,
            "parallel_tool_calls": self.request.several_calls,
            "previous_response_id": None,
            "reasoning": given.get("reasoning") or {"effort": None, "summary": None},
            "store": False,
            "temperature": self.request.sampling.temperature,
            "text": {**text, "format": text.get("format") or {"type": "text"}},
            "tool_choice": given.get("tool_choice") or "auto",
            "tools": given.get("tools") or [],
            "top_p": self.request.sampling.top_p,
            "truncation": "disabled",
            "usage": usage,
        }

    def _usage(self) -> dict:
        usage = self.usage()
        thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": usage["total_tokens"],
        }

    def _grown(self, over: bool) -> list[dict]:
        """What is new, told as events."""
        events = [e for part in self.parts(0, over) for e in self.output.add(*part)]
        return events + (self.output.close(self._status()) if over else [])

    def _status(self) -> str:
        return "incomplete" if self.finish_reason(0) == "length" else "completed"

    def whole(self) -> dict:
        self._grown(True)
        return self.written(self._status())

    async def events(self) -> AsyncIterator[str]:
        number = 0

        def written(event: dict) -> str:
            nonlocal number
            data = json.dumps({**event, "sequence_number": number})
            number += 1
            return f"event: {event['type']}\ndata: {data}\n\n"

        for kind in ("created", "in_progress"):
            yield written({"type": f"response.{kind}", "response": self.written("in_progress")})
        try:
            async for _ in self.passes():
                for event in self._grown(self.jobs[0].done):
                    yield written(event)
        except Refused as error:
            told = error.body["error"]
            more = {name: told[name] for name in ("code", "message", "param")}
            yield written({"type": "error", **more})
            return
        status = self._status()
        yield written({"type": f"response.{status}", "response": self.written(status)})
