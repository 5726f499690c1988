"""The tokenizers of M2M-100 and NLLB where there is no tokenizer.json. M2M-100's
sentencepiece.bpe.model cuts texts, and vocab.json has the ids; the languages' follow them.
NLLB's is converted as transformers 5.23.0 does it."""

from __future__ import annotations

import os

from ..tensor import ExportError
from ..json_files import beside, read_json
from .added_tokens import content_of, declared_beside, special_tokens
from .sentencepiece import CONTROL, NORMAL, UNKNOWN, from_pieces, read_sentencepiece
from .tokenizer_json import from_json
from .unigram_files import METASPACE, ONE_SPACE, sentencepiece_normalizer
from .vocabulary import Added, Vocabulary

LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ).split(),
    "wmt21": "en ha is ja cs ru zh de".split(),
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def from_m2m(data: bytes, directory: str) -> Vocabulary:
    """A Vocabulary from the file and vocab.json beside it. Errors: ExportError."""
    model, config = read_sentencepiece(data), special_tokens(directory)
    vocab = read_json(os.path.join(directory, "vocab.json"))
    which = config.get("language_codes") or "m2m100"
    if which not in LANGUAGES:
        raise ExportError(
            f"tokenizer_config.json: language_codes is {which!r}, expected {', '.join(LANGUAGES)}"
        )
    _check_names(config)
    missing = [name for name in SPECIAL if name not in vocab]
    missing += [token for token, _, kind in model.pieces if kind == NORMAL and token not in vocab]
    if missing:
        raise ExportError(f"vocab.json lacks {missing[0]!r}, a piece of sentencepiece.bpe.model")
    languages = {f"__{code}__": len(vocab) + i for i, code in enumerate(LANGUAGES[which])}
    for token, _, kind in model.pieces:
        if kind not in (NORMAL, UNKNOWN) and token not in SPECIAL:
            raise ExportError(
                f"piece {token!r} has type {kind}, which this exporter has no rule for"
            )
    v = renumbered(from_pieces(model.pieces, True, bos=0, eos=0), model.pieces, vocab)
    v.tokens |= {id: token for token, id in vocab.items()}
    v.tokens |= {id: token for token, id in languages.items()}
    special = {name: vocab[name] for name in SPECIAL} | languages
    for token in declared_beside(directory, {}):
        if token["content"] not in special:
            raise ExportError(
                f"added token {token['content']!r}, which this exporter has no rule for in M2M-100"
            )
    v.special, v.unk = set(special.values()), vocab["<unk>"]
    v.added = [Added(vocab[name], name, 0, False, True) for name in SPECIAL]
    v.normalizer = sentencepiece_normalizer(model)
    lang = languages.get(f"__{config.get('src_lang') or 'en'}__")
    v.prefix, v.suffix = [languages["__en__"] if lang is None else lang], [vocab["</s>"]]
    v.eos, v.marks, v.strip = [vocab["</s>"]], 1, 1
    return v


def _check_names(config: dict) -> None:
    """Both classes may call their special tokens otherwise, which no published model does."""
    for key, name in zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL):
        found = content_of(config.get(key, name))
        if found != name:
            raise ExportError(f"tokenizer_config.json: {key} is {found!r}, expected {name!r}")


def renumbered(v: Vocabulary, pieces: list, vocab: dict[str, int]) -> Vocabulary:
    """The pieces' ids become vocab.json's."""
    new = {id: vocab[token] for id, (token, _, kind) in enumerate(pieces) if token in vocab}
    v.merges = {
        (new[left], new[right]): (rank, new[id]) for (left, right), (rank, id) in v.merges.items()
    }
    v.chars = {char: new[id] for char, id in v.chars.items()}
    v.tokens = {}
    return v


# ---- NLLB ----------------------------------------------------------------------------------------


def from_nllb(data: bytes, directory: str) -> Vocabulary:
    """A Vocabulary from the file and tokenizer_config.json beside it, which lists the languages.
    Errors: ExportError."""
    model, config = read_sentencepiece(data), special_tokens(directory)
    _check_names(config)
    for token, _, kind in model.pieces:
        if kind not in (NORMAL, UNKNOWN, CONTROL) or (kind == CONTROL and token not in SPECIAL):
            raise ExportError(
                f"piece {token!r} has type {kind}, which this exporter has no rule for"
            )
    tokens = dict.fromkeys([*SPECIAL, *(token for token, _, _ in model.pieces)])
    ids = {token: id for id, token in enumerate(tokens)}
    steps = [{"type": "Precompiled", "precompiled_charsmap": model.charsmap_base64()}, ONE_SPACE]
    metaspace = {**METASPACE, "split": True}
    v = from_json(
        {
            "model": {
                "type": "BPE",
                "vocab": ids,
                "unk_token": "<unk>",
                "fuse_unk": True,
                "merges": merges_by_id([token for token, _, _ in model.pieces]),
            },
            "normalizer": {"type": "Sequence", "normalizers": steps * bool(model.charsmap)},
            "pre_tokenizer": metaspace,
            "decoder": metaspace,
        },
        _nllb_added(directory),
    )
    added = {token.content: token.id for token in v.added}
    _check_ids(directory, added)
    lang = config.get("src_lang") or "eng_Latn"
    if lang not in added:
        raise ExportError(f"tokenizer_config.json: src_lang is {lang!r}, which is no added token")
    legacy = bool(config.get("legacy_behaviour"))
    v.prefix = [] if legacy else [added[lang]]
    v.suffix = [added["</s>"], *[added[lang]] * legacy]
    v.eos = [added["</s>"]]
    return v


def merges_by_id(pieces: list[str]) -> list[list[str]]:
    """Every cut of a piece into two others, in the order of their sum's place in the file, then of
    the lengths of the two."""
    place = {token: i for i, token in enumerate(pieces)}
    cuts = [
        (i, at, len(token) - at, token)
        for i, token in enumerate(pieces)
        for at in range(1, len(token))
        if token[:at] in place and token[at:] in place
    ]
    return [[token[:at], token[at:]] for _, at, _, token in sorted(cuts)]


def _nllb_added(directory: str) -> list[dict]:
    """The tokens that the class has of itself, and those that tokenizer_config.json declares."""
    own = [{"content": name, "special": True} for name in SPECIAL]
    declared = declared_beside(directory, {})
    mask = {"content": "<mask>", "special": True, "lstrip": True, "normalized": True}
    return [*own, *declared, *[mask] * (mask["content"] not in (t["content"] for t in declared))]


def _check_ids(directory: str, added: dict[str, int]) -> None:
    """transformers gives added tokens the next free ids, whatever added_tokens_decoder says; and
    without that, the languages other ids than those which the published models have."""
    listed = beside(directory, "tokenizer_config.json").get("added_tokens_decoder")
    if not listed:
        raise ExportError(
            "tokenizer_config.json has no added_tokens_decoder, so the ids of the "
            "languages cannot be known; export from a tokenizer.json"
        )
    for id, token in listed.items():
        if added[token["content"]] != int(id):
            raise ExportError(
                f"tokenizer_config.json: added_tokens_decoder gives {token['content']!r} the id "
                f"{id}, but the class would give it {added[token['content']]}"
            )
