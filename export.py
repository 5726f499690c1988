#!/usr/bin/env python3
"""export.py SRC OUT [--dtype f32|bf16|q8|q4|q4m] [--kv-heads N] [--revision REV]: a Hugging Face
checkpoint (directory or hub id), a GGUF or a llama2.c file to a checkpoint for ./run.
docs/format.md describes the file; exporter/families.py is where a family is added.
export.py SRC OUT --dtype q4 --calibrate [FILE]: q4 or q8 by what rounding does to texts.
export.py SRC OUT --shape-only: what needs no weights, from config.json or a GGUF file's header.
export.py --random SHAPE OUT: random weights in a known shape, to measure with.
export.py --plan --params N --context N --kv-memory SIZE: shapes for a budget."""

from __future__ import annotations

import os
import sys

# Calibration multiplies many small matrices, for which a second thread of numpy's costs more than
# it does. Read when numpy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from exporter.command import as_program, main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(as_program(sys.argv[1:], "export.py"))
