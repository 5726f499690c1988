"""Tokenizers without a tokenizer.json: vocab.json + merges.txt, tiktoken and tekken files, a bare
tokenizer.model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT
import special_tokens
import test_tokenizer
import tokenizer_forms as forms
import tokenizer_texts as texts
from exporter.tensor import ExportError
from exporter.tokenizers import tokenizer_json
from exporter.tokenizers.metadata import check_rows
from exporter.tokenizers.normalizers import SPACE_MARK
from exporter.tokenizers.files import find_tokenizer, tokenizer_metadata
from test_tokenizer import CONTENTS
from tokenizers import Tokenizer

import export

PLAIN = {"normalized": False, "lstrip": False, "rstrip": False, "single_word": False}


def equal(source: Path, data: dict, scratch: Path, contents: list[str] = CONTENTS) -> None:
    """The engine's answers with the tokenizer of `source` are those of the tokenizer.json
    `data`."""
    texts.write_model(scratch / "model.bin", tokenizer_metadata(str(source)))
    every = [
        texts.mixed_text(41, 60_000, contents),
        *texts.random_strings(42, 3000, contents, most=8),
        " " * 50 + "a",
        "",
    ]
    ours = texts.tokenize(texts.PROGRAM, scratch / "model.bin", [s.encode() for s in every])
    wrong = texts.differences(
        every, ours, texts.expected(Tokenizer.from_str(json.dumps(data)), every)
    )
    assert not wrong, "\n".join(wrong[:5])


# ---- vocab.json + merges.txt ---------------------------------------------------------------------


MERGED = [
    ("gpt2", "gpt2"),
    ("gpt2", "phi"),
    ("qwen2", "qwen3"),
    ("starcoder2", "starcoder2"),
    ("prefix space", "gpt2"),
]


@pytest.mark.parametrize("kind, model_type", MERGED)
def test_vocab_and_merges(kind, model_type, tmp_path):
    data = test_tokenizer.KINDS[kind]()
    forms.vocab_and_merges(data, tmp_path)
    forms.config_files(data, tmp_path, model_type, add_prefix_space=kind == "prefix space")
    equal(tmp_path, data, tmp_path)


def test_added_tokens_in_the_older_files(tmp_path):
    """added_tokens.json and special_tokens_map.json; the class names the kind where the model's
    type does not."""
    data = test_tokenizer.KINDS["qwen2"]()
    special = ["<|end|>", "<|im_start|>"]
    data["added_tokens"] = [
        t for t in data["added_tokens"] if t["content"] in ("<think>", "two words", *special)
    ]
    for token in data["added_tokens"]:
        token.update(normalized=not token["special"])
    data["model"]["vocab"]["<s>"] = data["model"]["vocab"].pop("<s>")
    data["added_tokens"].append({"id": 1, "content": "<s>", "special": True, "normalized": False})
    test_tokenizer.renumber_added(data)
    data["post_processor"] = json.loads(test_tokenizer.template("<s>").__getstate__())
    forms.vocab_and_merges(data, tmp_path)
    ids = {
        token["content"]: token["id"] for token in data["added_tokens"] if token["content"] != "<s>"
    }
    (tmp_path / "added_tokens.json").write_text(json.dumps(ids))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<s>"},
                "additional_special_tokens": special,
                "eos_token": "<|end|>",
            }
        )
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": True, "eos_token": "<|end|>"}
        )
    )
    for token in data["added_tokens"]:
        for flag in ("lstrip", "rstrip", "single_word"):
            token.setdefault(flag, False)
    equal(tmp_path, data, tmp_path)
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [ids["<|end|>"]]


def test_special_tokens_by_id(tmp_path):
    """The oldest checkpoints name them only by their ids in config.json."""
    data = test_tokenizer.KINDS["gpt2"]()
    data["added_tokens"] = [{"content": "</s>", "id": 2, "special": True, **PLAIN}]
    forms.vocab_and_merges(data, tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "bos_token_id": 2, "eos_token_id": 2})
    )
    equal(tmp_path, data, tmp_path, ["</s>"])


# ---- ranks ---------------------------------------------------------------------------------------


def ranked(kind: str, first: int = 0) -> dict:
    """A tokenizer.json as tiktoken sees the vocabulary of a trained one: ids are ranks, every cut
    of a token is a merge, and pieces are looked up. Special tokens have the ids after the others
    or, with `first`, the first ones."""
    data = test_tokenizer.KINDS[kind]()
    vocab = data["model"]["vocab"]
    special = [
        {"content": t, "special": True, **PLAIN}
        for t in ("<unk>", "<s>", "</s>", "<|end|>", "<|im_start|>")
    ]
    names = [t["content"] for t in special]
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1]) if t not in names]
    tokens.append("\u0120xqzy")  # which no merge makes
    at = len(special) if first else 0
    ids = {token: at + i for i, token in enumerate(tokens)}
    for i, token in enumerate(special):
        token["id"] = i if first else len(tokens) + i
    data["model"]["merges"] = [
        [t[:i], t[i:]] for t in tokens for i in range(1, len(t)) if t[:i] in ids and t[i:] in ids
    ]
    data["model"]["ignore_merges"] = True
    data["model"]["vocab"] = ids | ({t["content"]: t["id"] for t in special} if first else {})
    data["added_tokens"] = special
    data["post_processor"] = json.loads(test_tokenizer.template("<s>").__getstate__())
    data["post_processor"]["special_tokens"]["<s>"]["ids"] = [
        next(t["id"] for t in special if t["content"] == "<s>")
    ]
    return data


# What NFC takes apart, puts together, and does both to.
COMPOSED = ["\u0344", "a\u0344", "e\u0301", "\u0344\u0323", "\u212b"]


def test_tiktoken_model(tmp_path):
    """Llama 3's tokenizer.model, which knows no normal form."""
    data = ranked("llama3")
    forms.tiktoken(data, tmp_path / "tokenizer.model")
    forms.config_files(data, tmp_path, "llama", bos_token="<s>", eos_token="</s>")
    equal(tmp_path, data, tmp_path, ["<s>", "<|end|>", "</s>", " xqzy", *COMPOSED])
    eos = next(t["id"] for t in data["added_tokens"] if t["content"] == "</s>")
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [eos]


@pytest.mark.parametrize("model_type", [None, "qwen", "llama"])
def test_qwen_tiktoken(tmp_path, model_type):
    """Qwen 1: the special tokens are those of its class, and nothing comes before a text, which is
    brought to NFC. All this whatever the type of the model."""
    data = ranked("llama3")
    data |= {"post_processor": None, "normalizer": {"type": "NFC"}}
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": test_tokenizer.pattern(6)}
    forms.tiktoken(data, tmp_path / "qwen.tiktoken")
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    n = len(data["model"]["vocab"])
    data["added_tokens"] = [
        {**data["added_tokens"][0], "content": name, "id": n + i} for i, name in enumerate(names)
    ]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "QWenTokenizer"})
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    extra = ["<|im_end|>", "<|extra_7|>", "<|extra_77|>", "<|extra_204|>"]
    equal(tmp_path, data, tmp_path, [*extra, *COMPOSED])


@pytest.mark.parametrize("named", [True, False])
def test_tekken(tmp_path, named):
    """With its special tokens in the file, or, as the first such files were, beside it."""
    data = ranked("tekken", first=5)
    forms.tekken(data, tmp_path / "tekken.json", test_tokenizer.pattern(9), named)
    if not named:
        with pytest.raises(ExportError, match="names a special token"):
            tokenizer_metadata(str(tmp_path))
        forms.config_files(data, tmp_path, "mistral")
    equal(tmp_path, data, tmp_path, ["<s>", "<|end|>", "</s>", " xqzy"])
    assert tokenizer_metadata(str(tmp_path))["tokenizer.eos"].tolist() == [2]


def test_flags_of_named_tokens_in_the_older_files(tmp_path):
    data = test_tokenizer.KINDS["gpt2"]()
    data["added_tokens"] = [
        {"content": "<s>", "id": 1, "special": True, **PLAIN},
        {"content": "</s>", "id": 2, "special": True, **PLAIN, "lstrip": True, "rstrip": True},
    ]
    forms.vocab_and_merges(data, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    end = {"content": "</s>", "lstrip": True, "rstrip": True, "normalized": False}
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": end, "extra_special_tokens": ["<s>"]})
    )
    equal(tmp_path, data, tmp_path, ["<s>", "</s>", " </s> "])


# ---- added tokens in several files ---------------------------------------------------------------


@pytest.mark.parametrize("case", special_tokens.CASES)
def test_added_tokens_beside_a_tokenizer_json(case, tmp_path):
    """Ids, decoded text and EOS as AutoTokenizer has them: golden/special_tokens.json."""
    recorded = json.loads((ROOT / "tests" / "golden" / "special_tokens.json").read_text())
    theirs = recorded["cases"][case]
    special_tokens.write(case, tmp_path)
    metadata = tokenizer_metadata(str(tmp_path))
    texts.write_model(tmp_path / "model.bin", metadata)
    ours = texts.tokenize(
        texts.PROGRAM, tmp_path / "model.bin", [s.encode() for s in special_tokens.TEXTS]
    )
    for text, answer, ids, shown in zip(special_tokens.TEXTS, ours, theirs["ids"], theirs["texts"]):
        assert (answer.ids, answer.skipped.decode()) == (ids, shown), text
    eos = [] if theirs["eos"] is None else [theirs["eos"]]
    assert list(metadata.get("tokenizer.eos", [])) == eos


def test_special_tokens_that_a_text_cannot_spell_are_refused(tmp_path):
    special_tokens.write("names", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"split_special_tokens": true}')
    refused(tmp_path, "tokenizer_config.json: split_special_tokens is true")


# ---- Gemma's tokenizer.model ---------------------------------------------------------------------


def test_user_defined_spaces(tmp_path):
    """Runs of U+2581 that are user-defined pieces: the longest first, before any merge, and in the
    raw text too."""
    runs = [SPACE_MARK * n for n in (2, 3, 5)]
    few = ["\u2581", "a", "b", "\u2581a", "ab"]
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), *((t, -float(i), 1) for i, t in enumerate(few))]
    pieces += [(t, 0.0, 4) for t in runs]
    path = tmp_path / "tokenizer.model"
    normalizer = forms.protobuf(3, 0) + forms.protobuf(4, 0)
    path.write_bytes(
        forms.sentencepiece(pieces, normalizer=normalizer, trainer=forms.protobuf(41, 1))
    )
    texts.write_model(tmp_path / "model.bin", tokenizer_metadata(str(path)))
    cases = {
        " a": ["\u2581a"],
        "  a": [runs[0], "a"],
        "    a": [runs[1], "\u2581a"],
        " " * 9 + "ab": [runs[2], runs[1], "\u2581a", "b"],
        "a\u2581\u2581 b": ["a", runs[0], "\u2581", "b"],
        "a  \u2581": ["a", runs[1]],
    }
    ids = {token: id for id, (token, *_) in enumerate(pieces)}
    answers = texts.tokenize(
        texts.PROGRAM, tmp_path / "model.bin", [text.encode() for text in cases]
    )
    for (text, tokens), answer in zip(cases.items(), answers):
        assert answer.ids == [1, *(ids[token] for token in tokens)], text
    path.write_bytes(forms.sentencepiece(pieces))  # a dummy prefix
    with pytest.raises(ExportError, match="is user-defined and holds a space"):
        tokenizer_metadata(str(path))


def test_unused_pieces(tmp_path):
    pieces = [("<unk>", 0.0, 2), ("a", -1.0, 1), ("b", -2.0, 1), ("[PAD3]", 0.0, 5)]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(forms.sentencepiece(pieces))
    assert len(tokenizer_metadata(str(path))["tokenizer.token.begin"]) == 4
    path.write_bytes(forms.sentencepiece([*pieces, ("ab", -3.0, 5)]))
    with pytest.raises(ExportError, match="piece 4, 'ab', has type UNUSED, but merging makes it"):
        tokenizer_metadata(str(path))


# ---- which file, which rows, what is refused -----------------------------------------------------


def test_which_file(tmp_path):
    assert find_tokenizer(str(tmp_path)) is None
    for name in (
        "merges.txt",
        "vocab.json",
        "qwen.tiktoken",
        "tekken.json",
        "tokenizer.model",
        "tokenizer.json",
    ):
        (tmp_path / name).write_text("{}")
        assert find_tokenizer(str(tmp_path)) == (
            None if name == "merges.txt" else str(tmp_path / name)
        )


def test_rows_of_the_embedding(tmp_path):
    """Every id that text becomes needs a row; added tokens without one are only remarked on."""
    data = test_tokenizer.KINDS["gpt2"]()
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    metadata = tokenizer_metadata(str(tmp_path / "tokenizer.json"))
    n = len(data["model"]["vocab"])
    most = max(data["model"]["vocab"].values())
    added = sum(token["id"] >= n for token in data["added_tokens"])
    assert check_rows(metadata, n + added) == []
    assert check_rows(metadata, n + added - 1) == [
        f"token {n + added - 1} has no row in the embedding, which has {n + added - 1}: a prompt "
        "that spells such a token "
        "out cannot be run"
    ]
    assert f"{added} tokens, {n} the first of them, have no row" in check_rows(metadata, n)[0]
    with pytest.raises(
        ExportError, match=f"makes token {most} of text, but the embedding has {most} rows"
    ):
        check_rows(metadata, most)


def test_another_models_tokenizer_is_refused(tmp_path, capsys):
    directory = tmp_path / "hf"
    shutil.copytree(ROOT / "tests" / "golden" / "llama", directory)
    (directory / "tokenizer.json").write_text(json.dumps(test_tokenizer.KINDS["gpt2"]()))
    assert export.main([str(directory), str(tmp_path / "x.bin")]) == 1
    assert (
        "of text, but the embedding has 131 rows; it is another model's tokenizer"
        in capsys.readouterr().err
    )


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        tokenizer_metadata(str(tmp_path))


def test_refused(tmp_path):
    """What the files do not tell is refused, and what they tell wrongly."""
    data = ranked("llama3")
    forms.vocab_and_merges(test_tokenizer.KINDS["gpt2"](), tmp_path)
    refused(tmp_path, "cannot be known of tokenizer_class None .* and model_type None")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    refused(tmp_path, "tokenizer_class 'GPT2Tokenizer' .* and model_type 'llama'")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    refused(tmp_path, "names a special token")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    refused(tmp_path, "the special token '<|endoftext|>' has no id".replace("|", r"\|"))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    tokenizer_metadata(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    refused(tmp_path, "bos_token, but that is None")
    (tmp_path / "merges.txt").unlink()
    refused(tmp_path, "No such file")
    forms.tiktoken(data, tmp_path / "tokenizer.model")
    refused(tmp_path, "tokenizer_class None .* and model_type 'gpt2'")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    lines = (tmp_path / "tokenizer.model").read_bytes().splitlines(keepends=True)
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines[:50] + lines[51:]))
    refused(tmp_path, "do not have the ids 0 to")
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines[:50] + [b"?? 50\n"]))
    refused(tmp_path, "line 51 is no token in base64")
    (tmp_path / "tokenizer.model").unlink()
    forms.tekken(data, tmp_path / "tekken.json", "x+")
    refused(tmp_path, "config.pattern is 'x\\+'")
    (tmp_path / "tekken.json").write_text('{"vocab": [1]}')
    refused(tmp_path, "does not look like a tokenizer")


def test_pairs_whose_types_cannot_be_told():
    """Llama's second BOS has the second text's type; BERT's separator has the first's."""
    special = {name: {"ids": [id]} for id, name in enumerate(["<s>", "[SEP]"])}

    def pair(*pieces: tuple[str, int], around: list[list[int]]) -> tuple[list[int], int | None]:
        kinds = {"A": "Sequence", "B": "Sequence"}
        made = [{kinds.get(id, "SpecialToken"): {"id": id, "type_id": t}} for id, t in pieces]
        part = {"type": "TemplateProcessing", "pair": made, "special_tokens": special}
        return tokenizer_json._pair(part, *around)

    llama = (("<s>", 0), ("A", 0), ("<s>", 1), ("B", 1))
    assert pair(*llama, around=[[0], []]) == ([], None)
    bert = (("<s>", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1))
    assert pair(*bert, around=[[0], [1]]) == ([1], 1)
