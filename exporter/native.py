"""Where the library is: the one place that decides."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def native():
    """The package's ctypes declarations, from beside this package or from the repository. Errors:
    ImportError, where nothing is built."""
    if __package__ != "exporter":
        return importlib.import_module(".._native", __package__)
    folder = str(Path(__file__).resolve().parents[1] / "python")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("heads._native")
