"""Mixture of experts: how their matrices are stacked."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..tensor import ExportError, Tensor, constant, expect, modules, pick, stack, stack_rows
from .part import Part

SOFTMAX, SIGMOID, SPARSEMIXER = 0, 1, 2  # of layer.score
MAX, TOP2 = 0, 1  # of layer.group_score
HUB = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}
# The bias of the choice, from the longest name to the shortest.
SELECTION = (
    "gate.moe_statics.e_score_correction_bias",
    "moe_statics.e_score_correction_bias",
    "gate.e_score_correction_bias",
    "e_score_correction_bias",
    "expert_bias",
)
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


@dataclass
class Experts(Part):
    """Mixture of experts: `n` of width `d_ff`, of which a token gets `top_k`. The checkpoint has
    them one by one, or fused as transformers holds them: `gate_up_proj` [n, 2 d_ff, n_embd] and
    `down_proj` [n, n_embd, d_ff]. They become the modules `experts.gate`, `experts.up`,
    `experts.down`."""

    n: int = 0
    top_k: int = 0
    d_ff: int = 0
    score: int = SOFTMAX
    groups: int = 1
    top_groups: int = 1
    group_score: int = MAX
    renorm: bool = True
    renorm_eps: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0  # of the sparsemixer
    biased: bool = False  # a bias takes part in the choice
    weigh_input: bool = False  # weights multiply what experts read, not what they give
    # Fused as [n, n_embd, 2 d_ff] and [n, d_ff, n_embd], gate and up in turns, with biases.
    interleaved: bool = False
    clamp: tuple[float, float] | None = None  # alpha and limit of its activation
    shared_gate: bool = False  # the network that all tokens pass is weighed by a sigmoid
    norms: bool = False  # experts and what all tokens pass have norms of their own (Gemma 4)

    def check(self) -> None:
        """Errors: ExportError, if groups leave too few experts to choose from."""
        if self.groups < 2:
            return
        kept = self.n // self.groups * self.top_groups
        if self.n % self.groups or self.top_groups > self.groups or kept < self.top_k:
            raise ExportError(
                f"config.json: {self.n} experts in {self.groups} groups, of which "
                f"{self.top_groups} are kept, leave no {self.top_k} to choose"
            )

    def metadata(self):
        self.check()
        meta = {
            "layer.experts": self.where(self.n),
            "layer.top_k": self.top_k,
            "layer.d_expert": self.d_ff,
            "layer.score": self.score,
            "layer.renorm": int(self.renorm),
        }
        if self.groups > 1:
            meta |= {
                "layer.groups": self.groups,
                "layer.top_groups": self.top_groups,
                "layer.group_score": self.group_score,
            }
        if self.renorm and self.renorm_eps:
            meta["layer.renorm_eps"] = float(self.renorm_eps)
        if self.score == SPARSEMIXER:
            meta["layer.jitter"] = float(self.jitter)
        if self.weigh_input:
            meta["layer.weigh_input"] = self.where(1)
        if self.scale != 1:
            meta["layer.routed_scale"] = float(self.scale)
        return meta

    def shapes(self, n_embd):
        up, down = stack_rows(self.n, self.d_ff), stack_rows(self.n, n_embd)
        shapes = {
            "router": (self.n, n_embd),
            "expert_gate": (up, n_embd),
            "expert_up": (up, n_embd),
            "expert_down": (down, self.d_ff),
        }
        if self.biased:
            shapes["selection_bias"] = (self.n,)
        if self.clamp:
            shapes["ffn_act"] = (4,)
        if self.shared_gate:
            shapes["shared_gate"] = (1, n_embd)
        if self.norms:
            names = ("expert_norm", "expert_post_norm", "ffn_beside_norm")
            shapes |= dict.fromkeys(names, (n_embd,))
        return shapes

    def arrange(self, left):
        for module in modules(left, "router.proj.weight") if self.norms else []:
            norm = left.get(f"{module}.pre_feedforward_layernorm_2.weight")
            router = f"{module}.router.proj.weight"
            left[router] = rescaled(left[router], left.pop(f"{module}.router.scale"), norm)
        found: dict[str, dict[str, dict[int, Tensor]]] = {}
        for key in list(left):
            match = EXPERT.fullmatch(key)
            if match and match[3] in HUB:
                found.setdefault(match[1], {}).setdefault(HUB[match[3]], {})[int(match[2])] = (
                    left.pop(key)
                )
        for module, matrices in found.items():
            for name, experts in matrices.items():
                missing = set(range(self.n)) - set(experts)
                if missing or len(experts) != self.n:
                    raise ExportError(
                        f"{module} has {len(experts)} experts with a matrix {name}, config.json "
                        f"says {self.n}"
                    )
                for expert in experts.values():
                    expect(expert, *experts[0].shape)
                left[f"{module}.{name}.weight"] = stack([experts[e] for e in range(self.n)])
        for name in SELECTION:
            for module in modules(left, name):
                bias = left.pop(f"{module}.{name}")
                left[module + ".selection.weight"] = bias.map(np.ravel, (self.n,))
        if self.interleaved:
            return self.split_interleaved(left)
        for kind in ("up", "down"):  # of experts without gates
            for module in modules(left, f"experts.{kind}_proj"):
                if f"{module}.experts.gate_up_proj" not in left:
                    fused = left.pop(f"{module}.experts.{kind}_proj")
                    left[f"{module}.experts.{kind}.weight"] = stack(fused.matrices())
        for module in modules(left, "experts.gate_up_proj"):
            experts = module + ".experts."
            self.split_fused(
                left, module, left.pop(experts + "gate_up_proj"), left.pop(experts + "down_proj")
            )
        for module in modules(left, "input_linear.weight"):
            if len(left[module + ".input_linear.weight"].shape) == 3:
                self.split_fused(
                    left,
                    module,
                    left.pop(module + ".input_linear.weight"),
                    left.pop(module + ".output_linear.weight"),
                )

    def split_fused(
        self, left: dict[str, Tensor], module: str, gate_up: Tensor, down: Tensor
    ) -> None:
        """Gate rows come first, then up rows."""
        expect(gate_up, self.n, 2 * self.d_ff, gate_up.shape[-1])
        expect(down, self.n, gate_up.shape[-1], self.d_ff)
        scale = left.pop(f"{module}.router.per_expert_scale") if self.norms else None

        def rows(tensor: Tensor, e: int, begin: int, end: int) -> Tensor:
            by = scale if tensor is down else None
            return tensor.slice(e, e + 1).map(
                lambda w: w[0, begin:end] * (1 if by is None else by.array()[e]),
                (end - begin, tensor.shape[2]),
            )

        for name, tensor, begin, end in (
            ("gate", gate_up, 0, self.d_ff),
            ("up", gate_up, self.d_ff, 2 * self.d_ff),
            ("down", down, 0, down.shape[1]),
        ):
            left[f"{module}.experts.{name}.weight"] = stack(
                [rows(tensor, e, begin, end) for e in range(self.n)]
            )

    def split_interleaved(self, left: dict[str, Tensor]) -> None:
        """In bf16 and the like transposed, in mxfp4 not."""
        for module in modules(left, "router.weight"):
            left[module + ".act.weight"] = constant(np.array([*self.clamp, 0, 0], np.float32))
        for kind in ("gate_up_proj", "down_proj"):
            for module in modules(left, f"experts.{kind}"):
                name = f"{module}.experts.{kind}"
                n, n_in, n_out = left[name].shape
                parts = [
                    left[name].slice(e, e + 1).map(lambda w: w[0].T, (n_out, n_in))
                    for e in range(n)
                ]
                self.take_interleaved(left, name, parts)
            for module in modules(left, f"experts.{kind}_blocks"):
                name = f"{module}.experts.{kind}"
                self.take_interleaved(left, name, left.pop(name + "_blocks").matrices())

    def take_interleaved(self, left: dict[str, Tensor], name: str, experts: list[Tensor]) -> None:
        """Stacks of the experts' matrices and biases, gate and up apart."""
        left.pop(name, None)
        if len(experts) != self.n:
            raise ExportError(
                f"tensor {name} has {len(experts)} experts, config.json says {self.n}"
            )
        biases = [
            b.map(lambda w: w[0], b.shape[1:])
            for b in (left[name + "_bias"].slice(e, e + 1) for e in range(self.n))
        ]
        del left[name + "_bias"]
        base = name.rpartition(".")[0]
        for kind, tensors in (("weight", experts), ("bias", biases)):
            rows = np.arange(tensors[0].shape[0])
            if name.endswith(".down_proj"):
                left[f"{base}.down.{kind}"] = stack(tensors)
                continue
            left[f"{base}.gate.{kind}"] = stack([pick(t, rows[0::2]) for t in tensors])
            left[f"{base}.up.{kind}"] = stack([pick(t, rows[1::2]) for t in tensors])


def rescaled(router: Tensor, scale: Tensor, norm: Tensor) -> Tensor:
    """Gemma 4's router, which reads the stream divided by its length and times `scale`, for what
    its experts read: the same times `norm`."""

    def columns(w: np.ndarray) -> np.ndarray:
        weights = norm.array()
        if not np.all(weights):
            raise ExportError(
                f"tensor {norm.name} holds a zero, by which {router.name} would have to be divided"
            )
        return w * (scale.array() / weights * np.float32(w.shape[1] ** -0.5))

    return router.map(columns)
