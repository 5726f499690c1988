"""The tables of docs/variants.md, in Markdown."""

from __future__ import annotations

from statistics import mean

from research.lab.intervals import Interval, verdict
from research.lab.results import Results, numbers
from research.lab.texts import KINDS
from research.lab.variants import HEAD_DIM, HEADS, LAYERS, MHA, POOLED, WIDTH


def table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def floors_table(r: Results) -> str:
    return table(["", "nats a token"], [[kind, r.floor[kind]] for kind in KINDS])


def copy_table(r: Results) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in r.copies))
    heads = sorted({int(row["heads"]) for row in r.copies})
    rows = [
        [
            n,
            WIDTH // n,
            *(Interval(numbers(r.copies, "loss", task=task, heads=n)) for task in tasks),
        ]
        for n in heads
    ]
    return table(["heads", "head_dim", *(f"from {task}" for task in tasks)], rows)


def parameters_table(r: Results) -> str:
    mha, rows = r.one(MHA, "weights"), []
    for variant in POOLED:
        formula = 2 * LAYERS * (HEADS - variant.kv_heads) * HEAD_DIM * WIDTH
        saved = mha - r.one(variant, "weights", "pooled")
        rows.append([variant.name, f"{formula:,}", f"{saved:,}", f"{100 * saved / mha:.1f} %"])
    return table(["", "formula", "measured", "of MHA's weights"], rows)


def loss_table(r: Results) -> str:
    rows = []
    for variant in r.variants:
        row = [
            variant.name,
            r.one(variant, "bytes_f16"),
            r.one(variant, "resident_f16") // 256,
        ]
        for kind in KINDS:
            found = r.above_floor(variant, kind)
            row += [found, verdict(found, r.above_floor(MHA, kind))]
        rows.append(row)
    return table(
        [
            "",
            "bytes a token",
            "measured",
            *(f"{kind}: {what}" for kind in KINDS for what in ("above the floor", "to MHA")),
        ],
        rows,
    )


def pooling_table(r: Results) -> str:
    rows = []
    for kind in KINDS:
        for variant in [MHA, *POOLED]:
            before = r.above_floor(variant, kind, "start" if variant == MHA else "pooled")
            after, start = (r.above_floor(variant, kind, s) for s in ("uptrained", "start"))
            rows.append([f"{variant.name}, {kind}", before, after, start, verdict(after, start)])
    return table(["", "pooled", "and trained on", "from the start", "trained on, to start"], rows)


def dtype_table(r: Results) -> str:
    rows = []
    for variant in r.variants:
        row = [variant.name, r.one(variant, "bytes_f16"), r.one(variant, "bytes_q8")]
        for kind in KINDS:
            pairs = zip(r.values(variant, f"{kind}_q8"), r.values(variant, f"{kind}_f32"))
            changes = [rounded - exact for rounded, exact in pairs]
            row.append(f"{mean(changes):+.5f} ({max(map(abs, changes)):.5f})")
        rows.append(row)
    return table(["", "bytes in f16", "bytes in q8", *(f"{kind}, q8" for kind in KINDS)], rows)


def speed_table(r: Results) -> str:
    deepest = r.depths[-1]
    rows = [
        [
            v.name,
            *(f"{r.rate(v, 'f16', depth):,.0f}" for depth in r.depths),
            f"{r.rate(v, 'f16', deepest) / r.rate(MHA, 'f16', deepest):.2f}",
            f"{r.rate(v, 'q8', deepest):,.0f}",
        ]
        for v in r.variants
    ]
    return table(
        [
            "",
            *(f"after {depth:,}" for depth in r.depths),
            f"to MHA after {deepest:,}",
            f"q8, after {deepest:,}",
        ],
        rows,
    )


TABLES = {
    "floors": floors_table,
    "copy": copy_table,
    "parameters": parameters_table,
    "loss": loss_table,
    "pooling": pooling_table,
    "dtype": dtype_table,
    "speed": speed_table,
}
