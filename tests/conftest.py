"""What the tests share: the program under test, models, and the last line that `make test`
prints."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Every core has a worker of pytest's already, and threads of numpy's that wait for their turn cost
# several times the work itself. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What ./run exports by itself stays in the build.
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "cache")
# Tests of one folder use what another folder's tests have made.
FOLDERS = ["", "support", "reference", "engine", "text", "export", "cli", "python", "docs"]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / folder) for folder in FOLDERS)]
if not os.environ.get("HEADS_INSTALLED"):  # else the package that pip installed
    sys.path.insert(0, str(ROOT / "python"))

import checkpoints  # noqa: E402  (found through the line above)

import export  # noqa: E402


# What a run draws by chance, each of pytest's workers the same; the end of its output says it.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID")
SEED = os.environ.setdefault("HEADS_SEED", str(random.Random(RUN).randrange(10**6)))
# A test that takes many seconds: a step of CI runs it.
ALL = os.environ.get("HEADS_TESTS") == "all"
takes_long = pytest.mark.skipif(not ALL, reason="takes long: CI runs it with HEADS_TESTS=all")


def tries(n: int) -> int:
    """A quarter of them; all in CI's step."""
    return n if ALL else n // 4


def drawn(items, share: int) -> list:
    """One in `share` of them, but one at least, by chance; all in CI's step."""
    items = list(items)
    return items if ALL else random.Random(SEED).sample(items, -(-len(items) // share))


def in_part(share: int):
    """For a test of several cases: so much of them, as `drawn` does. Where nothing is said, it is a
    half of 4 cases or more, a third of 8, and a fourth of 16."""
    return pytest.mark.in_part(share)


# Files whose tests take a second each and more.
BY_TURNS = {
    "test_bad_files",
    "test_batch",
    "test_bench",
    "test_bundled",
    "test_cache",
    "test_calibrate",
    "test_chat",
    "test_container",
    "test_gguf",
    "test_heads",
    "test_limits",
    "test_mixtures",
    "test_plan",
    "test_tokenizer",
    "test_tokenizer_files",
    "test_unigram",
    "test_wordpiece",
}


def pytest_configure(config) -> None:
    config.addinivalue_line(
        "markers", "in_part(share): make test draws one in `share` of the cases"
    )


# Whoever started us may have had these ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_command(*args: object, **options) -> subprocess.CompletedProcess:
    """Runs ./run (or the program that HEADS_RUN names) with these arguments; stdout is bytes,
    stderr text.

    options: input (bytes for stdin), env (added to the environment), and what subprocess.run takes.
    """
    env = {**os.environ, **options.pop("env", {})}
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120, **options}
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run([program, *map(str, args)], env=env, **options)
    text = done.stderr.decode("utf-8", "replace") if done.stderr is not None else ""
    # Wine's own line, where a process ends while a thread of it only begins.
    done.stderr = re.sub(r"wine client error:\w+: sendmsg: .*\n", "", text)
    return done


def pytest_collection_modifyitems(items) -> None:
    """HEADS_CASES=N:SEED takes of each test an Nth of its cases, but one at least, by chance, and
    in_part takes less of some. A run of all tests takes a fourth of those in BY_TURNS. Every worker
    of pytest's draws the same."""
    least, _, seed = os.environ.get("HEADS_CASES", "1:").partition(":")
    of_test: dict[str, list] = {}
    for item in items:
        of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    rng, taken = random.Random(seed or SEED), set()
    by_turns = BY_TURNS if len(of_test) > 800 and not ALL else ()
    for name, cases in of_test.items():
        if Path(name.partition("::")[0]).stem in by_turns and rng.randrange(4):
            continue
        mark = None if ALL else cases[0].get_closest_marker("in_part")
        usual = 1 if ALL or len(cases) < 4 else min(4, 2 + len(cases) // 8)
        share = max(int(least), mark.args[0] if mark else usual)
        taken.update(rng.sample(cases, -(-len(cases) // share)))
    items[:] = [item for item in items if item in taken]


@pytest.fixture(scope="session")
def run():
    """A function that runs the program: run("model.bin", "-p", "Once"); see run_command."""
    program = Path(os.environ.get("HEADS_RUN", ROOT / "run"))
    assert program.exists(), f"{program} is not built: run make"
    return run_command


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """A function that makes a folder by a name and a function that fills it, in one of pytest's
    workers; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill) -> Path:
        folder = shared / f"once-{name}"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "made").exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                (folder / "made").touch()
        return folder

    return make


@pytest.fixture(scope="session", autouse=True)
def templates_once(made_once) -> None:
    """What chats.metadata_of compiles is compiled once, for all workers."""
    import chats

    chats.made_once = made_once


@pytest.fixture(scope="session")
def bundled() -> Path:
    """The model that tells a story where no model is named."""
    return ROOT / "models" / "stories.bin"


@pytest.fixture(scope="session")
def stories(made_once) -> Path:
    """A smaller teller of stories, models/hf in q8."""

    def fill(folder: Path) -> None:
        assert export.main([str(ROOT / "models/hf"), str(folder / "stories.bin")]) == 0

    return made_once("stories", fill) / "stories.bin"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, stories) -> Path:
    """A small model with random weights and the tokenizer of `stories`: GQA, 6 query and 2 KV
    heads, context 512."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.bin"
    path.write_bytes(checkpoints.random_model(tokenizer=stories))
    return path


@pytest.fixture(scope="session")
def bare(tmp_path_factory) -> Path:
    """The same without a tokenizer, vocabulary 300."""
    path = tmp_path_factory.mktemp("bare") / "bare.bin"
    path.write_bytes(checkpoints.random_model())
    return path


@pytest.fixture(scope="session")
def fault_models(made_once) -> dict[str, Path]:
    """The models of support/faults.py."""
    import faults

    folder = made_once("fault-models", faults.make_models)
    return {path.stem: path for path in folder.glob("*.bin")}


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A function from a golden family's name to its checkpoint in q8, made once."""
    folder = tmp_path_factory.mktemp("exported")

    def make(name: str) -> Path:
        path = folder / f"{name}.bin"
        if not path.exists():
            assert (
                export.main([str(ROOT / "tests" / "golden" / name), str(path), "--dtype", "q8"])
                == 0
            )
        return path

    return make


on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="asks Linux: /proc, /dev/full, limits, its linker or loader"
)

_failed: set[str] = set()
_passed: set[str] = set()


def pytest_runtest_logreport(report):
    """A test that fails in its set-up, its body or its clean-up has failed; one that was skipped is
    neither."""
    if report.failed:
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_collectreport(report):
    """A test file that cannot be read is a failure."""
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """The very last line, and before it what repeats a run."""
    if not ALL and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"HEADS_SEED={SEED} draws the same cases")
    print(f"{len(_passed - _failed)} passed, {len(_failed)} failed", flush=True)
