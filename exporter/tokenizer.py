"""Tokenizers: tokenizer.json, SentencePiece's tokenizer.model, llama2.c's tokenizer.bin -> the
metadata of docs/format.md. tokenizer_files.py finds the file, and makes the same of other forms.

What the engine has no rule for is refused by the name of the field, never approximated: a token
more or less in a prompt is an error that nobody sees.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass, field
from typing import Sequence

import numpy as np

from .normalizers import SPACE_MARK, Normalizer, normalize_added, normalizer
from .normalizers import STEPS as NORMALIZERS
from .normalizers import refuse as _refuse
from .tensor import ExportError
from .unigram import Pieces, pieces_metadata, unigram

LSTRIP, RSTRIP, SINGLE_WORD, AT_START = 1, 2, 4, 8
PLAIN, SPECIAL, BYTE = 0, 1, 2
# The steps of pre-tokenizers, as text/scanners.c numbers them.
METASPACE = {"never": 1, "first": 2, "always": 3}
GPT2, DIGIT, DIGITS, PUNCTUATION, BYTE_DIGIT, BYTE_DIGITS, THREE_DIGITS, PREFIX_SPACE = (
    4,
    11,
    12,
    14,
    20,
    21,
    22,
    23,
)
BERT, VISIBLE, WORDS, PUNCTUATION_MARK, MARKED = range(28, 33)
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
)
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Cased letters that DeepSeek-LLM knows. By number, because normalization would make other
# characters of some.
_DEEPSEEK_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-"
    "\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-"
    "\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-"
    "\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2"
    "\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
# Patterns of Split that match somewhere in every text, whatever it is: what does not match is
# empty.
COVERING = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2,
    _WORDS + r"\p{N}{1,3}" + _REST: 5,
    _WORDS + r"\p{N}" + _REST: 6,
    _WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+")
    + r"\p{N}"
    + _REST.replace(r"\s\p{L}", r"\s\p{L}\p{M}"): 7,
    _CASED % (_CONTRACTION, _CONTRACTION)
    + r"\p{N}{1,3}"
    + _REST.replace(r"[\r\n]*", r"[\r\n/]*"): 8,
    _CASED % ("", "") + r"\p{N}" + _REST.replace(r"[\r\n]*", r"[\r\n/]*"): 9,
}
PARTIAL = {
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": 10,
    r"\p{N}{1,3}": 13,
    r"[\r\n]": 15,
    r"\s?\p{L}+": 16,
    r"\s?\p{P}+": 17,
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+": 18,
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+": 19,
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+": 24,
    r"\s?[" + _DEEPSEEK_LETTERS + "]+": 25,
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+": 26,
    r"\s+$": 27,
}  # fmt: skip


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
    words: list[int] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    special: set[int] = field(default_factory=set)
    normalizer: Normalizer = field(default_factory=Normalizer)
    splits: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    eos: list[int] = field(default_factory=list)
    mask: int = -1
    strip: int = 0
    byte_fallback: bool = False  # decoding makes bytes of <0x0A> and its like
    marks: int = 0  # what U+2581 decodes to: 0 itself, 1 a space, 2 nothing in the first token
    pieces: Pieces | None = None  # Unigram
    wordpiece: int = 0  # most characters of a word; `goes_on` begins what continues one
    goes_on: str = "##"
    target: dict[int, str] | None = None  # tokens of what is written, where they are others
    target_special: set[int] = field(default_factory=set)


# ---- the metadata --------------------------------------------------------------------------------


def _byte_alphabet() -> list[str]:
    """The character that ByteLevel shows each byte as (GPT-2's bytes_to_unicode)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)]


BYTE_CHARS = _byte_alphabet()
CHAR_BYTES = {c: b for b, c in enumerate(BYTE_CHARS)}


def _byte_of(token: str) -> int | None:
    """The byte that a byte-fallback token such as <0x0A> stands for."""
    found = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return int(found[1], 16) if found else None


def _decoded(token: str, v: Vocabulary) -> tuple[int, bytes]:
    """The kind of a token, but for special ones, and the bytes that it stands for in decoded
    text."""
    if v.pieces or v.marks:
        return BYTE if v.byte_fallback and _byte_of(token) is not None else PLAIN, token.encode()
    if v.chars is None:
        mapped = [CHAR_BYTES.get(c) for c in token]
        return PLAIN, token.encode() if None in mapped else bytes(mapped)
    byte = _byte_of(token)
    return (
        (PLAIN, token.replace(SPACE_MARK, " ").encode()) if byte is None else (BYTE, bytes([byte]))
    )


def _spaced(id: int, v: Vocabulary) -> bytes:
    """The bytes of a token of WordPiece: a space before what begins a word, so that texts of tokens
    follow each other and `words` needs one table."""
    token = v.tokens.get(id, "")
    if id not in v.words:
        return token.encode()
    return token[len(v.goes_on) :].encode() if token.startswith(v.goes_on) else f" {token}".encode()


def _ints(values) -> np.ndarray:
    return np.array(list(values), np.int32)


def _offsets(lengths) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(list(lengths), dtype=np.int64)]).astype(np.int32)


def vocabulary_metadata(v: Vocabulary) -> dict[str, bytes | np.ndarray]:
    """The `tokenizer.*` metadata (docs/format.md): bytes (u8) or arrays of int32, which the caller
    owns. Errors: ExportError."""
    n = max(v.tokens) + 1
    if v.wordpiece:
        decoded = [(PLAIN, _spaced(id, v)) for id in range(n)]
    else:
        decoded = [_decoded(v.tokens.get(id, ""), v) for id in range(n)]
    kinds = [SPECIAL if id in v.special else kind for id, (kind, _) in enumerate(decoded)]
    out: dict[str, bytes | np.ndarray] = {
        "tokenizer.token.begin": _offsets(len(text) for _, text in decoded),
        "tokenizer.token.text": b"".join(text for _, text in decoded),
        "tokenizer.token.kind": bytes(kinds),
        "tokenizer.bytes": _ints(v.bytes),
    }
    if v.pieces:
        spelled = {token: id for id, token in v.tokens.items()}
        out |= pieces_metadata(v.pieces, spelled)
    else:
        out |= _merge_metadata(v, n)
    if v.chars is not None:
        chars = sorted(v.chars)
        out["tokenizer.chars"] = _ints(map(ord, chars))
        out["tokenizer.char_ids"] = _ints(v.chars[c] for c in chars)
    if v.unk >= 0:
        out["tokenizer.unk"] = _ints([v.unk])
        out["tokenizer.fuse_unk"] = _ints([v.fuse_unk])
    if v.words:
        out["tokenizer.words"] = _ints(sorted(v.words, key=lambda id: decoded[id][1]))
    out |= _added_metadata("tokenizer.added", [(a.content, a) for a in v.added if not a.normalized])
    out |= _added_metadata(
        "tokenizer.added_normalized",
        [(normalize_added(a.content, v.normalizer), a) for a in v.added if a.normalized],
    )
    lists = {
        "normalizer": v.normalizer.steps,
        "splits": v.splits,
        "prefix": v.prefix,
        "suffix": v.suffix,
        "eos": v.eos,
    }
    out |= {f"tokenizer.{key}": _ints(values) for key, values in lists.items() if values}
    out |= _normalizer_metadata(v.normalizer)
    if v.target is not None:
        texts = [v.target.get(id, "").encode() for id in range(max(v.target) + 1)]
        out["tokenizer.target.begin"] = _offsets(map(len, texts))
        out["tokenizer.target.text"] = b"".join(texts)
        out["tokenizer.target.kind"] = bytes(id in v.target_special for id in range(len(texts)))
    numbers = {"strip": v.strip, "marks": v.marks, "wordpiece": v.wordpiece, "mask": max(v.mask, 0)}
    out |= {f"tokenizer.{key}": _ints([number]) for key, number in numbers.items() if number}
    return out


def _merge_metadata(v: Vocabulary, n: int) -> dict[str, np.ndarray]:
    table = np.array(
        [(left, right, rank, id) for (left, right), (rank, id) in v.merges.items()], np.int32
    ).reshape(-1, 4)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    counts = np.bincount(table[:, 0], minlength=n) if len(table) else np.zeros(n, np.int64)
    return {
        "tokenizer.merge.begin": _offsets(counts),
        "tokenizer.merge.right": table[:, 1].copy(),
        "tokenizer.merge.rank": table[:, 2].copy(),
        "tokenizer.merge.id": table[:, 3].copy(),
    }


def _normalizer_metadata(z: Normalizer) -> dict[str, bytes | np.ndarray]:
    """What its steps need besides their numbers."""
    out: dict[str, bytes | np.ndarray] = {}
    if z.charsmap:
        out["tokenizer.charsmap"] = z.charsmap
    if z.replacements:
        texts = [text for what, by, _ in z.replacements for text in (what, by)]
        out["tokenizer.replace.begin"] = _offsets(map(len, texts))
        out["tokenizer.replace.chars"] = _ints(map(ord, "".join(texts)))
        out["tokenizer.replace.repeats"] = bytes(repeats for *_, repeats in z.replacements)
    return out


def _added_metadata(key: str, added: list[tuple[str, Added]]) -> dict[str, bytes | np.ndarray]:
    first: dict[str, Added] = {}
    for content, token in sorted(
        added, key=lambda pair: not pair[1].special
    ):  # the first counts, special ones before others
        if len(content) > 1024:
            raise ExportError(
                f"added_tokens: {content[:40]!r}.. has {len(content)} characters, expected at most "
                "1024"
            )
        first.setdefault(content, token)
    if not first:
        return {}
    contents = sorted(first)  # by code point
    return {
        f"{key}.begin": _offsets(map(len, contents)),
        f"{key}.chars": _ints(ord(c) for content in contents for c in content),
        f"{key}.id": _ints(first[content].id for content in contents),
        f"{key}.flags": bytes(first[content].flags for content in contents),
    }


def check_rows(metadata: dict[str, object], rows: int) -> list[str]:
    """Whether an embedding of so many rows has one for every id that a text can become. Added
    tokens that have none are only worth a remark, which is returned: checkpoints have such tokens,
    and the engine refuses a prompt that spells one. Errors: ExportError."""
    kinds = ("bytes", "char_ids", "merge.id", "words", "unk", "prefix", "suffix")
    most = max(int(np.max(metadata.get(f"tokenizer.{kind}", -1), initial=-1)) for kind in kinds)
    if most >= rows:
        raise ExportError(
            f"the tokenizer makes token {most} of text, but the embedding has {rows} rows; it is "
            "another model's tokenizer, "
            "or the embedding was cut"
        )
    added = np.concatenate(
        [metadata.get(f"tokenizer.{key}.id", _ints([])) for key in ("added", "added_normalized")]
    )
    without = sorted({int(id) for id in added if id >= rows})
    if not without:
        return []
    first, n = without[0], len(without)
    which = f"token {first} has" if n == 1 else f"{n} tokens, {first} the first of them, have"
    return [
        f"{which} no row in the embedding, which has {rows}: a prompt that spells such a token out "
        "cannot be run"
    ]


# ---- tokenizer.json ------------------------------------------------------------------------------


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) < 200 else text[:200] + ".."


def _expect(where: str, got: dict, expected: dict, ignored: tuple[str, ...] = ()) -> None:
    """Refuses a component with a field that has another value than expected, or that is not
    known."""
    for key, value in got.items():
        if key in expected and value not in expected[key]:
            raise _refuse(f"{where}.{key}", value)
        if key not in expected and key not in ignored:
            raise _refuse(f"{where}.{key}", value)


def from_json(data: dict, declared: Sequence[dict] = ()) -> Vocabulary:
    """A Vocabulary from the contents of a tokenizer.json and the added tokens, without ids, that
    other files declare. Errors: ExportError."""
    # truncation and padding are of batches: transformers sets them anew for every call.
    _expect("tokenizer.json", data, {},
                                         ("version",
                                          "truncation", "padding", "added_tokens", "normalizer",
                                          "pre_tokenizer", "post_processor", "decoder",
                                          "model"))  # fmt: skip
    model = data.get("model") or {}
    is_unigram = model.get("type", "" if "merges" in model else "Unigram") == "Unigram"
    vocab, pieces, unk = unigram(model) if is_unigram else (_checked_vocab(model), None, -1)
    wordpiece = model.get("type") == "WordPiece"
    if wordpiece:
        _expect("pre_tokenizer", data.get("pre_tokenizer") or {}, {"type": ("BertPreTokenizer",)})
    before = {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}
    byte_level, splits = _pre_tokenizer(before if wordpiece else data.get("pre_tokenizer"))
    v = Vocabulary({id: token for token, id in vocab.items()}, {}, None, [], splits=splits)
    v.normalizer = normalizer(data.get("normalizer"))
    if splits and splits[0] == METASPACE["first"] and v.normalizer.steps:
        raise _refuse("normalizer together with a Metaspace pre_tokenizer", data["normalizer"])
    if -1 in splits:
        if NORMALIZERS["spaces to mark"] not in v.normalizer.steps:
            raise _refuse("pre_tokenizer", data["pre_tokenizer"])
        v.splits = []
    if pieces:
        if byte_level:
            raise _refuse("pre_tokenizer", data["pre_tokenizer"])
        v.pieces, v.unk, v.bytes = pieces, unk, _fallback(model, vocab)
    elif not wordpiece:
        _model(v, model, vocab, byte_level)
    _added_tokens(v, [*(data.get("added_tokens") or []), *declared], vocab)
    if wordpiece:
        _wordpiece(v, model, vocab)
    v.prefix, v.suffix = _post_processor(data.get("post_processor"))
    if wordpiece:
        v.strip = 1
    else:
        _decoder(v, data.get("decoder"), byte_level)
    if max(v.tokens) >= 1 << 24:
        raise ExportError(
            f"model.vocab: the highest id is {max(v.tokens)}, expected less than {1 << 24}"
        )
    return v


def _checked_vocab(model: dict) -> dict[str, int]:
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "WordPiece"):
        raise ExportError(f"model.type is {kind!r}; supported: BPE, Unigram, WordPiece")
    vocab = model.get("vocab")
    if (
        not isinstance(vocab, dict)
        or not vocab
        or not all(isinstance(id, int) and id >= 0 for id in vocab.values())
    ):
        raise ExportError("model.vocab: expected an object of tokens and their ids")
    if len(set(vocab.values())) != len(vocab):
        raise ExportError("model.vocab: two tokens have the same id")
    return vocab


def _model(v: Vocabulary, model: dict, vocab: dict[str, int], byte_level: bool) -> None:
    """The BPE model: merges, units, the unknown token."""
    _expect("model", model, {
        "dropout": (None, 0, 0.0), "continuing_subword_prefix": (None, ""),
        "end_of_word_suffix": (None, ""),
        "byte_fallback": (None, False) if byte_level else (None, False, True),
        "fuse_unk": (None, False, True),
        "ignore_merges": (None, False, True) if byte_level else (None, False),
    }, ("type", "vocab", "merges", "unk_token"))  # fmt: skip
    for rank, merge in enumerate(model.get("merges") or []):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(part, str) for part in pair)
        ):
            raise ExportError(f"model.merges: entry {rank} is {_shown(merge)}, expected two tokens")
        ids = [vocab.get(token) for token in (*pair, "".join(pair))]
        if None in ids:
            raise ExportError(
                f"model.merges: entry {rank} is {_shown(merge)}; these two or their sum are not in "
                "the vocab"
            )
        v.merges[ids[0], ids[1]] = (rank, ids[2])
    if byte_level:
        v.bytes = [vocab.get(c, -1) for c in BYTE_CHARS]
    else:
        v.chars = {token: id for token, id in vocab.items() if len(token) == 1}
        v.bytes = _fallback(model, vocab)
        if not v.chars:
            raise ExportError(
                "model.vocab: it has no token of a single character, and the pre_tokenizer is not "
                "ByteLevel"
            )
    unk = model.get("unk_token")
    if unk is not None:
        if unk not in vocab:
            raise ExportError(f"model.unk_token is {_shown(unk)}, which is not in vocab")
        v.unk, v.fuse_unk = vocab[unk], bool(model.get("fuse_unk"))
    if model.get("ignore_merges"):
        v.words = [
            id for token, id in vocab.items() if token and all(c in CHAR_BYTES for c in token)
        ]


def _fallback(model: dict, vocab: dict[str, int]) -> list[int]:
    """The tokens of single bytes, for characters that have none."""
    wanted = model.get("byte_fallback")
    return [vocab.get(f"<0x{b:02X}>", -1) if wanted else -1 for b in range(256)]


def _wordpiece(v: Vocabulary, model: dict, vocab: dict[str, int]) -> None:
    """The WordPiece model, once the special tokens are known, which no word can become."""
    _expect("model", model, {}, ("type", "vocab", "unk_token", "continuing_subword_prefix",
                                 "max_input_chars_per_word"))  # fmt: skip
    unk = model.get("unk_token")
    if unk not in vocab:
        raise ExportError(f"model.unk_token is {_shown(unk)}, which is not in vocab")
    v.goes_on = model.get("continuing_subword_prefix", "##")
    v.wordpiece = model.get("max_input_chars_per_word", 100)
    v.unk, v.bytes, v.splits = vocab[unk], [-1] * 256, [BERT]
    v.words = [id for id in vocab.values() if id not in v.special]


def _added_tokens(v: Vocabulary, tokens: list[dict], vocab: dict[str, int]) -> None:
    """The added tokens, with the ids that `tokenizers` gives them whatever the file says: the
    vocabulary's if it has the token; else one more than the highest so far, or the size of the
    vocabulary."""
    by_content: dict[str, Added] = {}
    free = len(vocab)
    for token in tokens:
        content = token.get("content")
        if not content:
            continue
        before = by_content.get(content)
        id = before.id if before else vocab.get(content, free)
        free = max(free, id + 1)
        if id != token.get("id", id):
            raise ExportError(
                f"added_tokens: {content!r} has id {token.get('id')}, but tokenizers would give it "
                f"{id}"
            )
        taken = v.tokens.get(id, content)
        if taken != content:
            raise ExportError(f"added_tokens: {content!r} and {taken!r} share id {id}")
        flags = LSTRIP * bool(token.get("lstrip")) | RSTRIP * bool(token.get("rstrip"))
        flags |= SINGLE_WORD * bool(token.get("single_word"))
        special = bool(token.get("special") or (before and before.special))
        normalized = bool(token.get("normalized", not special))
        by_content[content] = Added(id, content, flags, normalized, special)
    v.added = list(by_content.values())
    special = {token.content for token in v.added if token.special}
    for token in v.added:  # one looked for in normalized text decodes to what it looks like there
        content = token.content
        v.tokens[token.id] = normalize_added(content, v.normalizer) if token.normalized else content
        if v.tokens[token.id] in special:
            v.special.add(token.id)


def _parts(component: dict | None, many: str) -> list[dict]:
    """The steps of a component, Sequences opened."""
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for step in component.get(many, []) for part in _parts(step, many)]
    return [component]


def _pre_tokenizer(component: dict | None) -> tuple[bool, list[int]]:
    """Whether the model works on bytes, and the steps. -1 stands for a split at spaces, which must
    not be able to happen."""
    steps: list[int] = []
    byte_level = False
    for i, part in enumerate(_parts(component, "pretokenizers")):
        kind = part.get("type")
        if kind == "ByteLevel" and not byte_level:
            # After another step it would be put before each piece.
            prefix = (False,) if i else (False, True)
            part = {"add_prefix_space": True, **part}
            _expect(
                "pre_tokenizer.ByteLevel",
                part,
                {"add_prefix_space": prefix, "use_regex": (True, False)},
                ("type", "trim_offsets"),
            )
            byte_level = True
            steps += [PREFIX_SPACE] * part["add_prefix_space"]
            steps += [GPT2] if part.get("use_regex", True) else []
        elif kind == "Metaspace":
            steps += _metaspace(part, first=i == 0)
        else:
            steps.append(_split(part, byte_level))
    if byte_level and (-1 in steps or set(steps) & set(METASPACE.values())):
        raise _refuse("pre_tokenizer", component)
    if -1 in steps and len(steps) > 1:
        raise _refuse("pre_tokenizer", component)
    return byte_level, steps


def _metaspace(part: dict, first: bool) -> list[int]:
    """Spaces become marks, one goes in front, and each mark begins a piece."""
    part = {"prepend_scheme": "always", "split": True, "add_prefix_space": True, **part}
    schemes = ("always", "never", "first") if first else ("always", "never")
    _expect("pre_tokenizer.Metaspace", part, {
        "replacement": (SPACE_MARK,), "prepend_scheme": schemes, "split": (True, False),
        "add_prefix_space": (True, part["prepend_scheme"] != "never"),
    }, ("type", "str_rep"))  # fmt: skip
    return [METASPACE[part["prepend_scheme"]]] + [MARKED] * part["split"]


def _split(part: dict, after_bytes: bool) -> int:
    """The number of a step that cuts. After ByteLevel, steps see bytes in place of characters."""
    kind = part.get("type")
    if kind == "Digits" and set(part) == {"type", "individual_digits"}:
        individual = part["individual_digits"]
        return (
            (BYTE_DIGIT if individual else BYTE_DIGITS)
            if after_bytes
            else DIGIT
            if individual
            else DIGITS
        )
    if kind == "Punctuation" and not after_bytes:
        behavior = part.get("behavior", "Isolated")
        if set(part) <= {"type", "behavior"} and behavior in ("Contiguous", "Isolated"):
            return PUNCTUATION if behavior == "Contiguous" else PUNCTUATION_MARK
    if part == {"type": kind} and kind in ("WhitespaceSplit", "Whitespace") and not after_bytes:
        return VISIBLE if kind == "WhitespaceSplit" else WORDS
    if kind == "Split" and set(part) == {"type", "pattern", "behavior", "invert"}:
        pattern, how = part["pattern"], (part["behavior"], part["invert"])
        if pattern == {"String": " "} and how == ("MergedWithPrevious", False) and not after_bytes:
            return -1
        regex = str(pattern.get("Regex")).replace("\r", r"\r").replace("\n", r"\n")
        if after_bytes:
            if regex == "[0-9][0-9][0-9]" and how == ("Isolated", False):
                return THREE_DIGITS
        elif regex in COVERING and how in (("Isolated", False), ("Removed", True)):
            return COVERING[regex]
        elif regex in PARTIAL and how == ("Isolated", False):
            return PARTIAL[regex]
    raise _refuse("pre_tokenizer", part)


def _post_processor(component: dict | None) -> tuple[list[int], list[int]]:
    """The ids put before and after a single text."""
    prefix: list[int] = []
    suffix: list[int] = []
    for part in _parts(component, "processors"):
        kind = part.get("type")
        if kind == "ByteLevel":
            continue  # it only trims offsets
        if kind in ("BertProcessing", "RobertaProcessing"):
            prefix, suffix = [part["cls"][1], *prefix], [*suffix, part["sep"][1]]
            continue
        if kind != "TemplateProcessing":
            raise _refuse("post_processor", part)
        before, after, seen = [], [], False
        for piece in part.get("single", []):
            if "SpecialToken" in piece:
                ids = part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
                (after if seen else before).extend(ids)
            elif piece.get("Sequence", {}).get("id") == "A" and not seen:
                seen = True
            else:
                raise _refuse("post_processor.single", part["single"])
        if not seen:
            raise _refuse("post_processor.single", part.get("single"))
        prefix, suffix = before + prefix, suffix + after
    return prefix, suffix


def _decoder(v: Vocabulary, component: dict | None, byte_level: bool) -> None:
    """Checks the decoder: what it makes of marks, and the spaces it takes off the beginning."""
    parts = _parts(component, "decoders")
    if byte_level:
        if [part.get("type") for part in parts] != ["ByteLevel"]:
            raise _refuse("decoder", component)
        return
    if len(parts) == 1 and parts[0].get("type") == "Metaspace":
        _metaspace(parts[0], first=True)
        v.marks = 1 if parts[0].get("prepend_scheme") == "never" else 2
        return
    replace = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    if parts[:3] != [replace, {"type": "ByteFallback"}, {"type": "Fuse"}] or len(parts) > 4:
        raise _refuse("decoder", component)
    v.byte_fallback = True
    v.marks = int(v.pieces is not None)  # of merges, the text of tokens has spaces already
    if len(parts) == 4:
        spaces = parts[3].get("start")
        strip = {"type": "Strip", "content": " ", "start": spaces, "stop": 0}
        if parts[3] != strip or not isinstance(spaces, int) or spaces < 0:
            raise _refuse("decoder", parts[3])
        v.strip = spaces


# ---- byte-level models whose pre-tokenizer is known by name --------------------------------------


@dataclass(frozen=True)
class Kind:
    """What lies before the merges. `words`: a piece that is a token is not merged."""

    splits: tuple[int, ...]
    normalizer: tuple[int, ...] = ()
    words: bool = False


_NFC = (NORMALIZERS["nfc"],)
KINDS = {
    "gpt2": Kind((GPT2,)),
    "gpt2 nfc": Kind((GPT2,), _NFC),
    "starcoder": Kind((DIGIT, GPT2)),
    "command-r": Kind((DIGIT, GPT2), _NFC),
    "falcon": Kind((PUNCTUATION, GPT2, BYTE_DIGITS, THREE_DIGITS)),
    "llama3": Kind((5,), words=True),
    "cl100k": Kind((5,)),
    "qwen2": Kind((6,), _NFC),
    "qwen3.5": Kind((7,), _NFC),
    "o200k": Kind((8,)),
    "tekken": Kind((9,), words=True),
    "deepseek-llm": Kind((15, 25, 26, 27, 18, DIGIT)),
    "deepseek-coder": Kind((15, 16, 17, 18, DIGIT)),
    "deepseek-v3": Kind((13, 19, 10)),
    "bloom": Kind((24,)),
}  # fmt: skip


def from_merges(kind: Kind, vocab: dict[str, int], merges: list, added: list[dict]) -> Vocabulary:
    """A Vocabulary from tokens in ByteLevel's alphabet with their ids, merges as in a
    tokenizer.json, and added tokens as there, whose ids count whatever they are. Errors:
    ExportError."""
    vocab = {token["content"]: token["id"] for token in added} | vocab
    model = {"vocab": vocab, "merges": merges, "ignore_merges": kind.words}
    v = Vocabulary({id: token for token, id in _checked_vocab(model).items()}, {}, None, [])
    v.normalizer, v.splits = Normalizer(list(kind.normalizer)), list(kind.splits)
    _model(v, model, vocab, byte_level=True)
    _added_tokens(v, added, vocab)
    return v


def from_ranks(kind: Kind, ranks: dict[bytes, int], added: list[dict]) -> Vocabulary:
    """A Vocabulary from the tokens of tiktoken, bytes with their ids, and added tokens. tiktoken
    looks a whole piece up, and else merges the two neighbours whose join has the lowest id, the
    leftmost of equals. Errors: ExportError."""
    tokens = {id: "".join(BYTE_CHARS[b] for b in token) for token, id in ranks.items()}
    merges = {}
    for token, id in ranks.items():
        for cut in range(1, len(token)):
            left, right = ranks.get(token[:cut]), ranks.get(token[cut:])
            if left is not None and right is not None:
                merges[left, right] = (id, id)
    v = Vocabulary(tokens, merges, None, [ranks.get(bytes([b]), -1) for b in range(256)])
    v.normalizer, v.splits = Normalizer(list(kind.normalizer)), list(kind.splits)
    v.words = sorted(tokens)
    _added_tokens(v, added, {token["content"]: token["id"] for token in added})
    return v


# ---- SentencePiece and llama2.c ------------------------------------------------------------------


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


def from_sentencepiece(data: bytes) -> Vocabulary:
    """A Vocabulary from a SentencePiece BPE model. Errors: ExportError."""
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
        add_dummy_prefix=bool(normalizer.get(3, 1)),
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
    by_byte = {_byte_of(tokens[id]): id for id, kind in types.items() if kind == BYTE_PIECE}
    _drop_unused(tokens, types, set(text.values()))
    v = Vocabulary(
        tokens, _merges_by_score(text, {id: score for id, (_, score, _) in enumerate(pieces)}),
        {token: id for id, token in text.items() if len(token) == 1},
        [by_byte.get(b, -1) for b in range(256)],
        unk=next((id for id, kind in types.items() if kind == UNKNOWN), -1), fuse_unk=True,
    )  # fmt: skip
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
    if len(tokens) < 259 or any(_byte_of(tokens[3 + b]) != b for b in range(256)):
        raise ExportError("tokens 3..258 are not <0x00>..<0xFF>; it is no llama2.c tokenizer")
    tokens |= {0: "<unk>", 1: "<s>", 2: "</s>"}  # BOS and EOS come as "\n<s>\n"
    text = {id: token for id, token in tokens.items() if id > 258 and token}
    v = Vocabulary(tokens, _merges_by_score(text, scores),
                   {token: id for id, token in text.items() if len(token) == 1},
                   list(range(3, 259)), normalizer=Normalizer([NORMALIZERS["prepend space"]]),
                   strip=1)  # fmt: skip
    v.special = {0, 1, 2}
    # BOS begins a text there, so the next one ends it.
    v.prefix, v.eos = [1], [1, 2]
    return v
