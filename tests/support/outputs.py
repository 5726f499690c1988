"""What the program printed or wrote, as values."""

from __future__ import annotations

import json
import re
import resource
import subprocess
from pathlib import Path

import numpy as np

from conftest import run_command


def processor_seconds() -> float:
    """What the programs that this one ran, and waited for, have computed so far: unlike a clock's
    time, that does not depend on what else the machine does."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def ids_of(done: subprocess.CompletedProcess) -> list[int]:
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rb"(\d+( \d+)*)?\n", done.stdout), done.stdout[:200]
    return [int(word) for word in done.stdout.split()]


def logits(model: Path, out: Path, *arguments: object) -> np.ndarray:
    """The prompt's logits, shape (tokens, vocabulary)."""
    done = run_command(model, "--logits", out, *arguments)
    assert done.returncode == 0 and done.stdout == b"", done.stderr
    vocab = json.loads(run_command(model, "--info", "--json").stdout)["vocab_size"]
    return np.fromfile(out, "<f4").reshape(-1, vocab)
