"""Small tokenizers whose added tokens stand in several files, for
tests/text/test_tokenizer_files.py, and texts that spell these tokens. tests/reference/make_special_tokens.py asks transformers what it
makes of them."""

from __future__ import annotations

import json
from pathlib import Path

from exporter.tokenizers.vocabulary import BYTE_CHARS

MERGES = [["t", "h"], ["th", "e"], ["\u0120", "the"], ["<", "/"], ["</", "s"], ["<", "x"]]
SPECIAL = ["<s>", "</s>", "<unk>"]
VOCAB = [*SPECIAL, *BYTE_CHARS, *map("".join, MERGES)]
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
# Of an added token of a tokenizer.json, and what the cases below declare.
CONTENTS = ["<s>", "</s>", "<unk>", "<x>", "<y>", "<pad>", "<image>", "word"]
TEXTS = ["the", *(f"the {c} the{c}the  {c}{c}  the\n {c}\t" for c in CONTENTS), "".join(CONTENTS)]


def token(content: str, *flags: str, **more) -> dict:
    """An added token with these flags, and without the others."""
    return {"content": content, **{flag: flag in flags for flag in FLAGS}, **more}


def named(content: str, *flags: str) -> dict:
    """A token as tokenizer_config.json names one with flags."""
    return {"__type": "AddedToken", **token(content, *flags)}


def in_map(content: str, *flags: str) -> dict:
    """A token as special_tokens_map.json names one with flags."""
    return {key: value for key, value in token(content, *flags).items() if key != "special"}


def tokenizer_json(*added: dict, **more) -> dict:
    """A byte-level tokenizer.json with <s> and these added tokens, which get the next ids."""
    at = len(VOCAB) - len([a for a in added if a["content"] in VOCAB])
    ids = {a["content"]: at + i for i, a in enumerate(added)} | {t: i for i, t in enumerate(VOCAB)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[a["content"]], **a} for a in (token("<s>", "special"), *added)],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": MERGES},
        **more,
    }


def decoder(*tokens: dict, first: int = len(VOCAB)) -> dict:
    """added_tokens_decoder of tokenizer_config.json."""
    return {str(first + i): t for i, t in enumerate(tokens)}


CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
X, Y = token("<x>", "lstrip"), token("<y>", "rstrip", "special")
WORD = token("word", "single_word", "normalized")
PADDING = {
    "strategy": "BatchLongest",
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 2,
    "pad_type_id": 0,
    "pad_token": "<pad>",
}
# Name -> files; tokenizer.json has only <s> where a case brings none.
CASES: dict[str, dict[str, dict]] = {
    "nothing beside": {},
    "a list": {CONFIG: {"added_tokens_decoder": decoder(X, Y, WORD)}},
    "a list with other ids": {CONFIG: {"added_tokens_decoder": decoder(Y, X, WORD, first=400)}},
    "a list with other flags": {
        "tokenizer.json": tokenizer_json(token("<x>", "rstrip", "special"), Y),
        CONFIG: {"added_tokens_decoder": decoder(X, token("<y>", "normalized"))},
    },
    "names": {CONFIG: {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}},
    "a name with flags": {CONFIG: {"eos_token": named("</s>", "lstrip", "rstrip", "special")}},
    "a name in the list": {
        CONFIG: {"added_tokens_decoder": decoder(X, WORD), "eos_token": "<x>", "bos_token": "word"}
    },
    "a name in tokenizer.json": {
        "tokenizer.json": tokenizer_json(X, WORD),
        CONFIG: {"eos_token": "<x>", "bos_token": "word", "pad_token": None},
    },
    "a name of its own": {CONFIG: {"image_token": "<image>", "x_token": named("<x>", "rstrip")}},
    "extra ones": {CONFIG: {"extra_special_tokens": ["<x>", "<y>", "</s>"]}},
    "extra ones with flags": {
        CONFIG: {
            "extra_special_tokens": [named("<x>", "lstrip", "special"), named("<y>", "rstrip")]
        }
    },
    "extra ones by name": {
        CONFIG: {"extra_special_tokens": {"image_token": "<image>", "x_token": "<x>"}}
    },
    "extra after names": {
        CONFIG: {"eos_token": named("</s>", "lstrip"), "extra_special_tokens": ["</s>", "<x>"]}
    },
    "additional ones": {CONFIG: {"additional_special_tokens": ["<x>", named("<y>", "rstrip")]}},
    "additional and extra ones": {
        CONFIG: {"additional_special_tokens": ["<x>"], "extra_special_tokens": ["<y>"]}
    },
    "a map": {
        MAP: {
            "eos_token": in_map("</s>", "lstrip"),
            "pad_token": "<pad>",
            "additional_special_tokens": ["<x>", "<y>"],
        }
    },
    "a map over a configuration": {
        MAP: {"eos_token": "<y>", "extra_special_tokens": ["<x>"], "image_token": "<image>"},
        CONFIG: {"eos_token": "</s>", "extra_special_tokens": ["word"]},
    },
    "a map beside a list": {
        MAP: {"eos_token": "<y>", "additional_special_tokens": ["<image>"]},
        CONFIG: {"added_tokens_decoder": decoder(X), "unk_token": "<unk>"},
    },
    "numbers": {
        ADDED: {"<x>": len(VOCAB), "<y>": len(VOCAB) + 1, "<image>": len(VOCAB) + 2},
        MAP: {"eos_token": "<x>", "additional_special_tokens": ["<y>"]},
    },
    "numbers and tokenizer.json": {
        "tokenizer.json": tokenizer_json(X),
        ADDED: {"<x>": len(VOCAB), "<y>": len(VOCAB) + 1},
        CONFIG: {"extra_special_tokens": ["<y>"]},
    },
    "padding": {"tokenizer.json": tokenizer_json(padding=PADDING)},
    "padding without a name": {
        "tokenizer.json": tokenizer_json(padding=PADDING),
        CONFIG: {"pad_token": None},
    },
}


def write(case: str, directory: Path) -> None:
    """The files of a case. tokenizer_class is the one that takes a tokenizer.json as it is."""
    files = {"tokenizer.json": tokenizer_json(), CONFIG: {}, **CASES[case]}
    files[CONFIG] = {"tokenizer_class": "PreTrainedTokenizerFast", **files[CONFIG]}
    files["config.json"] = {"model_type": "llama"}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
