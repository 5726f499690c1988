"""What a packed checkpoint's config says of some modules only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

from ..config import Config
from ..tensor import ExportError


@dataclass(frozen=True)
class Override:
    """matches(name): whether it is about that module. values: what differs there; None: the module
    is not packed."""

    key: str
    matches: Callable[[str], object]
    values: dict | None


def dynamic(q: Config) -> list[Override]:
    """GPTQModel's: regular expressions, which have to match from a name's beginning on. "-:" before
    one: not packed; "+:" or nothing: packed otherwise. Those with a minus come first."""
    found = []
    for key, values in q.object("dynamic").items():
        pattern = _pattern(q, "dynamic", key, key[2:] if key.startswith(("-:", "+:")) else key)
        values = None if key.startswith("-:") else _object(q, "dynamic", key, values)
        found.append(Override(f"dynamic: {key}", pattern.match, values))
    return sorted(found, key=lambda override: override.values is not None)


def extra_config(q: Config) -> list[Override]:
    """auto-round's: names, and then regular expressions, which may match anywhere. Sixteen bits and
    more: not packed."""
    names, patterns = [], []
    for key, values in q.object("extra_config").items():
        values = _object(q, "extra_config", key, values)
        whole = isinstance(values.get("bits"), int) and values["bits"] >= 16
        made = f"extra_config: {key}", None if whole else values
        names.append(Override(made[0], key.__eq__, made[1]))
        if values:
            search = _pattern(q, "extra_config", key, key).search
            patterns.append(Override(made[0], search, made[1]))
    return names + patterns


def _pattern(q: Config, where: str, key: str, text: str) -> re.Pattern:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ExportError(
            f"{q.where}: {where}: {key!r} is no regular expression: {error}"
        ) from None


def _object(q: Config, where: str, key: str, values) -> dict:
    if not isinstance(values, dict):
        raise ExportError(f"{q.where}: {where}: {key} is {values!r}, expected an object")
    return values


def config_of(q: Config, overrides: list[Override], name: str) -> Config:
    """What q says of the module, which is packed. Errors: ExportError if it says that it is not."""
    override = next((o for o in overrides if o.matches(name)), None)
    if override is None:
        return q
    where = f"{q.where}: {override.key}"
    if override.values is None:
        raise ExportError(f"{where} says that {name} is not packed, but the checkpoint has it so")
    found = Config({**q.values, **override.values}, where)
    found.asked, found.defaults = q.asked, q.defaults  # what one knows, the other knows
    return found
