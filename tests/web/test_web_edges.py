"""heads.js at its edges, in node, Chromium, Firefox and WebKit: where checkpoints come from, what is refused and
in which words, what is freed, stopped, out of memory or forbidden by a page. Nothing hangs.

It needs `make web lib`, node and tests/browser's packages; CI installs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import heads
import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("node", "chrome", "firefox", "webkit")


@pytest.fixture(scope="module", params=PLACES)
def found(request) -> dict:
    drawn = int(os.environ.get("HEADS_SEED", "0")) % len(PLACES)
    if "HEADS_SEED" in os.environ and request.param != PLACES[drawn]:
        pytest.skip("another place was drawn")
    command = ["node", ROOT / "tests" / "web" / "edges.mjs", request.param]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return {**json.loads(done.stdout), "where": request.param}


@pytest.fixture(scope="module")
def stories():
    with heads.Model(ROOT / "models" / "stories.bin") as model:
        yield model


def test_sources(found, stories):
    said, ids = found["sources"], stories.encode("a")
    cached = found["where"] != "node"  # which has no Cache API
    for name in "bytes view blob response stream url again fresh broken rangeless".split():
        assert said[name] == ["fine", [*ids, name == "again" and cached, True]], name
    assert found["progress"] == [True, True]
    # The server breaks off after 2,000,000 bytes, of which a busy browser gives a page fewer.
    parts = [one for one in found["asked"] if one.startswith("/broken/")]
    assert parts[0] == "/broken/stories.bin" and len(parts) > 2
    ranges = [re.search(r" bytes=(\d+)-\d*$", one) for one in parts[1:]]  # WebKit may begin again
    firsts = [0, *(int(found[1]) for found in ranges if found)]
    assert len(firsts) > 2
    assert all(0 < b - a <= 2_000_000 for a, b in zip(firsts, firsts[1:]))


def test_what_is_no_source(found):
    said = found["sources"]
    assert said["changing"][1].endswith("the file changed while it was read")
    assert said["missing"][1].endswith("the server says 404 Not Found")
    assert said["page"][1].endswith("the server gives a page of HTML; is the address right?")
    assert {said[name][0] for name in ("changing", "missing", "page")} == {"network"}
    assert said["number"][0] == "argument"
    assert said["short"] == [
        "refused",
        "the header says 5503168 bytes, the file has 3000000: it is truncated",
    ]
    assert said["empty"] == ["refused", "it is empty"]
    assert said["gguf"][1].startswith("a GGUF file, which export.py reads: python3 export.py")


def the_modules(run) -> str:
    with pytest.raises(heads.InputError) as caught:
        run()
    return str(caught.value)


def test_what_is_given(found, stories):
    """Nothing is converted without a word, and the words are the module's."""
    said = found["given"]
    odd = ("tool_choice", "schema")
    assert {said[name][0] for name in said if name not in odd} == {"argument"}
    assert {said[name][0] for name in odd} == {"unsupported"}
    with stories.session() as session:
        for name, ids in [("fraction", [1.7]), ("large", [2**32 + 1])]:
            want = the_modules(lambda ids=ids: session.feed(ids))
            assert said[name][1] == want.replace("text:", "ids:", 1)
    want = the_modules(lambda: stories.generate("a", temperature="hot"))
    assert said["temperature"][1].replace('"', "'") == want
    for name, expected in {
        "null_content": "messages: content: expected a text, found null",
        "list_content": 'messages: content: expected a text, found ["a"]',
        "context": 'context: expected a whole number from 0 to 2147483647, found "big"',
        "surrogate": "text: expected a text without halves of surrogate pairs, found ",
        "unknown": "generate: options: expected max_tokens, stop, lang, ",
        "option": "open: options: expected context, chunk, ",
    }.items():
        assert said[name][1].startswith(expected), name
    assert said["unknown"][1].endswith('found "temprature"')
    assert found["bom"] == ["fine", "\ufeffHi"]
    assert found["seed"] == ["fine", True]


def test_handles(found):
    """What was freed, or is another model's, is an error, as often as it is used."""
    assert [code for code, _ in found["freed"]] == ["freed"] * 4


def test_ends(found, stories):
    assert found["aborted"] == [["Error", "enough"]] * 4
    assert found["left"] == ["fine", stories.encode("a")]
    assert set(found["signals"].values()) == {"enough"} and len(found["signals"]) == 14
    assert found["late"] == [["Error", "enough"], found["left"]]
    assert found["closed"] == [["closed", "the model was closed"]] * 2
    assert found["ticks"]  # a pass does not block the thread that asked for it


def test_iterators(found):
    """Whoever leaves a text ends it, however that is; the next one begins at once."""
    assert found["iterators"] == [
        [True, "over"],
        [True, None],
        [True, 1],
        ["Error", "enough"],
        [True, None],
        ["RangeError", "number"],
        False,
    ]


def test_models_share_a_module(found):
    assert found["compiled"] == 0


def test_memory_and_traps(found):
    """Where memory ends or the engine traps, all that waits and all that follows has an answer."""
    assert found["full"][0] == ["memory", "no memory for the rows of attention"]
    assert found["full"][1][0] in ("refused", "memory")
    assert [code for code, _ in found["trapped"]] == ["crashed"] * 3
    assert found["kind"] == "worker"


def test_pages_that_forbid(found, stories):
    if found["where"] == "node":
        return
    said, ids = found["policies"], stories.encode("a")
    assert found["worker"][0] == said["/noblob"][0] == "worker"
    assert "workerURL" in said["/noblob"][1]
    assert (
        said["/noblob/heads-worker.js"] == said["/types"] == said["/types/heads-worker.js"] == ids
    )


# ---- the package ----


def test_every_public_name_is_typed():
    types = (ROOT / "browser" / "web" / "heads.d.ts").read_text()
    script = (ROOT / "browser" / "web" / "arguments.js").read_text()
    (table,) = re.findall(r"const OPTIONS = \{.*?^};", script, re.S | re.M)
    options = re.findall(r"(\w+): (?:whole|flag|one_of|c_string|\[|\(name)", table) + ["tools"]
    engine = (ROOT / "browser" / "web" / "engine.js").read_text()
    (listed,) = re.findall(r"static methods = \[(.*?)\]", engine, re.S)
    page = (ROOT / "browser" / "web" / "heads.js").read_text()
    taken = " ".join(re.findall(r"const \{ (.*?), \.\.\.asked \} = options", page))
    codes = set()
    for path in [*(ROOT / "browser" / "web").glob("*.js"), *(ROOT / "system").glob("wasm*.js")]:
        codes |= set(re.findall(r'(?:HeadsError\(|code: )"(\w+)"', path.read_text()))
    assert len(options) > 20 and len(codes) > 8
    for name in {*options, *re.findall(r"\w+", listed + taken)}:
        assert re.search(rf"\b{name}\??[:(]", types), name
    for code in codes:
        assert f'| "{code}"' in types, code
