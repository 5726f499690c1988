"""Models and a server for the checks that need more than `make test` installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("python", "tests/support"))]

sys.path.append(str(ROOT / "tests" / "engine"))

import checkpoints  # noqa: E402
import talkers  # noqa: E402
import test_encoder_decoders  # noqa: E402
import test_encoders  # noqa: E402
from servers import Server  # noqa: E402

import export  # noqa: E402

STORIES = ROOT / "build" / "small" / "stories.bin"  # models/hf in q8, as for the other tests
if not STORIES.exists():
    STORIES.parent.mkdir(parents=True, exist_ok=True)
    assert export.main([str(ROOT / "models/hf"), str(STORIES)]) == 0


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
    path.write_bytes(
        checkpoints.random_model(tokenizer=STORIES, context=200_000, n_layers=8, d_ff=2000)
    )
    return path


@pytest.fixture
def serve():
    """A function that starts a server; all end with the test."""
    started = []

    def start(*args: object, **options: str) -> Server:
        started.append(Server(*args, **options))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()
