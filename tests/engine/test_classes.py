"""Heads for classes: --classify and --rank, their files, and what is refused. The numbers are those
of transformers from the same files (tests/reference/make_classes.py made them); live_classify.py
compares every family's heads."""

from __future__ import annotations

import json
import re

import classifiers
import numpy as np
import pytest
from test_encoders import spell

import checkpoints
import export
from checkpoints import I32, U8, Meta
from conftest import ROOT
from heads import HeadsError, InputError, Model
from heads import _classes
from heads._classes import Label, Ranked

GOLDEN = json.loads((ROOT / "tests" / "golden" / "classes.json").read_text())
LOGITS, SCORES = 1e-5, 1e-6


def exported(name: str, folder, dtype: str = "f32", **changes):
    binary = folder / f"{name}.bin"
    if not binary.exists():
        source = classifiers.make(name, folder / name, **changes)
        assert export.main([str(source), str(binary), "--dtype", dtype]) == 0
    return binary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("classes")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", classifiers.CASES)
def test_scores_are_those_of_transformers(name, folder):
    made = GOLDEN[name]
    texts = [(ids, second) for ids, second, _ in made]
    logits = np.concatenate([np.float32(rows) for *_, rows in made])
    want = 1 / (1 + np.exp(-logits)) if logits.shape[1] == 1 else softmax(logits)
    with Model(exported(name, folder), kv="f32") as m:
        found = _classes.scores(m, texts)
        assert np.abs(found - want).max() <= LOGITS
        for options in (dict(chunk=7, threads=1), dict(chunk=500, threads=3)):
            with Model(exported(name, folder), kv="f32", **options) as other:
                assert _classes.scores(other, texts).tobytes() == found.tobytes()
                each = [_classes.scores(other, [text]) for text in texts]
                assert np.concatenate(each).tobytes() == found.tobytes()


def test_the_knobs_of_scores(folder, tmp_path):
    """The same numbers, raw, each by itself, or all together."""
    ids = spell("hello world")
    found = {}
    for problem in ("regression", "multi_label_classification", "single_label_classification"):
        binary = exported("bert", tmp_path / problem[:3], problem_type=problem)
        with Model(binary) as m:
            found[problem[:3]] = _classes.scores(m, [(ids, 0)])
    raw = found["reg"]
    assert np.abs(found["mul"] - 1 / (1 + np.exp(-raw))).max() < SCORES
    assert np.abs(found["sin"] - softmax(raw)).max() < SCORES


# ---- the commands and the module ----


def test_classify_prints_the_likeliest_first(folder, run):
    binary = exported("bert", folder)
    lines = folder / "lines"
    lines.write_text("hello world\na\n\nzz top\n")
    plain = run(binary, "--classify", "-f", lines).stdout.decode().splitlines()
    json_lines = run(binary, "--classify", "--json", "-f", lines).stdout.splitlines()
    rows = [json.loads(line) for line in json_lines]
    assert len(plain) == len(rows) == 4
    with Model(binary) as m:
        want = m.classify(["hello world", "a", "", "zz top"])
        assert m.labels == list(classifiers.LABELS)
        assert m.classify("a") == want[1] and isinstance(want[1][0], Label)
        assert m.classify(spell("a")) == want[1]
    for line, row, labels in zip(plain, rows, want):
        assert [entry["label"] for entry in row] == [x.label for x in labels]
        assert [np.float32(entry["score"]) for entry in row] == [
            np.float32(x.score) for x in labels
        ]
        assert [x.score for x in labels] == sorted((x.score for x in labels), reverse=True)
        escaped = [json.dumps(x.label, ensure_ascii=False)[1:-1] for x in labels]
        shown = [f"{label} {x.score:.4f}" for label, x in zip(escaped, labels)]
        assert line == ", ".join(shown)
    one = run(binary, "--classify", "-p", "hello world")
    assert one.stdout.decode().splitlines() == plain[:1] and "1 texts of 12 tokens" in one.stderr


def test_classify_tokens(folder, run):
    binary = exported("bert-tokens", folder)
    done = run(binary, "--classify", "-p", "ab c")
    with Model(binary) as m:
        (want,) = m.classify(["ab c"])
        ids = m.text_ids("ab c")
        assert [x.token for x in want] == [m.token_text(id) for id in ids]
    lines = done.stdout.decode().split("\n")
    assert lines[-2:] == ["", ""] and len(lines) == len(ids) + 2
    for line, x in zip(lines, want):
        assert line.split("\t")[1:] == [x.label, f"{x.score:.4f}"]
    row = json.loads(run(binary, "--classify", "--json", "-p", "ab c").stdout)
    assert [(x["label"], np.float32(x["score"])) for x in row] == [
        (x.label, np.float32(x.score)) for x in want
    ]


def test_rank(folder, run):
    """Pairs have ids of their own, whose second text has another type, and are cut longest first."""
    binary = exported("reranker", folder)
    documents = ["zz top", "hello world", "a", "fox " * 60]
    lines = folder / "documents"
    lines.write_text("".join(text + "\n" for text in documents))
    done = run(binary, "--rank", "hello fox", "-f", lines)
    with Model(binary) as m:
        ranked = m.rank("hello fox", documents)
        query, ids = spell("hello fox")[1:-1], [spell(d)[1:-1] for d in documents]
        room = 130 - 3 - len(query)
        pairs = [([2, *query, 3, *text[:room], 3], len(query) + 2) for text in ids]
        scores = _classes.scores(m, pairs)[:, 0]
        flat = _classes.scores(m, [(ids, 0) for ids, _ in pairs])[:, 0]
        assert m.classify([("hello fox", "a")]) == [m.classify(("hello fox", "a"))]
        assert m.classify(("hello fox", "a"))[0].score == float(scores[2])
    assert (scores != flat).all()
    order = np.argsort(-scores, kind="stable")
    assert ranked == [Ranked(int(i), float(scores[i])) for i in order]
    assert done.stdout.decode().splitlines() == [f"{scores[i]:.4f}\t{documents[i]}" for i in order]


@pytest.mark.parametrize("kind, typed", [("BertTokenizerFast", 1), ("PreTrainedTokenizerFast", 0)])
def test_a_pair_has_types_if_the_tokenizers_class_gives_them(kind, typed, tmp_path):
    source = classifiers.make("reranker", tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    assert export.main([str(source), str(tmp_path / "model.bin"), "--dtype", "f32"]) == 0
    query, document = spell("hello fox"), spell("a")[1:]
    with Model(tmp_path / "model.bin") as m:
        want = _classes.scores(m, [(query + document, len(query) * typed)])
        assert m.classify(("hello fox", "a"))[0].score == float(want[0, 0])


# ---- refusals ----


def test_models_without_such_a_head(folder, run, tmp_path):
    bert = tmp_path / "plain.bin"
    assert export.main([str(ROOT / "tests/golden/encoders/roberta"), str(bert)]) == 0
    with Model(bert) as m:
        for call in (lambda: m.classify([[5]]), lambda: m.rank("a", ["b"])):
            with pytest.raises(InputError, match="no head that classifies|has none"):
                call()
        assert m.labels == []
    lines = folder / "some"
    lines.write_text("a\n")
    three = exported("bert", folder)
    done = run(three, "--rank", "a", "-f", lines)
    assert done.returncode == 2 and "a single score, and it has 3 classes" in done.stderr
    with Model(three) as m, pytest.raises(InputError, match="has 3 classes"):
        m.rank("a", ["b"])
    stories = run(ROOT / "models/stories.bin", "--classify", "-p", "a")
    assert stories.returncode == 2 and "has no head that classifies" in stories.stderr
    tokens = exported("bert-tokens", folder)
    with Model(tokens) as m, pytest.raises(InputError, match="how two texts are read as one"):
        m.classify([("a", "b")])


def test_a_text_ends_where_the_head_of_an_encoder_decoder_reads(folder, run):
    """At its last eos_token_id; no other verb but those of such heads, and hidden states."""
    binary = exported("bart", folder)
    with Model(binary, kv="f32") as m:
        first, second = _classes.scores(m, [([2, 9, 3], 0), ([2, 9, 3, 11], 0)])
        assert not np.array_equal(first, second)  # for the encoder reads all of it
        with pytest.raises(HeadsError, match="text 1 lacks token 3, at whose place"):
            _classes.scores(m, [([2, 9, 3], 0), ([2, 9], 0)])
    done = run(binary, "--tokens", "2 9 3", "-n", 2)
    assert done.returncode == 2 and "has a head for classes in place of logits" in done.stderr
    meta, tensors = checkpoints.parse(binary.read_bytes())
    del meta["model.class_eos"]
    with pytest.raises(HeadsError, match="model.class_eos: models with model.source_layers"):
        path = folder / "x.bin"
        path.write_bytes(checkpoints.build(meta, tensors))
        Model(path)


CONFIGS = [
    (
        "t5",
        {"architectures": ["ForCausalLM"], "is_encoder_decoder": False},
        "names a decoder alone",
    ),
    ("bart", {"model_type": "mbart"}, "a head for classes on an encoder-decoder of mbart"),
    ("bert", {"id2label": {"0": "a", "1": "b"}}, "id2label must name the 3 classes of the head"),
    ("bert", {"id2label": {"0": "a", "1": "b", "2": []}}, "id2label has a name that is no text"),
    ("bert", {"problem_type": "guess"}, "problem_type is 'guess'"),
    ("bert", {"architectures": None}, "classifier.bias: a head for classes, which"),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}, "a head for classes, which"),
    ("reranker", {"sbert_ce_default_activation_function": "torch.nn.Mish"}, "puts torch.nn.Mish"),
    ("modernbert-mean", {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
]


@pytest.mark.parametrize("name, changes, said", CONFIGS)
def test_configs_that_are_refused(name, changes, said, tmp_path, capsys):
    source = classifiers.make(name, tmp_path / "source", **changes)
    assert export.main([str(source), str(tmp_path / "x.bin")]) == 1
    assert said in capsys.readouterr().err and not (tmp_path / "x.bin").exists()


def ints(*values: int) -> Meta:
    return Meta(I32, len(values), np.int32(values).tobytes())


FILES = [
    ({"model.labels": Meta(U8, 3, b"abc")}, "metadata model.labels: it has 3 bytes"),
    ({"model.labels.begin": ints(0, 4, 26)}, "2 labels, but tensor classes.1 has 3 rows"),
    ({"model.labels.begin": ints(*[0] * 70000)}, "model.labels.begin: it has 70000 values"),
    ({"model.labels.begin": ints(0, 9, 4, 26)}, "model.labels.begin: value 2 is 4"),
    ({"model.class_acts": ints(8)}, "but tensor classes.0 has 36 rows"),
    ({"model.class_acts": ints(8, 9, 9)}, "tensor classes.2 is missing"),
    ({"model.class_acts": ints(8, 5)}, "5 is no activation of a step"),
    ({"model.class_acts": ints(*[9] * 9)}, "9 steps, expected at most 8"),
    ({"model.class_pooling": ints(0), "model.class_after": ints(1)}, "model.class_after: it needs"),
    ({"model.class_after": ints(3)}, "model.class_after is 3, expected 0..2"),
    ({"model.class_pooling": ints(9)}, "model.class_pooling is 9, expected 0..6"),
    ({"model.class_scores": ints(3)}, "model.class_scores is 3, expected 0..2"),
    ({"model.pooling_acts": ints(9)}, "tensor pooling.0 is missing"),
    ({"model.class_pad": ints(5)}, "model.class_pad: model.class_pooling is 2, expected 3"),
    ({"model.class_eos": ints(5)}, "model.class_eos: models with model.source_layers and"),
    ({"tokenizer.between": ints(3), "tokenizer.second_type": None}, "needs tokenizer.second_type"),
]
KEYS = {key for changes, _ in FILES for key in changes if key.startswith("model.")}


@pytest.mark.parametrize("changes, said", FILES)
def test_files_that_are_refused(changes, said, folder, tmp_path):
    meta, tensors = checkpoints.parse(exported("bert", folder).read_bytes())
    meta = {key: value for key, value in {**meta, **changes}.items() if value is not None}
    path = tmp_path / "x.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    with pytest.raises(HeadsError, match=re.escape(said)):
        Model(path).encode("a")


def test_what_a_head_holds_is_finite(folder, tmp_path):
    meta, tensors = checkpoints.parse(exported("bert", folder).read_bytes())
    huge = np.full(tensors["classes.1.bias"].cols, np.inf, np.float32)
    tensors["classes.1.bias"] = checkpoints.vector(huge)
    (tmp_path / "x.bin").write_bytes(checkpoints.build(meta, tensors))
    with Model(tmp_path / "x.bin") as m, pytest.raises(HeadsError, match="no finite numbers"):
        m.classify([[5, 6]])
