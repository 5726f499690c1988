"""Every option beside every verb: the verbs that it means something for take it, all others refuse
it by name, before the model is opened."""

from __future__ import annotations

import re

import pytest

from conftest import run_command

VERBS = {  # what asks for it, and its name in sentences
    "generation": [],
    "--chat": ["--chat"],
    "--batch": ["--batch", "FILE"],
    "--logits": ["--logits", "FILE"],
    "--hidden": ["--hidden", "FILE"],
    "--heads": ["--heads", "FILE.html", "-p", "text"],
    "--lens": ["--lens", "FILE.json"],
    "--patch": ["--patch", "TEXT", "-p", "text"],
    "--attribute": ["--attribute", "TOKEN", "-p", "text"],
    "--parts": ["--parts", "0.0", "-p", "text"],
    "--experiment": ["--experiment", "FILE"],
    "--verify": ["--verify", "FILE"],
    "--ppl": ["--ppl", "FILE"],
    "--embed": ["--embed", "-p", "text"],
    "--similar": ["--similar", "QUERY", "-f", "FILE"],
    "--classify": ["--classify", "-p", "text"],
    "--rank": ["--rank", "QUERY", "-f", "FILE"],
    "--kv": ["--kv"],
    "--info": ["--info"],
    "--bench": ["--bench"],
    "--check": ["--check"],
    "--tokenize": ["--tokenize"],
}
ROWS = "--logits --hidden --heads --lens"
TRIES = "--patch --attribute --parts"
WRITES = "generation --chat --batch"
READS = "--embed --similar --classify --rank"
RUNS = f"{WRITES} {ROWS} {TRIES} --ppl {READS} --kv --bench"
CACHED = "generation --logits --heads"
CONVERSATION = f"generation --chat {ROWS} --tokenize"
WRITING = f"{WRITES} --heads"
OPTIONS = {  # option and value: the verbs that use it
    "-p TEXT": f"generation --chat {ROWS} {TRIES} --embed --classify --tokenize",
    "-f FILE": f"generation {ROWS} {TRIES} --tokenize {READS}",
    "--tokens 1": f"generation {ROWS} {TRIES}",
    "--lang CODE": f"{CACHED} --lens --batch --tokenize",
    "--target 1": ROWS,
    "--messages FILE": CONVERSATION,
    "-sys TEXT": "--chat",
    "--no-think": CONVERSATION,
    "--no-history": "--chat",
    "-n 1": WRITING,
    "-s 1": WRITING,
    "--temp 1": WRITING,
    "--top-k 1": WRITING,
    "--top-p 1": WRITING,
    "--min-p 1": WRITING,
    "--repeat-penalty 1": WRITING,
    "--ids": "generation",
    "--no-echo": "generation",
    "--probs 3": "generation",
    "--prompt-cache FILE": CACHED,
    "--prompt-cache-ro": CACHED,
    "--guess 0": "generation --chat --batch",
    "--lookup 1": "generation --chat",
    "-md DRAFT": "generation --chat",
    "--draft 1": "generation --chat",
    "-c 9": RUNS,
    "-t 1": f"{RUNS} --experiment --verify",
    "-b 1": RUNS,
    "-ctk q8": RUNS,
    "-ctv q8": RUNS,
    "--memory 1G": "--kv",
    "--svg FILE.svg": "--kv",
    "-np 1": "--bench --batch",
    "-o FILE": "--batch",
    "--again": "--batch",
    "--dimensions 1": "--embed --similar",
    "--json": f"generation --kv --info --bench --classify {TRIES}",
    "--answer 1,2": "--patch",
    "--of heads": "--patch",
    "--metric kl": "--patch",
    "--heads-max 1": "--heads",
    "--no-cost": "--heads",
    "--adapter FILE": RUNS.replace(" --kv", ""),
    "--off 0.0": f"generation --chat {ROWS} {TRIES} --ppl",
    "--steer FILE": f"{WRITES} {ROWS} --parts --ppl",
}


ALSO = {  # other names
    "-m": "--model",
    "-p": "-i",
    "--chat": "-cnv",
    "-s": "--seed",
    "--temp": "--temperature",
    "-t": "--threads",
    "--help": "-h",
    "--version": "-v",
}


def test_the_table_has_every_option():
    text = run_command("--help").stdout.decode()
    options = dict(re.findall(r"^  (-[^\s,]+)(?:, (-\S+))?", text, re.MULTILINE))
    selecting = {words[0] for words in VERBS.values() if words} | {
        *("-m", "--help", "--man", "--completion", "--version")
    }
    assert set(options) == {option.split()[0] for option in OPTIONS} | selecting
    assert {name: also for name, also in options.items() if also} == ALSO


def test_another_name_is_the_same_option(run, stories):
    lines = [
        run(*words).stdout
        for words in (
            [stories, "-p", "One", "-s", 3, "--temp", 0.5, "-t", 1, "-n", 9],
            ["--model", stories, "-i", "One", "--seed", 3, "--temperature", 0.5, "--threads", 1]
            + ["-n", 9],
        )
    ]
    assert lines[0] == lines[1] != b""
    assert run("-h").stdout == run("--help").stdout
    assert run("-v").stdout == run("--version").stdout and run("-v").stdout.startswith(b"heads 0.")


@pytest.mark.parametrize(
    "given, meant",
    [
        ("--sead", "--seed"),
        ("--temprature", "--temperature"),
        ("--temp=0.5", "--temp 0.5"),
        ("--topk", "--top-k"),
        ("--promt-cache", "--prompt-cache"),
        ("--halp", "--help"),
        ("-q", None),
        ("--n-gpu-layers", None),
        ("--" + "x" * 100, None),
        ("--" + "x" * 100 + "=" + "y" * 100, None),
    ],
)
def test_an_unknown_option_names_the_nearest(run, given, meant):
    done = run("MODEL", given)
    assert done.returncode == 2 and f'there is no option "{given}"' in done.stderr
    assert (f"; did you mean {meant}? (" in done.stderr) if meant else "mean" not in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_options_of_a_verb(run, tmp_path, verb):
    for option, verbs in OPTIONS.items():
        words = option.split()
        done = run("MISSING", *VERBS[verb], *words, cwd=tmp_path)
        refused = f"{words[0]} means nothing for {verb} " in done.stderr
        assert refused == (verb not in verbs.split()), (option, done.stderr)
        assert done.returncode == 2 if refused else done.returncode in (1, 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("first", VERBS)
@pytest.mark.parametrize("second", VERBS)
def test_one_verb_at_a_time(run, first, second):
    """--logits and --heads may go together."""
    if "generation" in (first, second) or first == second:
        return
    done = run("MISSING", *VERBS[first], *VERBS[second])
    together = {first, second} == {"--logits", "--heads"}
    assert ("one thing at a time" in done.stderr) == (not together)
