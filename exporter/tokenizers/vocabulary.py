"""A tokenizer before it becomes metadata, and the alphabet of byte-level models."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .normalizers import Normalizer
from .unigram import Pieces

LSTRIP, RSTRIP, SINGLE_WORD, AT_START = 1, 2, 4, 8


@dataclass
class Added:
    """An added token. `normalized`: it is looked for in the normalized text."""

    id: int
    content: str
    flags: int
    normalized: bool
    special: bool


@dataclass
class Vocabulary:
    """A tokenizer before it becomes metadata. `tokens`: id -> string, as the vocabulary spells it;
    `merges`: (left id, right id) -> (rank, id of the result); `chars`: single character -> id, None
    for a byte-level model; `bytes`: byte -> id or -1; `words`: ids that a whole piece becomes
    without merging; `special`: ids that decoding may skip. The rest is as in the metadata."""

    tokens: dict[int, str]
    merges: dict[tuple[int, int], tuple[int, int]]
    chars: dict[str, int] | None
    bytes: list[int]
    unk: int = -1
    fuse_unk: bool = False
    words: set[int] = field(default_factory=set)
    added: list[Added] = field(default_factory=list)
    special: set[int] = field(default_factory=set)
    normalizer: Normalizer = field(default_factory=Normalizer)
    splits: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    eos: list[int] = field(default_factory=list)
    between: list[int] = field(default_factory=list)  # two texts that are read as one
    second_type: int | None = None  # of the second's tokens; None: two cannot be read as one
    mask: int = -1
    strip: int = 0
    byte_fallback: bool = False  # decoding makes bytes of <0x0A> and its like
    marks: int = 0  # what U+2581 decodes to: 0 itself, 1 a space, 2 nothing in the first token
    pieces: Pieces | None = None  # Unigram
    wordpiece: int = 0  # most characters of a word; `goes_on` begins what continues one
    goes_on: str = "##"
    target: dict[int, str] | None = None  # tokens of what is written, where they are others
    target_special: set[int] = field(default_factory=set)


def _byte_alphabet() -> list[str]:
    """The character that ByteLevel shows each byte as (GPT-2's bytes_to_unicode)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)]


BYTE_CHARS = _byte_alphabet()
CHAR_BYTES = {c: b for b, c in enumerate(BYTE_CHARS)}


def byte_of(token: str) -> int | None:
    """The byte that a byte-fallback token such as <0x0A> stands for."""
    found = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return int(found[1], 16) if found else None
