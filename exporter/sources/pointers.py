"""Files that stand for others: what Git LFS leaves where it has not fetched the file itself."""

from __future__ import annotations

import os

from ..tensor import ExportError

POINTER, LONGEST = b"version https://git-lfs.github.com/spec/", 1024  # bytes


def refuse_pointer(path: str) -> None:
    """ExportError if the file is a pointer of Git LFS."""
    if not os.path.isfile(path) or os.path.getsize(path) > LONGEST:
        return
    with open(path, "rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ExportError(
                f"{path} is a pointer of Git LFS, not the file itself; fetch it: git lfs install, "
                f"then git lfs pull in {os.path.dirname(os.path.abspath(path))}"
            )
