#!/usr/bin/env python3
"""Draws docs/quantizers.svg: bytes against divergence, as the tables of docs/accuracy.md have them,
which compare_quantizers.py prints. Wants matplotlib."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from matplotlib import pyplot  # noqa: E402

from research.lab.pictures import MARKERS, SERIES, STYLE, log_scale, save  # noqa: E402

PAGE, PICTURE = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "quantizers.svg"
OURS, THEIRS = "heads.c, --size and --calibrate", "llama.cpp, imatrix"


def tables() -> Iterator[tuple[str, list[str], dict[str, list[tuple[float, float]]]]]:
    """For each table beside llama.cpp: the model, its rows, and the points of both."""
    page = PAGE.read_text("utf-8").partition("\n## Beside llama.cpp\n")[2]
    for part in page.partition("\n## ")[0].split("\n\n"):
        rows = [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in part.splitlines()
            if line.startswith("|")
        ]
        if not rows:
            model = part.partition(". ")[0]  # of the table that follows
            continue
        points = {OURS: [], THEIRS: []}
        for row in rows[2:]:
            series = THEIRS if "imatrix" in row[0] else OURS if "--size" in row[0] else None
            if series:
                megabytes, nats = (float(row[rows[0].index(column)]) for column in ("MB", "KL"))
                points[series].append((megabytes, nats))
        yield model, part.splitlines(), {name: sorted(found) for name, found in points.items()}


def main() -> None:
    found = [table for table in tables() if all(table[2].values())]
    with pyplot.rc_context(STYLE):
        figure, each = pyplot.subplots(
            1, len(found), figsize=(4.5 * len(found), 3.4), squeeze=False
        )
        for axes, (model, _, points) in zip(each[0], found):
            for i, (name, of_series) in enumerate(points.items()):
                x, y = zip(*of_series)
                axes.plot(x, y, color=SERIES[i], marker=MARKERS[i], markersize=5, label=name)
            log_scale(axes)
            axes.set_xlabel("MB")
            axes.set_title(f"{model}: nats a token from f32")
        names = each[0][0].get_legend_handles_labels()
        figure.legend(*names, loc="lower center", bbox_to_anchor=(0.5, 0.93), ncols=2)
        rows = repr([rows for _, rows, _ in found])
        save(figure, PICTURE, hashlib.sha256(rows.encode()).hexdigest())


if __name__ == "__main__":
    main()
