"""Parts of a decoder that only some layers have: experts, latent attention, and the mixers that
take the place of attention. A part says which layers have it, what metadata and tensors
docs/format.md asks for, and how the source's tensors become modules that a family's table can
name."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Sequence

import numpy as np

from .tensor import ExportError, Tensor, constant

LANES = 16
KINDS = frozenset(  # the tensors that only parts have
    "router selection_bias shared_gate expert_gate expert_up expert_down attn_gate attn_q_down "
    "expert_norm expert_post_norm ffn_beside_norm "
    "attn_q_down_norm "
    "attn_latent_norm attn_k_up attn_v_up mix_in conv mix_out "
    "delta_gate delta_beta delta_decay delta_rate delta_norm "
    "ssm_gate ssm_step ssm_rate ssm_skip ssm_norm "
    "ple_gate ple_out ple_norm".split()
)
SHORTCONV, DELTANET, MAMBA2, NO_MIXER = 1, 2, 3, 4  # values of layer.mixer
SOFTMAX, SIGMOID, SPARSEMIXER = 0, 1, 2  # of layer.score
MAX, TOP2 = 0, 1  # of layer.group_score


@dataclass
class Part:
    """`layers` has, for each layer, whether it has the part."""

    layers: list[bool]
    lacks = ()  # tensors that such a layer lacks, though others have them
    mixer = 0  # layer.mixer of such a layer

    def metadata(self) -> dict[str, object]:
        """The part's knobs."""
        return {}

    def shapes(self, n_embd: int) -> dict[str, tuple[int, ...]]:
        """The tensors of a layer that has it."""
        return {}

    def arrange(self, left: dict[str, Tensor]) -> None:
        """Replaces the source's tensors by those that the table names."""

    def rename(
        self, names: dict[str, str | None], left: dict[str, Tensor]
    ) -> dict[str, str | None]:
        """The family's table, less what this checkpoint does not have."""
        return names

    @property
    def mixes(self) -> bool:
        """Whether it stands where attention does."""
        return False

    def where(self, value, otherwise=0) -> list:
        """A layer's knob: `value` in the layers that have the part."""
        return [value if has else otherwise for has in self.layers]


@dataclass
class Lacking(Part):
    """Layers without `lacks`, which others have."""

    lacks: tuple[str, ...] = ()


@dataclass
class NoMixer(Part):
    """Layers that are a feed-forward network alone."""

    lacks = ("attn_norm",)
    mixer = NO_MIXER

    @property
    def mixes(self):
        return True


@dataclass
class Multiplied(Part):
    """Modules whose weights and biases are multiplied by a factor each, by the end of their names;
    what a family multiplies activations by."""

    factors: dict[str, tuple[float, float]] = field(default_factory=dict)

    def arrange(self, left):
        for module, factors in self.factors.items():
            for kind, factor in zip(("weight", "bias"), factors):
                for base in modules(left, f"{module}.{kind}"):
                    name = f"{base}.{module}.{kind}"
                    left[name] = times(left[name], np.float32([factor]))


@dataclass
class Skipped(Part):
    """Tensors that belong to something else, and that transformers does not load either: layers
    from `n_layers` on, which predict several tokens at once, and names that begin with one of
    `prefixes`."""

    n_layers: int = 0
    prefixes: tuple[str, ...] = ()

    def arrange(self, left):
        for name in list(left):
            layer = re.match(r"model\.layers\.(\d+)\.", name)
            if (
                name.startswith(self.prefixes)
                or self.n_layers
                and layer
                and int(layer[1]) >= self.n_layers
            ):
                del left[name]


def stack_rows(n: int, rows: int) -> int:
    """The rows of a stack of n matrices: each but the last is filled up to whole panels."""
    return (n - 1) * -(-rows // LANES) * LANES + rows


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """A stack of tensors of one shape, read one at a time."""
    rows, step = tensors[0].shape[0], stack_rows(2, tensors[0].shape[0]) - tensors[0].shape[0]
    shape = (stack_rows(len(tensors), rows), *tensors[0].shape[1:])

    def load():
        open_tensor, read = -1, None

        def take(a: int, b: int) -> np.ndarray:
            nonlocal open_tensor, read
            out = np.zeros((b - a, *shape[1:]), np.float32)
            for i in range(a // step, min((b - 1) // step + 1, len(tensors))):
                begin, end = max(a, i * step), min(b, i * step + rows)
                if begin >= end:
                    continue
                if i != open_tensor:
                    open_tensor, read = i, tensors[i].load()
                out[begin - a : end - a] = read(begin - i * step, end - i * step)
            return out

        return take

    return Tensor(tensors[0].name, shape, load)


def expect(tensor: Tensor, *shape: int) -> Tensor:
    """The tensor, if it has that shape. Errors: ExportError."""
    if tuple(tensor.shape) != shape:
        raise ExportError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, config.json makes it "
            f"{list(shape)}"
        )
    return tensor


def pick(tensor: Tensor, rows: np.ndarray) -> Tensor:
    """The rows of that index, in its order."""
    return tensor.map(lambda w: w[rows], (len(rows), *tensor.shape[1:]))


def times(tensor: Tensor, factors: np.ndarray) -> Tensor:
    """The rows times a factor each, or all by one."""
    if np.all(factors == 1):
        return tensor
    return tensor.map(lambda w: w * factors.reshape(-1, *[1] * (w.ndim - 1)))


def below(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors, those of one below those of the other."""
    shape = (sum(t.shape[0] for t in tensors), *tensors[0].shape[1:])
    return tensors[0].map(lambda w: np.concatenate([w, *(t.array() for t in tensors[1:])]), shape)


def modules(left: dict[str, Tensor], name: str) -> list[str]:
    """What stands before `.name` in the names of the tensors that end in it."""
    return [key[: -len(name) - 1] for key in list(left) if key.endswith("." + name)]


# ---- experts -------------------------------------------------------------------------------------

HUB = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


@dataclass
class Experts(Part):
    """Mixture of experts: `n` of width `d_ff`, of which a token gets `top_k`. The source has them
    one by one, or fused as transformers holds them: `gate_up_proj` [n, 2 d_ff, n_embd] and
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
    # Fused as [n, n_embd, 2 d_ff] and [n, d_ff, n_embd], gate and up in turns, with biases.
    interleaved: bool = False
    clamp: tuple[float, float] | None = None  # alpha and limit of its activation
    shared_gate: bool = False  # the network that all tokens pass is weighed by a sigmoid
    norms: bool = False  # experts and what all tokens pass have norms of their own (Gemma 4)

    def metadata(self):
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
        for module in modules(left, "router.scale"):
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
        for name in ("gate.e_score_correction_bias", "expert_bias"):
            for module in modules(left, name):
                left[module + ".selection.weight"] = left.pop(f"{module}.{name}")
        if self.interleaved:
            return self.split_interleaved(left)
        for kind in ("up", "down"):  # of experts without gates
            for module in modules(left, f"experts.{kind}_proj"):
                if f"{module}.experts.gate_up_proj" not in left:
                    fused = left.pop(f"{module}.experts.{kind}_proj")
                    experts = [
                        fused.slice(e, e + 1).map(lambda w: w[0], fused.shape[1:])
                        for e in range(fused.shape[0])
                    ]
                    left[f"{module}.experts.{kind}.weight"] = stack(experts)
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
        """Gate rows come first, then those of up."""
        expect(gate_up, self.n, 2 * self.d_ff, gate_up.shape[-1])
        expect(down, self.n, gate_up.shape[-1], self.d_ff)
        scale = left.pop(f"{module}.router.per_expert_scale", None)

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
        for module in modules(left, "experts.down_proj_bias"):
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
                tensor = left.pop(name + "_blocks")
                parts = [
                    tensor.slice(e, e + 1).map(lambda w: w[0], tensor.shape[1:])
                    for e in range(tensor.shape[0])
                ]
                self.take_interleaved(left, name, parts)

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
            raise ExportError(f"tensor {norm.name} holds a zero, by which {router.name} would have "
                              "to be divided")  # fmt: skip
        return w * (scale.array() / weights * np.float32(w.shape[1] ** -0.5))

    return router.map(columns)


# ---- latent attention ----------------------------------------------------------------------------


@dataclass
class Latent(Part):
    """Multi-head latent attention: `heads` with `nope` and `rope` numbers in a query and `value` in
    a value, over a latent of `rank`. `kv_b_proj`, the keys and values of each head from the latent,
    becomes the modules `k_up` (transposed: it goes to the query instead) and `v_up`; interleaved
    rope becomes half-split."""

    heads: int = 0
    rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    q_rank: int = 0  # of the query's own latent; 0: it has none
    interleaved: bool = True
    eps: float = 1e-6  # of the norms inside, whatever config.json says of the others

    @property
    def mixes(self):
        return True

    def metadata(self):
        return {
            "layer.latent": self.rank,
            "layer.n_nope": self.nope,
            "layer.n_value": self.value,
            "model.latent_eps": self.eps,
        }

    def shapes(self, n_embd):
        down = (
            {"attn_q_down": (self.q_rank, n_embd), "attn_q_down_norm": (self.q_rank,)}
            if self.q_rank
            else {}
        )
        return {
            **down,
            "attn_q": (self.heads * (self.nope + self.rope), self.q_rank or n_embd),
            "attn_latent_norm": (self.rank,),
            "attn_k": (self.rank + self.rope, n_embd),
            "attn_k_up": (stack_rows(self.heads, self.rank), self.nope),
            "attn_v_up": (stack_rows(self.heads, self.value), self.rank),
            "attn_o": (n_embd, self.heads * self.value),
        }

    def arrange(self, left):
        for module in modules(left, "kv_b_proj.weight"):
            both = left.pop(module + ".kv_b_proj.weight")
            heads = self.by_head(expect(both, self.heads * (self.nope + self.value), self.rank))
            left[module + ".k_up.weight"] = stack(
                [h.map(self.key_part, (self.rank, self.nope)) for h in heads]
            )
            left[module + ".v_up.weight"] = stack(
                [h.slice(self.nope, self.nope + self.value) for h in heads]
            )
        if not self.interleaved:
            return
        query = self.nope + self.rope
        order = np.concatenate([h * query + self.half_split(self.nope) for h in range(self.heads)])
        for module, rows, order in (
            ("q_proj", self.heads * query, order),
            ("q_b_proj", self.heads * query, order),
            ("kv_a_proj_with_mqa", self.rank + self.rope, self.half_split(self.rank)),
        ):
            for kind in ("weight", "bias"):
                for base in modules(left, f"{module}.{kind}"):
                    name = f"{base}.{module}.{kind}"
                    left[name] = pick(expect(left[name], rows, *left[name].shape[1:]), order)

    def by_head(self, tensor: Tensor) -> list[Tensor]:
        rows = self.nope + self.value
        return [tensor.slice(h * rows, (h + 1) * rows) for h in range(self.heads)]

    def key_part(self, head: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(head[: self.nope].T)

    def half_split(self, before: int) -> np.ndarray:
        """Rows of which the last `rope` are rotated: the pairs (2i, 2i + 1) become
        (i, i + rope / 2)."""
        rotated = before + np.arange(self.rope)
        return np.concatenate([np.arange(before), rotated[0::2], rotated[1::2]])


# ---- mixers with a convolution -------------------------------------------------------------------


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
        """Of each key head: q, k, the values and the gates of its value heads; beta and decay
        likewise."""
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
    """Mamba-2. `in_proj`, whose rows are those of the gate, of x, B and C, and of the steps, becomes
    the modules `gate`, `x` and `step`, each times a multiplier; the steps' bias and the rate become
    `step.bias` and `rate`."""

    taps: int = 0
    heads: int = 0
    head_dim: int = 0
    groups: int = 0
    state: int = 0
    limits: tuple[float, float] = (0.0, math.inf)  # of a step
    norm: bool = True
    norm_first: bool = False  # before the gate
    beside: bool = False  # attention, not in its place
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
        meta |= {"layer.beside": self.where(1)} if self.beside else {}
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
class SharedKeys(Part):
    """Layers that read the keys and values of an earlier one, `source` (-1 in the others).
    Checkpoints may hold weights for them nevertheless, which nobody reads. Layers of `key_is_value`
    have one matrix for both."""

    source: list[int]
    key_is_value: list[bool]
    lacks = ("attn_k", "attn_v", "attn_k_norm", "attn_v_norm")

    def metadata(self):
        return {"layer.kv_source": self.source} if any(self.layers) else {}

    def arrange(self, left):
        for i, shared in enumerate(self.layers):
            module = f"model.layers.{i}.self_attn."
            if shared:
                for name in (
                    "k_proj.weight",
                    "v_proj.weight",
                    "k_proj.bias",
                    "v_proj.bias",
                    "k_norm.weight",
                ):
                    left.pop(module + name, None)
            elif self.key_is_value[i] and module + "k_proj.weight" in left:
                left[module + "v_proj.weight"] = left[module + "k_proj.weight"]


@dataclass
class PerLayerEmbedding(Part):
    """`width` numbers that each token has for each layer."""

    width: int
    vocab_size: int

    def metadata(self):
        return {"model.ple": self.width}

    def shapes(self, n_embd):
        everything = self.width * len(self.layers)
        return {
            "ple_table": (self.vocab_size, everything),
            "ple_in": (everything, n_embd),
            "ple_in_norm": (self.width,),
            "ple_gate": (self.width, n_embd),
            "ple_out": (n_embd, self.width),
            "ple_norm": (n_embd,),
        }


@dataclass
class OutGate(Part):
    """What attention gives is multiplied by a sigmoid, whose matrix the source has head by head
    after that of the query."""

    heads: int = 0
    head_dim: int = 0

    def shapes(self, n_embd):
        return {"attn_gate": (self.heads * self.head_dim, n_embd)}

    def arrange(self, left):
        for kind in ("weight", "bias"):
            for module in modules(left, f"q_proj.{kind}"):
                both = left.pop(f"{module}.q_proj.{kind}")
                rows = np.arange(
                    expect(both, 2 * self.heads * self.head_dim, *both.shape[1:]).shape[0]
                )
                rows = rows.reshape(self.heads, 2, self.head_dim)
                left[f"{module}.q_proj.{kind}"] = pick(both, rows[:, 0].reshape(-1))
                left[f"{module}.gate_proj.{kind}"] = pick(both, rows[:, 1].reshape(-1))


@dataclass
class HeadGate(Part):
    """Each head of attention is multiplied by a sigmoid."""

    heads: int = 0

    def shapes(self, n_embd):
        return {"attn_gate": (self.heads, n_embd)}
