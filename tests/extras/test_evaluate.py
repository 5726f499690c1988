"""python -m heads eval: the harness's command line with this engine. evaluate.py compares figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT, STORIES

ITEMS = [
    {"text": "Once upon a", "choices": [" time", " xylophone"], "answer": 0},
    {"text": "One fine", "choices": [" the", " day"], "answer": 1},
    {"text": "Once upon a", "choices": [" of", " time"], "answer": 0},
]


def evaluate(*args: object) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "heads", "eval", *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_a_task_of_ones_own(tmp_path):
    """By a path that the harness would cut at its commas, and with arguments for the model."""
    data, model = tmp_path / "items.jsonl", tmp_path / "a=b, c.bin"
    data.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    model.symlink_to(STORIES)
    task = {
        "task": "endings",
        "dataset_path": "json",
        "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "target_delimiter": "",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "endings.yaml").write_text(json.dumps(task))  # JSON is YAML
    done = evaluate(
        model,
        "--tasks",
        "endings",
        "--include_path",
        tmp_path,
        "--output_path",
        tmp_path / "out",
        "--model_args",
        "kv=f32",
        "context=64",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(next((tmp_path / "out").rglob("*.json")).read_text())
    assert found["results"]["endings"]["acc,none"] == pytest.approx(2 / 3)
    assert found["config"]["model_args"] == {"path": str(model), "kv": "f32", "context": 64}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([STORIES, "--tasks", "no_such_task"], "Tasks not found: no_such_task"),
        (["/nonexistent", "--tasks", "arc_easy"], "cannot open /nonexistent"),
        ([STORIES, "--tasks", "arc_easy", "--model_args", "kv=q5"], "found 'q5'"),
    ],
)
def test_what_is_refused_is_a_sentence(args, says):
    done = evaluate(*args)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("heads: ") and says in last, done.stderr[-2000:]
