"""The tokenizer against `tokenizers`, on small tokenizers trained here with the settings of each
kind that models use."""

from __future__ import annotations

import cProfile
import contextlib
import json
import random
import re
import struct
import subprocess
from ctypes import create_string_buffer
from functools import lru_cache
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import special_tokens
import tokenizer_texts as texts
from tokenizer_forms import protobuf, sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import heads
from exporter.tensor import ExportError
from exporter.tokenizers.normalizers import SPACE_MARK
from exporter.tokenizers.pre_tokenizers import COVERING, PARTIAL, TRINITY
from exporter.tokenizers.files import tokenizer_metadata
from heads._native import calls

# Added tokens of every sort; what is not special is also there with all flags.
ADDED = [
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("<|end|>>", special=False, normalized=False),
    AddedToken("<l>", lstrip=True, normalized=False),
    AddedToken("<r>", rstrip=True, normalized=False),
    AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("two words", normalized=True),
    AddedToken("<n>", normalized=True),
    AddedToken("   ", normalized=True),
    AddedToken("\n\n\n", normalized=False),
    AddedToken("<sn>", special=True, normalized=True),
    AddedToken("\u00f8", normalized=True),
    AddedToken("<nr>", rstrip=True, normalized=True),
    AddedToken("\t\t", lstrip=True, rstrip=True, normalized=False),
]
CONTENTS = [token.content for token in ADDED]
CONTENTS += [
    "<sentinel:12>",
    "IMGIMGABZ",
    "<|end|",
    "<|im_start|><|end|>",
    "words",
    "awordb",
    " word ",
    "<l> <r> <lr>",
]


@lru_cache
def corpus() -> list[str]:
    """What the tokenizers are trained on: lines of 150 KB of mixed text."""
    return texts.mixed_text(7, 150_000).splitlines(keepends=True)


@lru_cache
def cases() -> tuple[list[str], list[str]]:
    """1 MB of mixed text, in pieces that begin anywhere, and 20,000 random strings."""
    text = texts.mixed_text(11, 1 << 20, CONTENTS)
    return [text[i : i + 20000] for i in range(0, len(text), 20000)], texts.random_strings(
        12, 20000, CONTENTS, most=8
    )


# ---- the kinds -----------------------------------------------------------------------------------


def pattern(number: int) -> str:
    """The pattern that step `number` of docs/format.md stands for."""
    return next(p for p, n in {**COVERING, **PARTIAL}.items() if n == number)


def split(number: int, behavior: str = "isolated", invert: bool = False):
    return pre_tokenizers.Split(Regex(pattern(number)), behavior, invert)


def template(before: str = "", after: str = ""):
    """A post-processor that puts special tokens around, by content."""
    special = [(token, id) for token, id in (("<s>", 1), ("</s>", 2)) if token in before + after]
    return processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(), special_tokens=special
    )


def train(tokenizer: Tokenizer, alphabet: list[str], limit: int | None = None) -> dict:
    """Trains on the corpus, adds ADDED, and returns the contents of its tokenizer.json."""
    limits = {"limit_alphabet": limit} if limit else {}
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
        **limits,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(ADDED)
    return json.loads(tokenizer.to_str())


def byte_level(
    *steps,
    use_regex: bool = False,
    missing: str = "",
    trained: bool = False,
    prefix_space: bool = False,
    **parts,
) -> dict:
    """A byte-level tokenizer. steps: pre-tokenizers before ByteLevel and, after None, after it;
    missing: characters of the byte alphabet without a token; parts: attributes of the Tokenizer.
    Unless it is to be trained, its merges are any two bytes: those that training finds never cross
    the border of a piece, so that one in a wrong place would not be seen."""
    tokenizer = Tokenizer(models.BPE())
    cut = next((i for i, step in enumerate(steps) if step is None), len(steps))
    before, after = steps[:cut], steps[cut + 1 :]
    sequence = [
        *before,
        pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=use_regex),
        *after,
    ]
    tokenizer.pre_tokenizer = (
        sequence[0] if len(sequence) == 1 else pre_tokenizers.Sequence(sequence)
    )
    tokenizer.decoder = decoders.ByteLevel()
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if trained:
        data = train(tokenizer, alphabet)
    else:
        tokenizer.add_tokens(ADDED)
        data = json.loads(tokenizer.to_str())
        data["model"]["merges"] = random.Random(1).sample(
            [[a, b] for a in alphabet for b in alphabet], 25000
        )
        tokens = ["<unk>", "<s>", "</s>", *alphabet, *map("".join, data["model"]["merges"])]
        data["model"]["vocab"] = {token: id for id, token in enumerate(tokens)}
    remove(data, lambda token: any(c in token for c in missing))
    return data


def remove(data: dict, unwanted) -> None:
    """Takes tokens out of a vocabulary, and the merges that need them; ids keep their holes out by
    moving down."""
    model = data["model"]
    kept = [
        token
        for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])
        if not unwanted(token)
    ]
    model["vocab"] = {token: id for id, token in enumerate(kept)}
    model["merges"] = [
        m for m in model["merges"] if all(token in model["vocab"] for token in (*m, "".join(m)))
    ]
    renumber_added(data)


def renumber_added(data: dict) -> None:
    """Gives the added tokens the ids that `tokenizers` gives them."""
    vocab, next_id = data["model"]["vocab"], len(data["model"]["vocab"])
    for token in data["added_tokens"]:
        if token["content"] not in vocab:
            token["id"], next_id = next_id, next_id + 1
        else:
            token["id"] = vocab[token["content"]]


def ignore_merges(data: dict) -> dict:
    """The same with ignore_merges, and with tokens that no merge makes any more."""
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = [m for i, m in enumerate(data["model"]["merges"]) if i % 7 != 3]
    return data


REPLACE = normalizers.Replace(" ", SPACE_MARK)
OLD_FORM = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), REPLACE])
FUSED = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]


def characters(
    strip: int = 1, fallback: bool = True, fuse: bool = True, missing: tuple[str, ...] = (), **parts
) -> dict:
    """A tokenizer over characters, as SentencePiece's are. missing: tokens to leave out."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback))
    tokenizer.decoder = decoders.Sequence(
        [*FUSED, decoders.Strip(" ", strip, 0)] if strip else FUSED
    )
    # While it trains: whole lines are slow.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "merged_with_previous")
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    trained = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="never", split=True)]
    )
    data = train(tokenizer, [SPACE_MARK, "\t"], limit=150)
    tokenizer.pre_tokenizer = trained
    data["pre_tokenizer"] = (
        json.loads(tokenizer.to_str())["pre_tokenizer"] if "pre_tokenizer" in parts else None
    )
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    rest = [token for token in data["model"]["vocab"] if token not in names]
    data["model"]["vocab"] = {token: id for id, token in enumerate([*names, *rest])}
    remove(data, lambda token: token in missing)
    return data


KINDS = {
    "gpt2": lambda: byte_level(use_regex=True),
    "bundled": lambda: byte_level(use_regex=True, trained=True, post_processor=template("<s>")),
    "llama3": lambda: ignore_merges(
        byte_level(
            split(5),
            trained=True,
            post_processor=processors.Sequence(
                [processors.ByteLevel(trim_offsets=False), template("<s>", "</s>")]
            ),
        )
    ),
    "olmo2": lambda: byte_level(split(5, "removed", True)),
    "qwen2": lambda: byte_level(split(6), normalizer=normalizers.NFC()),
    "starcoder2": lambda: byte_level(
        pre_tokenizers.Digits(True), use_regex=True, missing="\u00f1\u0121"
    ),
    "falcon": lambda: byte_level(
        pre_tokenizers.Punctuation("contiguous"),
        None,
        pre_tokenizers.Digits(False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        use_regex=True,
        missing="\u0103\u00c1",
    ),
    "llama2": lambda: characters(normalizer=OLD_FORM, post_processor=template("<s>")),
    "mistral": lambda: characters(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "gemma": lambda: characters(
        0,
        missing=("<0x09>", "<0xE2>"),
        normalizer=REPLACE,
        post_processor=template("<s>"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
    ),
    "neox": lambda: byte_level(
        use_regex=True, normalizer=normalizers.Sequence([normalizers.NFC()])
    ),
    "qwen3.5": lambda: byte_level(split(7), normalizer=normalizers.NFC()),
    "o200k": lambda: byte_level(split(8)),
    "tekken": lambda: ignore_merges(
        byte_level(split(9), trained=True, post_processor=template("<s>"))
    ),
    "deepseek-coder": lambda: byte_level(
        split(15), split(16), split(17), split(18), pre_tokenizers.Digits(True)
    ),
    "deepseek-llm": lambda: byte_level(
        split(15), split(25), split(26), split(27), split(18), pre_tokenizers.Digits(True)
    ),
    "trailing spaces": lambda: byte_level(split(27)),
    "bloom": lambda: byte_level(split(24)),
    "seed-coder": lambda: byte_level(split(33)),
    "jais-2": lambda: byte_level(split(34)),
    "exaone-moe": lambda: byte_level(split(35)),
    "youtu": lambda: ignore_merges(
        byte_level(split(37), split(38), split(39), split(19), split(36), trained=True)
    ),
    "default": lambda: byte_level(
        split(40),
        split(4),
        split(41),
        None,
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ),
    "chameleon": lambda: byte_level(
        split(42),
        split(43),
        split(44),
        pre_tokenizers.Digits(True),
        pre_tokenizers.Punctuation("isolated"),
        use_regex=True,
    ),
    "tiny-aya": lambda: byte_level(split(45), split(8), normalizer=normalizers.NFC()),
    "superbpe": lambda: byte_level(split(41), split(47)),
    "kimi-k2": lambda: ignore_merges(byte_level(split(48), trained=True)),
    "afmoe": lambda: byte_level(
        *(pre_tokenizers.Split(Regex(regex), "isolated") for regex in TRINITY), split(10)
    ),
    "prefix space": lambda: byte_level(use_regex=True, prefix_space=True),
    "deepseek3": lambda: byte_level(
        split(13), split(19), split(10), normalizer=normalizers.Sequence([])
    ),
    "metaspace never": lambda: characters(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    ),
    "metaspace": lambda: characters(
        0,
        fallback=False,
        fuse=False,
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
    ),
}


# No family of export.py has these yet; they are a line each in text/scanners.c.
@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """A function kind -> (directory with tokenizer.json, checkpoint with that tokenizer); made
    once."""
    assert texts.PROGRAM.exists(), f"{texts.PROGRAM} is not built: run make c-tests"
    root = tmp_path_factory.mktemp("tokenizers")

    @lru_cache(maxsize=None)
    def make(kind: str) -> tuple[Path, Path]:
        directory = root / kind
        directory.mkdir(exist_ok=True)
        (directory / "tokenizer.json").write_text(json.dumps(KINDS[kind]()))
        texts.write_model(directory / "model.bin", tokenizer_metadata(str(directory)))
        return directory, directory / "model.bin"

    return make


@pytest.mark.parametrize("kind", texts.kinds(KINDS))
def test_equal_to_tokenizers(build, kind):
    """Ids, and decoded text with and without special tokens: a twelfth of
    1 MB of mixed text and of 20,000 random strings, or all of it (HEADS_TESTS=all), and one long
    word."""
    directory, model = build(kind)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    pieces, strings = cases()
    pieces, strings = texts.share_of(pieces, kind), texts.share_of(strings, kind)
    every = [*pieces, *strings, "a" * 50000, " " * 3000 + "b", "\u0301\u0323" * 500]
    ours = texts.tokenize(texts.PROGRAM, model, [s.encode() for s in every])
    wrong = texts.differences(every, ours, texts.expected(tokenizer, every))
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "llama2", "gemma"])
def test_bytes_of_tokens(build, kind):
    """Those of a text's tokens are the text's, though a character has several tokens."""
    with heads.Model(build(kind)[1]) as m:
        text = " a  word, \u00e9\U0001f600\u4e00\n\tx <0x41>"
        ids = m.encode("a" + text, special=False)
        parts = [m.token_bytes(id) for id in ids]
        assert b"".join(parts).decode().strip(" ") == m.decode(ids, skip_special=False).strip(" ")
        assert any(len(part) == 1 and part[0] > 127 for part in parts)
        assert m.token_text(ids[-1]) == "x <0x41>"[-len(parts[-1]) :]
        with pytest.raises(heads.InputError, match="1000000 is no token of this model"):
            m.token_bytes(10**6)
        most = max(range(300), key=lambda id: len(m.token_bytes(id)))
        room = create_string_buffer(2)
        assert calls.token_bytes(m._text(), most, room, 1) == len(m.token_bytes(most))
        assert room.raw == m.token_bytes(most)[:1] + b"\0"


@pytest.mark.parametrize("kind", ["deepseek-llm", "bloom", "default", "kimi-k2", "afmoe"])
def test_every_character(tmp_path, kind):
    """Kinds whose patterns list characters: whether each of the first two planes goes with a
    letter, ASCII or not, or with a space. Whatever stands before the first byte of one of these in
    a piece merges with it, so that every cut shows."""
    data = KINDS[kind]()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    data["model"]["merges"] = [
        [byte, first] for first in ("a", ".", "\u00c3", "\u0120") for byte in alphabet
    ]
    tokens = [*alphabet, *map("".join, data["model"]["merges"])]
    data["model"]["vocab"] = {token: id for id, token in enumerate(tokens)}
    data["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(tmp_path)))
    points = [chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000]
    points = texts.share_of(points, "every character")
    every = [
        "".join(f"{c}a{c}\u00e9{c} {c}." for c in points[i : i + 2000])
        for i in range(0, len(points), 2000)
    ]
    ours = texts.tokenize(texts.PROGRAM, tmp_path / "model.bin", [s.encode() for s in every])
    wrong = texts.differences(
        every, ours, texts.expected(Tokenizer.from_str(json.dumps(data)), every)
    )
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize(
    "kind", texts.kinds(["gpt2", "starcoder2", "llama2", "gemma", "metaspace"])
)
def test_decodes_any_ids(build, kind):
    """Ids in an order that no text gives: broken characters, rows of bytes that are no UTF-8,
    special tokens among them."""
    directory, model = build(kind)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng = random.Random(5)
    n = tokenizer.get_vocab_size()
    some_id = lambda: rng.randrange(n + 3 if rng.random() < 0.7 else 300)  # noqa: E731
    lists = [[some_id() for _ in range(rng.randint(0, 12))] for _ in range(5000)]
    ours = texts.tokenize(
        texts.PROGRAM, model, [np.array(ids, "<i4").tobytes() for ids in lists], ids=True
    )
    for ids, answer in zip(lists, ours):
        for skip, got in ((False, answer.shown), (True, answer.skipped)):
            assert got.decode() == tokenizer.decode(ids, skip_special_tokens=skip), ids


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "llama2"])
def test_bad_utf8(build, kind):
    """Bytes that are not UTF-8 become U+FFFD, as many as Python and Rust put."""
    directory, model = build(kind)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng = random.Random(3)
    starts = [
        b"a",
        b"\xc3",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xf4\x90",
        b"\xc0\xaf",
        b"\xe0\x80",
        b"\xe2\x82\xac",
    ]
    part = lambda: rng.choice([rng.choice(starts), bytes([rng.randrange(256)])])  # noqa: E731
    broken = [b"".join(part() for _ in range(rng.randint(1, 9))) for _ in range(3000)]
    lossy = [text.decode("utf-8", "replace") for text in broken]
    wrong = texts.differences(
        lossy, texts.tokenize(texts.PROGRAM, model, broken), texts.expected(tokenizer, lossy)
    )
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize(
    "kind", ["llama3", "qwen2", "falcon", "llama2", "o200k", "deepseek-llm", "tiny-aya", "superbpe"]
)
def test_work_is_near_linear(build, kind):
    """Texts on which a scan that begins again at every character would take minutes: words, white
    space, marks, strips."""
    _, model = build(kind)
    size = 1 << 18
    long = [
        b"a" * size,
        b" " * size,
        b"\n " * (size // 2),
        b"<" * size,
        "\u0301\u0323".encode() * (size // 4),
        b"A" * size,
        b"0" * size,
        b"<r>" + b" " * size,
        (b"<r>" + b" " * 50) * (size // 53),
        b" " * size + b"<l>",
        b"\xff" * size,
        b"'" * size,
        ("\u00aa" + "A" * 99).encode() * (size // 101),
        b"\t" * size,
        b"\t\t " * (size // 3),
        ("\t " * size + "\u05d0").encode(),
    ]
    answers = texts.tokenize(texts.PROGRAM, model, long, timeout=60)
    assert all(answer.ids for answer in answers)


# ---- SentencePiece and llama2.c files ------------------------------------------------------------


def pieces_by_score() -> list[tuple[str, float]]:
    """Tokens and scores: those of the llama2 kind after its 259 fixed ones; every tenth shares the
    score before it."""
    data = characters(normalizer=OLD_FORM)
    rest = [
        token
        for token, id in sorted(data["model"]["vocab"].items(), key=lambda item: item[1])
        if id > 258
    ]
    return [(token, -float(i - (i % 10 == 0))) for i, token in enumerate(rest)]


def sentencepiece_file(
    pieces: list[tuple[str, float]], model_type: int = 2, normalizer: bytes = protobuf(4, 0)
) -> bytes:
    """A SentencePiece model with byte fallback. model_type: 2 BPE."""
    fixed = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        *((f"<0x{b:02X}>", 0.0, 6) for b in range(256)),
    ]
    return sentencepiece(
        [*fixed, *((token, score, 1) for token, score in pieces)], model_type, normalizer
    )


def llama2c_file(pieces: list[tuple[str, float]]) -> bytes:
    """A tokenizer.bin of llama2.c: spaces as spaces, BOS and EOS between line ends."""
    fixed = [
        ("<unk>", 0.0),
        ("\n<s>\n", 0.0),
        ("\n</s>\n", 0.0),
        *((f"<0x{b:02X}>", 0.0) for b in range(256)),
    ]
    every = [(t.replace(SPACE_MARK, " ").encode(), s) for t, s in [*fixed, *pieces]]
    return struct.pack("<i", max(len(t) for t, _ in every)) + b"".join(
        struct.pack("<fi", s, len(t)) + t for t, s in every
    )


def merge_by_score(text: str, pieces: list[tuple[str, float]]) -> list[int]:
    """What llama2.c and SentencePiece do, by their plain definition: while there is a pair whose
    join is a token, the pair with the best score, the leftmost of equals, becomes one."""
    ids = {token: 259 + i for i, (token, _) in enumerate(pieces)}
    scores = {259 + i: score for i, (_, score) in enumerate(pieces)}
    strings = {id: token for token, id in ids.items()}
    out = [id for c in text for id in ([ids[c]] if c in ids else [3 + b for b in c.encode()])]
    while True:
        pairs = [
            (-scores[ids[t]], i, ids[t])
            for i in range(len(out) - 1)
            if (t := strings.get(out[i], "\0") + strings.get(out[i + 1], "\0")) in ids
        ]
        if not pairs:
            return out
        _, i, id = min(pairs)
        out[i : i + 2] = [id]


@pytest.mark.parametrize("suffix", [".model", ".bin"])
def test_scored_files(tmp_path, suffix):
    """A SentencePiece model and a llama2.c tokenizer against the plain definition of what they
    do."""
    pieces = pieces_by_score()
    path = tmp_path / ("tokenizer" + suffix)
    path.write_bytes(sentencepiece_file(pieces) if suffix == ".model" else llama2c_file(pieces))
    texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(path)))
    strings = [s for s in texts.random_strings(21, 1500, most=6) if "<s>" not in s] + [
        " " * n for n in range(40)
    ]
    for text, answer in zip(
        strings,
        texts.tokenize(texts.PROGRAM, tmp_path / "model.bin", [s.encode() for s in strings]),
    ):
        if suffix == ".model":
            marked = (" " + text if text else "").replace(" ", SPACE_MARK)
            assert answer.ids == [1, *merge_by_score(marked, pieces)], repr(text)
            assert answer.skipped.decode() == text.replace(SPACE_MARK, " "), repr(text)
        else:
            spaced = [(token.replace(SPACE_MARK, " "), score) for token, score in pieces]
            assert answer.ids == [1, *merge_by_score(" " + text if text else "", spaced)], repr(
                text
            )
            assert answer.skipped.decode() == text, repr(text)


def test_eos_ids(tmp_path, build):
    """Of a directory: what generation_config.json names, else config.json, else
    tokenizer_config.json's token. Of a file: its own."""
    directory, _ = build("gpt2")
    (tmp_path / "tokenizer.json").write_text((directory / "tokenizer.json").read_text())
    assert "tokenizer.eos" not in tokenizer_metadata(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [2]
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [7]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 5]}))
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [5, 9]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [7]
    for wrong in ("x", True, -1, 1.5, [5, 1 << 24], 1 << 40):
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(ExportError, match=re.escape(f"json: eos_token_id is {wrong!r}, exp")):
            tokenizer_metadata(str(tmp_path))
    (tmp_path / "t.model").write_bytes(sentencepiece_file(pieces_by_score()))
    (tmp_path / "config.json").unlink()
    (tmp_path / "generation_config.json").unlink()
    assert tokenizer_metadata(str(tmp_path / "t.model"))["tokenizer.eos"].tolist() == [2]


# ---- what is refused -----------------------------------------------------------------------------


REFUSED = {
    "model.dropout is": lambda d: d["model"].update(type="Unigram"),
    "model.type is 'WordLevel'": lambda d: d["model"].update(type="WordLevel"),
    "pre_tokenizer.type is .ByteLevel": lambda d: d["model"].update(type="WordPiece"),
    "model.dropout is 0.1": lambda d: d["model"].update(dropout=0.1),
    "model.end_of_word_suffix is": lambda d: d["model"].update(end_of_word_suffix="</w>"),
    "model.byte_fallback is true": lambda d: d["model"].update(byte_fallback=True),
    "model.unk_token is": lambda d: d["model"].update(unk_token="nowhere"),
    "model.new_field is": lambda d: d["model"].update(new_field=1),
    "model.merges: entry 0 is": lambda d: d["model"]["merges"].insert(0, ["a", "\u4e00"]),
    "model.vocab": lambda d: d["model"].update(vocab={"a": 0, "b": 0}),
    "is looked for in normalized text": lambda d: d.update(normalizer={"type": "Lowercase"}),
    "normalizer is": lambda d: d.update(normalizer={"type": "ByteLevel"}),
    "normalizer is .*NFCC": lambda d: d.update(
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFCC"}]}
    ),
    "normalizer is .*Replace": lambda d: d.update(
        normalizer={"type": "Replace", "pattern": {"Regex": "[a-z]"}, "content": ""}
    ),
    "pre_tokenizer is .*Removed": lambda d: d.update(
        pre_tokenizer={"type": "Punctuation", "behavior": "Removed"}
    ),
    "pre_tokenizer is .*Delimiter": lambda d: d.update(
        pre_tokenizer={"type": "CharDelimiterSplit", "delimiter": "x"}
    ),
    "pre_tokenizer is .*x\\+": lambda d: d.update(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "x+"},
            "behavior": "Isolated",
            "invert": False,
        }
    ),
    "pre_tokenizer.ByteLevel.add_prefix_space is true": lambda d: d.update(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**d["pre_tokenizer"], "add_prefix_space": True},
            ],
        }
    ),
    "pre_tokenizer.Metaspace.replacement is": lambda d: d.update(
        pre_tokenizer={"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}
    ),
    "pre_tokenizer.Metaspace.add_prefix_space is false": lambda d: d.update(
        pre_tokenizer={"type": "Metaspace", "replacement": SPACE_MARK, "add_prefix_space": False}
    ),
    "post_processor is .*OtherProcessing": lambda d: d.update(
        post_processor={"type": "OtherProcessing", "sep": ["a", 1], "cls": ["b", 2]}
    ),
    "decoder is": lambda d: d.update(
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}
    ),
    "decoder is null": lambda d: d.update(decoder=None),
    "added_tokens: .*tokenizers would give it": lambda d: d["added_tokens"][-1].update(id=5000),
    "tokenizer.json.extra is": lambda d: d.update(extra=1),
    "does not look like a tokenizer": lambda d: d.update(normalizer="NFC"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_json(tmp_path, build, message):
    """A tokenizer.json with something that has no rule here is refused by the name of the field."""
    directory, _ = build("gpt2")
    data = json.loads((directory / "tokenizer.json").read_text())
    REFUSED[message](data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ExportError, match=message):
        tokenizer_metadata(str(tmp_path))


def test_refused_files(tmp_path):
    """Sources that are missing, damaged, or of another kind."""
    pieces = pieces_by_score()
    whole = {"t.model": sentencepiece_file(pieces), "t.bin": llama2c_file(pieces)}
    bad = {
        "none": (None, "it has none of tokenizer.json"),
        "a.json": (b"{", "is not JSON"),
        "b.json": (b"[]", "json holds no JSON object"),
        "c.json": (b"[" * 100_000, "is not JSON: .*recursion"),
        "a.model": (b"", "no SentencePiece model"),
        "b.model": (whole["t.model"][:-1], "truncated"),
        "c.model": (sentencepiece_file(pieces, 1), "how a Unigram model's ids are numbered"),
        "d.model": (sentencepiece_file(pieces, normalizer=b""), "remove_extra_whitespaces"),
        "e.model": (
            sentencepiece_file(pieces, normalizer=protobuf(4, 0) + protobuf(2, b"x")),
            "precompiled_charsmap",
        ),
        "a.bin": (b"", "no llama2.c tokenizer"),
        "b.bin": (whole["t.bin"][:-1], "truncated"),
        "c.bin": (whole["t.bin"][4:], "tokenizer"),
    }
    for name, (data, message) in bad.items():
        path = tmp_path / name
        if data is None:
            path.mkdir()
        else:
            path.write_bytes(data)
        with pytest.raises(ExportError, match=message):
            tokenizer_metadata(str(path))


def test_components_nested_deep(tmp_path):
    """Python says how deep is too deep, first of all when it opens what it could just read."""
    data = json.dumps(special_tokens.tokenizer_json(normalizer="inner"))

    def taken(depth):
        inner = '{"type": "Sequence", "normalizers": [' * depth + "]}" * depth
        (tmp_path / "tokenizer.json").write_text(data.replace('"inner"', inner))
        with contextlib.suppress(ExportError):
            return bool(tokenizer_metadata(str(tmp_path)))
        return False

    least, most = 1, 10_000  # versions of Python differ in how they count calls of C
    assert taken(least) and not taken(most)
    while most - least > 1:
        depth = (least + most) // 2
        least, most = (depth, most) if taken(depth) else (least, depth)
    for depth in range(most - 75, most + 75):
        taken(depth)


@pytest.mark.parametrize("id", [1000, 200_000])
def test_ids_far_apart(tmp_path, id):
    """Ids that no token has take no work, and the engine knows them as such."""
    directory = tmp_path / "source"
    directory.mkdir()
    data = special_tokens.tokenizer_json()
    data["model"]["vocab"]["far"] = id
    (directory / "tokenizer.json").write_text(json.dumps(data))
    profile = cProfile.Profile()
    metadata = profile.runcall(tokenizer_metadata, str(directory))
    assert sum(entry.callcount for entry in profile.getstats()) < 20_000
    begin = metadata["tokenizer.token.begin"]
    assert len(begin) == id + 2 and begin[-2] == begin[300] == begin[-1] - len("far")
    texts.write_model(tmp_path / "far.bin", metadata)
    (decoded,) = texts.tokenize(
        texts.PROGRAM, tmp_path / "far.bin", [struct.pack("<3i", id, id - 1, id)], ids=True
    )
    assert decoded.shown == b"farfar"


def test_ids_too_far_apart(tmp_path):
    """The engine counts tokens to 2^24 - 1."""
    data = special_tokens.tokenizer_json()
    data["model"]["vocab"]["far"] = (1 << 24) - 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ExportError, match="a token has the id 16777215, expected 0 to 16777214"):
        tokenizer_metadata(str(tmp_path))


def with_meta(model: Path, change) -> bytes:
    """The checkpoint with its metadata changed in place: change(dict)."""
    meta, tensors = checkpoints.parse(model.read_bytes())
    change(meta)
    return checkpoints.build(meta, tensors)


def answer(
    path: Path, data: bytes, text: bytes = b"The <|end|> two words 123"
) -> subprocess.CompletedProcess:
    path.write_bytes(data)
    return subprocess.run(
        [texts.PROGRAM, path],
        input=struct.pack("<I", len(text)) + text,
        capture_output=True,
        timeout=60,
    )


def damaged(m: checkpoints.Meta) -> list[checkpoints.Meta]:
    """Versions of an entry that cannot be right: wrong type, too short, and for integers too large
    and negative ones."""
    out = [
        checkpoints.Meta(
            3,
            m.count if m.type == checkpoints.I32 else 0,
            m.values if m.type == checkpoints.I32 else b"",
        )
    ]
    if m.type == checkpoints.I32:
        for at in (0, m.count // 2, m.count - 1):
            for value in (-2, 2**31 - 1):
                values = m.array().copy()
                values[at] = value
                out.append(checkpoints.Meta(m.type, m.count, values.tobytes()))
    return out


@pytest.mark.parametrize("kind", ["llama3", "llama2"])
def test_hostile_metadata(tmp_path, build, kind):
    """Every entry damaged in every way: a message that names it. tokenizer.merge.rank may be any
    number up to 2^31 - 1."""
    _, model = build(kind)
    meta, _ = checkpoints.parse(model.read_bytes())
    for key in (key for key in meta if key.startswith("tokenizer.")):
        for bad in damaged(meta[key]):
            done = answer(tmp_path / "bad.bin", with_meta(model, lambda m: m.update({key: bad})))
            largest = bad.type == checkpoints.I32 and bad.array().max() == 2**31 - 1
            if key in ("tokenizer.merge.rank", "tokenizer.strip") and largest:
                assert done.returncode == 0, done.stderr
            else:
                assert done.returncode == 1 and key.rsplit(".", 1)[0].encode() in done.stderr, (
                    key,
                    bad[:2],
                    done.stderr,
                )
    # What must be there. A missing entry of the others reads as an empty list.
    for name in ["token.begin", "token.kind", "bytes", "merge.begin", "merge.right"]:
        key = "tokenizer." + name
        done = answer(tmp_path / "bad.bin", with_meta(model, lambda m: m.pop(key)))
        assert done.returncode == 1 and key.encode() in done.stderr, (key, done.stderr)
    done = answer(
        tmp_path / "bad.bin",
        with_meta(model, lambda m: m.update({"tokenizer.magic": meta["tokenizer.prefix"]})),
    )
    assert done.returncode == 1 and b"knob tokenizer.magic is not known" in done.stderr


@pytest.mark.parametrize("kind", ["llama3", "falcon", "llama2"])
def test_flipped_bits(tmp_path, build, kind):
    """Metadata with flipped bits is refused, or tokenizes somehow: it never crashes."""
    _, model = build(kind)
    data = model.read_bytes()
    rng = random.Random(9)
    (meta_size,) = struct.unpack_from("<Q", data, 24)
    for _ in range(100):
        flipped = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            flipped[64 + rng.randrange(meta_size)] ^= 1 << rng.randrange(8)
        done = answer(tmp_path / "flipped.bin", bytes(flipped))
        assert done.returncode in (0, 1), done.stderr
        assert done.returncode == 0 or done.stderr.startswith(b"tokenize_batch: ")


def test_description(build):
    """What --info shows."""
    lines = {}
    for kind in ("falcon", "llama3", "llama2"):
        lines[kind] = answer(build(kind)[1], build(kind)[1].read_bytes()).stderr.decode().strip()
    assert lines["falcon"].endswith("pre-tokenizer punctuation + gpt2 + byte digits + three digits")
    assert lines["llama3"].startswith("byte-level BPE, 9")
    assert lines["llama3"].endswith("pre-tokenizer llama3, prefix 1, suffix 2")
    assert lines["llama2"].startswith("character BPE with byte fallback, 11")
    assert "normalizer prepend \u2581 + space to \u2581" in lines["llama2"]
