"""Parts: what only some layers have. A part says which layers have it, what metadata and tensors
docs/format.md asks for, and how the checkpoint's tensors become modules that a family's table can
name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from ..tensor import Tensor, constant, modules, times

KINDS = frozenset(  # the tensors that only parts have
    "router selection_bias shared_gate expert_gate expert_up expert_down attn_gate attn_q_down "
    "expert_norm expert_post_norm ffn_beside_norm "
    "attn_q_down_norm "
    "attn_latent_norm attn_k_up attn_v_up attn_pos_k attn_pos_q mix_in conv mix_out "
    "delta_gate delta_gate_down delta_beta delta_decay delta_decay_down delta_rate delta_norm "
    "ssm_gate ssm_step ssm_rate ssm_skip ssm_norm "
    "lru_decay lru_input lru_rate "
    "ssm_low ssm_step_up ssm_step_norm ssm_b_norm ssm_c_norm "
    "ple_gate ple_out ple_norm".split()
)


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
        """Replaces the checkpoint's tensors by those that the table names."""

    def rename(
        self, names: dict[str, str | None], left: dict[str, Tensor]
    ) -> dict[str, str | None]:
        """The family's table without the names that this checkpoint lacks."""
        return names

    @property
    def mixes(self) -> bool:
        """Whether it takes the place of attention."""
        return False

    def where(self, value, otherwise=0) -> list:
        """A layer's knob: `value` in the layers that have the part."""
        return [value if has else otherwise for has in self.layers]


@dataclass
class Lacking(Part):
    """Layers without `lacks`, which others have."""

    lacks: tuple[str, ...] = ()


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
class Computed(Part):
    """A tensor that no file needs to hold, as transformers computes it."""

    name: str = ""
    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    def arrange(self, left):
        left[self.name] = constant(self.values)


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
