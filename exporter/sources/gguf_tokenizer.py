"""The tokenizer in a GGUF file's metadata."""

from __future__ import annotations

from base64 import b64encode

from ..config import Config
from ..tensor import ExportError
from ..tokenizers.byte_level import KINDS, from_merges
from ..tokenizers.normalizers import SPACE_MARK
from ..tokenizers.sentencepiece import CONTROL, UNKNOWN, UNUSED, USER, from_pieces
from ..tokenizers.tokenizer_json import from_json
from ..tokenizers.unigram_files import from_rows
from ..tokenizers.vocabulary import Vocabulary
from .gguf_file import File

# What lies before the merges -> the names that tokenizer.ggml.pre has for it.
_KINDS = {
    "afmoe": "afmoe",
    "bloom": "bloom gpt3-finnish poro-chat",
    "bloom digits": "viking",
    "chameleon": "chameleon",
    "cl100k": "chatglm-bpe dbrx glm4 glm5 smaug-bpe",
    "command-r": "command-r",
    "deepseek-coder": "deepseek-coder",
    "deepseek-llm": "deepseek-llm",
    "deepseek-v3": "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
    "default": "default",
    "exaone-moe": "exaone-moe",
    "falcon": "falcon",
    "gpt2": """a.x-4.0 exaone4 gigachat gpt-2 granite-docling jais jina-de jina-es jina-v1-en jina-v2-code
        jina-v2-de jina-v2-es mellum phi-2 roberta-bpe trillion""",
    "gpt2 nfc": "modern-bert mpt olmo",
    "jais-2": "jais-2",
    "kimi-k2": "kimi-k2",
    "llama3": """falcon-h1 falcon3 jina-v5-nano lfm2 llama-bpe llama-v3 llama3 midm-2.0 pixtral""",
    "minicpm5": "minicpm5",
    "o200k": "gpt-4o kanana2 llama4 minimax-m2 talkie",
    "o200k words": "granite-embed-multi-97m",
    "qwen2": "deepseek-r1-qwen f2llmv2 kormo megrez qwen2",
    "qwen2 as it is": """bailingmoe bailingmoe2 grok-2 hunyuan llada-moe solar-open stablelm2""",
    "qwen3.5": "qwen35",
    "seed-coder": "seed-coder",
    "starcoder": "codeshell exaone mellum2 minerva-7b refact smollm starcoder",
    "superbpe": "superbpe",
    "tekken": "tekken",
    "tiny-aya": "cohere2moe tiny_aya",
    "youtu": "youtu",
}
PRE_TOKENIZERS = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# Merges of characters, as Gemma 4 has them, and whether a text begins with BOS.
RAW = {"granite-embed-multi-311m": True, "sarvam-moe": False}
BOS = (
    "chameleon",
    "llama3",
    "tekken",
)  # a text begins with BOS where add_bos_token does not say it
# Ids and names that change neither ids nor text: of padding, of code infilling, of templates
# besides the one for chats.
_IGNORED = (
    "padding",
    "seperator",
    "cls",
    "mask",
    "prefix",
    "suffix",
    "middle",
    "fim_pre",
    "fim_suf",
    "fim_mid",
    "fim_pad",
    "fim_rep",
    "fim_sep",
    "unknown",
)


def gguf_vocabulary(file: File) -> Vocabulary | None:
    """The tokenizer in the metadata, None if there is none. Errors: ExportError."""
    t = Config(
        {key: value for key, value in file.values.items() if key.startswith("tokenizer.")},
        file.path,
    )
    t.ignore(
        *(key for key in t.values if key.startswith("tokenizer.chat_template")),
        "tokenizer.huggingface.json",
        "tokenizer.ggml.add_sep_token",  # between two texts
        "tokenizer.ggml.token_type_count",
    )
    t.ignore(*(f"tokenizer.ggml.{name}_token_id" for name in _IGNORED))
    model = t.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab"):
        return None
    if model not in READERS:
        raise ExportError(
            f"{file.path}: tokenizer.ggml.model is {model!r}, which is not supported; supported: "
            + ", ".join(READERS)
        )
    tokens, types = t.get("tokenizer.ggml.tokens"), t.get("tokenizer.ggml.token_type")
    if not tokens or not types or len(tokens) != len(types):
        raise ExportError(
            f"{file.path}: tokenizer.ggml.tokens and tokenizer.ggml.token_type are missing, or not "
            "as many"
        )
    ids = {name: t.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    try:
        v, bos = READERS[model](t, tokens, types, ids)
    except ExportError as error:
        raise ExportError(f"{file.path}: tokenizer: {error}") from None
    eos = model in ("bert", "t5")  # what texts end with, where add_eos_token does not say it
    for name, default, ends in (("bos", bos, v.prefix), ("eos", eos, v.suffix)):
        ends[:] = [ids[name]] if t.flag(f"tokenizer.ggml.add_{name}_token", default) else []
        if ends and not (isinstance(ids[name], int) and 0 <= ids[name] < len(tokens)):
            raise ExportError(
                f"{file.path}: tokenizer.ggml.{name}_token_id is {ids[name]!r}, expected a token's "
                "id"
            )
    v.eos = sorted(
        {
            id
            for name, id in ids.items()
            if name != "bos" and isinstance(id, int) and 0 <= id < len(tokens)
        }
    )
    t.finish()
    return v


def _scored(t: Config, tokens: list[str], types: list[int], ids: dict) -> tuple[Vocabulary, bool]:
    """A SentencePiece model: merges are made by score. Returns whether a text begins with BOS by
    default, too."""
    t.ignore("tokenizer.ggml.pre", "tokenizer.ggml.merges")  # llama.cpp reads neither here
    t.require(
        **{
            "tokenizer.ggml.remove_extra_whitespaces": False,
            "tokenizer.ggml.precompiled_charsmap": [],
        }
    )
    scores = t.get("tokenizer.ggml.scores") or []
    normal = {
        score for score, kind in zip(scores, types) if kind not in (CONTROL, UNKNOWN, UNUSED, USER)
    }
    if len(scores) != len(tokens) or len(normal) < 2:
        raise ExportError(
            "tokenizer.ggml.scores are missing or all equal, so the merges cannot be known"
        )
    prefix = t.flag("tokenizer.ggml.add_space_prefix", True)
    if not prefix:  # the converter writes marks in these as spaces
        tokens = [
            token.replace(" ", SPACE_MARK) if kind == USER else token
            for token, kind in zip(tokens, types)
        ]
    ids["bos"], ids["eos"] = (
        default if ids[name] is None else ids[name] for name, default in (("bos", 1), ("eos", 2))
    )
    return from_pieces(list(zip(tokens, scores, types)), prefix, ids["bos"], ids["eos"]), True


def _byte_level(
    t: Config, tokens: list[str], types: list[int], ids: dict
) -> tuple[Vocabulary, bool]:
    """A byte-level model. GGUF does not say how an added token is looked for: as it stands, in the
    raw text."""
    t.ignore("tokenizer.ggml.scores")
    t.require(**{"tokenizer.ggml.add_space_prefix": False})
    pre = t.get("tokenizer.ggml.pre")
    if pre in RAW:
        return _raw_merges(t, tokens, types, ids)[0], RAW[pre]
    if pre not in PRE_TOKENIZERS:
        raise ExportError(
            f"tokenizer.ggml.pre is {pre!r}, which is not supported: how texts are cut before the "
            "merges; export from the Hugging Face checkpoint, whose tokenizer.json says it; "
            f"supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    kind = PRE_TOKENIZERS[pre]
    named = [(id, token, types[id]) for id, token in enumerate(tokens) if types[id] != UNUSED]
    added = _added(tokens, types)
    vocab = {token: id for id, token, kind in named if kind not in (CONTROL, UNKNOWN, USER)}
    merges = t.get("tokenizer.ggml.merges") or []
    return from_merges(KINDS[kind], vocab, merges, added), kind in BOS


def _added(tokens: list[str], types: list[int]) -> list[dict]:
    """The added tokens of a tokenizer.json."""
    return [
        {"id": id, "content": token, "special": kind != USER, "normalized": False}
        for id, (token, kind) in enumerate(zip(tokens, types))
        if kind in (CONTROL, UNKNOWN, USER)
    ]


def _word_pieces(
    t: Config, tokens: list[str], types: list[int], ids: dict
) -> tuple[Vocabulary, bool]:
    """BERT's WordPiece. The file has a mark before what begins a word, and nothing before what goes
    on."""
    t.ignore("tokenizer.ggml.pre", "tokenizer.ggml.scores", "tokenizer.ggml.merges")
    unknown = t.get("tokenizer.ggml.unknown_token_id", 100)
    if not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise ExportError(f"tokenizer.ggml.unknown_token_id is {unknown!r}, expected a token's id")

    def spelled(token: str, kind: int) -> str:
        if token.startswith(SPACE_MARK):
            return token[1:]
        return token if kind in (CONTROL, UNKNOWN, USER) or _bracketed(token) else "##" + token

    vocab = {spelled(token, kind): id for id, (token, kind) in enumerate(zip(tokens, types))}
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": t.get("tokenizer.ggml.normalizer.strip_accents"),
        "lowercase": t.flag("tokenizer.ggml.normalizer.lowercase", True),
    }
    added = [token for token in _added(tokens, types) if _bracketed(token["content"])]
    v = from_json(
        {
            "model": {"type": "WordPiece", "vocab": vocab, "unk_token": tokens[unknown]},
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "added_tokens": added,
        }
    )
    ids["bos"] = t.get("tokenizer.ggml.cls_token_id") if ids["bos"] is None else ids["bos"]
    ids["eos"] = t.get("tokenizer.ggml.seperator_token_id") if ids["eos"] is None else ids["eos"]
    return v, True


def _bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]") and len(token) > 2


def _unigram(t: Config, tokens: list[str], types: list[int], ids: dict) -> tuple[Vocabulary, bool]:
    """A SentencePiece Unigram model, as T5 and XLM-RoBERTa have it."""
    t.ignore("tokenizer.ggml.pre", "tokenizer.ggml.merges", "tokenizer.ggml.token_type_count")
    t.ignore("tokenizer.ggml.remove_extra_whitespaces")  # words are found without them
    t.require(**{"tokenizer.ggml.add_space_prefix": True})
    scores = t.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ExportError("tokenizer.ggml.scores are missing, or not as many as tokens")
    unknown = next((id for id, kind in enumerate(types) if kind == UNKNOWN), None)
    if unknown is None:
        unknown = t.get("tokenizer.ggml.unknown_token_id", 2)
    charsmap = bytes(t.get("tokenizer.ggml.precompiled_charsmap") or [])
    steps = [{"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()}]
    return from_rows(
        list(zip(tokens, scores)), unknown, steps * bool(charsmap), _added(tokens, types)
    ), False


def _raw_merges(
    t: Config, tokens: list[str], types: list[int], ids: dict
) -> tuple[Vocabulary, bool]:
    """Gemma 4: merges of characters with marks for spaces, and bytes for what has no token."""
    t.ignore("tokenizer.ggml.scores", "tokenizer.ggml.pre")
    t.require(**{"tokenizer.ggml.add_space_prefix": False})
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    back = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    unknown = next((token for token, kind in zip(tokens, types) if kind == UNKNOWN), None)
    model = {
        "type": "BPE",
        "vocab": {token: id for id, token in enumerate(tokens) if types[id] != UNUSED},
        "merges": t.get("tokenizer.ggml.merges") or [],
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": unknown,
    }
    v = from_json(
        {
            "model": model,
            "normalizer": space,
            "decoder": {
                "type": "Sequence",
                "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}],
            },
            "added_tokens": _added(tokens, types),
        }
    )
    return v, True


# tokenizer.ggml.model -> what makes a Vocabulary of it, and says whether a text begins with BOS by
# default.
READERS = {
    "llama": _scored,
    "gpt2": _byte_level,
    "bert": _word_pieces,
    "t5": _unigram,
    "gemma4": _raw_merges,
}
