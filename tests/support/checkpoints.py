"""Reads and writes checkpoint files from docs/format.md alone, for tests: independent of the
exporter, f32 matrices only."""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

U8, I32, F32_META = 1, 2, 3
_WIDTH = {U8: 1, I32: 4, F32_META: 4}


class Meta(NamedTuple):
    """One metadata entry: type (1 u8, 2 i32, 3 f32), number of values, and their bytes,
    little-endian."""

    type: int
    count: int
    values: bytes

    def array(self) -> np.ndarray:
        """The values, shape (count,)."""
        return np.frombuffer(self.values, {U8: "<u1", I32: "<i4", F32_META: "<f4"}[self.type])


class Tensor(NamedTuple):
    """One row of the tensor table with its data as they lie in the file, without padding."""

    dtype: int
    rows: int
    cols: int
    data: bytes


def _pad(data: bytes, to: int) -> bytes:
    return data + b"\0" * (-len(data) % to)


def parse(data: bytes) -> tuple[dict[str, Meta], dict[str, Tensor]]:
    """Metadata and tensors of a well-formed checkpoint, in file order."""
    meta_size, _, n_meta, n_tensors = struct.unpack_from("<QQII", data, 24)
    meta, tensors, at = {}, {}, 64
    for _ in range(n_meta):
        kind, key_len, count = struct.unpack_from("<IIQ", data, at)
        key = data[at + 16 : at + 16 + key_len].decode("ascii")
        at += 16 + key_len + -key_len % 8
        size = count * _WIDTH[kind]
        meta[key] = Meta(kind, count, data[at : at + size])
        at += size + -size % 8
    at = 64 + meta_size
    for _ in range(n_tensors):
        dtype, name_len, rows, cols, offset, size = struct.unpack_from("<IIQQQQ", data, at)
        name = data[at + 40 : at + 40 + name_len].decode("ascii")
        at += 40 + name_len + -name_len % 8
        tensors[name] = Tensor(dtype, rows, cols, data[offset : offset + size])
    return meta, tensors


def _head(meta: dict[str, Meta], tensors: dict[str, Tensor], sizes: list[int]) -> bytes:
    """Header, metadata and tensor table, the data taking so many bytes each; the checksum is
    zero."""
    entries = b"".join(
        _pad(struct.pack("<IIQ", m.type, len(key), m.count) + _pad(key.encode(), 8) + m.values, 8)
        for key, m in meta.items()
    )
    entries = _pad(entries, 64)
    table_size = sum(40 + len(_pad(name.encode(), 8)) for name in tensors)
    table_size += -table_size % 64
    rows, offset = [], 64 + len(entries) + table_size
    for (name, t), size in zip(tensors.items(), sizes):
        row = struct.pack("<IIQQQQ", t.dtype, len(name), t.rows, t.cols, offset, size)
        rows.append(row + _pad(name.encode(), 8))
        offset += size + -size % 64
    counts = offset, len(entries), table_size, len(meta), len(tensors)
    header = b"heads.c\0" + struct.pack("<IIQQQII", 2, 0, *counts) + bytes(16)
    return header + entries + _pad(b"".join(rows), 64)


def build(meta: dict[str, Meta], tensors: dict[str, Tensor]) -> bytes:
    """The checkpoint file of these entries, checksum included."""
    head = _head(meta, tensors, [len(t.data) for t in tensors.values()])
    return seal(head + b"".join(_pad(t.data, 64) for t in tensors.values()))


def with_nan(data: bytes, token: int) -> bytes:
    """A checkpoint of f32 weights, output tied, after whose token no logits are finite numbers."""
    meta, tensors = parse(data)
    output = tensors["embed"]
    panels = np.frombuffer(output.data, "<f4").reshape(-1, output.cols, 16).copy()
    panels[token // 16, :, token % 16] = np.nan
    embed = output._replace(data=panels.tobytes())
    return build(meta, {**tensors, "embed": embed, "output": output})


def write_zeros(path: Path, meta: dict[str, Meta], shapes: dict[str, tuple[int, ...]]) -> None:
    """A checkpoint whose tensors are f32 and zero, (n_out, n_in) matrices and (n,) vectors: on the
    disk it takes only the room of its head. Its checksum is none."""
    tensors = {name: Tensor(0, *(1, *shape)[-2:], b"") for name, shape in shapes.items()}
    sizes = [4 * s[-1] * (-(-s[0] // 16) * 16 if len(s) > 1 else 1) for s in shapes.values()]
    path.write_bytes(_head(meta, tensors, sizes))
    with path.open("r+b") as file:
        file.truncate(struct.unpack_from("<Q", path.read_bytes(), 16)[0])


def seal(data: bytes) -> bytes:
    """The same file with the checksum that belongs to it."""
    return data[:12] + struct.pack("<I", zlib.crc32(data[64:])) + data[16:]


def matrix(values: np.ndarray) -> Tensor:
    """An f32 matrix, shape (n_out, n_in), in panels of 16 rows."""
    n_out, n_in = values.shape
    padded = np.zeros((math.ceil(n_out / 16) * 16, n_in), "<f4")
    padded[:n_out] = values
    return Tensor(0, n_out, n_in, padded.reshape(-1, 16, n_in).transpose(0, 2, 1).tobytes())


def vector(values: np.ndarray) -> Tensor:
    """An f32 vector, shape (n,)."""
    return Tensor(0, 1, len(values), np.asarray(values, "<f4").tobytes())


def random_model(
    *,
    vocab: int | None = None,
    n_embd: int = 40,
    n_layers: int = 3,
    n_heads: int = 6,
    n_kv_heads: int = 2,
    head_dim: int = 16,
    d_ff: int = 72,
    context: int = 512,
    window: int = 0,
    tokenizer: Path | None = None,
    seed: int = 1,
) -> bytes:
    """A Llama-shaped checkpoint of random weights.

    tokenizer: a checkpoint whose tokenizer it takes. vocab: 300 if not given, or the tokenizer's.
    """
    rng = np.random.default_rng(seed)
    borrowed: dict[str, Meta] = {}
    if tokenizer:
        other, _ = parse(tokenizer.read_bytes())
        borrowed = {key: m for key, m in other.items() if key.startswith("tokenizer.")}
        vocab = vocab or int(other["model.vocab_size"].array()[0])
    vocab = vocab or 300

    def ints(*values: int) -> Meta:
        return Meta(I32, len(values), np.array(values, "<i4").tobytes())

    def floats(*values: float) -> Meta:
        return Meta(F32_META, len(values), np.array(values, "<f4").tobytes())

    meta = {
        "model.vocab_size": ints(vocab),
        "model.n_embd": ints(n_embd),
        "model.n_layers": ints(n_layers),
        "model.context": ints(context),
        "model.norm": ints(0),
        "model.norm_eps": floats(1e-5),
        "model.rope.0.inv_freq": floats(*(10000.0 ** (-2 * np.arange(head_dim // 2) / head_dim))),
        "layer.n_heads": ints(n_heads),
        "layer.n_kv_heads": ints(n_kv_heads),
        "layer.head_dim": ints(head_dim),
        "layer.rope": ints(0),
        "layer.window": ints(window),
        "layer.attn_scale": floats(head_dim**-0.5),
        "layer.topology": ints(0),
        "layer.d_ff": ints(d_ff),
        "layer.ffn": ints(1),
        "layer.act": ints(0),
        **borrowed,
        "info.source": Meta(U8, 14, b"random weights"),
    }

    def weights(n_out: int, n_in: int) -> Tensor:
        return matrix(rng.normal(0, 1.5 / math.sqrt(n_in), (n_out, n_in)))

    tensors = {"embed": weights(vocab, n_embd), "norm": vector(np.ones(n_embd))}
    for i in range(n_layers):
        tensors |= {
            f"layers.{i}.attn_norm": vector(np.ones(n_embd)),
            f"layers.{i}.attn_q": weights(n_heads * head_dim, n_embd),
            f"layers.{i}.attn_k": weights(n_kv_heads * head_dim, n_embd),
            f"layers.{i}.attn_v": weights(n_kv_heads * head_dim, n_embd),
            f"layers.{i}.attn_o": weights(n_embd, n_heads * head_dim),
            f"layers.{i}.ffn_norm": vector(np.ones(n_embd)),
            f"layers.{i}.ffn_gate": weights(d_ff, n_embd),
            f"layers.{i}.ffn_up": weights(d_ff, n_embd),
            f"layers.{i}.ffn_down": weights(n_embd, d_ff),
        }
    return build(meta, tensors)
