"""The laboratory's models in torch: built, trained, pooled."""

from __future__ import annotations

import numpy as np
import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, YoutuConfig, YoutuForCausalLM
from transformers.utils.logging import disable_progress_bar

from research.lab import variants
from research.lab.variants import Variant
from research.learning import IGNORED, cosine_schedule, losses, start_small, update

torch.set_num_threads(1)  # models this small are hardly faster on more
disable_progress_bar()  # of loading and saving, which take no time here

LEARNING_RATE, BATCH = 5e-3, 24
WARMUP = 0.05  # of the steps; then half a cosine down to a fiftieth


def new_model(variant: Variant, vocab_size: int, seed: int, d_ff: int | None = None):
    """A variant with random weights."""
    torch.manual_seed(seed)
    shape = variants.shape(vocab_size, d_ff or variant.d_ff)
    if variant.rank:
        return start_small(YoutuForCausalLM(YoutuConfig(**shape, **variants.latent(variant.rank))))
    heads = dict(num_key_value_heads=variant.kv_heads, head_dim=variants.HEAD_DIM)
    return start_small(LlamaForCausalLM(LlamaConfig(**shape, **heads)))


def mean_loss(model, rows: np.ndarray, labels: np.ndarray | None = None, at_once: int = 64):
    """The mean loss of the tokens that are to be predicted."""
    labels = rows if labels is None else labels
    model.eval()
    with torch.no_grad():
        total = sum(
            losses(
                model,
                torch.from_numpy(rows[i : i + at_once]),
                torch.from_numpy(labels[i : i + at_once]),
            )
            .double()
            .sum()
            .item()
            for i in range(0, len(rows), at_once)
        )
    return total / (labels[:, 1:] != IGNORED).sum()


def train(
    model, rows: np.ndarray, labels: np.ndarray | None = None, at_once: int = BATCH, name: str = ""
) -> None:
    """One pass over the rows, with AdamW."""
    labels = rows if labels is None else labels
    steps = len(rows) // at_once
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    schedule = cosine_schedule(optimizer, steps, max(1, round(WARMUP * steps)))
    model.train()
    progress = tqdm(range(steps), desc=name, mininterval=2)
    for step in progress:
        batch = slice(step * at_once, (step + 1) * at_once)
        found = losses(model, torch.from_numpy(rows[batch]), torch.from_numpy(labels[batch]))
        loss = found.sum() / (torch.from_numpy(labels[batch, 1:]) != IGNORED).sum()
        update(model, loss, [optimizer], [schedule])
        progress.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


def pooled(mha, variant: Variant):
    """A trained MHA with fewer KV heads: each is the mean of its group's heads, as in Ainslie et
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
