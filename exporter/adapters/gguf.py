"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py makes them of peft's, for bases in
GGUF files."""

from __future__ import annotations

import math

import numpy as np

from ..config import Config
from ..sources.gguf_file import read_gguf
from ..tensor import ExportError, Tensor
from .adapter import Adapter, of_rank
from .changes import Change, Low

ENDS = (".lora_a", ".lora_b")


def open_gguf_adapter(path: str, scale: float) -> Adapter:
    """The adapter in a GGUF file. Only headers are read. Errors: ExportError."""
    file = read_gguf(path)
    c = Config(file.values, path)
    if c.get("general.type") != "adapter":
        raise ExportError(f"{path} is no adapter: its general.type is {c.get('general.type')!r}")
    c.require(**{"adapter.type": "lora"})
    c.require(**{"adapter.alora.invocation_tokens": None})
    alpha = c.get("adapter.lora.alpha", 0)
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise ExportError(f"{path}: adapter.lora.alpha is {alpha!r}, expected a number")
    changes: list[Change] = []
    ranks: set[int] = set()
    remarks: list[str] = []
    for name, tensor in file.tensors.items():
        stem = next((name.removesuffix(end) for end in ENDS if name.endswith(end)), None)
        if stem is None and name.endswith("_norm.weight"):
            remarks.append(f"{path}: {name} is left out, as by llama.cpp")
            continue
        pair = [file.tensors.get(f"{stem}{end}") for end in ENDS]
        if stem is None or None in pair:
            raise ExportError(f"{path}: tensor {name} is no part of a pair of {' and '.join(ENDS)}")
        if tensor is pair[0]:
            changes.append(_low(stem, *pair, alpha, scale, ranks))
    if not changes:
        raise ExportError(f"{path} holds no tensor of an adapter")
    kind, arch = of_rank("LoRA", ranks), str(c.get("general.architecture"))
    return Adapter(path, scale, kind, changes, [path], architecture=arch, remarks=remarks)


def _low(stem: str, a: Tensor, b: Tensor, alpha: float, scale: float, ranks: set[int]) -> Low:
    """llama.cpp's scale: an alpha of 0 stands for the rank."""
    rank = b.shape[-1]
    if stem == "token_embd.weight":  # a is stored transposed, and multiplies from the left
        a, b = b.map(np.transpose, b.shape[::-1]), a
    if len(a.shape) not in (2, 3) or len(a.shape) != len(b.shape) or a.shape[-2] != b.shape[-1]:
        raise ExportError(
            f"tensors {stem}{ENDS[0]} and {ENDS[1]} have shapes {list(a.shape)} and {list(b.shape)}, "
            "which make no matrix"
        )
    ranks.add(rank)
    by = scale * (alpha / rank if alpha else 1.0)
    count = a.shape[0] if len(a.shape) == 3 else 1
    return Low(stem, a, a, b, by, count=count)
