#!/usr/bin/env python3
"""export.py SRC OUT [--dtype f32|bf16|q8|q4|q4m] [--kv-heads N] [--revision REV]: a Hugging Face
checkpoint (directory or hub id), a GGUF or a llama2.c file to a checkpoint for ./run.
docs/format.md describes the file; exporter/families/registry.py is where a family is added.
export.py SRC OUT --dtype q4 --calibrate [FILE]: q4 or q8 by what rounding does to texts.
export.py SRC OUT --shape-only: what needs no weights, from config.json or a GGUF file's header.
export.py --random SHAPE OUT: random weights in a known shape, to measure with.
export.py SRC --cached: into the user's cache; export.py --cache lists what is there.
export.py --plan --params N --context N --kv-memory SIZE: shapes for a budget."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec

# Until main() is there to say something, Ctrl-C ends this silently.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# What the cache has needs no packages.
if __name__ == "__main__" and sys.argv[2:] == ["--cached"]:
    from exporter import cache

    if cache.is_source(sys.argv[1]) and (found := cache.find(sys.argv[1])):
        print(found)
        sys.exit()

# make test and make chat keep their packages in .venv; what it has need not be installed again.
VENV = os.path.join(os.path.dirname(os.path.abspath(__file__)), ".venv", "bin", "python")
MISSING = [name for name in ("numpy", "tqdm", "jinja2") if find_spec(name) is None]
if __name__ == "__main__" and MISSING:
    if os.access(VENV, os.X_OK) and sys.executable != VENV:
        os.execv(VENV, [VENV, *sys.argv])
    sys.exit(
        f"export: this Python has no {' and no '.join(MISSING)}; run make venv, which makes .venv"
    )

# Calibration multiplies many small matrices, for which a second thread of numpy's costs more than
# it does. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from exporter.command import as_program, main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(as_program(sys.argv[1:], "export.py"))
