"""A command line of faults.py's in a folder of its own: what it does undisturbed, and what is wrong
with a run of it that something disturbs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from faults import CASES, files_of, prepared, restore


class Done(NamedTuple):
    status: int
    out: bytes
    err: str
    files: dict[str, bytes]


class Verb:
    """A case of CASES, in a folder of its own within another."""

    def __init__(self, name: str, models: dict[str, Path], folder: Path):
        self.name, self.case = name, CASES[name]
        self.folder, self.words = prepared(name, models, folder)
        self.before = files_of(self.folder)
        self.good = self.run()
        assert self.good.status == (1 if self.case.results else 0), self.good

    def run(self, before: str = "", after: str = "") -> Done:
        """before: commands of a shell that starts it; after: how that redirects its streams."""
        restore(self.folder, self.before)
        return self.run_again(before, after)

    def run_again(self, before: str = "", after: str = "") -> Done:
        """On the files that the last run left."""
        shell = ["sh", "-c", f'{before} exec "$@"{after}', "sh"] if before or after else []
        done = subprocess.run(
            [*shell, *self.words],
            cwd=self.folder,
            input=self.case.stdin.encode(),
            capture_output=True,
            timeout=120,
        )
        err = done.stderr.decode("utf-8", "replace")
        return Done(done.returncode, done.stdout, err, files_of(self.folder))

    def wrong(self, done: Done, said: bool = True) -> str:
        """What is wrong with a run; empty: nothing. said: its stderr could be written."""
        sentences = re.findall(r"^run: .+", done.err, re.MULTILINE)
        complained = sentences != re.findall(r"^run: .+", self.good.err, re.MULTILINE)
        if done.status == 0 or (done.status == self.good.status and said and not complained):
            same = done.out == self.good.out and done.files == self.good.files
            return "" if same else f"status {done.status} with other results"
        if done.status not in (1, 2):
            return f"status {done.status}"
        if said and not sentences:
            return "no sentence"
        return self.torn(done.files) if self.good.out.startswith(done.out) else "other text"

    def torn(self, files: dict[str, bytes]) -> str:
        """Whether a run has left anything but old and new files, each whole; of --batch's results
        it may leave a part."""
        for name in files.keys() | self.before.keys():
            left, new = files.get(name), self.good.files.get(name)
            part = name == self.case.results and left is not None and new.startswith(left)
            if left not in (self.before.get(name), new) and not part:
                return f"left {name}"
        return ""
