"""From a text as it comes to what is said, thought and called. What was handed out is never taken
back, so a stream and a whole answer are the same."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tools import Format, Tagged

# What a part of a text is, besides a call's "name" and pieces of its "arguments".
SAID, THOUGHT = "content", "reasoning_content"
BRACKETS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


def begun(text: str, literals) -> int | None:
    """How far one of them goes from the text's beginning, white space aside. 0: the text may become
    one; None: it is none."""
    found = None
    for literal in literals:
        at = 0
        for c in literal:
            while text[at : at + 1].isspace():
                at += 1
            if at == len(text):
                found = 0
                break
            if text[at] != c:
                break
            at += 1
        else:
            return at
    return found


def held(text: str, marks) -> int:
    """Of its end, the characters that may begin a mark."""
    most = min(max((len(mark) - 1 for mark in marks), default=0), len(text))
    return next((n for n in range(most, 0, -1) if any(m.startswith(text[-n:]) for m in marks)), 0)


class Reader:
    """Each state takes from `rest` and hands out parts, (kind, text); it returns whether there may
    be more to do."""

    def __init__(self, form: Format | None, thinks: bool, opened: bool):
        """thinks: thoughts between <think> and </think> may come first; opened: they have begun."""
        self.form, self.thinks = form, thinks
        self.rest, self.over, self.n_read = "", False, 0
        self.parts: list[tuple[str, str]] = []
        self.blank = ""  # white space that was read last: it is said if something follows it
        self.fresh = False  # nothing was said in this state: its leading white space is dropped
        self.n_calls, self.complete = 0, True  # the last call
        self.silent, self.after_call = True, False  # nothing was said; nothing since the last call
        self.thoughts: list[tuple[int, int]] = []  # where they lie in the text
        self.state = self._first
        if opened:
            self._think()

    def push(self, text: str, over: bool = False) -> list[tuple[str, str]]:
        self.rest, self.over, self.parts = self.rest + text, over, []
        while self.state():
            pass
        return self.parts

    def _take(self, n: int) -> str:
        taken, self.rest = self.rest[:n], self.rest[n:]
        self.n_read += n
        return taken

    def _part(self, kind: str, text: str) -> None:
        if self.parts and self.parts[-1][0] == kind:
            text = self.parts.pop()[1] + text
        self.parts.append((kind, text))

    def _say(self, kind: str, text: str) -> None:
        text = self.blank + (text.lstrip() if self.fresh else text)
        said = text.rstrip()
        self.blank, self.fresh = text[len(said) :], self.fresh and not said
        if said:
            self.silent, self.after_call = self.silent and kind != SAID, False
            self._part(kind, said)

    def _turn(self, state) -> bool:
        """To what is not said; the blanks before are nothing."""
        self.state, self.blank, self.fresh = state, "", True
        return True

    def _until(self, kind: str, marks) -> bool:
        """Says what comes before a mark; whether there is one."""
        at = min((at for at in map(self.rest.find, marks) if at >= 0), default=-1)
        n = len(self.rest) - (0 if self.over else held(self.rest, marks)) if at < 0 else at
        self._say(kind, self._take(n))
        return at >= 0

    # ---- thoughts ----

    def _first(self) -> bool:
        form = self.form
        starts = ("<think>",) if self.thinks else ()
        calls = form.openers if form and not form.marks else ()
        if begun(self.rest, starts):
            self._take(begun(self.rest, starts))
            return self._think()
        if begun(self.rest, (*starts, *calls)) == 0 and not self.over:
            return False
        self.state = self._opening if calls else self._saying
        return True

    def _think(self) -> bool:
        self.thoughts.append((self.n_read, self.n_read))
        return self._turn(self._thinking)

    def _thinking(self) -> bool:
        ends = self._until(THOUGHT, ("</think>",))
        if ends:
            self._take(len("</think>"))
        self.thoughts[-1] = (self.thoughts[-1][0], self.n_read)
        if not ends:
            return False
        self.thinks = False
        return self._turn(self._first)

    # ---- calls ----

    def _saying(self) -> bool:
        if self._until(SAID, self.form.marks if self.form else ()):
            self.state = self._opening
            return True
        if self.over and self.blank and not self.after_call:
            self._part(SAID, self.blank)
            self.blank = ""
        return False

    def _header(self, literals) -> tuple[str, int] | int | None:
        """A call's name and where its arguments begin; else as begun() has it."""
        at = begun(self.rest, literals)
        if not at:
            return at
        name = self.form.name.match(self.rest, at)
        if not name:
            return None if self.rest[at:].strip() else 0
        rest = self.rest[name.end() :]
        if not self.form.knows(name[1], half=not rest):
            return None
        between = begun(rest, self.form.betweens)
        return (name[1], name.end() + between - 1) if between else between

    def _open(self, literals) -> bool | None:
        """Begins a call. False: more of the text will tell; None: there is none."""
        header = self._header(literals)
        if header:
            self._take(header[1])
            return self._call(header[0], self._arguing)
        before = begun(self.rest, self.form.objects(literals)) if header is None else 0
        if before:
            self.object = self._take(before - 1)
            self.depth, self.quoted, self.state = 0, False, self._collecting
            return True
        return False if before == 0 and not self.over else None

    def _opening(self) -> bool:
        opened = self._open(self.form.openers)
        if opened is not None:
            return opened
        tag = not self.rest.lstrip().startswith("{")
        if tag and self._header(self.form.openers) == 0:  # the end came first
            self.after_call = bool(self._take(len(self.rest)))
        else:
            self._say(SAID, self._take(1))
        self.state = self._saying
        return True

    def _call(self, name: str, state) -> bool:
        """White space before it is said if something was said there, and something follows."""
        if self.silent:
            self.blank, self.fresh = "", True
        self.parts.append(("name", name))
        self.state, self.after_call = state, True
        self.n_calls += 1
        self.complete, self.depth, self.quoted = False, 0, False
        return True

    def _collecting(self) -> bool:
        """A call as an object whose keys are in no order that could be told as it comes."""
        end, whole = self._bracketed()
        self.object += self._take(end)
        if not whole:
            return False  # nothing is left of half a call
        found = self.form.call(self.object[self.object.index("{") :])
        if found:
            self._call(found[0], self._closing_object)
            self.parts.append(("arguments", found[1]))
            self.complete = True
        else:
            self._say(SAID, self.object)
            self.state = self._saying
        return True

    def _closing_object(self) -> bool:
        return self._behind(self.form.close.partition("}")[2], self._closed)

    def _arguing(self) -> bool:
        """The object itself is not parsed: arguments are what the model wrote."""
        if self.depth == 0 and not self.rest.startswith("{"):  # it has none
            self.parts.append(("arguments", "{}"))
            self.state, self.complete = self._closing, True
            return True
        end, self.complete = self._bracketed()
        if self.complete:
            self.state = self._closing
        if end:
            self._part("arguments", self._take(end))
        return self.complete

    def _bracketed(self) -> tuple[int, bool]:
        """How far the object goes that the rest goes on with, and whether it ends there."""
        end = len(self.rest)
        for found in BRACKETS.finditer(self.rest):
            c = found[0]
            if c == "\\":
                end -= not self.over
            elif c == '"':
                self.quoted = not self.quoted
            elif not self.quoted and len(c) == 1:
                self.depth += 1 if c in "{[" else -1
            if self.depth == 0:
                return found.end(), True
        return end, False

    def _closing(self) -> bool:
        if self.form.close.startswith("}") and self.rest.lstrip().startswith(","):
            self.depth, self.quoted, self.state = 1, False, self._passing
            return True
        return self._behind(self.form.close, self._closed)

    def _passing(self) -> bool:
        """Other keys behind the arguments, such as an id."""
        end, whole = self._bracketed()
        self._take(end - whole)
        if whole:
            self.state = self._closing
        return whole

    def _closed(self) -> bool:
        """Another call, or the mark behind the last."""
        opened = self._open(self.form.nexts)
        if opened is not None:
            return opened
        if self.over and self._header(self.form.nexts) == 0:  # half of another
            self._take(len(self.rest))
        return self._behind(self.form.end, self._saying)

    def _behind(self, mark: str, state) -> bool:
        at = begun(self.rest, (mark,)) if mark else None
        if at == 0 and not self.over:
            return False
        self._take(len(self.rest) if at == 0 else at or 0)
        self.state = state if at or not mark else self._saying
        return True


class TaggedReader(Reader):
    """Of calls whose arguments stand between tags; each is handed out when it is whole."""

    form: Tagged

    def _call(self, name: str, state) -> bool:
        self.called, self.n_arguments = name, -1
        return super()._call(name, state)

    def _arguing(self) -> bool:
        if self.n_arguments < 0:
            self._take(1)  # the end of the call's own tag
            self._argue("{")
        begins = begun(self.rest, (self.form.opener,))
        if begins is None:
            self._part("arguments", "}")
            self.state, self.complete = self._closing, True
            return True
        argument = self.form.argument.match(self.rest) if begins else None
        end = self.rest.find(self.form.closer, argument.end()) if argument else -1
        if end < 0:
            return False
        value = self.form.value(self.called, argument, self.rest[argument.end() : end])
        between = ", " if self.n_arguments else ""
        self._argue(f"{between}{json.dumps(argument[1], ensure_ascii=False)}: {value}")
        self._take(end + len(self.form.closer))
        return True

    def _argue(self, text: str) -> None:
        self.n_arguments += 1
        self._part("arguments", text)


class HarmonyReader(Reader):
    """Messages of gpt-oss, which say in their heads what they are.
    https://cookbook.openai.com/articles/openai-harmony"""

    HEADS, BODY = ("<|start|>assistant", "<|channel|>", "to="), "<|message|>"
    ENDS = ("<|end|>", "<|call|>", "<|return|>")

    def _first(self) -> bool:
        head = begun(self.rest, self.HEADS)
        at = self.rest.find(self.BODY)
        if head and at < 0 and self.over:
            self._take(len(self.rest))  # half of a head
        if head is None or (self.over and at < 0):
            self.state, self.form = self._saying, None  # it is not written so
            return True
        if not head or at < 0:
            return False
        start, head = self.n_read, self._take(at + len(self.BODY))
        to = re.search(r"to=(functions\.)?([\w.-]+)", head)
        if to and to[1] and self.form and self.form.knows(to[2]):
            self._turn(self._arguing)
            return self._call(to[2], self._arguing)
        if to or re.search(r"<\|channel\|>\s*analysis", head):
            self.thoughts.append((start, start))
            return self._turn(self._thinking)
        return self._turn(self._telling)

    def _body(self, kind: str) -> bool:
        ends = self._until(kind, self.ENDS)
        if ends:
            self._take(self.rest.index(">") + 1)
            self._turn(self._first)
        return ends

    def _thinking(self) -> bool:
        ends = self._body(THOUGHT)
        self.thoughts[-1] = (self.thoughts[-1][0], self.n_read)
        return ends

    def _telling(self) -> bool:
        return self._body(SAID)

    def _arguing(self) -> bool:
        self.complete = True  # the token that ends it is not shown
        return self._body("arguments")


class Inputs:
    """Makes calls of custom tools of calls of functions: ("custom", name), and an ("input", text)
    when the arguments are whole."""

    def __init__(self, names: set[str]):
        self.names = names
        self.arguments: str | None = None  # of the call that is read

    def push(self, parts: list[tuple[str, str]], over: bool) -> list[tuple[str, str]]:
        found = []
        for kind, text in parts:
            if kind == "arguments" and self.arguments is not None:
                self.arguments += text
                continue
            found += self._input()
            if kind == "name" and text in self.names:
                kind, self.arguments = "custom", ""
            found.append((kind, text))
        return found + self._input() if over else found

    def _input(self) -> list[tuple[str, str]]:
        given, self.arguments = self.arguments, None
        return [] if given is None else [("input", _text_in(given))]


def _text_in(arguments: str) -> str:
    """The input; of a call that was cut, what there is; else the arguments as they are."""
    for end in ("", '"}'):
        try:
            found = json.loads(arguments + end, strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(found.get("input"), str):
            return found["input"]
    return arguments
