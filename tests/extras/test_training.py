"""Runs of training that are killed and called again: with torch, tiny, in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from research import learning, stories
from research.training import average, beginnings, generate, induction, pretrain, teacher, train
from research.training import vocabulary, writer

forked = multiprocessing.get_context("fork")
STEPS, SAVE_EVERY = 40, 3
TINY = ["--steps", str(STEPS), "--warmup", "2", "--batch", "2"]


@pytest.fixture(autouse=True)
def small_and_the_same(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes a minute
    monkeypatch.setattr(learning, "SAVE_EVERY", SAVE_EVERY)
    monkeypatch.setattr(pretrain, "VOCAB_STORIES", 100)
    monkeypatch.setattr(pretrain, "HELD_OUT_STORIES", pretrain.POOL)
    torch.set_num_threads(1)


def called(main, *arguments: object) -> multiprocessing.Process:
    process = forked.Process(target=main, args=[list(map(str, arguments))])
    process.start()
    return process


def whole(main, *arguments: object) -> None:
    process = called(main, *arguments)
    process.join(120)
    assert process.exitcode == 0


def killed(main, *arguments: object, out: Path) -> None:
    """As by kill -9, once it has saved something."""
    process = called(main, *arguments)
    while not (out / "state.pt").exists():
        assert process.is_alive()
        time.sleep(0.002)
    process.kill()
    process.join()
    assert 0 < torch.load(out / "state.pt")["numbers"]["step"] < STEPS
    assert not (out / "training.json").exists()


def comes_to_the_same(tmp_path, main, *arguments: object) -> Path:
    """The same weights, whether interrupted or not; `arguments` but the last one, the folder."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    whole(main, *arguments[:-1], once, *arguments[-1])
    killed(main, *arguments[:-1], twice, *arguments[-1], out=twice)
    whole(main, *arguments[:-1], twice, *arguments[-1])
    weights = (once / "model.safetensors").read_bytes()
    assert (twice / "model.safetensors").read_bytes() == weights
    reports = [json.loads((out / "training.json").read_text()) for out in (once, twice)]
    for report in reports:
        del report["minutes"]
    assert reports[0] == reports[1] and reports[0]["tokens_seen"] > 0
    assert not (twice / "state.pt").exists()
    before = (twice / "model.safetensors").stat().st_mtime_ns
    whole(main, *arguments[:-1], twice, *arguments[-1])  # nothing is left to do
    assert (twice / "model.safetensors").stat().st_mtime_ns == before
    return once


def teachers_texts(tokenizer, data: Path) -> None:
    """Two shards, as a teacher might have written them."""
    rng, choices = random.Random(1), np.random.default_rng(1)
    for shard in range(2):
        written = []
        for number in range(40):
            text = writer.Story.__new__(writer.Story)
            text.number, text.n_given = 40 * shard + number, 3
            text.kind = beginnings.KINDS[number % 7]
            text.tokens = tokenizer.encode(stories.story(rng)).ids
            text.repeats = [0] * len(text.tokens)
            size = len(text.tokens), writer.KEPT
            text.best = choices.integers(2, 300, size)
            text.best[:, 0] = text.tokens
            text.log_p = -np.sort(choices.exponential(size=size))
            written.append(text)
        generate.save_shard(data / f"{shard:04}.npz", written)


def test_every_step_goes_on_where_it_was_killed(tmp_path):
    tiny = [*TINY, "--dim", "32", "--hidden", "32", "--layers", "1"]
    pretrained = comes_to_the_same(tmp_path / "pretrain", pretrain.main, tiny)
    data = tmp_path / "data"
    data.mkdir()
    tokenizer = train.Tokenizer.from_file(str(pretrained / "tokenizer.json"))
    tokenizer.save(str(data / "tokenizer.json"))
    n = tokenizer.get_vocab_size()
    np.save(data / "embedding.npy", np.random.default_rng(2).normal(size=(n, 8)).astype(np.float32))
    teachers_texts(tokenizer, data)
    tiny = [*TINY, "--hidden", "48"]
    made = comes_to_the_same(tmp_path / "train", train.main, pretrained, data, tiny)
    tiny = ["--steps", STEPS, "--batch", "2"]
    comes_to_the_same(tmp_path / "heads", induction.main, made, tiny)


def test_the_teacher_reads_as_it_writes():
    """What it thinks of each token of a text is the same, to the bit, whoever wrote it."""
    smollm2 = teacher.Teacher()
    tokens = smollm2.tokens[teacher.N_SPECIAL : 6000]
    words = vocabulary.Vocabulary(tokens, smollm2.merges, smollm2.ids)
    scribe = writer.Writer(smollm2, words)
    written = sorted(scribe.write(range(6)), key=lambda story: story.number)
    told = [words.tokenizer.decode(story.tokens[story.n_given :]) for story in written]
    parrot = types.SimpleNamespace(generate=lambda *_, **__: told)
    same = [
        (one, other)
        for one, other in zip(written, scribe.read(range(6), parrot))
        if one.tokens == other.tokens  # it may have spelt a word unusually
    ]
    assert len(same) > 3
    for one, other in same:
        assert np.array_equal(one.best, other.best) and np.array_equal(one.log_p, other.log_p)
        assert one.repeats == other.repeats and one.n_good() == other.n_good()


def test_means_of_weights(tmp_path):
    for name, value in (("first", 0.0), ("second", 4.0)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((2, 2), value)}, tmp_path / name / average.WEIGHTS)
    folders = [str(tmp_path / name) for name in ("first", "second", "mean")]
    average.main([*folders, "--share", "0.25"])
    assert (load_file(tmp_path / "mean" / average.WEIGHTS)["w"] == 1).all()


def test_another_runs_state_is_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    run = learning.Training(tmp_path, {"seed": 1}, model=model)
    for _ in run.steps(SAVE_EVERY):
        pass
    with pytest.raises(SystemExit, match="state.pt is of a run with other settings.*'seed': 1"):
        learning.Training(tmp_path, {"seed": 2}, model=model)
    again = learning.Training(tmp_path, {"seed": 1}, model=model)
    assert list(again.steps(SAVE_EVERY + 2)) == [SAVE_EVERY, SAVE_EVERY + 1]
