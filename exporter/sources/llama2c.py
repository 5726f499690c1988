"""llama2.c checkpoints: version 0 (float32) and version 2 (int8 in groups), as its export.py writes
and its run.c and runq.c read them."""

from __future__ import annotations

import os
import struct

import numpy as np

from ..assemble import in_layers
from ..config import Config
from ..families.common import LLAMA
from ..knobs import Knobs
from ..model import Model
from ..rope import Rope, rope_frequencies
from ..tensor import ExportError, Tensor, from_file

MAGIC = 0x616B3432  # "ak42": version 2; version 0 has no magic


def open_llama2c(path: str, tokenizer: str | None = None) -> Model:
    """A llama2.c checkpoint of version 0 (float32) or 2 (int8 in groups), and its tokenizer file.
    Errors: ExportError."""
    if tokenizer is not None and not os.path.isfile(tokenizer):
        raise ExportError(f"--tokenizer {tokenizer}: no such file")
    shape, shared, group = _header(path)
    dim, hidden, n_layers, n_heads, n_kv_heads, vocab, context = shape
    head_dim = dim // n_heads
    knobs = Knobs(
        vocab,
        dim,
        n_layers,
        context,
        n_heads,
        n_kv_heads,
        head_dim,
        hidden,
        act=0,
        norm_eps=1e-5,
        tied=shared,
    )
    knobs.rotate(Rope(rope_frequencies(Config({}), head_dim, context)))
    found, end = _version2(path, knobs, group) if group else _version0(path, knobs)
    if end != os.path.getsize(path):
        raise ExportError(
            f"{path} has {os.path.getsize(path)} bytes, a llama2.c checkpoint with its header has "
            f"{end}: it is cut short, "
            "or something else"
        )
    # Rope pairs (2 i, 2 i + 1) of a head to (i, i + head_dim / 2).
    for name, tensor in found.items():
        if name.endswith((".attn_q", ".attn_k")):
            found[name] = tensor.map(
                lambda w: (
                    w.reshape(-1, head_dim // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
                )
            )
    ordered = {name: found[name] for name, _ in in_layers(LLAMA, n_layers) if name in found}
    tokenizer = tokenizer or _find_tokenizer(path)
    return Model(
        os.path.basename(path),
        "llama2.c",
        knobs,
        ordered,
        [path, tokenizer] if tokenizer else [path],
        tokenizer=tokenizer,
    )


def _header(path: str) -> tuple[list[int], bool, int]:
    """(dim, hidden, layers, heads, KV heads, vocabulary, context), whether the output is the
    embedding, and the size of a group of int8 weights, 0 for version 0."""
    with open(path, "rb") as file:
        head = file.read(256)
    if head[:8] == b"heads.c\0":
        raise ExportError(f"{path} is a heads.c checkpoint already; run it with ./run {path}")
    if len(head) < 256:
        raise ExportError(f"{path} is no GGUF file, and too short for a llama2.c checkpoint")
    if struct.unpack_from("<I", head)[0] == MAGIC:
        version, *shape, shared, group = struct.unpack_from("<i7iBi", head, 4)
        if version != 2:
            raise ExportError(
                f"{path} is a llama2.c checkpoint of version {version}; supported: 0 and 2"
            )
        if not 1 <= group <= 1 << 24:
            raise ExportError(f"{path}: the group size is {group}, expected 1 or more")
    else:
        shape, group = list(struct.unpack_from("<7i", head)), 0
        shared, shape[5] = shape[5] > 0, abs(shape[5])
    dim, _, n_layers, n_heads, n_kv_heads, _, _ = shape
    if (
        min(shape) < 1
        or max(shape) > 1 << 24
        or n_layers > 4096
        or dim % n_heads
        or n_heads % n_kv_heads
        or dim // n_heads % 2
    ):
        raise ExportError(
            f"{path} is no GGUF file, and no llama2.c checkpoint: its header describes no model"
        )
    return shape, bool(shared), group


def _find_tokenizer(path: str) -> str | None:
    """The tokenizer beside a llama2.c checkpoint: tokenizer.bin, or the only tok*.bin."""
    directory = os.path.dirname(os.path.abspath(path))
    plain = os.path.join(directory, "tokenizer.bin")
    if os.path.isfile(plain):
        return plain
    found = sorted(
        name
        for name in os.listdir(directory)
        if name.startswith("tok")
        and name.endswith(".bin")
        and os.path.join(directory, name) != os.path.abspath(path)
    )
    if len(found) > 1:
        raise ExportError(
            f"{directory} holds several tokenizers ({', '.join(found)}); name one with --tokenizer"
        )
    return os.path.join(directory, found[0]) if found else None


def _version0(path: str, knobs: Knobs) -> tuple[dict[str, Tensor], int]:
    """float32: the embedding, then each kind of weight for all layers, the final norm, two tables
    of rope, the output."""
    found: dict[str, Tensor] = {}
    at = 28

    def take(name: str) -> None:
        nonlocal at
        found[name] = from_file(path, name, knobs.shape(name), at, "<f4")
        at += 4 * int(np.prod(knobs.shape(name)))

    take("embed")
    for kind in (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_o",
        "ffn_norm",
        "ffn_gate",
        "ffn_down",
        "ffn_up",
    ):
        for i in range(knobs.n_layers):
            take(f"layers.{i}.{kind}")
    take("norm")
    at += 4 * knobs.context * knobs.head_dim  # cosines and sines, which we compute
    if not knobs.tied:
        take("output")
    return found, at


def _version2(path: str, knobs: Knobs, group: int) -> tuple[dict[str, Tensor], int]:
    """The norms in float32, then each matrix as int8 followed by a float32 scale for each `group`
    of its weights."""
    found: dict[str, Tensor] = {}
    at = 256
    for name in [
        f"layers.{i}.{kind}" for kind in ("attn_norm", "ffn_norm") for i in range(knobs.n_layers)
    ] + ["norm"]:
        found[name] = from_file(path, name, knobs.shape(name), at, "<f4")
        at += 4 * knobs.n_embd
    kinds = ("attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_down", "ffn_up")
    for name in [
        "embed",
        *(f"layers.{i}.{kind}" for kind in kinds for i in range(knobs.n_layers)),
        *["output"] * (not knobs.tied),
    ]:
        n = int(np.prod(knobs.shape(name)))
        if n % group:
            raise ExportError(
                f"{path}: group size {group} does not divide the {n} weights of {name}"
            )
        q = from_file(path, name, (n,), at, "i1")
        scale = from_file(path, name, (n // group,), at + n, "<f4")
        found[name] = _grouped(name, knobs.shape(name), q, scale, group)
        at += n + 4 * (n // group)
    return found, at


def _grouped(name: str, shape: tuple[int, ...], q: Tensor, scale: Tensor, group: int) -> Tensor:
    """A matrix of int8 with one scale for every `group` weights, counted through its rows."""

    def load():
        q_rows, scale_rows = q.load(), scale.load()

        def rows(a: int, b: int) -> np.ndarray:
            begin, end = a * shape[1], b * shape[1]
            first = begin // group
            scales = np.repeat(scale_rows(first, -(-end // group)), group)[begin - first * group :][
                : end - begin
            ]
            return (q_rows(begin, end) * scales).reshape(b - a, shape[1])

        return rows

    return Tensor(name, shape, load)
