"""Ends programs by signals, and fills their disk: what they leave is the old result or the new one,
whole, and the next run gives what it always gives, beside what is left of temporary files.

    python tests/campaigns/kills.py N [--seed S]

Two of three kills come within a system call, half of whose bytes are written (fault_shim.c does
that); the others at any time. One in 100 meets export.py, one in 50 a container's first process,
one in 20 is a full disk instead. Needs leave to mount: root, or a user namespace."""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import conftest  # noqa: E402, F401  (makes the tests' folders known)
from faults import FILES, PROGRAM, Server, files_of, make_models, restore  # noqa: E402
from verbs import Verb  # noqa: E402

CASES = [
    "session, new",
    "session, longer",
    "translate, session",
    "batch to a file",
    "batch that goes on",
    "logits",
    "hidden",
    "heads",
    "heads, a page",
    "heads, translated",
    "kv",
    "kv of two",
    "chat",
    "chat that goes on",
]
KILL, TERM, HUP, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT
ENDS = [(KILL,), (KILL,), (TERM,), (HUP,), (INT,), (INT, INT)]
EXPORT = [sys.executable, ROOT / "export.py", ROOT / "tests/golden/llama", "x.bin"]
DISK = 48 << 20
SAVE = 0.001  # seconds
FIRST_PROCESS = ["unshare", "--pid", "--fork", "--kill-child"]
tally: collections.Counter = collections.Counter()


class Ended(NamedTuple):
    status: int
    out: bytes
    err: str
    files: dict[str, bytes]  # but for temporary ones
    stale: list[str]  # those


def ended_with(status: int, out: bytes, err: str, folder: Path) -> Ended:
    files = files_of(folder)
    stale = [name for name in files if name.endswith(".tmp")]
    return Ended(status, out, err, {n: files[n] for n in files if n not in stale}, stale)


# ---- running and killing ----


def child_of(pid: int) -> int:
    """The only child of a process, once it has one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    for _ in range(1000):
        if path.exists() and path.read_text().split():
            return int(path.read_text().split()[0])
        time.sleep(0.001)
    return pid


class Program:
    """A command in a folder."""

    def __init__(self, words: list, folder: Path, stdin: str = ""):
        self.words, self.folder = list(map(str, words)), folder
        self.streams = Path(tempfile.mkdtemp(dir=folder.parent.parent))  # not on the full disk
        (self.streams / "in").write_text(stdin, encoding="utf-8")
        self.seconds = 0.0

    def start(self, first: bool = False) -> subprocess.Popen:
        with open(self.streams / "in") as stdin, open(self.streams / "out", "wb") as out:
            with open(self.streams / "err", "wb") as err:
                words = [*FIRST_PROCESS * first, *self.words]
                return subprocess.Popen(words, cwd=self.folder, stdin=stdin, stdout=out, stderr=err)

    def end(self, process: subprocess.Popen) -> Ended:
        status = process.wait(timeout=120)
        out = (self.streams / "out").read_bytes()
        err = (self.streams / "err").read_text("utf-8", "replace")
        return ended_with(status, out, err, self.folder)

    def whole(self) -> Ended:
        return self.end(self.start())

    def time_it(self) -> None:
        """Finds out how long it takes, the median of a few runs."""
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            self.start().wait()
            times.append(time.perf_counter() - begin)
        self.seconds = sorted(times)[3]

    def saves(self) -> bool:
        return any(name.endswith(".tmp") for name in os.listdir(self.folder))

    def killed(self, ends: tuple, waits: list[float], first: bool, until_save: bool) -> Ended:
        """Waits before each signal; the first wait begins with the program, or with its temporary
        file."""
        process = self.start(first)
        pid = child_of(process.pid) if first else process.pid
        while until_save and not self.saves() and process.poll() is None:
            pass
        for number, wait in zip(ends, waits):
            time.sleep(wait)
            if process.poll() is None:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        return self.end(process)


class Stepped:
    """The same command under the shim, which counts its system calls."""

    def __init__(self, program: Program, stdin: str):
        self.folder = program.folder
        self.server = Server(program.words, program.folder, stdin)
        self.calls = self.server.run(kinds=FILES).calls

    def killed(self, number: int, n: int, again: int) -> Ended:
        run = self.server.run(n, again, FILES, number)
        status = os.waitstatus_to_exitcode(run.status)
        return ended_with(status, run.out, run.err, self.folder)


# ---- what must hold ----


def other_files(left: dict, allowed: list[dict], part: str = "") -> str:
    """A file that is none of the allowed ones; of the file `part` a beginning may be left."""
    for name in left.keys() | allowed[0].keys():
        versions = [files.get(name) for files in allowed]
        begun = name == part and name in left and versions[-1].startswith(left[name])
        if left.get(name) not in versions and not begun:
            return f"{name} is neither old nor new"
    return ""


def wrong_end(program: Program, good: Ended, ended: Ended, ends: tuple, talks: bool = False) -> str:
    allowed = {good.status, *(-n for n in ends), *(128 + n for n in ends)}
    if INT in ends or "export.py" in program.words[1]:
        allowed |= {130, 1}
    lost = ended.status == 1 and "unshare: " in ended.err  # it could not say how its child ended
    if ended.status not in allowed and not lost:
        return f"status {ended.status}"
    if ended.stale and KILL not in ends:
        return f"left {ended.stale}"
    if not good.out.startswith(ended.out.rstrip(b"\n")) and not talks:
        return "other text"
    if "Sanitizer" in ended.err:
        return "a sanitizer's complaint"
    return ""


# ---- one trial of each kind ----


class Case:
    """A verb that writes."""

    def __init__(self, name: str, models: dict[str, Path], folder: Path):
        self.verb = Verb(name, models, folder)
        self.name, self.results = name, self.verb.case.results
        self.program = Program(self.verb.words, self.verb.folder, self.verb.case.stdin)
        restore(self.verb.folder, self.verb.before)
        self.good = self.program.whole()
        self.new = {n: self.good.files[n] for n in self.good.files}
        self.program.time_it()
        restore(self.verb.folder, self.verb.before)
        self.stepped = Stepped(self.program, self.verb.case.stdin)

    def old(self, rng: random.Random) -> dict[str, bytes]:
        """What may lie there before: nothing, an older result, or a part of --batch's results."""
        old = dict(self.verb.before)
        if self.results and rng.random() < 0.5:
            whole = self.new[self.results]
            old[self.results] = whole[: rng.randrange(len(whole) + 1)]
        for name in self.new.keys() - old.keys() - {self.results, "s"}:
            if rng.random() < 0.5:
                old[name] = b'"old"'
        return old

    def again(self) -> str:
        """The same command on what is left, beside stale temporary files."""
        done = self.program.whole()
        if done.status != self.good.status:
            return f"the next run: status {done.status}, {done.err[-200:]}"
        if self.name == "chat that goes on":  # on its own results
            return ""
        if done.out != self.good.out and self.results != "stdout":
            return "the next run: other text"
        steady = {name: text for name, text in self.new.items() if name != "s"}
        left = {name: text for name, text in done.files.items() if name != "s"}
        return "" if left == steady else f"the next run: other files, {sorted(done.files)}"

    def kill(self, rng: random.Random, ends: tuple, first: bool) -> str:
        old = self.old(rng)
        restore(self.verb.folder, old)
        if first or rng.random() < 1 / 3:
            longest = self.program.seconds + 0.01 * first  # for unshare
            waits = [rng.uniform(0, longest), rng.uniform(0, longest / 2)]
            ended, when = self.program.killed(ends, waits, first, False), f"after {waits}"
        else:
            last = rng.choice((self.stepped.calls, 20))  # results are written at the end
            n = self.stepped.calls - rng.randrange(min(last, self.stepped.calls))
            again = rng.randint(1, 9) * (len(ends) - 1)
            ended, when = self.stepped.killed(ends[0], n, again), f"at call {n}, again {again}"
            tally["within a call"] += 1
        tally["ended by them"] += ended.status != self.good.status
        tally["left a temporary file"] += bool(ended.stale)
        files = ended.files
        talks = INT in ends and self.verb.case.goes_on  # an answer ends, and the talk goes on
        for name in list(files):
            if talks and name.endswith(".json"):
                json.loads(files[name])
            if INT in ends and (talks or name == "s"):  # shorter, and the next run reads it
                files[name] = self.new.get(name, files[name])
        wrong = wrong_end(self.program, self.good, ended, ends, talks)
        wrong = wrong or other_files(files, [old, self.new], self.results)
        return f"{wrong} {when}; {ended.err[-200:]}" if wrong else self.again()

    def fill(self, rng: random.Random) -> str:
        """Runs with little room on the disk."""
        old = self.old(rng)
        restore(self.verb.folder, old)
        room = rng.randrange(sum(map(len, self.new.values())) + 8192)
        filler = self.verb.folder.with_name("filler")
        stat = os.statvfs(self.verb.folder)
        with open(filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, stat.f_bavail * stat.f_frsize - room))
        done = self.program.whole()
        filler.unlink()
        tally["full disks met"] += done.status == 1 and "No space left" in done.err
        wrong = other_files(done.files, [old, self.new], self.results)
        if done.stale:
            wrong = f"left {done.stale}"
        failed = done.status == 1 and "run: " in done.err
        if not failed and (done.status != self.good.status or other_files(done.files, [self.new])):
            wrong = f"status {done.status} with other files"
        return f"{wrong} with room for {room}; {done.err[-200:]}" if wrong else self.again()


class Export:
    """export.py, which takes long to start."""

    name = "export.py"

    def __init__(self, folder: Path):
        folder.mkdir()
        self.program, self.folder = Program(EXPORT, folder), folder
        self.good = self.program.whole()
        assert self.good.status == 0, self.good
        self.program.time_it()

    def kill(self, rng: random.Random, ends: tuple, first: bool) -> str:
        old = rng.choice([{}, {"x.bin": b"old"}])
        restore(self.folder, old)
        until_save = rng.random() < 0.5
        waits = [rng.uniform(0, SAVE if until_save else self.program.seconds), rng.uniform(0, SAVE)]
        ended = self.program.killed(ends, waits, first, until_save)
        tally["ended by them"] += ended.status != 0
        tally["left a temporary file"] += bool(ended.stale)
        wrong = wrong_end(self.program, self.good, ended, ends)
        wrong = wrong or other_files(ended.files, [old, self.good.files])
        if wrong:
            return f"{wrong} after {waits}; {ended.err[-200:]}"
        done = self.program.whole()
        return "" if done.status == 0 and done.files == self.good.files else "the next run"


def wrong_first_process(model: Path) -> str:
    """A container's first process ends by signals, which such a process does not do by itself."""
    for number in (TERM, HUP):
        words = [*FIRST_PROCESS, PROGRAM, model, "--chat"]
        with subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE) as process:
            pid, caught, end = child_of(process.pid), 0, time.monotonic() + 60
            while not caught >> (number - 1) & 1 and time.monotonic() < end:
                status = Path(f"/proc/{pid}/status").read_text()
                caught = int(status.partition("SigCgt:")[2].split()[0], 16)
            os.kill(pid, number)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.kill(pid, KILL)
        if process.returncode != 128 + number:
            return f"a first process and {number.name}: status {process.returncode}"
    return ""


# ---- all of them ----


def campaign(n: int, seed: int, folder: Path) -> int:
    models = folder / "models"
    models.mkdir()
    with open(os.devnull, "w") as sink:
        stdout, sys.stdout = sys.stdout, sink
        made = make_models(models)
        sys.stdout = stdout
    cases = [Case(name, made, folder) for name in CASES]
    export = Export(folder / "export")
    rng, problems = random.Random(seed), 0
    if wrong_first_process(made["talker"]):
        print(wrong_first_process(made["talker"]))
        problems += 1
    for i in range(n):
        case, ends = rng.choice(cases), rng.choice(ENDS)
        if i % 20 == 19:
            kind, wrong = "full disk", case.fill(rng)
        else:
            case = export if i % 100 == 50 else case
            first = i % 50 == 25
            kind = " ".join(e.name for e in ends) + " to a first process" * first
            wrong = case.kill(rng, ends, first)
        tally[kind.split(" to ")[0]] += 1
        tally["first processes"] += "first process" in kind
        if wrong:
            problems += 1
            print(f"{i} of seed {seed}: {case.name}, {kind}: {wrong}", flush=True)
        for path in case.program.folder.glob("*.tmp"):
            path.unlink()
    counts = ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))
    print(f"{n} kills and full disks of {len(cases) + 1} commands ({counts}): {problems} wrong")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "HEADS_DISK" not in os.environ:  # again, where it may mount
        leave = ["unshare", "--mount"] + ["--map-root-user"] * (os.geteuid() != 0)
        command = [*leave, sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, "HEADS_DISK": "1"}).returncode
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder) / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", f"-osize={DISK}", "none", disk], check=True)
        try:
            return campaign(options.n, options.seed, disk)
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)


if __name__ == "__main__":
    sys.exit(main())
