"""Checkpoints to talk with: models of any family, with a tokenizer of a few dozen tokens and a chat
template of our own."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import chats
import checkpoints
import numpy as np

SPECIAL = ["<end>", "<think>", "</think>"]
LETTERS = "\nabcdefghijklmnopqrstuvwxyz 0123456789[]UAS:.?,/"

PLAIN = """
{%- for m in messages %}
{{- '[' + {'user': 'U', 'assistant': 'A', 'system': 'S'}[m.role] + ']' + m.content + '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[A]' }}{% endif %}"""

# Answers are written otherwise once they are past: without their thoughts.
THINKING = """
{%- if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}
{%- for m in messages %}
{{- '[' + {'user': 'U', 'assistant': 'A'}[m.role] + ']' }}
{{- (m.content.split('</think>')[-1] if m.role == 'assistant' else m.content) + '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '[A]' + ('' if enable_thinking is defined and not enable_thinking else '<think>') }}
{%- endif %}"""


@lru_cache
def template_metadata(template: str) -> dict:
    metadata = chats.metadata_of(template, {"eos_token": "<end>"})
    assert "chat.refused" not in metadata, metadata
    return metadata


def tokens(n: int) -> list[str]:
    """n tokens. The last are pairs of letters, which no text is encoded as: a model that generates
    one finds its answer otherwise when it reads it."""
    pairs = [a + b for a in LETTERS[1:27] for b in LETTERS[1:27]]
    return (SPECIAL + list(LETTERS) + pairs)[:n]


def tokenizer_metadata(n: int, more: tuple[str, ...] = ()) -> dict[str, checkpoints.Meta]:
    """A tokenizer over bytes, without merges, and of tokens that no text is encoded as; a byte without
    a token vanishes."""
    texts = [token.encode() for token in [*tokens(n), *more]]
    n = len(texts)
    of_byte = {text[0]: i for i, text in enumerate(texts) if len(text) == 1}
    added = sorted(range(len(SPECIAL)), key=lambda i: SPECIAL[i])
    begins = np.cumsum([0] + [len(text) for text in texts])
    numbers = {
        "tokenizer.token.begin": begins,
        "tokenizer.bytes": [of_byte.get(byte, -1) for byte in range(256)],
        "tokenizer.merge.begin": [0] * (n + 1),
        "tokenizer.eos": [0],
        "tokenizer.added.begin": np.cumsum([0] + [len(SPECIAL[i]) for i in added]),
        "tokenizer.added.chars": [ord(c) for i in added for c in SPECIAL[i]],
        "tokenizer.added.id": added,
    }
    kinds = bytes([1] * len(SPECIAL) + [0] * (n - len(SPECIAL)))
    meta = {
        "tokenizer.token.text": checkpoints.Meta(checkpoints.U8, int(begins[-1]), b"".join(texts)),
        "tokenizer.token.kind": checkpoints.Meta(checkpoints.U8, n, kinds),
        "tokenizer.added.flags": checkpoints.Meta(checkpoints.U8, len(added), bytes(len(added))),
    }
    for key, values in numbers.items():
        array = np.array(values, "<i4")
        meta[key] = checkpoints.Meta(checkpoints.I32, array.size, array.tobytes())
    return meta


def with_template(model: bytes, template: str) -> bytes:
    return chats.with_chat(model, template_metadata(template))


def make(source: Path, out: Path, template: str, context: int) -> Path:
    """A checkpoint of any vocabulary from 60 on as one that can chat."""
    meta, tensors = checkpoints.parse(source.read_bytes())
    n = int(meta["model.vocab_size"].array()[0])
    meta |= tokenizer_metadata(n)
    meta["model.context"] = checkpoints.Meta(checkpoints.I32, 1, np.int32(context).tobytes())
    out.write_bytes(with_template(checkpoints.build(meta, tensors), template))
    return out


def that_writes(pieces: tuple[str, ...], template: str) -> bytes:
    """A checkpoint whose every answer is these pieces, which differ, a token each. Its prompts end
    with "]"."""
    known = SPECIAL + list(LETTERS)
    n = len(known) + len(pieces)
    meta, tensors = checkpoints.parse(checkpoints.random_model(vocab=n, n_embd=n, n_layers=1))
    after = np.zeros((n, n))
    path = [known.index("]"), *range(len(known), n), 0]
    after[path[1:], path[:-1]] = 10
    nothing = {name: tensors[f"layers.0.{name}"] for name in ("attn_o", "ffn_down")}
    for name, tensor in nothing.items():
        zeros = np.zeros((tensor.rows, tensor.cols))
        tensors[f"layers.0.{name}"] = checkpoints.matrix(zeros)
    tensors |= {"embed": checkpoints.matrix(np.eye(n)), "output": checkpoints.matrix(after)}
    meta |= tokenizer_metadata(len(known), pieces)
    return with_template(checkpoints.build(meta, tensors), template)
