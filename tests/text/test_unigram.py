"""Unigram tokenizers and the normalizers and pre-tokenizers that come with them, against
`tokenizers`."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import subprocess
import unicodedata
from collections import Counter
from functools import lru_cache
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from conftest import ALL, ROOT, takes_long
import tokenizer_texts as texts
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from exporter.tokenizers.charsmap import charsmap
from exporter.tensor import ExportError
from exporter.tokenizers.normalizers import SPACE_MARK
from exporter.tokenizers.files import tokenizer_metadata

GOLDEN = ROOT / "tests" / "golden" / "unigram"
ADDED = [
    AddedToken("<mask>", lstrip=True, normalized=True, special=True),
    AddedToken("<extra_id_0>", special=True, normalized=False),
    AddedToken("<user>", normalized=False),
    AddedToken("two words", normalized=True),
    AddedToken("<r>", rstrip=True, normalized=False),
]
CONTENTS = [token.content for token in ADDED] + ["<unk>", "<0x41>", "\u2581the", "\u2581\u2581"]
SPECIAL = ["<pad>", "</s>", "<unk>"]


@lru_cache(maxsize=None)
def nfkc_map() -> bytes:
    """A map such as SentencePiece's nmt_nfkc: form KC of every character and of some pairs, spaces
    for white space, control characters gone."""
    pairs = {}
    for c in map(chr, range(1, 0x20000)):
        if 0xD800 <= ord(c) < 0xE000:
            continue
        to = unicodedata.normalize("NFKC", c)
        if c.isspace() or c in "\u200b\u200e\ufeff":
            to = " "
        elif unicodedata.category(c) == "Cc":
            to = ""
        if to != c:
            pairs[c] = to
        parts = unicodedata.normalize("NFD", c)
        if to == c and len(parts) > 1:
            pairs[parts] = c
    pairs["\r\n"] = "\u2581"
    return charsmap(pairs)


@lru_cache(maxsize=None)
def pieces() -> list[list]:
    """Pieces of up to 8 characters with the logarithms of how often they occur, the more frequent
    the higher; about a third of them hold a mark inside, which only a whole text can use."""
    counts: Counter[str] = Counter()
    for line in texts.mixed_text(7, 100_000).splitlines():
        line = SPACE_MARK + line.replace(" ", SPACE_MARK)
        counts.update(line[i : i + n] for n in range(1, 9) for i in range(len(line) - n))
    chosen = [*counts.most_common(2500), *((c, 2) for c in texts.SPACES[-3:] if c.strip())]
    special = {token: 0.0 for token in SPECIAL}
    total = sum(counts.values())
    scores = special | {token: math.log(n / total) for token, n in chosen}
    return [[token, score] for token, score in scores.items()]


def unigram(fallback: bool = False, decoder=None, **parts) -> dict:
    """The contents of a tokenizer.json. Many scores are equal, so that ties show, and some
    characters have no token."""
    rows = [
        [token, round(score, 1) if i % 2 else score] for i, (token, score) in enumerate(pieces())
    ]
    rows = [row for i, row in enumerate(rows) if i < 3 or len(row[0]) > 1 or i % 9]
    if fallback:
        rows[3:3] = [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    tokenizer = Tokenizer(models.Unigram([tuple(row) for row in rows], 2, fallback))
    tokenizer.decoder = decoder or decoders.Metaspace()
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    tokenizer.add_tokens(ADDED)
    return json.loads(tokenizer.to_str())


def sequence(*steps):
    return normalizers.Sequence(list(steps))


def words(scheme: str = "always"):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )


FUSED = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
SPACES = normalizers.Replace(Regex(" {2,}"), " ")
EOS = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
AROUND = processors.TemplateProcessing(
    single="<pad> $A </s> <unk>", special_tokens=[("</s>", 1), ("<pad>", 0), ("<unk>", 2)]
)


def precompiled():
    return normalizers.Precompiled(nfkc_map())


KINDS = {
    "t5": lambda: unigram(normalizer=precompiled(), pre_tokenizer=words(), post_processor=EOS),
    "xlm-r": lambda: unigram(
        normalizer=precompiled(),
        pre_tokenizer=words(),
        post_processor=processors.RobertaProcessing(("</s>", 1), ("<pad>", 0)),
    ),
    "albert": lambda: unigram(
        normalizer=sequence(
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            precompiled(),
            SPACES,
        ),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        post_processor=AROUND,
    ),
    "pegasus": lambda: unigram(
        normalizer=sequence(normalizers.Replace(Regex(r"\n"), " "), SPACES),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        post_processor=EOS,
    ),
    "mbart": lambda: unigram(pre_tokenizer=words(), post_processor=AROUND),
    "converted": lambda: unigram(
        normalizer=sequence(
            precompiled(),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), SPACE_MARK),
        ),
        pre_tokenizer=pre_tokenizers.Metaspace(),
    ),
    "byte fallback": lambda: unigram(
        fallback=True,
        decoder=decoders.Sequence([*FUSED, decoders.Strip(" ", 1, 0)]),
        normalizer=sequence(normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)),
    ),
    "whole text": lambda: unigram(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
    "never": lambda: unigram(
        decoder=decoders.Metaspace(prepend_scheme="never"),
        normalizer=normalizers.Nmt(),
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never"),
    ),
    "first": lambda: unigram(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "whitespace": lambda: unigram(
        normalizer=sequence(normalizers.NFKC(), normalizers.Strip()),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Metaspace()]
        ),
    ),
    "punctuation": lambda: unigram(
        normalizer=sequence(normalizers.NFD(), normalizers.Replace(Regex("e+"), "")),
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("isolated"),
                pre_tokenizers.Digits(True),
                pre_tokenizers.Metaspace(prepend_scheme="never"),
            ]
        ),
    ),
}


@lru_cache
def cases() -> tuple[list[str], list[str]]:
    """1 MB of mixed text, in pieces that begin anywhere, and 20,000 random strings; long words."""
    text = texts.mixed_text(11, 1 << 20, CONTENTS)
    pieces = [text[i : i + 20000] for i in range(0, len(text), 20000)]
    strings = texts.random_strings(12, 20000, CONTENTS, most=8)
    return [*pieces, *strings], ["a" * 50000, " " * 3000 + "b", "\u0301\u0323" * 500, "e" * 400]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A function kind -> (directory with tokenizer.json, checkpoint with that tokenizer)."""
    assert texts.PROGRAM.exists(), f"{texts.PROGRAM} is not built: run make c-tests"
    root = tmp_path_factory.mktemp("unigram")

    @lru_cache(maxsize=None)
    def make(kind: str) -> tuple[Path, Path]:
        directory = root / kind
        directory.mkdir()
        (directory / "tokenizer.json").write_text(json.dumps(KINDS[kind]()))
        texts.write_model(directory / "model.bin", tokenizer_metadata(str(directory)))
        return directory, directory / "model.bin"

    return make


def compare(model: Path, tokenizer: Tokenizer, every: list[str]) -> None:
    ours = texts.tokenize(texts.PROGRAM, model, [s.encode() for s in every])
    wrong = texts.differences(every, ours, texts.expected(tokenizer, every))
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize("kind", texts.kinds(KINDS))
def test_equal_to_tokenizers(build, kind):
    """Ids, and decoded text with and without special tokens."""
    directory, model = build(kind)
    mixed, long = cases()
    every = [*texts.share_of(mixed, kind), *long]
    compare(model, Tokenizer.from_file(str(directory / "tokenizer.json")), every)


# Ideographs, Hangul syllables, private use, Tangut: characters of a block are treated alike.
ALIKE = (
    range(0x3400, 0xA000),
    range(0xAC00, 0xD7A4),
    range(0xE000, 0xF900),
    range(0x17000, 0x1B000),
)


@takes_long
def test_every_character(build, tmp_path):
    """Graphemes of a charsmap, and each form, of every character between others; of those that are
    alike some."""
    points = [
        chr(c)
        for c in range(1, 0x20000)
        if not 0xD800 <= c < 0xE000 and (c % 13 == 0 or not any(c in block for block in ALIKE))
    ]
    around = "".join(f"a{c}\u0301 e\u0301{c}{c}e\u0301\u0302 {c}\r\n" for c in points)
    every = [around[i : i + 15000] for i in range(0, len(around), 15000)]
    steps = [
        precompiled(),
        normalizers.NFKC(),
        normalizers.NFKD(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Nmt(),
        normalizers.Lowercase(),
    ]
    for step in steps:
        # With byte fallback each character that comes out shows.
        data = unigram(fallback=True, normalizer=step, decoder=decoders.Sequence(FUSED))
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(data))
        texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(path)))
        compare(tmp_path / "model.bin", Tokenizer.from_str(json.dumps(data)), every)


@pytest.mark.parametrize("kind", texts.kinds(["t5", "never", "byte fallback", "albert"]))
def test_decodes_any_ids(build, kind):
    """Ids in an order that no text gives."""
    directory, model = build(kind)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng = random.Random(5)
    n = tokenizer.get_vocab_size()
    lists = [
        [rng.randrange(rng.choice([n + 3, 300])) for _ in range(rng.randint(0, 9))]
        for _ in range(4000)
    ]
    ours = texts.tokenize(
        texts.PROGRAM, model, [np.array(ids, "<i4").tobytes() for ids in lists], ids=True
    )
    for ids, answer in zip(lists, ours):
        for skip, got in ((False, answer.shown), (True, answer.skipped)):
            assert got.decode() == tokenizer.decode(ids, skip_special_tokens=skip), ids


@pytest.mark.parametrize(
    "kind", ["t5", "albert", "byte fallback", "whole text", "marian", "m2m_100", "nllb"]
)
def test_work_is_near_linear(build, tmp_path, kind):
    """Texts on which a step that begins again at every character would take minutes."""
    if kind in KINDS:
        _, model = build(kind)
    else:
        model = tmp_path / "model.bin"
        texts.write_model(model, tokenizer_metadata(str(GOLDEN / kind)))
    size = 1 << 18
    long = [
        b"a" * size,
        b" " * size,
        "\u2581".encode() * size,
        "e\u0301".encode() * size,
        "\u0301\u0323".encode() * (size // 2),
        b"'" * size,
        b"the " * (size // 4),
        "\U0001f468\u200d".encode() * (size // 4),
        b"\r\n" * size,
    ]
    texts.tokenize(texts.PROGRAM, model, long, timeout=60)


FILES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


@pytest.mark.parametrize("name", FILES)
def test_files_without_a_tokenizer_json(tmp_path, name):
    """spiece.model and its like: the ids that transformers gives (make_unigram_files.py)."""
    folder = GOLDEN / name
    golden = json.loads((folder / "expected.json").read_text())
    texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(folder)))
    ours = texts.tokenize(
        texts.PROGRAM, tmp_path / "model.bin", [t.encode() for t in golden["texts"]]
    )
    assert len(ours) == len(golden["texts"])
    wrong = [
        (t, a.ids, ids) for t, a, ids in zip(golden["texts"], ours, golden["ids"]) if a.ids != ids
    ]
    assert not wrong, f"{len(wrong)}: {wrong[:3]}"


CONFIGS = {  # message -> folder, what happens to its tokenizer_config.json
    "src_lang is 'xx', which is no added": ("nllb", lambda c: c.update(src_lang="xx")),
    "has no added_tokens_decoder": ("nllb", lambda c: c.pop("added_tokens_decoder")),
    "gives '<mask>' the id 600, but": (
        "nllb",
        lambda c: c["added_tokens_decoder"].update({"600": c["added_tokens_decoder"].pop("504")}),
    ),
    "eos_token is '</e>', expected '</s>'": ("nllb", lambda c: c.update(eos_token="</e>")),
    "unk_token is '<u>', expected '<unk>'": ("m2m_100", lambda c: c.update(unk_token="<u>")),
    "added token '<x>', which": ("m2m_100", lambda c: c.update(extra_special_tokens=["<x>"])),
    "language_codes is 'm3'": ("m2m_100", lambda c: c.update(language_codes="m3")),
}


@pytest.mark.parametrize("message", CONFIGS)
def test_configs_of_translators(tmp_path, message):
    """What changes ids and has no rule here is refused by name."""
    name, change = CONFIGS[message]
    folder = shutil.copytree(GOLDEN / name, tmp_path / name)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(ExportError, match=message):
        tokenizer_metadata(str(folder))


REFUSED = {
    "model.vocab: 'x' occurs twice": lambda d: d["model"]["vocab"].extend([["x", 0.0]] * 2),
    "model.vocab: expected a list": lambda d: d["model"]["vocab"].append(["x", "y"]),
    "model.unk_id is None": lambda d: d["model"].update(unk_id=None),
    "model.alpha is 0.1": lambda d: d["model"].update(alpha=0.1),
    "precompiled_charsmap is truncated": lambda d: d["normalizer"].update(
        precompiled_charsmap="/////w=="
    ),
    "normalizer is .*Regex": lambda d: d.update(
        normalizer={"type": "Replace", "pattern": {"Regex": "a|b"}, "content": ""}
    ),
    "pre_tokenizer is .*ByteLevel": lambda d: d.update(
        pre_tokenizer={
            "type": "ByteLevel",
            "add_prefix_space": False,
            "use_regex": True,
            "trim_offsets": True,
        }
    ),
    "decoder is null": lambda d: d.update(decoder=None),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(tmp_path, message):
    data = KINDS["t5"]()
    REFUSED[message](data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ExportError, match=message):
        tokenizer_metadata(str(tmp_path))


def test_a_decoder_that_nobody_needs(tmp_path):
    """An encoder's may be null: its texts have the same ids, and a mask is filled the same."""
    data = KINDS["t5"]()
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    usual = tokenizer_metadata(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**data, "decoder": None}))
    found = tokenizer_metadata(str(tmp_path), decodes=False)
    assert found.keys() == usual.keys()
    assert all(np.array_equal(found[key], usual[key]) for key in usual)


@pytest.mark.parametrize("kind", ["albert", "byte fallback"])
def test_damaged(build, tmp_path, kind):
    """Flipped bits in any entry are refused by a message, or tokenize somehow."""
    _, model = build(kind)
    meta, tensors = checkpoints.parse(model.read_bytes())
    rng = random.Random(3)
    text = "The words, \u00e9\u0301 \u2460 \ufb01 <mask> two words \u4e00".encode()
    for key in [key for key in meta if key.startswith("tokenizer.")] * (3 if ALL else 1):
        values = bytearray(meta[key].values)
        for _ in range(rng.randint(1, 40)):
            values[rng.randrange(len(values))] ^= 1 << rng.randrange(8)
        damaged = {**meta, key: meta[key]._replace(values=bytes(values))}
        (tmp_path / "bad.bin").write_bytes(checkpoints.build(damaged, tensors))
        done = subprocess.run(
            [texts.PROGRAM, tmp_path / "bad.bin"],
            capture_output=True,
            timeout=60,
            input=struct.pack("<I", len(text)) + text,
        )
        assert done.returncode == 0 or done.stderr.startswith(b"tokenize_batch: "), (key, done)


def test_every_key_is_needed(build, tmp_path):
    """Without an entry that the others need, a message names it or what needs it."""
    _, model = build("albert")
    for key, said in {
        "tokenizer.unigram.score": b"unigram.score",
        "tokenizer.unk": b"unigram",
        "tokenizer.charsmap": b"charsmap",
        "tokenizer.replace.begin": b"replace",
        "tokenizer.replace.repeats": b"replace",
    }.items():
        meta, tensors = checkpoints.parse(model.read_bytes())
        del meta[key]
        (tmp_path / "bad.bin").write_bytes(checkpoints.build(meta, tensors))
        done = subprocess.run([texts.PROGRAM, tmp_path / "bad.bin"], capture_output=True, input=b"")
        assert done.returncode == 1 and said in done.stderr, (key, done.stderr)
