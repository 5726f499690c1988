"""A verb's part of --help, the manual page, and completion for three shells: all made of the one
table of options."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from test_options import ALSO, OPTIONS, VERBS

EVERY = {option.split()[0] for option in OPTIONS} | {w[0] for w in VERBS.values() if w}
EVERY |= {"-m", "--help", "--man", "--completion", "--version", *ALSO.values()}


def printed(run, *words: str) -> str:
    done = run(*words)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout.decode()


def shell(*command: object) -> str:
    """What a command prints, which has no word to say on stderr."""
    if not shutil.which(str(command[0])):
        pytest.skip(f"wants {command[0]}")
    done = subprocess.run([*map(str, command)], stdout=-1, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_the_part_of_a_verb(run, verb):
    """The verb itself, and each option that means something for it, as the whole list has them."""
    text = printed(run, "--help", verb)
    named = re.findall(r"^  (-[^\s,]+)", text, re.MULTILINE)
    wanted = [o.split()[0] for o, verbs in OPTIONS.items() if verb in verbs.split()]
    together = {"--logits": ["--heads"], "--heads": ["--logits"]}
    assert sorted(named) == sorted([*VERBS[verb][:1], *wanted, *together.get(verb, [])])
    rows = [line for line in text.splitlines() if line.startswith("  ")]
    assert set(rows) <= set(printed(run, "--help").splitlines())
    headings = re.findall(r"^\S.*:$", text, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert printed(run, "help", verb.lstrip("-")) == printed(run, "-h", verb) == text
    assert text.splitlines()[0].startswith(" ".join(["./run [MODEL]", *VERBS[verb][:1]]))


def test_help_without_a_verb(run):
    assert printed(run, "help") == printed(run, "--help")
    assert printed(run, "help", "cnv") == printed(run, "help", "chat")


@pytest.mark.parametrize(
    "given, said",
    [
        ("cht", 'there is no verb "cht"; did you mean chat? ('),
        ("--tokenise", 'there is no verb "--tokenise"; did you mean tokenize? ('),
        ("top-k", 'there is no verb "top-k", only generation, --chat, --kv, '),
        ("", 'there is no verb "", only generation, '),
    ],
)
def test_a_wrong_verb(run, given, said):
    for ask in ("help", "--help"):
        done = run(ask, given)
        assert done.returncode == 2 and said in done.stderr and done.stdout == b""


def test_a_wrong_shell(run):
    for words in ([], ["csh"]):
        done = run("--completion", *words)
        assert done.returncode == 2 and "--completion wants bash, zsh or fish" in done.stderr


def test_manual(run, tmp_path):
    text = printed(run, "--man")
    plain = re.sub(r"\\f[BR]", "", text).replace("\\-", "-")
    assert set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", plain)) >= EVERY
    assert [line for line in text.splitlines() if line.startswith((".", "'"))] == re.findall(
        r"^\.(?:TH|SH|SS|TP|B|br)\b.*", text, re.MULTILINE
    )
    (tmp_path / "heads.1").write_text(text)
    shell("mandoc", "-Tlint", "-W", "error", tmp_path / "heads.1")


def completed_by_bash(text: str, line: str) -> list[str]:
    words = line.split(" ")
    script = f'{text}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _heads; echo "${{COMPREPLY[*]}}"'
    return shell("bash", "-c", script).split()


def completed_by_fish(text: str, line: str) -> list[str]:
    script = f"{text}\ncomplete -C '{line}'"
    return [found.split("\t")[0] for found in shell("fish", "-c", script).splitlines()]


@pytest.mark.parametrize("complete", [completed_by_bash, completed_by_fish])
def test_completion(run, complete):
    text = printed(run, "--completion", complete.__name__.rpartition("_")[2])
    assert set(complete(text, "heads --to")) == {"--tokens", "--top-k", "--top-p", "--tokenize"}
    assert sorted(complete(text, "heads -ctv q")) == ["q4", "q8"]
    assert complete(text, "heads --help ch") == ["chat", "check"]
    assert complete(text, "heads --completion z") == ["zsh"]


def test_completion_by_zsh(run, tmp_path):
    text = printed(run, "--completion", "zsh")
    assert set(re.findall(r"^    '(--?[\w-]+)\[", text, re.MULTILINE)) == EVERY
    (tmp_path / "_heads").write_text(text)
    shell("zsh", "-n", tmp_path / "_heads")
