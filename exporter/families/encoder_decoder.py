"""What encoder-decoders share: a decoder that reads what an encoder made of the source. The
encoder's layers come first in the file. docs/families.md lists the families."""

from __future__ import annotations

from dataclasses import dataclass

from ..assemble import equal
from ..config import Config
from ..knobs import Knobs, of_layer
from ..layers.part import Part
from ..tensor import ExportError, Tensor

CROSS = ("cross_q", "cross_k", "cross_v", "cross_o")
# Keys about training, other heads and beams, and those that older code had.
IGNORED = """
    activation_dropout add_bias_logits add_final_layer_norm architectures classif_dropout
    classifier_dropout decoder_layerdrop dropout_rate encoder_layerdrop extra_pos_embeddings
    initializer_factor is_decoder layerdrop normalize_before normalize_embedding num_hidden_layers
    save_step static_position_embeddings student_decoder_layers student_encoder_layers
    max_new_tokens min_new_tokens
    """.split()


@dataclass
class TwoStacks(Part):
    """`n_source` layers of an encoder and then a decoder's, all `inner` wide in attention.
    The encoder's embedding is one of its own, of `source_vocab` tokens, if `own_embed`."""

    n_source: int = 0
    inner: int = 0
    source_vocab: int = 0
    context: int = 0

    def metadata(self):
        return {"model.source_layers": self.n_source}

    def shapes(self, n_embd):
        positions = (self.context, n_embd)
        return {
            "cross_q": (self.inner, n_embd),
            "cross_k": (self.inner, n_embd),
            "cross_v": (self.inner, n_embd),
            "cross_o": (n_embd, self.inner),
            "cross_norm": (n_embd,),
            "source_embed": (self.source_vocab, n_embd),
            "source_embed_pos": positions,
            "source_embed_norm": (n_embd,),
            "source_norm": (n_embd,),
        }


def alone(c: Config) -> str | None:
    """The half that the checkpoint's class consists of: "decoder", "encoder", or None for both."""
    names = c.list("architectures") or [""]
    if str(names[0]).endswith("ForCausalLM"):
        return "decoder"
    of_encoder = ("EncoderModel", "ForTokenClassification")
    return "encoder" if str(names[0]).endswith(of_encoder) else None


def layer_names(stack: str, first: int, n: int, modules: dict[str, str]) -> dict[str, str]:
    """Entries of layers first.., which are 0.. in the source's stack."""
    return {
        f"layers.{first + i}.{name}": f"{stack}.{i}.{module}"
        for i in range(n)
        for name, module in modules.items()
    }


def one_embedding(left: dict[str, Tensor], names: list[str]) -> None:
    """The first of the names stands for all of them: whichever is there, the others being the
    same."""
    found = [name for name in names if name + ".weight" in left]
    for name in found[1:]:
        if not equal(left[found[0] + ".weight"], left[name + ".weight"]):
            raise ExportError(
                f"{name}.weight differs from {found[0]}.weight, though config.json ties them"
            )
        del left[name + ".weight"]
    if found and found[0] != names[0]:
        left[names[0] + ".weight"] = left.pop(found[0] + ".weight")


def two_stacks(k: Knobs, n_source: int, names: dict[str, str], *parts: Part, **stacks) -> Knobs:
    """Turns a decoder's knobs into the knobs of an encoder and a decoder."""
    layers = [i >= n_source for i in range(k.n_layers)]
    k.mask = [0 if of_target else 1 for of_target in layers]
    k.names = names
    inner = of_layer(k.n_heads, 0) * of_layer(k.head_dim, 0)
    stacks = {"inner": inner, "context": k.context + k.skipped_positions, **stacks}
    k.parts += [*parts, TwoStacks(layers, n_source=n_source, **stacks)]
    k.source_layers = n_source
    return k
