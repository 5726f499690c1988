"""Small tokenizers beside a tokenizer_config.json that names their class, for the test that compares
them with what AutoTokenizer makes of the same files (tests/golden/tokenizer_classes.json)."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from exporter.tokenizers.normalizers import SPACE_MARK
from exporter.tokenizers.vocabulary import BYTE_CHARS

SPECIAL = "<s> <pad> </s> <unk> <mask> [PAD] [UNK] [CLS] [SEP] [MASK] <|endoftext|>".split()
SPECIAL += "<bos> <eos> <|padding|> <BOS_TOKEN> <|END_OF_TURN_TOKEN|>".split()
LETTERS = list("abcABC0123.,")
MARK = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
PREPEND = {"type": "Prepend", "prepend": SPACE_MARK}
FUSED = [{"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}]
FUSED += [{"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def bytes_of(space: bool) -> dict:
    flags = {"trim_offsets": True, "use_regex": True}
    return {"type": "ByteLevel", "add_prefix_space": space, **flags}


def metaspace(scheme: str, split: bool = True) -> dict:
    scheme = {"prepend_scheme": scheme, "split": split}
    return {"type": "Metaspace", "replacement": SPACE_MARK, **scheme}


def in_turn(key: str, *parts: dict) -> dict:
    return {"type": "Sequence", key: list(parts)}


def bert(lowercase: bool, **more) -> dict:
    flags = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, **more}
    return {"type": "BertNormalizer", **flags, "lowercase": lowercase}


def words(scheme: str) -> dict:
    return in_turn("pretokenizers", {"type": "WhitespaceSplit"}, metaspace(scheme))


DIGITS = {"type": "Digits", "individual_digits": True}
NFC, LOWER = {"type": "NFC"}, {"type": "Lowercase"}
# name: kind of model, normalizer, pre_tokenizer, decoder
FILES = {
    "bytes": ("bytes", None, bytes_of(False), bytes_of(True)),
    "space": ("bytes", None, bytes_of(True), bytes_of(True)),
    "nfc": ("bytes", NFC, bytes_of(False), bytes_of(True)),
    "digits": ("bytes", None, in_turn("pretokenizers", DIGITS, bytes_of(False)), bytes_of(True)),
    "prepend": (
        "characters",
        in_turn("normalizers", PREPEND, MARK),
        None,
        in_turn("decoders", *FUSED, STRIP),
    ),
    "first": (
        "characters",
        None,
        metaspace("first", False),
        in_turn("decoders", *FUSED, STRIP),
    ),
    "replace": ("characters", MARK, None, in_turn("decoders", *FUSED)),
    "uncased": ("WordPiece", bert(True), {"type": "BertPreTokenizer"}, None),
    "cased": (
        "WordPiece",
        bert(False, handle_chinese_chars=False),
        {"type": "BertPreTokenizer"},
        None,
    ),
    "words": ("Unigram", None, words("always"), metaspace("always")),
    "no words": ("Unigram", None, words("never"), metaspace("never")),
    "marks": ("Unigram", None, metaspace("always"), metaspace("always")),
    "first mark": ("Unigram", None, metaspace("first"), metaspace("first")),
    "nfc marks": ("Unigram", in_turn("normalizers", NFC), *[metaspace("always")] * 2),
    "lower": ("Unigram", in_turn("normalizers", NFC, LOWER), *[metaspace("always")] * 2),
    "lower first": ("Unigram", in_turn("normalizers", LOWER, NFC), *[metaspace("always")] * 2),
}


def model(kind: str) -> dict:
    if kind == "Unigram":
        tokens = [*SPECIAL, SPACE_MARK, *LETTERS]
        vocab = [[token, 0.0 if token in SPECIAL else -2.0] for token in tokens]
        return {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False}
    tokens = {"bytes": BYTE_CHARS, "WordPiece": [*LETTERS, *("##" + c for c in LETTERS)]}.get(
        kind, [*(f"<0x{b:02X}>" for b in range(256)), SPACE_MARK, *LETTERS]
    )
    vocab = {token: id for id, token in enumerate([*SPECIAL, *tokens])}
    if kind == "WordPiece":
        shape = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        return {"type": "WordPiece", "unk_token": "[UNK]", **shape, "vocab": vocab}
    flags = {"fuse_unk": kind != "bytes", "byte_fallback": kind != "bytes", "ignore_merges": False}
    bare = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    unk = None if kind == "bytes" else "<unk>"
    return {"type": "BPE", **bare, "unk_token": unk, **flags, "vocab": vocab, "merges": []}


def tokenizer_json(name: str) -> dict:
    kind, normalizer, pre_tokenizer, decoder = copy.deepcopy(FILES[name])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": t, **flags, "special": True} for i, t in enumerate(SPECIAL)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder or {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model(kind),
    }


def make(directory: Path, model_type: str, name: str, config: dict) -> Path:
    """A folder with config.json, tokenizer_config.json and tokenizer.json."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json(name)))
    return directory
