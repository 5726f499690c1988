"""Trains the bundled model, on the teacher's stories and on those of the grammar.

    python models/train.py PRETRAINED DATA      what pretrain.py and generate.py wrote

It goes on from the model that pretrain.py made of the grammar's stories, and writes models/hf.

Needs torch, transformers, tokenizers and tqdm. Of the teacher's stories the model learns what the
teacher thought of each next token, of the grammar's the token itself. The same data, seed, machine
and libraries give the same model. training.json beside the weights says how it went.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from tqdm import tqdm
from transformers import (AttentionInterface, GenerationConfig, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)

import stories
from generate import BEGIN, END, KEPT
from pretrain import causal_attention

HELD_OUT = 64  # one story in so many is not trained on
TARGET_TEMPERATURE = 0.7  # the teacher's distributions are sharpened to this
GRAMMARS_SHARE = 0.25  # of stories; the grammar's are longer
COMMON = "a an the in on of by to two some".split()
RECALL_WEIGHT = 6  # how much more a recalled word counts than any other; see recalled()
POOL = 16  # batches drawn together and sorted by length, so that rows need little padding
ROWS_OF_LOGITS = 512  # that are in memory at once
RIDGE = 3.0  # of the map from the teacher's embedding to ours
SHINGLE, ALIKE = 6, 0.4  # tokens; of a story's shingles, how many may be in earlier stories


class Story:
    """Tokens, and for each of them KEPT tokens to be predicted with their weights."""

    def __init__(self, tokens: np.ndarray, targets: np.ndarray, weights: np.ndarray):
        self.tokens, self.targets, self.weights = tokens, targets, weights


class TeachersStories:
    """What generate.py kept, without near duplicates."""

    def __init__(self, data: Path):
        self.training, self.held_out = [], []
        seen = set()
        for path in sorted(data.glob("*.npz")):
            shard = np.load(path)
            ends = np.cumsum(shard["lengths"])
            parts = [np.split(shard[name], ends[:-1]) for name in ("tokens", "best", "log_p")]
            for tokens, best, log_p, given in zip(*parts, shard["given"]):
                self._add(tokens.astype(np.int64), best, log_p, given, seen)

    def _add(self, tokens, best, log_p, given, seen: set) -> None:
        shingles = {tokens[i:i + SHINGLE].tobytes() for i in range(len(tokens) - SHINGLE + 1)}
        if len(shingles & seen) > ALIKE * len(shingles):
            return
        seen |= shingles
        number = len(self.training) + len(self.held_out)
        side = self.held_out if number % HELD_OUT == 0 else self.training
        side.append((tokens, best, log_p, given))

    @staticmethod
    def story(row: tuple) -> Story:
        """What was given to the teacher is not to be predicted."""
        tokens, best, log_p, given = row
        p = np.exp((log_p - log_p.max(1, keepdims=True)).astype(np.float32) / TARGET_TEMPERATURE)
        p /= p.sum(1, keepdims=True)
        p[:given] = 0
        return Story(tokens, best.astype(np.int64), p)


class GrammarsStories:
    """Stories that stories.py makes up as it goes."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        fields = "name kind colour part loan one".split()
        words = {word for slot, rows in stories.TABLES.items() if slot != "home" for row in rows
                 for field in fields for word in row.get(field, "").split()}
        ids = (tokenizer.token_to_id("\u0120" + word) for word in words if word not in COMMON)
        self.memorable = np.array([i for i in ids if i is not None])

    def story(self, rng: random.Random) -> Story:
        ids = np.array(self.tokenizer.encode(stories.story(rng) + END).ids)
        targets = np.zeros((len(ids), KEPT), np.int64)
        weights = np.zeros((len(ids), KEPT), np.float32)
        targets[:, 0] = ids
        weights[:, 0] = 1 + (RECALL_WEIGHT - 1) * self.recalled(ids)
        return Story(ids, targets, weights)

    def recalled(self, ids: np.ndarray) -> np.ndarray:
        """Which tokens are names, colours and the like that the story has had before: booleans.

        They are few and the hardest to learn, since the choice to be copied lies far back. The
        loss counts them more, or learning would stop at "his mother" where the story began with an
        uncle.
        """
        _, first = np.unique(ids, return_index=True)
        again = np.ones(len(ids), bool)
        again[first] = False
        return again & np.isin(ids, self.memorable)


def collate(rows: list[Story]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input tokens [rows][width], targets and weights [rows * width][KEPT].

    A row begins with BEGIN and is padded at its right, where causal attention cannot see it; what
    is padding has weight 0.
    """
    width = max(len(story.tokens) for story in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)  # BEGIN is 0
    targets = torch.zeros(len(rows), width, KEPT, dtype=torch.long)
    weights = torch.zeros(len(rows), width, KEPT)
    for i, story in enumerate(rows):
        n = len(story.tokens)
        tokens[i, 1:n] = torch.from_numpy(story.tokens[:-1])
        targets[i, :n] = torch.from_numpy(story.targets)
        weights[i, :n] = torch.from_numpy(story.weights)
    return tokens, targets.view(-1, KEPT), weights.view(-1, KEPT)


def batches(teachers: TeachersStories, grammars: GrammarsStories, seed: int, size: int):
    """Endless batches of `size` stories, a fixed share of them the grammar's."""
    rng = random.Random(seed)
    supply = shuffled(teachers.training, rng)
    while True:
        pool = [grammars.story(rng) if rng.random() < GRAMMARS_SHARE
                else teachers.story(next(supply)) for _ in range(POOL * size)]
        pool.sort(key=lambda story: len(story.tokens))
        groups = [pool[i:i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from map(collate, groups)


def shuffled(items: list, rng: random.Random):
    """All of them again and again, each time in another order."""
    while True:
        yield from rng.sample(items, len(items))


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
    fitted to those, makes of the teacher's. What is added to the feed-forward layers adds nothing
    to begin with.
    """
    torch.manual_seed(args.seed)
    AttentionInterface.register("causal_attention", causal_attention)
    old = LlamaForCausalLM.from_pretrained(args.pretrained, dtype=torch.float32)
    config = LlamaConfig(**{**old.config.to_dict(), "vocab_size": tokenizer.get_vocab_size(),
                            "intermediate_size": args.hidden, "bos_token_id": 0,
                            "eos_token_id": 1})
    config._attn_implementation = "causal_attention"
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


def mapped(old: torch.Tensor, old_ids: dict[str, int], teachers: torch.Tensor,
           ids: dict[str, int]) -> torch.Tensor:
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
    layers = [weight for name, weight in model.named_parameters()
              if weight.dim() == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters()
              if weight.dim() == 1 or "embed" in name]
    return [torch.optim.Muon(layers, lr=args.lr, weight_decay=0.05),
            torch.optim.AdamW(others, lr=args.lr / 6, betas=(0.9, 0.95), weight_decay=0.0,
                              fused=True)]


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
            total = sum(loss_of(model, *collate(rows[i:i + 16])).item()
                        for i in range(0, len(rows), 16))
            losses[name] = total / sum(len(story.tokens) for story in rows)
    p = np.concatenate([story.weights for story in theirs])
    losses["teacher"] -= float(-(p * np.log(np.maximum(p, 1e-9))).sum(1).mean())
    return {name: round(loss, 4) for name, loss in losses.items()}


def save(model, tokenizer, out: Path) -> None:
    """Writes the checkpoint: config, generation config, weights in bfloat16, tokenizer."""
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1)
    state = {name: weight.detach().to(torch.bfloat16) for name, weight in
             model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(out, state_dict=state)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(out)


def train(model, teachers, grammars, args) -> int:
    """Trains in place, and returns the number of tokens seen."""
    model.train()
    optimizers = optimizers_for(model, args)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    supply = batches(teachers, grammars, args.seed, args.batch)
    seen = 0
    progress = tqdm(range(args.steps), mininterval=5)
    for step in progress:
        tokens, targets, weights = next(supply)
        n = int((weights.sum(1) > 0).sum())
        loss = loss_of(model, tokens, targets, weights)
        (loss / n).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in zip(optimizers, peaks):
            optimizer.param_groups[0]["lr"] = peak * rate(step, args)
            optimizer.step()
            optimizer.zero_grad()
        seen += n
        progress.set_postfix(loss=f"{loss.item() / n:.4f}", tokens=f"{seen / 1e6:.2f}M",
                             refresh=False)
    return seen


def keep_freed_memory() -> None:
    """glibc would hand large arrays back to the system, which would have to clear them again."""
    trim_threshold, mmap_max = -1, -4
    ctypes.CDLL(None).mallopt(mmap_max, 0)
    ctypes.CDLL(None).mallopt(trim_threshold, 2**31 - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the bundled story model.")
    parser.add_argument("pretrained", type=Path, help="what pretrain.py wrote")
    parser.add_argument("data", type=Path, help="what generate.py wrote")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "hf")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3360)
    parser.add_argument("--batch", type=int, default=16, help="stories a step")
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--slope", type=float, default=0.9, help="of all steps, at the end")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    keep_freed_memory()
    start = time.time()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    teachers, grammars = TeachersStories(args.data), GrammarsStories(tokenizer)
    model = new_model(args, tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(teachers.training):,} of the teacher's"
          " stories")
    seen = train(model, teachers, grammars, args)
    save(model, tokenizer, args.out)
    report = {"parameters": model.num_parameters(), "tokens_seen": seen,
              "minutes": round((time.time() - start) / 60, 1),
              "held_out_loss": held_out_losses(model, teachers, grammars),
              **{name: value for name, value in vars(args).items()
                 if not isinstance(value, Path)}}
    (args.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
