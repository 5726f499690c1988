"""Which class transformers takes for a tokenizer.json, and what it takes from the file beside it."""

from __future__ import annotations

import json

import pytest
import tokenizer_classes
from conftest import ROOT

from exporter.tokenizers.classes import gives_types, tokenizer_class

GOLDEN = json.loads((ROOT / "tests" / "golden" / "tokenizer_classes.json").read_text())


@pytest.mark.parametrize("name", ["rows", "forgetful"])
def test_the_class_and_its_types_are_those_of_transformers(name, tmp_path):
    for i, (model_type, file, config, kind, types, *_) in enumerate(GOLDEN[name]):
        folder = tokenizer_classes.make(tmp_path / str(i), model_type, file, config)
        assert (tokenizer_class(str(folder)), gives_types(str(folder))) == (kind, types), folder
