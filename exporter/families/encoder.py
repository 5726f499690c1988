"""What encoders share: tokens see those after them, and there may be the head of a masked language
model. docs/families.md lists the families."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..knobs import ACTS, Knobs
from ..layers.part import Part
from ..tensor import ExportError, expect, modules
from .classes import TEXTS, task

GELU = ACTS["gelu"]
# Keys about training, poolers and other heads.
IGNORED = """
    attention_probs_dropout_prob classifier_activation classifier_bias classifier_dropout_prob
    classifier_pooling directionality down_scale_factor gap_size hidden_dropout_prob
    layer_norm_type net_structure_type num_memory_blocks output_past pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    qa_dropout seq_classif_dropout summary_activation summary_last_dropout summary_type
    summary_use_proj type_vocab_size
    """.split()
# Heads that are left over, by the first part of their tensors' names.
CLASSES = "a head for classes, which config.json's architectures does not name"
OTHER_HEADS = {
    "classifier": CLASSES,
    "pre_classifier": CLASSES,
    "score": CLASSES,
    "discriminator_predictions": CLASSES,
    "qa_outputs": "a head that answers questions by places in the text",
    "sequence_summary": "a head that sums up texts for choices",
}
PAIR_HEADS = ("seq_relationship.weight", "sop_classifier.classifier.weight")
# Tensors of a pooler or of a head for sentence pairs, which nothing here needs.
SKIPPED = (
    "position_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
    "seq_relationship.weight",
    "seq_relationship.bias",
    "sop_classifier.classifier.weight",
    "sop_classifier.classifier.bias",
    "pooler.weight",
    "pooler.bias",
)


@dataclass
class Encoder(Part):
    """The rest of an encoder: `types` kinds of tokens, an embedding that is `d_embed` wide, and
    the head of a masked language model, of `act`, whose output has a `bias` beside it."""

    d_embed: int = 0
    types: int = 0
    kept_types: int = 1  # 2: a pair's second text has tokens of its own kind
    head_act: int = GELU
    bias: str = ""  # the module that holds the output's bias where the output is tied
    tied: bool = True
    has_head: bool = True

    def shapes(self, n_embd):
        return {
            "embed_type": (self.kept_types * self.d_embed,),
            "embed_proj": (n_embd, self.d_embed),
            "head_dense": (self.d_embed, n_embd),
            "head_norm": (self.d_embed,),
        }

    def arrange(self, left):
        for name in list(left):
            if any(name == end or name.endswith("." + end) for end in SKIPPED):
                del left[name]
            elif name.split(".")[0] in OTHER_HEADS:
                raise ExportError(
                    f"the checkpoint holds {name}: {OTHER_HEADS[name.split('.')[0]]}, which is not "
                    "supported; supported are heads of masked language models, of sequence and "
                    "token classification, and none"
                )
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                if name.endswith("LayerNorm" + old):
                    left[name[: -len(old)] + new] = left.pop(name)
        for module in modules(left, "token_type_embeddings.weight"):
            name = module + ".token_type_embeddings.weight"
            table = expect(left.pop(name), self.types, self.d_embed)
            kept = self.kept_types
            left[name] = table.slice(0, kept).map(lambda w: w.reshape(-1), (kept * self.d_embed,))

    def rename(self, names, left):
        """Without the head, if the checkpoint has none; with the bias of a tied output."""
        dense, output = names.get("head_dense"), names.get("output", "")
        if dense:
            self.has_head = dense + ".weight" in left
        if not self.has_head:
            of_head = ("head_dense", "head_norm", "output")
            return {name: module for name, module in names.items() if name not in of_head}
        if self.bias and self.bias in left:
            bias = left.pop(self.bias)
            if self.tied and output + ".bias" not in left:
                left[output + ".bias"] = bias
        return names


def encoder(c: Config, k: Knobs, causal: bool = False, **part) -> Knobs:
    """Makes a decoder's knobs an encoder's. causal: the family has models that are decoders, whose
    tokens see only those before them."""
    c.ignore(*IGNORED)
    c.require(add_cross_attention=False)
    if not causal:
        c.require(is_decoder=False)
    k.mask = 0 if c.flag("is_decoder", False) else 1
    if task(c) == TEXTS and part.get("types", 0) > 1:
        part["kept_types"] = 2
    k.parts.append(Encoder([True] * k.n_layers, **{"d_embed": k.n_embd, "tied": k.tied, **part}))
    k.d_embed, k.head_act = k.parts[-1].d_embed, k.parts[-1].head_act
    return k
