"""The module when the engine has no memory: see module_faults.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import faults
from conftest import on_linux

HERE = Path(__file__).resolve().parent


@on_linux
def test_the_module_says_what_failed_and_goes_on(fault_models):
    names = [fault_models[name] for name in ("tiny", "talker", "encoder")]
    done = subprocess.run(
        list(map(str, [sys.executable, HERE / "module_faults.py", *names, 5])),
        env={
            **os.environ,
            "LD_PRELOAD": str(faults.SHIM),
            "HEADS_FAULTS_OF": "libheads",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 14 and all(line.startswith("ok ") for line in lines)
