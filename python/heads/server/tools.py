"""Calls of tools: how a checkpoint's template has them written, and the grammar that forces one."""

from __future__ import annotations

import json
import re
import secrets
import string
from typing import TYPE_CHECKING

from .. import _grammars as grammars
from .._grammars import JSON_OPTIONS

if TYPE_CHECKING:
    from ..model import Model

ANYTHING = {"type": "object"}


def call_id() -> str:
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(9))  # the length that Mistral's wants


class Format:
    """Objects with a name and arguments, each between two marks. What a reader looks for has no
    white space: text may have any there."""

    begin, end_of_call, key = "<tool_call>", "</tool_call>", "arguments"
    marks = ("<tool_call>",)  # where calls may begin in a text; none: at its beginning only
    openers = ('<tool_call>{"name":"',)  # up to the first call's name
    nexts = ()  # and up to another's, where that is another
    name = re.compile(r"\s*([\w.-]+)")
    betweens = ('","arguments":{', '"}')  # from the name to the arguments' first character
    close, end = "}</tool_call>", ""  # behind the arguments, and behind all calls
    forcible = True
    names: frozenset[str] = frozenset()  # of the tools that may be called

    def __init__(self, model: Model):
        self.model = model

    def mark(self, text: str) -> str:
        return mark(self.model, text)

    def knows(self, name: str, half: bool = False) -> bool:
        """Whether a tool has this name, or one that begins so."""
        return any(known.startswith(name) for known in self.names) if half else name in self.names

    def objects(self, literals) -> tuple[str, ...]:
        """Up to the brace of a call as an object, where marks tell it from a text."""
        heads = [x[: x.rindex("{") + 1] for x in literals if x.endswith('{"name":"')]
        return tuple(heads) if self.marks else ()

    def call(self, text: str) -> tuple[str, str] | None:
        """The name and the arguments of such an object, whose keys are in any order, and whose
        arguments may be JSON in a string; None: it is no call."""
        try:
            found = json.loads(text)
            inner = found.get("function")
            found = inner if isinstance(inner, dict) else found
            arguments = found.get(self.key) or {}
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            known = isinstance(found.get("name"), str) and self.knows(found["name"])
            return (
                (found["name"], written(arguments)) if known and type(arguments) is dict else None
            )
        except (ValueError, RecursionError):
            return None

    def schema(self, tools: list[dict]) -> dict:
        """Of one call as an object."""
        kinds = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["name"]},
                    # With an identity, a schema's references are to its own parts.
                    self.key: {"$id": f"urn:tool:{i}", **parameters(tool)},
                },
                "required": ["name", self.key],
                "additionalProperties": False,
            }
            for i, tool in enumerate(tools)
        ]
        return {"anyOf": kinds, "x-guidance": JSON_OPTIONS}

    def grammar(self, tools: list[dict], several: bool) -> str:
        """One call of these functions or more, in Lark's syntax."""
        more = ' ("\\n" call)*' if several else ""
        return (
            f"start: call{more}\n"
            f'call: {self.mark(self.begin)} "\\n" body "\\n" {self.mark(self.end_of_call)}\n'
            f"body: %json {json.dumps(self.schema(tools))}\n"
        )


class Mistral(Format):
    """An array of such objects behind a mark."""

    marks, openers, nexts = ("[TOOL_CALLS]",), ('[TOOL_CALLS][{"name":"',), (',{"name":"',)
    close, end = "}", "]"

    def grammar(self, tools: list[dict], several: bool) -> str:
        schema = {"type": "array", "items": self.schema(tools), "minItems": 1}
        if not several:
            schema["maxItems"] = 1
        body = json.dumps({**schema, "x-guidance": JSON_OPTIONS})
        return f"start: {self.mark('[TOOL_CALLS]')} body\nbody: %json {body}\n"


class MistralArgs(Format):
    """Of Mistral's tokenizers from version 11 on: the name and the arguments behind marks of their
    own, in version 11 with an id between them."""

    marks = openers = nexts = ("[TOOL_CALLS]",)
    name = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?")
    betweens, close = ("[ARGS]{", "[CALL_ID]"), ""  # the latter may be half there

    def __init__(self, model: Model, ids: bool):
        super().__init__(model)
        self.ids = ids

    def grammar(self, tools: list[dict], several: bool) -> str:
        call, id, args = map(self.mark, ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"))
        between = f"{id} /[a-zA-Z0-9]{{{{9}}}}/ {args}" if self.ids else args
        return f"start: call{'+' if several else ''}\n" + one_of(
            f"{call} {{name}} {between} {{body}}", tools
        )


class Llama(Format):
    """An object that is the whole answer, perhaps behind a mark; several are parted by semicolons."""

    key, marks = "parameters", ()
    openers = tuple(
        tag + head
        for tag in ("", "<|python_tag|>")
        for head in ('{"name":"', '{"type":"function","name":"')
    )
    nexts = tuple(";" + head for head in openers[:2])
    betweens, close = ('","parameters":{', '"}'), "}"

    def grammar(self, tools: list[dict], several: bool) -> str:
        return f"start: body\nbody: %json {json.dumps(self.schema(tools))}\n"


class DeepSeek(Format):
    """Of V2.5, V3 and R1: the arguments are a block of code."""

    CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    CALL, BETWEEN, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    marks = (CALLS[0],)
    openers, nexts = (f"{CALLS[0]}{CALL}function{BETWEEN}",), (f"{CALL}function{BETWEEN}",)
    betweens, close, end = ("```json{",), f"```{CLOSE}", CALLS[1]
    written = '{start} "function" {between} {{name}} "\\n```json\\n" {{body}} "\\n```" {close}'
    parted = '"\\n"'

    def grammar(self, tools: list[dict], several: bool) -> str:
        first, last = map(self.mark, self.CALLS)
        start, between, close = map(self.mark, (self.CALL, self.BETWEEN, self.CLOSE))
        more = f" ({self.parted} call)*" if several else ""
        call = self.written.format(start=start, between=between, close=close)
        return f"start: {first} call{more} {last}\n" + one_of(call, tools)


class DeepSeekBare(DeepSeek):
    """Of V3.1: the arguments as they are."""

    openers, nexts = (DeepSeek.CALLS[0] + DeepSeek.CALL,), (DeepSeek.CALL,)
    betweens, close = (DeepSeek.BETWEEN + "{",), DeepSeek.CLOSE
    written, parted = "{start} {{name}} {between} {{body}} {close}", ""


class Tagged(Format):
    """Of Qwen3-Coder and Qwen3.5: each argument between tags, strings as they are. Such calls are
    found but not forced."""

    openers, betweens, close = ("<tool_call><function=",), (">",), "</function></tool_call>"
    opener, argument = "<parameter=", re.compile(r"\s*<parameter=([^>]+)>\n?")
    closer, forcible = "</parameter>", False

    def __init__(self, model: Model, tools: list[dict]):
        super().__init__(model)
        self.wanted = {tool["name"]: parameters(tool).get("properties") for tool in tools}

    def is_text(self, call: str, argument: re.Match) -> bool:
        wanted = self.wanted.get(call)
        return isinstance(wanted, dict) and takes_text(wanted.get(argument[1]))

    def value(self, call: str, argument: re.Match, text: str) -> str:
        """As JSON."""
        text = text[:-1] if text.endswith("\n") else text
        if not self.is_text(call, argument):
            try:
                plain = {"True": "true", "False": "false", "None": "null"}.get(text, text)
                return written(json.loads(plain))
            except (ValueError, RecursionError):
                pass  # a string, then
        return written(text)


class DeepSeekTagged(Tagged):
    """Of V3.2: the tags say which are strings."""

    marks, end = ("<｜DSML｜function_calls>",), "</｜DSML｜function_calls>"
    nexts = ('<｜DSML｜invokename="',)
    openers, betweens, close = (marks[0] + nexts[0],), ('">',), "</｜DSML｜invoke>"
    opener, closer = '<｜DSML｜parametername="', "</｜DSML｜parameter>"
    argument = re.compile(r'\s*<｜DSML｜parameter\s+name="([^"]+)"\s+string="(true|false)">')

    def is_text(self, call: str, argument: re.Match) -> bool:
        return argument[2] == "true"


def takes_text(schema) -> bool:
    """Whether a string is among what a schema, which nobody has checked, names."""
    if not isinstance(schema, dict):
        return False

    def values(*names) -> list:
        found = [schema.get(name) for name in names]
        return [x for value in found for x in (value if isinstance(value, list) else [value])]

    texts = any(isinstance(x, str) for x in values("enum", "const"))
    return texts or "string" in values("type") or any(map(takes_text, values("anyOf", "oneOf")))


class Harmony(Format):
    """Of gpt-oss: a message in the channel of comments, behind one of thoughts or not."""

    def grammar(self, tools: list[dict], several: bool) -> str:
        channel, message = self.mark("<|channel|>"), self.mark("<|message|>")
        head = f'{channel} "commentary to=functions." {{name}} " "'
        call = f'{head} {self.mark("<|constrain|>")} "json" {message} {{body}}'
        return f"start: thoughts? call\n{self._thoughts()}" + one_of(call, tools)

    def _thoughts(self) -> str:
        start = f'{self.mark("<|channel|>")} "analysis" {self.mark("<|message|>")}'
        behind = f'{self.mark("<|start|>")} "assistant"'
        return f"thoughts: {start} thinking {behind}\n{up_to(self.model, '<|end|>')}"

    def final(self, grammar: str) -> str:
        """A grammar of what is said, as one of messages."""
        head = f'{self.mark("<|channel|>")} "final" {self.mark("<|message|>")}'
        return grammars.around(f"start: thoughts? {head} @inner\n{self._thoughts()}", grammar)


def after_thoughts(model: Model, grammar: str) -> str:
    """A grammar of what is said, where thoughts have begun."""
    return grammars.around(f"start: thinking @inner\n{up_to(model, '</think>')}", grammar)


def token(model: Model, text: str) -> int | None:
    """The special token that a mark is."""
    ids = model.encode(text, special=False)
    return ids[0] if len(ids) == 1 and model.is_special(ids[0]) else None


def mark(model: Model, text: str) -> str:
    """In Lark's syntax, as a token if it is one."""
    id = token(model, text)
    return lark(text) if id is None else f"<[{id}]>"


def up_to(model: Model, text: str) -> str:
    """The rule `thinking`: anything, and a mark."""
    if token(model, text) is None:
        return f"thinking[suffix={lark(text)}]: /(.|\\n)*/\n"
    return f"thinking: ANY {mark(model, text)}\nANY: /(.|\\n)*/\n"


def written(value) -> str:
    """As JSON, in letters that UTF-8 has. Errors: ValueError, a number is none."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair
        return json.dumps(value)
    return text


def lark(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parameters(tool: dict) -> dict:
    return tool.get("parameters") or ANYTHING


def one_of(call: str, tools: list[dict]) -> str:
    """The rules of one call of any of these, each with a body of its own."""
    rules = [
        f"call{i}: {call.format(name=lark(tool['name']), body=f'body{i}')}\n"
        f"body{i}: %json {json.dumps({**parameters(tool), 'x-guidance': JSON_OPTIONS})}\n"
        for i, tool in enumerate(tools)
    ]
    return f"call: {' | '.join(f'call{i}' for i in range(len(tools)))}\n" + "".join(rules)


def format_of(model: Model, template: str, tools: list[dict]) -> Format | None:
    """The one that a template writes calls of these functions in; None: it is none of these."""
    form = _form(model, template, tools)
    if form:
        form.names = frozenset(tool["name"] for tool in tools)
    return form


def _form(model: Model, template: str, tools: list[dict]) -> Format | None:
    if "<arg_key>" in template:
        return None
    if "<tool_call>" in template:
        return Tagged(model, tools) if "<function=" in template else Format(model)
    if "[TOOL_CALLS]" in template:
        named = "[ARGS]" in template
        return MistralArgs(model, "[CALL_ID]" in template) if named else Mistral(model)
    if DeepSeek.CALLS[0] in template:
        return DeepSeek(model) if "```json" in template else DeepSeekBare(model)
    if "｜DSML｜" in template:
        return DeepSeekTagged(model, tools)
    if is_harmony(template):
        return Harmony(model)
    if "ipython" in template and "parameters" in template and "<function=" not in template:
        return Llama(model)
    return None


def is_harmony(template: str) -> bool:
    return "<|channel|>" in template and "<|message|>" in template
