"""DBRX."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import BOILERPLATE, Config
from ..knobs import ACTS, Knobs
from ..layers.part import Part
from ..tensor import expect, modules, stack
from .common import NORMS, in_layer, llama_block, rotate
from .experts import experts


@dataclass
class DbrxExperts(Part):
    """Experts one below the other in three matrices, the last of which is transposed."""

    n: int = 0
    d_ff: int = 0
    n_embd: int = 0

    def arrange(self, left):
        for name, kind in (("w1", "gate"), ("v1", "up"), ("w2", "down")):
            for module in modules(left, f"experts.mlp.{name}"):
                all_of = left.pop(f"{module}.experts.mlp.{name}")
                expect(all_of, self.n * self.d_ff, self.n_embd)
                each = [all_of.slice(e * self.d_ff, (e + 1) * self.d_ff) for e in range(self.n)]
                if kind == "down":
                    shape = (self.n_embd, self.d_ff)
                    each = [one.map(lambda w: np.ascontiguousarray(w.T), shape) for one in each]
                left[f"{module}.experts.{kind}.weight"] = stack(each)


def dbrx(c: Config) -> Knobs:
    """DBRX: LayerNorm without biases, q, k and v clipped, experts."""
    inner = {}
    for key in ("attn_config", "ffn_config"):
        inner[key] = Config(c.object(key), f"{c.where}: {key}")
        inner[key].ignore("attn_pdrop", "hidden_size", "moe_jitter_eps", "moe_loss_weight")
        inner[key].ignore(*(BOILERPLATE | {"is_encoder_decoder"}))
    a, f = inner["attn_config"], inner["ffn_config"]
    act = f.object("ffn_act_fn") or {"name": "silu"}
    c.values = {
        **c.values,
        "hidden_size": c.int("d_model", 2048),
        "num_attention_heads": c.int("n_heads", 16),
        "num_hidden_layers": c.int("n_layers", 24),
        "max_position_embeddings": c.int("max_seq_len", 2048),
        "num_key_value_heads": a.int("kv_n_heads", 1),
        "intermediate_size": f.int("ffn_hidden_size", 3584),
        "num_experts": f.int("moe_num_experts", 4),
        "num_experts_per_tok": f.int("moe_top_k", 1),
        "rms_norm_eps": 1e-5,
    }
    k = llama_block(c, head_dim_key=False)
    k.act = Config({"name": act.get("name")}, f"{c.where}: ffn_act_fn").choice("name", ACTS)
    c.require(tie_word_embeddings=False)
    c.default(rope_theta=a.get("rope_theta"))  # DBRX has it there; transformers 5.23.0 misses it
    rotate(c, k)
    k.layernorm, k.bare_norms = True, NORMS
    k.clip = 0.0 if a.get("clip_qkv") is None else a.number("clip_qkv")
    f.require(moe_normalize_expert_weights=1)
    part = experts(
        c, k, width="intermediate_size", renorm=f.get("moe_normalize_expert_weights", 1) is not None
    )
    k.parts.append(DbrxExperts([], part.n, part.d_ff, k.n_embd))
    a.finish()
    f.finish()
    return k


DBRX = {
    "embed": "transformer.wte",
    **in_layer(
        "transformer.blocks.N",
        attn_norm="norm_attn_norm.norm_1",
        attn_qkv="norm_attn_norm.attn.Wqkv",
        attn_o="norm_attn_norm.attn.out_proj",
        ffn_norm="norm_attn_norm.norm_2",
        router="ffn.router.layer",
        expert_gate="ffn.experts.gate",
        expert_up="ffn.experts.up",
        expert_down="ffn.experts.down",
    ),
    "norm": "transformer.norm_f",
    "output": "lm_head",
}
