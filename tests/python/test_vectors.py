"""Vectors that the module makes: shortened, of parts and of tokens, in fewer bits; weights of words;
texts that are too long. Numbers are compared with hidden states and logits of ./run."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import checkpoints
import documents
import numpy as np
import pytest
import test_classes
import test_encoders
from conftest import ROOT
from test_encoders import TEXTS, rows_of, spell

import heads

LONG = "the long words of a text that is cut"
PYTHONPATH = {**os.environ, "PYTHONPATH": str(Path(heads.__file__).parent.parent)}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    return test_encoders.exported(test_encoders.with_texts(folder / "source"), folder / "model.bin")


@pytest.fixture
def model(encoder):
    with heads.Model(encoder, threads=1) as m:
        yield m


def hidden(run, encoder, ids: list[int]) -> np.ndarray:
    return np.frombuffer(rows_of(run, encoder, "hidden", [ids]), "<f4").reshape(len(ids), -1)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_shortened_vectors_are_runs(run, encoder, model, tmp_path):
    (tmp_path / "texts").write_text("".join(text + "\n" for text in TEXTS))
    want = test_encoders.vectors(run, encoder, "-f", tmp_path / "texts", "--dimensions", 8)
    found = model.embed(TEXTS, 8)
    assert found.dtype == np.float32 and found.tobytes() == want.tobytes()
    assert np.array_equal(model.embed(TEXTS[0], dimensions=8), want[0])
    for bad in (0, 37, 1.5):
        with pytest.raises(heads.InputError, match="dimensions"):
            model.embed("a", bad)


def test_fewer_bits(model):
    """Bits as sentence_transformers.quantize_embeddings has them; int8 within its rounding."""
    whole = model.embed(TEXTS)
    bits = np.array([[x > 0 for x in row] + [False] * 4 for row in whole])
    packed = np.array([[int("".join("01"[int(b)] for b in row[i : i + 8]), 2) for i in range(0, 40, 8)]
                       for row in bits])  # fmt: skip
    found = model.embed(TEXTS, quantize="ubinary")
    assert found.dtype == np.uint8 and np.array_equal(found, packed)
    signed = model.embed(TEXTS, quantize="binary")
    assert signed.dtype == np.int8 and np.array_equal(signed, packed - 128)
    int8 = model.embed(TEXTS, quantize="int8")
    assert int8.dtype == np.int8 and (np.abs(int8.astype(int)).max(1) == 127).all()
    assert (unit(int8.astype(np.float64)) * whole).sum(1).min() > 0.9999
    assert np.array_equal(model.embed(TEXTS[1], quantize="int8"), int8[1])
    with pytest.raises(heads.InputError, match="quantize: expected int8, binary or ubinary"):
        model.embed("a", quantize="int4")


def test_vectors_of_tokens_and_of_parts(run, encoder, model):
    """Means over the spans of one pass (late chunking), of any number of parts."""
    ids = spell("hello zz world")
    rows = hidden(run, encoder, ids)
    found = model.token_vectors("hello zz world")
    assert found.shape == rows.shape and np.abs(found - unit(rows)).max() < 1e-6
    few = model.token_vectors(["hello zz world", "a"])
    assert np.array_equal(few[0], found) and few[1].shape == (3, 36)
    parts = model.embed(["hello", " zz", " world"], late_chunking=True)
    want = unit(np.array([rows[a:b].mean(0) for a, b in ((1, 6), (6, 8), (8, 13))]))
    assert np.abs(parts - want).max() < 1e-6 and parts.shape == (3, 36)
    letters = list("abcdefghi")
    many = model.embed(letters, late_chunking=True, dimensions=4, quantize="int8")
    assert many.shape == (9, 4)
    with heads.Model(encoder, chunk=2, threads=2) as other:
        assert np.array_equal(other.embed(letters, late_chunking=True),
                              model.embed(letters, late_chunking=True))  # fmt: skip
    assert model.embed([], late_chunking=True).shape == (0, 36)
    for texts, says in ((["a", ""], "part 1 is empty"), (["abc"] * 7, "23 tokens together")):
        with pytest.raises(heads.InputError, match=says):
            model.embed(texts, late_chunking=True)
    with pytest.raises(heads.InputError, match="late_chunking: expected a list"):
        model.embed("a", late_chunking=True)


def test_a_model_of_token_vectors(tmp_path):
    config = {**test_encoders.DENSE, **test_encoders.OF_TOKENS}
    test_encoders.with_dense(tmp_path / "source", True, config, pooled=False)
    path = test_encoders.exported(tmp_path / "source", tmp_path / "model.bin")
    with heads.Model(path, threads=1) as m:
        found = m.embed(TEXTS)
        assert [x.shape for x in found] == [(min(20, len(spell(text))), 50) for text in TEXTS]
        assert all(np.array_equal(a, b) for a, b in zip(found, m.token_vectors(TEXTS)))
        assert np.array_equal(m.embed(TEXTS[0]), found[0])
        assert [x.shape[1] for x in m.embed(TEXTS, 5, quantize="ubinary")] == [1] * len(TEXTS)
        with pytest.raises(heads.InputError, match="only a text with one vector"):
            m.embed(["a", "b"], late_chunking=True)


def test_weights_of_words(run, encoder, model, stories):
    logits = np.frombuffer(rows_of(run, encoder, "logits", [spell("hello zz")]), "<f4")
    most = np.log1p(np.maximum(logits.reshape(len(spell("hello zz")), -1).max(0), 0))
    found = model.sparse("hello zz")
    assert found == {i: w for i, w in enumerate(most.tolist()) if w} and 0 < len(found) < len(most)
    assert list(found.values()) == sorted(found.values())[::-1]
    assert model.sparse(["hello zz", "a"])[0] == found and model.sparse([]) == []
    with heads.Model(stories) as m:
        with pytest.raises(heads.InputError, match="no encoder"):
            m.sparse("a")


def test_a_splade_checkpoint(model, tmp_path):
    """As sentence-transformers' SparseEncoder saves it: there are no vectors, and texts are cut."""
    kinds = {"": "Transformer", "1_SpladePooling": "SpladePooling"}
    test_encoders.with_texts(
        tmp_path / "source",
        modules=[{"path": path, "type": f"a.b.{kind}"} for path, kind in kinds.items()],
        sentence_bert_config={"max_seq_length": 20, "transformer_task": "fill-mask"},
        **{
            "1_Pooling__config": None,
            "1_SpladePooling__config": {"pooling_strategy": "max", "activation_function": "relu"},
        },
    )
    with heads.Model(test_encoders.exported(tmp_path / "source", tmp_path / "model.bin")) as m:
        assert m.sparse("hello zz") == model.sparse("hello zz") and m.shape.most_read == 20
        assert m.sparse(LONG, truncate=True) == model.sparse(LONG, truncate=True)
        with pytest.raises(heads.InputError, match="does not say how"):
            m.embed("a")


def test_long_texts_are_said(model):
    """The first time by a warning, which names what one can do."""
    with pytest.warns(UserWarning, match="1 of 2 texts have more than the 20 tokens") as told:
        vector = model.embed(["a", LONG])[1]
    assert told[0].filename == __file__ and "truncate=True" in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(model.embed(LONG), vector)  # once
        assert np.array_equal(model.embed(LONG, truncate=True), vector)
        for call in (model.embed, model.token_vectors, model.sparse):
            call(LONG, truncate=True)
            call("the length", truncate=False)
            with pytest.raises(heads.ContextError, match="1 of 1 texts .* truncate=True cuts"):
                call(LONG, truncate=False)
        exact = "a" * 18
        assert len(model.text_ids(exact)) == model.shape.most_read == 20
        model.embed(exact, truncate=False)


def test_long_pairs_are_said(tmp_path):
    path = test_classes.exported("reranker", tmp_path)
    with heads.Model(path) as m:
        room = m.shape.most_read - 3
        documents = ["a", "b " * (room - 2), "b " * (room - 1)]
        for kept in (documents[:1], documents[:2]):
            m.rank("ab", kept, truncate=False)
        with pytest.raises(heads.ContextError, match="1 of 3 texts"):
            m.rank("ab", documents, truncate=False)
        with pytest.warns(UserWarning, match="1 of 3 texts"):
            m.rank("ab", documents)
        with pytest.raises(heads.ContextError, match="1 of 1 texts"):
            m.classify(("ab", documents[2]), truncate=False)


def test_rank_says_what_it_cut(run, tmp_path):
    path = test_classes.exported("reranker", tmp_path)
    with heads.Model(path) as m:
        room = m.shape.most_read - 3
    for n, cut in ((room - 2, False), (room - 1, True)):
        (tmp_path / "lines").write_text("a\n" + "b " * n + "\n")
        done = run(path, "--rank", "ab", "-f", tmp_path / "lines")
        assert done.returncode == 0 and ("; 1 cut at" in done.stderr) == cut


# ---- what is kept from call to call ----


def test_a_workspace_is_kept(encoder, model):
    """Of the same bits, whatever ran in it before; and no page is new to a text that is no longer."""
    resource = pytest.importorskip("resource")

    def faults(text: str) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(50):
            model.embed(text)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    alone = {}
    for text in TEXTS:
        with heads.Model(encoder, threads=1) as other:
            alone[text] = other.embed(text, truncate=True)
    for chunk in (128, 3, 128, 64):
        model.chunk = chunk
        for text in [*TEXTS, *TEXTS[::-1]]:
            assert np.array_equal(model.embed(text, truncate=True), alone[text])
    model.embed(["a", "b c", LONG], truncate=True)
    assert faults("hello") < 50


SIZE = """
import sys, heads

def pages():
    return int(open("/proc/self/statm").read().split()[0])

with heads.Model(sys.argv[1], threads=1) as model:
    texts = [[5] * 4096] + [[i] for i in range(5, 205)]
    few, before = model.embed(texts[1:]), pages()
    print((few == model.embed(texts)[1:]).all(), pages() - before << 12)
    model.chunk, before = 1 << 16, pages()
    print((few == model.embed(texts)[1:]).all(), pages() - before << 12)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_kept_has_bounds(tmp_path):
    """Sequences are given back where their texts could be long, and buffers of large passes."""
    meta, tensors = checkpoints.parse(checkpoints.random_model(context=4096))
    meta["model.pooling"] = test_classes.ints(1)
    (tmp_path / "model.bin").write_bytes(checkpoints.build(meta, tensors))
    done = subprocess.run(
        [sys.executable, "-c", SIZE, "model.bin"],
        cwd=tmp_path, env=PYTHONPATH, capture_output=True, text=True,
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [same for same, _ in lines] == ["True"] * 2, done.stderr
    assert 1 << 24 < int(lines[0][1]) < 66 << 20 and int(lines[1][1]) < 1 << 20, lines


@pytest.mark.parametrize("example", documents.python_blocks(ROOT / "docs" / "encoders.md"))
def test_examples_of_the_page_run(example, encoder, tmp_path):
    (tmp_path / "minilm.bin").symlink_to(encoder)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=PYTHONPATH, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
