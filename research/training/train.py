"""Trains the bundled model, on the teacher's stories and on the grammar's.

    python -m research.training.train PRETRAINED DATA OUT

PRETRAINED and DATA are what pretrain.py and generate.py wrote. It goes on from the model that
pretrain.py made of the grammar's stories, or from its own, and writes OUT.

Needs torch, transformers, tokenizers and tqdm. The same data, seed, machine and libraries give the
same model, also if the run was interrupted: called again, it goes on. training.json beside the
weights says how it went.
"""

from __future__ import annotations

import argparse
import ctypes
import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from research.learning import Training, is_done, layers_and_others, save, settings_of, update
from research.stories import BEGIN, END
from research.training.attention import CAUSAL
from research.training.dataset import GrammarsStories, TeachersStories, batches, collate
from research.training.shards import shards_of

ROWS_OF_LOGITS = 512  # that are in memory at once
RIDGE = 3.0  # of the map from the teacher's embedding to ours


class WeightedLoss(torch.autograd.Function):
    """Sum over rows and targets of weight x cross-entropy, with its gradient along the way, so that
    a few rows of logits at a time are all that memory holds."""

    @staticmethod
    def forward(ctx, hidden, embedding, targets, weights):
        d_hidden, d_embedding = torch.empty_like(hidden), torch.zeros(embedding.shape)
        total = 0.0
        for rows in torch.arange(len(hidden)).split(ROWS_OF_LOGITS):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            logits = (hidden[part] @ embedding.T).float()
            wanted, weight = targets[part], weights[part]
            mass = weight.sum(1, keepdim=True)
            of_targets = logits.gather(1, wanted)
            top = logits.amax(1, keepdim=True)
            exps = logits.sub_(top).exp_()
            sums = exps.sum(1, keepdim=True)
            total += (mass * (top + sums.log()) - (weight * of_targets).sum(1, keepdim=True)).sum()
            d_logits = exps.mul_(mass / sums).scatter_add_(1, wanted, -weight).to(hidden.dtype)
            d_hidden[part] = d_logits @ embedding
            d_embedding += d_logits.T @ hidden[part]
        ctx.save_for_backward(d_hidden, d_embedding)
        return total

    @staticmethod
    def backward(ctx, gradient):
        d_hidden, d_embedding = ctx.saved_tensors
        return d_hidden * gradient, (d_embedding * gradient).to(d_hidden.dtype), None, None


def new_model(args, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """The model of pretrain.py with another vocabulary and wider feed-forward layers.

    Tokens that both vocabularies have keep their embedding. The others get what a linear map,
    fitted to those, makes of the teacher's. The new width of the feed-forward layers adds
    nothing to begin with.
    """
    torch.manual_seed(args.seed)
    old = LlamaForCausalLM.from_pretrained(args.pretrained, dtype=torch.float32)
    config = LlamaConfig(
        **{
            **old.config.to_dict(),
            "vocab_size": tokenizer.get_vocab_size(),
            "intermediate_size": args.hidden,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
    )
    config._attn_implementation = CAUSAL
    model, weights = LlamaForCausalLM(config), dict(old.named_parameters())
    teachers = torch.from_numpy(np.load(args.data / "embedding.npy"))
    old_ids = Tokenizer.from_file(str(args.pretrained / "tokenizer.json")).get_vocab()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed" in name:
                weight.copy_(mapped(weights[name], old_ids, teachers, tokenizer.get_vocab()))
            else:
                widen(weight, weights[name], "down_proj" in name)
    return model


def mapped(
    old: torch.Tensor, old_ids: dict[str, int], teachers: torch.Tensor, ids: dict[str, int]
) -> torch.Tensor:
    """An embedding for `ids`: the old rows, and for new tokens a ridge regression's."""
    shared = [token for token in ids if token in old_ids]
    new_rows = torch.tensor([ids[token] for token in shared])
    old_rows = old[torch.tensor([old_ids[token] for token in shared])]
    inputs = torch.nn.functional.pad(teachers, (0, 1), value=1.0)
    known = inputs[new_rows]
    ridge = RIDGE * torch.eye(inputs.shape[1])
    embedding = inputs @ torch.linalg.solve(known.T @ known + ridge, known.T @ old_rows)
    embedding[new_rows] = old_rows
    return embedding


def widen(weight: torch.Tensor, old: torch.Tensor, with_zeros: bool) -> None:
    """Copies the old weights, and fills what is beyond them."""
    if weight.shape != old.shape and with_zeros:
        weight.zero_()
    elif weight.shape != old.shape:
        weight.normal_(std=old.std().item())
    weight[tuple(map(slice, old.shape))] = old


def optimizers_for(model, args) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    layers, others = layers_and_others(model)
    return [
        torch.optim.Muon(layers, lr=args.lr, weight_decay=0.05),
        torch.optim.AdamW(others, lr=args.lr / 6, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def rate(step: int, args) -> float:
    """The learning rate's factor: a warmup, a plain, and a slope to nothing."""
    return min((step + 1) / args.warmup, 1.0, (args.steps - step) / (args.slope * args.steps))


def loss_of(model, tokens, targets, weights) -> torch.Tensor:
    """The sum of all weighted losses of a batch."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(tokens).last_hidden_state
    hidden = hidden.reshape(-1, hidden.shape[-1]).bfloat16()
    return WeightedLoss.apply(hidden, model.lm_head.weight.bfloat16(), targets, weights)


def held_out_losses(model, teachers, grammars) -> dict[str, float]:
    """Nats a token on stories that were not trained on: against the teacher's distributions, less
    their own entropy, and of the grammar's tokens."""
    model.eval()
    rng = random.Random(1_000_000)
    theirs = [teachers.story(row) for row in teachers.held_out[:512]]
    own = [grammars.story(rng) for _ in range(256)]
    for story in own:
        story.weights[:, 0] = 1
    losses = {}
    with torch.no_grad():
        for name, rows in (("teacher", theirs), ("grammar", own)):
            total = sum(
                loss_of(model, *collate(rows[i : i + 16])).item() for i in range(0, len(rows), 16)
            )
            losses[name] = total / sum(len(story.tokens) for story in rows)
    p = np.concatenate([story.weights for story in theirs])
    losses["teacher"] -= float(-(p * np.log(np.maximum(p, 1e-9))).sum(1).mean())
    return {name: round(loss, 4) for name, loss in losses.items()}


def save_checkpoint(model, tokenizer, out: Path) -> None:
    """Writes config, generation config, weights in bfloat16 and tokenizer."""
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1)
    state = {
        name: weight.detach().to(torch.bfloat16)
        for name, weight in model.state_dict().items()
        if name != "lm_head.weight"
    }
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)]
    )
    save(model, out, tokenizer, state, bos_token=BEGIN, eos_token=END)


def train(model, teachers, grammars, args, settings) -> Training:
    """Trains in place, and returns the run."""
    optimizers = optimizers_for(model, args)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    muon, adam = optimizers
    run = Training(args.out, settings, model=model, muon=muon, adam=adam)
    supply = batches(teachers, grammars, args.seed, args.batch, run.step)
    model.train()
    for step in run.steps(args.steps):
        tokens, targets, weights = next(supply)
        n = int((weights.sum(1) > 0).sum())
        loss = loss_of(model, tokens, targets, weights)
        for optimizer, peak in zip(optimizers, peaks):
            optimizer.param_groups[0]["lr"] = peak * rate(step, args)
        update(model, loss / n, optimizers)
        run.seen += n
        run.show(loss=loss.item() / n)
    return run


def keep_freed_memory() -> None:
    """glibc would hand large arrays back to the system, which would have to clear them again."""
    trim_threshold, mmap_max = -1, -4
    ctypes.CDLL(None).mallopt(mmap_max, 0)
    ctypes.CDLL(None).mallopt(trim_threshold, 2**31 - 1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the bundled story model.")
    parser.add_argument("pretrained", type=Path, help="what pretrain.py wrote")
    parser.add_argument("data", type=Path, help="what generate.py wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=640)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32, help="stories a step")
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--slope", type=float, default=0.9, help="of all steps, at the end")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args(arguments)
    settings = {**settings_of(args), "shards": len(shards_of(args.data))}
    if is_done(args.out, settings):
        return
    keep_freed_memory()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    teachers, grammars = TeachersStories(args.data), GrammarsStories(tokenizer)
    model = new_model(args, tokenizer)
    print(
        f"{model.num_parameters():,} parameters, {len(teachers.training):,} of the teacher's"
        f" stories, {teachers.tokens:,} tokens; dropped: {teachers.dropped}"
    )
    run = train(model, teachers, grammars, args, settings)
    save_checkpoint(model, tokenizer, args.out)
    losses = held_out_losses(model, teachers, grammars)
    run.finish({"parameters": model.num_parameters(), "held_out_loss": losses})


if __name__ == "__main__":
    main()
