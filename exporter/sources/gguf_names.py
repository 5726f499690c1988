"""GGUF's names of tensors, which are the same in all architectures, and what they are in a family's
table of names."""

from __future__ import annotations

import re

import numpy as np

from ..assemble import in_layers
from ..knobs import Knobs
from ..tensor import Tensor, stack

# GGUF's name, without the layer -> the canonical names that it may stand for, of which a family's
# table has one.
KINDS = {
    "token_embd": ("embed",),
    "token_embd_norm": ("embed_norm",),
    "token_types": ("embed_type",),
    "position_embd": ("embed_pos",),
    "output_norm": ("norm",),
    "output": ("output",),
    "attn_norm": ("attn_norm", "ffn_norm"),  # the latter in a layer without a mixer
    "attn_q": ("attn_q",),
    "attn_k": ("attn_k",),
    "attn_v": ("attn_v",),
    "attn_qkv": ("attn_qkv", "mix_in"),
    "attn_output": ("attn_o", "mix_out"),
    "attn_gate": ("attn_gate", "delta_gate"),
    "attn_q_norm": ("attn_q_norm",),
    "attn_k_norm": ("attn_k_norm",),
    "attn_sub_norm": ("attn_sub_norm",),
    "attn_sinks": ("attn_sinks",),
    "attn_q_a": ("attn_q_down",),
    "attn_q_a_norm": ("attn_q_down_norm",),
    "attn_q_b": ("attn_q",),
    "attn_kv_a_mqa": ("attn_k",),
    "attn_kv_a_norm": ("attn_latent_norm",),
    "attn_k_b": ("attn_k_up",),
    "attn_v_b": ("attn_v_up",),
    "post_attention_norm": ("attn_post_norm", "ffn_norm"),
    "ffn_norm": ("ffn_norm",),
    "ffn_gate": ("ffn_gate",),
    "ffn_up": ("ffn_up", "ffn_gate_up"),
    "ffn_down": ("ffn_down",),
    "ffn_sub_norm": ("ffn_sub_norm",),
    "post_ffw_norm": ("ffn_post_norm",),
    "ffn_gate_inp": ("router",),
    "ffn_gate_inp_shexp": ("shared_gate",),
    "ffn_gate_exps": ("expert_gate",),
    "ffn_up_exps": ("expert_up",),
    "ffn_down_exps": ("expert_down",),
    "ffn_gate_shexp": ("ffn_gate",),
    "ffn_up_shexp": ("ffn_up", "ffn_gate_up"),
    "ffn_down_shexp": ("ffn_down",),
    "shortconv.in_proj": ("mix_in",),
    "shortconv.conv": ("conv",),
    "shortconv.out_proj": ("mix_out",),
    "ssm_conv1d": ("conv",),
    "ssm_x": ("ssm_low",),
    "ssm_dt": ("ssm_step_up",),
    "ssm_dt_norm": ("ssm_step_norm",),
    "ssm_b_norm": ("ssm_b_norm",),
    "ssm_c_norm": ("ssm_c_norm",),
    "ssm_norm": ("ssm_norm", "delta_norm"),
    "ssm_out": ("mix_out",),
    "ssm_alpha": ("delta_decay",),
    "ssm_beta": ("delta_beta",),
    "ssm_f_a": ("delta_decay_down",),
    "ssm_g_a": ("delta_gate_down",),
    "ssm_g_b": ("delta_gate",),
    "per_layer_token_embd": ("ple_table",),
    "per_layer_model_proj": ("ple_in",),
    "per_layer_proj_norm": ("ple_in_norm",),
    "inp_gate": ("ple_gate",),
    "proj": ("ple_out",),
    "post_norm": ("ple_norm",),
    "layer_output_scale": ("out_scale",),
    "pre_ffw_norm_2": ("expert_norm",),
    "post_ffw_norm_1": ("ffn_beside_norm",),
    "post_ffw_norm_2": ("expert_post_norm",),
    "enc.output_norm": ("source_norm", "norm"),
    "dec.output_norm": ("norm",),
    "attn_o": ("attn_o",),
    "cross_attn_norm": ("cross_norm",),
    "cross_attn_q": ("cross_q",),
    "cross_attn_k": ("cross_k",),
    "cross_attn_v": ("cross_v",),
    "cross_attn_o": ("cross_o",),
}
# Tensors that a family takes apart before its table names them: a canonical name, and what the
# checkpoint has beside its module.
BESIDE = {
    "ssm_in.weight": ("mix_in", "in_proj.weight"),
    "ssm_in.bias": ("mix_in", "in_proj.bias"),
    "ssm_a": ("mix_in", "A_log"),
    "ssm_d": ("mix_in", "D"),
    "ssm_dt.bias": ("mix_in", "dt_bias"),
    "ssm_f_b.weight": ("mix_in", "f_b_proj.weight"),
    "ssm_conv1d_q.weight": ("mix_in", "q_conv1d.weight"),
    "ssm_conv1d_k.weight": ("mix_in", "k_conv1d.weight"),
    "ssm_conv1d_v.weight": ("mix_in", "v_conv1d.weight"),
    "attn_q.weight": ("mix_in", "q_proj.weight"),
    "attn_k.weight": ("mix_in", "k_proj.weight"),
    "attn_v.weight": ("mix_in", "v_proj.weight"),
    "attn_rel_b.weight": ("attn_q", "relative_attention_bias.weight"),
    "attn_kv_b.weight": ("attn_k", "kv_b_proj.weight"),
    "exp_probs_b.bias": ("selection_bias", "e_score_correction_bias"),
}
# What is around a layer that guesses: families/guesses.py's PARTS.
AROUND_GUESSES = {
    "nextn.eh_proj": "proj",
    "nextn.enorm": "embed_norm",
    "nextn.hnorm": "hidden_norm",
    "nextn.shared_head_norm": "norm",
    "nextn.embed_tokens": "embed",
    "nextn.shared_head_head": "output",
}
BARE = ("attn_sinks", "out_scale")  # tensors of their own, which are no module's weight
STACKS = ("expert_", "attn_k_up", "attn_v_up")  # one matrix below the other
LAYER = re.compile(r"(enc\.|dec\.)?blk\.(\d+)\.(.*)")


class Names:
    """The names that tensors have in a family's checkpoint. `own` is what an architecture calls
    otherwise: GGUF's name -> a canonical one, or the name in the checkpoint, N being the layer."""

    def __init__(self, knobs: Knobs, table: dict[str, str | None], own: dict[str, str]):
        self.knobs, self.own = knobs, own
        self.modules = {k: m for k, m in in_layers(table, knobs.n_layers) if m}

    def of(self, stored: str) -> tuple[str, str] | None:
        """The canonical name, without the layer, and the checkpoint's name of a tensor; None if the
        family has none for it."""
        match = LAYER.fullmatch(stored)
        layer, name = (int(match[2]), match[3]) if match else (None, stored)
        if match and match[1] == "dec.":
            layer += self.knobs.source_layers
        base, _, suffix = name.rpartition(".")
        stem, suffix = (base, "." + suffix) if suffix in ("weight", "bias") else (name, "")
        own = self.own.get(name) or self.own.get(stem)
        if own and "." in own:
            whole = own.endswith((".weight", ".bias")) or name in self.own
            return "", own.replace(".N.", f".{layer}.") + ("" if whole else suffix)
        for kind in (own,) if own else KINDS.get(stem, ()):
            module = self.module(kind, layer, stem)
            if module:
                return kind, module if kind in BARE else module + suffix
        if name in BESIDE:
            kind, sibling = BESIDE[name]
            module = self.module(kind, layer, stem)
            return module and (kind, f"{module.rpartition('.')[0]}.{sibling}")
        return None

    def module(self, kind: str, layer: int | None, stem: str) -> str | None:
        """The module of the family's table, of several names the one that a tensor's has."""
        prefix = "" if layer is None else f"layers.{layer}."
        module = self.modules.get(prefix + kind)
        if module is None or layer is not None and not self.knobs.has(kind, layer):
            return None
        names = module.split("|")
        return names[-1 if stem.endswith(("_shexp", "attn_q_b")) else 0]

    def in_file(self, sentence: str) -> str:
        """A sentence about a tensor that is missing, by its name in the file."""
        match = re.search(r"lacks the tensor (\S+)", sentence)
        layers = [None, *range(self.knobs.n_layers)]
        stems = [*self.own, *KINDS, *BESIDE]
        for layer in layers if match else []:
            for name in (stem + end for stem in stems for end in (".weight", ".bias", "")):
                stored = name if layer is None else f"blk.{layer}.{name}"
                found = self.of(stored)
                if found and found[1] == match[1]:
                    return sentence.replace(match[1], stored)
        return sentence


def checkpoint_form(kind: str, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor as a Hugging Face checkpoint has it: experts one below the other, norms of heads
    one by one, vectors without axes of length 1, convolutions with one."""
    if kind.startswith(STACKS) and len(tensor.shape) == (2 if name.endswith(".bias") else 3):
        return {name: stack(tensor.matrices())}
    if "*" in name:
        return {name.replace("*", str(i)): part for i, part in enumerate(tensor.matrices())}
    if kind == "conv" and len(tensor.shape) == 2:
        return {name: tensor.map(lambda w: w[:, None], (tensor.shape[0], 1, tensor.shape[1]))}
    if kind == "shared_gate" and len(tensor.shape) == 1:
        return {name: tensor.map(lambda w: w[None], (1, *tensor.shape))}
    if name.endswith("conv1d.weight") and len(tensor.shape) == 4:
        return {name: tensor.map(lambda w: w.reshape(w.shape[1], 1, -1), conv_shape(tensor))}
    if name.endswith(".A_log"):
        return {name: logarithm(tensor)}
    if name.endswith(".D"):
        return {name: tensor.map(np.ravel, (int(np.prod(tensor.shape)),))}
    return {name: tensor}


def conv_shape(tensor: Tensor) -> tuple[int, int, int]:
    return tensor.shape[1], 1, tensor.shape[3]


def logarithm(rates: Tensor) -> Tensor:
    """GGUF has -exp(A_log). The rate of a head is a number, of a channel a row."""
    one = 1 in rates.shape
    shape = (int(np.prod(rates.shape)),) if one else rates.shape

    def of(w: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):  # convert() refuses what is no number
            return np.log(-w).reshape(shape)

    return rates.map(of, shape)
