"""The tables of docs/families.md, from the rows of the registry and what their functions say of
themselves: `Models: what is beyond the usual block.`

    python -m exporter.families --table          prints them
"""

from __future__ import annotations

import inspect
import sys
from typing import Callable

from .multimodal import MULTIMODAL
from .refused import REFUSED
from .registry import DECODERS, ENCODER_DECODERS, ENCODERS, Row

KINDS = (
    ("", DECODERS, "beyond Llama's block"),
    ("[Encoders](encoders.md):\n\n", ENCODERS, "beyond BERT's block"),
    ("[Encoder-decoders](encoder_decoders.md):\n\n", ENCODER_DECODERS, "what it has"),
)


def names_of(types: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in types)


def table(rows: dict[str, Row], beyond: str) -> str:
    """A line for each function of the rows."""
    types: dict[Callable, list[str]] = {}
    for name, (function, _) in rows.items():
        types.setdefault(function, []).append(name)
    lines = [f"| `model_type` | models | {beyond} | lines |", "|---|---|---|---|"]
    for function, names in types.items():
        said = " ".join((inspect.getdoc(function) or "").split()).rstrip(".")
        models, _, more = said.partition(": ")
        n_lines = len(inspect.getsource(function).splitlines())
        lines.append(f"| {names_of(names)} | {models} | {more} | {n_lines} |")
    return "\n".join(lines) + "\n"


def parts() -> str:
    """A line for each text model that lies in checkpoints for more than text."""
    types: dict[str, list[str]] = {}
    for name, (inner, _) in MULTIMODAL.items():
        types.setdefault(inner, []).append(name)
    lines = ["| text model | `model_type` of the checkpoint |", "|---|---|"]
    lines += [f"| `{inner}` | {names_of(names)} |" for inner, names in types.items()]
    return "\n".join(lines) + "\n"


def refused() -> str:
    """A line for each reason."""
    types: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        types.setdefault(reason, []).append(name)
    lines = ["| `model_type` | why not |", "|---|---|"]
    lines += [f"| {names_of(names)} | {reason} |" for reason, names in types.items()]
    return "\n".join(lines) + "\n"


def tables() -> str:
    made = [title + table(rows, beyond) for title, rows, beyond in KINDS]
    apart = f"Text models of {len(MULTIMODAL)} types for pictures and sounds, counted apart:\n\n"
    return "\n".join([*made, apart + parts(), "Refused by name:\n\n" + refused()])


if __name__ == "__main__":
    if sys.argv[1:] != ["--table"]:
        sys.exit("usage: python -m exporter.families --table")
    print(tables(), end="")
