"""Models with torch: built, trained, pooled, kept on disk as ordinary Hugging Face checkpoints."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    YoutuConfig,
    YoutuForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

import variants
from variants import Variant

torch.set_num_threads(1)  # models this small are hardly faster on more
disable_progress_bar()  # of loading and saving, which take no time here

LEARNING_RATE, BATCH = 5e-3, 24
WARMUP = 0.05  # of the steps; then half a cosine down to a fiftieth
IGNORED = -100  # a label that is not to be predicted


def start_small(model):
    """Weights start wide enough to keep the size of what passes through a model as narrow as these;
    what the layers add to it starts small."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight /= math.sqrt(2 * model.config.num_hidden_layers)
    return model


def new_model(variant: Variant, vocab_size: int, seed: int, d_ff: int | None = None):
    """A variant with random weights."""
    torch.manual_seed(seed)
    shape = variants.shape(vocab_size, d_ff or variant.d_ff)
    if variant.rank:
        return start_small(YoutuForCausalLM(YoutuConfig(**shape, **variants.latent(variant.rank))))
    heads = dict(num_key_value_heads=variant.kv_heads, head_dim=variants.HEAD_DIM)
    return start_small(LlamaForCausalLM(LlamaConfig(**shape, **heads)))


def losses(model, rows: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
    """The cross-entropy of each token after the first, in nats; 0 where its label is IGNORED."""
    logits = model(rows, use_cache=False).logits[:, :-1]
    labels = rows if labels is None else labels
    return torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none"
    )


def mean_loss(model, rows: np.ndarray, labels: np.ndarray | None = None, at_once: int = 64):
    """The mean loss of the tokens that are to be predicted."""
    labels = rows if labels is None else labels
    model.eval()
    with torch.no_grad():
        total = sum(
            losses(model, torch.from_numpy(rows[i : i + at_once]),
                   torch.from_numpy(labels[i : i + at_once])).double().sum().item()
            for i in range(0, len(rows), at_once)
        )  # fmt: skip
    return total / (labels[:, 1:] != IGNORED).sum()


def train(model, rows: np.ndarray, labels: np.ndarray | None = None, at_once: int = BATCH,
          name: str = "") -> None:
    """One pass over the rows, with AdamW."""
    labels = rows if labels is None else labels
    steps = len(rows) // at_once
    warmup = max(1, round(WARMUP * steps))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / warmup, 0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2))  # fmt: skip
    model.train()
    progress = tqdm(range(steps), desc=name, mininterval=2)
    for step in progress:
        batch = slice(step * at_once, (step + 1) * at_once)
        found = losses(model, torch.from_numpy(rows[batch]), torch.from_numpy(labels[batch]))
        loss = found.sum() / (torch.from_numpy(labels[batch, 1:]) != IGNORED).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


def pooled(mha, variant: Variant):
    """A trained MHA with fewer KV heads: each is the mean of those of its group, as in Ainslie et
    al. 2023. All other weights stay."""
    config = mha.config
    model = new_model(variant, config.vocab_size, 0, config.intermediate_size)
    weights = mha.state_dict()
    for name, weight in weights.items():
        if "k_proj" in name or "v_proj" in name:
            groups = weight.view(variant.kv_heads, -1, variants.HEAD_DIM, variants.WIDTH)
            weights[name] = groups.mean(1).reshape(-1, variants.WIDTH)
    model.load_state_dict(weights)
    return model


def save(model, folder: Path, tokenizer=None) -> None:
    """Writes a checkpoint, beside its place first."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    if tokenizer:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
