"""How the exporter reads JSON files."""

from __future__ import annotations

import json
import os

from .sources.pointers import refuse_pointer
from .tensor import ExportError


def read_value(path: str) -> object:
    """What a JSON file holds. Errors: ExportError, which names the file."""
    refuse_pointer(path)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is not JSON: {error}") from None


def read_json(path: str) -> dict:
    """The object in a JSON file. Errors: as read_value."""
    value = read_value(path)
    if not isinstance(value, dict):
        raise ExportError(f"{path} holds no JSON object")
    return value


def beside(directory: str, name: str) -> dict:
    """The object in a JSON file of the directory, empty if there is no such file. Errors:
    ExportError."""
    path = os.path.join(directory, name)
    return read_json(path) if os.path.isfile(path) else {}
