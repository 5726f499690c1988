"""Bent GGUF files: a sentence, or an export; nothing else is raised. tests/campaigns/ggufs.py tries
many."""

from __future__ import annotations

import random

import gguf_files
import gguf_mutants
import pytest
from conftest import ROOT

from exporter.convert import open_model
from exporter.tensor import ExportError


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "x.gguf"
    gguf_files.convert(ROOT / "tests" / "golden" / "llama", path)
    return path.read_bytes()


def test_every_field_has_its_place(small):
    """The walk ends where the tensors begin, and each kind of field is there."""
    fields = gguf_mutants.places(small)
    kinds = {"magic", "version", "count", "key", "length", "type", "value", "text"}
    assert {field.kind for field in fields} == kinds | {
        "name",
        "dim",
        "tensor type",
        "offset",
        "data",
    }
    assert sum(field.size for field in fields) == len(small)
    assert fields[0].size == 4 and small[:4] == b"GGUF"


def test_bent_files_give_sentences(small, tmp_path):
    fields, rng = gguf_mutants.places(small), random.Random()
    seed = rng.randrange(10**6)
    print(f"seed {seed}")
    rng.seed(seed)
    said = [
        gguf_mutants.sentence(tmp_path, gguf_mutants.mutant(small, fields, rng)) for _ in range(25)
    ]
    assert any(said)


def test_a_vector_in_blocks_is_refused(small, tmp_path):
    """A row of it would be no whole block."""
    path, data, fields = tmp_path / "x.gguf", bytearray(small), gguf_mutants.places(small)
    name = next(
        i
        for i, f in enumerate(fields)
        if f.kind == "name" and data[f.at : f.at + f.size] == b"output_norm.weight"
    )
    kind = next(f for f in fields[name:] if f.kind == "tensor type")
    data[kind.at : kind.at + 4] = int(gguf_files.Q.Q8_0).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ExportError, match="tensor output_norm.weight .* is not made of rows"):
        open_model(str(path), None, None, False)
