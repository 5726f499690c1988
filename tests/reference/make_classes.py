#!/usr/bin/env python3
"""Makes tests/golden/classes.json: what transformers computes with the heads of
tests/support/classifiers.py.

    python tests/reference/make_classes.py

(torch 2.13.0, transformers 5.23.0.) For each case texts of ids, where a second text begins, and the
rows of logits."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402, F401
import classifiers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from test_encoders import spell  # noqa: E402

TEXTS = [(spell("hello world"), 0), (spell("a"), 0), ([2, *range(5, 40), 3], 0)]
PAIR = ([2, 9, 40, 3, 11, 50, 17, 3], 4)


def logits(model, ids: list[int], second: int) -> list[list[float]]:
    more = {}
    if second:
        more["token_type_ids"] = torch.tensor([[int(i >= second) for i in range(len(ids))]])
    with torch.no_grad():
        rows = model(torch.tensor([ids]), **more).logits[0]
    rows = rows if rows.ndim == 2 else rows[None]
    return [[float(f"{x:.7g}") for x in row] for row in rows.tolist()]


def main() -> None:
    found = {}
    for name, (golden, architecture, *_) in classifiers.CASES.items():
        with tempfile.TemporaryDirectory() as out:
            source = classifiers.make(name, Path(out) / "source")
            loader = getattr(transformers, architecture)
            model = loader.from_pretrained(source, attn_implementation="eager").eval()
        pairs = [PAIR] if golden == "bert" and architecture.endswith(classifiers.TEXTS) else []
        found[name] = [(ids, n, logits(model, ids, n)) for ids, n in [*TEXTS, *pairs]]
    path = conftest.ROOT / "tests" / "golden" / "classes.json"
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
