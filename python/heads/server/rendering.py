"""Chat templates run in processes of their own, which are given up when one takes too long or too
much: a template is a program, and a call inside jinja2 cannot be stopped from the same process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from ..exporter.templates.bounded import TooMuch, limit_memory
from ..exporter.templates.jinja import Template, TemplateFails
from .messages import CLOSED, GONE, OPEN, PROMPT, Refused

SECONDS = 5  # of a conversation; templates of published models take milliseconds
START_SECONDS = 30  # until a process is there: a tenth, unless the machine is busy
PROCESSES = 4  # at a time


# ---- in the server ----


class Rendered:
    """A template that other processes render."""

    def __init__(self, text: str, tokens: dict[str, str]):
        self.order = {"template": text, "tokens": tokens}

    def render(
        self, messages: list[dict], tools=None, variables: dict | None = None, end: str = PROMPT
    ) -> str:
        """The text of a conversation. Errors: TemplateFails; Refused, beyond the bounds."""
        order = {"messages": messages, "tools": tools, "variables": variables or {}, "end": end}
        order.update(self.order)
        answer = _answer(json.dumps(order).encode() + b"\n")
        if "fails" in answer:
            raise TemplateFails(answer["fails"])
        if "too_much" in answer:
            raise Refused(f"the chat template makes too much of this: {answer['too_much']}")
        return answer["text"]


class Process(subprocess.Popen):
    """One that renders, until somebody gives it up."""

    ready = given_up = False

    def kill(self) -> None:
        self.given_up = True
        super().kill()

    def told(self, seconds: float, order: bytes = b"") -> bytes:
        """The line that it answers an order with; b"": it was given up before that."""
        end = threading.Timer(seconds, self.kill)
        end.start()
        try:
            self.stdin.write(order)
            self.stdin.flush()
            return self.stdout.readline()
        except OSError:  # killed as it was written to
            return b""
        finally:
            end.cancel()
            end.join()


class Asker:
    """Whoever waits for what a thread does, and may go."""

    def __init__(self):
        self.lock, self.gone = threading.Lock(), False
        self.process: Process | None = None

    def waits_for(self, process: Process | None) -> None:
        """process: is killed if the asker goes, or has gone; None: nothing any more."""
        with self.lock:
            self.process = process
            if process and self.gone:
                process.kill()

    def goes(self) -> None:
        with self.lock:
            self.gone = True
            if self.process:
                self.process.kill()


asker: ContextVar[Asker] = ContextVar("asker", default=Asker())


_places = threading.BoundedSemaphore(PROCESSES)
_idle: list[Process] = []  # its methods are atomic


def _answer(order: bytes) -> dict:
    who = asker.get()
    if not _places.acquire(timeout=SECONDS):
        raise Refused("too many conversations are written at once; try again", status=503)
    try:
        if who.gone:
            raise Refused(GONE, status=499)
        process = _idle.pop() if _idle else _start()
        who.waits_for(process)
        process.ready = process.ready or bool(process.told(START_SECONDS))
        line = process.told(SECONDS, order) if process.ready else b""
        who.waits_for(None)
        answer = json.loads(line) if line.endswith(b"\n") else None
        if answer is None or "too_much" in answer:  # of its memory, much may be taken
            process.kill()
        if process.given_up:
            process.communicate()
        else:
            _idle.append(process)
        if not process.ready:
            raise Refused("no process for the chat template; try again", status=503)
        if answer is None:
            raise Refused(f"the chat template takes more than {SECONDS} seconds for this")
        return answer
    finally:
        _places.release()


def _start() -> Process:
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(x for x in (root, os.environ.get("PYTHONPATH")) if x)
    return Process(
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


def text_of(
    template: Template, messages: list[dict], tools, variables: dict, end: str = PROMPT
) -> str:
    """In the first form that the template takes, and of which it writes all calls."""
    if end == OPEN:
        return _opened(template, messages, tools, variables)
    calls = [call for m in messages for call in m.get("tool_calls", ())]
    written, refusal = None, None
    for form in _forms(messages) if calls else (messages,):
        try:
            text = template.render(form, end == PROMPT, variables, tools)
            if not tools:
                shown, names = text, [call["function"]["name"] for call in calls]
            elif calls:  # a name may be among the tools alone
                names = [f"call_{i}_" for i in range(len(calls))]
                shown = template.render(_renamed(form, names), end == PROMPT, variables, tools)
        except TemplateFails as error:
            refusal = refusal or error
            continue
        if not calls or _in_order(names, shown):
            return text
        written = written or text
    if written is None:
        raise refusal
    return written


def _renamed(messages: list[dict], names: list[str]) -> list[dict]:
    """With these names of the calls."""
    left = iter(names)
    return [
        {
            **message,
            "tool_calls": [
                {**call, "function": {**call["function"], "name": next(left)}}
                for call in message["tool_calls"]
            ],
        }
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _opened(template: Template, messages: list[dict], tools, variables: dict) -> str:
    """Up to the end of the last message's content, by a mark, as transformers 5.23 finds it. The
    mark's space tells whether the template strips messages."""
    mark, last = "THE_END_OF_THIS_MESSAGE ", messages[-1]
    marked = [*messages[:-1], {**last, "content": last["content"] + mark}]
    text = text_of(template, marked, tools, variables, CLOSED)
    at = text.rfind(mark.strip())
    if at < 0 or last["content"].strip() not in text:
        raise TemplateFails("the last message, to be continued, is not in what it writes")
    return text[:at] if text.startswith(mark, at) else text[:at].rstrip()


@lru_cache(8)
def _compiled(text: str, tokens: tuple) -> Template:
    return Template(text, dict(tokens))


def _done(order: dict) -> dict:
    try:
        template = _compiled(order["template"], tuple(order["tokens"].items()))
        template.now = datetime.now()
        given = (order[name] for name in ("messages", "tools", "variables", "end"))
        return {"text": text_of(template, *given)}
    except TemplateFails as error:
        return {"fails": str(error)}
    except TooMuch as error:
        return {"too_much": str(error)}
    except MemoryError:
        return {"too_much": "it needs more memory than there is"}


def main() -> None:
    """Answers each line of its standard input until that ends."""
    limit_memory()
    sys.stdout.buffer.write(b"\n")  # it is ready
    sys.stdout.buffer.flush()
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
