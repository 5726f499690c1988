"""The laboratory: trains every variant with every seed, measures each with ./run, and writes CSV
files, from which report.py makes docs/variants.md.

    python -m research.lab.laboratory               what research/lab/results does not have yet
    python -m research.lab.laboratory --smallest    the whole road in a minute, in
                                                    build/lab-smallest
    python -m research.lab.laboratory --checkpoints MHA MLA-16     only these, for their checkpoints

A run that is in the CSV is not made again, so that a killed laboratory goes on where it was.
Checkpoints are kept in build/lab.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from research.lab import copying, measure, texts, train
from research.lab.plan import FULL, SMALLEST, Plan
from research.lab.results import Table
from research.lab.texts import KINDS, LENGTH
from research.lab.variants import MHA, POOLED, VARIANTS, Variant
from research.learning import save

LOSSES = [f"{kind}_{dtype}" for kind in KINDS for dtype in measure.KV_DTYPES]
BYTES = [f"{what}_{dtype}" for what in ("bytes", "resident") for dtype in measure.KV_DTYPES]
RUN_COLUMNS = [
    "variant",
    "stage",
    "seed",
    "steps",
    "d_ff",
    "parameters",
    "weights",
    "cpu_seconds",
    *(f"{kind}_torch" for kind in KINDS),
    *LOSSES,
    *BYTES,
]
COPY_COLUMNS = ["task", "heads", "seed", "steps", "weights", "torch", "loss"]
SPEED_COLUMNS = ["variant", "dtype", "round", "depth", "tokens_per_second"]
AGREE = 2e-4  # nats by which torch and the engine may differ with a cache in f32


class Laboratory:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.runs = Table(plan.results / "runs.csv", RUN_COLUMNS, key=3)
        self.copies = Table(plan.results / "copy.csv", COPY_COLUMNS, key=3)
        self.speed = Table(plan.results / "speed.csv", SPEED_COLUMNS, key=3)
        self.floors = Table(plan.results / "floors.csv", ["kind", "nats"], key=1)
        plan.work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = texts.make_tokenizer()
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.held_out = {}
        for kind in KINDS:
            rows, text, floor = texts.held_out(self.tokenizer, kind, plan.held_out)
            path = plan.work / f"{kind}.txt"
            path.write_text(text, encoding="utf-8")
            self.held_out[kind] = rows, path
            if not self.floors.has(kind):
                self.floors.add(dict(kind=kind, nats=f"{floor:.5f}"))

    def folder(self, variant: Variant, stage: str, seed: int) -> Path:
        return self.plan.work / f"{variant.name}-{stage}-{seed}"

    def trained(self, variant: Variant, seed: int) -> Path:
        """The checkpoint of a run that is in the CSV."""
        folder = self.folder(variant, "start", seed)
        if not folder.with_suffix(".bin").exists():
            sys.exit(
                f"lab: {folder} is gone; take the run's row out of {self.runs.path} to make "
                "it again"
            )
        return folder

    def training_rows(self, seed: int) -> np.ndarray:
        """The documents of a seed, the same for all variants; uptraining has the last of them."""
        n = (self.plan.steps + self.plan.uptraining_steps) * train.BATCH
        path = self.plan.work / f"documents-{seed}.npy"
        if not path.exists() or len(np.load(path, mmap_mode="r")) != n:
            partial = path.with_suffix(".partial.npy")
            np.save(partial, texts.training_set(self.tokenizer, seed, n))
            partial.rename(path)
        return np.load(path)

    # ---- the main runs ----

    def measure(
        self, variant: Variant, stage: str, seed: int, model, source: Path, *options, **row
    ) -> None:
        """Exports a checkpoint, measures it, and adds its row. `model` is the same in torch."""
        exported = self.folder(variant, stage, seed).with_suffix(".bin")
        row |= dict(
            variant=variant.name,
            stage=stage,
            seed=seed,
            parameters=model.num_parameters(),
            d_ff=model.config.intermediate_size,
        )
        row["weights"] = measure.export(source, exported, *options)
        for kind, (rows, text) in self.held_out.items():
            row[f"{kind}_torch"] = f"{train.mean_loss(model, rows):.5f}"
            for dtype in measure.KV_DTYPES:
                row[f"{kind}_{dtype}"] = measure.loss(exported, text, LENGTH, dtype)
            if abs(float(row[f"{kind}_torch"]) - row[f"{kind}_f32"]) > AGREE:
                raise RuntimeError(f"{exported}: torch and the engine disagree on {kind}: {row}")
        for dtype in measure.KV_DTYPES:
            found = measure.bytes_per_token(exported, dtype)
            row[f"bytes_{dtype}"], row[f"resident_{dtype}"] = found
        self.runs.add(row)

    def train(self, variant: Variant, seed: int) -> tuple[object, Path, float]:
        """Trains a variant from random weights: the model, its checkpoint, and the seconds of
        processor time that it took."""
        model = train.new_model(variant, self.vocab_size, seed)
        rows = self.training_rows(seed)[: self.plan.steps * train.BATCH]
        start = time.process_time()
        train.train(model, rows, name=f"{variant.name}, seed {seed}")
        took = time.process_time() - start
        folder = self.folder(variant, "start", seed)
        save(model, folder, self.tokenizer)
        return model, folder, took

    def from_the_start(self, variant: Variant, seed: int) -> None:
        if self.runs.has(variant.name, "start", seed):
            return
        model, folder, took = self.train(variant, seed)
        self.measure(
            variant, "start", seed, model, folder, steps=self.plan.steps, cpu_seconds=f"{took:.1f}"
        )

    def from_mha(self, variant: Variant, seed: int) -> None:
        """Pools a trained MHA, measures that, and trains it on. MHA itself is trained on too, to
        tell what the further steps give from what the pooling takes."""
        if self.runs.has(variant.name, "uptrained", seed):
            return
        source = self.trained(MHA, seed)
        mha = AutoModelForCausalLM.from_pretrained(source)
        model = train.pooled(mha, variant)
        if variant != MHA and not self.runs.has(variant.name, "pooled", seed):
            self.measure(
                variant,
                "pooled",
                seed,
                model,
                source,
                "--kv-heads",
                variant.kv_heads,
                steps=0,
                cpu_seconds=0,
            )
        steps = self.plan.uptraining_steps
        rows = self.training_rows(seed)[-steps * train.BATCH :]
        start = time.process_time()
        train.train(model, rows, name=f"MHA to {variant.name}, seed {seed}")
        took = time.process_time() - start
        folder = self.folder(variant, "uptrained", seed)
        save(model, folder, self.tokenizer)
        self.measure(
            variant, "uptrained", seed, model, folder, steps=steps, cpu_seconds=f"{took:.1f}"
        )

    # ---- the copy task ----

    def copy(self, task: str, n_heads: int, seed: int) -> None:
        if self.copies.has(task, n_heads, seed):
            return
        model = copying.new_model(n_heads, seed)
        rows = copying.rows(task, seed, self.plan.copy_steps * copying.BATCH)
        train.train(
            model,
            *rows,
            at_once=copying.BATCH,
            name=f"copy from {task}, {n_heads} heads, seed {seed}",
        )
        folder = self.plan.work / f"copy-{task.split()[0]}-{n_heads}-{seed}"
        save(model, folder)
        exported = folder.with_suffix(".bin")
        weights = measure.export(folder, exported)
        rows, labels = copying.rows(task, copying.HELD_OUT_SEED, copying.HELD_OUT)
        in_torch = train.mean_loss(model, rows, labels)
        scratch = folder.with_suffix(".logits")
        logits = np.stack([measure.logits(exported, row, scratch) for row in rows])
        loss = copying.loss(logits, labels)
        if abs(loss - in_torch) > AGREE:
            raise RuntimeError(f"{exported}: torch says {in_torch}, the engine {loss}")
        self.copies.add(
            dict(
                task=task,
                heads=n_heads,
                seed=seed,
                steps=self.plan.copy_steps,
                weights=weights,
                torch=f"{in_torch:.5f}",
                loss=f"{loss:.5f}",
            )
        )

    # ---- speed ----

    def time(self, variant: Variant, dtype: str, number: int) -> None:
        """A round takes one model after the other, so that a busy minute meets all of them."""
        if self.speed.has(variant.name, dtype, number):
            return
        model = self.trained(variant, 1).with_suffix(".bin")
        rates = measure.decode_speed(model, self.plan.speed_context, dtype)
        self.speed.add(
            *(
                dict(
                    variant=variant.name,
                    dtype=dtype,
                    round=number,
                    depth=depth,
                    tokens_per_second=f"{rate:.0f}",
                )
                for depth, rate in rates.items()
            )
        )

    def checkpoints(self, names: list[str]) -> None:
        """Trains variants for their checkpoints alone, without measuring them."""
        for seed in range(1, self.plan.seeds + 1):
            for name in names:
                self.train(VARIANTS[name], seed)

    def everything(self) -> None:
        """Seed after seed, so that what a killed laboratory leaves can be compared."""
        chosen = [VARIANTS[name] for name in self.plan.variants]
        for seed in range(1, self.plan.seeds + 1):
            for variant in chosen:
                self.from_the_start(variant, seed)
            for variant in [MHA, *POOLED]:
                self.from_mha(variant, seed)
        for seed in range(1, self.plan.seeds + 1):
            for task in copying.OFFSETS:
                for n_heads in self.plan.heads:
                    self.copy(task, n_heads, seed)
        rounds = [
            (number, dtype, variant)
            for number in range(self.plan.speed_rounds)
            for dtype in ("f16", "q8")
            for variant in chosen
        ]
        for number, dtype, variant in tqdm(rounds, desc="speed"):
            self.time(variant, dtype, number)


def main():
    parser = argparse.ArgumentParser(description="Trains and measures variants of attention.")
    parser.add_argument(
        "--smallest", action="store_true", help="a few steps, two seeds, in build/lab-smallest"
    )
    parser.add_argument(
        "--checkpoints",
        nargs="+",
        choices=VARIANTS,
        metavar="VARIANT",
        help="train these anew, and measure nothing",
    )
    args = parser.parse_args()
    laboratory = Laboratory(SMALLEST if args.smallest else FULL)
    if args.checkpoints:
        laboratory.checkpoints(args.checkpoints)
    else:
        laboratory.everything()


if __name__ == "__main__":
    main()
