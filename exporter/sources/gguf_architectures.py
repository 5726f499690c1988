"""The table of GGUF architectures: by general.architecture, what its metadata say in a config.json's
words, and what llama.cpp's converter did to the tensors. To add one of a family that families/ knows:
a function that makes the config, and a row here.

    python -m exporter.sources.gguf_architectures --table          prints docs/export.md's table
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from typing import Callable

from ..config import Config
from ..tensor import Tensor
from . import gguf_decoders as decoders
from . import gguf_encoders as encoders
from . import gguf_experts as experts
from . import gguf_mixers as mixers
from .gguf_file import File
from .gguf_shared import (
    as_one,
    as_stored,
    gate_and_up,
    grouped_heads,
    half_split_rope,
    inputs_first,
    norms_around_zero,
)


@dataclass(frozen=True)
class Architecture:
    """config: the metadata after the architecture's name -> a config.json; undo: a tensor by its
    name in the file as the checkpoint has it; whole: likewise, of all tensors, where one becomes
    several; names: what it calls otherwise than gguf_names.KINDS says: GGUF's name -> a canonical
    one, or the checkpoint's."""

    config: Callable[[Config, File], dict]
    undo: Callable[[str, Tensor, dict], Tensor] = as_stored
    names: dict[str, str] = field(default_factory=dict)
    whole: Callable[[dict[str, Tensor], dict], dict[str, Tensor]] = as_one


AFTER = {"attn_output_norm": "attn_norm", "layer_output_norm": "ffn_norm"}  # norms of sums
SECOND = {"post_attention_norm": "ffn_norm"}  # where no norm follows attention
LAST = {"token_embd_norm": "norm"}
XIELU = {
    f"xielu.{key}": f"model.layers.N.mlp.act_fn.{key}"
    for key in ("alpha_p", "alpha_n", "beta", "eps")
}
BARE = {"ffn_norm": "model.layers.N.pre_ff_layernorm.weight"}  # without a suffix in the file
SCALED = {"ffn_gate_inp.scale": "model.layers.N.router.scale"}

ARCHITECTURES = {
    "afmoe": Architecture(experts.afmoe),
    "apertus": Architecture(decoders.apertus, names=XIELU),
    "arcee": Architecture(decoders.arcee, half_split_rope),
    "bert": Architecture(encoders.bert, names=AFTER),
    "bitnet": Architecture(decoders.bitnet),
    "bloom": Architecture(decoders.bloom, grouped_heads),
    "chatglm": Architecture(decoders.chatglm),
    "cohere2": Architecture(decoders.cohere2),
    "cohere2moe": Architecture(experts.cohere2moe),
    "command-r": Architecture(decoders.command_r),
    "dbrx": Architecture(experts.dbrx, names={"attn_output_norm": "ffn_norm"}),
    "deepseek2": Architecture(experts.deepseek2),
    "dots1": Architecture(experts.dots1),
    "ernie4_5": Architecture(decoders.ernie4_5),
    "ernie4_5-moe": Architecture(experts.ernie4_5_moe),
    "eurobert": Architecture(encoders.eurobert),
    "exaone": Architecture(decoders.exaone),
    "exaone-moe": Architecture(experts.exaone_moe),
    "exaone4": Architecture(decoders.exaone4),
    "falcon": Architecture(decoders.falcon, grouped_heads, whole=decoders.second_norm_first),
    "falcon-h1": Architecture(mixers.falcon_h1, names=BARE),
    "gemma": Architecture(decoders.gemma, norms_around_zero),
    "gemma-embedding": Architecture(encoders.gemma_embedding, norms_around_zero),
    "gemma2": Architecture(decoders.gemma2, norms_around_zero),
    "gemma3": Architecture(decoders.gemma3, norms_around_zero),
    "gemma4": Architecture(decoders.gemma4, names=SCALED, whole=experts.scaled_experts),
    "glm4": Architecture(decoders.glm4),
    "glm4moe": Architecture(experts.glm4moe, names=SECOND),
    "gpt-oss": Architecture(experts.gpt_oss, names=SECOND),
    "gpt2": Architecture(decoders.gpt2, inputs_first),
    "gptneox": Architecture(decoders.gptneox, grouped_heads),
    "granite": Architecture(decoders.granite, half_split_rope),
    "granitehybrid": Architecture(mixers.granitehybrid, half_split_rope, whole=gate_and_up),
    "granitemoe": Architecture(experts.granitemoe, half_split_rope, whole=gate_and_up),
    "hunyuan-dense": Architecture(decoders.hunyuan_dense),
    "hunyuan-moe": Architecture(experts.hunyuan_moe),
    "jais2": Architecture(decoders.jais2),
    "jamba": Architecture(mixers.jamba),
    "jina-bert-v3": Architecture(
        encoders.jina_bert_v3, names={**AFTER, "attn_qkv": "roberta.layers.N.mixer.Wqkv"}
    ),
    "kimi-linear": Architecture(mixers.kimi_linear),
    "lfm2": Architecture(mixers.lfm2, names=LAST),
    "lfm2moe": Architecture(mixers.lfm2moe, names=LAST),
    "llama": Architecture(decoders.llama, half_split_rope),
    "llama4": Architecture(experts.llama4),
    "mamba": Architecture(mixers.mamba),
    "mamba2": Architecture(mixers.mamba2),
    "mellum": Architecture(experts.mellum),
    "minicpm": Architecture(decoders.minicpm, half_split_rope),
    "minicpm3": Architecture(decoders.minicpm3),
    "minimax-m2": Architecture(experts.minimax_m2),
    "mistral3": Architecture(decoders.mistral3, half_split_rope),
    "modern-bert": Architecture(encoders.modern_bert),
    "mpt": Architecture(decoders.mpt),
    "nemotron": Architecture(decoders.nemotron, norms_around_zero),
    "nemotron_h": Architecture(mixers.nemotron_h),
    "nemotron_h_moe": Architecture(mixers.nemotron_h, names=mixers.SHARED, whole=mixers.apart),
    "nomic-bert": Architecture(
        encoders.nomic_bert, names={**AFTER, "attn_qkv": "nomic_bert.layers.N.attn.Wqkv"}
    ),
    "olmo": Architecture(decoders.olmo, half_split_rope),
    "olmo2": Architecture(decoders.olmo2),
    "olmoe": Architecture(experts.olmoe),
    "phi2": Architecture(decoders.phi2),
    "phi3": Architecture(decoders.phi3),
    "phimoe": Architecture(experts.phimoe),
    "qwen2": Architecture(decoders.qwen2),
    "qwen2moe": Architecture(experts.qwen2moe),
    "qwen2vl": Architecture(decoders.qwen2vl),
    "qwen3": Architecture(decoders.qwen3),
    "qwen35": Architecture(mixers.qwen35, mixers.values_by_key, SECOND),
    "qwen35moe": Architecture(mixers.qwen35moe, mixers.values_by_key, SECOND),
    "qwen3moe": Architecture(experts.qwen3moe),
    "qwen3next": Architecture(mixers.qwen3next, norms_around_zero, SECOND, mixers.betas_and_decays),
    "qwen3vl": Architecture(decoders.qwen3vl),
    "qwen3vlmoe": Architecture(experts.qwen3vlmoe),
    "seed_oss": Architecture(decoders.seed_oss),
    "smollm3": Architecture(decoders.smollm3, half_split_rope),
    "stablelm": Architecture(decoders.stablelm),
    "starcoder": Architecture(decoders.starcoder),
    "starcoder2": Architecture(decoders.starcoder2),
    "t5": Architecture(encoders.t5),
    "t5encoder": Architecture(encoders.t5encoder),
}


def table() -> str:
    """A line for each architecture."""
    lines = ["| `general.architecture` | models |", "|---|---|"]
    for name, row in ARCHITECTURES.items():
        models = " ".join((inspect.getdoc(row.config) or "").split()).rstrip(".")
        lines.append(f"| `{name}` | {models} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--table"]:
        sys.exit("usage: python -m exporter.sources.gguf_architectures --table")
    print(table(), end="")
