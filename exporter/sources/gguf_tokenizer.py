"""The tokenizer in a GGUF file's metadata."""

from __future__ import annotations

from ..config import Config
from ..tensor import ExportError
from ..tokenizers.byte_level import KINDS, from_merges
from ..tokenizers.normalizers import SPACE_MARK
from ..tokenizers.sentencepiece import CONTROL, UNKNOWN, UNUSED, USER, from_pieces
from ..tokenizers.vocabulary import Vocabulary
from .gguf_file import File

# tokenizer.ggml.pre -> what lies before the merges, and whether a text begins with BOS where
# add_bos_token does not say it.
PRE_TOKENIZERS = {
    "bloom": ("bloom", False),
    "command-r": ("command-r", False),
    "dbrx": ("cl100k", False),
    "deepseek-coder": ("deepseek-coder", False),
    "deepseek-llm": ("deepseek-llm", False),
    "deepseek-r1-qwen": ("qwen2", False),
    "deepseek-v3": ("deepseek-v3", False),
    "falcon": ("falcon", False),
    "gpt-2": ("gpt2", False),
    "gpt-4o": ("o200k", False),
    "lfm2": ("llama3", True),
    "llama-bpe": ("llama3", True),
    "llama-v3": ("llama3", True),
    "llama3": ("llama3", True),
    "mpt": ("gpt2 nfc", False),
    "olmo": ("gpt2 nfc", False),
    "phi-2": ("gpt2", False),
    "qwen2": ("qwen2", False),
    "qwen35": ("qwen3.5", False),
    "refact": ("starcoder", False),
    "smollm": ("starcoder", False),
    "starcoder": ("starcoder", False),
    "tekken": ("tekken", True),
}
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
    )
    t.ignore(*(f"tokenizer.ggml.{name}_token_id" for name in _IGNORED))
    model = t.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab"):
        return None
    if model not in ("llama", "gpt2"):
        raise ExportError(
            f"{file.path}: tokenizer.ggml.model is {model!r}, which is not supported; supported: "
            "llama, gpt2"
        )
    tokens, types = t.get("tokenizer.ggml.tokens"), t.get("tokenizer.ggml.token_type")
    if not tokens or not types or len(tokens) != len(types):
        raise ExportError(
            f"{file.path}: tokenizer.ggml.tokens and tokenizer.ggml.token_type are missing, or not "
            "as many"
        )
    ids = {name: t.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    try:
        v, bos = (_scored if model == "llama" else _byte_level)(t, tokens, types, ids)
    except ExportError as error:
        raise ExportError(f"{file.path}: tokenizer: {error}") from None
    for name, default, ends in (("bos", bos, v.prefix), ("eos", False, v.suffix)):
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
    t.require(**{"tokenizer.ggml.add_sep_token": False})
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
    if pre not in PRE_TOKENIZERS:
        raise ExportError(
            f"tokenizer.ggml.pre is {pre!r}, which is not supported; supported: "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    kind, bos = PRE_TOKENIZERS[pre]
    named = [(id, token, types[id]) for id, token in enumerate(tokens) if types[id] != UNUSED]
    added = [
        {"id": id, "content": token, "special": kind != USER, "normalized": False}
        for id, token, kind in named
        if kind in (CONTROL, UNKNOWN, USER)
    ]
    vocab = {token: id for id, token, kind in named if kind not in (CONTROL, UNKNOWN, USER)}
    return from_merges(KINDS[kind], vocab, t.get("tokenizer.ggml.merges") or [], added), bos
