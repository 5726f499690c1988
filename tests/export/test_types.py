"""Every type of transformers' three lists of language models is a row or refused by name, and
docs/families.md says so."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT

from exporter.families.__main__ import tables
from exporter.families.multimodal import MULTIMODAL
from exporter.families.refused import REFUSED
from exporter.families.registry import ENCODER_DECODERS, ENCODERS, FAMILIES, canonical
from exporter.tensor import ExportError

# The keys of MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and its like, of the version that is named there.
TYPES = json.loads((ROOT / "tests" / "export" / "types.json").read_text())
LISTS = {name: TYPES[name].split() for name in ("causal", "masked", "seq2seq")}
LEAST = {"causal": 130, "masked": 26, "seq2seq": 13}


@pytest.mark.parametrize("name", LISTS)
def test_every_type_is_a_row_or_refused_with_a_reason(name):
    rows = {**FAMILIES, **MULTIMODAL}
    assert [kind for kind in LISTS[name] if (kind in rows) == (kind in REFUSED)] == []
    found = sum(kind in FAMILIES for kind in LISTS[name])
    apart = sum(kind in MULTIMODAL for kind in LISTS[name])
    print(f"{found} of {len(LISTS[name])}, and the text models of {apart} more")
    assert found >= LEAST[name]


SMALL = dict(
    vocab_size=61, max_position_embeddings=130, is_decoder=True, architectures=["ForCausalLM"]
)
BERTS = dict(hidden_size=36, num_hidden_layers=2, num_attention_heads=6, intermediate_size=50)
BARTS = dict(d_model=36, decoder_layers=2, decoder_attention_heads=6, is_encoder_decoder=False)
XLMS = dict(emb_dim=36, n_layers=2, n_heads=6, n_words=61, causal=True, is_decoder=None)


@pytest.mark.parametrize("kind", sorted({*ENCODERS, *ENCODER_DECODERS} & set(LISTS["causal"])))
def test_a_causal_type_makes_a_decoder(kind):
    """Of a family of encoders, or as one half of an encoder-decoder."""
    sizes = XLMS if kind == "xlm" else BARTS if kind in ENCODER_DECODERS else BERTS
    _, knobs, found, _ = canonical({**SMALL, **sizes, "model_type": kind}, None)
    assert knobs.mask == 0 and not knobs.source_layers and (knobs.tied or "output" in found)


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
