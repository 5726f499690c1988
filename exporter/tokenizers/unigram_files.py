"""SentencePiece's Unigram files where there is no tokenizer.json: spiece.model,
sentencepiece.bpe.model and tokenizer.model as transformers 5.23.0 converts them, and Marian's
source.spm with vocab.json as SentencePiece itself uses them."""

from __future__ import annotations

import os
import re

import numpy as np

from ..tensor import ExportError
from ..json_files import read_json
from .added_tokens import content_of, declared_beside, special_tokens
from .normalizers import SPACE_MARK, Normalizer
from .sentencepiece import CONTROL, NORMAL, USER, SentencePiece, read_sentencepiece
from .tokenizer_json import from_json
from .unigram import UNKNOWN_PENALTY, Pieces, pieces_of
from .vocabulary import AT_START, Added, Vocabulary

LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()
LANGUAGES_50 = (
    LANGUAGES
    + (
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
        "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
    ).split()
)
# The classes that have a rule here, by their names in short and by model types.
CLASSES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), "t5"),
    "xlm-roberta": "xlm-roberta",
    "xlmroberta": "xlm-roberta",
    "albert": "albert",
    "mbart50": "mbart50",
    "mbart": "mbart",
    "pegasus": "pegasus",
}
METASPACE = {"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": "always"}
WORDS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "WhitespaceSplit"}, {**METASPACE, "split": True}],
}
ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
ALBERT_QUOTES = [
    {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
]
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")


def _kind(directory: str, model_type: object) -> str:
    name = special_tokens(directory).get("tokenizer_class") or ""
    short = name.removesuffix("Fast").removesuffix("Tokenizer").lower()
    for candidate in (short, model_type):
        if candidate in CLASSES:
            return CLASSES[candidate]
    raise ExportError(
        f"how a Unigram model's ids are numbered cannot be known of tokenizer_class {name!r} "
        f"(tokenizer_config.json) and model_type {model_type!r} (config.json); export from a "
        "tokenizer.json"
    )


def _rows(kind: str, model: SentencePiece, config: dict) -> tuple[list, list[str], int]:
    """The tokens and their scores in the order of their ids, the names among them that are special
    tokens, and the unknown one."""
    rows = [(token, score) for token, score, _ in model.pieces]
    zero = lambda names: [(name, 0.0) for name in names]  # noqa: E731
    if kind == "t5":
        extra = [f"<extra_id_{i}>" for i in reversed(range(config.get("extra_ids", 100)))]
        return rows + zero(extra), ["<pad>", "</s>", "<unk>", *extra], 2
    if kind == "albert":
        return rows, ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], 1
    if kind == "pegasus":
        named = [
            content_of(config.get(key, name))
            for key, name in (("mask_token", "<mask_1>"), ("mask_token_sent", "<mask_2>"))
        ]
        masks = [name for name in dict.fromkeys(named) if name]
        unknown = [f"<unk_{i}>" for i in range(2, config.get("offset", 103))]
        rows = zero(["<pad>", "</s>", *masks]) + [(u, -100.0) for u in unknown] + rows[2:]
        unk = next((id for id, row in enumerate(rows) if row == ("<unk>", 0.0)), 1)
        return rows, ["<pad>", "</s>", "<unk>", *masks, *unknown], unk
    codes = {"mbart": LANGUAGES, "mbart50": LANGUAGES_50}.get(kind, [])
    return zero(FAIRSEQ) + rows[3:] + zero([*codes, "<mask>"]), [*FAIRSEQ, *codes, "<mask>"], 3


def _normalizer(kind: str, charsmap: list[dict], config: dict) -> list[dict]:
    if kind == "mbart":
        return []
    if kind == "mbart50":
        return [*charsmap, ONE_SPACE]
    if kind == "pegasus":
        newline = {"type": "Replace", "pattern": {"Regex": "\\n"}, "content": " "}
        return [*(charsmap or [newline]), ONE_SPACE]
    if kind != "albert":
        return charsmap
    accents = [{"type": "NFKD"}, {"type": "StripAccents"}]
    lower = [{"type": "Lowercase"}]
    return [
        *ALBERT_QUOTES,
        *accents * (not config.get("keep_accents", False)),
        *lower * config.get("do_lower_case", True),
        *charsmap,
    ]


def _around(kind: str, config: dict) -> tuple[list[str], list[str]]:
    """The ids that go before and after a text."""
    language = config.get("src_lang") or "en_XX"
    return {
        "t5": ([], ["</s>"]),
        "pegasus": ([], ["</s>"]),
        "albert": (["[CLS]"], ["[SEP]"]),
        "xlm-roberta": (["<s>"], ["</s>"]),
        "mbart": ([], ["</s>", language]),
        "mbart50": ([language], ["</s>"]),
    }[kind]


def from_unigram_file(data: bytes, directory: str, model_type: object) -> Vocabulary:
    """A Vocabulary from a SentencePiece Unigram model of a class that is known here. Errors:
    ExportError."""
    model, config = read_sentencepiece(data), special_tokens(directory)
    kind = _kind(directory, model_type)
    rows, names, unk = _rows(kind, model, config)
    ids = {token: id for id, (token, _) in enumerate(rows)}
    named = {name: True for name in names if name in ids}
    named |= {token: t == CONTROL for token, _, t in model.pieces if t in (CONTROL, USER)}
    before, after = _around(kind, config)
    missing = [token for token in before + after if token not in ids]
    if missing:
        raise ExportError(f"it lacks {missing[0]}, which goes around a text of this class")
    charsmap = [{"type": "Precompiled", "precompiled_charsmap": model.charsmap_base64()}]
    v = from_json(
        _assembled(
            rows,
            unk,
            _normalizer(kind, charsmap * bool(model.charsmap), config),
            {**METASPACE, "split": True} if kind in ("pegasus", "mbart50") else WORDS,
            [
                {
                    "id": ids[token],
                    "content": token,
                    "special": special,
                    "normalized": False,
                    "lstrip": token == "<mask>" and kind.startswith("mbart"),
                }
                for token, special in named.items()
                if token in ids
            ],
        ),
        declared_beside(directory, {}),
    )
    v.pieces = pieces_of(dict(rows))  # as they are, not as a tokenizer.json is read
    v.prefix, v.suffix = ([ids[token] for token in side] for side in (before, after))
    v.eos = [ids[token] for token in ("</s>", "[SEP]") if token in ids][:1]
    return v


def from_rows(rows: list, unk: int, normalizer: list[dict], added: list[dict]) -> Vocabulary:
    """A Vocabulary from tokens and their scores in the order of their ids, the unknown one, the
    steps of a tokenizer.json's normalizer and its added tokens; white space parts words. Errors:
    ExportError."""
    v = from_json(_assembled(rows, unk, normalizer, WORDS, added))
    v.pieces = pieces_of(dict(rows))  # as they are, not as a tokenizer.json is read
    return v


def _assembled(rows, unk: int, normalizer: list[dict], pre_tokenizer: dict, added: list) -> dict:
    """A tokenizer.json's contents."""
    return {
        "model": {"type": "Unigram", "unk_id": unk, "vocab": rows},
        "normalizer": {"type": "Sequence", "normalizers": normalizer},
        "pre_tokenizer": pre_tokenizer,
        "decoder": {**METASPACE, "split": True},
        "added_tokens": added,
    }


# ---- Marian --------------------------------------------------------------------------------------


def from_marian(data: bytes, directory: str) -> Vocabulary:
    """A Vocabulary from source.spm and vocab.json beside it: texts are cut as SentencePiece cuts
    them, vocab.json has the ids, of target.spm's pieces too, unless target_vocab.json has
    these. Errors: ExportError."""
    config, model = special_tokens(directory), read_sentencepiece(data)
    vocab = read_json(os.path.join(directory, "vocab.json"))
    names = {
        key: content_of(config.get(key)) or name
        for key, name in (("unk_token", "<unk>"), ("eos_token", "</s>"), ("pad_token", "<pad>"))
    }
    for name in names.values():
        if name not in vocab:
            raise ExportError(f"vocab.json lacks {name}, a token that Marian needs")
    scores = dict.fromkeys(vocab, float("nan"))
    for token, score, t in model.pieces:
        if t == USER or (t == NORMAL and token not in vocab):
            what = "is user-defined" if t == USER else "has no id in vocab.json"
            raise ExportError(f"piece {token!r} {what}, which this exporter has no rule for")
        if t == NORMAL:
            scores[token] = score
    normal = [np.float32(score) for _, score, t in model.pieces if t == NORMAL]
    special = {vocab[name] for name in names.values()}
    codes = [token for token in vocab if re.fullmatch(">>.*<<", token)]
    v = Vocabulary({id: token for token, id in vocab.items()}, {}, None, [-1] * 256)
    v.pieces = Pieces(scores, float(min(normal) - np.float32(UNKNOWN_PENALTY)), single=True)
    v.unk, v.special, v.marks, v.strip = vocab[names["unk_token"]], special, 1, 1
    v.added = [Added(id, v.tokens[id], 0, False, True) for id in sorted(special)]
    v.added += [Added(vocab[code], code, AT_START, False, False) for code in codes]
    v.normalizer = sentencepiece_normalizer(model)
    v.suffix = v.eos = [vocab[names["eos_token"]]]
    if config.get("separate_vocabs"):
        target = read_json(os.path.join(directory, "target_vocab.json"))
        missing = [name for name in names.values() if name not in target]
        if missing:
            raise ExportError(f"target_vocab.json lacks {missing[0]}, a token that Marian needs")
        v.target = {id: token for token, id in target.items()}
        v.target_special = {target[name] for name in names.values()}
        v.eos = [target[names["eos_token"]]]
    return v


def sentencepiece_normalizer(model: SentencePiece) -> Normalizer:
    """The steps of SentencePiece's own normalizer."""
    settings = [
        ("treat_whitespace_as_suffix", model.trainer.get(24, 0), 0),
        ("byte_fallback", model.trainer.get(35, 0), 0),
        ("escape_whitespaces", model.normalizer.get(5, 1), 1),
    ]
    for name, value, expected in settings:
        if value != expected:
            raise ExportError(f"{name} is {value}, expected {expected} in a Marian model")
    z = Normalizer()
    if model.charsmap:
        z.map(model.charsmap, longest=True)
    if model.normalizer.get(4, 1):
        z.add("squeeze")
    if model.normalizer.get(3, 1):
        z.add("prepend space")
    z.add("spaces to mark")
    return z
