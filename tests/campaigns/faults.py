"""Faults: every verb, with its n-th allocation, system call or new thread failing, for every n, once
and for good; then n and how often at random, until N runs have failed somewhere. SQLite's ladders
(sqlite.org/testing.html) are the model; tests/support/faults.py says what a run may do.

    python tests/campaigns/faults.py N [--seed S] [--case NAME --call N [--again K] [--kinds K]]

HEADS_RUN names another program, such as ./run-asan. N 0: the ladders alone, without that of --bench,
whose runs take seconds. A failure is printed with the options that repeat it. Build with
`make run c-tests` before."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import conftest  # noqa: E402, F401  (the folders of tests)
import faults  # noqa: E402

KINDS = (faults.EVERY, faults.MEMORY, faults.FILES, faults.THREADS | faults.MEMORY)
SHOWN = 20  # failures
STEPS_OF_BENCH = 8  # a run takes seconds


class Worker(threading.local):
    """Each thread has programs and folders of its own."""

    def __init__(self, models: dict[str, Path], folder: Path):
        self.models, self.folder = models, folder / str(threading.get_ident())
        self.folder.mkdir()
        self.ladders: dict[str, faults.Ladder] = {}

    def ladder(self, name: str) -> faults.Ladder:
        if name not in self.ladders:
            self.ladders[name] = faults.Ladder(name, self.models, self.folder)
        return self.ladders[name]

    def step(self, fault: tuple[str, int, int, int]) -> str:
        """What went wrong, and how to see it again; empty: nothing."""
        name, n, again, kinds = fault
        problem = self.ladder(name).step(n, again, kinds)
        options = f"--case '{name}' --call {n} --again {again} --kinds {kinds}"
        return problem and f"{problem}\n  {options}"


def plan(calls: dict[str, int], n: int, seed: int) -> Iterator[tuple[str, int, int, int]]:
    """The ladders, and random faults up to n in all."""
    done = 0
    for name, most in calls.items():
        stride = max(1, 2 * most // STEPS_OF_BENCH) if name == "bench" else 1
        for again in (0, 1):
            for call in range(1, most + 1, stride):
                yield name, call, again, faults.EVERY
                done += 1
    rng, names = random.Random(seed), [name for name in calls if name != "bench"]
    for _ in range(done, n):
        name = rng.choice(names)
        again, kinds = rng.choice((0, 1, 2, 3, 5, 10, 20)), rng.choice(KINDS)
        yield name, rng.randint(1, calls[name]), again, kinds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--case", choices=faults.CASES)
    parser.add_argument("--call", type=int, default=0)
    parser.add_argument("--again", type=int, default=0)
    parser.add_argument("--kinds", type=int, default=faults.EVERY)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "models").mkdir()
        models = faults.make_models(folder / "models")
        worker = Worker(models, folder)
        if options.case:
            print(worker.step((options.case, options.call, options.again, options.kinds)))
            return 0
        names = [name for name in faults.CASES if options.n or name != "bench"]
        calls = {name: worker.ladder(name).calls for name in names}
        runs, problems = 0, []
        with ThreadPoolExecutor(options.jobs) as pool:
            for problem in pool.map(worker.step, plan(calls, options.n, options.seed)):
                runs += 1
                problems += [problem] if problem else []
        library = faults.library_ladder(models, folder, 1)
    print("\n".join(problems[:SHOWN]) + library.stdout + library.stderr, end="")
    print(
        f"{runs} faults (seed {options.seed}) in {len(calls)} command lines, which make "
        f"{sum(calls.values())} calls that may fail: {len(problems)} went wrong"
    )
    return 1 if problems or library.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
