"""python -m heads eval: the harness's command line with this engine. evaluate.py compares figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT, STORIES

import heads
import heads.evaluate as evaluate_module

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


def test_what_a_text_is_asked_for():
    """The prompt keeps its end, whatever is asked for; what is not supported is named."""
    lm = evaluate_module.HeadsLM(str(STORIES), context=64)
    context, ids = "One day, a dog " * 20, lm.tok_encode("One day, a dog " * 20)
    for most in (1, 63):
        job = lm._generation(context, {"max_gen_toks": most})
        assert job.prompt == ids[most - 64 :] and job.max_tokens == most
    for options, says in (
        ({"max_gen_toks": 64}, "max_gen_toks is 64 and the context has room for 64 tokens"),
        ({"max_gen_toks": 300}, "max_gen_toks=N, with N from 1 to 63"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0"),
        ({"num_beams": 4}, "gen_kwargs: num_beams is not supported"),
        ({"typical_p": 1, "a": 2}, "gen_kwargs: a, typical_p is not supported"),
        ({"top_p": "x"}, "top_p: expected a number"),
    ):
        with pytest.raises(heads.InputError, match=says):
            lm._generation(context, {"max_gen_toks": 1, **options})
    for options, want in (
        ({}, (0, 1, 1)),
        ({"do_sample": False, "temperature": 0.7, "num_beams": 1}, (0, 1, 1)),
        ({"do_sample": True}, (1, 1, 1)),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.5}, (0.7, 0.5, 1)),
    ):
        found = lm._generation(context, {"max_gen_toks": 1, **options}).sampling
        assert (found.temperature, found.top_p, found.repeat_penalty) == want
