"""Byte-level models whose pre-tokenizer is known by name: merges or ranks -> a Vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from .normalizers import STEPS as NORMALIZERS
from .normalizers import Normalizer
from .pre_tokenizers import (
    BYTE_DIGITS,
    DIGIT,
    GPT2,
    PUNCTUATION,
    PUNCTUATION_MARK,
    THREE_DIGITS,
    TRINITY_STEPS,
)
from .tokenizer_json import bpe_model, checked_vocab, place_added_tokens
from .vocabulary import BYTE_CHARS, Vocabulary


@dataclass(frozen=True)
class Kind:
    """The steps before the merges. `words`: a piece that is a token is not merged."""

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
    "minicpm5": Kind((13, 5)),
    "qwen2": Kind((6,), _NFC),
    "qwen2 as it is": Kind((6,)),
    "qwen3.5": Kind((7,), _NFC),
    "o200k": Kind((8,)),
    "o200k words": Kind((8,), words=True),
    "tekken": Kind((9,), words=True),
    "deepseek-llm": Kind((15, 25, 26, 27, 18, DIGIT)),
    "deepseek-coder": Kind((15, 16, 17, 18, DIGIT)),
    "deepseek-v3": Kind((13, 19, 10)),
    "bloom": Kind((24,)),
    "seed-coder": Kind((33,)),
    "jais-2": Kind((34,)),
    "exaone-moe": Kind((35,)),
    "youtu": Kind((37, 38, 39, 19, 36), words=True),
    "bloom digits": Kind((24, DIGIT)),
    "default": Kind((40, GPT2, 41, THREE_DIGITS)),
    "chameleon": Kind((42, 43, 44, DIGIT, PUNCTUATION_MARK, GPT2)),
    "tiny-aya": Kind((45, 8), _NFC),
    "superbpe": Kind((41, 47)),
    "kimi-k2": Kind((48,), words=True),
    "afmoe": Kind((*TRINITY_STEPS, 10)),
}


def from_merges(kind: Kind, vocab: dict[str, int], merges: list, added: list[dict]) -> Vocabulary:
    """A Vocabulary from tokens in ByteLevel's alphabet with their ids, merges as in a
    tokenizer.json, and added tokens as there, whose ids count whatever they are. Errors:
    ExportError."""
    vocab = {token["content"]: token["id"] for token in added} | vocab
    model = {"vocab": vocab, "merges": merges, "ignore_merges": kind.words}
    v = Vocabulary({id: token for token, id in checked_vocab(model).items()}, {}, None, [])
    v.normalizer, v.splits = Normalizer(list(kind.normalizer)), list(kind.splits)
    bpe_model(v, model, vocab, byte_level=True)
    place_added_tokens(v, added, vocab)
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
    v.words = set(tokens)
    place_added_tokens(v, added, {token["content"]: token["id"] for token in added})
    return v
