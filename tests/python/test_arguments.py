"""What the module is given: wrong kinds, numbers out of range, texts that are none. Each is refused
with a sentence that names the argument, and nothing else happens."""

from __future__ import annotations

import copy
import pickle
import sys

import checkpoints
import numpy as np
import pytest
import talkers
import test_encoder_decoders
import test_encoders

import heads

NOTHING, HALF, ZERO = object(), "a\ud800", "a\0b"
BAD = [None, 5, 1.5, b"", b"\xff", "", [], {}, set(), float("nan"), float("inf"), -1, 2**31, 2**70]
BAD += [HALF, ZERO, [5.5], [None], [[None]], ["a", 3], [-1], [2**70], [HALF], [ZERO], {"a": 1}]
BAD += [np.zeros(()), np.zeros(3), NOTHING, lambda: 0, True]


@pytest.fixture(scope="module")
def models(tmp_path_factory, stories):
    """One that talks, one that makes vectors, one that translates."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "plain.bin").write_bytes(checkpoints.random_model(context=64))
    talkers.make(folder / "plain.bin", folder / "talker.bin", talkers.PLAIN, 64)
    encoder = test_encoders.exported(test_encoders.with_texts(folder / "e"), folder / "encoder")
    letters = test_encoder_decoders.with_letters(folder / "t")
    translator = test_encoder_decoders.exported(letters, folder / "translator")
    paths = {"stories": stories, "talker": folder / "talker.bin"}
    paths.update(encoder=encoder, translator=translator)
    opened = {name: heads.Model(path, threads=1) for name, path in paths.items()}
    yield opened
    for model in opened.values():
        model.close()


# ---- arguments: a value that is right, and which of BAD are too ----


def whole(low: int, high: int = 2**31 - 1):
    return lambda x: isinstance(x, int) and low <= x <= high


def number(low: float, high: float):
    return lambda x: isinstance(x, (int, float)) and low <= x <= high


def maybe(takes):
    return lambda x: x is None or takes(x)


def is_one(*values):
    """Whether x is among these, True not being 1."""
    return lambda x: any(type(x) is type(value) and x == value for value in values)


FLAG, NOTHING_ELSE = is_one(True), is_one()
TEXT, PROMPTS = is_one("", ZERO), is_one("", ZERO, [], [ZERO])
ASKED = {
    "temperature": (0.5, maybe(number(0, 1000))),
    "top_k": (2, maybe(whole(0, 10**9))),
    "top_p": (0.5, maybe(number(1e-6, 1))),
    "min_p": (0.5, maybe(number(0, 1))),
    "repeat_penalty": (0.5, maybe(number(1e-3, 1000))),
    "seed": (1, whole(0, 2**63 - 1)),
    "max_tokens": (2, whole(1)),
    "stop": (["x"], maybe(is_one(ZERO, [], [ZERO]))),
    "stream": (False, FLAG),
    "schema": (None, maybe(NOTHING_ELSE)),
}
LANG, NO_LANG = maybe(is_one("", [None])), (None, maybe(is_one("")))
NO_SOURCE = (None, maybe(NOTHING_ELSE))
SCHEMAS = (None, maybe(is_one([None])))
MESSAGES = ([{"role": "user", "content": "a"}], NOTHING_ELSE)
PARALLEL = (2, whole(1))
CALLS = [
    ("stories", "generate", {"prompts": ("Once", PROMPTS), "lang": (None, LANG), "parallel": PARALLEL,
                             "progress": (False, FLAG), **ASKED, "schema": SCHEMAS}),
    ("translator", "generate", {"prompts": (["cab"], is_one("", ZERO, [ZERO])), "lang": (["fr_XX"], LANG),
                                **ASKED, "schema": SCHEMAS}),
    ("talker", "chat", {"messages": MESSAGES, **ASKED}),
    ("talker", "chat_ids", {"messages": MESSAGES, "answer": (True, FLAG)}),
    ("stories", "score", {"contexts": (["a"], is_one([ZERO])), "continuations": ([" b"], is_one([ZERO])),
                          "parallel": PARALLEL, "lang": (None, LANG), "progress": (False, FLAG)}),
    ("translator", "score", {"contexts": (["cab"], is_one([ZERO])), "continuations": (["bad"], is_one([ZERO])),
                             "lang": ("fr_XX", LANG)}),
    ("stories", "logits", {"ids": ([5], TEXT), "source": NO_SOURCE, "lang": NO_LANG}),
    ("translator", "logits", {"ids": ([5], TEXT), "source": ("cab", TEXT), "lang": ("fr_XX", NO_LANG[1])}),
    ("stories", "perplexity", {"text": ("Once upon a time", is_one(ZERO))}),
    ("stories", "attention", {"text": ("Once", TEXT), "max_bytes": (10**6, whole(9999, 2**63 - 1)),
                              "source": NO_SOURCE, "lang": NO_LANG}),
    ("translator", "attention", {"text": ([5], TEXT), "source": ([6], TEXT), "lang": ("fr_XX", NO_LANG[1])}),
    ("stories", "encode", {"text": ("Once", is_one("", ZERO, b"", b"\xff")), "special": (True, FLAG)}),
    ("stories", "decode", {"ids": ([5, 6], is_one([])), "skip_special": (True, FLAG)}),
    ("stories", "token_text", {"id": (5, whole(0, 511)), "skip_special": (True, FLAG)}),
    ("stories", "is_special", {"id": (5, whole(0, 511))}),
    ("stories", "token_bytes", {"id": (5, whole(0, 511))}),
    ("encoder", "embed", {"texts": (["cab", "bad"], PROMPTS), "dimensions": (4, maybe(whole(1, 36))),
                          "quantize": ("int8", maybe(NOTHING_ELSE)), "late_chunking": (False, FLAG),
                          "truncate": (True, maybe(FLAG))}),
    ("encoder", "token_vectors", {"texts": (["cab", "bad"], PROMPTS), "truncate": (True, maybe(FLAG))}),
    ("encoder", "sparse", {"texts": (["cab", "bad"], PROMPTS), "truncate": (True, maybe(FLAG))}),
    ("encoder", "text_ids", {"text": ("cab", is_one("", ZERO, []))}),
    ("stories", "kv", {"context": (5, maybe(whole(0, 10**6)))}),
    ("stories", "session", {"path": (None, maybe(NOTHING_ELSE)), "source": NO_SOURCE, "lang": NO_LANG}),
    ("translator", "session", {"source": ("cab", TEXT), "lang": ("fr_XX", NO_LANG[1])}),
]  # fmt: skip
OPENING = {
    "path": ("x", NOTHING_ELSE),
    "threads": (1, maybe(whole(0, 8))),
    "kv": ("f16", NOTHING_ELSE),
    "context": (8, maybe(whole(0, 10**6))),
    "chunk": (4, whole(1, 10**6)),
    "isa": ("scalar", maybe(NOTHING_ELSE)),
    "lookup": (3, whole(0)),
    "draft": (None, maybe(NOTHING_ELSE)),
}
SESSION = [
    ("feed", {"text": ("Once", is_one(ZERO)), "all_rows": (True, FLAG)}),
    ("fork", {"n": (1, maybe(whole(0, 3)))}),
    ("rewind", {"n": (0, whole(0, 3))}),
    ("save", {"path": ("s", NOTHING_ELSE)}),
]
EXPORT = ["src", "out", "dtype", "kv_heads", "tokenizer", "revision", "shape_only", "bits", "size", "memory", "calibrate"]  # fmt: skip
# What an error may say beside an argument's name.
OTHER_WORDS = {
    **dict.fromkeys(("prompts", "ids", "text", "texts", "source"), ["prompt", "token", "text"]),
    **dict.fromkeys(("contexts", "continuations"), ["score", "prompt", "token"]),
    "id": ["token"],
    "n": ["sequence"],
    "messages": ["message"],
    "isa": ["kernels"],
    "path": ["no such file", "cannot", "session"],
    "draft": ["no such file", "cannot"],
    "chunk": ["memory"],
}


def try_all(call, name: str, right: dict) -> None:
    """Gives call each of BAD as one of its arguments."""
    takes = right[name][1]
    for value in BAD:
        values = {key: pair[0] for key, pair in right.items()}
        try:
            call(**{**values, name: value})
        except (heads.InputError, heads.FileError) as error:
            said = str(error)
            assert not takes(value), f"{name}={value!r}: {said}"
            words = [name, *OTHER_WORDS.get(name, [])]
            assert any(word in said for word in words) and len(said) > 15, (name, value, said)
            assert name in ("path", "draft") or isinstance(error, heads.InputError), (
                name,
                value,
                said,
            )
        else:
            assert takes(value), f"{name}={value!r} was taken"


@pytest.mark.parametrize(("model", "call", "right"), CALLS)
def test_each_argument_is_refused_by_its_name(models, model, call, right, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "llguidance", None
    )  # which not everybody has: no schema is right

    def ask(**given):
        result = getattr(models[model], call)(**given)
        if given.get("stream"):
            list(result)

    for name in right:
        try_all(ask, name, right)
    with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword argument 'temp'"):
        ask(temp=3)


def test_each_argument_of_opening(models):
    right = {**OPENING, "path": (models["stories"].path, NOTHING_ELSE)}
    for name in OPENING:
        try_all(lambda **given: heads.Model(**given).close(), name, right)


def test_each_argument_of_a_session(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call, right in SESSION:

        def ask(**given):
            with models["stories"].session() as session:
                session.feed("Once upon")
                try:
                    getattr(session, call)(**given)
                except heads.InputError:
                    assert len(session) == 3
                    raise

        for name in right:
            try_all(ask, name, right)
    with pytest.raises(heads.InputError, match="n: expected a whole number"):
        models["stories"].session().rewind(2**32)  # whose lower half is 0


@pytest.mark.parametrize("name", EXPORT)
def test_each_argument_of_export(tmp_path, name):
    for value in BAD:
        right = {"src": tmp_path / "none", "out": tmp_path / "out"}
        with pytest.raises((heads.HeadsError, OSError)) as error:
            heads.export(**{**right, name: value})
        kinds = (
            (str, bool, int, float)
            if name in ("kv_heads", "bits", "size", "memory")
            else (str, bool)
        )
        fits = value is None or isinstance(value, kinds)
        assert fits or f"{name}: " in str(error.value), (name, value, error.value)
    assert not list(tmp_path.iterdir())


def test_what_holds_memory_of_the_engine_is_not_copied(models):
    model = models["stories"]
    session, job = model.session(), heads._batch.Batch(model, 1)
    session.feed("Once")
    for made in (session, job, session._handle(), [session], model._handles.workspace):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            if isinstance(made, list) and duplicate is copy.copy:
                continue  # the list alone
            with pytest.raises(TypeError, match="cannot be copied or pickled: "):
                duplicate(made)
    for duplicate in (copy.copy, copy.deepcopy):  # a model is its path and options
        with duplicate(model) as other:
            assert other._handles is not model._handles
            assert other.generate("Once", 3) == model.generate("Once", 3)
    with pytest.raises(TypeError, match="made by heads.Model.session"):
        heads.Session(model, 5, 5)
    assert len(session.feed(" upon")) == model.shape.vocab_size
