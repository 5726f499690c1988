"""What float32 is worth in one random model.

Random weights may make a softmax, a norm or a delta rule so steep that float32 is worth less than
a test's tolerance. Such a test then asks for four times what transformers' own rounding costs."""

from __future__ import annotations

from pathlib import Path

import torch


def rounding(kind, directory: Path, answers_of, **options) -> float:
    """How far transformers in float32 is from itself in float64, or in float64 from what it is with
    each weight moved by half a last place of float32, whichever is more; of the largest answer.
    answers_of(model) is a tensor."""
    with torch.no_grad():
        single = kind.from_pretrained(directory, dtype=torch.float32, **options).eval()
        model = kind.from_pretrained(directory, dtype=torch.float64, **options).eval()
        exact, found = answers_of(model), [answers_of(single)]
        weights = [(weight, weight.clone()) for weight in model.parameters()]
        for seed in range(4):
            torch.manual_seed(seed)
            for weight, value in weights:
                weight.copy_(value * (1 + (2 * torch.rand_like(value) - 1) * 2**-24))
            found.append(answers_of(model))
    return max(float((answers - exact).abs().max() / exact.abs().max()) for answers in found)
