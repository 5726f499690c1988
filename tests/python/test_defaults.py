"""How tokens are chosen where nothing is said: one table, the library's, for ./run, its help, --batch
and the module; tests/extras has the server."""

from __future__ import annotations

import asyncio
import json
import re

import checkpoints
import pytest
import talkers

import heads
from heads._batch import Sampling

QUESTION = [{"role": "user", "content": "what is it?"}]
OPTIONS = {"temperature": "--temp", "top_p": "--top-p", "repeat_penalty": "--repeat-penalty"}


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("defaults")
    (folder / "plain").write_bytes(checkpoints.random_model(context=128))
    talkers.make(folder / "plain", folder / "talker.bin", talkers.PLAIN, 128)
    return folder / "talker.bin"


def test_help_has_the_librarys_numbers(run):
    text = re.sub(r"\n {3,}", " ", run("--help").stdout.decode())
    plain, answers = (vars(Sampling.usual(answer)) for answer in (False, True))
    for name, option in OPTIONS.items():
        row = re.search(rf"^ *{option}\b.*$", text, re.MULTILINE)[0]
        assert f"({plain[name]:g}" in row or f"; {plain[name]:g};" in row, row
        assert f"in a conversation {answers[name]:g})" in row, row
        assert plain[name] != answers[name]


def test_an_answer_is_runs(run, talker, tmp_path):
    """Of the module's chat, and of --batch, with a seed and nothing else; and of the model's own
    distribution."""
    (tmp_path / "m").write_text(json.dumps(QUESTION))
    lines = [{"messages": QUESTION, "seed": seed, "prompt": None} for seed in range(2)]
    lines.append({"custom_id": "a", "body": {"messages": QUESTION, "seed": 2}})
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    batch = run(talker, "--batch", tmp_path / "lines").stdout.splitlines()
    own = {name: 1.0 for name in OPTIONS}
    with heads.Model(talker, threads=1) as m:
        for seed, line in enumerate(batch):
            want = run(talker, "--messages", tmp_path / "m", "-s", seed).stdout.decode()
            assert m.chat(QUESTION, seed=seed) == want == json.loads(line)["text"]
            assert asyncio.run(m.achat(QUESTION, seed=seed)) == want
            options = [x for option in OPTIONS.values() for x in (option, 1)]
            free = run(talker, "--messages", tmp_path / "m", "-s", seed, *options)
            assert m.chat(QUESTION, seed=seed, **own) == free.stdout.decode() != want


def test_batch_options_are_for_answers_too(run, talker, tmp_path):
    (tmp_path / "m").write_text(json.dumps(QUESTION))
    line = json.dumps({"messages": QUESTION, "seed": 5}).encode()
    given = ["--temp", 2, "-n", 7]
    want = run(talker, "--messages", tmp_path / "m", "-s", 5, *given).stdout.decode()
    assert json.loads(run(talker, "--batch", "-", *given, input=line).stdout)["text"] == want


def test_a_text_is_runs(run, stories):
    want = run(stories, "-p", "One day", "-s", 3, "-n", 20).stdout.decode()
    with heads.Model(stories, threads=1) as m:
        assert "One day" + m.generate("One day", 20, seed=3) == want
