"""M2M-100's tokenizer where there is no tokenizer.json: sentencepiece.bpe.model cuts texts, and
vocab.json has the ids; those of the languages follow them."""

from __future__ import annotations

import os

from .added_tokens import read_json, special_tokens
from .tensor import ExportError
from .tokenizer import NORMAL, UNKNOWN, Added, Vocabulary, from_pieces, read_sentencepiece
from .unigram_files import sentencepiece_normalizer

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
    missing = [name for name in SPECIAL if name not in vocab]
    missing += [token for token, _, kind in model.pieces if kind == NORMAL and token not in vocab]
    if missing:
        raise ExportError(f"vocab.json lacks {missing[0]!r}, a piece of sentencepiece.bpe.model")
    languages = {f"__{code}__": len(vocab) + i for i, code in enumerate(LANGUAGES[which])}
    for token, _, kind in model.pieces:
        if kind not in (NORMAL, UNKNOWN) and token not in SPECIAL:
            raise ExportError(f"piece {token!r} has type {kind}, which this exporter has no rule for")
    v = renumbered(from_pieces(model.pieces, True, bos=0, eos=0), model.pieces, vocab)
    v.tokens |= {id: token for token, id in vocab.items()}
    v.tokens |= {id: token for token, id in languages.items()}
    special = {name: vocab[name] for name in SPECIAL} | languages
    v.special, v.unk = set(special.values()), vocab["<unk>"]
    v.added = [Added(vocab[name], name, 0, False, True) for name in SPECIAL]
    v.normalizer = sentencepiece_normalizer(model)
    source = languages.get(f"__{config.get('src_lang') or 'en'}__")
    v.prefix, v.suffix = [languages["__en__"] if source is None else source], [vocab["</s>"]]
    v.eos, v.marks, v.strip = [vocab["</s>"]], 1, 1
    return v


def renumbered(v: Vocabulary, pieces: list, vocab: dict[str, int]) -> Vocabulary:
    """The pieces' ids become those of vocab.json."""
    new = {id: vocab[token] for id, (token, _, kind) in enumerate(pieces) if token in vocab}
    v.merges = {
        (new[left], new[right]): (rank, new[id]) for (left, right), (rank, id) in v.merges.items()
    }
    v.chars = {char: new[id] for char, id in v.chars.items()}
    v.tokens = {}
    return v
