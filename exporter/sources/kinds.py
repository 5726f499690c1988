"""Names of models on the hub."""

import os
import re

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.bin)(?<!\.gguf)(?<!\.safetensors)")


def is_hub_id(name: str) -> bool:
    """org/name. A directory of the owner's name makes a mistyped path likelier than a model of
    that owner."""
    return bool(HUB_ID.fullmatch(name)) and not os.path.isdir(os.path.dirname(name))
