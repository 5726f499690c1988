"""The n-th allocation, system call or thread of a program fails, for every n: what the program must
do then, and the command lines that are tried. tests/c/fault_shim.c makes the calls fail."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import checkpoints
import talkers
from conftest import ROOT

SHIM = Path(os.environ.get("HEADS_FAULT_SHIM", ROOT / "build/tests/c/fault_shim.so"))
MEMORY, THREADS, FILES = 1, 2, 4
EVERY = MEMORY | THREADS | FILES
PROGRAM = os.environ.get("HEADS_RUN", str(ROOT / "run"))
# Its library comes after the shim, which calls it, and counts what is left better: the filter of
# system calls stops the thread that would look for leaks.
SANITIZER = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}


class Case(NamedTuple):
    """A command line. {name} in it is a model; all other files lie in its folder."""

    arguments: str
    stdin: str = ""
    files: dict[str, str] = {}
    made_by: str = ""  # a command line that makes more files, such as a session
    results: str = ""  # a file of --batch's results, or "stdout"
    measures: bool = False  # numbers differ from run to run
    goes_on: bool = False  # when a turn or a request fails
    program: str = PROGRAM


REQUESTS = """\
{"id": 1, "prompt": "One day, a fox went to the old town by the river and said that", "max_tokens": 4}
{"id": "two \\u00e9", "prompt": "One day, a fox went to the old town by the river", "stop": ["zq"]}
{"tokens": [5, 6, 7], "max_tokens": 3, "seed": 4, "temperature": 0.7, "stop": "zzz"}
{"id": 4, "prompt": 9}
no JSON
{"id": 6, "prompt": "", "max_tokens": 2}
{"id": 7, "prompt": "x", "max_tokens": 0, "unknown": 1}
"""
TALK = """\
[{"role": "user", "content": "what is it?"}, {"role": "assistant", "content": "a fox"},
 {"role": "user", "content": "a2 and b2"}]
"""
TYPED = "what\\\nis it?\n/save kept.json\n/reset\nand b2?\n/exit\n"
TEXT = "One day, a fox went to the old town by the river. It said: caf\u00e9!\nThen it slept.\n"
WORDS = "abc de\nfgh\n\nthe quick brown fox\n"

CASES = {
    "generate": Case("{tiny} -p 'One day' -n 4"),
    "a file": Case("{tiny} -f text -n 2 -t 2 -b 8", files={"text": TEXT}),
    "stdin": Case("{tiny} -p - -n 2 -ctk q8 -ctv q4", stdin=TEXT),
    "ids": Case("{bare} --tokens '1 2 3' -n 3 --ids -t 3"),
    "lookup": Case("{bare} --tokens '1 2 3 1 2 3 1 2 3' -n 6 --lookup 7 --temp 0"),
    "draft": Case("{bare} --tokens '1 2 3' -n 6 -md {draft} --temp 0"),
    "states": Case("{states} --tokens '1 2 3 1 2 3 1 2' -n 6 --lookup 4 --temp 0 --prompt-cache s"),
    "draft of windows": Case("{windows} --tokens '1 2 3' -n 12 -md {draft} -c 20"),
    "messages": Case("{talker} --messages talk.json -n 3", files={"talk.json": TALK}),
    "chat": Case("{plain} --chat -n 3 -sys abc", stdin=TYPED, goes_on=True),
    "chat with windows": Case("{forgetful} --chat -n 3", stdin=TYPED, goes_on=True),
    "chat that goes on": Case(
        "{talker} --chat -n 3 --messages talk.json",
        stdin="/save talk.json\n",
        files={"talk.json": TALK},
        goes_on=True,
    ),
    "session, new": Case("{bare} --tokens '1 2 3 4 5' -n 2 --prompt-cache s"),
    "session, longer": Case(
        "{bare} --tokens '1 2 3 4 5 6 7 8' -n 2 --prompt-cache s",
        made_by="{bare} --tokens '1 2 3 4 5' -n 2 --prompt-cache s",
    ),
    "session, read": Case(
        "{bare} --tokens '1 2 3 4 5 6 7 8' -n 2 --prompt-cache s --prompt-cache-ro",
        made_by="{bare} --tokens '1 2 3 4 5' -n 2 --prompt-cache s",
    ),
    "batch": Case("{tiny} --batch in -n 3", files={"in": REQUESTS}, results="stdout"),
    "batch, stdin": Case("{tiny} --batch - -n 3 -np 2 -t 2", stdin=REQUESTS, results="stdout"),
    "batch to a file": Case("{tiny} --batch in -n 3 -o out", files={"in": REQUESTS}, results="out"),
    "batch that goes on": Case(
        "{tiny} --batch in -n 3 -o out",
        files={"in": REQUESTS},
        made_by="head -n 3 in > in.3; {run} {tiny} --batch in.3 -n 3 -o out; rm in.3",
        results="out",
    ),
    "batch of messages": Case(
        "{talker} --batch in -n 3",
        files={"in": '{"messages": %s}\n{"messages": 1}\n' % TALK.replace("\n", "")},
        results="stdout",
    ),
    "batch of translations": Case(
        "{translator} --batch in -n 3",
        files={
            "in": '{"prompt": "cab", "lang": "fr_XX"}\n{"id": 2, "prompt": "cab", "lang": "x"}\n'
        },
        results="stdout",
    ),
    "translate": Case("{translator} -p cab -n 4 --lang ro_RO:fr_XX"),
    "translate, guessing": Case("{translator} -p cab -n 6 --lang fr_XX --lookup 3"),
    "translate, session": Case("{translator} -p cab -n 4 --lang fr_XX --prompt-cache s"),
    "fill": Case("{encoder} -p '(The [MASK]) of it, [MASK].'"),
    "embed": Case("{encoder} --embed -f words -t 2", files={"words": WORDS}),
    "similar": Case("{encoder} --similar 'the fox' -f words", files={"words": WORDS}),
    "perplexity": Case("{tiny} --ppl text -c 16", files={"text": TEXT}),
    "logits": Case("{bare} --tokens '1 2 3' --logits x"),
    "hidden": Case("{encoder} -p 'abc de' --hidden x", files={"x": "old"}),
    "heads": Case("{tiny} -p 'One day, a fox' --heads h.json --logits x"),
    "heads, a page": Case("{tiny} -p 'One day, a fox' --heads h.html --heads-max 1"),
    "heads, translated": Case("{translator} -p cab --heads h.json --lang fr_XX -n 4"),
    "off": Case("{tiny} -p 'One day, a fox' --off 0.1,0.3 -n 4"),
    "probabilities": Case("{tiny} -p 'One day, a fox' --probs 3 -n 0 --json"),
    "probabilities, generated": Case("{bare} --tokens '1 2 3' --probs 2 -n 3"),
    "lens": Case("{tiny} -p 'One day, a fox' --lens x.json", files={"x.json": "old"}),
    "lens, floats": Case("{translator} -p cab --lens x.f32 --lang fr_XX"),
    "kv": Case("{bare} --kv --memory 1G --svg x.svg -c 64"),
    "kv, JSON": Case("{windows} --kv --json --memory 1G"),
    "kv of two": Case("{bare} {tiny} --kv --memory 1G --svg x.svg"),
    "info": Case("{talker} --info"),
    "info, JSON": Case("{translator} --info --json"),
    "check": Case("{bare} --check"),
    "tokenize": Case("{tiny} --tokenize -f text", files={"text": TEXT}),
    "help": Case("--help"),
    "the example": Case("{tiny}", goes_on=True, program=str(SHIM.parent / "example")),
    "bench": Case("{bare} --bench -np 1,2 -t 2 --json", measures=True),
}


def make_models(folder: Path) -> dict[str, Path]:
    """The models that the cases name."""
    import classifiers
    from test_encoder_decoders import exported, with_letters
    from test_encoders import with_texts

    stories = ROOT / "models/stories.bin"
    small = {"n_embd": 16, "d_ff": 16, "context": 128}
    tiny = checkpoints.random_model(tokenizer=stories, n_layers=1, **small)
    made = {
        "tiny": tiny,
        "bare": checkpoints.random_model(n_layers=2, **small),
        "draft": checkpoints.random_model(n_layers=1, seed=2, **small),
        "windows": checkpoints.random_model(n_layers=2, window=8, **small),
    }
    for name, data in made.items():
        (folder / f"{name}.bin").write_bytes(data)
    talkers.make(folder / "bare.bin", folder / "talker.bin", talkers.THINKING, 128)
    talkers.make(folder / "bare.bin", folder / "plain.bin", talkers.PLAIN, 128)
    talkers.make(folder / "windows.bin", folder / "forgetful.bin", talkers.PLAIN, 128)
    exported(ROOT / "tests/golden/qwen3_next", folder / "states.bin", "q8")
    exported(with_letters(folder / "letters"), folder / "translator.bin")
    exported(with_texts(folder / "texts"), folder / "encoder.bin")
    exported(classifiers.make("bert", folder / "classes"), folder / "classifier.bin")
    return {path.stem: path for path in folder.glob("*.bin")}


class Outcome(NamedTuple):
    status: int  # waitpid's
    calls: int  # that may fail
    what: str  # the call that failed, and where
    out: bytes
    err: str


class Server:
    """A program that starts once, and runs as often as it is asked."""

    def __init__(self, command: list[str], folder: Path, stdin: str = ""):
        self.streams = folder.with_suffix(".streams")
        self.streams.mkdir(exist_ok=True)
        (self.streams / "in").write_text(stdin)
        self.files = [
            open(self.streams / name, mode)
            for name, mode in zip(("in", "out", "err"), ("r+", "w+", "w+"))
        ]
        orders, self.orders = os.pipe()
        self.outcomes, outcomes = os.pipe()
        env = {
            **os.environ,
            "LD_PRELOAD": str(SHIM),
            "HEADS_FAULTS": f"{orders},{outcomes}",
            **SANITIZER,
        }
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            pass_fds=(orders, outcomes),
            stdin=self.files[0],
            stdout=self.files[1],
            stderr=self.files[2],
        )
        os.close(orders)
        os.close(outcomes)

    def run(self, n: int = 0, again: int = 0, kinds: int = EVERY, number: int = 0) -> Outcome:
        """n: the call that fails, from 1; 0: none. again: 0, or k: every k-th call after it fails
        too, as on a full disk. number: of a signal that comes instead, when half of a write is
        done; kinds are FILES."""
        os.write(self.orders, struct.pack("=qiiii", n, kinds, again, number, 0))
        reply = os.read(self.outcomes, 64)
        err = (self.streams / "err").read_text("utf-8", "replace")
        assert len(reply) == 64, f"the program did not start: {err}"
        calls, status, where, what = struct.unpack("=qqq40s", reply)
        what = f"{what.rstrip(bytes(1)).decode()} at {where:#x}"
        return Outcome(status, calls, what, (self.streams / "out").read_bytes(), err)

    def close(self) -> None:
        os.close(self.orders)
        self.process.wait()
        os.close(self.outcomes)
        for file in self.files:
            file.close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    """Puts back what a run has changed."""
    found = files_of(folder)
    for name in found.keys() | files.keys():
        if name not in files:
            (folder / name).unlink()
        elif found.get(name) != files[name]:
            (folder / name).write_bytes(files[name])


# ---- what a run must not do ----


def wrong_result(line: bytes, expected: bytes) -> str:
    """A line of --batch's results is as expected, or an error of the same request."""
    if line == expected:
        return ""
    try:
        result = json.loads(line)
    except ValueError:
        return f"no JSON: {line[:80]!r}"
    same = result.get("id") == json.loads(expected).get("id")
    return "" if same and result.get("error") else f"wrong result: {line[:80]!r}"


def wrong_results(out: bytes, expected: bytes, said: bool) -> str:
    """said: the program ended early, and said why."""
    lines, wanted = out.splitlines(True), expected.splitlines(True)
    if said and lines and not lines[-1].endswith(b"\n"):
        torn = lines.pop()  # its writing failed
        if not wanted[len(lines)].startswith(torn) and b'"error' not in torn:
            return f"wrong result: {torn[:80]!r}"
    if len(lines) > len(wanted) or (len(lines) < len(wanted) and not said):
        return f"{len(lines)} results of {len(wanted)}"
    return "".join(map(wrong_result, lines, wanted))


def is_json(data: bytes) -> bool:
    try:
        return bool(json.loads(data))
    except ValueError:
        return False


def masked(out: bytes, case: Case) -> bytes:
    return re.sub(rb"[0-9.e+-]+", b"0", out) if case.measures else out


def wrong(case: Case, good: Outcome, after: dict, before: dict, run: Outcome, left: dict) -> str:
    """What is wrong with a run: its outcome and the files that it left, where `good` and `after` are
    those of a run without a fault. Empty: nothing."""
    if os.WIFSIGNALED(run.status):
        number = os.WTERMSIG(run.status)
        return "hangs" if number == signal.SIGALRM else f"ended by {signal.Signals(number).name}"
    status, expected = os.WEXITSTATUS(run.status), os.WEXITSTATUS(good.status)
    if "Sanitizer: CHECK failed" in run.err:  # it died of the fault itself
        return ""
    if re.search(r"Sanitizer|runtime error", run.err) or status not in (0, 1, 2):
        return f"status {status}"
    if re.search(r"\(null\)|Success", run.err):
        return "a sentence that says nothing"
    for name in left.keys() | before.keys():
        if name != case.results and left.get(name) not in (before.get(name), after.get(name)):
            if not case.goes_on or not is_json(left[name]):  # one turn less may be saved
                return f"left {name}"
    said = re.search(r"^(?:run|batch): .+", run.err, re.MULTILINE)
    same = masked(run.out, case) == masked(good.out, case) and left == after
    if status == expected and same:
        return ""
    if status == 0:
        return "status 0 with other results"
    if case.results:
        out, whole = (
            (run.out, good.out)
            if case.results == "stdout"
            else (left.get(case.results, b""), after[case.results])
        )
        return wrong_results(out, whole, bool(said))
    if not said:
        return f"status {status} without a sentence"
    loose = case.goes_on or case.measures or "cannot write to stdout" in said[0]
    return "" if loose or good.out.startswith(run.out) else f"status {status} with other text"


# ---- ladders ----


def prepared(name: str, models: dict[str, Path], folder: Path) -> tuple[Path, list[str]]:
    """A case's folder, made anew with its files, and its command line, of a fixed seed."""
    case, folder = CASES[name], folder / re.sub(r"\W+", "-", name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, text in case.files.items():
        (folder / file).write_text(text, encoding="utf-8")
    names = {**models, "run": PROGRAM}
    if case.made_by:
        command = case.made_by.format(**names)
        command = command if "{run}" in case.made_by else f"{PROGRAM} {command}"
        subprocess.run(command, shell=True, cwd=folder, check=False, capture_output=True)
    words = [case.program, *shlex.split(case.arguments.format(**names))]
    if "-n " in case.arguments and not case.results:
        words += ["-s", "1"]
    return folder, words


class Ladder:
    """A case, its folder, and its run without a fault."""

    def __init__(self, name: str, models: dict[str, Path], folder: Path):
        self.name, self.case = name, CASES[name]
        self.folder, words = prepared(name, models, folder)
        fixed = "-t" in words or self.case.program != PROGRAM
        fixed = fixed or re.search("--(info|check|tokenize|help)", self.case.arguments)
        threads = [] if fixed else ["-t", "1"]
        self.server = Server([*words, *threads], self.folder, self.case.stdin)
        self.before = files_of(self.folder)
        self.good = self.server.run()
        self.after = files_of(self.folder)
        self.calls = self.good.calls
        assert os.WIFEXITED(self.good.status), self.good
        assert os.WEXITSTATUS(self.good.status) == (1 if self.case.results else 0), self.good

    def step(self, n: int, again: int = 0, kinds: int = EVERY) -> str:
        """What is wrong when call n fails; empty: nothing."""
        restore(self.folder, self.before)
        run = self.server.run(n, again, kinds)
        left = files_of(self.folder)
        problem = wrong(self.case, self.good, self.after, self.before, run, left)
        said = run.err.strip().splitlines()[-1:] or [""]
        how = f"call {n}, again {again}, kinds {kinds} ({run.what})"
        return problem and f"{self.name}, {how}: {problem}; {said[0]}"

    def close(self) -> None:
        self.server.close()


def library_ladder(
    models: dict[str, Path], folder: Path, stride: int
) -> subprocess.CompletedProcess:
    """The library's own: tests/c/library_faults.c."""
    build = SHIM.parent
    names = [models[name] for name in ("tiny", "talker", "translator", "encoder", "classifier")]
    command = [build / "library_faults", *names, folder, stride]
    env = {**os.environ, "LD_PRELOAD": str(SHIM), **SANITIZER}
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True)
