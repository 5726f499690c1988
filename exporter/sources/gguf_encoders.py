"""GGUF architectures of encoders and of T5: metadata -> the config of the family. What a function
says of itself is a row of docs/export.md."""

from __future__ import annotations

from ..config import Config
from ..tensor import ExportError
from .gguf_decoders import gemma3
from .gguf_file import File
from .gguf_shared import ATTENTION, has_bias, layer_types, rope, shape


def _block(g: Config, file: File) -> dict:
    eps = g.number("attention.layer_norm_epsilon")
    return {**shape(g, file, causal=False), "layer_norm_eps": eps}


def _kinds(file: File) -> dict:
    """The kinds of tokens."""
    table = file.tensors.get("token_types.weight")
    return {} if table is None else {"type_vocab_size": table.shape[0]}


def bert(g: Config, file: File) -> dict:
    """BERT, RoBERTa, XLM-RoBERTa, DistilBERT. The file's positions begin with a text's first."""
    config = _block(g, file)
    positions = file.tensors.get("position_embd.weight")
    if positions is None:
        raise ExportError(f"{file.path} lacks the tensor position_embd.weight")
    config["max_position_embeddings"] = positions.shape[0]
    config["hidden_act"] = "gelu"
    kinds = _kinds(file)
    if kinds:
        return {**config, **kinds, "model_type": "bert"}
    g.require(**{"attention.layer_norm_epsilon": config.pop("layer_norm_eps")})
    config["hidden_dim"] = config.pop("intermediate_size")
    del config["head_dim"], config["num_key_value_heads"], config["hidden_act"]
    return {**config, "model_type": "distilbert"}


def nomic_bert(g: Config, file: File) -> dict:
    """Nomic's BERT without experts."""
    return {**_block(g, file), **_kinds(file), **rope(g), "model_type": "nomic_bert"}


def jina_bert_v3(g: Config, file: File) -> dict:
    """Jina Embeddings 3 without its adapters."""
    config = {**_block(g, file), **_kinds(file), **rope(g), "model_type": "jina_embeddings_v3"}
    return {**config, "hidden_act": "gelu"}


def eurobert(g: Config, file: File) -> dict:
    """EuroBERT."""
    return {
        **shape(g, file, causal=False),
        **rope(g),
        "rms_norm_eps": g.number("attention.layer_norm_rms_epsilon"),
        "model_type": "eurobert",
        "attention_bias": has_bias(file, *ATTENTION),
    }


def modern_bert(g: Config, file: File) -> dict:
    """ModernBERT."""
    config = shape(g, file, causal=False)
    g.require(hidden_activation="gelu")
    g.ignore("attention.layer_norm_rms_epsilon")  # the same again
    del config["head_dim"], config["num_key_value_heads"]
    n, every = config["num_hidden_layers"], g.int("attention.sliding_window_pattern", 3)
    config |= layer_types(Config({}), {"num_hidden_layers": n}, every)
    del config["sliding_window"], config["layer_types"]
    return {
        **config,
        "model_type": "modernbert",
        "norm_eps": g.number("attention.layer_norm_epsilon"),
        "local_attention": g.int("attention.sliding_window"),
        "global_attn_every_n_layers": every,
        "global_rope_theta": rope(g)["rope_theta"],
        "local_rope_theta": g.number("rope.freq_base_swa", 10000.0),
    }


def gemma_embedding(g: Config, file: File) -> dict:
    """EmbeddingGemma."""
    return {**gemma3(g, file), "use_bidirectional_attention": True}


def _t5(g: Config, file: File) -> dict:
    for key in ("attention.layer_norm_rms_epsilon", "attention.value_length"):
        g.ignore(key)  # the same again
    gated = "enc.blk.0.ffn_gate.weight" in file.tensors
    return {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "d_model": g.int("embedding_length"),
        "d_kv": g.int("attention.key_length"),
        "d_ff": g.int("feed_forward_length"),
        "num_layers": g.int("block_count", most=2048),
        "num_heads": g.int("attention.head_count"),
        "relative_attention_num_buckets": g.int("attention.relative_buckets_count"),
        "layer_norm_epsilon": g.number("attention.layer_norm_epsilon"),
        "n_positions": g.int("context_length"),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def t5(g: Config, file: File) -> dict:
    """T5, mT5, Flan-T5, and UMT5, whose layers have biases each."""
    config = _t5(g, file)
    each = "dec.blk.1.attn_rel_b.weight" in file.tensors
    # T5 1.0, which has no gates, multiplies what the output reads.
    scaled = {} if each else {"scale_decoder_outputs": config["feed_forward_proj"] == "relu"}
    start = g.int("decoder_start_token_id", 0, least=0)
    return {
        **config,
        **scaled,
        "model_type": "umt5" if each else "t5",
        "num_decoder_layers": g.int("decoder_block_count", config["num_layers"], most=2048),
        "decoder_start_token_id": start,
        "is_encoder_decoder": True,
    }


def t5encoder(g: Config, file: File) -> dict:
    """The encoder of T5 alone."""
    return {**_t5(g, file), "model_type": "t5", "architectures": ["T5EncoderModel"]}
