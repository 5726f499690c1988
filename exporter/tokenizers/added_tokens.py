"""The added tokens of a tokenizer that the files beside it declare: tokenizer_config.json,
special_tokens_map.json, added_tokens.json."""

from __future__ import annotations

from ..json_files import beside
from ..tensor import ExportError
from .classes import tokenizer_class

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA, ADDITIONAL = "extra_special_tokens", "additional_special_tokens"


def content_of(token: object) -> str | None:
    """The text of a token that a configuration names, as a string or as an object."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _tokens(values: object) -> list[dict]:
    """Tokens that a configuration names, as a tokenizer.json lists added ones, but without ids. A
    string is a special token; what is neither string nor object is none."""
    out = []
    for value in values if isinstance(values, (list, tuple)) else []:
        if isinstance(value, str):
            out.append({"content": value, "special": True})
        elif content_of(value) is not None:
            out.append({key: flag for key, flag in value.items() if key not in ("__type", "id")})
    return out


def special_tokens(directory: str) -> dict:
    """tokenizer_config.json, with what special_tokens_map.json puts in the place of its special
    tokens: nothing, if the former lists added tokens."""
    config = beside(directory, "tokenizer_config.json")
    if config.get(ADDITIONAL) and not config.get(EXTRA):
        config[EXTRA] = config.pop(ADDITIONAL)
    if config.get("added_tokens_decoder") is not None:
        return config
    named = beside(directory, "special_tokens_map.json")
    if isinstance(named.get(EXTRA), list):
        named[EXTRA] = [*(config.get(EXTRA) or []), *named[EXTRA]]
    return config | named


# The special tokens that a class of transformers 5.23.0 has where tokenizer_config.json names none.
_END = "<|endoftext|>"
CLASS_TOKENS = {
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "GPTNeoXTokenizer": {
        "bos_token": _END,
        "eos_token": _END,
        "unk_token": _END,
        "pad_token": "<|padding|>",
    },
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
    "GemmaTokenizer": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    "CohereTokenizer": {
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "unk_token": "<UNK>",
        "pad_token": "<PAD>",
        "sep_token": "<SEP>",
        "cls_token": "<CLS>",
        "mask_token": "<MASK_TOKEN>",
    },
}


def named_tokens(directory: str) -> dict[str, str]:
    """The tokens that a directory's templates know by name: the seven of NAMES, the class's own
    where the files name none, those that only this model has a name for (image_token), and the
    dictionary of extra_special_tokens, as transformers 5.23.0's special_tokens_map has them.
    Errors: ExportError."""
    config = special_tokens(directory)
    config = CLASS_TOKENS.get(tokenizer_class(directory), {}) | config
    extra = config.get(EXTRA)
    named = {key: token for key, token in config.items() if key.endswith("_token")}
    named.update(extra if isinstance(extra, dict) else {})
    contents = {name: content_of(token) for name, token in named.items()}
    return {name: text for name, text in contents.items() if text is not None}


def declared_beside(directory: str, tokenizer: dict) -> list[dict]:
    """The added tokens that files beside a tokenizer.json declare, without ids, in the order in
    which transformers 5.23.0 adds them (TokenizersBackend): each gets the next free id, and of
    several with the same content the last gives the flags. Errors: ExportError."""
    config = special_tokens(directory)
    if config.get("split_special_tokens"):
        raise ExportError(
            "tokenizer_config.json: split_special_tokens is true, so that special tokens in a text "
            "are only text, which this exporter has no rule for"
        )
    own = tokenizer.get("added_tokens") or []
    config.setdefault("pad_token", (tokenizer.get("padding") or {}).get("pad_token"))
    named = _tokens([config.get(key) for key in NAMES])
    extra = _tokens(config.get(EXTRA, config.get(ADDITIONAL)))
    listed = _listed(directory, config, own, named)
    named += _named_otherwise(config)
    special = {token["content"] for token in named}
    added = [{**t, "special": bool(t.get("special")) or t["content"] in special} for t in listed]
    known = {token.get("content") for token in (*own, *added)}
    added += [{**t, "special": True} for t in named if t["content"] not in known]
    added += [t for t in extra if t["content"] not in known]
    return added


def _listed(directory: str, config: dict, own: list[dict], named: list[dict]) -> list[dict]:
    """The tokens of added_tokens_decoder or, where that is missing, of added_tokens.json and
    of tokenizer.json itself, by their ids."""
    by_id = config.get("added_tokens_decoder")
    if by_id is None:
        special = {t["content"] for t in (*named, *_tokens(config.get(EXTRA)))}
        ids = beside(directory, "added_tokens.json")
        by_id = {id: {"content": c, "special": c in special} for c, id in ids.items()}
        by_id |= {token["id"]: token for token in own}
    return _tokens([token for _, token in sorted(by_id.items(), key=lambda item: int(item[0]))])


def _named_otherwise(config: dict) -> list[dict]:
    """Tokens that only this model has a name for, such as image_token."""
    named = [v for key, v in config.items() if key.endswith("_token") and key not in NAMES]
    named.sort(key=lambda value: isinstance(value, str))  # those with flags come first
    extra = config.get(EXTRA)
    return _tokens([*named, *(extra.values() if isinstance(extra, dict) else [])])


def added_beside(directory: str, vocab: dict[str, int]) -> list[dict]:
    """The added tokens where there is no tokenizer.json, as that would list them: the tokens of
    tokenizer_config.json's added_tokens_decoder, or of added_tokens.json, and the special ones that
    the configuration names; where there are none of these, config.json's BOS and EOS. Errors:
    ExportError if a special token has no id, or if there are none."""
    config = special_tokens(directory)
    listed = _tokens([config.get(key) for key in NAMES])
    listed += _tokens(config.get(EXTRA, config.get(ADDITIONAL)))
    named = {token["content"]: {**token, "special": True} for token in listed}
    by_id = config.get("added_tokens_decoder") or {}
    added = [{**token, "id": int(id)} for id, token in by_id.items()]
    if not added:
        ids = beside(directory, "added_tokens.json")
        added = [{"id": id, "content": c, "special": c in named} for c, id in ids.items()]
    for content in sorted(named.keys() - {token["content"] for token in added}):
        if content not in vocab:
            raise ExportError(
                f"the special token {content!r} has no id in the vocabulary, and no file beside "
                "gives it one"
            )
        added.append({**named[content], "id": vocab[content]})
    if not added:
        config = beside(directory, "config.json")
        ids = [config.get(key) for key in ("bos_token_id", "eos_token_id")]
        added = [{"id": id, "content": t, "special": True} for t, id in vocab.items() if id in ids]
    if not added:
        raise ExportError(
            "no config.json, tokenizer_config.json, special_tokens_map.json or added_tokens.json "
            "beside it names a special token; export from a tokenizer.json"
        )
    return sorted(added, key=lambda token: token["id"])
