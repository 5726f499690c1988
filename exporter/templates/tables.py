"""The compiled form of a chat template, as docs/format.md, "The chat template", lays it out, and
what the engine does with it.

A conversation is a system message or none, then users' and assistant's messages. The text between
two contents depends on the *states* of the two. What becomes of a content depends on whether it is
a user's or the assistant's, whether it is the first, and how it stands to the last user's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Sequence

BEGIN, USER, ASSISTANT, END = 0, 1, 7, 11  # states; to the middle two FIRST is added, and
FIRST, FINAL, LAST = (
    1,
    2,
    4,
)  # FINAL: a user's that only answers follow, an answer after it; LAST: a user's at the end
OUTER, EMPTY, BLANK, BARE, EMPTY_IS_NONE, BLANK_IS_NONE = 1, 2, 4, 8, 16, 32  # classes of contents
TEXT, DATE, SYSTEM = 0, 1, 2  # kinds of items of a piece
NO_SET, SPACES = -1, 0  # what is stripped: nothing, white space, or a set of characters
WITH_SYSTEM, NO_THINK, NO_PROMPT = 1, 2, 4  # bits of a table's number
KINDS = (
    "system",
    "user",
    "assistant",
    "final",
)  # of contents, for triggers: final answers are a kind of their own
# The codes of a date that C's strftime writes as Python's does, whatever the locale may be set to.
DATE_CODE = re.compile(r"%(-?[dmHIMSjy]|[YBbAap%])")
Piece = tuple[tuple[int, object], ...]


class Inexact(Exception):
    """The compiled form cannot give this text; the text says why."""


@dataclass(frozen=True)
class Transform:
    """The change of a content: `left` and `right` strip; if it holds a `marker`, only the text
    after the last (or first) one counts, and `left_after`, `right_after` strip that. A set of
    characters is a string, "" white space, None none."""

    left: str | None = None
    right: str | None = None
    marker: str = ""
    first: bool = False
    left_after: str | None = None
    right_after: str | None = None

    def __call__(self, text: str) -> str:
        if not self.marker or self.marker not in text:
            return strip(text, self.left, self.right)
        text = text.split(self.marker, 1)[1] if self.first else text.rsplit(self.marker, 1)[1]
        return strip(text, self.left_after, self.right_after)


def strip(text: str, left: str | None, right: str | None) -> str:
    text = text if left is None else text.lstrip(left or None)
    return text if right is None else text.rstrip(right or None)


@dataclass
class Table:
    """How conversations of one kind are written: by bits of WITH_SYSTEM, NO_THINK, NO_PROMPT."""

    number: int
    pieces: dict[tuple[int, int], Piece] = field(default_factory=dict)
    alternating: dict[tuple[int, int], Piece] = field(
        default_factory=dict
    )  # of conversations that alternate
    transforms: dict[int, Transform] = field(default_factory=dict)
    classes: dict[int, int] = field(
        default_factory=dict
    )  # state, BEGIN for the system's -> sum of classes


@dataclass
class Chat:
    """A compiled template. `refused[n]` says why table n is not there."""

    tables: dict[int, Table] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    triggers: dict[str, set[str]] = field(default_factory=lambda: {kind: set() for kind in KINDS})
    repeats: bool = True
    switch: dict[str, object] = field(default_factory=dict)  # the variables that turn thinking off
    proved: int = 0  # conversations that were compared, and were equal


def states(roles: str) -> list[int]:
    """The states of the messages after the system's: `roles` is a string such as "uau"."""
    last_user = roles.rfind("u")
    out = []
    for i, role in enumerate(roles):
        first = FIRST * (role not in roles[:i])
        final = 0 if i < last_user else LAST if roles[i:] == "u" else FINAL
        out.append((USER if role == "u" else ASSISTANT) + first + final)
    return out


def kind_of(state: int) -> str:
    """The kind of a state, one of KINDS."""
    if state < ASSISTANT:
        return "user" if state else "system"
    return "final" if state - ASSISTANT & FINAL else "assistant"


def check_content(chat: Chat, table: Table, state: int, text: str) -> None:
    """Inexact if the content is of a class that is not exact."""
    classes = table.classes.get(state, 0)
    if text == "":
        kind = EMPTY
    elif text.isspace():
        kind = BLANK
    else:
        kind = OUTER * (text != text.strip())
        kind |= BARE * (table.transforms[state](text).strip() == "")
    if kind & ~classes:
        raise Inexact(f"class {kind & ~classes} in state {state}")
    for trigger in chat.triggers[kind_of(state)]:
        if trigger.encode().lower() in text.encode().lower():  # ASCII letters only
            raise Inexact(f"state {state} holds {trigger!r}")


def choose(chat: Chat, messages: Sequence[dict], number: int) -> tuple[Table, Sequence[dict]]:
    """The table of a conversation, and its messages without a system's that counts as none."""
    table = chat.tables.get(number)
    if table is None:
        raise Inexact(chat.refused.get(number, "no such table"))
    if not number & WITH_SYSTEM:
        return table, messages
    text, classes = messages[0]["content"], table.classes.get(BEGIN, 0)
    none = EMPTY_IS_NONE if text == "" else BLANK_IS_NONE if text.isspace() else 0
    if classes & none:
        return choose(chat, messages[1:], number & ~WITH_SYSTEM)
    check_content(chat, table, BEGIN, text)
    return table, messages


def assemble(
    chat: Chat, messages: Sequence[dict], no_think: bool, prompt: bool, now: datetime
) -> str:
    """The text of a conversation by the tables. Errors: Inexact."""
    has_system = bool(messages) and messages[0]["role"] == "system"
    number = WITH_SYSTEM * has_system + NO_THINK * no_think + NO_PROMPT * (not prompt)
    table, messages = choose(chat, messages, number)
    system = messages[0]["content"] if table.number & WITH_SYSTEM else ""
    contents = messages[bool(table.number & WITH_SYSTEM) :]
    if not chat.repeats and len({m["content"] for m in messages}) < len(messages):
        raise Inexact("two messages are equal")
    out, before = [], BEGIN
    for state, message in zip(states("".join(m["role"][0] for m in contents)), contents):
        check_content(chat, table, state, message["content"])
        out += [
            _write(table, before, state, system, now),
            table.transforms[state](message["content"]),
        ]
        before = state
    return "".join([*out, _write(table, before, END, system, now)])


def _write(table: Table, before: int, after: int, system: str, now: datetime) -> str:
    if (before, after) not in table.pieces:
        raise Inexact(f"no piece from state {before} to {after}")
    out = []
    for kind, value in table.pieces[before, after]:
        if kind == SYSTEM:
            value = table.transforms[BEGIN](system)
        out.append(now.strftime(value) if kind == DATE else value)
    return "".join(out)
