"""The classes for Ray Data and the like: a row that cannot be done has nulls and an error, and the
rows beside it have what they have alone. Needs no ray."""

from __future__ import annotations

import numpy as np
import pytest
import test_encoders

import heads
import heads.ray

LONG = "a long day " * 300


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    return test_encoders.exported(test_encoders.with_texts(folder / "hf"), folder / "encoder.bin")


class NA:
    """What pandas has for a missing text: nobody may ask whether it equals another."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def column(*values) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


@pytest.mark.parametrize("missing", [None, np.nan, NA()])
@pytest.mark.parametrize("nulls", [False, True])
def test_missing_texts(stories, encoder, missing, nulls):
    kinds = {
        heads.ray.Generate: (stories, ["prompt"], ["text", "tokens", "stopped"]),
        heads.ray.Score: (stories, ["context", "continuation"], ["log_probability", "greedy"]),
        heads.ray.Embed: (encoder, ["text"], ["embedding"]),
    }
    for kind, (model, reads, adds) in kinds.items():
        worker = kind(model, threads=1, nulls=nulls)
        whole = worker({name: ["cab", "dab"] for name in reads})
        assert list(whole["error"]) == [None] * 2
        for lacking in reads:
            batch = {name: column("cab", "dab", "a", "a") for name in reads}
            batch[lacking] = column("cab", missing, "dab", b"a")
            batch = {**batch, "n": [0, 1, 2, 3]}
            found = worker(batch)
            assert found["n"] == [0, 1, 2, 3] and list(found) == [*batch, *adds, "error"]
            for name in adds:
                assert found[name][1] is None and found[name][3] is None
                assert np.array_equal(found[name][0], whole[name][0])
            said = f"{lacking}: expected a text, found "
            errors = list(found["error"])
            assert errors[0] is errors[2] is None and errors[3] == f"{said}b'a'"
            assert errors[1] is None if nulls else errors[1].startswith(said), errors


def test_a_text_that_is_too_long(stories):
    """And what else is wrong with one row; a batch of rows that are right has columns of numbers."""
    worker = heads.ray.Generate(stories, {"max_tokens": 5, "seed": 3}, threads=1)
    with heads.Model(stories, threads=1) as m:
        want = m.generate(["One day", "Once"], 5, seed=3)
    found = worker({"prompt": column("One day", LONG, "", "a\ud800", "Once")})
    assert [found["text"][i] for i in (0, 4)] == want
    assert [found["stopped"][i] for i in (0, 4)] == [t.stopped for t in want]
    assert [e is None for e in found["error"]] == [True, False, True, False, True], found["error"]
    assert "context" in found["error"][1] and "surrogate" in found["error"][3]
    scores = heads.ray.Score(stories, threads=1)
    right = scores({"context": ["One"], "continuation": [" day"]})
    assert (right["log_probability"].dtype, right["greedy"].dtype) == (np.float64, np.bool_)
    both = scores({"context": ["One", LONG], "continuation": [" day", " day"]})
    assert both["log_probability"][0] == right["log_probability"][0]
    assert both["greedy"][1] is both["log_probability"][1] is None and "context" in both["error"][1]


def test_a_vector_that_cannot_be_made(encoder):
    worker = heads.ray.Embed(encoder, threads=1)
    found = worker({"text": ["cab", "a\ud800"]})
    with heads.Model(encoder, threads=1) as m:
        assert np.array_equal(found["embedding"][0], m.embed("cab"))
    assert found["embedding"][1] is None and "surrogate" in found["error"][1]


def test_wrong_options_are_no_rows_fault(stories, encoder):
    batch = {"prompt": ["One day"]}
    for options in ({"temperature": -1}, {"max_tokens": 0}, {"temp": 1}):
        with pytest.raises((heads.InputError, TypeError)):
            heads.ray.Generate(stories, options, threads=1)(batch)
    with pytest.raises(heads.InputError):
        heads.ray.Embed(stories, threads=1)
    with pytest.raises(heads.InputError):
        heads.ray.Generate(encoder, threads=1)(batch)


def test_the_modules_failed(stories):
    with heads.Model(stories, threads=1) as m:
        failed = {}
        texts = m.generate(["One day", LONG], 5, failed=failed)
        assert texts == [m.generate("One day", 5), ""] and list(failed) == [1]
        assert texts[1].stopped == "error" and isinstance(failed[1], heads.ContextError)
        [right, wrong] = m.score(["One", LONG], [" day", " day"], failed=failed)
        assert [right] == m.score(["One"], [" day"]) and np.isnan(wrong[0]) and not wrong[1]
        with pytest.raises(heads.InputError, match="failed: a stream"):
            m.generate("One day", stream=True, failed={})
