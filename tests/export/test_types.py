"""Every type of transformers' three lists of language models is a row or refused by name, and
docs/families.md says so."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT

from exporter.families.__main__ import tables
from exporter.families.multimodal import MULTIMODAL
from exporter.families.refused import REFUSED
from exporter.families.registry import FAMILIES, canonical
from exporter.tensor import ExportError

# The keys of MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and its like, of the version that is named there.
TYPES = json.loads((ROOT / "tests" / "export" / "types.json").read_text())
LISTS = {name: TYPES[name].split() for name in ("causal", "masked", "seq2seq")}
LEAST = {"causal": 130, "masked": 24, "seq2seq": 16}


@pytest.mark.parametrize("name", LISTS)
def test_every_type_is_a_row_or_refused_with_a_reason(name):
    rows = {**FAMILIES, **MULTIMODAL}
    assert [kind for kind in LISTS[name] if (kind in rows) == (kind in REFUSED)] == []
    found = sum(kind in rows for kind in LISTS[name])
    print(f"{found} of {len(LISTS[name])}")
    assert found >= LEAST[name]


def test_what_is_refused_is_of_those_lists():
    """So that a type that gets a row does not stay here; some are only parts of others."""
    parts = {"gemma3n_text", "dots3_note_text", "qwen4_exp_text"}
    assert set(REFUSED) - parts <= {kind for kinds in LISTS.values() for kind in kinds}


@pytest.mark.parametrize("kind", ["zamba", "deberta", "led"])
def test_a_refusal_says_why(kind):
    with pytest.raises(ExportError) as error:
        canonical({"model_type": kind}, {})
    assert str(error.value).endswith(
        f"model_type is {kind!r}, which is not supported: " + REFUSED[kind]
    )


def test_the_page_of_families_has_the_rows():
    page = (ROOT / "docs" / "families.md").read_text()
    begin, end = (
        f"<!-- python -m exporter.families --table: {of} -->\n" for of in ("begin", "end")
    )
    assert page.partition(begin)[2].partition(end)[0] == f"\n{tables()}\n", (
        "docs/families.md is out of date: python -m exporter.families --table makes its tables"
    )
    assert "|  |" not in tables()  # each function says what it is for
