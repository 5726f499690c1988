#!/usr/bin/env python3
"""Makes the golden encoder-decoders: small random models of every family, saved by transformers,
with what transformers computes and generates.

    python tests/reference/make_encoder_decoders.py [NAME...] [--seed S] [--out DIR]

(torch 2.13.0, transformers 5.23.0.) Each directory holds a Hugging Face checkpoint (float32),
golden.json with sources and targets of several lengths as ids, what generate() writes for each
source, and what made it; and logits.npy, of all targets, one after the other: int16, 32767 times
the number over the largest magnitude, which golden.json has."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from make_golden import GOLDEN, change_config, write_committed

LENGTHS = ((1, 2), (2, 1), (17, 17), (96, 5), (5, 96))  # of source and target; and the longest
GREEDY = 32  # tokens


def t5(**more) -> dict:
    return dict(
        dict(
            vocab_size=61,
            d_model=36,
            d_kv=10,
            d_ff=50,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=3,
            n_positions=130,
            decoder_start_token_id=0,
            layer_norm_epsilon=1e-3,
            relative_attention_num_buckets=14,
            relative_attention_max_distance=37,
        ),
        **more,
    )


def bart(**more) -> dict:
    return dict(
        dict(
            vocab_size=61,
            d_model=36,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=50,
            decoder_ffn_dim=44,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            max_position_embeddings=130,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=2,
        ),
        **more,
    )


# name: (model_type, config, generation_config). Sizes are odd on purpose.
MODELS = {
    "t5": ("t5", t5(), {}),
    "t5-gated": ("t5", t5(feed_forward_proj="gated-gelu", num_layers=1), dict(min_length=9)),
    "umt5": ("umt5", t5(feed_forward_proj="gated-gelu"), dict(no_repeat_ngram_size=2)),
    "bart": (
        "bart",
        bart(),
        dict(forced_bos_token_id=0, forced_eos_token_id=2, no_repeat_ngram_size=3, min_length=12),
    ),
    "mbart": ("mbart", bart(scale_embedding=True, encoder_layers=1), dict(forced_eos_token_id=2)),
    "marian": (
        "marian",
        bart(
            vocab_size=53,
            decoder_vocab_size=61,
            share_encoder_decoder_embeddings=False,
            activation_function="swish",
            scale_embedding=True,
            pad_token_id=50,
            decoder_start_token_id=50,
            eos_token_id=0,
        ),
        dict(bad_words_ids=[[50], [7, 8]], forced_eos_token_id=0),
    ),
    "pegasus": (
        "pegasus",
        bart(
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
        ),
        {},
    ),
    "m2m_100": ("m2m_100", bart(scale_embedding=True), dict(forced_bos_token_id=9)),
}
# Further ones that only fresh comparisons make.
MORE = {
    "bart-heads": ("bart", bart(encoder_attention_heads=4, decoder_attention_heads=9), {}),
    "blenderbot": ("blenderbot", bart(scale_embedding=True, encoder_no_repeat_ngram_size=0), {}),
    "blenderbot-small": ("blenderbot-small", bart(scale_embedding=True), {}),
    "fsmt": (
        "fsmt",
        {
            key: value
            for key, value in bart(src_vocab_size=53, tgt_vocab_size=61).items()
            if key != "vocab_size"
        },
        {},
    ),
    "mvp": ("mvp", bart(), {}),
    "plbart": ("plbart", bart(), {}),
    "mt5": ("mt5", t5(num_heads=2, d_kv=16), {}),
    "t5-untied": ("t5", t5(feed_forward_proj="gated-silu"), {}),
    "t5-uneven": ("t5", t5(num_layers=1, num_decoder_layers=3, feed_forward_proj="gelu"), {}),
    "bart-untied": (
        "bart",
        bart(tie_word_embeddings=False, decoder_layers=1),
        dict(bad_words_ids=[[3, 4, 5]]),
    ),
    "marian-shared": (
        "marian",
        bart(
            decoder_vocab_size=61,
            pad_token_id=60,
            eos_token_id=0,
            d_model=45,
            encoder_attention_heads=5,
            decoder_attention_heads=5,
            decoder_start_token_id=60,
        ),
        dict(bad_words_ids=[[60]]),
    ),
    "pegasus-odd": (
        "pegasus",
        bart(d_model=35, encoder_attention_heads=7, decoder_attention_heads=7),
        {},
    ),
    "m2m_100-pad": (
        "m2m_100",
        bart(
            pad_token_id=4,
            encoder_layers=3,
            d_model=38,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
        ),
        {},
    ),
    "mbart-plain": ("mbart", bart(activation_function="gelu_new"), {}),
}
# What is changed in config.json after saving, None to remove a key.
CHANGES = {
    "t5-gated": dict(tie_word_embeddings=False, scale_decoder_outputs=None),
    "t5-untied": dict(tie_word_embeddings=False, scale_decoder_outputs=None),
}


def make(name: str, seed: int, out: Path, edit=None) -> Path:
    """Makes one directory, out/name, and returns it; edit(directory) may change the files before
    the reference reads them. Of the seeds seed, seed + 1000, .. the first is taken whose texts are
    won by a clear margin, so that rounding decides none of them."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    directory = out / name
    for attempt in range(seed, seed + 50000, 1000):
        torch.manual_seed(attempt)
        save_random(name, directory)
        if edit:
            edit(directory)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        golden = compute(model, torch)
        logits, margin = golden.pop("logits"), golden.pop("margin")
        if margin > 1e-4 * np.abs(logits).max():
            break
    else:
        raise SystemExit(f"{name}: no seed from {seed} on gives clear greedy texts")
    made = dict(
        by="tests/reference/make_encoder_decoders.py",
        command=f"python tests/reference/make_encoder_decoders.py {name} --seed {seed}",
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    golden = dict(made=made, **golden, largest=float(np.abs(logits).max()))
    np.save(directory / "logits.npy", logits)
    (directory / "golden.json").write_text(json.dumps(golden) + "\n")
    return directory


def save_random(name: str, directory: Path) -> None:
    """A checkpoint of random weights, and the rules that its texts are written by."""
    import torch
    import transformers

    model_type, values, generation = {**MODELS, **MORE}[name]
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).float().eval()
    randomize(model, torch)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    change_config(directory / "config.json", CHANGES.get(name, {}))
    keys = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
    kept = {key: getattr(config, key, None) for key in keys}
    kept = {key: value for key, value in kept.items() if value is not None}
    (directory / "generation_config.json").write_text(json.dumps(kept | generation) + "\n")


def compute(model, torch) -> dict:
    """Sources and targets, the logits of every target's tokens, greedy texts, and the least margin
    by which a token of these was won."""
    config = model.config
    most = getattr(config, "max_position_embeddings", 130)
    start = model.generation_config.decoder_start_token_id
    n_target = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    sources, targets, rows, greedy, margins = [], [], [], [], []
    for n_source, n in (*LENGTHS, (most, most)):
        source = torch.randint(5, min(config.vocab_size, 49), (n_source,)).tolist()
        if config.model_type in ("fsmt", "m2m_100") and n_source == 17:
            source[5] = source[9] = source[10] = config.pad_token_id  # which positions do not count
        target = [start, *torch.randint(5, min(n_target, 49), (n - 1,)).tolist()]
        with torch.no_grad():
            # With a cache FSMT would see later tokens of a target that is given whole.
            inputs = dict(decoder_input_ids=torch.tensor([target]), use_cache=False)
            output = model(torch.tensor([source]), **inputs)
            written = model.generate(
                torch.tensor([source]),
                attention_mask=torch.ones(1, n_source, dtype=torch.long),
                max_new_tokens=GREEDY,
                do_sample=False,
                num_beams=1,
                use_cache=config.model_type == "fsmt",  # without one it would be as above
                output_scores=True,
                return_dict_in_generate=True,
            )
        sources.append(source)
        targets.append(target)
        rows.append(output.logits[0].numpy())
        greedy.append(written.sequences[0].tolist())
        best = torch.stack(written.scores)[:, 0].topk(2).values
        margins.append(float((best[:, 0] - best[:, 1]).min()))
        # FSMT's positions do not count padding, which no trained model writes.
        if config.model_type == "fsmt" and config.pad_token_id in greedy[-1][1:]:
            margins.append(0.0)
    logits = np.concatenate(rows)
    return dict(sources=sources, targets=targets, greedy=greedy, logits=logits, margin=min(margins))


def randomize(model, torch) -> None:
    """Weights of size 1/sqrt(n_in) times a little more than one, norms around one, biases of 0.3;
    sinusoids stay."""
    sinusoids = model.config.model_type in ("marian", "pegasus", "m2m_100", "fsmt")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if sinusoids and "embed_positions" in name:
                continue
            if p.ndim == 1:
                p.normal_(1.0 if name.endswith("weight") else 0.0, 0.3)
            elif "embed" in name or "relative" in name or "shared" in name:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, 1.5 * p.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_(0, 0.5)


def with_another_head(directory: Path) -> None:
    """An output that differs although the config ties it."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    embed = next(t for name, t in tensors.items() if name.endswith("shared.weight"))
    tensors["lm_head.weight"] = 0.5 * torch.randn_like(embed)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def without_model_prefix(directory: Path) -> None:
    """The names of the model without its head."""
    from safetensors.torch import load_file, save_file

    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    tensors.pop("final_logits_bias", None)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def with_copies(directory: Path) -> None:
    """The embedding under each name that stands for it, as older files have it."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    name = next(name for name in tensors if name.endswith("shared.weight"))
    prefix = name.removesuffix("shared.weight")
    for side in ("encoder", "decoder"):
        tensors[f"{prefix}{side}.embed_tokens.weight"] = tensors[name].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


EDITED = {
    "t5": (with_another_head, with_copies),
    "t5-gated": (with_another_head,),
    "mt5": (with_another_head,),
    "bart": (without_model_prefix, with_copies),
    "m2m_100": (with_copies,),
}


def make_smaller(directory: Path) -> None:
    """The numbers in 16 bits, for committing."""
    golden = json.loads((directory / "golden.json").read_text())
    rows = np.load(directory / "logits.npy") * (32767 / golden["largest"])
    np.save(directory / "logits.npy", np.rint(rows).astype(np.int16))


if __name__ == "__main__":
    names = list(MODELS)
    sys.exit(
        write_committed(__doc__, names, names, make, make_smaller, GOLDEN / "encoder_decoders")
    )
