"""GPT-J and CodeGen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part
from ..rope import Shape, rope_set
from ..tensor import ExportError, expect, modules, pick
from .common import in_layer, without
from .gpt2 import GPT2, gpt_block


def gptj(c: Config) -> Knobs:
    """GPT-J: interleaved rope of a part of each head, attention and feed-forward side by side under
    one norm."""
    c.default(tie_word_embeddings=False, n_positions=2048)
    k = gpt_block(c)
    c.require(rotary=True)
    rotary = c.int("rotary_dim", 64)
    rope = rope_set(
        Config({"partial_rotary_factor": rotary / k.head_dim}),
        Shape(k.head_dim, k.context, partial=1.0),
    )
    k.rotate(*[rope] * k.n_layers)
    k.parallel, k.interleaved, k.biased = True, True, ("ffn_up", "ffn_down", "output")
    return k


GPTJ = {
    **without(GPT2, "embed_pos", "attn_qkv", "ffn_norm"),
    **in_layer(
        "transformer.h.N.attn", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj", attn_o="out_proj"
    ),
    **in_layer("transformer.h.N.mlp", ffn_up="fc_in", ffn_down="fc_out"),
}


@dataclass
class FourBlocks(Part):
    """CodeGen's matrix of q, k and v: four blocks of heads, each with its q, then v, then k."""

    width: int = 0

    def arrange(self, left):
        for module in modules(left, "qkv_proj.weight"):
            fused = left.pop(module + ".qkv_proj.weight")
            expect(fused, 3 * self.width, self.width)
            rows = np.arange(3 * self.width).reshape(4, 3, self.width // 4)
            for i, letter in enumerate("qvk"):
                left[f"{module}.{letter}_proj.weight"] = pick(fused, rows[:, i].reshape(-1))


def codegen(c: Config) -> Knobs:
    """CodeGen: GPT-J with one matrix for q, k and v, in four blocks."""
    c.values = {**c.values, "rotary": True}
    k = gptj(c)
    if k.n_heads % 4:
        raise ExportError(f"{c.where}: n_head is {k.n_heads}, expected a multiple of 4")
    k.parts.append(FourBlocks([], k.n_embd))
    return k
