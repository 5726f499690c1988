"""Puts the laboratory's results into docs/variants.md as tables, and beside it as pictures.

    python -m research.lab.report                docs/variants.md, from research/lab/results
    python -m research.lab.report --smallest     the same in build/lab-smallest
    python -m research.lab.report --tables       the tables alone, which need no matplotlib

The text of docs/variants.md is written by hand; a table stands between two comments, and what is
there is replaced.
"""

from __future__ import annotations

import argparse
import re

from research import ROOT
from research.lab.plan import FULL, SMALLEST
from research.lab.results import Results
from research.lab.tables import TABLES

BLOCK = re.compile(r"(<!-- lab: (\w+) -->\n).*?(<!-- end -->)", re.S)


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
    plan = SMALLEST if args.smallest else FULL
    out = plan.work / "docs" if args.smallest else ROOT / "docs"
    found = Results(plan.results)
    out.mkdir(parents=True, exist_ok=True)
    partial = out / "variants.md.partial"
    partial.write_text(with_tables(text, found), encoding="utf-8")
    partial.replace(out / "variants.md")
    if not args.tables:
        from research.lab import pictures

        pictures.draw(found, out / "variants")


if __name__ == "__main__":
    main()
