"""SentencePiece's BPE models, and llama2.c's tokenizer.bin -> a Vocabulary."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass

from ..tensor import ExportError
from .normalizers import SPACE_MARK, Normalizer
from .normalizers import STEPS as NORMALIZERS
from .vocabulary import Added, Vocabulary, byte_of


def _merges_by_score(
    tokens: dict[int, str], scores: dict[int, float]
) -> dict[tuple[int, int], tuple[int, int]]:
    """The merges that make SentencePiece's choices: every cut of a token into two, best score
    first. Equal scores have equal ranks, and the engine then takes the leftmost, as SentencePiece
    does. `tokens` are those that text can become."""
    ids = {token: id for id, token in tokens.items()}
    ranks = {
        score: rank
        for rank, score in enumerate(sorted({scores[id] for id in tokens}, reverse=True))
    }
    merges = {}
    for id, token in tokens.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                merges[left, right] = (ranks[scores[id]], id)
    return merges


def _fields(data: bytes):
    """The (number, value) pairs of a protobuf message: ints, or bytes for what has a length; 32-bit
    values as 4 bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ExportError("it is no SentencePiece model, or is truncated")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or (varint() if kind == 2 else len(data) + 1)
        if size > len(data) - at:
            raise ExportError("it is no SentencePiece model, or is truncated")
        yield key >> 3, data[at : at + size]
        at += size


@dataclass
class SentencePiece:
    """sentencepiece_model.proto: (token, score, type) of the pieces, and by their numbers the
    fields of trainer_spec and normalizer_spec."""

    pieces: list[tuple[str, float, int]]
    trainer: dict
    normalizer: dict

    @property
    def charsmap(self) -> bytes:
        return self.normalizer.get(2, b"")

    def charsmap_base64(self) -> str:
        return base64.b64encode(self.charsmap).decode()

    @property
    def is_unigram(self) -> bool:
        return self.trainer.get(3, 1) == 1


def read_sentencepiece(data: bytes) -> SentencePiece:
    """The contents of a SentencePiece model. Errors: ExportError."""
    model = SentencePiece([], {}, {})
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0]
            model.pieces.append((piece.get(1, b"").decode(), score, piece.get(3, 1)))
        elif number == 2:
            model.trainer = dict(_fields(value))
        elif number == 3:
            model.normalizer = dict(_fields(value))
    if not model.pieces:
        raise ExportError("it is no SentencePiece model, or is truncated")
    return model


def from_sentencepiece(data: bytes, space: bool | None = None) -> Vocabulary:
    """A Vocabulary from a SentencePiece BPE model. space: whether a text begins with a space, if
    not as the model has it. Errors: ExportError."""
    model = read_sentencepiece(data)
    pieces, trainer, normalizer = model.pieces, model.trainer, model.normalizer
    if trainer.get(3, 1) != 2:
        kind = {1: "Unigram", 3: "Word", 4: "Char"}.get(trainer.get(3, 1), trainer.get(3))
        raise ExportError(f"trainer_spec.model_type is {kind}; only BPE is supported")
    refused = [
        ("trainer_spec.treat_whitespace_as_suffix", trainer.get(24, 0), 0),
        ("normalizer_spec.precompiled_charsmap", "set" if normalizer.get(2) else "", ""),
        ("normalizer_spec.remove_extra_whitespaces", normalizer.get(4, 1), 0),
        ("normalizer_spec.escape_whitespaces", normalizer.get(5, 1), 1),
    ]
    for name, value, expected in refused:
        if value != expected:
            raise ExportError(
                f"{name} is {value!r}, expected {expected!r}; export from a tokenizer.json"
            )
    return from_pieces(
        pieces,
        add_dummy_prefix=bool(normalizer.get(3, 1) if space is None else space),
        bos=trainer.get(41, 1),
        eos=trainer.get(42, 2),
    )


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE_PIECE = range(1, 7)  # types of pieces


def from_pieces(
    pieces: list[tuple[str, float, int]], add_dummy_prefix: bool, bos: int, eos: int
) -> Vocabulary:
    """A Vocabulary from the (token, score, type) of SentencePiece's pieces; a text begins with
    `bos`, if that is a control token. Errors: ExportError."""
    tokens = {id: token for id, (token, _, _) in enumerate(pieces)}
    types = {id: kind for id, (_, _, kind) in enumerate(pieces)}
    for id, token in tokens.items():
        if types[id] == USER and add_dummy_prefix and (SPACE_MARK in token or not token):
            raise ExportError(
                f"piece {id}, {token!r}, is user-defined and holds a space; export from a "
                "tokenizer.json"
            )
    text = {id: token for id, token in tokens.items() if types[id] == NORMAL}
    by_byte = {byte_of(tokens[id]): id for id, kind in types.items() if kind == BYTE_PIECE}
    _drop_unused(tokens, types, set(text.values()))
    v = Vocabulary(
        tokens,
        _merges_by_score(text, {id: score for id, (_, score, _) in enumerate(pieces)}),
        {token: id for id, token in text.items() if len(token) == 1},
        [by_byte.get(b, -1) for b in range(256)],
        unk=next((id for id, kind in types.items() if kind == UNKNOWN), -1),
        fuse_unk=True,
    )
    # The ids of special tokens are as Hugging Face converts such a file: found in text, skipped in
    # decoding.
    v.special = {id for id, kind in types.items() if kind in (UNKNOWN, CONTROL)}
    named = [id for id, kind in types.items() if kind in (UNKNOWN, CONTROL, USER)]
    v.added = [Added(id, tokens[id], 0, False, id in v.special) for id in named]
    # Gemma's runs of U+2581 are found as such in the raw text, and as spaces once these are marks.
    v.added += [
        Added(a.id, a.content, 0, True, False)
        for a in v.added
        if SPACE_MARK in a.content and types[a.id] == USER
    ]
    prepend = [NORMALIZERS["prepend mark"]] * add_dummy_prefix
    v.normalizer = Normalizer([*prepend, NORMALIZERS["spaces to mark"]])
    v.strip = int(add_dummy_prefix)
    v.prefix = [bos] if bos < len(pieces) and types[bos] == CONTROL else []
    v.eos = [eos] if eos < len(pieces) and types[eos] == CONTROL else []
    return v


def _drop_unused(tokens: dict[int, str], types: dict[int, int], parts: set[str]) -> None:
    """Removes unused pieces, such as padding. One that merging makes of `parts`, which
    SentencePiece takes apart again, is refused."""
    for id in [id for id, kind in types.items() if kind == UNUSED]:
        token = tokens.pop(id)
        if len(token) == 1 or any(
            token[:cut] in parts and token[cut:] in parts for cut in range(1, len(token))
        ):
            raise ExportError(
                f"piece {id}, {token!r}, has type UNUSED, but merging makes it; export from a "
                "tokenizer.json"
            )


def from_llama2c(data: bytes) -> Vocabulary:
    """A Vocabulary from llama2.c's tokenizer.bin: int32 longest token, then of each token float32
    score, int32 length, bytes; unknown 0, BOS 1, EOS 2, bytes 3..258, spaces as spaces. Errors:
    ExportError."""
    tokens: dict[int, str] = {}
    scores: dict[int, float] = {}
    at = 4
    while at < len(data):
        if len(data) - at < 8:
            raise ExportError(f"it ends inside token {len(tokens)}")
        score, length = struct.unpack_from("<fi", data, at)
        if not 0 <= length <= len(data) - at - 8 or score != score:
            raise ExportError(
                f"token {len(tokens)} has length {length}: it is no llama2.c tokenizer, or is "
                "truncated"
            )
        try:
            tokens[len(tokens)] = data[at + 8 : at + 8 + length].decode()
        except UnicodeDecodeError as error:
            raise ExportError(f"token {len(tokens)} is not UTF-8") from error
        scores[len(scores)] = score
        at += 8 + length
    if len(tokens) < 259 or any(byte_of(tokens[3 + b]) != b for b in range(256)):
        raise ExportError("tokens 3..258 are not <0x00>..<0xFF>; it is no llama2.c tokenizer")
    tokens |= {0: "<unk>", 1: "<s>", 2: "</s>"}  # BOS and EOS come as "\n<s>\n"
    text = {id: token for id, token in tokens.items() if id > 258 and token}
    v = Vocabulary(
        tokens,
        _merges_by_score(text, scores),
        {token: id for id, token in text.items() if len(token) == 1},
        list(range(3, 259)),
        normalizer=Normalizer([NORMALIZERS["prepend space"]]),
        strip=1,
    )
    v.special = {0, 1, 2}
    # BOS begins a text there, so the next one ends it.
    v.prefix, v.eos = [1], [1, 2]
    return v
