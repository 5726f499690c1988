"""experiment.json, its result and whether that holds: by the command line, the module and, in
tests/web, heads.js."""

from __future__ import annotations

import copy
import hashlib
import json
import struct

import numpy as np
import pytest

import heads
from conftest import ROOT

EXAMPLE = ROOT / "examples" / "experiment.json"
MODEL = ROOT / "models" / "heads.bin"
CLEAN, CORRUPTED = [5, 6, 7, 8, 9, 10, 5, 6], [5, 6, 9, 8, 7, 10, 5, 6]
WHOLE = {
    "text": CLEAN,
    "corrupted": CORRUPTED,
    "off": "0.3",
    "steer": [{"layer": 0, "scale": 0.5, "vector": [i / 64 for i in range(128)]}],
    "patch": [{"layer": 1, "head": 2, "position": 7}, {"layer": 0, "position": 4}],
    "metric": "log_probability",
    "answer": 7,
    "attribute": True,
    "sampler": {"max_tokens": 4, "temperature": 0.7, "top_p": 0.9, "seed": 5},
}


@pytest.fixture(scope="module")
def model():
    with heads.Model(MODEL) as opened:
        yield opened


# ---- the SHA-256, as docs/heads.md says it ----

METRICS, KV = ("difference", "log_probability", "kl"), ("f16", "f32", "q8", "q4")
RESULTS = {"generated": "i"}  # the others are floats


def record(name: str, kinds: str, numbers) -> bytes:
    """A name, a zero byte, how many numbers there are, and these, of 4 bytes each."""
    numbers = [float("nan") if x is None else x for x in numbers]
    kinds = kinds * len(numbers) if len(kinds) == 1 else kinds
    return name.encode() + b"\0" + struct.pack(f"<I{kinds}", len(numbers), *numbers)


def described(e: dict) -> bytes:
    patch, steer, sampler = e.get("patch"), e.get("steer", []), e.get("sampler")
    places = patch if isinstance(patch, list) else []
    kind = {None: 0, "heads": 1, "layers": 2}.get(patch if not places else None, 0)
    off = [int(x) for head in filter(None, e.get("off", "").split(",")) for x in head.split(".")]
    found = record("model", "I", [int(e["model"], 16)])
    found += record("kv", "i", [KV.index(x) for x in e["kv"]])
    found += record("text", "i", e["text"]) + record("corrupted", "i", e.get("corrupted", []))
    found += record("off", "i", off) + record("steer.layers", "i", [s["layer"] for s in steer])
    found += record("steer.vectors", "f", [x for s in steer for x in s["vector"]])
    flat = [x for p in places for x in (p["layer"], p.get("head", -1), p["position"])]
    found += record("patch", "i", [3 if places else kind, *flat])
    asked = ["metric" in e, METRICS.index(e.get("metric", "difference"))]
    asked += [e.get("answer", -1), e.get("against", -1), e.get("attribute", False)]
    found += record("asked", "i", asked)
    if sampler:
        seed = sampler.pop("seed")
        numbers = [*sampler.values(), seed % 2**32, seed >> 32]
        return found + record("sampler", "ififffiffII", numbers)
    return found + record("sampler", "i", [])


def flattened(x) -> list:
    return [z for y in x for z in flattened(y)] if isinstance(x, list) else [x]


def digests(result: dict) -> tuple[str, str]:
    result = copy.deepcopy(result)
    first = described(result["experiment"])
    numbers = b"".join(
        record(name, RESULTS.get(name, "f"), flattened(x)) for name, x in result["results"].items()
    )
    return hashlib.sha256(first).hexdigest(), hashlib.sha256(first + numbers).hexdigest()


@pytest.mark.parametrize("given", [WHOLE, json.loads(EXAMPLE.read_text())])
def test_anyone_can_compute_the_sum(given, model):
    result = model.experiment(given)
    assert digests(result) == (result["description"], result["sha256"])
    given = dict(given, answer=8)
    assert model.experiment(given)["description"] != result["description"]


# ---- one result on every road ----


def test_the_example_finds_the_circuit_and_holds(run, tmp_path, model):
    """The head that writes each token's predecessor, and those of the second layer at the end."""
    done = run(MODEL, "--experiment", EXAMPLE)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    clean, corrupted = result["results"]["metrics"]
    returned = (np.array(result["results"]["map"]) - corrupted) / (clean - corrupted)
    found = {tuple(map(int, at)) for at in np.argwhere(abs(returned) > 0.02)}
    previous = {at for at in found if at[0] == 0}
    assert {at[2] for at in previous} == {4, 8} and len({at[1] for at in previous}) == 1
    assert found - previous == {(1, head, 15) for head in range(4)}
    assert result["results"]["generated"][0] == result["experiment"]["answer"]
    path = tmp_path / "result.json"
    path.write_bytes(done.stdout)
    for threads in ("1", "2"):
        again = run(MODEL, "--verify", path, "-t", threads)
        assert (again.returncode, again.stdout) == (0, b"yes: the experiment gives these numbers\n")
        assert run(MODEL, "--experiment", EXAMPLE, "-t", threads).stdout == done.stdout
    assert model.experiment(EXAMPLE) == result and model.verify(result) is None
    assert heads.Model(MODEL, chunk=3, threads=1, kv="q4").experiment(str(EXAMPLE)) == result


def test_spelling_changes_nothing(run, tmp_path, model, stories):
    """Order of keys, spaces, defaults, lists of heads, texts or their ids, scaled vectors."""
    want = model.experiment(WHOLE)
    assert model.verify(want) is None
    other = dict(reversed(WHOLE.items()))
    other |= {"off": "0.3", "kv": "f16", "version": 1, "model": want["experiment"]["model"]}
    other["steer"] = heads.Steering({0: np.arange(128) / 128})
    other["patch"] = [*reversed(WHOLE["patch"]), WHOLE["patch"][0]]
    assert model.experiment(other) == want
    path = tmp_path / "e.json"
    path.write_text(json.dumps(want["experiment"], indent=3))
    assert json.loads(run(MODEL, "--experiment", path).stdout) == want
    assert model.experiment(dict(WHOLE, kv=["f32", "q8"]))["sha256"] != want["sha256"]
    with heads.Model(stories) as talker:
        clean, corrupted = "The girl was happy.", "The boy was happy."
        ids = {"text": talker.encode(clean), "corrupted": talker.encode(corrupted)}
        words = {"text": clean, "corrupted": corrupted, "answer": " She", "against": " He"}
        found = talker.experiment(words)
        tokens = {
            name: talker.encode(words[name], special=False)[0] for name in ("answer", "against")
        }
        assert talker.experiment({**ids, **tokens}) == found


# ---- the numbers ----


def test_the_numbers_are_those_of_the_calls(model, run):
    of = {"text": CLEAN, "corrupted": CORRUPTED, "answer": 7, "against": 9}
    for patch in ("heads", "layers"):
        result = model.experiment({**of, "patch": patch})["results"]
        want = model.patch(CLEAN, CORRUPTED, 7, 9, patch)
        assert np.array_equal(np.array(result["map"], np.float32), want)
        for place in ((0, 1, 4), (1, 2, 7), (1, 0, 6)):
            at = {"layer": place[0], "head": place[1], "position": place[2]}
            if patch == "layers":
                del at["head"]
            one = model.experiment({**of, "patch": [at]})["results"]["metrics"]
            cell = want[place] if patch == "heads" else want[place[0], place[2]]
            assert np.float32(one[2]) == cell and one[:2] == result["metrics"]
    result = model.experiment({**of, "attribute": True, "off": "1.1"})["results"]
    want = model.attribute(CLEAN, 7, 9, off="1.1")
    assert np.array_equal(np.array(result["heads"], np.float32), want.heads)
    assert np.array_equal(np.array(result["ffn"], np.float32), want.ffn)
    assert result["sums"] == [
        np.float32(x) for x in (want.embedding, want.rest, want.total, want.logit)
    ]
    sampler = {"max_tokens": 6, "temperature": 0.9, "top_k": 40, "seed": 11}
    found = model.experiment({"text": CLEAN, "sampler": sampler})["results"]["generated"]
    chance = ("--temp", "0.9", "--top-k", "40", "--top-p", "1", "-s", "11", "-n", "6")
    ids = run(MODEL, "--tokens", " ".join(map(str, CLEAN)), *chance, "--ids", "--no-echo").stdout
    assert found == [int(x) for x in ids.split()]
    kl = model.experiment({**of, "metric": "kl", "patch": "layers"})["results"]
    assert kl["metrics"][0] == 0 and np.array(kl["map"])[0, 2] == pytest.approx(
        model.patch(CLEAN, CORRUPTED, of="layers", metric="kl")[0, 2], rel=1e-6
    )


def test_a_patched_text_goes_on(model):
    """With all the clean text's streams it goes on as that does."""
    sampler = {"max_tokens": 5}
    every = [{"layer": 0, "position": i} for i in range(8)]
    want = model.experiment({"text": CLEAN, "sampler": sampler})["results"]["generated"]
    found = model.experiment(
        {"text": CLEAN, "corrupted": CORRUPTED, "patch": every, "sampler": sampler}
    )
    assert found["results"] == {"generated": want}
    plain = {"text": CLEAN, "corrupted": CORRUPTED, "metric": "kl", "sampler": sampler}
    assert model.experiment(plain)["results"]["generated"] == want


@pytest.mark.parametrize("name", ["deepseek_v2", "gemma3", "zamba2", "falcon_mamba"])
def test_other_layers(name, exported):
    """Latents, windows, nested branches, mixers without heads."""
    with heads.Model(exported(name)) as model:
        clean, corrupted = [3, 17, 9, 9, 21, 3, 17, 30], [3, 17, 12, 9, 21, 3, 8, 30]
        of = {"text": clean, "corrupted": corrupted, "answer": 5, "against": 7}
        want = model.patch(clean, corrupted, 5, 7)
        place = {"layer": 1, "head": 0, "position": 3}
        result = model.experiment({**of, "patch": [place], "sampler": {"max_tokens": 4}})
        assert np.float32(result["results"]["metrics"][2]) == want[1, 0, 3]
        assert model.verify(result) is None


# ---- what does not hold ----


def changed(result: dict, path: tuple, value) -> dict:
    result = copy.deepcopy(result)
    at = result
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return result


@pytest.mark.parametrize(
    "path, value, says",
    [
        (("experiment", "model"), "00000001", "a model with the checksum 00000001, and this one"),
        (("experiment", "text", 3), 11, "the description was changed: its SHA-256 is"),
        (("experiment", "sampler", "seed"), 6, "the description was changed"),
        (("description",), "0" * 64, "the description was changed"),
        (("results", "metrics", 1), 0.5, "metrics[1] is 0.5 in the result, and "),
        (("results", "heads"), [[1]], "heads[0][0] is 1 in the result, and "),
        (("results", "generated", 2), 9, "generated[2] is 9 in the result, and "),
        (("results", "ffn"), 3, 'the result has no "ffn", which the experiment gives'),
        (("results", "ffn"), [], '"ffn" of the result ends before [0]'),
        (("results", "more"), [], '"results" has 6 members, and the experiment gives 5'),
        (("sha256",), "0" * 64, "all numbers are right, but their SHA-256 is "),
    ],
)
def test_what_differs_is_said(path, value, says, model, run, tmp_path):
    wrong = changed(model.experiment(WHOLE), path, value)
    said = model.verify(wrong)
    assert said and says in said
    file = tmp_path / "r.json"
    file.write_text(json.dumps(wrong))
    done = run(MODEL, "--verify", file)
    assert (done.returncode, done.stdout.decode()) == (1, f"no: {said}\n")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"tekst": 1}, 'the experiment has a key "tekst", which means nothing'),
        ({"text": []}, '"text": expected a text, or a list of 1 to 65536 ids'),
        ({"text": [5, 99999]}, '"text": expected a whole number from 0 to 3070'),
        ({"text": None}, 'the experiment has no "text"'),
        ({"corrupted": [5]}, 'needs a "corrupted" text with as many tokens as "text": they have 1'),
        ({"off": "9.0"}, "there are layers 0..1"),
        ({"off": 3}, '"off": expected heads in quotes'),
        ({"steer": [{"layer": 0}]}, '"steer[0]": expected a "layer" and a "vector"'),
        (
            {"steer": [{"layer": 0, "vector": [1]}]},
            "its vector has 1 numbers, and the model's stream",
        ),
        (
            {"steer": [{"layer": 5, "vector": []}]},
            '"steer[0]": expected a whole number from 0 to 1',
        ),
        ({"patch": "rows"}, '"patch": expected one of heads, layers'),
        (
            {"patch": [{"layer": 0, "head": 4, "position": 1}]},
            '"patch[0]": expected a whole number',
        ),
        (
            {"patch": [{"layer": 0, "position": 8}]},
            '"patch[0]": expected a whole number from 0 to 7',
        ),
        ({"metric": "loss"}, '"metric": expected one of difference, log_probability, kl'),
        ({"metric": "difference"}, '"metric", a difference, needs "against"'),
        ({"answer": None}, '"metric" needs "answer"'),
        ({"answer": "two words here"}, "tokens; give one, or its id"),
        ({"kv": "f8"}, '"kv": expected one of f16, f32, q8, q4'),
        ({"model": "xyz"}, "8 hexadecimal digits in quotes"),
        ({"model": "00000000"}, "a model with the checksum 00000000, and this one has"),
        ({"sampler": {"heat": 1}}, 'sampler has a key "heat", which means nothing'),
        ({"sampler": {"max_tokens": 0}}, '"sampler.max_tokens": expected a whole number from 1'),
        ({"sampler": {"temperature": -1}}, "temperature"),
        ({"version": 2}, '"version": expected a whole number from 1 to 1'),
    ],
)
def test_bad_experiments(change, says, model):
    given = {name: x for name, x in {**WHOLE, **change}.items()}
    with pytest.raises(heads.InputError) as error:
        model.experiment(given)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "text, says",
    [
        ("[1]", "an experiment is a JSON object"),
        ('{"text": [5]', "byte 12: expected a comma or }"),
        ('{"text": [5]}', "the experiment asks for nothing"),
        ('{"text": [5], "text": [6]}', 'has the key "text" twice'),
        ("", "byte 0: the text ends where a value is expected"),
    ],
)
def test_files_that_are_none(text, says, run, tmp_path):
    path = tmp_path / "e.json"
    path.write_text(text)
    for option in ("--experiment", "--verify"):
        done = run(MODEL, option, path)
        said = (
            says if option == "--experiment" or "byte" in says or "twice" in says else "no result"
        )
        assert done.returncode == 1 and said in done.stderr and str(path) in done.stderr
    assert run(MODEL, "--experiment", tmp_path / "none.json").returncode == 1


def test_arguments_of_the_module(model):
    for call in (model.experiment, model.verify):
        with pytest.raises(heads.InputError, match="a dict, or the path of a JSON file"):
            call(3)
        with pytest.raises(heads.InputError, match="JSON has no set"):
            call({"text": {5}})
    with pytest.raises(heads.InputError, match='this is no result: it has no "experiment"'):
        model.verify({})
