"""The bundled models: what their README says of them, and the judge of names and pronouns."""

from __future__ import annotations

import random
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "models"))

import stories as grammar  # noqa: E402
from agreement import slip, verdict  # noqa: E402


@pytest.mark.parametrize(("text", "wrong"), [
    ("Mia went home. He was sad.", "He"),
    ("A girl named Lilo ran. Then he sat down.", "he"),
    ("A fox named Zelda ran to Zelida.", "Zelida"),
    ("Leo and Ben ran. Leo lost her hat.", "her"),
    ("A dog saw a girl. He barked, and she laughed.", None),
    ("I went home with my friend. She was glad.", None),
])
def test_slips_of_names_and_pronouns(text, wrong):
    assert slip(text) == (None if wrong is None else text.rindex(wrong))


def test_the_grammars_own_stories_are_good():
    for seed in range(20):
        text = grammar.story(random.Random(seed))
        assert verdict(text) == "good" and slip(text) is None
        hero = next(name for name in grammar.SHE + grammar.HE if f" {name} " in text)
        assert verdict("Zelda".join(text.rsplit(hero, 1))).startswith("broken at character")


GOOD_OF_TEN = 10


def beginnings() -> list[str]:
    """Ten different ones, of five words."""
    rng, found = random.Random(77), {}
    while len(found) < 10:
        found[" ".join(grammar.story(rng).split()[:5])] = True
    return list(found)


def test_greedy_stories_keep_their_names(run, stories):
    told = [run(stories, "-p", text, "--temp", 0, "-n", 150).stdout.decode()
            for text in beginnings()]
    good = [verdict(text) == "good" for text in told]
    assert sum(good) >= GOOD_OF_TEN and all(slip(text) is None for text in told)


def test_heads_goes_on_with_what_it_has_read(run):
    heads = ROOT / "models" / "heads.bin"
    assert heads.stat().st_size < 1 << 20
    text = "The cat saw a red ball and Zorba é 12 🦊. The cat saw a"
    done = run(heads, "-p", text, "-n", 5, "--temp", 0)
    assert done.returncode == 0
    assert done.stdout.decode().startswith(text + " red ball and Zor")
