"""A chat template -> the `chat.*` metadata of docs/format.md."""

from __future__ import annotations

import json
from typing import Iterable, Sequence

import numpy as np

from .bounded import TooMuch, bounded
from .compiler import compile_chat
from .jinja import TemplateFails
from .tables import END, KINDS, NO_SET, Chat, Inexact


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
        numbers = [
            pieces.setdefault(table.pieces[k], len(pieces)) if k in table.pieces else -1
            for k in keys
        ]
        used = [transforms.setdefault(table.transforms[state], len(transforms)) for state in around]
        out[f"chat.{number}.pieces"] = ints(numbers)
        out[f"chat.{number}.transforms"] = ints(used)
        out[f"chat.{number}.classes"] = ints(table.classes.get(state, 0) for state in around)
    for number, why in chat.refused.items():
        out[f"chat.{number}.refused"] = why
    out["chat.piece.begin"] = begins(list(pieces))
    out["chat.item.kind"] = ints(kind for piece in pieces for kind, _ in piece)
    out["chat.item.text"] = ints(texts.add(value) for piece in pieces for _, value in piece)
    rows = [
        (
            texts.add(t.left),
            texts.add(t.right),
            texts.add(t.marker or None),
            int(t.first),
            texts.add(t.left_after),
            texts.add(t.right_after),
        )
        for t in transforms
    ]
    out["chat.transform"] = ints(number for row in rows for number in row)
    for kind in KINDS:
        all_of = chat.triggers[kind]
        least = sorted(t for t in all_of if not any(other in t for other in all_of - {t}))
        out[f"chat.trigger.{kind}"] = ints(map(texts.add, least))
    out["chat.distinct"] = ints([not chat.repeats])
    if chat.switch:
        out["chat.no_think"] = ", ".join(f"{k}={json.dumps(v)}" for k, v in chat.switch.items())
    return out | texts.metadata()


def _tables(template: str, special_tokens: dict[str, str]) -> dict[str, object]:
    return tables_metadata(compile_chat(template, special_tokens))


def chat_metadata(template: str, special_tokens: dict[str, str]) -> tuple[dict[str, object], str]:
    """The `chat.*` metadata of a template, and a remark for the user, "" if there is nothing to
    say. Errors: ExportError if jinja2 is missing."""
    out: dict[str, object] = {"chat.template": template}
    try:
        return out | bounded(_tables, template, special_tokens), ""
    except (TemplateFails, Inexact, TooMuch) as error:
        why = str(error)
    except UnicodeEncodeError:
        why = "it holds half a surrogate pair"
    except RecursionError:
        why = "it is nested too deep"
    out["chat.refused"] = why
    return (
        out,
        f"the chat template cannot be compiled: {why}; ./run will not chat with this checkpoint",
    )
