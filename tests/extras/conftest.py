"""Models and a server for the checks that need more than `make test` installs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("python", "tests/support"))]

sys.path.append(str(ROOT / "tests"))

import checkpoints  # noqa: E402
import talkers  # noqa: E402
import test_encoder_decoders  # noqa: E402
import test_encoders  # noqa: E402

STORIES = ROOT / "models" / "stories.bin"


def run(*args: object) -> str:
    done = subprocess.run([str(ROOT / "run"), *map(str, args)], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="session")
def talker(tmp_path_factory) -> Path:
    """A small model with random weights, a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("talker")
    (folder / "plain.bin").write_bytes(checkpoints.random_model(context=4096))
    talkers.make(folder / "plain.bin", folder / "talker.bin", talkers.PLAIN, 4096)
    return folder / "talker.bin"


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """A small encoder with random weights, which makes vectors of letters."""
    folder = tmp_path_factory.mktemp("encoder")
    return test_encoders.exported(test_encoders.with_texts(folder / "hf"), folder / "encoder.bin")


@pytest.fixture(scope="session")
def translator(tmp_path_factory) -> Path:
    """A small encoder-decoder with random weights, which knows letters and languages."""
    folder = tmp_path_factory.mktemp("translator")
    source = test_encoder_decoders.with_letters(folder / "hf")
    return test_encoder_decoders.exported(source, folder / "translator.bin")


@pytest.fixture(scope="session")
def endless(tmp_path_factory) -> Path:
    """One whose texts at temperature 0 take minutes."""
    path = tmp_path_factory.mktemp("endless") / "endless.bin"
    path.write_bytes(checkpoints.random_model(tokenizer=STORIES, context=200_000, n_layers=8,
                                              d_ff=2000))  # fmt: skip
    return path


class Server:
    """python -m heads serve, as a process."""

    def __init__(self, *args: object):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "heads", "serve", *map(str, args), "--port", self.port]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        self.process = subprocess.Popen([str(c) for c in command], env=env, stderr=subprocess.PIPE)
        for _ in range(300):
            try:
                httpx.get(self.url + "/health")
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(self.stop())

    def metric(self, name: str) -> int:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"heads_{name} "))

    def stop(self) -> str:
        """Ends it; what it wrote on stderr."""
        self.process.terminate()
        return self.process.communicate(timeout=20)[1].decode()


@pytest.fixture
def serve():
    """A function that starts a server; all end with the test."""
    started = []

    def start(*args: object) -> Server:
        started.append(Server(*args))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()
