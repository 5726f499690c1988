"""A tokenizer.json written in the other forms that tokenizers come in, for the tests that compare
them with it."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

from exporter.tokenizers.vocabulary import CHAR_BYTES


def config_files(data: dict, directory: Path, model_type: str, **tokenizer_config) -> None:
    """What lies beside the vocabulary: the model's type, and the added tokens with their flags."""
    added = {
        str(token["id"]): {k: v for k, v in token.items() if k != "id"}
        for token in data["added_tokens"]
    }
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added, **tokenizer_config})
    )


def vocab_and_merges(data: dict, directory: Path) -> None:
    """GPT-2's vocab.json and merges.txt."""
    (directory / "vocab.json").write_text(json.dumps(data["model"]["vocab"]))
    lines = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    (directory / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8"
    )


def token_bytes(data: dict) -> list[bytes]:
    """The tokens that are no added ones, in the order of their ids."""
    added = {token["content"] for token in data["added_tokens"]}
    ordered = sorted(data["model"]["vocab"].items(), key=lambda item: item[1])
    return [bytes(CHAR_BYTES[c] for c in token) for token, _ in ordered if token not in added]


def tiktoken(data: dict, path: Path) -> None:
    """A line for every token. Its place is its id."""
    path.write_bytes(
        b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(token_bytes(data)))
    )


def tekken(data: dict, path: Path, pattern: str, named: bool = True) -> None:
    """Mistral's form. The first ids are those of the special tokens."""
    tokens, special = token_bytes(data), data["added_tokens"]
    value = {
        "config": {
            "pattern": pattern,
            "num_vocab_tokens": len(tokens) + 5,
            "default_vocab_size": len(special) + len(tokens),
            "default_num_special_tokens": len(special),
            "version": "v3",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
            for i, t in enumerate([*tokens, *(b"more than counts %d" % i for i in range(5))])
        ],
    }
    if named:
        value["special_tokens"] = [
            {"rank": i, "token_str": token["content"], "is_control": True}
            for i, token in enumerate(special)
        ]
    path.write_text(json.dumps(value))


def protobuf(number: int, value: bytes | int | float) -> bytes:
    """One field of a protobuf message."""

    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sentencepiece(
    pieces: list[tuple[str, float, int]],
    model_type: int = 2,
    normalizer: bytes = protobuf(4, 0),
    trainer: bytes = b"",
) -> bytes:
    """A SentencePiece model of (token, score, type) with byte fallback. model_type: 2 BPE."""
    body = b"".join(
        protobuf(1, protobuf(1, t.encode()) + protobuf(2, s) + protobuf(3, kind))
        for t, s, kind in pieces
    )
    return (
        body
        + protobuf(2, protobuf(3, model_type) + protobuf(35, 1) + trainer)
        + protobuf(3, normalizer)
    )


def pieces(data: dict) -> list[tuple[str, float, int]]:
    """The pieces that Gemma's tokenizer.json was made of: scores fall with the ids, special added
    tokens are control pieces, others are user-defined."""
    added = {token["content"]: token["special"] for token in data["added_tokens"]}
    out = []
    for token, id in sorted(data["model"]["vocab"].items(), key=lambda item: item[1]):
        kind = 2 if token == "<unk>" else 3 if added.get(token) else 4 if token in added else 1
        byte = len(token) == 6 and token.startswith("<0x")
        out.append((token, float(-id if kind == 1 and not byte else 0), 6 if byte else kind))
    return out
