"""What a source is, by its name and its first bytes. This needs no package."""

import os
import re

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.bin)(?<!\.gguf)(?<!\.safetensors)")
MAGIC = b"GGUF"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")  # names by llama-gguf-split


def is_hub_id(name: str) -> bool:
    """org/name. A directory of the owner's name makes a mistyped path likelier than a model of
    that owner."""
    return bool(HUB_ID.fullmatch(name)) and not os.path.isdir(os.path.dirname(name))


def is_gguf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
