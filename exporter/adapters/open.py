"""What --adapter names: a folder, a hub id or a GGUF file."""

from __future__ import annotations

import os
from typing import Callable, Sequence

from ..sources.huggingface import SMALL, snapshot
from ..sources.kinds import is_gguf, is_hub_id
from ..tensor import ExportError
from .adapter import Adapter
from .gguf import open_gguf_adapter
from .peft import base_of, open_peft

Given = Sequence[tuple[str, float]]  # paths or hub ids, and their scales
Say = Callable[[str], None]


def _directory(path: str, say: Say) -> str:
    if os.path.exists(path):
        return path
    if not is_hub_id(path):
        raise ExportError(f"{path}: no such folder, and no hub id such as org/name")
    say(f"{path} is no folder here: downloading the adapter from the hub")
    return snapshot(path, None, *SMALL, "adapter_model.safetensors", "adapter_model.bin")


def open_adapters(given: Given, say: Say = lambda sentence: None) -> list[Adapter]:
    """The adapters, in their order. Only headers are read. Errors: ExportError."""
    found = []
    for path, scale in given:
        if os.path.isfile(path):
            if not is_gguf(path):
                raise ExportError(
                    f"{path} is no folder and no GGUF file; name the folder that holds it and "
                    "adapter_config.json"
                )
            found.append(open_gguf_adapter(path, scale))
        else:
            found.append(open_peft(_directory(path, say), path, scale))
    return found


def find_base(given: Given, say: Say = lambda sentence: None) -> tuple[str, str | None]:
    """The base that the first adapter names, a folder here or a hub id, and its revision. Errors:
    ExportError."""
    path = given[0][0]
    if os.path.isfile(path):
        raise ExportError(f"{path} does not say which file its base is: name it before the result")
    base, revision = base_of(_directory(path, say))
    if base and os.path.isdir(base):
        return base, None
    if base and is_hub_id(base):
        return base, revision
    named = f"is {base}, which is no folder here and no hub id" if base else "is missing"
    raise ExportError(
        f"{path}: base_model_name_or_path {named}; name the base before the result: "
        f"export.py BASE OUT --adapter {path}"
    )
