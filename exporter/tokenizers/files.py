"""Where a checkpoint keeps its tokenizer: tokenizer.json, tokenizer.model, tekken.json, *.tiktoken,
vocab.json + merges.txt, vocab.txt.

Only a tokenizer.json says how text is cut. For the others the pre-tokenizer is given by the
tokenizer's class or the model's type. The file and its neighbours give added tokens; what none of
them tells is refused.
"""

from __future__ import annotations

import base64
import glob
import os
import re
import struct

import numpy as np

from ..tensor import ExportError
from ..json_files import beside, read_json
from .added_tokens import (
    added_beside,
    content_of,
    declared_beside,
    special_tokens,
)
from .byte_level import KINDS, Kind, from_merges, from_ranks
from .classes import LLAMAS, tokenizer_class, with_settings
from .m2m_files import from_m2m, from_nllb
from .metadata import MOST_TOKENS, vocabulary_metadata
from .pre_tokenizers import COVERING, PREFIX_SPACE
from .sentencepiece import from_llama2c, from_sentencepiece, read_sentencepiece
from .tokenizer_json import from_json
from .unigram_files import from_marian, from_unigram_file
from .vocabulary import Vocabulary

NAMES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "tekken.json",
    "*.tiktoken",
    "vocab.json",
    "vocab.txt",
)
ROBERTA = ("roberta", "RobertaTokenizer", "RobertaTokenizerFast")
# Classes whose tokenizer is BERT's, and what they call the tokens around a text.
BERT_CLASSES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "nomic_bert"), ("[CLS]", "[SEP]", "[MASK]")),
    "mpnet": ("<s>", "</s>", "<mask>"),
}
TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
# The kind of pre-tokenizer, by the tokenizer_class of tokenizer_config.json or, where that is not
# listed, config.json's model_type. Types that have had several are left out.
MERGES_KINDS = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "codegen", "phi", *ROBERTA), "gpt2"),
    **dict.fromkeys(
        ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "Qwen2Tokenizer", "Qwen2TokenizerFast"),
        "qwen2",
    ),
    "starcoder2": "starcoder",
}
RANKS_KINDS = {"llama": "llama3", "qwen": "qwen2", "QWenTokenizer": "qwen2"}


def find_tokenizer(directory: str) -> str | None:
    """The file that holds a checkpoint's tokenizer, None if there is none."""
    for wanted in NAMES:
        found = sorted(
            path
            for path in glob.glob(os.path.join(glob.escape(directory), wanted))
            if os.path.isfile(path)
        )
        if found:
            return found[0]
    return None


def tokenizer_metadata(
    origin: str | Vocabulary, decodes: bool = True
) -> dict[str, bytes | np.ndarray]:
    """The `tokenizer.*` metadata (docs/format.md) of a Hugging Face directory or of one file, or of
    what was read already.

    origin: a directory with one of NAMES, the first that is there; or such a file, or a llama2.c
    tokenizer (*.bin). The end-of-text ids are generation_config.json's beside the file; if it names
    none, config.json's, then tokenizer_config.json's eos_token, or the file's own.
    decodes: the model writes texts; an encoder's tokenizer.json needs no decoder.
    Values are bytes (u8) or arrays of int32, which the caller owns. Errors: ExportError, which
    names the file, the field and its value, if the engine could not tokenize exactly alike."""
    if isinstance(origin, Vocabulary):
        return vocabulary_metadata(origin)
    path = find_tokenizer(origin) if os.path.isdir(origin) else origin
    if path is None:
        raise ExportError(f"{origin}: it has none of {', '.join(NAMES)}")
    try:
        return vocabulary_metadata(_read(path, decodes))
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from error
    except ExportError as error:
        named = str(error).startswith(path)
        raise ExportError(str(error) if named else f"{path}: {error}") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        # a number where an object should be, and the like
        raise ExportError(
            f"{path}: it does not look like a tokenizer: {type(error).__name__}: {error}"
        ) from error


def _read(path: str, decodes: bool) -> Vocabulary:
    directory = os.path.dirname(path)
    if path.endswith(".json"):
        v = _from_json_file(path, decodes)
    elif path.endswith(".txt"):
        v = _from_vocab_txt(path, directory)
    else:
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".bin"):
            return from_llama2c(data)  # nothing beside it says more
        if TIKTOKEN_LINE.match(data):
            v = _from_tiktoken(data, directory)
        else:
            v = _from_sentencepiece(data, path)
    v.eos = _eos_ids(directory, v) or v.eos
    if v.mask < 0:
        v.mask = _id_of(content_of(special_tokens(directory).get("mask_token")), v)
    return v


def _from_sentencepiece(data: bytes, path: str) -> Vocabulary:
    directory, name = os.path.split(path)
    if name == "source.spm":
        return from_marian(data, directory)
    if read_sentencepiece(data).is_unigram:
        model_type = beside(directory, "config.json").get("model_type")
        return from_unigram_file(data, directory, model_type)
    if name == "sentencepiece.bpe.model" and os.path.exists(os.path.join(directory, "vocab.json")):
        return from_m2m(data, directory)
    if name == "sentencepiece.bpe.model":
        return from_nllb(data, directory)
    marked = tokenizer_class(directory) in LLAMAS
    space = beside(directory, "tokenizer_config.json").get("add_prefix_space") if marked else None
    return from_sentencepiece(data, space)


def _from_json_file(path: str, decodes: bool) -> Vocabulary:
    data, directory = read_json(path), os.path.dirname(path)
    if isinstance(data.get("vocab"), list):  # in vocab.json the token "vocab" may have an id
        return _from_tekken(data, directory)
    if os.path.basename(path) == "vocab.json":
        return _from_vocab_and_merges(data, directory)
    declared = declared_beside(directory, data)
    return from_json(with_settings(data, directory), declared, decodes)


# ---- what the files beside a tokenizer say -------------------------------------------------------


def named_eos(directory: str) -> list[int]:
    """The end-of-text ids that a model's configuration names: generation_config.json's alone if it
    has some, as in transformers."""
    for name in ("generation_config.json", "config.json"):
        value = beside(directory, name).get("eos_token_id")
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(v) is int and 0 <= v <= MOST_TOKENS for v in values):
            raise ExportError(f"{name}: eos_token_id is {value!r}, expected an id or a list of ids")
        if values:
            return sorted(set(values))
    return []


def _eos_ids(directory: str, vocabulary: Vocabulary) -> list[int]:
    """The end-of-text ids that the configuration beside a tokenizer names."""
    token = content_of(special_tokens(directory).get("eos_token"))
    return named_eos(directory) or sorted({_id_of(token, vocabulary)} - {-1})


def _id_of(token: str | None, vocabulary: Vocabulary) -> int:
    """The id of a token that a configuration names, -1: it has none."""
    named = {content: id for id, content in vocabulary.tokens.items()} | {
        a.content: a.id for a in vocabulary.added
    }
    return named.get(token, -1)


def _kind(directory: str, kinds: dict[str, str]) -> Kind:
    """The kind of a tokenizer that does not say it itself."""
    model_type = beside(directory, "config.json").get("model_type")
    tokenizer_class = beside(directory, "tokenizer_config.json").get("tokenizer_class")
    for name in (tokenizer_class, model_type):
        if name in kinds:
            return KINDS[kinds[name]]
    raise ExportError(
        f"how text is cut into words cannot be known of tokenizer_class {tokenizer_class!r} "
        f"(tokenizer_config.json) and model_type {model_type!r} (config.json); export from a "
        "tokenizer.json"
    )


def _bos(directory: str, added: list[dict], default: bool) -> list[int]:
    """The ids that a text begins with."""
    config = beside(directory, "tokenizer_config.json")
    if not config.get("add_bos_token", default):
        return []
    bos = content_of(
        config.get("bos_token") or beside(directory, "special_tokens_map.json").get("bos_token")
    )
    ids = [token["id"] for token in added if token["content"] == bos]
    if not ids:
        raise ExportError(
            f"a text begins with bos_token, but that is {bos!r} and has no id; export from a "
            "tokenizer.json"
        )
    return ids


# ---- the other forms -----------------------------------------------------------------------------


def _from_vocab_and_merges(vocab: dict, directory: str) -> Vocabulary:
    """GPT-2's form: tokens in ByteLevel's alphabet with their ids, and a line for every merge."""
    config = beside(directory, "tokenizer_config.json")
    kind = _kind(directory, MERGES_KINDS)
    with open(os.path.join(directory, "merges.txt"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    merges = [
        line
        for i, line in enumerate(lines)
        if line and not (i == 0 and line.startswith("#version"))
    ]
    added = added_beside(directory, vocab)
    v = from_merges(kind, vocab, merges, added)
    if config.get("add_prefix_space"):
        v.splits.insert(0, PREFIX_SPACE)
    v.prefix = _bos(directory, added, default=False)
    if _class_of(directory, ROBERTA):
        v.prefix, v.suffix = ([_id_of(name, v)] for name in ("<s>", "</s>"))
    return v


def _class_of(directory: str, names) -> str | None:
    """Which of these names the tokenizer's class or the model's type is."""
    kind = beside(directory, "tokenizer_config.json").get("tokenizer_class") or ""
    short = kind.removesuffix("Fast").removesuffix("Tokenizer").lower()
    found = (kind, short, beside(directory, "config.json").get("model_type"))
    return next((name for name in found if name in names), None)


def _from_vocab_txt(path: str, directory: str) -> Vocabulary:
    """BERT's form: a token a line. How text is normalized stands in tokenizer_config.json."""
    kind = _class_of(directory, BERT_CLASSES)
    if not kind:
        raise ExportError(
            "a vocab.txt is read for " + ", ".join(BERT_CLASSES) + " only; export from a "
            "tokenizer.json"
        )
    config = special_tokens(directory)
    with open(path, encoding="utf-8") as file:
        vocab = {line.rstrip("\n"): id for id, line in enumerate(file)}
    names = dict(zip(("cls_token", "sep_token", "mask_token"), BERT_CLASSES[kind]))
    special = {
        key: content_of(config.get(key)) or name
        for key, name in {**names, "unk_token": "[UNK]"}.items()
    }
    missing = [token for token in special.values() if token not in vocab]
    if missing:
        raise ExportError(f"it lacks {missing[0]}, a token that this tokenizer needs")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    ids = [vocab[special[key]] for key in ("cls_token", "sep_token")]
    added = [
        {"id": vocab[t], "content": t, "special": True, "lstrip": t == "<mask>"}
        for t in special.values()
    ]
    data = {
        "model": {"type": "WordPiece", "vocab": vocab, "unk_token": special["unk_token"]},
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "cls": ["", ids[0]], "sep": ["", ids[1]]},
        "added_tokens": added,
    }
    v = from_json(data, declared_beside(directory, data))
    v.mask = vocab[special["mask_token"]]
    return v


def _from_tiktoken(data: bytes, directory: str) -> Vocabulary:
    """tiktoken's form: a line for every token, its bytes in base64 and its id."""
    ranks = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            token, id = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(id)
        except ValueError:
            raise ExportError(f"line {number} is no token in base64 and its id") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ExportError(f"{len(ranks)} tokens do not have the ids 0 to {len(ranks) - 1}")
    kind = _kind(directory, RANKS_KINDS)
    config = beside(directory, "tokenizer_config.json")
    qwen = config.get("tokenizer_class") == "QWenTokenizer"
    if qwen and not config.get("added_tokens_decoder"):  # their names are in the code of that class
        names = [
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            *(f"<|extra_{i}|>" for i in range(205)),
        ]
        added = [
            {"id": len(ranks) + i, "content": name, "special": True} for i, name in enumerate(names)
        ]
    else:
        added = added_beside(directory, {})
    v = from_ranks(kind, ranks, added)
    v.prefix = _bos(directory, added, default=not qwen)
    return v


def _from_tekken(data: dict, directory: str) -> Vocabulary:
    """Mistral's form: the pattern, special tokens, which have the first ids, and the bytes of the
    others by rank."""
    config = data["config"]
    if config["pattern"] not in COVERING:
        raise ExportError(
            f"config.pattern is {config['pattern']!r}, which this exporter has no rule for"
        )
    n_special, n = config["default_num_special_tokens"], config["default_vocab_size"]
    names = {token["rank"]: token["token_str"] for token in data.get("special_tokens") or []}
    if not names:  # the first files of this form; what these names were has changed since
        names = {token["id"]: token["content"] for token in added_beside(directory, {})}
    added = [
        {"id": i, "content": names.get(i, f"<SPECIAL_{i}>"), "special": True}
        for i in range(n_special)
    ]
    tokens = data["vocab"][: n - n_special]
    if [token["rank"] for token in tokens] != list(range(n - n_special)):
        raise ExportError(f"vocab: expected the ranks 0 to {n - n_special - 1} in their order")
    ranks = {base64.b64decode(token["token_bytes"]): n_special + token["rank"] for token in tokens}
    v = from_ranks(Kind((COVERING[config["pattern"]],)), ranks, added)
    v.prefix, v.eos = (
        [next(t["id"] for t in added if t["content"] == name)] for name in ("<s>", "</s>")
    )
    return v
