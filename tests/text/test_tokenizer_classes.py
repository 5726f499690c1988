"""Which class transformers takes for a tokenizer.json, and what it takes from the file beside it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizer_classes
import tokenizer_forms as forms
from conftest import ROOT

from exporter.tensor import ExportError
from exporter.tokenizers.classes import gives_types, tokenizer_class
from exporter.tokenizers.files import tokenizer_metadata
from exporter.tokenizers.normalizers import SPACE_MARK

GOLDEN = json.loads((ROOT / "tests" / "golden" / "tokenizer_classes.json").read_text())


def as_they_are(folder: Path, file: str, parts: dict) -> dict:
    """The metadata of a tokenizer.json with these parts, which no class changes."""
    tokenizer_classes.make(folder, "llama", file, {"tokenizer_class": "PreTrainedTokenizerFast"})
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return tokenizer_metadata(str(folder))


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("row", GOLDEN["rows"], ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_settings_are_those_of_transformers(row, tmp_path):
    model_type, file, config, kind, types, parts = row
    folder = tokenizer_classes.make(tmp_path / "x", model_type, file, config)
    assert tokenizer_class(str(folder)) == kind
    assert gives_types(str(folder)) == types
    found = tokenizer_metadata(str(folder))
    assert same(found, as_they_are(tmp_path / "y", file, parts))


@pytest.mark.parametrize("row", GOLDEN["forgetful"], ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_what_a_class_forgets_is_as_the_file_says(row, tmp_path):
    model_type, file, config, kind, types, parts, right = row
    folder = tokenizer_classes.make(tmp_path / "x", model_type, file, config)
    assert tokenizer_class(str(folder)) == kind
    assert gives_types(str(folder)) == types
    found = tokenizer_metadata(str(folder))
    assert same(found, as_they_are(tmp_path / "y", right, {}))
    with contextlib.suppress(ExportError):  # the class may make what no file has
        assert not same(found, as_they_are(tmp_path / "z", file, parts))


def test_a_tokenizer_model_has_the_setting_too(tmp_path):
    """Of Llama's class; others have what the model says."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(SPACE_MARK, -1.0, 1), ("a", -2.0, 1)]
    data = forms.sentencepiece(pieces, normalizer=forms.protobuf(4, 0))  # with a space in front
    (tmp_path / "tokenizer.model").write_bytes(data)
    for model_type, space, steps in (
        ("llama", None, [2, 3]),
        ("llama", True, [2, 3]),
        ("llama", False, [3]),
        ("mistral", False, [2, 3]),
    ):
        config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": space}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        found = tokenizer_metadata(str(tmp_path))
        assert found["tokenizer.normalizer"].tolist() == steps
        assert ("tokenizer.strip" in found) == (2 in steps)
