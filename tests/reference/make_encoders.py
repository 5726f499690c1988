#!/usr/bin/env python3
"""Makes the golden encoders: small random models of every family, saved by transformers, with what
transformers computes.

    python tests/reference/make_encoders.py [NAME...] [--seed S] [--out DIR]

(torch 2.13.0, transformers 5.23.0.) Each directory holds a Hugging Face checkpoint (float32),
golden.json with texts of several lengths as ids and what made it, hidden.npy (the last hidden
states of all texts, one after the other) and, with a head, logits.npy. Both are int16: 32767 times
the number over the largest magnitude, which golden.json has."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from make_encoder_decoders import t5
from make_golden import GOLDEN, change_config, write_committed

LENGTHS = (1, 2, 17, 96)  # and the longest


def sizes(vocab: int, embd: int, ff: int, heads: int, **more) -> dict:
    return dict(
        dict(
            vocab_size=vocab,
            hidden_size=embd,
            intermediate_size=ff,
            num_attention_heads=heads,
            num_hidden_layers=2,
            max_position_embeddings=130,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
        ),
        **more,
    )


def distil(**more) -> dict:
    return dict(
        vocab_size=61,
        dim=36,
        hidden_dim=50,
        n_heads=6,
        n_layers=2,
        max_position_embeddings=130,
        pad_token_id=1,
        **more,
    )


def xlm_sizes(**more) -> dict:
    return dict(
        vocab_size=61, emb_dim=36, n_layers=2, n_heads=6, max_position_embeddings=130, **more
    )


MASKED = "AutoModelForMaskedLM"
ENCODERS = "AutoModelForTextEncoding"
# name: (model_type, config, class). Sizes are odd on purpose, and so are epsilons.
MODELS = {
    "bert": ("bert", sizes(61, 36, 50, 6, layer_norm_eps=1e-3), MASKED),
    "albert": (
        "albert",
        sizes(
            61,
            36,
            50,
            3,
            embedding_size=20,
            num_hidden_layers=5,
            num_hidden_groups=2,
            inner_group_num=2,
            layer_norm_eps=1e-3,
        ),
        MASKED,
    ),
    "modernbert": (
        "modernbert",
        sizes(61, 36, 50, 3, local_attention=14, num_hidden_layers=4, norm_eps=1e-3),
        MASKED,
    ),
    "deberta-v2": (
        "deberta-v2",
        sizes(
            61,
            36,
            50,
            6,
            relative_attention=True,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            layer_norm_eps=1e-3,
        ),
        MASKED,
    ),
    "mpnet": ("mpnet", sizes(61, 36, 50, 6, max_position_embeddings=302), MASKED),
    "roberta": ("roberta", sizes(61, 36, 50, 6, pad_token_id=2), "AutoModel"),
    "embedding-gemma": (
        "gemma3_text",
        sizes(
            61,
            36,
            50,
            6,
            num_key_value_heads=2,
            head_dim=10,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=14,
            query_pre_attn_scalar=20,
            use_bidirectional_attention=True,
        ),
        "AutoModel",
    ),
}
# Further ones that only fresh comparisons make.
MORE = {
    "bert-bare": (
        "bert",
        sizes(61, 36, 50, 3, hidden_act="gelu_new", type_vocab_size=5),
        "AutoModel",
    ),
    "bert-untied": (
        "bert",
        sizes(61, 36, 50, 2, hidden_act="relu", tie_word_embeddings=False),
        MASKED,
    ),
    "albert-groups": (
        "albert",
        sizes(61, 36, 50, 3, embedding_size=20, num_hidden_layers=2, num_hidden_groups=3),
        MASKED,
    ),
    "albert-one": ("albert", sizes(61, 36, 50, 2, embedding_size=36, hidden_act="relu"), MASKED),
    "distilbert": ("distilbert", distil(activation="relu"), MASKED),
    "distilbert-bare": ("distilbert", distil(), "AutoModel"),
    "electra": ("electra", sizes(61, 36, 50, 2, embedding_size=20, hidden_act="relu"), MASKED),
    "electra-even": ("electra", sizes(61, 36, 50, 6, embedding_size=36), MASKED),
    "electra-wide": ("electra", sizes(61, 36, 50, 6, embedding_size=44), MASKED),
    "eurobert": (
        "eurobert",
        sizes(61, 36, 50, 6, num_key_value_heads=2, rms_norm_eps=1e-3),
        MASKED,
    ),
    "eurobert-tied": (
        "eurobert",
        sizes(
            61, 36, 50, 6, head_dim=10, tie_word_embeddings=True, mlp_bias=True, attention_bias=True
        ),
        MASKED,
    ),
    "eurobert-bare": ("eurobert", sizes(61, 36, 50, 6), "AutoModel"),
    "modernbert-bias": (
        "modernbert",
        sizes(
            61,
            36,
            50,
            6,
            local_attention=9,
            num_hidden_layers=3,
            norm_bias=True,
            attention_bias=True,
            mlp_bias=True,
            classifier_bias=True,
            decoder_bias=False,
            hidden_activation="relu",
            classifier_activation="gelu_new",
            tie_word_embeddings=False,
        ),
        MASKED,
    ),
    "modernbert-old": ("modernbert", sizes(61, 36, 50, 6, num_hidden_layers=5), "AutoModel"),
    "deberta-v2-own": (
        "deberta-v2",
        sizes(
            61,
            36,
            50,
            3,
            relative_attention=True,
            max_relative_positions=20,
            pos_att_type=["p2c"],
            type_vocab_size=2,
            legacy=False,
        ),
        MASKED,
    ),
    "deberta-v2-plain": ("deberta-v2", sizes(61, 36, 50, 2, pos_att_type=["c2p"]), "AutoModel"),
    "mpnet-bare": ("mpnet", sizes(61, 36, 50, 2, hidden_act="relu"), "AutoModel"),
    "nomic_bert": ("nomic_bert", sizes(61, 36, 50, 3, layer_norm_eps=1e-3), MASKED),
    "nomic_bert-wide": ("nomic_bert", sizes(61, 36, 50, 6, head_dim=10), "AutoModel"),
    "roberta-masked": ("roberta", sizes(61, 36, 50, 6, hidden_act="relu"), MASKED),
    "xlm-roberta": ("xlm-roberta", sizes(61, 36, 50, 6, type_vocab_size=1), MASKED),
    "big_bird": (
        "big_bird",
        sizes(61, 36, 50, 6, attention_type="original_full", rescale_embeddings=True),
        MASKED,
    ),
    "big_bird-sparse": (
        "big_bird",
        sizes(61, 36, 50, 6, block_size=16, num_random_blocks=1),
        MASKED,
    ),
    "camembert": ("camembert", sizes(61, 36, 50, 6, layer_norm_eps=1e-3), MASKED),
    "data2vec-text": ("data2vec-text", sizes(61, 36, 50, 3, hidden_act="relu"), MASKED),
    "ernie": ("ernie", sizes(61, 36, 50, 6), MASKED),
    "ernie-task": ("ernie", sizes(61, 36, 50, 2, use_task_id=True), "AutoModel"),
    "gte": ("gte", sizes(61, 36, 50, 6, layer_norm_eps=1e-3, hidden_act="relu"), MASKED),
    "gte-types": ("gte", sizes(61, 36, 50, 3, type_vocab_size=0), "AutoModel"),
    "jina_embeddings_v3": ("jina_embeddings_v3", sizes(61, 36, 50, 6, layer_norm_eps=1e-3), MASKED),
    "luke": (
        "luke",
        sizes(61, 36, 50, 6, entity_vocab_size=20, entity_emb_size=10),
        MASKED,
    ),
    "megatron-bert": ("megatron-bert", sizes(61, 36, 50, 6, layer_norm_eps=1e-3), MASKED),
    "roberta-prelayernorm": ("roberta-prelayernorm", sizes(61, 36, 50, 6), MASKED),
    "roformer": ("roformer", sizes(61, 36, 50, 3, embedding_size=20), MASKED),
    "roformer-even": ("roformer", sizes(61, 36, 50, 6), "AutoModel"),
    "xlm": ("xlm", xlm_sizes(gelu_activation=False, layer_norm_eps=1e-3), MASKED),
    "t5-encoder": ("t5", t5(decoder_start_token_id=0), ENCODERS),
    "umt5-encoder": ("umt5", t5(feed_forward_proj="gated-gelu"), ENCODERS),
    "xlm-roberta-xl": ("xlm-roberta-xl", sizes(61, 36, 50, 6, layer_norm_eps=1e-3), MASKED),
    "bert-pretraining": ("bert", sizes(61, 36, 50, 2), "AutoModelForPreTraining"),
}
# What is changed in config.json after saving, None to remove a key.
CHANGES = {
    "modernbert-old": dict(
        layer_types=None,
        rope_parameters=None,
        global_attn_every_n_layers=2,
        global_rope_theta=5000.0,
        local_rope_theta=200.0,
        norm_eps=1e-5,
        layer_norm_eps=0.1,
        position_embedding_type="absolute",
    ),
}


def make(name: str, seed: int, out: Path, edit=None) -> Path:
    """Makes one directory, out/name, and returns it; edit(directory) may change the files before
    the reference reads them."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model_type, values, kind = {**MODELS, **MORE}[name]
    loader = getattr(transformers, kind)
    directory = out / name
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = loader.from_config(config).float().eval()
    randomize(model, torch)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    change_config(directory / "config.json", CHANGES.get(name, {}))
    if edit:
        edit(directory)
    model = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    texts = [
        torch.randint(3, config.vocab_size, (n,)).tolist() for n in (*LENGTHS, longest(config))
    ]
    if model_type in SKIPS_PADDING:
        pad = model.get_input_embeddings().padding_idx
        texts.append([3, pad, 4, pad, pad, 5])
    hidden, logits = compute(model.eval(), texts, torch)
    made = dict(
        by="tests/reference/make_encoders.py",
        command=f"python tests/reference/make_encoders.py {name} --seed {seed}",
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    golden = dict(made=made, texts=texts)
    for what, rows in (("hidden", hidden), ("logits", logits)):
        if rows is not None:
            golden[what] = float(np.abs(rows).max())
            np.save(directory / f"{what}.npy", rows)
    (directory / "golden.json").write_text(json.dumps(golden) + "\n")
    return directory


SKIPS_PADDING = (
    "camembert",
    "data2vec-text",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
)


def longest(config) -> int:
    """The positions that a text can have."""
    offset = config.model_type in SKIPS_PADDING
    most = getattr(config, "max_position_embeddings", None) or config.n_positions
    if getattr(config, "attention_type", "") == "block_sparse":
        most = (5 + 2 * config.num_random_blocks) * config.block_size
    return most - offset * (config.pad_token_id + 1)


def compute(model, texts: list[list[int]], torch):
    """The last hidden states of each text by itself, and the logits or None."""
    hidden, logits = [], []
    for text in texts:
        with torch.no_grad():
            ids = torch.tensor([text])
            output = model(ids)
            hidden.append(model.base_model(ids)[0][0].numpy())
        rows = output.get("logits", output.get("prediction_logits"))
        if rows is not None:
            logits.append(rows[0].numpy())
    return np.concatenate(hidden), np.concatenate(logits) if logits else None


def randomize(model, torch) -> None:
    """Weights of size 1/sqrt(n_in) times a little more than one, norms around one, biases of
    0.3."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue  # computed
            if p.ndim == 1:
                p.normal_(1.0 if name.endswith("weight") else 0.0, 0.3)
            elif "embeddings" in name or "relative" in name:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, 1.5 * p.shape[-1] ** -0.5)


def with_old_names(directory: Path) -> None:
    """gamma and beta for weight and bias of norms, and buffers, as the first files had."""
    from safetensors.torch import load_file, save_file

    tensors = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        tensors[name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def with_another_head(directory: Path) -> None:
    """An output and a bias of its own that differ although the config ties them."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    embed = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = 0.5 * torch.randn_like(embed)
    tensors["cls.predictions.decoder.bias"] = 0.5 * torch.randn(len(embed))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def with_first_names(directory: Path) -> None:
    """Nomic's own names, and q, k and v in one matrix."""
    import torch
    from safetensors.torch import load_file, save_file

    names = {
        "nomic_bert.layers": "nomic_bert.encoder.layers",
        "embeddings.LayerNorm": "emb_ln",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    tensors = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        for new, old in names.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    for name in [name for name in tensors if "self_attn.q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        tensors[name.replace("self_attn.q_proj", "attn.Wqkv")] = torch.cat(parts)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


EDITED = {"bert": (with_old_names, with_another_head), "nomic_bert": (with_first_names,)}


def make_smaller(directory: Path) -> None:
    """The numbers in 16 bits, for committing."""
    golden = json.loads((directory / "golden.json").read_text())
    for what in ("hidden", "logits"):
        if what in golden:
            rows = np.load(directory / f"{what}.npy") * (32767 / golden[what])
            np.save(directory / f"{what}.npy", np.rint(rows).astype(np.int16))


if __name__ == "__main__":
    names = list(MODELS)
    sys.exit(write_committed(__doc__, names, names, make, make_smaller, GOLDEN / "encoders"))
