"""Ray Data over heads.ray: 1,000 prompts by two actors, of which one is killed halfway, give byte
for byte what one process gives, in order, however they are cut into blocks."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import ray
from conftest import ROOT, STORIES, run

import heads
import heads.ray

N = 1000
NAMES = ["Tom", "Mia", "the fox", "a bear", "my dog"]
PROMPTS = [f"One day, {NAMES[i % 5]} saw {i} birds" for i in range(N)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[list[int]]:
    """The ids by ./run --batch."""
    path = tmp_path_factory.mktemp("batch") / "in"
    path.write_text("".join(json.dumps({"prompt": p, "max_tokens": 32}) + "\n" for p in PROMPTS))
    return [json.loads(line)["tokens"] for line in run(STORIES, "--batch", path).splitlines()]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(Path(__file__).parent)])}
    ray.init(
        num_cpus=2, runtime_env={"env_vars": env}, include_dashboard=False, log_to_driver=False
    )
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    yield
    ray.shutdown()


class Marked(heads.ray.Generate):
    """Leaves its process id in a folder, and takes long enough to be killed at work."""

    def __init__(self, path: str, folder: str, **options):
        super().__init__(path, **options)
        (Path(folder) / str(os.getpid())).touch()
        self.folder = Path(folder)

    def __call__(self, batch: dict) -> dict:
        with open(self.folder / "batches", "a") as f:
            f.write(f"{os.getpid()}\n")
        time.sleep(0.2)
        return super().__call__(batch)


def generated(blocks: int, batch_size: int, folder: Path | None = None):
    dataset = ray.data.from_items(
        [{"prompt": p, "n": i} for i, p in enumerate(PROMPTS)], override_num_blocks=blocks
    )
    kind, more = (Marked, [str(folder)]) if folder else (heads.ray.Generate, [])
    return dataset.map_batches(
        kind,
        fn_constructor_args=[str(STORIES), *more],
        fn_constructor_kwargs={"options": {"max_tokens": 32}},
        concurrency=2,
        num_cpus=1,
        batch_size=batch_size,
        max_restarts=-1,
        max_task_retries=-1,
    )


@pytest.mark.parametrize(("blocks", "batch_size"), [(2, 64), (37, 13)])
def test_partitions_do_not_matter(expected, blocks, batch_size):
    rows = generated(blocks, batch_size).take_all()
    assert [row["n"] for row in rows] == list(range(N))
    assert [list(row["tokens"]) for row in rows] == expected


def test_a_killed_worker_is_replaced(expected, tmp_path):
    killed = []

    def kill() -> None:
        while (
            not (tmp_path / "batches").exists()
            or len((tmp_path / "batches").read_text().split()) < 20
        ):
            time.sleep(0.02)
        killed.append(int((tmp_path / "batches").read_text().split()[-1]))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    rows = generated(40, 10, tmp_path).take_all()
    thread.join()
    workers = {int(p.name) for p in tmp_path.iterdir() if p.name != "batches"}
    assert killed[0] in workers and len(workers) >= 3
    assert [list(row["tokens"]) for row in rows] == expected


def test_from_and_to_files(tmp_path):
    lines = [{"prompt": p} for p in PROMPTS[:50]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    dataset = ray.data.read_json(str(tmp_path / "in.jsonl")).map_batches(
        heads.ray.Generate,
        fn_constructor_args=[str(STORIES)],
        fn_constructor_kwargs={"options": {"max_tokens": 8}},
        concurrency=1,
    )
    dataset.write_parquet(str(tmp_path / "out"))
    rows = ray.data.read_parquet(str(tmp_path / "out")).take_all()
    with heads.Model(STORIES) as m:
        want = {p: str(t) for p, t in zip(PROMPTS, m.generate(PROMPTS[:50], 8))}
    assert {row["prompt"]: row["text"] for row in rows} == want


def test_rows_that_cannot_be_done(tmp_path):
    """Their errors stand beside them, in files too, whatever else their blocks hold."""
    prompts = ["One day", None, "a long day " * 300, "Once", *["Tom"] * 8, None, None]
    dataset = ray.data.from_items([{"prompt": p} for p in prompts], override_num_blocks=7)
    dataset.map_batches(
        heads.ray.Generate,
        fn_constructor_args=[str(STORIES)],
        fn_constructor_kwargs={"options": {"max_tokens": 5}},
        concurrency=1,
        batch_size=2,
    ).write_parquet(str(tmp_path / "out"))
    rows = ray.data.read_parquet(str(tmp_path / "out")).take_all()
    assert sorted(str(row["prompt"]) for row in rows) == sorted(map(str, prompts))
    with heads.Model(STORIES) as m:
        for row in rows:
            if row["prompt"] is None or len(row["prompt"]) > 99:
                assert row["text"] is row["tokens"] is row["stopped"] is None
                assert ("context" if row["prompt"] else "expected a text") in row["error"]
            else:
                assert row["text"] == m.generate(row["prompt"], 5) and row["error"] is None


def test_scores(tmp_path):
    items = [{"context": "Once upon a", "continuation": c} for c in (" time", " dog", " mice")]
    rows = (
        ray.data.from_items(items)
        .map_batches(heads.ray.Score, fn_constructor_args=[str(STORIES)], concurrency=1)
        .take_all()
    )
    with heads.Model(STORIES) as m:
        want = m.score(["Once upon a"] * 3, [i["continuation"] for i in items])
    assert [(r["log_probability"], r["greedy"]) for r in rows] == want
