"""The bundled models: what their README says of them, and the judge of names and pronouns."""

from __future__ import annotations

import random
import re

import pytest

from conftest import ROOT

from research import stories as grammar
from research.grammar import HE, SHE
from research.training.agreement import slip, verdict
from research.training.loops import LOOPING, repeated_share, repeats, sound_length


def test_the_program_has_the_model_in_itself(run, tmp_path):
    """Its bytes and their place; nothing beside it is read."""
    for options in (("-s", 1), ("-p", "One day", "-s", 2, "-n", 20), ("--check",)):
        alone, named = (
            run(*model, *options, cwd=tmp_path) for model in ((), (ROOT / "models/stories.bin",))
        )
        assert alone.returncode == named.returncode == 0
        text = named.stdout.replace(bytes(ROOT / "models/stories.bin"), b"the bundled model")
        assert alone.stdout == text and alone.stdout


def test_only_without_any_argument_does_it_say_which_model(run):
    note = "no model is named, so the bundled one tells a story"
    assert note in run().stderr
    assert note not in run("-s", 1).stderr


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Mia went home. He was sad.", "He"),
        ("A girl named Lilo ran. Then he sat down.", "he"),
        ("A fox named Zelda ran to Zelida.", "Zelida"),
        ("Leo and Ben ran. Leo lost her hat.", "her"),
        ("A dog saw a girl. He barked, and she laughed.", None),
        ("I went home with my friend. She was glad.", None),
    ],
)
def test_slips_of_names_and_pronouns(text, wrong):
    assert slip(text) == (None if wrong is None else text.rindex(wrong))


def test_the_grammars_own_stories_are_good():
    for seed in range(20):
        text = grammar.story(random.Random(seed))
        assert verdict(text) == "good" and slip(text) is None
        hero = next(name for name in SHE + HE if f" {name} " in text)
        assert verdict("Zelda".join(text.rsplit(hero, 1))).startswith("broken at character")


GOOD_OF_TEN = 10


def beginnings() -> list[str]:
    """Ten different ones, of five words."""
    rng, found = random.Random(77), {}
    while len(found) < 10:
        found[" ".join(grammar.story(rng).split()[:5])] = True
    return list(found)


def test_greedy_stories_keep_their_names(run, bundled):
    told = [
        run(bundled, "-p", text, "--temp", 0, "-n", 150).stdout.decode() for text in beginnings()
    ]
    good = [verdict(text) == "good" for text in told]
    assert sum(good) >= GOOD_OF_TEN and all(slip(text) is None for text in told)


def test_it_is_small(bundled):
    assert bundled.stat().st_size < 6_000_000


def test_demo_suggests_a_beginning_that_works(run, bundled):
    """With any seed: a whole story that does not go round in circles and keeps its names."""
    makefile = (ROOT / "Makefile").read_text()
    (beginning,) = re.findall(r'Try your own beginning: .* -p "(.*)"', makefile)
    for seed in range(1, 21):
        done = run(bundled, "-p", beginning, "-s", seed)
        text = done.stdout.decode()
        assert repeated_share(text) <= LOOPING and slip(text) is None, text
        assert "end-of-text token" in done.stderr, text


def test_repeats():
    assert repeats("abcabcab") == [0, 0, 0, 0, 0, 1, 2, 3]
    assert repeats("ab") == [0, 0] and repeats("") == []
    assert repeated_share("so so so so so") == 2 / 3 and repeated_share("one two") == 0
    assert sound_length(repeats("abcabcab"), 0.2) == 6  # one of six
    assert sound_length([], 0.2) == 0


def test_heads_goes_on_with_what_it_has_read(run):
    heads = ROOT / "models" / "heads.bin"
    assert heads.stat().st_size < 1 << 20
    text = "The cat saw a red ball and Zorba é 12 🦊. The cat saw a"
    done = run(heads, "-p", text, "-n", 5, "--temp", 0)
    assert done.returncode == 0
    assert done.stdout.decode().startswith(text + " red ball and Zor")
