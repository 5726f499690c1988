"""The components of a tokenizer.json: opened, checked, and refused by name."""

from __future__ import annotations

import json

from .normalizers import refuse as _refuse


def shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) < 200 else text[:200] + ".."


def expect(where: str, got: dict, expected: dict, ignored: tuple[str, ...] = ()) -> None:
    """Refuses a component with a field that has another value than expected, or that is not
    known."""
    for key, value in got.items():
        if key in expected and value not in expected[key]:
            raise _refuse(f"{where}.{key}", value)
        if key not in expected and key not in ignored:
            raise _refuse(f"{where}.{key}", value)


def opened(component: dict | None, many: str) -> list[dict]:
    """The steps of a component, Sequences opened."""
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for step in component.get(many, []) for part in opened(step, many)]
    return [component]
