"""ERNIE 4.5, and the first ERNIEs, which are encoders."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..knobs import Knobs
from ..layers.part import Part, Skipped
from ..tensor import ExportError, modules
from .bert import BERT, bert, renamed
from .common import FFN, LLAMA, QKVO, llama_block, rotate
from .experts import after_dense, expert_names, experts


def ernie4_5(c: Config, **defaults) -> Knobs:
    """Ernie 4.5 without experts: interleaved rope."""
    k = llama_block(
        c,
        **{"num_key_value_heads": 2, "head_dim": 128, **defaults},
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    rotate(c, k, theta=5e5)
    k.biased, k.interleaved = (QKVO + FFN) * c.flag("use_bias", False), True
    return k


def ernie4_5_moe(c: Config) -> Knobs:
    """Ernie 4.5 with experts: softmaxes, and a bias for the choice."""
    for key, name, usual in (
        ("num_experts", "moe_num_experts", 64),
        ("num_experts_per_tok", "moe_k", 6),
        ("moe_intermediate_size", "moe_intermediate_size", 1536),
    ):
        c.default(**{key: c.get(name, usual)})
    k = ernie4_5(c, num_key_value_heads=4, head_dim=None)
    width, last = k.d_ff, c.get("moe_layer_end_index", -1)
    last = k.n_layers - 1 if last == -1 else c.int("moe_layer_end_index", least=0)
    first, step = c.int("moe_layer_start_index", 1, least=0), c.int("moe_layer_interval", 1)
    part = experts(c, k, biased=True, renorm_eps=0.0)
    c.require(moe_norm_min=1e-12)  # far below what weights sum to
    sparse = [(i + 1) % step == 0 and first <= i <= last for i in range(k.n_layers)]
    k.biased += ("output",) * c.flag("use_bias", False)  # experts have none
    shared = part.d_ff * c.int("moe_num_shared_experts", 2, least=0)
    after_dense(k, part, sparse, width, shared)
    c.require(moe_gate="topk", moe_use_aux_free=True)
    c.ignore("moe_capacity", "num_nextn_predict_layers")
    k.parts.append(Skipped([], n_layers=k.n_layers, prefixes=("mtp", "model.mtp")))
    return k


ERNIE4_5_MOE = {**LLAMA, **expert_names("mlp", dense="shared_experts")}


@dataclass
class TaskType(Part):
    """An embedding of the text's task, of which all texts here have the first; it goes into
    the embedding of the tokens' kinds. Without use_task_id a file's are not used."""

    used: bool

    def arrange(self, left):
        for module in modules(left, "token_type_embeddings.weight"):
            name = module + ".token_type_embeddings.weight"
            task = left.pop(module + ".task_type_embeddings.weight", None)
            if self.used and task is None:
                raise ExportError(f"the checkpoint lacks {module}.task_type_embeddings.weight")
            if self.used:
                left[name] = left[name].map(lambda w: w + task.array()[:1])


def ernie(c: Config) -> Knobs:
    """ERNIE 1 to 3: BERT, perhaps with an embedding of the task."""
    c.ignore("task_type_vocab_size", "task_id")
    k = bert(c)
    k.parts.insert(0, TaskType([], c.flag("use_task_id", False)))
    return k


ERNIE = renamed(BERT, "ernie")
