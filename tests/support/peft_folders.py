"""Adapters as peft writes them, with random numbers, and what keeps one apart from its base."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import export
from exporter.adapters.apart import vectors_sum
from exporter.checkpoint import Checkpoint, Entry, write_checkpoint
from exporter.tensor import constant

PREFIX = "base_model.model."


def write(folder: Path, tensors: dict[str, np.ndarray], **config) -> Path:
    """A folder as peft writes one."""
    folder.mkdir(exist_ok=True, parents=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def of_modules(base: Path, modules: tuple[str, ...], seed: int, rank: int, turned: bool) -> dict:
    """Both factors for each matrix of a checkpoint whose module's name ends with one of these.
    turned: its matrices are stored [n_in, n_out]."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, w in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if name != module and w.ndim == 2 and module.endswith(modules):
            n_out, n_in = w.shape[::-1] if turned else w.shape
            for part, shape in (("A", (rank, n_in)), ("B", (n_out, rank))):
                numbers = rng.normal(0, 0.2, shape).astype(np.float32)
                found[f"{PREFIX}{module}.lora_{part}.weight"] = numbers
    assert found
    return found


def random(
    base: Path, folder: Path, modules: tuple[str, ...], seed: int = 1, rank: int = 3, turned=False
) -> Path:
    return write(folder, of_modules(base, modules, seed, rank, turned), r=rank)


def apart(base: Path, folder: Path | str, binary: Path, out: Path, *options: str) -> Path:
    """The adapter's file for a checkpoint that was made of base."""
    arguments = [base, out, "--adapter", folder, "--for", binary, *options]
    assert export.main([str(a) for a in arguments]) == 0
    return out


def file_for(
    binary: Path, out: Path, kinds: str | tuple[str, ...], seed=1, rank=3, dtype="f32"
) -> Path:
    """An adapter's file for any checkpoint, which changes matrices of some kinds, such as
    attn_q."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    base, rng = Checkpoint(str(binary)), np.random.default_rng(seed)
    tensors = {}
    for name, (_, rows, cols, _, _) in base.tensors.items():
        if name.split(".")[-1] in kinds:
            for part, shape in (("a", (rank, cols)), ("b", (rows, rank))):
                tensors[f"{name}.{part}"] = constant(rng.normal(0, 0.2, shape).astype(np.float32))
    knobs = ("n_layers", "n_embd", "vocab_size")
    meta = {f"adapter.{knob}": base.metadata[f"model.{knob}"] for knob in knobs}
    meta["adapter.base"] = np.array([vectors_sum(base)], np.uint32).view(np.int32)
    write_checkpoint(str(out), meta, [Entry(name, dtype, t) for name, t in tensors.items()])
    return out
