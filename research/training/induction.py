"""Trains models/heads.bin's model: two layers that repeat what they have read.

    python -m research.training.induction TOKENIZER OUT

TOKENIZER is a directory with a tokenizer, OUT the checkpoint. A run that was interrupted goes on
when it is called again. The model sees nothing but random
tokens and their repetitions. To say what comes next, it has to look for the present token further
up and take the one after that: a head of the first layer tells each token its predecessor, and
heads of the second find the place by it. `scores` measures both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from research.learning import Training, is_done, layers_and_others, settings_of, update

LENGTH, SHORTEST = 96, 4  # of a text; of what it repeats
CHOICE = 256  # tokens that the texts of a step are made of, others at each step
REPEATED = 50  # random tokens, twice, that heads are judged by


def texts(size: int, random: torch.Generator) -> torch.Tensor:
    """Rows of random numbers below CHOICE that repeat themselves; the first is 0 for BEGIN."""
    rows = torch.randint(1, CHOICE, (size, LENGTH), generator=random)
    periods = torch.randint(SHORTEST, LENGTH // 2, (size, 1), generator=random)
    rows = rows.gather(1, 1 + torch.arange(LENGTH - 1) % periods)
    return torch.nn.functional.pad(rows, (1, 0))


def new_model(vocab_size: int) -> LlamaForCausalLM:
    """All embeddings share a part, `common`: queries and keys have no biases in a Llama, so that
    without it no head could look at a place whatever is there."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=128,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
            initializer_range=128**-0.5,
        )
    )
    common = torch.nn.functional.normalize(torch.randn(128), dim=0)
    with torch.no_grad():
        model.model.embed_tokens.weight += common
        look_back(model.model.layers[0].self_attn, common)
    return model


def look_back(attention, common: torch.Tensor) -> None:
    """Makes the first head look one token back, or training would spend most of its time on
    finding that.

    RoPE turns a query by its position and a key by its own, so a query that is the key turned back
    by one matches best where the key stands one earlier.
    """
    half = attention.head_dim // 2
    angles = 10000.0 ** -(torch.arange(half) / half)
    key = torch.cat([torch.ones(half), torch.zeros(half)])
    query = torch.cat([angles.cos(), -angles.sin()])
    attention.k_proj.weight[: 2 * half] = 0.7 * torch.outer(key, common)
    attention.q_proj.weight[: 2 * half] = 0.7 * torch.outer(query, common)


class Random(torch.Generator):
    """A generator whose state can be saved as a model's."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"state": self.get_state()}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        self.set_state(saved["state"])


def train(model: LlamaForCausalLM, args) -> Training:
    """Trains in place, and returns the run."""
    random = Random().manual_seed(args.seed)
    layers, others = layers_and_others(model)
    optimizers = [
        torch.optim.Muon(layers, lr=args.lr, weight_decay=0.01),
        torch.optim.AdamW(others, lr=args.lr / 100, weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            optimizer.param_groups[0]["lr"],
            args.steps,
            pct_start=0.1,
            cycle_momentum=False,
        )
        for optimizer in optimizers
    ]
    names = "muon", "adam", "muon_schedule", "adam_schedule"
    parts = dict(zip(names, optimizers + schedules))
    run = Training(args.out, settings_of(args), model=model, random=random, **parts)
    for _ in run.steps(args.steps):
        numbers = texts(args.batch, random)
        choice = 1 + torch.randperm(model.config.vocab_size - 1, generator=random)[:CHOICE]
        choice[0] = 0
        hidden = model.model(choice[numbers]).last_hidden_state[:, LENGTH // 2 : -1]
        logits = hidden @ model.lm_head.weight[choice].T
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), numbers[:, LENGTH // 2 + 1 :].flatten()
        )
        update(model, loss, optimizers, schedules)
        run.seen += args.batch * (LENGTH // 2)
        run.show(loss=loss.item())
    return run


def scores(model: LlamaForCausalLM, seed: int = 0) -> dict[str, list[list[float]]]:
    """Mean weights of each layer's heads: `previous`, on the token before; `induction`, where
    random tokens are repeated, on the one that followed the first time."""
    random = torch.Generator().manual_seed(seed)
    once = torch.randint(2, model.config.vocab_size, (8, REPEATED), generator=random)
    rows = torch.cat([torch.zeros(8, 1, dtype=torch.long), once, once], 1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(rows, output_attentions=True).attentions
    to_previous = [layer.diagonal(-1, 2, 3).mean((0, 2)) for layer in weights]
    induction = [layer.diagonal(1 - REPEATED, 2, 3)[..., 2:].mean((0, 2)) for layer in weights]
    return {
        name: [[round(x, 3) for x in layer.tolist()] for layer in found]
        for name, found in (("previous", to_previous), ("induction", induction))
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a model with clean induction heads.")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args(arguments)
    if is_done(args.out, settings_of(args)):
        return
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = new_model(len(tokenizer))
    run = train(model, args)
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    run.finish(scores(model.float()))


if __name__ == "__main__":
    main()
