"""The pictures of docs/variants.md: SVG by matplotlib, readable on a light and on a dark page."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402  (after the backend is chosen)

from research.lab.intervals import Interval  # noqa: E402
from research.lab.results import Results, numbers, source  # noqa: E402
from research.lab.texts import KINDS  # noqa: E402
from research.lab.variants import MHA, POOLED  # noqa: E402

# Colours on a light page; DARK has what takes their place on a dark one.
INK, MUTED, GRID = "#101214", "#57606b", "#dfe2e6"
SERIES = ["#1f6fd0", "#d1571e", "#12885c", "#7a4bc2"]
DARK = {
    INK: "#f0f2f4",
    MUTED: "#aab2bc",
    GRID: "#32373d",
    SERIES[0]: "#5aa2f5",
    SERIES[1]: "#f08a55",
    SERIES[2]: "#3cbf8d",
    SERIES[3]: "#b18cf0",
}
MARKERS = "osD^"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "heads.c",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.axisbelow": True,
}


def save(figure, path: Path, drawn_from: str) -> None:
    """Writes a picture for light pages and dark ones, which carries a hash of its numbers."""
    partial = path.with_suffix(".partial")
    figure.savefig(
        partial,
        format="svg",
        transparent=True,
        bbox_inches="tight",
        metadata={"Date": None, "Creator": None, "Source": drawn_from},
    )
    pyplot.close(figure)
    head, tail = partial.read_text(encoding="utf-8").split(" <defs>", 1)
    partial.write_text(head + dark_style() + " <defs>" + tail, encoding="utf-8")
    partial.replace(path)


def dark_style() -> str:
    """Other colours for a dark page. Selectors, not variables, which programs other than browsers
    do not know."""
    rules = [
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    lines = "\n".join(rules)
    return f"<style>@media (prefers-color-scheme: dark) {{\n{lines}\n}}</style>\n"


def line(axes, i: int, x: list, intervals: list[Interval], label: str) -> None:
    """A series with its confidence intervals."""
    axes.errorbar(
        x,
        [v.mean for v in intervals],
        [v.half for v in intervals],
        color=SERIES[i],
        marker=MARKERS[i],
        markersize=5,
        linewidth=1.6,
        capsize=3,
        label=label,
    )


def name(axes, x: float, y: float, text: str, left: bool) -> None:
    """A name beside its point, on the side that its series leaves to it."""
    axes.annotate(
        text,
        (x, y),
        xytext=(-7, -10) if left else (6, 5),
        textcoords="offset points",
        ha="right" if left else "left",
        fontsize=8,
    )


def heads_axis(axes, heads: list[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(heads, [str(n) for n in heads])
    axes.set_xlabel(label)


def log_scale(axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def above_floor(axes, kind: str) -> None:
    """Echoes can be known by heart, so their losses differ by factors."""
    axes.set_title(f"{kind.capitalize()}: nats a token above the floor")
    if kind == "echoes":
        log_scale(axes)


def copy_picture(r: Results):
    figure, axes = pyplot.subplots(figsize=(6.4, 3.2))
    heads = sorted({int(row["heads"]) for row in r.copies})
    for i, task in enumerate(dict.fromkeys(row["task"] for row in r.copies)):
        found = [Interval(numbers(r.copies, "loss", task=task, heads=n)) for n in heads]
        line(axes, i, heads, found, f"from {task}")
    heads_axis(axes, heads, "heads of one layer of width 64")
    log_scale(axes)
    axes.set_title("Copy task: nats a copied symbol (guessing: 2.77)")
    axes.legend()
    return figure


def cache_picture(r: Results):
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.6))
    for axes, kind in zip(both, KINDS):
        for i, (label, chosen) in enumerate(
            (
                ("heads", [v for v in r.variants if not v.rank]),
                ("latent", [v for v in r.variants if v.rank]),
            )
        ):
            x = [r.one(v, "bytes_f16") for v in chosen]
            found = [r.above_floor(v, kind) for v in chosen]
            line(axes, i, x, found, label)
            for variant, at, value in zip(chosen, x, found):
                name(axes, at, value.mean, variant.name, left=bool(variant.rank))
        axes.set_xscale("log", base=2)
        ticks = [2**n for n in range(5, 11)]
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_xlabel("bytes of cache a token, f16")
        above_floor(axes, kind)
        axes.margins(0.2, 0.1)
    both[0].legend()
    return figure


def pooling_picture(r: Results):
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.4))
    heads = [v.kv_heads for v in POOLED]
    for axes, kind in zip(both, KINDS):
        for i, (label, stage) in enumerate(
            (("pooled", "pooled"), ("pooled, trained on", "uptrained"), ("from the start", "start"))
        ):
            line(axes, i, heads, [r.above_floor(v, kind, stage) for v in POOLED], label)
        mha = r.above_floor(MHA, kind).mean
        axes.axhline(mha, color=MUTED, linewidth=1, linestyle="--")
        axes.annotate(
            "MHA",
            (heads[0], mha),
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
        heads_axis(axes, heads, "KV heads (of 8)")
        axes.invert_xaxis()
        above_floor(axes, kind)
        axes.margins(0.08, 0.15)
    both[1].legend(loc="upper left")
    return figure


def speed_picture(r: Results):
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
    chosen = [v for v in r.variants if v.name in ("MHA", "MQA", "MLA-23", "MLA-56")]
    for i, variant in enumerate(chosen):
        rates = [r.rate(variant, "f16", depth) / 1000 for depth in r.depths]
        axes.plot(
            r.depths,
            rates,
            color=SERIES[i],
            marker=MARKERS[i],
            markersize=5,
            linewidth=1.6,
            label=variant.name,
        )
    axes.set_xlabel("tokens in the cache")
    log_scale(axes)
    axes.set_title("Decode, thousands of tokens a second, one thread, f16")
    axes.legend()
    return figure


PICTURES = {
    "copy": copy_picture,
    "cache": cache_picture,
    "pooling": pooling_picture,
    "speed": speed_picture,
}


def draw(r: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context(STYLE):
        for title, picture in PICTURES.items():
            save(picture(r), folder / f"{title}.svg", source(r))
