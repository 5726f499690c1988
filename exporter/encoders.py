"""BERT and its kin: encoders, whose tokens see those after them, and the heads of masked language
models. docs/encoders.md lists them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .common import FFN, LLAMA, QKVO, in_layer, llama_block, rotate
from .config import Config
from .knobs import ACTS, Knobs
from .parts import Part, expect, modules
from .rope import FULL, SLIDING, Rope, Shape, rope_by_type, rope_set
from .tensor import ExportError, Tensor

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
# Heads that give something else than logits of tokens, by the first part of their tensors' names.
OTHER_HEADS = {
    "classifier": "a head that classifies texts or tokens",
    "pre_classifier": "a head that classifies texts",
    "score": "a head that classifies texts",
    "qa_outputs": "a head that answers questions by places in the text",
    "discriminator_predictions": "a head that tells tokens that were replaced",
    "sequence_summary": "a head that sums up texts for classes",
}
# What belongs to a pooler or to a head of sentence pairs, which nothing here asks for.
SKIPPED = ("position_ids", "pooler.dense.weight", "pooler.dense.bias",
           "seq_relationship.weight", "seq_relationship.bias", "sop_classifier.classifier.weight",
           "sop_classifier.classifier.bias", "pooler.weight", "pooler.bias")  # fmt: skip
BIASED = (*QKVO, *FFN, "embed_proj", "head_dense", "output")


@dataclass
class Encoder(Part):
    """What encoders have besides: `types` kinds of tokens, an embedding that is `d_embed` wide, and
    the head of a masked language model, of `act`, whose output has a `bias` beside it."""

    d_embed: int = 0
    types: int = 0
    head_act: int = GELU
    bias: str = ""  # the module that holds the output's bias where the output is tied
    tied: bool = True
    has_head: bool = True

    def metadata(self):
        return {} if self.has_head else {"model.head": 0}

    def shapes(self, n_embd):
        return {
            "embed_type": (self.d_embed,),
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
                    "supported; supported are encoders with the head of a masked language model, "
                    "or with none"
                )
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                if name.endswith("LayerNorm" + old):
                    left[name[: -len(old)] + new] = left.pop(name)
        for module in modules(left, "token_type_embeddings.weight"):
            name = module + ".token_type_embeddings.weight"
            table = expect(left.pop(name), self.types, self.d_embed)
            left[name] = table.slice(0, 1).map(lambda w: w[0], (self.d_embed,))

    def rename(self, names, left):
        """Without the head, if the checkpoint has none; with the bias of a tied output."""
        dense, output = names.get("head_dense"), names["output"]
        if dense:
            self.has_head = dense + ".weight" in left
        if not self.has_head:
            of_head = ("head_dense", "head_norm", "output")
            return {name: source for name, source in names.items() if name not in of_head}
        if self.bias and self.bias in left:
            bias = left.pop(self.bias)
            if self.tied and output + ".bias" not in left:
                left[output + ".bias"] = bias
        return names


def encoder(c: Config, k: Knobs, **part) -> Knobs:
    """Makes a decoder's knobs an encoder's."""
    c.ignore(*IGNORED)
    c.require(is_decoder=False, add_cross_attention=False)
    k.mask = 1
    k.parts.append(Encoder([True] * k.n_layers, **{"d_embed": k.n_embd, "tied": k.tied, **part}))
    k.d_embed, k.head_act = k.parts[-1].d_embed, k.parts[-1].head_act
    return k


def bert_block(c: Config, act: str = "hidden_act", **defaults) -> Knobs:
    """The knobs of BERT: LayerNorms of sums, biases everywhere, learned positions."""
    k = llama_block(
        c, "layer_norm_eps", act, head_dim_key=False,
        **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
           "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512,
           "layer_norm_eps": 1e-12, "tie_word_embeddings": True, **defaults},
    )  # fmt: skip
    c.require(position_embedding_type="absolute")
    k.n_kv_heads, k.layernorm, k.post_norm, k.biased = k.n_heads, True, True, BIASED
    return k


def bert(c: Config) -> Knobs:
    """BERT."""
    k = bert_block(c, vocab_size=30522)
    return encoder(
        c, k, types=c.int("type_vocab_size", 2), head_act=k.act, bias="cls.predictions.bias"
    )


def bert_names(base: str) -> dict:
    """BERT's embedding and layers."""
    return {
        "embed": base + ".embeddings.word_embeddings",
        "embed_pos": base + ".embeddings.position_embeddings",
        "embed_type": base + ".embeddings.token_type_embeddings",
        "embed_norm": base + ".embeddings.LayerNorm",
        **in_layer(
            base + ".encoder.layer.N",
            attn_q="attention.self.query",
            attn_k="attention.self.key",
            attn_v="attention.self.value",
            attn_o="attention.output.dense",
            attn_norm="attention.output.LayerNorm",
            ffn_up="intermediate.dense",
            ffn_down="output.dense",
            ffn_norm="output.LayerNorm",
        ),
    }


BERT = {
    **bert_names("bert"),
    "head_dense": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.LayerNorm",
    "output": "cls.predictions.decoder",
}

def roberta(c: Config) -> Knobs:
    """RoBERTa and XLM-RoBERTa: positions begin after that of the padding token."""
    k = bert_block(c, vocab_size=50265)
    return skip_padding(c, encoder(c, k, types=c.int("type_vocab_size", 2), bias="lm_head.bias"))


def skip_padding(c: Config, k: Knobs, pad: int | None = None) -> Knobs:
    """The first positions belong to padding, and no token of a text has them."""
    if pad is None:
        pad = c.int("pad_token_id", 1, least=0)
    k.skipped_positions = pad + 1
    k.context -= k.skipped_positions
    if k.context < 1:
        raise ExportError(
            f"{c.where}: max_position_embeddings leaves no place after pad_token_id {pad}"
        )
    return k


ROBERTA = {
    **bert_names("roberta"),
    "head_dense": "lm_head.dense",
    "head_norm": "lm_head.layer_norm",
    "output": "lm_head.decoder",
}


def distilbert(c: Config) -> Knobs:
    """DistilBERT: BERT without kinds of tokens, under other names."""
    c.default(
        hidden_size=c.get("dim", 768), num_hidden_layers=c.get("n_layers", 6),
        num_attention_heads=c.get("n_heads", 12), activation="gelu",
    )  # fmt: skip
    c.ignore("sinusoidal_pos_embds", "attention_dropout", "tie_weights_", "hidden_act")
    fixed = {"layer_norm_eps": 1e-12, "intermediate_size": c.int("hidden_dim", 3072)}
    c.values = {**c.values, **fixed}
    k = bert_block(c, act="activation", vocab_size=30522)
    return encoder(c, k, head_act=k.act)


DISTILBERT = {
    "embed": "distilbert.embeddings.word_embeddings",
    "embed_pos": "distilbert.embeddings.position_embeddings",
    "embed_norm": "distilbert.embeddings.LayerNorm",
    **in_layer(
        "distilbert.transformer.layer.N",
        attn_q="attention.q_lin",
        attn_k="attention.k_lin",
        attn_v="attention.v_lin",
        attn_o="attention.out_lin",
        attn_norm="sa_layer_norm",
        ffn_up="ffn.lin1",
        ffn_down="ffn.lin2",
        ffn_norm="output_layer_norm",
    ),
    "head_dense": "vocab_transform",
    "head_norm": "vocab_layer_norm",
    "output": "vocab_projector",
}


def electra(c: Config) -> Knobs:
    """ELECTRA, as generators of masked words or bare: an embedding of its own width."""
    k = bert_block(c, vocab_size=30522, hidden_size=256, num_attention_heads=4,
                   intermediate_size=1024)  # fmt: skip
    d_embed = c.int("embedding_size", 128)
    if d_embed == k.n_embd:
        k.names = {name: source for name, source in ELECTRA.items() if name != "embed_proj"}
    return encoder(c, k, types=c.int("type_vocab_size", 2), d_embed=d_embed)


ELECTRA = {
    **bert_names("electra"),
    "embed_proj": "electra.embeddings_project",
    "head_dense": "generator_predictions.dense",
    "head_norm": "generator_predictions.LayerNorm",
    "output": "generator_lm_head",
}


@dataclass
class SharedLayers(Part):
    """ALBERT's groups: layer i has the tensors of `sources[i]`, a group and a layer in it."""

    sources: list[tuple[int, int]]

    def arrange(self, left):
        for name in list(left):
            head, found, rest = name.partition("encoder.albert_layer_groups.")
            if not found:
                continue
            group, _, inner, module = rest.split(".", 3)
            for layer, source in enumerate(self.sources):
                if source == (int(group), int(inner)):
                    left[f"{head}encoder.layers.{layer}.{module}"] = left[name]
            if (int(group), int(inner)) in self.sources:
                del left[name]


def albert(c: Config) -> Knobs:
    """ALBERT: a few groups of layers, each of which runs several times."""
    k = bert_block(c, vocab_size=30000, hidden_size=4096, num_attention_heads=64,
                   intermediate_size=16384, hidden_act="gelu_new")  # fmt: skip
    groups, inner = c.int("num_hidden_groups", 1), c.int("inner_group_num", 1)
    group_of = [int(i / (k.n_layers / groups)) for i in range(k.n_layers)]
    sources = [(group, j) for group in group_of for j in range(inner)]
    k.n_layers = len(sources)
    if k.n_layers > 4096:
        raise ExportError(f"{c.where}: inner_group_num makes {k.n_layers} layers, expected 4096")
    k.parts.append(SharedLayers([True] * k.n_layers, sources))
    return encoder(
        c, k, types=c.int("type_vocab_size", 2), d_embed=c.int("embedding_size", 128),
        head_act=k.act, bias="predictions.bias",
    )  # fmt: skip


ALBERT = {
    **{name: source for name, source in bert_names("albert").items() if ".N." not in name},
    "embed_proj": "albert.encoder.embedding_hidden_mapping_in",
    **in_layer(
        "albert.encoder.layers.N",
        attn_q="attention.query",
        attn_k="attention.key",
        attn_v="attention.value",
        attn_o="attention.dense",
        attn_norm="attention.LayerNorm",
        ffn_up="ffn",
        ffn_down="ffn_output",
        ffn_norm="full_layer_layer_norm",
    ),
    "head_dense": "predictions.dense",
    "head_norm": "predictions.LayerNorm",
    "output": "predictions.decoder",
}


@dataclass
class RelativeBias(Part):
    """A table of `buckets` of distances, whose biases all layers add to the scores of `heads`; it
    becomes a row of every distance up to `reach`, beyond which the last bucket goes on."""

    heads: int = 0
    buckets: int = 32
    reach: int = 128

    def shapes(self, n_embd):
        return {"attn_relative": (self.heads * (2 * self.reach + 1),)}

    def arrange(self, left):
        for module in modules(left, "relative_attention_bias.weight"):
            table = left.pop(module + ".relative_attention_bias.weight")
            rows = self.rows(table)
            for i in range(len(self.layers)):
                left[f"{module}.relative.{i}.table.weight"] = rows

    def rows(self, table: Tensor, causal: bool = False) -> Tensor:
        """Of each head, the biases of all distances from -reach to reach."""
        found = self.bucket_of(np.arange(-self.reach, self.reach + 1), causal)
        return expect(table, self.buckets, self.heads).map(
            lambda w: np.ascontiguousarray(w[found].T).reshape(-1), self.shapes(0).popitem()[1]
        )

    def bucket_of(self, distance: np.ndarray, causal: bool = False) -> np.ndarray:
        """Of key - query: half the buckets to each side, or all to those before; half of those one
        distance each, the others by the logarithm."""
        half = self.buckets if causal else self.buckets // 2
        exact, n = half // 2, np.maximum(-distance, 0) if causal else np.abs(distance)
        ratio = np.maximum(n, 1).astype(np.float32) / np.float32(exact)
        log = np.log(ratio) / np.float32(math.log(self.reach / exact)) * np.float32(half - exact)
        large = np.minimum(exact + log.astype(np.int64), half - 1)
        return half * (distance > 0) * (not causal) + np.where(n < exact, n, large)


def mpnet(c: Config) -> Knobs:
    """MPNet: biases by distance, the same ones in all layers."""
    c.require(relative_attention_num_buckets=32)  # the code has the number, whatever this says
    k = bert_block(c, vocab_size=30527)
    k.parts.append(RelativeBias([True] * k.n_layers, heads=k.n_heads))
    return skip_padding(c, encoder(c, k, bias="lm_head.bias"), pad=1)


MPNET = {
    **ROBERTA,
    **{name: source.replace("attention.self.query", "attention.attn.q")
       .replace("attention.self.key", "attention.attn.k")
       .replace("attention.self.value", "attention.attn.v")
       .replace("attention.output.dense", "attention.attn.o")
       .replace("attention.output.LayerNorm", "attention.LayerNorm")
       for name, source in bert_names("mpnet").items()},
    "layers.N.attn_relative": "mpnet.encoder.relative.N.table",
}  # fmt: skip
MPNET.pop("embed_type")


@dataclass
class NoFirstNorm(Part):
    """The first layer's attention reads the embedding, which has a norm of its own."""

    lacks = ("attn_norm",)


def modernbert(c: Config) -> Knobs:
    """ModernBERT: norms of branches' inputs, rope, most layers with a window to both sides."""
    c.default(
        vocab_size=50368, hidden_size=768, intermediate_size=1152, num_hidden_layers=22,
        num_attention_heads=12, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    c.require(position_embedding_type="absolute")  # which never counted
    c.ignore("layer_norm_eps", "deterministic_flash_attn", "initializer_cutoff_factor",
             "mlp_dropout", "reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index",
             "sparse_prediction", "classifier_dropout")  # fmt: skip
    k = llama_block(c, "norm_eps", act="hidden_activation", head_dim_key=False,
                    hidden_activation="gelu", norm_eps=1e-5)  # fmt: skip
    k.n_kv_heads, k.layernorm = k.n_heads, True
    types = c.get("layer_types")
    every = c.int("global_attn_every_n_layers", 3)
    if types is None:
        types = [SLIDING if i % every else FULL for i in range(k.n_layers)]
    if not isinstance(types, list) or len(types) != k.n_layers or set(types) - {FULL, SLIDING}:
        raise ExportError(f"{c.where}: layer_types has not {FULL} or {SLIDING} for each layer")
    window = c.int("local_attention", 128) // 2 + 1
    k.window = [window if kind == SLIDING else 0 for kind in types]
    ropes = modernbert_ropes(c, k)
    k.rotate(*[ropes[kind] for kind in types])
    k.biased = (
        ("attn_qkv", *QKVO) * c.flag("attention_bias", False)
        + ("ffn_gate_up", *FFN) * c.flag("mlp_bias", False)
        + ("head_dense",) * c.flag("classifier_bias", False)
        + ("output",) * c.flag("decoder_bias", True)
    )
    c.flag("norm_bias", False)  # the file has them or not
    k.parts.append(NoFirstNorm([i == 0 for i in range(k.n_layers)]))
    return encoder(c, k, head_act=c.choice("classifier_activation", ACTS, "gelu"))


def modernbert_ropes(c: Config, k: Knobs) -> dict[str, Rope]:
    """Its two thetas, in the old spelling and in the new."""
    values = {
        "rope_theta": c.number("global_rope_theta", 160000.0),
        "rope_local_base_freq": c.number("local_rope_theta", 10000.0),
        "rope_parameters": c.get("rope_parameters"),
    }
    c.require(rope_scaling=None)
    inner = Config({key: v for key, v in values.items() if v is not None}, c.where)
    return rope_by_type(inner, Shape(k.head_dim, k.context), sliding_theta=1e4)


MODERNBERT = {
    "embed": "model.embeddings.tok_embeddings",
    "embed_norm": "model.embeddings.norm",
    **in_layer(
        "model.layers.N",
        attn_norm="attn_norm",
        attn_qkv="attn.Wqkv",
        attn_o="attn.Wo",
        ffn_norm="mlp_norm",
        ffn_gate_up="mlp.Wi",
        ffn_down="mlp.Wo",
    ),
    "norm": "model.final_norm",
    "head_dense": "head.dense",
    "head_norm": "head.norm",
    "output": "decoder",
}


def nomic_bert(c: Config) -> Knobs:
    """Nomic's BERT: rope, gates, no biases in the layers."""
    head_dim = c.get("head_dim")
    k = bert_block(c, vocab_size=30528, hidden_act="silu", max_position_embeddings=2048)
    if head_dim is not None:
        k.head_dim = c.int("head_dim")
    rope = rope_set(c, Shape(k.head_dim, k.context, theta=1000.0))
    k.rotate(*[rope] * k.n_layers)
    k.biased = ("head_dense", "output")
    k.parts.append(NomicNames([True] * k.n_layers))
    return encoder(c, k, types=c.int("type_vocab_size", 2), head_act=k.act,
                   bias="cls.predictions.bias")  # fmt: skip


@dataclass
class NomicNames(Part):
    """The names of transformers for those that the first files have."""

    def arrange(self, left):
        for name in list(left):
            new = name
            for old, now in (("encoder.layers.", "layers."), ("emb_ln.", "embeddings.LayerNorm."),
                             ("attn.out_proj", "self_attn.o_proj"), ("fc11", "up_proj"),
                             ("fc12", "gate_proj"), ("fc2", "down_proj"),
                             ("norm1", "post_attention_layernorm"),
                             ("norm2", "post_mlp_layernorm")):  # fmt: skip
                new = new.replace(old, now)
            tensor = left.pop(name)
            if "attn.Wqkv." not in new:
                left[new] = tensor
                continue
            n = tensor.shape[0] // 3
            for i, letter in enumerate("qkv"):
                left[new.replace("attn.Wqkv", f"self_attn.{letter}_proj")] = tensor.slice(
                    i * n, (i + 1) * n
                )


NOMIC_BERT = {
    "embed": "nomic_bert.embeddings.word_embeddings",
    "embed_type": "nomic_bert.embeddings.token_type_embeddings",
    "embed_norm": "nomic_bert.embeddings.LayerNorm",
    **in_layer(
        "nomic_bert.layers.N",
        attn_q="self_attn.q_proj",
        attn_k="self_attn.k_proj",
        attn_v="self_attn.v_proj",
        attn_o="self_attn.o_proj",
        attn_norm="post_attention_layernorm",
        ffn_gate="mlp.gate_proj",
        ffn_up="mlp.up_proj",
        ffn_down="mlp.down_proj",
        ffn_norm="post_mlp_layernorm",
    ),
    "head_dense": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.layer_norm",
    "output": "cls.predictions.decoder",
}


def eurobert(c: Config) -> Knobs:
    """EuroBERT: Llama's layers, whose tokens see each other."""
    c.default(
        vocab_size=128256, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
        num_attention_heads=12, max_position_embeddings=8192, rms_norm_eps=1e-5,
    )  # fmt: skip
    c.ignore("mask_token_id")
    k = llama_block(c)
    rotate(c, k)
    mlp_bias = c.flag("mlp_bias", False)
    k.biased = QKVO * c.flag("attention_bias", False) + (*FFN, "output") * mlp_bias
    masked = any("MaskedLM" in str(name) for name in c.get("architectures") or [])
    return encoder(c, k, has_head=masked)


FAMILIES = {
    "albert": (albert, ALBERT),
    "bert": (bert, BERT),
    "distilbert": (distilbert, DISTILBERT),
    "electra": (electra, ELECTRA),
    "eurobert": (eurobert, LLAMA),
    "modernbert": (modernbert, MODERNBERT),
    "mpnet": (mpnet, MPNET),
    "nomic_bert": (nomic_bert, NOMIC_BERT),
    "roberta": (roberta, ROBERTA),
    "xlm-roberta": (roberta, ROBERTA),
}
