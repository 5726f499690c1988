"""The laboratory's CSV files as tables in docs/variants.md, and as pictures beside it.

    python lab/report.py                docs/variants.md, from lab/results
    python lab/report.py --smallest     the same in build/lab-smallest
    python lab/report.py --tables       the tables alone, which need no matplotlib

The text of docs/variants.md is written by hand; a table stands between two comments, and what is
there is replaced.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
from pathlib import Path
from statistics import mean

import results
from texts import KINDS
from results import Interval, numbers
from variants import HEAD_DIM, HEADS, LATENT, LAYERS, MHA, POOLED, VARIANTS, WIDTH, Variant

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- lab: (\w+) -->\n).*?(<!-- end -->)", re.S)
MQA = VARIANTS["MQA"]


def table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


class Results:
    """All that was measured."""

    def __init__(self, folder: Path):
        self.runs, self.copies, self.speed, floors = (
            results.read(folder / f"{name}.csv") for name in ("runs", "copy", "speed", "floors")
        )
        self.floor = {row["kind"]: float(row["nats"]) for row in floors}
        chosen = {row["variant"] for row in self.runs}
        self.variants = [variant for variant in VARIANTS.values() if variant.name in chosen]

    def values(self, variant: Variant, column: str, stage: str = "start") -> list[float]:
        """A column of a variant's runs, a value a seed."""
        return numbers(self.runs, column, variant=variant.name, stage=stage)

    def one(self, variant: Variant, column: str, stage: str = "start") -> int:
        """What is the same for all seeds."""
        (value,) = set(self.values(variant, column, stage))
        return int(value)

    def above_floor(self, variant: Variant, kind: str, stage: str = "start") -> Interval:
        """Nats a token above what the documents hold, with the cache in f16."""
        values = self.values(variant, f"{kind}_f16", stage)
        return Interval([value - self.floor[kind] for value in values])

    def above(self, variant: Variant, other: Variant, kind: str) -> Interval:
        """Bits a token above another variant, seed by seed."""
        pairs = zip(*(self.values(v, f"{kind}_f16") for v in (variant, other)))
        return Interval([(a - b) / math.log(2) for a, b in pairs])

    def rate(self, variant: Variant, dtype: str, depth: int) -> float:
        """Tokens a second, the fastest of the rounds."""
        return max(numbers(self.speed, "tokens_per_second", variant=variant.name, dtype=dtype,
                           depth=depth))  # fmt: skip

    @property
    def depths(self) -> list[int]:
        return sorted({int(row["depth"]) for row in self.speed})


def source(r: Results) -> str:
    """What the pictures are drawn from, as a hash that each of them carries."""
    return hashlib.sha256(repr([r.runs, r.copies, r.speed, r.floor]).encode()).hexdigest()


# ---- tables ----


def floors_table(r: Results) -> str:
    return table(["", "nats a token"], [[kind, r.floor[kind]] for kind in KINDS])


def copy_table(r: Results) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in r.copies))
    heads = sorted({int(row["heads"]) for row in r.copies})
    rows = [[n, WIDTH // n, *(Interval(numbers(r.copies, "loss", task=task, heads=n))
                              for task in tasks)] for n in heads]  # fmt: skip
    return table(["heads", "head_dim", *(f"from {task}" for task in tasks)], rows)


def parameters_table(r: Results) -> str:
    mha, rows = r.one(MHA, "weights"), []
    for variant in POOLED:
        formula = 2 * LAYERS * (HEADS - variant.kv_heads) * HEAD_DIM * WIDTH
        saved = mha - r.one(variant, "weights", "pooled")
        rows.append([variant.name, f"{formula:,}", f"{saved:,}", f"{100 * saved / mha:.1f} %"])
    return table(["", "formula", "measured", "of MHA's weights"], rows)


def rank_table(r: Results) -> str:
    mha, rows = r.one(MHA, "bytes_f16"), []
    for variant in [v for v in LATENT if v in r.variants] + [MQA]:
        taken = r.one(variant, "bytes_f16")
        rows.append([variant.name, variant.cached, taken, f"{taken / mha:.4f}",
                     *(r.above(variant, MHA, kind) for kind in KINDS)])  # fmt: skip
    columns = ["numbers a layer", "bytes a token", "of MHA", *(f"{k}, bits" for k in KINDS)]
    return table(["", *columns], rows)


def loss_table(r: Results) -> str:
    rows = []
    for variant in r.variants:
        row = [variant.name, r.one(variant, "d_ff"), f"{r.one(variant, 'parameters'):,}",
               r.one(variant, "bytes_f16"), r.one(variant, "resident_f16") // 256]  # fmt: skip
        for kind in KINDS:
            found = r.above_floor(variant, kind)
            perplexity = math.exp(mean(r.values(variant, f"{kind}_f16")))
            row += [f"{perplexity:.3f}", found,
                    results.verdict(found, r.above_floor(MHA, kind))]  # fmt: skip
        rows.append(row)
    return table(["", "feed-forward", "parameters", "bytes a token", "measured",
                  *(f"{kind}: {what}" for kind in KINDS
                    for what in ("perplexity", "above the floor", "to MHA"))], rows)  # fmt: skip


def pooling_table(r: Results) -> str:
    rows = []
    for kind in KINDS:
        for variant in [MHA, *POOLED]:
            before = r.above_floor(variant, kind, "start" if variant == MHA else "pooled")
            after, start = (r.above_floor(variant, kind, s) for s in ("uptrained", "start"))
            rows.append([f"{variant.name}, {kind}", before, after, start,
                         results.verdict(after, start)])  # fmt: skip
    return table(["", "pooled", "and trained on", "from the start", "trained on, to start"], rows)


def dtype_table(r: Results) -> str:
    rows = []
    for variant in r.variants:
        row = [variant.name, *(r.one(variant, f"bytes_{d}") for d in ("f32", "f16", "q8"))]
        for kind in KINDS:
            exact = r.values(variant, f"{kind}_f32")
            for dtype in ("f16", "q8"):
                changes = [a - b for a, b in zip(r.values(variant, f"{kind}_{dtype}"), exact)]
                row.append(f"{mean(changes):+.5f} ({max(map(abs, changes)):.5f})")
        rows.append(row)
    return table(["", *(f"bytes in {d}" for d in ("f32", "f16", "q8")),
                  *(f"{kind}, {d}" for kind in KINDS for d in ("f16", "q8"))], rows)  # fmt: skip


def speed_table(r: Results) -> str:
    deepest = r.depths[-1]
    rows = [[v.name, *(f"{r.rate(v, 'f16', depth):,.0f}" for depth in r.depths),
             f"{r.rate(v, 'f16', deepest) / r.rate(MHA, 'f16', deepest):.2f}",
             f"{r.rate(v, 'q8', deepest):,.0f}"] for v in r.variants]  # fmt: skip
    return table(["", *(f"after {depth:,}" for depth in r.depths),
                  f"to MHA after {deepest:,}", f"q8, after {deepest:,}"], rows)  # fmt: skip


TABLES = {"floors": floors_table, "copy": copy_table, "parameters": parameters_table,
          "rank": rank_table, "loss": loss_table, "pooling": pooling_table,
          "dtype": dtype_table, "speed": speed_table}  # fmt: skip


def with_tables(text: str, r: Results) -> str:
    """The text with its tables as the results have them. ValueError if one has no place."""
    missing = set(TABLES) - {name for _, name, _ in BLOCK.findall(text)}
    if missing:
        raise ValueError(f"docs/variants.md has no place for {', '.join(sorted(missing))}")
    return BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]](r)}\n{m[3]}", text)


def main():
    parser = argparse.ArgumentParser(description="Makes docs/variants.md from the results.")
    parser.add_argument("--smallest", action="store_true", help="in build/lab-smallest")
    parser.add_argument("--tables", action="store_true", help="no pictures")
    args = parser.parse_args()
    text = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")
    here = ROOT / "build" / "lab-smallest" if args.smallest else ROOT / "lab"
    out = here / "docs" if args.smallest else ROOT / "docs"
    found = Results(here / "results")
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "variants.md.partial"
    partial.write_text(with_tables(text, found), encoding="utf-8")
    partial.replace(out / "variants.md")
    if not args.tables:
        import pictures

        pictures.draw(found, out / "variants")


if __name__ == "__main__":
    main()
