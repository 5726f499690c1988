"""Mixers that take the place of attention: short convolution, gated DeltaNet, Mamba, RG-LRU, or none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..tensor import Tensor, below, constant, expect, modules, pick, stack, stack_rows, times
from .part import Part

SHORTCONV, DELTANET, MAMBA2, NO_MIXER, MAMBA, RGLRU = 1, 2, 3, 4, 5, 6  # values of layer.mixer


@dataclass
class NoMixer(Part):
    """Layers that are a feed-forward network alone."""

    lacks = ("attn_norm",)
    mixer = NO_MIXER

    @property
    def mixes(self):
        return True


def conv_taps(tensor: Tensor, channels: int, taps: int) -> Tensor:
    """The weights of a depthwise convolution, [channels, 1, taps], as a vector [taps][channels]."""
    expect(tensor, channels, 1, taps)
    return tensor.map(lambda w: np.ascontiguousarray(w[:, 0].T).reshape(-1), (taps * channels,))


@dataclass
class ShortConv(Part):
    """LFM2's short convolution over `taps` tokens."""

    taps: int = 0
    channels: int = 0
    mixer = SHORTCONV

    @property
    def mixes(self):
        return True

    def metadata(self):
        return {"layer.taps": self.where(self.taps)}

    def shapes(self, n_embd):
        return {
            "mix_in": (3 * n_embd, n_embd),
            "conv": (self.taps * n_embd,),
            "mix_out": (n_embd, n_embd),
        }

    def arrange(self, left):
        for module in modules(left, "conv.conv.weight"):
            name = module + ".conv.conv.weight"
            left[name] = conv_taps(left[name], self.channels, self.taps)


@dataclass
class DeltaNet(Part):
    """Gated DeltaNet. The decay's bias and rate become `in_proj_a.bias` and `rate`; qkvz and ba,
    which Qwen3-Next has key head by key head, and the matrices and convolutions that OLMo Hybrid
    has apart, become the matrices that Qwen3.5 has."""

    taps: int = 0
    k_heads: int = 0
    v_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    beta: float = 1.0  # the factor of its steps
    eps: float | None = None  # of its norm, where config.json says another of the others
    mixer = DELTANET

    @property
    def mixes(self):
        return True

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    def metadata(self):
        meta = {} if self.beta == 1 else {"layer.delta_beta": float(self.beta)}
        if self.eps is not None:
            meta["layer.delta_eps"] = float(self.eps)
        return meta | {
            "layer.taps": self.where(self.taps),
            "layer.delta_k_heads": self.where(self.k_heads),
            "layer.delta_v_heads": self.where(self.v_heads),
            "layer.delta_k_dim": self.where(self.k_dim),
            "layer.delta_v_dim": self.where(self.v_dim),
        }

    def shapes(self, n_embd):
        values = self.v_heads * self.v_dim
        return {
            "mix_in": (self.channels, n_embd),
            "conv": (self.taps * self.channels,),
            "delta_gate": (values, n_embd),
            "delta_beta": (self.v_heads, n_embd),
            "delta_decay": (self.v_heads, n_embd),
            "delta_rate": (self.v_heads,),
            "delta_norm": (self.v_dim,),
            "mix_out": (n_embd, values),
        }

    def arrange(self, left):
        for module in modules(left, "A_log"):
            left[module + ".rate.weight"] = left.pop(module + ".A_log").map(np.exp)
            left[module + ".in_proj_a.bias"] = left.pop(module + ".dt_bias")
            name = module + ".conv1d.weight"
            if module + ".q_proj.weight" in left:
                self.join(left, module)
            left[name] = conv_taps(left[name], self.channels, self.taps)
            if module + ".in_proj_qkvz.weight" in left:
                self.split_key_heads(left, module)

    def join(self, left: dict[str, Tensor], module: str) -> None:
        """q, k and v, and their convolutions, as one."""
        matrices = [left.pop(f"{module}.{letter}_proj.weight") for letter in "qkv"]
        left[module + ".in_proj_qkv.weight"] = below(matrices)
        left[module + ".in_proj_a.weight"] = left.pop(module + ".a_proj.weight")
        if module + ".q_conv1d.weight" in left:
            convs = [left.pop(f"{module}.{letter}_conv1d.weight") for letter in "qkv"]
            left[module + ".conv1d.weight"] = below(convs)

    def split_key_heads(self, left: dict[str, Tensor], module: str) -> None:
        """Splits what lies key head by key head: q, k, the values and the gates of its value heads;
        beta and decay likewise."""
        per, k = self.v_heads // self.k_heads, self.k_dim
        sizes = np.cumsum([0, k, k, per * self.v_dim, per * self.v_dim])
        qkvz = left.pop(module + ".in_proj_qkvz.weight")
        rows = np.arange(expect(qkvz, self.k_heads * sizes[-1], qkvz.shape[1]).shape[0]).reshape(
            self.k_heads, -1
        )
        q, k, v, z = (rows[:, a:b].reshape(-1) for a, b in zip(sizes, sizes[1:]))
        left[module + ".in_proj_qkv.weight"] = pick(qkvz, np.concatenate([q, k, v]))
        left[module + ".in_proj_z.weight"] = pick(qkvz, z)
        ba = left.pop(module + ".in_proj_ba.weight")
        rows = np.arange(expect(ba, 2 * self.v_heads, ba.shape[1]).shape[0]).reshape(
            self.k_heads, 2, per
        )
        left[module + ".in_proj_b.weight"] = pick(ba, rows[:, 0].reshape(-1))
        left[module + ".in_proj_a.weight"] = pick(ba, rows[:, 1].reshape(-1))


@dataclass
class Mamba2(Part):
    """Mamba-2. `in_proj`, which has rows for the gate, for x, B and C, and for the steps,
    becomes the modules `gate`, `x` and `step`, each times a multiplier; the steps' bias and the
    rate become `step.bias` and `rate`."""

    taps: int = 0
    heads: int = 0
    head_dim: int = 0
    groups: int = 0
    state: int = 0
    limits: tuple[float, float] = (0.0, math.inf)  # of a step
    norm: bool = True
    norm_first: bool = False  # before the gate
    beside: bool | list[bool] = False  # attention, or after it, not in its place
    multipliers: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)  # of gate, x, B, C and steps

    @property
    def mixes(self):
        return not self.beside

    @property
    def mixer(self):
        return 0 if self.beside else MAMBA2

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state

    def metadata(self):
        meta = {
            "layer.taps": self.where(self.taps),
            "layer.ssm_heads": self.where(self.heads),
            "layer.ssm_head_dim": self.where(self.head_dim),
            "layer.ssm_groups": self.where(self.groups),
            "layer.ssm_state": self.where(self.state),
        }
        if self.beside:
            some = isinstance(self.beside, list)
            meta["layer.beside"] = [int(b) for b in self.beside] if some else self.where(1)
        if self.norm_first:
            meta["layer.ssm_norm_first"] = self.where(1)
        if self.limits[0]:
            meta["layer.ssm_least_step"] = float(self.limits[0])
        if self.limits[1] < math.inf:
            meta["layer.ssm_most_step"] = float(self.limits[1])
        return meta

    def shapes(self, n_embd):
        width = self.heads * self.head_dim
        shapes = {
            "mix_in": (self.channels, n_embd),
            "conv": (self.taps * self.channels,),
            "ssm_gate": (width, n_embd),
            "ssm_step": (self.heads, n_embd),
            "ssm_rate": (self.heads,),
            "ssm_skip": (self.heads,),
            "mix_out": (n_embd, width),
        }
        return shapes | ({"ssm_norm": (width,)} if self.norm else {})

    def arrange(self, left):
        width, shared = self.heads * self.head_dim, self.groups * self.state
        sizes = (width, width, shared, shared, self.heads)
        factors = np.repeat(np.float32(self.multipliers), sizes)
        begins = np.cumsum([0, width, self.channels, self.heads])
        for module in modules(left, "A_log"):
            left[module + ".rate.weight"] = left.pop(module + ".A_log").map(np.exp)
            left[module + ".skip.weight"] = left.pop(module + ".D")
            name = module + ".conv1d.weight"
            left[name] = conv_taps(left[name], self.channels, self.taps)
            for kind in ("weight", "bias"):
                fused = left.pop(f"{module}.in_proj.{kind}", None)
                if fused is None:
                    continue
                expect(fused, sum(sizes), *fused.shape[1:])
                for to, begin, end in zip(("gate", "x", "step"), begins, begins[1:]):
                    part = fused.slice(int(begin), int(end))
                    left[f"{module}.{to}.{kind}"] = times(part, factors[begin:end])
            self.add_bias(left, module + ".step.bias", left.pop(module + ".dt_bias"))

    @staticmethod
    def add_bias(left: dict[str, Tensor], name: str, bias: Tensor) -> None:
        own = left.get(name)
        left[name] = bias if own is None else bias.map(lambda b: b + own.array())


@dataclass
class Mamba(Part):
    """Mamba-1: as Mamba-2 with one head of `channels` columns, whose numbers each have a rate.
    `in_proj`, which has x's rows and the gate's, becomes the modules `x` and `gate`; the rates
    and the skips become `rate` and `skip`. norms: of the steps' low rank, B and C; bare ones have
    no weights in the checkpoint."""

    taps: int = 0
    channels: int = 0
    state: int = 0
    rank: int = 0  # of the steps
    norms: bool = False
    bare: bool = False
    eps: float | None = None  # of these norms, where config.json says another of the others
    mixer = MAMBA

    @property
    def mixes(self):
        return True

    def metadata(self):
        meta = {} if self.eps is None else {"layer.ssm_eps": float(self.eps)}
        return meta | {
            "layer.taps": self.where(self.taps),
            "layer.ssm_heads": self.where(1),
            "layer.ssm_head_dim": self.where(self.channels),
            "layer.ssm_groups": self.where(1),
            "layer.ssm_state": self.where(self.state),
        }

    def shapes(self, n_embd):
        shapes = {
            "mix_in": (self.channels, n_embd),
            "conv": (self.taps * self.channels,),
            "ssm_gate": (self.channels, n_embd),
            "ssm_low": (self.rank + 2 * self.state, self.channels),
            "ssm_step_up": (self.channels, self.rank),
            "ssm_rate": (self.state * self.channels,),
            "ssm_skip": (self.channels,),
            "mix_out": (n_embd, self.channels),
        }
        norms = {"ssm_step_norm": self.rank, "ssm_b_norm": self.state, "ssm_c_norm": self.state}
        return shapes | {name: (n,) for name, n in norms.items() if self.norms}

    def arrange(self, left):
        for module in modules(left, "A_log"):
            rates = expect(left.pop(module + ".A_log"), self.channels, self.state)
            left[module + ".rate.weight"] = rates.map(
                lambda a: np.exp(a).T.reshape(-1), (self.state * self.channels,)
            )
            left[module + ".skip.weight"] = left.pop(module + ".D")
            name = module + ".conv1d.weight"
            left[name] = conv_taps(left[name], self.channels, self.taps)
            for kind in ("weight", "bias"):
                fused = left.pop(f"{module}.in_proj.{kind}", None)
                if fused is not None:
                    expect(fused, 2 * self.channels, *fused.shape[1:])
                    left[f"{module}.x.{kind}"] = fused.slice(0, self.channels)
                    left[f"{module}.gate.{kind}"] = fused.slice(self.channels, 2 * self.channels)
            if self.bare:
                for norm, n in (("dt", self.rank), ("b", self.state), ("c", self.state)):
                    left[f"{module}.{norm}_layernorm.weight"] = constant(np.ones(n, np.float32))


@dataclass
class Rglru(Part):
    """An RG-LRU, whose gates are products head by head. They become the modules `decay` and
    `input`, the rate of its decay `rate`."""

    taps: int = 0
    heads: int = 0
    head_dim: int = 0
    mixer = RGLRU

    @property
    def mixes(self):
        return True

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    def metadata(self):
        return {
            "layer.taps": self.where(self.taps),
            "layer.ssm_heads": self.where(self.heads),
            "layer.ssm_head_dim": self.where(self.head_dim),
            "layer.ssm_groups": self.where(1),
            "layer.ssm_state": self.where(1),
        }

    def shapes(self, n_embd):
        gates = (stack_rows(self.heads, self.head_dim), self.head_dim)
        return {
            "mix_in": (self.channels, n_embd),
            "conv": (self.taps * self.channels,),
            "ssm_gate": (self.channels, n_embd),
            "lru_decay": gates,
            "lru_input": gates,
            "lru_rate": (self.channels,),
            "mix_out": (n_embd, self.channels),
        }

    def arrange(self, left):
        for module in modules(left, "rg_lru.recurrent_param"):
            unit = module + ".rg_lru."
            rate = left.pop(unit + "recurrent_param")
            left[module + ".rate.weight"] = rate.map(lambda x: 8 * np.logaddexp(x, np.float32(0)))
            name = module + ".conv_1d.weight"
            left[name] = conv_taps(left[name], self.channels, self.taps)
            for gate, to in (("recurrent_gate", "decay"), ("input_gate", "input")):
                for kind in ("weight", "bias"):
                    all_heads = left.pop(f"{unit}{gate}_{kind}")
                    expect(all_heads, self.heads, *[self.head_dim] * (len(all_heads.shape) - 1))
                    heads = [
                        all_heads.slice(h, h + 1).map(lambda w: w[0].T, all_heads.shape[1:])
                        for h in range(self.heads)
                    ]
                    left[f"{module}.{to}.{kind}"] = stack(heads)
