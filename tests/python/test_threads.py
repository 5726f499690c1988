"""The module among threads and processes: models that are closed while others call, and the server's
thread, which outlives a request that fails and says so when it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import on_linux
from test_python import PYTHONPATH, in_child

import heads
from heads._batch import GenerateJob, Sampling
from heads.server.engine import Engine
from heads.server.requests import Refused


def test_models_are_closed_while_others_call(stories):
    script = Path(__file__).with_name("callers.py")
    command = [sys.executable, script, stories, "6"]
    done = subprocess.run(
        [str(part) for part in command], env=PYTHONPATH, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "6 models closed while 4 threads called them\n", done.stderr


def test_a_model_that_a_child_cannot_open_again(stories, tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(stories.read_bytes())
    with heads.Model(path) as gone, heads.Model(stories) as there:
        path.unlink()

        def use() -> str:
            with pytest.raises(heads.HeadsError, match="is closed: after a fork, .*m.bin"):
                gone.encode("Once")
            return there.generate("Once", 5, seed=1)

        assert in_child(use).decode() == there.generate("Once", 5, seed=1)
        assert gone.encode("Once") == there.encode("Once")


# ---- the server's thread ----


def submitted(engine: Engine, n: int = 8) -> tuple[GenerateJob, threading.Event]:
    job, done = (
        GenerateJob(engine.model, [5, *range(40, 120)], n, Sampling(), []),
        threading.Event(),
    )
    engine.submit([job], lambda: done.set() if job.done else None)
    return job, done


@pytest.fixture
def engine(stories):
    with heads.Model(stories, threads=1) as model:
        made = Engine(model, 2, 4)
        made.start()
        yield made
        made.stop()


LITTLE_MEMORY = """
import resource, sys, threading
import heads
from heads._batch import GenerateJob, Sampling
from heads.server.engine import Engine

def ask(first):
    job, done = GenerateJob(model, [first, *range(40, 120)], 8, Sampling(), []), threading.Event()
    engine.submit([job], lambda: done.set() if job.done else None)
    assert done.wait(60)
    return job

with heads.Model(sys.argv[1], threads=1) as model:
    engine = Engine(model, 2, 4)
    engine.start()
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, ((pages << 12) + (1 << 16), resource.RLIM_INFINITY))
    failed = [str(ask(first).error) for first in (5, 6, 7)]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    same = ask(8).bytes == ask(8).bytes != b""
    engine.check()
    print(failed[0], same, len(set(failed)))
    engine.stop()
"""


@on_linux
def test_a_failed_allocation_fails_its_request_alone(stories):
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, str(stories)],
        env=PYTHONPATH,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "for a KV cache of 512 positions True 1" in done.stdout, (done.stdout, done.stderr)


def no_memory(*_):
    raise MemoryError


def test_no_memory_for_a_request_or_its_text(engine, monkeypatch):
    class Full(GenerateJob):
        take_token = no_memory

    job, done = Full(engine.model, [5, 6], 50, Sampling(), []), threading.Event()
    engine.submit([job], lambda: done.set() if job.done else None)
    assert done.wait(60) and "no memory for what the model wrote" in str(job.error)
    monkeypatch.setattr(GenerateJob, "request", no_memory)
    other, done = submitted(engine)
    assert done.wait(60) and "no memory for the request" in str(other.error)
    monkeypatch.undo()
    last, done = submitted(engine)
    assert done.wait(60) and not last.error and not engine.batch.jobs


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_says_so(engine, monkeypatch):
    """To what waits, to what comes, and to what runs."""
    running, ended = submitted(engine, 400)

    def fail():
        raise AssertionError("as if")

    monkeypatch.setattr(engine.vectors, "step", fail)
    assert ended.wait(60) and "the engine has stopped" in str(running.error)
    engine.join(60)
    with pytest.raises(Refused, match="the engine has stopped") as refused:
        submitted(engine)
    assert refused.value.status == 503
    with pytest.raises(Refused):
        engine.check()


def test_a_listener_without_an_event_loop(engine):
    """Its client is gone; others are served."""

    def closed():
        raise RuntimeError("Event loop is closed")

    engine.submit([GenerateJob(engine.model, [5], 400, Sampling(), [])], closed)
    job, done = submitted(engine)
    assert done.wait(60) and not job.error
