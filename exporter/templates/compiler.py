"""Compiles a chat template into pieces of text and transforms of contents (tables.py).

Probes with contents that occur nowhere else show the pieces; white space and the template's own
string constants in contents show the transforms. Hundreds of random conversations then say what is
exact. The engine refuses the rest, by class, when it chats.
"""

from __future__ import annotations

import itertools
import random
import re
from datetime import datetime
from typing import Iterable, Sequence

from .jinja import Template, TemplateFails, placeholder
from .samples import (
    BLANK_SAMPLES,
    OTHER_ORDERS,
    OUTER_SAMPLES,
    PROOFS,
    THINKING,
    alternates,
    conversation,
    literal_chunks,
    plain_text,
    shapes,
    string_constants,
    strip_sets,
    word,
)
from .tables import (
    BARE,
    BEGIN,
    BLANK,
    BLANK_IS_NONE,
    DATE,
    DATE_CODE,
    EMPTY,
    EMPTY_IS_NONE,
    END,
    NO_PROMPT,
    NO_THINK,
    OUTER,
    SYSTEM,
    TEXT,
    WITH_SYSTEM,
    Chat,
    Inexact,
    Piece,
    Table,
    Transform,
    assemble,
    kind_of,
    states,
)


def cut(text: str, n: int, system: str | None, formats: Sequence[str]) -> list[Piece]:
    """The pieces around the contents word(0) .. word(n - 1). Errors: Inexact if these are not all
    there, once and in their order."""
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
            "leaves out a message"
            if len(set(found)) < n
            else "writes a message twice"
            if len(found) > n
            else "changes the order of the messages"
        )
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

    def render(
        self, messages: Sequence[dict], no_think: bool, prompt: bool, now: datetime | None
    ) -> str:
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
        now = datetime(
            self.rng.randint(1990, 2040),
            self.rng.randint(1, 12),
            self.rng.randint(1, 28),
            self.rng.randint(0, 23),
            self.rng.randint(0, 59),
        )
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
        candidates = [
            ("enable_thinking", False),
            ("thinking", False),
            ("reasoning_effort", efforts[0]),
        ]
        probes = [
            (conversation("uau"[: n % 4], map(word, range(3)), word(99) if n > 3 else None), prompt)
            for n in (1, 2, 3, 5, 6, 7)
            for prompt in (True, False)
        ]
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
        """Adds the pieces of conversations that do not alternate, if all that then can be written
        are exact."""
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
            if (
                self.equal(
                    conversation(roles, [word(i) for i in range(len(roles))], system), table.number
                )
                is False
            ):
                table.pieces = dict(table.alternating)
                return

    # -- transforms and classes --

    def slots(self, table: Table) -> dict[int, list[tuple[str, int]]]:
        """For each state, the orders of roles that have it, and the place in them; -1: the system
        message's."""
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

    def holds(
        self, table: Table, places: Iterable[tuple[str, int]], contents: Iterable[str]
    ) -> bool:
        """Whether the tables give what the template gives with these contents in these places."""
        return all(
            self.equal(self.with_content(table, roles, at, content), table.number)
            for roles, at in places
            for content in contents
        )

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
        return [
            (OUTER, OUTER_SAMPLES),
            (EMPTY, [""]),
            (BLANK, BLANK_SAMPLES),
            (BARE, bare if transform.marker else []),
        ]

    def fit_marker(self, table: Table, state: int, places: list[tuple[str, int]]) -> None:
        """Finds the string before which a content does not count, if there is one."""
        usual = table.transforms[state]
        a, b, c = word(50), word(51), word(52)
        for marker in self.constants:
            if marker.isspace() or self.holds(table, places[:1], [f"{a}{marker}{b}"]):
                continue
            contents = [
                f"{a}{marker}{b}",
                f"{a}{marker} \n{b}",
                f"{a}{marker}\n\n{b} \n",
                f"{marker}{b}",
                f"\n\n{a}\n{marker}\n{b}\n",
                f"{a}{marker}{b}{marker}{c}",
            ]
            sets = itertools.product((False, True), self.sets, self.sets)
            for first, left, right in sets:
                table.transforms[state] = Transform(
                    usual.left, usual.right, marker, first, left, right
                )
                if self.holds(table, places[:1], contents):
                    return
            table.transforms[state] = usual

    def sweep(self, table: Table, state: int, places: list[tuple[str, int]]) -> None:
        """Refuses every string of the template's own that the tables do not understand in a
        content."""
        triggers, a, b = self.chat.triggers[kind_of(state)], word(50), word(51)
        for c in self.fragments:
            contents = [f"{a}{c}{b}", f"{c}{a}", f"{a}{c}", c, f" {c} {a}"]
            roles, at = places[0]
            if any(
                self.equal(self.with_content(table, roles, at, text), table.number) is False
                for text in contents
            ):
                triggers.add(c)

    def count_as_none(self, table: Table) -> None:
        """Finds whether a system message that is empty, or white space, counts as none where it
        does not count as one."""
        places = self.slots(table).get(BEGIN, [])
        for kind, none, contents in (
            (EMPTY, EMPTY_IS_NONE, [""]),
            (BLANK, BLANK_IS_NONE, BLANK_SAMPLES),
        ):
            if places and not table.classes[BEGIN] & kind:
                table.classes[BEGIN] |= none
                if not self.holds(table, places, contents):
                    table.classes[BEGIN] &= ~none

    # -- proof --

    def prove(self, table: Table) -> None:
        """Compares random conversations of every kind; what is found wrong is taken out of the
        table. Drops the table if that does not help."""
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
        """Restricts the tables so that they refuse this conversation, which they get wrong. False:
        no reason was found."""
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
                kind = (
                    EMPTY
                    if text == ""
                    else BLANK
                    if text.isspace()
                    else OUTER * (text != text.strip()) | BARE
                )
                none = {EMPTY: EMPTY_IS_NONE, BLANK: BLANK_IS_NONE}.get(kind, 0)
                table.classes[state] &= ~(kind | none)
        return table.classes != before and self.equal(shown, number) is None

    def add_trigger(self, messages: list[dict], at: int, number: int, kind: str) -> bool:
        """Finds a string in message `at` that the tables do not understand, and refuses it in
        contents of this kind."""
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
            text = rng.choice(
                (thought, f"{thought}{rng.choice(gaps)}{text}", text.replace(" ", thought, 1))
            )
        if kind == "hostile":
            parts = [rng.choice(self.fragments) for _ in range(rng.randint(1, 4))]
            glue = rng.choice(("", " ", "\n", text))
            text = glue.join(
                [*parts, text] if rng.random() < 0.3 else rng.choice((parts, [text, *parts]))
            )
        return text

    def markers(self) -> list[tuple[str, str]]:
        own = {
            t.marker for table in self.chat.tables.values() for t in table.transforms.values()
        } - {""}
        return [("<think>", "</think>"), *(("", m) for m in sorted(own))]


def compile_chat(text: str, special_tokens: dict[str, str]) -> Chat:
    """Compiles a template. Errors: TemplateFails if it cannot be read, Inexact if no table of it is
    exact."""
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
        raise Inexact(
            chat.refused.get(0) or chat.refused.get(WITH_SYSTEM) or "nothing of it is exact"
        )
    return chat
