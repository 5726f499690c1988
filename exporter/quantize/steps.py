"""The finished steps of a calibration, in a folder beside the result until that is there, so that
an interrupted export goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from typing import Mapping, Sequence

import numpy as np

from ..checkpoint import output_file, replacing


class Folder:
    """Finished steps, each a file that is there whole or not at all. The folder is
    emptied if it was made for another model or text."""

    def __init__(self, out: str, key: dict):
        self.path = output_file(out) + ".calibration"
        described = json.dumps(key, sort_keys=True)
        if self._key() != described:
            shutil.rmtree(self.path, ignore_errors=True)
            os.mkdir(self.path)
            self.write("key.json", described.encode())

    def _key(self) -> str | None:
        try:
            with open(self.file("key.json"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def has(self, name: str) -> bool:
        return os.path.exists(self.file(name))

    def write(self, name: str, data: bytes) -> None:
        with replacing(self.file(name)) as file:
            file.write(data)

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        with replacing(self.file(name)) as file:
            np.savez(file, **arrays)

    def remove(self) -> None:
        shutil.rmtree(self.path)


def fingerprint(files: Sequence[str], **others: object) -> dict:
    """What a calibration depends on: files by size and time."""
    found = [(os.path.abspath(f), os.stat(f)) for f in files if os.path.isfile(f)]
    return {"files": [(path, s.st_size, s.st_mtime_ns) for path, s in found], **others}
