"""Compiles a chat template into pieces of text and transforms of contents, as docs/format.md, "The chat template", lays out.

A conversation is a system message or none, then users' and assistant's messages. The text between two contents depends
on the *states* of the two, and what becomes of a content on its own: whether it is a user's or the assistant's, whether it
is the first, and how it stands to the last user's. Probes with contents that occur nowhere else show the pieces;
white space and the template's own string constants in contents show the transforms. Hundreds of random conversations then
say what is exact. What is not is refused when the engine chats, by class.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Iterable, Sequence

import numpy as np

from .jinja import Template, TemplateFails, placeholder

BEGIN, USER, ASSISTANT, END = 0, 1, 7, 11  # states; to the middle two FIRST is added, and
FIRST, FINAL, LAST = 1, 2, 4  # FINAL: a user's that only answers follow, an answer after it; LAST: a user's at the end
OUTER, EMPTY, BLANK, BARE, EMPTY_IS_NONE, BLANK_IS_NONE = 1, 2, 4, 8, 16, 32  # classes of contents
TEXT, DATE, SYSTEM = 0, 1, 2  # kinds of items of a piece
NO_SET, SPACES = -1, 0  # what is stripped: nothing, white space, or a set of characters
WITH_SYSTEM, NO_THINK, NO_PROMPT = 1, 2, 4  # bits of a table's number
KINDS = ("system", "user", "assistant", "final")  # of contents, for triggers: final answers are a kind of their own
# The codes of a date that C's strftime writes as Python's does, whatever the locale may be set to.
DATE_CODE = re.compile(r"%(-?[dmHIMSjy]|[YBbAap%])")

Piece = tuple[tuple[int, object], ...]


class Inexact(Exception):
    """The compiled form cannot give this text; the text says why."""


@dataclass(frozen=True)
class Transform:
    """What becomes of a content: `left` and `right` strip; with a `marker` in it, what stands after the last (or first) one
    counts, and `left_after`, `right_after` strip that. A set of characters is a string, "" white space, None none."""

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
    alternating: dict[tuple[int, int], Piece] = field(default_factory=dict)  # those of conversations that alternate
    transforms: dict[int, Transform] = field(default_factory=dict)
    classes: dict[int, int] = field(default_factory=dict)  # state, BEGIN for the system's -> sum of classes


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
    """Of a state: one of KINDS."""
    if state < ASSISTANT:
        return "user" if state else "system"
    return "final" if state - ASSISTANT & FINAL else "assistant"


# ---- the compiled form, written out: what the engine does ----------------------------------------------------------------


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
        out += [_write(table, before, state, system, now), table.transforms[state](message["content"])]
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


# ---- probes: what the pieces are -----------------------------------------------------------------------------------------

ALTERNATING = {True: ["u", "uau", "uauau", "uauauau"], False: ["ua", "uaua", "uauaua"]}
OTHER_ORDERS = ["".join(r) for n in range(5) for r in itertools.product("ua", repeat=n)]
OTHER_ORDERS += ["uaauu", "auauu", "uuaua", "aauau", "uauaa", "uuuuu", "uauuau", "uaauaa"]


def shapes(prompt: bool) -> list[str]:
    """The orders of roles that any template is asked for."""
    return ALTERNATING[True] if prompt else ALTERNATING[True] + ALTERNATING[False]


def conversation(roles: str, contents: Sequence[str], system: str | None = None) -> list[dict]:
    names = {"u": "user", "a": "assistant"}
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [{"role": names[r], "content": c} for r, c in zip(roles, contents)]


def alternates(messages: Sequence[dict]) -> bool:
    roles = "".join(m["role"][0] for m in messages if m["role"] != "system")
    return roles != "" and all(role == "ua"[i % 2] for i, role in enumerate(roles))


def word(i: int) -> str:
    """A content that occurs in no template."""
    return "Zq" + "".join("bcdfghjkmn"[int(d)] for d in f"{i:02d}") + "xv"


def cut(text: str, n: int, system: str | None, formats: Sequence[str]) -> list[Piece]:
    """The pieces around the contents word(0) .. word(n - 1). Errors: Inexact if these are not all there, once and in their
    order."""
    marks = {word(i): None for i in range(n)}
    marks |= {placeholder(i): (DATE, format) for i, format in enumerate(formats)}
    if system is not None:
        marks[system] = (SYSTEM, None)
    found, pieces, items = [], [], []
    for part in re.split("(" + "|".join(map(re.escape, marks)) + ")", text) if marks else [text]:
        if part not in marks:
            items += [(TEXT, part)] if part else []
        elif marks[part]:
            items.append(marks[part])
        else:
            found.append(part)
            pieces.append(tuple(items))
            items = []
    if found != [word(i) for i in range(n)]:
        what = (
            "leaves out a message" if len(set(found)) < n
            else "writes a message twice" if len(found) > n
            else "changes the order of the messages"
        )  # fmt: skip
        raise Inexact(f"it {what}")
    return [*pieces, tuple(items)]


class Compiler:
    """Compiles one template; compile_chat() below says in which order."""

    def __init__(self, template: Template, seed: int = 1):
        self.template = template
        self.chat = Chat()
        self.rng = random.Random(seed)
        self.constants = string_constants(template.tree)
        self.sets = [None, "", *strip_sets(template.tree)]
        self.fragments = [*self.constants, *literal_chunks(template.tree), *THINKING]

    # -- rendering --

    def render(self, messages: Sequence[dict], no_think: bool, prompt: bool, now: datetime | None) -> str:
        self.template.now = now
        return self.template.render(messages, prompt, self.chat.switch if no_think else {})

    def probe(self, number: int, roles: str) -> list[Piece]:
        """The pieces of a conversation of words. Errors: TemplateFails, Inexact."""
        system = word(99) if number & WITH_SYSTEM else None
        messages = conversation(roles, [word(i) for i in range(len(roles))], system)
        text = self.render(messages, bool(number & NO_THINK), not number & NO_PROMPT, None)
        return cut(text, len(roles), system, self.template.formats)

    def equal(self, messages: Sequence[dict], number: int) -> bool | None:
        """Whether the tables give what the template gives; None: they refuse."""
        no_think, prompt = bool(number & NO_THINK), not number & NO_PROMPT
        now = datetime(self.rng.randint(1990, 2040), self.rng.randint(1, 12), self.rng.randint(1, 28),
                       self.rng.randint(0, 23), self.rng.randint(0, 59))  # fmt: skip
        try:
            ours = assemble(self.chat, messages, no_think, prompt, now)
        except Inexact:
            return None
        try:
            return ours == self.render(messages, no_think, prompt, now)
        except TemplateFails:
            return False

    # -- pieces --

    def find_switch(self) -> None:
        """The variables that turn thinking off, if the template has one that changes something."""
        from jinja2 import meta

        known = meta.find_undeclared_variables(self.template.tree)
        efforts = [e for e in ("none", "no_think", "low") if e in self.constants] + ["low"]
        candidates = [("enable_thinking", False), ("thinking", False), ("reasoning_effort", efforts[0])]
        probes = [(conversation("uau"[: n % 4], map(word, range(3)), word(99) if n > 3 else None), prompt)
                  for n in (1, 2, 3, 5, 6, 7) for prompt in (True, False)]  # fmt: skip
        for name, value in candidates:
            if name not in known:
                continue
            for messages, prompt in probes:
                try:
                    usual = self.template.render(messages, prompt, {})
                    if usual != self.template.render(messages, prompt, {name: value}):
                        self.chat.switch = {name: value}
                        return
                except TemplateFails:
                    pass

    def learn(self, number: int) -> None:
        """Makes table `number`, or says in refused[number] why it cannot be."""
        table = Table(number)
        try:
            for roles in shapes(not number & NO_PROMPT):
                around = [BEGIN, *states(roles), END]
                for key, piece in zip(zip(around, around[1:]), self.probe(number, roles)):
                    if table.pieces.setdefault(key, piece) != piece:
                        raise Inexact("what it writes between two messages depends on others")
        except TemplateFails as error:
            self.chat.refused[number] = f"it fails with: {error}"
            return
        except Inexact as error:
            self.chat.refused[number] = str(error)
            return
        for format in self.template.formats:
            if "%" in DATE_CODE.sub("", format):
                self.chat.refused[number] = f"it prints a date as {format!r}"
                return
        table.transforms = {state: Transform() for state in range(END)}
        self.chat.tables[number] = table

    def learn_other_orders(self, table: Table) -> None:
        """Adds the pieces of conversations that do not alternate, if all that then can be written are exact."""
        table.alternating = dict(table.pieces)
        found, conflicts = {}, set()
        for roles in OTHER_ORDERS:
            try:
                pieces = self.probe(table.number, roles)
            except (TemplateFails, Inexact):
                continue
            around = [BEGIN, *states(roles), END]
            for key, piece in zip(zip(around, around[1:]), pieces):
                if key not in table.alternating and found.setdefault(key, piece) != piece:
                    conflicts.add(key)
        table.pieces |= {key: piece for key, piece in found.items() if key not in conflicts}
        for roles in OTHER_ORDERS:
            system = word(99) if table.number & WITH_SYSTEM else None
            if self.equal(conversation(roles, [word(i) for i in range(len(roles))], system), table.number) is False:
                table.pieces = dict(table.alternating)
                return

    # -- transforms and classes --

    def slots(self, table: Table) -> dict[int, list[tuple[str, int]]]:
        """Of each state the orders of roles that have it, and the place in them; -1 is the system message's."""
        found: dict[int, list[tuple[str, int]]] = {}
        for roles in shapes(not table.number & NO_PROMPT):
            for i, state in enumerate(states(roles)):
                found.setdefault(state, []).append((roles, i))
            if table.number & WITH_SYSTEM:
                found.setdefault(BEGIN, []).append((roles, -1))
        return found

    def with_content(self, table: Table, roles: str, at: int, content: str) -> list[dict]:
        """A conversation of words but for one content."""
        contents = [word(i) for i in range(len(roles))]
        system = word(99) if table.number & WITH_SYSTEM else None
        if at >= 0:
            contents[at] = content
        return conversation(roles, contents, content if at < 0 else system)

    def holds(self, table: Table, places: Iterable[tuple[str, int]], contents: Iterable[str]) -> bool:
        """Whether the tables give what the template gives with these contents in these places."""
        return all(
            self.equal(self.with_content(table, roles, at, content), table.number)
            for roles, at in places for content in contents
        )  # fmt: skip

    def fit(self, table: Table, state: int, places: list[tuple[str, int]]) -> None:
        """Finds the transform of a state, and which classes of contents are exact with it."""
        table.classes[state] = OUTER | EMPTY | BLANK | BARE
        plain = table.transforms[state]
        for left, right in itertools.product(self.sets, self.sets):
            table.transforms[state] = Transform(left, right)
            if self.holds(table, places[:1], OUTER_SAMPLES):
                break
        else:
            table.transforms[state] = plain
        self.fit_marker(table, state, places)
        for kind, contents in self.samples(table.transforms[state]):
            if not self.holds(table, places, contents):
                table.classes[state] &= ~kind

    def samples(self, transform: Transform) -> list[tuple[int, list[str]]]:
        """Contents of each class."""
        bare = [f"{word(50)}{transform.marker}{end}" for end in ("", "\n\n", " ")]
        return [(OUTER, OUTER_SAMPLES), (EMPTY, [""]), (BLANK, BLANK_SAMPLES),
                (BARE, bare if transform.marker else [])]  # fmt: skip

    def fit_marker(self, table: Table, state: int, places: list[tuple[str, int]]) -> None:
        """Finds the string before which a content does not count, if there is one."""
        usual = table.transforms[state]
        a, b, c = word(50), word(51), word(52)
        for marker in self.constants:
            if marker.isspace() or self.holds(table, places[:1], [f"{a}{marker}{b}"]):
                continue
            contents = [f"{a}{marker}{b}", f"{a}{marker} \n{b}", f"{a}{marker}\n\n{b} \n", f"{marker}{b}",
                        f"\n\n{a}\n{marker}\n{b}\n", f"{a}{marker}{b}{marker}{c}"]  # fmt: skip
            sets = itertools.product((False, True), self.sets, self.sets)
            for first, left, right in sets:
                table.transforms[state] = Transform(usual.left, usual.right, marker, first, left, right)
                if self.holds(table, places[:1], contents):
                    return
            table.transforms[state] = usual

    def sweep(self, table: Table, state: int, places: list[tuple[str, int]]) -> None:
        """Refuses every string of the template's own that the tables do not understand in a content."""
        triggers, a, b = self.chat.triggers[kind_of(state)], word(50), word(51)
        for c in self.fragments:
            contents = [f"{a}{c}{b}", f"{c}{a}", f"{a}{c}", c, f" {c} {a}"]
            roles, at = places[0]
            if any(self.equal(self.with_content(table, roles, at, text), table.number) is False for text in contents):
                triggers.add(c)

    def count_as_none(self, table: Table) -> None:
        """Finds whether a system message that is empty, or white space, counts as none where it does not count as one."""
        places = self.slots(table).get(BEGIN, [])
        for kind, none, contents in ((EMPTY, EMPTY_IS_NONE, [""]), (BLANK, BLANK_IS_NONE, BLANK_SAMPLES)):
            if places and not table.classes[BEGIN] & kind:
                table.classes[BEGIN] |= none
                if not self.holds(table, places, contents):
                    table.classes[BEGIN] &= ~none

    # -- proof --

    def prove(self, table: Table) -> None:
        """Compares random conversations of every kind; what is found wrong is taken out of the table. Drops the table if
        that does not help."""
        for kind in ("plain", "repeated", "outer", "blank", "thinking", "hostile", "all"):
            done, understood = 0, True
            for _ in range(10 * PROOFS):
                messages = self.random_conversation(table.number, kind)
                same = self.equal(messages, table.number)
                understood = same is not False or self.restrict(table, messages)
                done += same is True
                if done == PROOFS or not understood:
                    break
            self.chat.proved += done
            if not understood or kind == "plain" and done < PROOFS:
                why = "it changes plain texts" if kind == "plain" else f"it changes {kind} texts"
                self.chat.refused[table.number] = f"{why}, and no rule for it was found"
                del self.chat.tables[table.number]
                return

    def restrict(self, table: Table, messages: list[dict]) -> bool:
        """Takes out of what is exact the reason why this conversation is not. False: none was found."""
        number = table.number
        if table.pieces != table.alternating and not alternates(messages):
            table.pieces = dict(table.alternating)
            return True
        shown = [dict(m) for m in messages]
        if len({m["content"] for m in shown}) < len(shown):
            for i, m in enumerate(shown):
                m["content"] += word(i)
            if self.equal(shown, number):
                self.chat.repeats = False
                return True
            shown = [dict(m) for m in messages]
        culprits = []
        for i, m in enumerate(shown):
            content, m["content"] = m["content"], word(i)
            if self.equal(shown, number) is not False:
                m["content"] = content
                culprits.append(i)
        offset = bool(number & WITH_SYSTEM)
        state = [BEGIN] * offset + states("".join(m["role"][0] for m in shown[offset:]))
        if any(self.add_trigger(shown, i, number, kind_of(state[i])) for i in culprits):
            return True
        before = dict(table.classes)
        for state in table.classes:
            for i in culprits:
                text = shown[i]["content"]
                kind = EMPTY if text == "" else BLANK if text.isspace() else OUTER * (text != text.strip()) | BARE
                none = {EMPTY: EMPTY_IS_NONE, BLANK: BLANK_IS_NONE}.get(kind, 0)
                table.classes[state] &= ~(kind | none)
        return table.classes != before and self.equal(shown, number) is None

    def add_trigger(self, messages: list[dict], at: int, number: int, kind: str) -> bool:
        """Finds a string in message `at` that the tables do not understand, and refuses it in contents of this kind."""
        message = messages[at]
        content = message["content"]
        inside = sorted({c for c in self.fragments if c in content}, key=lambda c: (len(c), c))
        pairs = [(c, d) for c in inside for d in inside if c not in d and d not in c]
        a, b = word(50), word(51)
        try:
            for c in inside:
                for text in (f"{a}{c}{b}", f"{c}{a}", f"{a}{c}", c, f"{c}{a}{c}"):
                    message["content"] = text
                    if self.equal(messages, number) is False:
                        self.chat.triggers[kind].add(c)
                        return True
            for c, d in pairs[:400]:
                message["content"] = f"{c}{a}{d}"
                if self.equal(messages, number) is False:
                    self.chat.triggers[kind].add(max(c, d, key=len))
                    return True
        finally:
            message["content"] = content
        if inside and len(inside[-1]) > 2:
            self.chat.triggers[kind].add(inside[-1])
            return True
        return False

    def random_conversation(self, number: int, kind: str) -> list[dict]:
        rng = self.rng
        roles = "".join("ua"[i % 2] for i in range(rng.randint(1, 9)))
        if not number & NO_PROMPT and roles[-1] == "a":
            roles = roles[:-1]
        if kind == "all" and rng.random() < 0.3:
            roles = "".join(rng.choice("ua") for _ in range(rng.randint(0, 6)))
        contents = [self.random_content(kind) for _ in roles]
        if kind == "repeated":
            contents = [rng.choice(contents[:2]) for _ in roles]
        system = self.random_content(kind) if number & WITH_SYSTEM else None
        return conversation(roles, contents, system)

    def random_content(self, kind: str) -> str:
        rng = self.rng
        if kind == "all":
            kind = rng.choice(("plain", "outer", "blank", "thinking", "hostile"))
        if kind == "blank" and rng.random() < 0.5:
            return rng.choice(["", *BLANK_SAMPLES])
        text = plain_text(rng)
        if kind == "outer" or rng.random() < 0.3 and kind in ("hostile", "thinking"):
            white = ["", *BLANK_SAMPLES]
            text = rng.choice(white) + text + rng.choice(white)
        if kind == "thinking":
            gaps = ("", "\n", "\n\n", " ")
            mark = rng.choice(self.markers())
            thought = f"{mark[0]}{rng.choice(gaps)}{plain_text(rng)}{rng.choice(gaps)}{mark[1]}"
            text = rng.choice((thought, f"{thought}{rng.choice(gaps)}{text}", text.replace(" ", thought, 1)))
        if kind == "hostile":
            parts = [rng.choice(self.fragments) for _ in range(rng.randint(1, 4))]
            glue = rng.choice(("", " ", "\n", text))
            text = glue.join([*parts, text] if rng.random() < 0.3 else rng.choice((parts, [text, *parts])))
        return text

    def markers(self) -> list[tuple[str, str]]:
        own = {t.marker for table in self.chat.tables.values() for t in table.transforms.values()} - {""}
        return [("<think>", "</think>"), *(("", m) for m in sorted(own))]


PROOFS = 40  # equal conversations of each kind and table
OUTER_SAMPLES = [" Zx", "Zx ", "\nZx", "Zx\n", " \n\n Zx \n ", "\tZx\t\t", "\u3000Zx\xa0", "\x1cZx\x85", "\r\nZx\r\n",
                 "\n\nZx  ", "\u200bZx\ufeff"]  # fmt: skip
BLANK_SAMPLES = [" ", "\n", "\n\n", "\t \t", " \n ", "\u3000", "\x1f", "\r\n"]
THINKING = ["<think>", "</think>", "<think>\nhm\n</think>\n\n", "<think></think>", "/no_think", "/think", "<tool_call>",
            "</tool_call>", "<|im_start|>", "<|im_end|>", "</s>", "[INST]", "{{", "}}", "{%", "%}", "#}"]  # fmt: skip
PLAIN = ["one", "two", "Three", "don't", "a.b", "x = 1;", "\"quoted\"", "'s", "(and)", "line\nline", "gap\n\ngap", "a  b",
         "tab\tbed", "3.14", "<b>", "&amp;", "\\n", "{x}", "[y]", "#", "%", "*star*", "`code`", "caf\xe9", "\u4f60\u597d",
         "\U0001f600", "no\xa0break", "\u05d0\u05d1", "1,000", "http://a.b/c?d=e", "-", "A", "Yes.", "$5", "r\r\nn"]  # fmt: skip


def plain_text(rng: random.Random) -> str:
    return " ".join(rng.choice(PLAIN) for _ in range(rng.choice((1, 1, 2, 3, 5, 8, 12, 300))))


def string_constants(tree) -> list[str]:
    """The strings that a template may look for in a content: its constants, and what it joins of them."""
    from jinja2 import nodes

    found = {}
    for node in tree.find_all((nodes.Const, nodes.Add, nodes.Concat, nodes.Mul)):
        try:
            value = node.as_const()
        except Exception:  # not a constant
            continue
        if isinstance(value, str) and 0 < len(value) <= 400:
            found[value] = True
    for node in tree.find_all(nodes.Operand):  # a character or word of a constant string
        if node.op in ("in", "notin") and isinstance(node.expr, nodes.Const) and isinstance(node.expr.value, str):
            found |= dict.fromkeys([*node.expr.value[:40], *node.expr.value.split()[:20]], True)
    changed = {"lower", "upper", "title", "capitalize", "casefold", "swapcase"}
    if changed & {getattr(n, "name", None) or getattr(n, "attr", None) for n in tree.find_all((nodes.Filter, nodes.Getattr))}:
        found |= {c: True for constant in list(found) for c in (constant.upper(), constant.title())}
    return list(found)


def strip_sets(tree) -> list[str]:
    """The sets of characters that a template strips."""
    from jinja2 import nodes

    found = {}
    for node in tree.find_all((nodes.Call, nodes.Filter)):
        name = node.node.attr if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) else None
        if name in ("strip", "lstrip", "rstrip") or getattr(node, "name", None) == "trim":
            for argument in node.args:
                if isinstance(argument, nodes.Const) and isinstance(argument.value, str) and argument.value:
                    found[argument.value] = True
    return list(found)[:4]


def literal_chunks(tree) -> list[str]:
    """What looks like a control token in a template's own text."""
    from jinja2 import nodes

    found = {}
    for data in tree.find_all(nodes.TemplateData):
        for chunk in re.findall(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,30}\]", data.data):
            found[chunk] = True
    return list(found)[:60]


def compile_chat(text: str, special_tokens: dict[str, str]) -> Chat:
    """Compiles a template. Errors: TemplateFails if it cannot be read, Inexact if no table of it is exact."""
    compiler = Compiler(Template(text, special_tokens))
    chat = compiler.chat
    compiler.find_switch()
    for number in range(8):
        if chat.switch or not number & NO_THINK:
            compiler.learn(number)
    for table in chat.tables.values():
        compiler.learn_other_orders(table)
    for table in chat.tables.values():
        for state, places in compiler.slots(table).items():
            compiler.fit(table, state, places)
    for table in chat.tables.values():
        for state, places in compiler.slots(table).items():
            compiler.sweep(table, state, places)
    for table in list(chat.tables.values()):
        compiler.count_as_none(table)
        compiler.prove(table)
    if not chat.tables:
        raise Inexact(chat.refused.get(0) or chat.refused.get(WITH_SYSTEM) or "nothing of it is exact")
    return chat


# ---- metadata ------------------------------------------------------------------------------------------------------------


class Pool:
    """Strings, each once, by number."""

    def __init__(self):
        self.numbers: dict[str, int] = {}

    def add(self, text: str | None) -> int:
        return NO_SET if text is None else self.numbers.setdefault(text, len(self.numbers))

    def metadata(self) -> dict[str, object]:
        encoded = [text.encode() for text in self.numbers]
        return {"chat.text.begin": begins(encoded), "chat.text": b"".join(encoded)}


def begins(lists: Sequence[Sequence]) -> np.ndarray:
    return np.cumsum([0, *map(len, lists)]).astype(np.int32)


def ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int32)


def tables_metadata(chat: Chat) -> dict[str, object]:
    """The keys of docs/format.md, "The chat template"."""
    texts, pieces, transforms = Pool(), {}, {}
    out: dict[str, object] = {}
    around = range(END)
    for number, table in sorted(chat.tables.items()):
        keys = [(before, after + 1) for before in around for after in around]
        numbers = [pieces.setdefault(table.pieces[k], len(pieces)) if k in table.pieces else -1 for k in keys]
        used = [transforms.setdefault(table.transforms[state], len(transforms)) for state in around]
        out[f"chat.{number}.pieces"] = ints(numbers)
        out[f"chat.{number}.transforms"] = ints(used)
        out[f"chat.{number}.classes"] = ints(table.classes.get(state, 0) for state in around)
    for number, why in chat.refused.items():
        out[f"chat.{number}.refused"] = why
    out["chat.piece.begin"] = begins(list(pieces))
    out["chat.item.kind"] = ints(kind for piece in pieces for kind, _ in piece)
    out["chat.item.text"] = ints(texts.add(value) for piece in pieces for _, value in piece)
    rows = [(texts.add(t.left), texts.add(t.right), texts.add(t.marker or None), int(t.first),
             texts.add(t.left_after), texts.add(t.right_after)) for t in transforms]  # fmt: skip
    out["chat.transform"] = ints(number for row in rows for number in row)
    for kind in KINDS:
        all_of = chat.triggers[kind]
        least = sorted(t for t in all_of if not any(other in t for other in all_of - {t}))
        out[f"chat.trigger.{kind}"] = ints(map(texts.add, least))
    out["chat.distinct"] = ints([not chat.repeats])
    if chat.switch:
        out["chat.no_think"] = ", ".join(f"{k}={json.dumps(v)}" for k, v in chat.switch.items())
    return out | texts.metadata()


def chat_metadata(template: str, special_tokens: dict[str, str]) -> tuple[dict[str, object], str]:
    """The `chat.*` metadata of a template, and a remark for the user, "" if there is nothing to say. Errors: ExportError
    if jinja2 is missing."""
    out: dict[str, object] = {"chat.template": template}
    try:
        return out | tables_metadata(compile_chat(template, special_tokens)), ""
    except (TemplateFails, Inexact) as error:
        why = str(error)
    except UnicodeEncodeError:
        why = "it holds half a surrogate pair"
    except RecursionError:
        why = "it is nested too deep"
    out["chat.refused"] = why
    return out, f"the chat template cannot be compiled: {why}; ./run will not chat with this checkpoint"
