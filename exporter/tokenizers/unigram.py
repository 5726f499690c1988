"""The Unigram model: tokens with scores, of which a text becomes those with the largest sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from ..tensor import ExportError
from .normalizers import refuse

UNKNOWN_PENALTY = 10.0  # below the lowest score


@dataclass
class Pieces:
    """`scores`: token -> score, NaN for a token that is no piece, but stands for a run of unknown
    characters with its text; `single`: sums are float32, as in SentencePiece."""

    scores: dict[str, float]
    unknown: float
    single: bool = False


def pieces_of(scores: dict[str, float]) -> Pieces:
    return Pieces(scores, min(scores.values()) - UNKNOWN_PENALTY)


def _as_read(score: float) -> float:
    """The number that `tokenizers` reads where a tokenizer.json says `score`: it divides digits
    by a power of ten, which is not always the nearest double. Ties hang on it."""
    sign, digits, exponent = Decimal(repr(score)).as_tuple()
    whole = float(int("".join(map(str, digits))))
    power = float(f"1e{abs(exponent)}")
    value = whole * power if exponent > 0 else whole / power
    return -value if sign else value


def unigram(model: dict) -> tuple[dict[str, int], Pieces, int]:
    """The ids, pieces and unknown token of a tokenizer.json's model. Errors: ExportError."""
    known = ("type", "unk_id", "vocab", "byte_fallback")
    for key in model:
        if key not in known:
            raise refuse(f"model.{key}", model[key])
    rows, unk = model.get("vocab"), model.get("unk_id")
    good = isinstance(rows, list) and all(
        isinstance(row, (list, tuple))
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], (int, float))
        and math.isfinite(row[1])
        for row in rows
    )
    if not good or not rows:
        raise ExportError("model.vocab: expected a list of tokens and their scores")
    if not isinstance(unk, int) or not 0 <= unk < len(rows):
        raise ExportError(f"model.unk_id is {unk!r}, expected an id")
    ids = {token: id for id, (token, _) in enumerate(rows)}
    if len(ids) != len(rows):
        again = next(token for id, (token, _) in enumerate(rows) if ids[token] != id)
        raise ExportError(f"model.vocab: {again!r} occurs twice")
    if "" in ids:
        raise ExportError(f"model.vocab: token {ids['']} is empty")
    return ids, pieces_of({token: _as_read(float(score)) for token, score in rows}), unk


def pieces_metadata(pieces: Pieces, ids: dict[str, int]) -> dict[str, bytes | np.ndarray]:
    """`ids`: of each token whose text in the metadata is the piece itself."""
    tokens = sorted((token for token in pieces.scores if token in ids), key=str.encode)
    scores = [*(pieces.scores[token] for token in tokens), pieces.unknown]
    out: dict[str, bytes | np.ndarray] = {
        "tokenizer.unigram": np.array([ids[token] for token in tokens], np.int32),
        "tokenizer.unigram.score": np.array(scores, "<f8").tobytes(),
    }
    if pieces.single:
        out["tokenizer.unigram.single"] = np.array([1], np.int32)
    return out
