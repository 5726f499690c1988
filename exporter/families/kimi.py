"""Kimi Linear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.mixers import DeltaNet
from ..rope import FULL
from ..tensor import ExportError, modules
from .common import LINEAR, in_layer, mixer_kinds, with_silu
from .deepseek import DEEPSEEK, latent_block
from .experts import v3_experts

# Keys of the hub's config, and what transformers' other families call them.
NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "num_local_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}


@dataclass
class KimiDelta(DeltaNet):
    """Kimi Delta Attention: a decay for each channel of a key, and matrices of low rank before
    the decay's and the gate's."""

    def metadata(self):
        knobs = {"layer.delta_by_channel": self.where(1), "layer.delta_sigmoid": self.where(1)}
        return {**super().metadata(), **knobs}

    def shapes(self, n_embd):
        width = self.v_heads * self.v_dim
        return {
            **super().shapes(n_embd),
            "delta_gate_down": (self.v_dim, n_embd),
            "delta_gate": (width, self.v_dim),
            "delta_decay_down": (self.k_dim, n_embd),
            "delta_decay": (self.v_heads * self.k_dim, self.k_dim),
            "delta_rate": (self.v_heads * self.k_dim,),
        }

    def arrange(self, left):
        for name in list(left):  # experts as the hub has them, gates as transformers has them
            new = name.replace(".block_sparse_moe.", ".mlp.").replace(".forget_gate.", ".")
            left[new] = left.pop(name)
        for module in modules(left, "A_log"):
            left[module + ".a_proj.weight"] = left.pop(module + ".f_b_proj.weight")
            rates = left[module + ".A_log"]
            left[module + ".A_log"] = rates.map(
                lambda w: np.repeat(w.reshape(-1), self.k_dim), (self.v_heads * self.k_dim,)
            )
        super().arrange(left)


def kimi_linear(c: Config) -> Knobs:
    """Kimi Linear: in three layers of four a delta rule whose state decays by channel, in the others
    latent attention without rope, DeepSeek-V3's router."""
    for key, other in NAMES.items():
        if key in c.values and other in c.values:
            raise ExportError(f"{c.where} has both {key} and {other}; keep one")
    c.values = {NAMES.get(key, key): value for key, value in c.values.items()}
    c.default(
        intermediate_size=9216,
        moe_intermediate_size=1024,
        num_local_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        routed_scaling_factor=2.446,
        q_lora_rank=None,
    )
    k = latent_block(c, False, max_position_embeddings=1048576, rms_norm_eps=1e-5)
    k.rotate(None)
    c.require(mla_use_nope=True, use_grouped_topk=True, moe_router_activation_func="sigmoid")
    inner = Config(c.object("linear_attn_config"), f"{c.where}: linear_attn_config")
    kinds = layer_kinds(c, inner, k.n_layers)
    k.parts[0].layers = [kind == FULL for kind in kinds]
    heads = inner.int("num_heads", c.int("linear_num_heads", 32))
    dim = inner.int("head_dim", c.int("linear_head_dim", 128))
    taps = c.int("linear_conv_kernel_dim", 4, most=64)
    taps = inner.int("short_conv_kernel_size", taps, most=64)
    inner.finish()
    delta = with_silu(c, [kind == LINEAR for kind in kinds])
    k.parts.insert(0, KimiDelta(delta, taps, heads, heads, dim, dim))
    k.biased += ("delta_decay",)
    v3_experts(c, k, first=1, listed=True)
    return k


def layer_kinds(c: Config, inner: Config, n_layers: int) -> list[str]:
    """layer_types; or by linear_attn_config, which counts layers from 1; or every fourth layer
    after the first has attention."""
    usual = [FULL if i and i % 4 == 0 else LINEAR for i in range(n_layers)]
    full, linear = inner.list("full_attn_layers"), inner.list("kda_layers")
    if full is not None and linear is not None:
        if sorted([*full, *linear]) != list(range(1, n_layers + 1)):
            raise ExportError(
                f"{inner.where}: full_attn_layers and kda_layers are not the layers 1 to {n_layers}"
            )
        usual = [FULL if i + 1 in full else LINEAR for i in range(n_layers)]
    return mixer_kinds(c, n_layers, (LINEAR, FULL), usual)


KIMI_LINEAR = {
    **DEEPSEEK,
    **in_layer(
        "model.layers.N.self_attn",
        mix_in="in_proj_qkv",
        conv="conv1d",
        delta_gate_down="g_a_proj",
        delta_gate="g_b_proj",
        delta_beta="b_proj",
        delta_decay_down="f_a_proj",
        delta_decay="in_proj_a",
        delta_rate="rate",
        delta_norm="o_norm",
        mix_out="o_proj",
    ),
}
