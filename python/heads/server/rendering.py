"""Chat templates run in processes of their own, which are given up when one takes too long or too
much: a template is a program, and a call inside jinja2 cannot be stopped from the same process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from ..exporter.templates.bounded import TooMuch, limit_memory
from ..exporter.templates.jinja import Template, TemplateFails
from .messages import Refused

SECONDS = 5  # of a conversation; templates of published models take milliseconds
PROCESSES = 4  # at a time


# ---- in the server ----


class Rendered:
    """A template that other processes render."""

    def __init__(self, text: str, tokens: dict[str, str]):
        self.order = {"template": text, "tokens": tokens}

    def render(self, messages: list[dict], tools=None, variables: dict | None = None) -> str:
        """The text of a conversation, and of the beginning of an answer. Errors: TemplateFails;
        Refused, beyond the bounds."""
        order = {**self.order, "messages": messages, "tools": tools, "variables": variables or {}}
        answer = _answer(json.dumps(order).encode() + b"\n")
        if "fails" in answer:
            raise TemplateFails(answer["fails"])
        if "too_much" in answer:
            raise Refused(f"the chat template makes too much of this: {answer['too_much']}")
        return answer["text"]


_places = threading.BoundedSemaphore(PROCESSES)
_idle: list[subprocess.Popen] = []  # its methods are atomic


def _answer(order: bytes) -> dict:
    if not _places.acquire(timeout=SECONDS):
        raise Refused("too many conversations are written at once; try again", status=503)
    try:
        process = _idle.pop() if _idle else _start()
        end = threading.Timer(SECONDS, process.kill)
        end.start()
        try:
            process.stdin.write(order)
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # killed as it was written to
            line = b""
        end.cancel()
        end.join()
        if not line.endswith(b"\n"):
            process.kill()
            process.communicate()
            raise Refused(f"the chat template takes more than {SECONDS} seconds for this")
        _idle.append(process)
        return json.loads(line)
    finally:
        _places.release()


def _start() -> subprocess.Popen:
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(x for x in (root, os.environ.get("PYTHONPATH")) if x)
    return subprocess.Popen(
        [sys.executable, "-m", "heads.server.rendering"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is the server's
    )


# ---- in such a process ----


def _forms(messages: list[dict]):
    """What templates want differs: a call's arguments as an object or as JSON, beside calls an empty
    content or none, and thoughts beside a content and calls or not."""
    for thoughts in (True, False):
        for content in ("", None):
            for write in (lambda x: x, _as_json):
                yield [_in_form(message, thoughts, content, write) for message in messages]


def _as_json(arguments: dict | str) -> str:
    """Text is what a cut call had."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


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


def text_of(template: Template, messages: list[dict], tools, variables: dict) -> str:
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


@lru_cache(8)
def _compiled(text: str, tokens: tuple) -> Template:
    return Template(text, dict(tokens))


def _done(order: dict) -> dict:
    try:
        template = _compiled(order["template"], tuple(order["tokens"].items()))
        template.now = datetime.now()
        return {"text": text_of(template, order["messages"], order["tools"], order["variables"])}
    except TemplateFails as error:
        return {"fails": str(error)}
    except TooMuch as error:
        return {"too_much": str(error)}
    except MemoryError:
        return {"too_much": "it needs more memory than there is"}


def main() -> None:
    """Answers each line of its standard input until that ends."""
    limit_memory()
    for line in sys.stdin.buffer:
        if hasattr(signal, "alarm"):
            signal.alarm(2 * SECONDS)  # if nobody is there who would kill it
        answer = json.dumps(_done(json.loads(line))).encode() + b"\n"
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
