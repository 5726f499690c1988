"""A Vocabulary -> the `tokenizer.*` metadata of docs/format.md."""

from __future__ import annotations

import numpy as np

from ..tensor import ExportError
from .normalizers import SPACE_MARK, Normalizer, normalize_added
from .unigram import pieces_metadata
from .vocabulary import CHAR_BYTES, Added, Vocabulary, byte_of

PLAIN, SPECIAL, BYTE = 0, 1, 2
MOST_TOKENS = (1 << 24) - 1  # as in the engine


def _decoded(token: str, v: Vocabulary) -> tuple[int, bytes]:
    """The kind of a token, but for special ones, and the bytes that it stands for in decoded
    text."""
    if v.pieces or v.marks:
        return BYTE if v.byte_fallback and byte_of(token) is not None else PLAIN, token.encode()
    if v.chars is None:
        mapped = [CHAR_BYTES.get(c) for c in token]
        return PLAIN, token.encode() if None in mapped else bytes(mapped)
    byte = byte_of(token)
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
    return np.concatenate([[0], np.cumsum(np.fromiter(lengths, np.int64))]).astype(np.int32)


def _texts_metadata(
    key: str, texts: dict[int, bytes], kinds: dict[int, int]
) -> dict[str, bytes | np.ndarray]:
    """Texts by id, and kinds that are not 0. A vocabulary may have ids far apart: those between them
    take room in the file, but no time here."""
    if min(texts) < 0 or max(texts) >= MOST_TOKENS:
        outside = max(texts) if min(texts) >= 0 else min(texts)
        raise ExportError(f"a token has the id {outside}, expected 0 to {MOST_TOKENS - 1}")
    lengths = np.zeros(max(texts) + 1, np.int64)
    of_kind = np.zeros(len(lengths), np.uint8)
    for id, text in texts.items():
        lengths[id], of_kind[id] = len(text), kinds.get(id, 0)
    return {
        f"{key}.begin": _offsets(lengths),
        f"{key}.text": b"".join(texts[id] for id in sorted(texts)),
        f"{key}.kind": of_kind.tobytes(),
    }


def vocabulary_metadata(v: Vocabulary) -> dict[str, bytes | np.ndarray]:
    """The `tokenizer.*` metadata (docs/format.md): bytes (u8) or arrays of int32, which the caller
    owns. Errors: ExportError."""
    if v.wordpiece:
        decoded = {id: (PLAIN, _spaced(id, v)) for id in v.tokens}
    else:
        decoded = {id: _decoded(token, v) for id, token in v.tokens.items()}
    kinds = {id: SPECIAL if id in v.special else kind for id, (kind, _) in decoded.items()}
    texts = {id: text for id, (_, text) in decoded.items()}
    out: dict[str, bytes | np.ndarray] = {
        **_texts_metadata("tokenizer.token", texts, kinds),
        "tokenizer.bytes": _ints(v.bytes),
    }
    if v.pieces:
        spelled = {token: id for id, token in v.tokens.items()}
        out |= pieces_metadata(v.pieces, spelled)
    else:
        out |= _merge_metadata(v, max(texts) + 1)
    if v.chars is not None:
        chars = sorted(v.chars)
        out["tokenizer.chars"] = _ints(map(ord, chars))
        out["tokenizer.char_ids"] = _ints(v.chars[c] for c in chars)
    if v.unk >= 0:
        out["tokenizer.unk"] = _ints([v.unk])
        out["tokenizer.fuse_unk"] = _ints([v.fuse_unk])
    if v.words:
        out["tokenizer.words"] = _ints(sorted(v.words, key=texts.__getitem__))
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
        "between": v.between,
        "eos": v.eos,
    }
    out |= {f"tokenizer.{key}": _ints(values) for key, values in lists.items() if values}
    out |= _normalizer_metadata(v.normalizer)
    if v.second_type is not None:
        out["tokenizer.second_type"] = _ints([v.second_type])
    if v.target is not None:
        texts = {id: text.encode() for id, text in v.target.items()}
        out |= _texts_metadata("tokenizer.target", texts, dict.fromkeys(v.target_special, SPECIAL))
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
    """The data that its steps need besides their numbers."""
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
