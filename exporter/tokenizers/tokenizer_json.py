"""A tokenizer.json -> a Vocabulary.

A field that the engine has no rule for is refused by name, never approximated: nobody would see
a token more or less in a prompt.
"""

from __future__ import annotations

from typing import Sequence

from ..tensor import ExportError
from .components import expect, opened, shown
from .normalizers import SPACE_MARK, normalize_added, normalizer
from .normalizers import STEPS as NORMALIZERS
from .normalizers import refuse as _refuse
from .pre_tokenizers import BERT, METASPACE, metaspace, pre_tokenizer
from .unigram import unigram
from .vocabulary import BYTE_CHARS, CHAR_BYTES, LSTRIP, RSTRIP, SINGLE_WORD, Added, Vocabulary


def from_json(data: dict, declared: Sequence[dict] = (), decodes: bool = True) -> Vocabulary:
    """A Vocabulary from the contents of a tokenizer.json and the added tokens, without ids, that
    other files declare. Where nothing `decodes`, there may be no decoder. Errors: ExportError."""
    # truncation and padding are of batches: transformers sets them anew for every call.
    expect(
        "tokenizer.json",
        data,
        {},
        (
            "version",
            "truncation",
            "padding",
            "added_tokens",
            "normalizer",
            "pre_tokenizer",
            "post_processor",
            "decoder",
            "model",
        ),
    )
    model = data.get("model") or {}
    is_unigram = model.get("type", "" if "merges" in model else "Unigram") == "Unigram"
    vocab, pieces, unk = unigram(model) if is_unigram else (checked_vocab(model), None, -1)
    wordpiece = model.get("type") == "WordPiece"
    if wordpiece:
        expect("pre_tokenizer", data.get("pre_tokenizer") or {}, {"type": ("BertPreTokenizer",)})
    before = {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}
    byte_level, splits = pre_tokenizer(before if wordpiece else data.get("pre_tokenizer"))
    v = Vocabulary({id: token for token, id in vocab.items()}, {}, None, [], splits=splits)
    v.normalizer = normalizer(data.get("normalizer"))
    if splits and splits[0] == METASPACE["first"] and v.normalizer.steps:
        raise _refuse("normalizer together with a Metaspace pre_tokenizer", data["normalizer"])
    if -1 in splits:
        if NORMALIZERS["spaces to mark"] not in v.normalizer.steps:
            raise _refuse("pre_tokenizer", data["pre_tokenizer"])
        v.splits = []
    if pieces:
        if byte_level:
            raise _refuse("pre_tokenizer", data["pre_tokenizer"])
        v.pieces, v.unk, v.bytes = pieces, unk, _fallback(model, vocab)
    elif not wordpiece:
        bpe_model(v, model, vocab, byte_level)
    place_added_tokens(v, [*(data.get("added_tokens") or []), *declared], vocab)
    if wordpiece:
        _wordpiece(v, model, vocab)
    v.prefix, v.suffix = _post_processor(data.get("post_processor"))
    v.between, v.second_type = _pair(data.get("post_processor"), v.prefix, v.suffix)
    if wordpiece:
        v.strip = 1
    elif data.get("decoder") is None and not decodes:
        v.marks = 2 if v.pieces else 0  # as the usual decoders, for a mask that is filled
    else:
        _decoder(v, data.get("decoder"), byte_level)
    return v


def checked_vocab(model: dict) -> dict[str, int]:
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "WordPiece"):
        raise ExportError(f"model.type is {kind!r}; supported: BPE, Unigram, WordPiece")
    vocab = model.get("vocab")
    if (
        not isinstance(vocab, dict)
        or not vocab
        or not all(isinstance(id, int) and id >= 0 for id in vocab.values())
    ):
        raise ExportError("model.vocab: expected an object of tokens and their ids")
    if len(set(vocab.values())) != len(vocab):
        raise ExportError("model.vocab: two tokens have the same id")
    return vocab


def bpe_model(v: Vocabulary, model: dict, vocab: dict[str, int], byte_level: bool) -> None:
    """The BPE model: merges, units, the unknown token."""
    expect(
        "model",
        model,
        {
            "dropout": (None, 0, 0.0),
            "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""),
            "byte_fallback": (None, False) if byte_level else (None, False, True),
            "fuse_unk": (None, False, True),
            "ignore_merges": (None, False, True) if byte_level else (None, False),
        },
        ("type", "vocab", "merges", "unk_token"),
    )
    for rank, merge in enumerate(model.get("merges") or []):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(part, str) for part in pair)
        ):
            raise ExportError(f"model.merges: entry {rank} is {shown(merge)}, expected two tokens")
        ids = [vocab.get(token) for token in (*pair, "".join(pair))]
        if None in ids:
            raise ExportError(
                f"model.merges: entry {rank} is {shown(merge)}; these two or their sum are not in "
                "the vocab"
            )
        v.merges[ids[0], ids[1]] = (rank, ids[2])
    if byte_level:
        v.bytes = [vocab.get(c, -1) for c in BYTE_CHARS]
    else:
        v.chars = {token: id for token, id in vocab.items() if len(token) == 1}
        v.bytes = _fallback(model, vocab)
        if not v.chars:
            raise ExportError(
                "model.vocab: it has no token of a single character, and the pre_tokenizer is not "
                "ByteLevel"
            )
    unk = model.get("unk_token")
    if unk is not None:
        if unk not in vocab:
            raise ExportError(f"model.unk_token is {shown(unk)}, which is not in vocab")
        v.unk, v.fuse_unk = vocab[unk], bool(model.get("fuse_unk"))
    if model.get("ignore_merges"):
        v.words = {
            id for token, id in vocab.items() if token and all(c in CHAR_BYTES for c in token)
        }


def _fallback(model: dict, vocab: dict[str, int]) -> list[int]:
    """The tokens of single bytes, for characters that have none."""
    wanted = model.get("byte_fallback")
    return [vocab.get(f"<0x{b:02X}>", -1) if wanted else -1 for b in range(256)]


def _wordpiece(v: Vocabulary, model: dict, vocab: dict[str, int]) -> None:
    """The WordPiece model, once the special tokens are known, which no word can become."""
    expect(
        "model",
        model,
        {},
        ("type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"),
    )
    unk = model.get("unk_token")
    if unk not in vocab:
        raise ExportError(f"model.unk_token is {shown(unk)}, which is not in vocab")
    v.goes_on = model.get("continuing_subword_prefix", "##")
    v.wordpiece = model.get("max_input_chars_per_word", 100)
    v.unk, v.bytes, v.splits = vocab[unk], [-1] * 256, [BERT]
    v.words = {id for id in vocab.values() if id not in v.special}


def place_added_tokens(v: Vocabulary, tokens: list[dict], vocab: dict[str, int]) -> None:
    """The added tokens, with the ids that `tokenizers` gives them whatever the file says: the
    vocabulary's if it has the token; else one more than the highest so far, or the size of the
    vocabulary."""
    by_content: dict[str, Added] = {}
    free = len(vocab)
    for token in tokens:
        content = token.get("content")
        if not content:
            continue
        before = by_content.get(content)
        id = before.id if before else vocab.get(content, free)
        free = max(free, id + 1)
        if id != token.get("id", id):
            raise ExportError(
                f"added_tokens: {content!r} has id {token.get('id')}, but tokenizers would give it "
                f"{id}"
            )
        taken = v.tokens.get(id, content)
        if taken != content:
            raise ExportError(f"added_tokens: {content!r} and {taken!r} share id {id}")
        flags = LSTRIP * bool(token.get("lstrip")) | RSTRIP * bool(token.get("rstrip"))
        flags |= SINGLE_WORD * bool(token.get("single_word"))
        special = bool(token.get("special") or (before and before.special))
        normalized = bool(token.get("normalized", not special))
        by_content[content] = Added(id, content, flags, normalized, special)
    v.added = list(by_content.values())
    special = {token.content for token in v.added if token.special}
    for token in v.added:  # one looked for in normalized text decodes to what it looks like there
        content = token.content
        v.tokens[token.id] = normalize_added(content, v.normalizer) if token.normalized else content
        if v.tokens[token.id] in special:
            v.special.add(token.id)


def _post_processor(component: dict | None) -> tuple[list[int], list[int]]:
    """The ids put before and after a single text."""
    prefix: list[int] = []
    suffix: list[int] = []
    for part in opened(component, "processors"):
        kind = part.get("type")
        if kind == "ByteLevel":
            continue  # it only trims offsets
        if kind in ("BertProcessing", "RobertaProcessing"):
            prefix, suffix = [part["cls"][1], *prefix], [*suffix, part["sep"][1]]
            continue
        if kind != "TemplateProcessing":
            raise _refuse("post_processor", part)
        before, after, seen = [], [], False
        for piece in part.get("single", []):
            if "SpecialToken" in piece:
                ids = part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
                (after if seen else before).extend(ids)
            elif piece.get("Sequence", {}).get("id") == "A" and not seen:
                seen = True
            else:
                raise _refuse("post_processor.single", part["single"])
        if not seen:
            raise _refuse("post_processor.single", part.get("single"))
        prefix, suffix = before + prefix, suffix + after
    return prefix, suffix


def _pair(
    component: dict | None, prefix: list[int], suffix: list[int]
) -> tuple[list[int], int | None]:
    """The ids between two texts that are read as one, and the type of the second's tokens; None
    where the two cannot be written with this prefix and suffix."""
    parts = [p for p in opened(component, "processors") if p.get("type") != "ByteLevel"]
    if not parts:
        return [], 1
    if len(parts) > 1:
        return [], None
    (part,) = parts
    if part["type"] == "BertProcessing":
        return [part["sep"][1]], 1
    if part["type"] == "RobertaProcessing":
        return [part["sep"][1]] * 2, 0
    sides: list[list[int]] = [[]]
    order = []
    for piece in part.get("pair", []):
        if "SpecialToken" in piece:
            ids = part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            sides[-1].extend(ids)
        else:
            order.append(piece["Sequence"]["id"])
            sides.append([])
    if order != ["A", "B"] or (sides[0], sides[2]) != (prefix, suffix):
        return [], None
    second_type = _second_type(part["pair"])
    return ([], None) if second_type is None else (sides[1], second_type)


def _second_type(pieces: list[dict]) -> int | None:
    """The type that all pieces from text B on have, if those before it have type 0."""
    kinds = [next(iter(piece.values())) for piece in pieces]
    at = next(i for i, piece in enumerate(pieces) if piece.get("Sequence", {}).get("id") == "B")
    after = {kind["type_id"] for kind in kinds[at:]}
    before = {kind["type_id"] for kind in kinds[:at]}
    return after.pop() if before <= {0} and after in ({0}, {1}) else None


def _decoder(v: Vocabulary, component: dict | None, byte_level: bool) -> None:
    """Checks the decoder: what it makes of marks, and the spaces it takes off the beginning."""
    parts = opened(component, "decoders")
    if byte_level:
        if [part.get("type") for part in parts] != ["ByteLevel"]:
            raise _refuse("decoder", component)
        return
    if len(parts) == 1 and parts[0].get("type") == "Metaspace":
        metaspace(parts[0], first=True)
        v.marks = 1 if parts[0].get("prepend_scheme") == "never" else 2
        return
    replace = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    if parts[:3] != [replace, {"type": "ByteFallback"}, {"type": "Fuse"}] or len(parts) > 4:
        raise _refuse("decoder", component)
    v.byte_fallback = True
    v.marks = int(v.pieces is not None)  # of merges, the text of tokens has spaces already
    if len(parts) == 4:
        spaces = parts[3].get("start")
        strip = {"type": "Strip", "content": " ", "start": spaces, "stop": 0}
        if parts[3] != strip or not isinstance(spaces, int) or spaces < 0:
            raise _refuse("decoder", parts[3])
        v.strip = spaces
