"""How long the phases of a calibration take, in seconds on two cores of Zen 4. Other machines take
other times, in much the same ratios: so one bar has all phases, and one estimate of the whole."""

from __future__ import annotations

from typing import Callable, Iterable, Mapping

import numpy as np

from .. import bars
from ..tensor import Tensor

WEIGHT = 1.5e-8  # to read a weight, round it and write it
MULTIPLY = 6e-12  # one of the engine's products of two numbers
SAMPLE = 8e-9  # a logit, where a token is sampled
TURN, MOMENT = 9e-9, 8e-12  # a number of an input; a product of two of them
COMPARE = 3e-9  # a logit of a trial
SAME_INPUT = ("attn_k", "attn_v", "ffn_gate", "expert_gate")  # as another matrix


def feedback_seconds(rows: int, cols: int) -> float:
    """Of one matrix."""
    return 7e-8 * cols**2 + rows * (1e-7 * cols + 1.9e-10 * cols**2)


def phases(
    metadata: Mapping[str, object],
    tensors: Mapping[str, Tensor],
    rounded: Iterable[str],
    tokens: int,
    written: bool,
    trial: tuple[int, int],
) -> dict[str, float]:
    """The seconds of each phase. rounded: the matrices that get codes; tokens: of all texts;
    written: whether the model writes them; trial: tokens and logits of one, if there
    are any."""
    n_weights = sum(int(np.prod(tensor.shape)) for tensor in tensors.values())
    vocab = int(metadata["model.vocab_size"])
    head = vocab * int(metadata["model.n_embd"])
    experts, chosen = (int(np.max(metadata.get(f"layer.{k}", 1))) for k in ("experts", "top_k"))
    layers = turned = moments = feedback = n_trials = 0.0
    for name in rounded:
        rows, cols = tensors[name].shape
        stack = experts if "expert_" in name else 1
        feedback += stack * feedback_seconds(rows // stack, cols)
        if name.startswith("layers."):
            n_trials += 1
            share = chosen / stack if stack > 1 else 1
            layers += rows * cols * share
            if not name.endswith(SAME_INPUT):
                turned += cols * share * stack
                moments += cols**2 * share * stack
    return {
        "q8": n_weights * WEIGHT,
        "texts": tokens * ((layers + head) * MULTIPLY + vocab * SAMPLE) * written,
        "inputs": tokens * (layers * MULTIPLY + turned * TURN + moments * MOMENT),
        "codes": feedback,
        "costs": n_trials
        # A trial runs the layers from its own on, half of them on average.
        * (trial[0] * layers / 2 * MULTIPLY + trial[1] * (head * MULTIPLY + vocab * COMPARE)),
        "file": n_weights * WEIGHT,
    }


class Progress:
    """The bar, or what stands for it. A phase may have been done in part before, or turn out to be longer."""

    def __init__(self, seconds: Mapping[str, float], progress: bars.Progress = None):
        self.seconds, self.done = dict(seconds), dict.fromkeys(seconds, 0.0)
        self.bar = bars.bar(
            progress,
            sum(seconds.values()),
            smoothing=0,  # the estimate is of the whole, by its mean speed
            bar_format="{desc:6} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self.bar.close()

    def was_done(self, phase: str, share: float = 1) -> None:
        self.bar.total -= (share - self.done[phase]) * self.seconds[phase]
        self.done[phase] = share

    def takes(self, phase: str, times: float) -> None:
        """As long as was thought, times this."""
        self.bar.total += (times - 1) * self.seconds[phase]
        self.seconds[phase] *= times

    def counter(self, phase: str, total: int) -> Callable[[int], None]:
        """Takes how many more of so many are done."""
        return lambda n: self.reach(phase, self.done[phase] + n / total)

    def reach(self, phase: str, share: float) -> None:
        self.bar.set_description_str(phase, refresh=False)
        step = (share - self.done[phase]) * self.seconds[phase]
        self.bar.update(min(step, self.bar.total - self.bar.n))  # sums are not exact
        self.done[phase] = share
