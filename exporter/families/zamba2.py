"""Zamba 2: blocks of attention and feed-forward that layers share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.mixers import MAMBA2, Mamba2
from ..layers.part import Part
from ..tensor import ExportError, Tensor, Tensors, expect
from .common import LINEAR, in_layer, kinds_of, llama_block, rotate
from .mamba2 import add_mamba2, mamba2_names

HYBRID, BLOCK = "hybrid", "shared_transformer."
USUAL = [LINEAR] + ([LINEAR] * 5 + [HYBRID]) * 7 + [LINEAR] * 4 + [HYBRID] + [LINEAR] * 3
USUAL += [HYBRID, LINEAR, LINEAR]
QKV_ADAPTERS = {f"self_attn.{x}_proj": f"self_attn.linear_{x}_adapter_list" for x in "qkv"}
FFN_ADAPTERS = {"feed_forward.gate_up_proj": "feed_forward.gate_up_proj_adapter_list"}


@dataclass
class Alone(Part):
    """Layers that are Mamba-2 and nothing else."""

    lacks = ("ffn_norm", "ffn_post_norm")
    mixer = MAMBA2

    @property
    def mixes(self):
        return True


@dataclass
class Shared(Part):
    """Layers that share `n_blocks` blocks, in turn. Each gets matrices of its own: the block's, to
    which adapters of low rank are added, and of which the last goes through the layer's `linear`
    too."""

    n_blocks: int
    rank: int
    adapters: dict[str, str]  # by the matrix

    def arrange(self, left):
        layers = [i for i, shares in enumerate(self.layers) if shares]
        stem = next((name.split("layers.")[0] for name in left if "layers." in name), "")
        held, used = Tensors(left), set()
        for use, layer in enumerate(layers):
            own = block = f"{stem}layers.{layer}.{BLOCK}"
            if not any(name.startswith(own) for name in held):  # the file has the block once
                block = f"{stem}layers.{layers[use % self.n_blocks]}.{BLOCK}"
                shared = {n[len(block) :]: t for n, t in held.items() if n.startswith(block)}
                left.update({own + n: t for n, t in shared.items() if "_adapter_list." not in n})
            for matrix, adapter in self.adapters.items():
                down, up = (f"{adapter}.{use}.{i}.weight" for i in (0, 1))
                used |= {down, up}
                left[f"{own}{matrix}.weight"] = added(
                    left.pop(f"{own}{matrix}.weight"),
                    held.pop(block + down),
                    held.pop(block + up),
                    self.rank,
                )
            linear = left.pop(f"{stem}layers.{layer}.linear.weight")
            for kind in ("weight", "bias"):
                name = f"{own}feed_forward.down_proj.{kind}"
                if name in left:
                    left[name] = through(linear, left[name])
        for name in list(left):
            if name.rpartition(BLOCK)[2] in used:
                del left[name]
            elif ".mamba_decoder.mamba." in name:
                left[name.replace(".mamba_decoder", "")] = left.pop(name)


def added(matrix: Tensor, down: Tensor, up: Tensor, rank: int) -> Tensor:
    """matrix + up down"""
    expect(down, rank, *matrix.shape[1:])
    expect(up, matrix.shape[0], rank)
    return matrix.map(lambda w: (w + product(up, down.array())).astype(np.float32))


def through(linear: Tensor, last: Tensor) -> Tensor:
    """linear last"""
    expect(linear, last.shape[0], last.shape[0])
    return last.map(lambda w: product(linear, w).astype(np.float32))


def product(a: Tensor, b: np.ndarray) -> np.ndarray:
    return a.array().astype(np.float64) @ b.astype(np.float64)


def zamba2(c: Config) -> Knobs:
    """Zamba 2: Mamba-2, which in some layers also reads what attention and a feed-forward network
    make of the residual stream and the embedding side by side; layers share these, with adapters."""
    c.default(vocab_size=32000, hidden_size=2560, num_hidden_layers=54, num_attention_heads=32)
    c.default(intermediate_size=None, layers_block_type=c.get("layer_types") or USUAL)
    n_embd, n_heads = c.int("hidden_size"), c.int("num_attention_heads")
    c.values = {
        **c.values,
        "head_dim": 2 * n_embd // n_heads,
        "intermediate_size": c.get("intermediate_size") or 4 * n_embd,
    }
    k = llama_block(
        c,
        max_position_embeddings=4096,
        hidden_act="gelu",
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    k.attn_scale = (k.head_dim / 2) ** -0.5
    rotate(c, k)
    if not c.flag("use_mem_rope", False):
        k.rotate(None)
    kinds = kinds_of(c, c.get("layers_block_type"), k.n_layers, (LINEAR, HYBRID))
    k.nested = [kind == HYBRID for kind in kinds]
    k.d_ff = [k.d_ff if nested else 0 for nested in k.nested]
    adapters = QKV_ADAPTERS if c.flag("use_shared_attention_adapter", False) else {}
    shared = Shared(
        k.nested,
        c.int("num_mem_blocks", 1),
        c.int("adapter_rank", 128),
        {**adapters, **FFN_ADAPTERS},
    )
    width, heads = int(c.number("mamba_expand", 2) * n_embd), c.int("n_mamba_heads", 8)
    if width % heads:
        raise ExportError(
            f"{c.where}: n_mamba_heads {heads} do not divide the mixer's width {width}"
        )
    mamba = Mamba2(
        [True] * k.n_layers,
        taps=c.int("mamba_d_conv", 4, most=64),
        heads=heads,
        head_dim=width // heads,
        groups=c.int("mamba_ngroups", 1),
        state=c.int("mamba_d_state", 64),
        limits=(c.number("time_step_min", 0.001), np.inf),
        beside=k.nested,
    )
    k.parts += [shared, Alone([not nested for nested in k.nested])]
    bias = c.flag("add_bias_linear", False)
    k.biased = ("ffn_gate_up", "ffn_down") * bias
    add_mamba2(c, k, mamba, True, bias)
    # Mamba-2's norm has an epsilon of 1e-5, whatever rms_norm_eps the other norms have. The keys
    # below say how weights begin and how it is computed, or transformers makes them of others.
    c.require(rms_norm_eps=1e-5, use_long_context=False, use_shared_mlp_adapter=True)
    c.ignore("time_step_max", "time_step_floor", "time_step_limit", "num_logits_to_keep")
    c.ignore("chunk_size", "use_mamba_kernels", "use_mem_eff_path", "use_conv_bias", "layer_types")
    c.ignore("attention_hidden_size", "attention_head_dim", "kv_channels", "num_query_groups")
    c.ignore("mamba_headdim")
    c.require(hybrid_layer_ids=[i for i, nested in enumerate(k.nested) if nested])
    return k


ZAMBA2 = {
    "embed": "model.embed_tokens",
    "layers.N.attn_norm": "model.layers.N.shared_transformer.input_layernorm|"
    "model.layers.N.input_layernorm",
    **in_layer(
        "model.layers.N.shared_transformer",
        attn_q="self_attn.q_proj",
        attn_k="self_attn.k_proj",
        attn_v="self_attn.v_proj",
        attn_o="self_attn.o_proj",
        ffn_norm="pre_ff_layernorm",
        ffn_gate_up="feed_forward.gate_up_proj",
        ffn_down="feed_forward.down_proj",
    ),
    "layers.N.ffn_post_norm": "model.layers.N.mamba_decoder.input_layernorm",
    **mamba2_names("model.layers.N.mamba"),
    "norm": "model.final_layernorm",
    "output": "lm_head",
}
