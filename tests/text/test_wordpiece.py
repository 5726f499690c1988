"""BERT's tokenizer against `tokenizers`: its normalizer in all forms, WordPiece, vocab.txt."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
import tokenizer_texts as texts
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from exporter.tensor import ExportError
from exporter.tokenizers.files import tokenizer_metadata

NORMALIZERS = {
    "uncased": dict(lowercase=True),
    "cased": dict(lowercase=False),
    "accents": dict(lowercase=True, strip_accents=False),
    "bare": dict(lowercase=False, strip_accents=True, clean_text=False),
    "japanese": dict(lowercase=False, handle_chinese_chars=False),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ADDED = [
    AddedToken("<l>", lstrip=True, normalized=False),
    AddedToken("Two Words", normalized=True),
    AddedToken("<r>", rstrip=True, normalized=True),
    AddedToken("word", single_word=True),
]


@lru_cache(maxsize=None)
def trained(kind: str) -> str:
    """The tokenizer.json of a WordPiece trained here."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(**NORMALIZERS[kind])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=3000, special_tokens=SPECIAL, show_progress=False, limit_alphabet=900
    )
    tokenizer.train_from_iterator(texts.mixed_text(7, 150_000).splitlines(True), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_tokens(ADDED)
    return tokenizer.to_str()


def compare(directory: Path, tokenizer: Tokenizer, n: int) -> None:
    """Ids of mixed text and of random strings."""
    texts.write_model(directory / "model.bin", tokenizer_metadata(str(directory)))
    added = [token.content for token in (*ADDED, AddedToken("[MASK]"), AddedToken("WORD"))]
    text = texts.mixed_text(11, 10 * n, added)
    every = [text[i : i + 9000] for i in range(0, len(text), 9000)]
    every += [*texts.random_strings(12, n, added), "a" * 20, "a" * 21, "a" * 50000, " " * 3000]
    every += ["\u0301\u0323" * 500, "\u0130\u0049\u0307 \u1e9b\u0323", "\U0001d165\u302e\u0327x"]
    ours = texts.tokenize(texts.PROGRAM, directory / "model.bin", [s.encode() for s in every])
    theirs = [encoding.ids for encoding in tokenizer.encode_batch(every)]
    assert len(ours) == len(theirs)
    wrong = [(s, a.ids, b) for s, a, b in zip(every, ours, theirs) if a.ids != b]
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_equal_to_tokenizers(tmp_path, kind):
    (tmp_path / "tokenizer.json").write_text(trained(kind))
    compare(tmp_path, Tokenizer.from_str(trained(kind)), 20000 if kind == "uncased" else 5000)


@pytest.mark.parametrize("kind", ["uncased", "accents"])
def test_every_character(tmp_path, kind):
    """Each of the first two planes between letters."""
    (tmp_path / "tokenizer.json").write_text(trained(kind))
    texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(tmp_path)))
    points = [chr(c) for c in range(1, 0x20000) if not 0xD800 <= c < 0xE000]
    some = [points[i : i + 2000] for i in range(0, len(points), 2000)]
    every = ["".join(f"{c}a{c} " for c in characters) for characters in some]
    ours = texts.tokenize(texts.PROGRAM, tmp_path / "model.bin", [s.encode() for s in every])
    theirs = Tokenizer.from_str(trained(kind)).encode_batch(every)
    assert [a.ids for a in ours] == [b.ids for b in theirs]


@pytest.mark.parametrize("kind", ["uncased", "cased", "japanese"])
def test_a_vocab_txt_is_the_same(tmp_path, kind):
    data = json.loads(trained(kind))
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 5]
    data["model"]["max_input_chars_per_word"] = 100
    vocab = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in vocab))
    settings = NORMALIZERS[kind]
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": settings["lowercase"],
        "tokenize_chinese_chars": settings.get("handle_chinese_chars", True),
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    compare(tmp_path, Tokenizer.from_str(json.dumps(data)), 2000)


def test_tokens_decode_with_spaces_between_words(tmp_path):
    (tmp_path / "tokenizer.json").write_text(trained("uncased"))
    texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(tmp_path)))
    (answer,) = texts.tokenize(texts.PROGRAM, tmp_path / "model.bin", [b"The words of  the people"])
    assert answer.skipped == b"the words of the people"


REFUSED = {
    'model.unk_token is "[UNKNOWN]"': lambda d: d["model"].update(unk_token="[UNKNOWN]"),
    'pre_tokenizer.type is "Whitespace"': lambda d: d["pre_tokenizer"].update(type="Whitespace"),
    "normalizer.lowercase is 3": lambda d: d["normalizer"].update(lowercase=3),
    "normalizer.keep is 1": lambda d: d["normalizer"].update(keep=1),
    "model.greed is 1": lambda d: d["model"].update(greed=1),
    "which this exporter has no rule for unless it is ASCII": lambda d: d["added_tokens"][
        -1
    ].update(content="\u00d8"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(tmp_path, message):
    data = json.loads(trained("uncased"))
    REFUSED[message](data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ExportError) as caught:
        tokenizer_metadata(str(tmp_path))
    assert message in str(caught.value)
