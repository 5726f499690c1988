"""Every verb where 0, 1 or 2 is closed, where its output has no room, and under a shell's limits: it
does what it always does, or says why not and leaves nothing half done."""

from __future__ import annotations

import fcntl
import itertools
import os

import pytest

from conftest import on_linux
from faults import CASES, PROGRAM, make_models, restore
from verbs import Verb

SETPIPE_SZ = 1031  # of Linux; fcntl names it from Python 3.10 on

STREAMS = ("<&-", ">&-", "2>&-")
CLOSED = [shut for n in (1, 2, 3) for shut in itertools.combinations(STREAMS, n)]
LIMITS = ("n 4", "n 5", "n 6", "v 16000", "v 60000", "s 64", "f 0", "f 9")


@pytest.fixture(scope="module")
def verb(made_once, tmp_path_factory):
    """A function from a case's name to its verb, in a new folder."""
    models = {path.stem: path for path in made_once("fault-models", make_models).glob("*.bin")}
    return lambda name: Verb(name, models, tmp_path_factory.mktemp("verb"))


VERBS = [name for name, case in CASES.items() if case.program == PROGRAM and not case.measures]


@on_linux
@pytest.mark.parametrize("name", VERBS)
def test_closed_streams_full_ones_and_limits(verb, name):
    v = verb(name)
    ways = [("", " ".join(shut), "2>&-" not in shut) for shut in CLOSED]
    ways += [("", ">/dev/full", True), ("", "2>/dev/full", False)]
    ways += [(f"ulimit -{limit};", "", True) for limit in LIMITS]
    for before, after, heard in ways:
        done = v.run(before, f" {after}")
        wrong = v.wrong(done, heard)
        lost = (">&-" in after.split() and v.good.out) or ("<&-" in after and v.case.stdin)
        if not wrong and lost and done.status == 0:
            wrong = "status 0"
        assert not wrong, f"{name}, {before}{after}: {wrong}; {done.err[-500:]}"


@pytest.mark.parametrize("name", VERBS)
def test_a_reader_that_has_gone(verb, run, name):
    """That is no error."""
    v = verb(name)
    restore(v.folder, v.before)
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*v.words[1:], cwd=v.folder, input=v.case.stdin.encode(), stdout=writer)
    os.close(writer)
    assert done.returncode in (0, v.good.status) and "cannot write" not in done.stderr
    assert not list(v.folder.glob("*.tmp"))


def test_a_part_of_the_output_that_is_lost(run):
    """A pipe that does not wait has no room for a part in the middle, and then for the end."""
    whole = run("--help").stdout
    reader, writer = os.pipe()
    room = len(whole) % 4096 + 50
    size = fcntl.fcntl(writer, SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    os.write(writer, bytes(size - room))
    done = run("--help", stdout=writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        got = pipe.read()[size - room :]
    assert len(got) < len(whole) and room < 4096
    assert done.returncode == 1 and "run: cannot write to stdout" in done.stderr
