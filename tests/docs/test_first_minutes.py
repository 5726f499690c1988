"""What someone sees who has just built the program: make demo, a terminal, make help."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from conftest import ROOT

RUN = os.environ.get("HEADS_RUN", str(ROOT / "run"))


def at_terminal(*command: object) -> str:
    """What a terminal shows of stdout and stderr."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait(timeout=60) == 0, shown
    return shown.decode().replace("\r\n", "\n")


def in_one_pipe(*command: object) -> str:
    """What `2>&1 | cat` shows."""
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=60,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("shown_by", [at_terminal, in_one_pipe])
@pytest.mark.parametrize("mode", [[], ["--ids"]])
def test_closing_line_stands_alone(run, stories, shown_by, mode):
    options = [stories, "-p", "One day", "-n", 5, "--temp", 0, *mode]
    text = run(*options).stdout.decode()
    assert text.endswith("\n") == bool(mode)  # alone, stdout is what the model said and no more
    shown = shown_by(RUN, *options)
    assert shown.startswith(text) and re.fullmatch(
        r"\n?prompt \d+ tokens, .*; stopped: -n reached\n", shown[len(text) :]
    )
    assert shown[: shown.index("\nprompt ") + 1] == text.rstrip("\n") + "\n"


@pytest.mark.parametrize("shown_by", [at_terminal, in_one_pipe])
def test_demo(run, shown_by):
    shown = shown_by("make", "-C", ROOT, "demo")
    command = re.search(r"^\$ \./run (.*-s \d+)$", shown, re.MULTILINE)
    story = run(*[ROOT / a if a.endswith(".bin") else a for a in command[1].split()])
    text = story.stdout.decode().rstrip("\n")
    assert "stopped: end-of-text token" in story.stderr and text.endswith((".", "!", '"'))
    assert f"{command[0]}\n{text}\nprompt " in shown  # the whole story, and a line's end
    assert "bytes/token" in shown and "\n* GQA " in shown
    hints = re.sub(r"\nmake.*$", "", shown.rstrip("\n")).splitlines()[-2:]
    assert "./run models/stories.bin -p" in hints[0] and "make chat" in hints[1]


def test_make_help_lists_what_make_makes():
    shown = in_one_pipe("make", "-C", ROOT, "--no-print-directory", "help")
    goals = re.findall(r"^make ([a-z-]+)\b(?!=)", shown, re.MULTILINE)
    rules = (ROOT / "Makefile").read_text()
    assert len(goals) > 15 and len(set(goals)) == len(goals)
    assert [goal for goal in goals if not re.search(rf"^{goal}:", rules, re.MULTILINE)] == []
