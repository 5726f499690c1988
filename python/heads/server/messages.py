"""The messages and the tools of a chat: which there are, and what is refused by name."""

from __future__ import annotations

import json
import re

GONE = "the client went away"
# How a conversation's text ends: with the beginning of an answer, with the last message, or within
# it, to be continued.
PROMPT, CLOSED, OPEN = "prompt", "closed", "open"


class Refused(Exception):
    """What is answered with an error's status, in OpenAI's shape."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.headers = {401: {"www-authenticate": "Bearer"}}.get(status)
        if status in (408, 413):  # the rest of the body is not read
            self.headers = {"connection": "close"}
        kind = {
            401: "authentication_error",
            429: "rate_limit_error",
            500: "server_error",
            503: "server_error",
        }.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


PART = {"type", "text", "cache_control"}  # the last marks a prefix; here all are kept


def _content(message: dict, where: str) -> str:
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        return ""
    if isinstance(content, list):
        if not all(
            isinstance(p, dict)
            and not {name for name in p if p[name] is not None} - PART
            and p.get("type") == "text"
            and isinstance(p.get("text"), str)
            for p in content
        ):
            raise Refused(f"{where}.content: only parts of type text are known", where)
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise Refused(f"{where}.content: expected a string", where)
    return content


def _call(call, where: str) -> dict:
    """One of an assistant's earlier calls, with its arguments as templates want them: an object, or
    the text of one that max_tokens cut."""
    call = _as_function(call, where)
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    try:
        arguments = json.loads(function.get("arguments") or "{}") if isinstance(name, str) else None
    except ValueError:
        text = function["arguments"]
        arguments = text if text.lstrip().startswith("{") else None
    except (TypeError, RecursionError):
        arguments = None
    if not (isinstance(arguments, dict) or arguments) or not isinstance(call.get("id"), str):
        raise Refused(
            f"{where}.tool_calls: expected objects with an id and a function, of which the "
            "arguments are a JSON object, in a string",
            where,
        )
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _as_function(call, where: str):
    """A call of a custom tool as one of a function; another as it is."""
    if not isinstance(call, dict) or call.get("type") != "custom":
        return call
    own = call.get("custom")
    text = own.get("input") if isinstance(own, dict) else None
    if not isinstance(text, str):
        raise Refused(f"{where}.tool_calls: expected custom with a name and an input", where)
    arguments = json.dumps({"input": text}, ensure_ascii=False)
    return {**call, "function": {"name": own.get("name"), "arguments": arguments}}


# What a message may hold beside its content, by its role. Null is what a client's own objects hold
# where nothing is.
ALSO = {"assistant": ("tool_calls", "reasoning_content"), "tool": ("tool_call_id",)}


def messages_of(body: dict) -> list[dict]:
    """The messages of a conversation, as chat templates want them."""
    value = body.get("messages")
    if not isinstance(value, list) or not value:
        raise Refused("messages: expected an array of messages", "messages")
    messages = []
    for i, message in enumerate(value):
        where = f"messages[{i}]"
        if not isinstance(message, dict):
            raise Refused(f"{where}: expected an object with role and content", where)
        role = message.get("role")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant", "tool"):
            raise Refused(f"{where}.role: expected system, user, assistant or tool", where)
        for name in message:
            known = name in ("role", "content", "name", "cache_control", *ALSO.get(role, ()))
            if message[name] not in (None, []) and not known:
                raise Refused(f"{where}.{name[:80]} is not implemented here", where)
        made = {"role": role, "content": _content(message, where)}
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise Refused(f"{where}.tool_calls: expected an array", where)
        if calls:
            made["tool_calls"] = [_call(call, where) for call in calls]
        thought = message.get("reasoning_content")
        if thought and not isinstance(thought, str):
            raise Refused(f"{where}.reasoning_content: expected a string", where)
        if thought:
            made["reasoning_content"] = thought
        if role == "tool":
            made.update({x: message[x] for x in ("tool_call_id", "name") if message.get(x)})
        messages.append(made)
    return messages


def has_more(messages: list[dict]) -> bool:
    """Whether some of them call tools, are what a tool said, or have thoughts."""
    return any(set(m) != {"role", "content"} for m in messages)


# ---- tools ----


TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def _of_text(tool: dict, i: int) -> dict:
    """A custom tool, whose input is text, as a function of one."""
    own = tool.get("custom")
    if not isinstance(own, dict):
        raise Refused(f"tools[{i}]: expected custom with a name", "tools")
    if own.get("format") not in (None, {"type": "text"}):
        raise Refused(f"tools[{i}]: the input of a custom tool is text here, no grammar", "tools")
    function = {name: own[name] for name in ("name", "description") if own.get(name) is not None}
    return {"type": "function", "function": {**function, "parameters": TEXT}}


def custom_names(body: dict) -> set[str]:
    return {x["custom"]["name"] for x in body.get("tools") or [] if x["type"] == "custom"}


def tools_of(body: dict) -> list[dict]:
    """The tools that may be called, as chat templates want them."""
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise Refused("tools: expected an array", "tools")
    custom = [isinstance(tool, dict) and tool.get("type") == "custom" for tool in tools]
    tools = [_of_text(tool, i) if custom[i] else tool for i, tool in enumerate(tools)]
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        named = isinstance(name, str) and re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name)
        if not named or tool.get("type") != "function":
            raise Refused(
                f"tools[{i}]: expected type function, and a function with a name", "tools"
            )
        if not isinstance(function.get("parameters") or {}, dict):
            raise Refused(f"tools[{i}]: parameters are a JSON schema, an object", "tools")
    return tools


def _named(tool: dict):
    return tool.get("custom" if tool.get("type") == "custom" else "function")


def _allowed(choice: dict, tools: list[dict]) -> tuple[str, list[dict]]:
    """OpenAI's allowed_tools: a mode, and the tools that may be called."""
    form = choice.get("allowed_tools")
    given = form.get("tools") if isinstance(form, dict) else None
    given = given if isinstance(given, list) and given else [None]
    functions = [_named(x) if isinstance(x, dict) else None for x in given]
    names = [x.get("name") if isinstance(x, dict) else None for x in functions]
    if not set(map(str, names)) <= {tool["function"]["name"] for tool in tools}:
        raise Refused("tool_choice: allowed_tools are some of the tools", "tool_choice")
    if form.get("mode") not in ("auto", "required"):
        raise Refused("tool_choice: the mode of allowed_tools is auto or required", "tool_choice")
    return form["mode"], [tool for tool in tools if tool["function"]["name"] in names]


def tool_choice_of(body: dict, tools: list[dict]) -> tuple[str, list[dict]]:
    """none, auto, required, or = and the name of a function that has to be called; and the tools
    that may be."""
    choice = body.get("tool_choice") or ("auto" if tools else "none")
    known = "tool_choice: expected none, auto, required or a function"
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice, tools)
    if isinstance(choice, dict):
        if choice.get("type") not in (None, "function", "custom"):
            raise Refused(known, "tool_choice")
        function = _named(choice)
        choice = function.get("name") if isinstance(function, dict) else None
        if choice not in [tool["function"]["name"] for tool in tools]:
            raise Refused("tool_choice: it names none of the tools", "tool_choice")
        return f"={choice}", tools
    if choice not in ("none", "auto", "required"):
        raise Refused(known, "tool_choice")
    if choice == "required" and not tools:
        raise Refused("tool_choice: there are no tools", "tool_choice")
    return choice, tools
