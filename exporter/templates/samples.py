"""The conversations that a template is asked for: orders of roles, and contents."""

from __future__ import annotations

import itertools
import random
import re
from typing import Sequence

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


PROOFS = 40  # equal conversations of each kind and table
OUTER_SAMPLES = [
    " Zx",
    "Zx ",
    "\nZx",
    "Zx\n",
    " \n\n Zx \n ",
    "\tZx\t\t",
    "\u3000Zx\xa0",
    "\x1cZx\x85",
    "\r\nZx\r\n",
    "\n\nZx  ",
    "\u200bZx\ufeff",
]
BLANK_SAMPLES = [" ", "\n", "\n\n", "\t \t", " \n ", "\u3000", "\x1f", "\r\n"]
THINKING = [
    "<think>",
    "</think>",
    "<think>\nhm\n</think>\n\n",
    "<think></think>",
    "/no_think",
    "/think",
    "<tool_call>",
    "</tool_call>",
    "<|im_start|>",
    "<|im_end|>",
    "</s>",
    "[INST]",
    "{{",
    "}}",
    "{%",
    "%}",
    "#}",
]
PLAIN = [
    "one",
    "two",
    "Three",
    "don't",
    "a.b",
    "x = 1;",
    '"quoted"',
    "'s",
    "(and)",
    "line\nline",
    "gap\n\ngap",
    "a  b",
    "tab\tbed",
    "3.14",
    "<b>",
    "&amp;",
    "\\n",
    "{x}",
    "[y]",
    "#",
    "%",
    "*star*",
    "`code`",
    "caf\xe9",
    "\u4f60\u597d",
    "\U0001f600",
    "no\xa0break",
    "\u05d0\u05d1",
    "1,000",
    "http://a.b/c?d=e",
    "-",
    "A",
    "Yes.",
    "$5",
    "r\r\nn",
]


def plain_text(rng: random.Random) -> str:
    return " ".join(rng.choice(PLAIN) for _ in range(rng.choice((1, 1, 2, 3, 5, 8, 12, 300))))


def string_constants(tree) -> list[str]:
    """The strings that a template may look for in a content: its constants, and what it joins of
    them."""
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
        if (
            node.op in ("in", "notin")
            and isinstance(node.expr, nodes.Const)
            and isinstance(node.expr.value, str)
        ):
            found |= dict.fromkeys([*node.expr.value[:40], *node.expr.value.split()[:20]], True)
    changed = {"lower", "upper", "title", "capitalize", "casefold", "swapcase"}
    if changed & {
        getattr(n, "name", None) or getattr(n, "attr", None)
        for n in tree.find_all((nodes.Filter, nodes.Getattr))
    }:
        found |= {c: True for constant in list(found) for c in (constant.upper(), constant.title())}
    return list(found)


def strip_sets(tree) -> list[str]:
    """The sets of characters that a template strips."""
    from jinja2 import nodes

    found = {}
    for node in tree.find_all((nodes.Call, nodes.Filter)):
        name = (
            node.node.attr
            if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr)
            else None
        )
        if name in ("strip", "lstrip", "rstrip") or getattr(node, "name", None) == "trim":
            for argument in node.args:
                if (
                    isinstance(argument, nodes.Const)
                    and isinstance(argument.value, str)
                    and argument.value
                ):
                    found[argument.value] = True
    return list(found)[:4]


def literal_chunks(tree) -> list[str]:
    """Pieces of a template's own text that look like control tokens."""
    from jinja2 import nodes

    found = {}
    for data in tree.find_all(nodes.TemplateData):
        for chunk in re.findall(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,30}\]", data.data):
            found[chunk] = True
    return list(found)[:60]
