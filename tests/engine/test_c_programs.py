"""Runs the C tests, tests/c/test_*.c, which print a line per check and exit with 1 if one fails."""

from __future__ import annotations

import subprocess

import pytest

from conftest import ALL, ROOT

# What a program does less of without HEADS_TESTS=all: of products every second, of draws a quarter.
LESS = {"test_kernels": "2", "test_sampler": "10000"}
PROGRAMS = sorted(path.stem for path in (ROOT / "tests" / "c").glob("test_*.c"))
BUILD = ROOT / "build"


@pytest.mark.parametrize("name", PROGRAMS)
def test_c_program(name):
    program = BUILD / "tests" / "c" / name
    assert program.exists(), f"{program} is not built: run make c-tests"
    command = [program] if ALL or name not in LESS else [program, LESS[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("not ok")]
    assert not failed and done.returncode == 0, "\n".join(failed) + done.stderr
    assert any(line.startswith("ok ") for line in lines), "it checked nothing"
