"""The examples of docs/batch.md, run as they stand: whatever divides the rows, they give what one
process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import documents
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, STORIES

import heads

EXAMPLES = documents.python_blocks(ROOT / "docs" / "batch.md")
PROMPTS = [f"One day, {name} saw {i} birds" for i in range(60) for name in ("Tom", "the fox")]
TEXTS = ["hello world", "zz top", "a b c", "the long words of a text that is cut"] * 25


@pytest.fixture
def folder(tmp_path, encoder) -> Path:
    """With the files that the examples read."""
    (tmp_path / "model.bin").symlink_to(STORIES)
    (tmp_path / "encoder.bin").symlink_to(encoder)
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS)
    )
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "texts.parquet")
    return tmp_path


def run_example(example: str, folder: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "PYSPARK_PYTHON": sys.executable,
        "RAY_raylet_start_wait_time_s": "300",
    }
    (folder / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, env=env, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.parametrize("package", ["ray", "dask.dataframe", "pyspark"])
def test_texts(package, folder):
    example = next(e for e in EXAMPLES if package in e and "Generate" in e)
    run_example(example, folder)
    rows = pq.read_table(folder / "out").to_pylist()
    with heads.Model(STORIES) as m:
        want = {p: t for p, t in zip(PROMPTS, m.generate(PROMPTS, 64))}
    assert {row["prompt"] for row in rows} == set(PROMPTS) and len(rows) == len(PROMPTS)
    for row in rows:
        text = want[row["prompt"]]
        assert row["text"] == text and row["stopped"] == text.stopped
        assert list(row["tokens"]) == text.tokens


def test_vectors(folder, encoder):
    run_example(next(e for e in EXAMPLES if "Embed" in e), folder)
    rows = pq.read_table(folder / "vectors").to_pylist()
    with heads.Model(encoder) as m:
        want = dict(zip(TEXTS, m.embed(TEXTS)))
    assert sorted(row["text"] for row in rows) == sorted(TEXTS)
    for row in rows:
        assert np.array_equal(np.array(row["embedding"], np.float32), want[row["text"]])


def test_each_example_is_run():
    assert len(EXAMPLES) == 4
