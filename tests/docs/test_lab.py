"""The laboratory without torch: its statistics, its floors, its shapes, and docs/variants.md, which
must be what research/lab/results says."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as xml

import pytest

from conftest import ROOT, takes_long

from research.lab import report, results, texts, variants
from research.lab.intervals import Interval, verdict
from research.lab.variants import MHA, VARIANTS


@pytest.fixture(scope="module")
def found():
    return results.Results(ROOT / "research" / "lab" / "results")


@pytest.fixture(scope="module")
def tokenizer():
    return texts.make_tokenizer()


# ---- statistics ----


def test_interval():
    """t for 2 degrees of freedom is 4.303, and the standard deviation of 1, 2, 3 is 1."""
    interval = Interval([1, 2, 3])
    assert interval.mean == 2 and interval.half == pytest.approx(4.303 / math.sqrt(3))
    assert Interval([5, 7]).half == pytest.approx(12.706)  # sqrt(2) / sqrt(2) = 1
    for values in ([1], list(range(11))):
        with pytest.raises(ValueError, match="2 to 10 runs"):
            Interval(values)


def test_no_verdict_where_intervals_overlap():
    low, high, wide = Interval([1, 1.1]), Interval([9, 9.1]), Interval([0, 9])
    assert verdict(low, high) == "lower" and verdict(high, low) == "higher"
    assert verdict(low, wide) == verdict(wide, high) == "overlap"


def test_table_goes_on_where_it_was(tmp_path):
    path = tmp_path / "new" / "runs.csv"
    table = results.Table(path, ["name", "seed", "loss"], key=2)
    table.add(dict(name="MHA", seed=1, loss=0.5))
    again = results.Table(path, ["name", "seed", "loss"], key=2)
    assert again.has("MHA", 1) and not again.has("MHA", 2) and not again.has("MQA", 1)
    again.add(dict(name="MQA", seed=1, loss=0.25))
    assert path.read_text() == "name,seed,loss\nMHA,1,0.5\nMQA,1,0.25\n"
    assert results.numbers(results.read(path), "loss", seed=1) == [0.5, 0.25]
    assert [file.name for file in path.parent.iterdir()] == ["runs.csv"]


# ---- documents ----


@takes_long
def test_nats_of_stories_are_those_of_a_distribution():
    """Beginnings of one length exclude each other, so their probabilities add up to 1."""
    rng = random.Random(1)
    for length in (4, 9):
        starts = {texts.stories.story(rng)[:length] for _ in range(3000)}
        total = sum(math.exp(-texts.story_nats(start)) for start in starts)
        assert total == pytest.approx(1)


@takes_long
def test_nats_of_echoes():
    """Each of the words is chosen once, and said again for nothing."""
    words = texts.TOKEN.findall(texts.echo(random.Random(1)))
    assert len(words) == texts.TIMES * texts.WORDS == texts.LENGTH - 1
    assert words == words[: texts.WORDS] * texts.TIMES
    choices = len(texts.echoed()) ** texts.WORDS
    assert texts.echo_nats() == pytest.approx(math.log(choices))


def test_documents(tokenizer):
    """Each has its length, begins with the one special token, and is read alike alone and among
    others, as --ppl reads them."""
    for kind in texts.KINDS:
        rows, text, floor = texts.held_out(tokenizer, kind, 5)
        assert rows.shape == (5, texts.LENGTH) and 0.2 < floor < 2.1
        assert tokenizer.encode(text).ids == rows.reshape(-1).tolist()
        assert ((rows == 0).sum(1) == 1).all() and (rows[:, 0] == 0).all()


# ---- shapes ----


def test_equal_parameters(found, tokenizer):
    """The closed form is what torch counted, and all are within 1 % of MHA."""
    vocab_size = tokenizer.get_vocab_size()
    assert len(found.variants) == len(VARIANTS)
    for variant in found.variants:
        counted = found.one(variant, "parameters")
        assert counted == variant.parameters(vocab_size)
        assert abs(counted / MHA.parameters(vocab_size) - 1) < 0.01


def test_cache(found):
    """An f16 takes two bytes, and nothing is padded there; the rank under an eighth is the largest
    one."""
    for variant in found.variants:
        assert found.one(variant, "bytes_f16") == 2 * variants.LAYERS * variant.cached
    rank = variants.largest_rank(1 / 8)
    assert rank in variants.RANKS
    assert 8 * (rank + variants.ROPE_DIM) < MHA.cached <= 8 * (rank + 1 + variants.ROPE_DIM)


# ---- the page ----


def test_page_is_what_the_results_say(found):
    """If this fails: python -m research.lab.report"""
    page = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")
    assert report.with_tables(page, found) == page
    with pytest.raises(ValueError, match="no place for speed"):
        report.with_tables(page.replace("<!-- lab: speed -->", ""), found)


@pytest.mark.parametrize("name", ["cache", "copy", "pooling", "speed"])
def test_picture_is_what_the_results_say(found, name):
    """If this fails: python -m research.lab.report"""
    path = ROOT / "docs" / "variants" / f"{name}.svg"
    text = path.read_text(encoding="utf-8")
    xml.parse(path)
    assert results.source(found) in text
    assert "prefers-color-scheme: dark" in text and f"](variants/{name}.svg)" in (
        ROOT / "docs" / "variants.md"
    ).read_text(encoding="utf-8")
