"""Aria's text model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..tensor import Tensor, expect, modules, stack
from .common import LLAMA, biases, llama_block, rotate
from .experts import expert_names, experts


@dataclass
class Transposed(Part):
    """Experts' matrices as Aria has them, [n][n_in][n_out], gate and up side by side."""

    n: int = 0
    d_ff: int = 0

    def arrange(self, left):
        parts = {"gate": (0, self.d_ff), "up": (self.d_ff, 2 * self.d_ff), "down": None}
        for part, columns in parts.items():
            names = (
                ("fc2.weight", "down_proj") if columns is None else ("fc1.weight", "gate_up_proj")
            )
            for name in names:
                for module in modules(left, f"experts.{name}"):
                    fused = left[f"{module}.experts.{name}"]
                    n_in, n_out = fused.shape[1:]
                    if columns is None:
                        expect(fused, self.n, self.d_ff, n_out)
                    else:
                        expect(fused, self.n, n_in, 2 * self.d_ff)
                        n_out = self.d_ff
                    left[f"{module}.experts.{part}.weight"] = stack(
                        [self.one(fused, e, columns, n_out) for e in range(self.n)]
                    )
                    if part != "gate":  # up has read it too
                        del left[f"{module}.experts.{name}"]

    @staticmethod
    def one(fused: Tensor, e: int, columns: tuple[int, int] | None, n_out: int) -> Tensor:
        begin, end = columns or (0, n_out)
        return fused.slice(e, e + 1).map(
            lambda w: np.ascontiguousarray(w[0, :, begin:end].T), (n_out, fused.shape[1])
        )


def aria_text(c: Config) -> Knobs:
    """Aria's text model: experts beside a network that all tokens pass."""
    c.values = {
        **c.values,
        "num_experts": c.int("moe_num_experts", 8),
        "num_experts_per_tok": c.int("moe_topk", 2),
    }
    c.default(intermediate_size=4096)
    k = llama_block(c)
    rotate(c, k)
    part = experts(c, k, width="intermediate_size")
    k.parts.insert(0, Transposed([], part.n, part.d_ff))
    k.d_ff = part.d_ff * c.int("moe_num_shared_experts", 2)
    k.biased = biases(c)
    c.require(hidden_act="silu")  # which the experts have whatever this says
    return k


ARIA_TEXT = {**LLAMA, **expert_names("mlp", router="router", dense="shared_experts")}
