"""What rounding costs: logits of models/hf in each dtype against its own float32, over
stories it was not trained on.

    python tests/engine/test_accuracy.py      prints the table of docs/accuracy.md
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import export  # noqa: E402
from research import stories as grammar  # noqa: E402

SOURCE = ROOT / "models" / "hf"
SEED, N_STORIES = 2_000_000, 16  # training and its held-out loss use other seeds

# weights, KV cache -> the most that logits may differ from float32: RMS of the difference over RMS
# of the logits
BOUNDS = {
    ("f32", "f16"): 0.001,
    ("f32", "q8"): 0.01,
    ("f32", "q4"): 0.1,
    ("bf16", "f32"): 0.01,
    ("q8", "f32"): 0.015,
    ("q4", "f32"): 0.13,
}


def logits_of(model: Path, text: str, cache: str) -> tuple[np.ndarray, list[int]]:
    """float32 [tokens][vocabulary] of a text, and its ids."""
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    ids = subprocess.run(
        [program, model, "--tokenize", "-p", text], check=True, capture_output=True
    ).stdout.split()
    out = model.with_suffix(".logits")
    subprocess.run(
        [program, model, "-p", text, "-ctk", cache, "-ctv", cache, "--logits", out],
        check=True,
        capture_output=True,
    )
    return np.fromfile(out, "<f4").reshape(len(ids), -1), [int(i) for i in ids]


class Measured:
    """All stories' logits of one combination: their distance from the reference's, and the
    perplexity of the stories."""

    def __init__(self, model: Path, cache: str, texts: list[str]):
        pairs = [logits_of(model, text, cache) for text in texts]
        self.logits = np.concatenate([logits for logits, _ in pairs])
        surprise = [self._surprise(logits.astype(np.float64), ids) for logits, ids in pairs]
        self.perplexity = float(np.exp(np.concatenate(surprise).mean()))

    @staticmethod
    def _surprise(logits: np.ndarray, ids: list[int]) -> np.ndarray:
        logits = logits[:-1] - logits[:-1].max(1, keepdims=True)
        return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids) - 1), ids[1:]]

    def distance(self, reference: Measured) -> float:
        return float(
            np.linalg.norm(self.logits - reference.logits) / np.linalg.norm(reference.logits)
        )


class Models:
    """The bundled model in every dtype, and what was measured of it."""

    def __init__(self, folder: Path):
        rng = random.Random(SEED)
        self.texts = [grammar.story(rng) for _ in range(N_STORIES)]
        self.files = {dtype: folder / f"{dtype}.bin" for dtype in ("f32", "bf16", "q8", "q4")}
        for dtype, file in self.files.items():
            assert export.main([str(SOURCE), str(file), "--dtype", dtype]) == 0
        self.reference = self.measure("f32", "f32")

    def measure(self, weights: str, cache: str) -> Measured:
        return Measured(self.files[weights], cache, self.texts)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("accuracy"))


@pytest.mark.parametrize(("weights", "cache"), BOUNDS)
def test_rounding_costs_no_more_than_this(models, weights, cache):
    measured = models.measure(weights, cache)
    distance = measured.distance(models.reference)
    assert 0 < distance <= BOUNDS[weights, cache]
    assert measured.perplexity <= models.reference.perplexity * 1.05


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        print(
            "| weights | KV cache | distance of the logits from f32 | perplexity |\n"
            "|---|---|---|---|"
        )
        print(f"| f32 | f32 | - | {models.reference.perplexity:.4f} |")
        for weights, cache in [*BOUNDS, ("q8", "q8")]:
            m = models.measure(weights, cache)
            print(
                f"| {weights} | {cache} | {100 * m.distance(models.reference):.3f} % "
                f"| {m.perplexity:.4f} |"
            )


if __name__ == "__main__":
    main()
