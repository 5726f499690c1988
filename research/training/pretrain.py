"""Trains a small model from nothing, on stories that are made up as it goes (research/stories.py).
The bundled model begins with it (train.py).

    python -m research.training.pretrain OUT     writes an ordinary Hugging Face checkpoint

Needs torch, transformers, tokenizers and tqdm. The same seed, machine and libraries give the same
model, also if the run was interrupted: called again, it goes on. training.json beside the weights
says how it went.
"""

import argparse
import itertools
import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from research import stories
from research.learning import (
    IGNORED,
    Training,
    cosine_schedule,
    is_done,
    losses,
    save,
    settings_of,
    start_small,
    update,
)
from research.stories import BEGIN, END
from research.training.attention import CAUSAL
from research.training.recall import RECALL_WEIGHT, memorable, recalled

VOCAB_STORIES, VOCAB_SIZE = 20_000, 1_600
HELD_OUT_SEED, HELD_OUT_STORIES = 1_000_000, 512
POOL = 16  # batches drawn together and sorted by length, so that rows need little padding


def train_tokenizer(seed):
    """A byte-level BPE tokenizer fit to the stories; all of its words become single tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(seed)
    tokenizer.train_from_iterator((stories.story(rng) for _ in range(VOCAB_STORIES)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def new_model(args, tokenizer):
    """A randomly initialised Llama: grouped-query attention, tied embeddings."""
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            attn_implementation=CAUSAL,
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=args.dim,
            intermediate_size=args.hidden,
            num_hidden_layers=args.layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=512,
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.token_to_id(BEGIN),
            eos_token_id=tokenizer.token_to_id(END),
            initializer_range=args.dim**-0.5,
        )
    )
    return start_small(model)


def batches(tokenizer, seed, size, first=0):
    """Endless batches from number `first` on, each [size][longest story]: a story a row, from BEGIN
    to END. A batch depends on seed, size and number alone.

    A row is padded with END at its right, where causal attention cannot see it, and the padding is
    not to be predicted.
    """
    end = tokenizer.token_to_id(END)
    for number in itertools.count(first // POOL):
        rng = random.Random(f"{seed} {number}")
        texts = [stories.story(rng) + END for _ in range(POOL * size)]
        rows = sorted((encoding.ids for encoding in tokenizer.encode_batch(texts)), key=len)
        pool = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(pool)
        for rows in pool[max(0, first - number * POOL) :]:
            width = len(rows[-1])
            yield (
                torch.tensor([row + [end] * (width - len(row)) for row in rows]),
                torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows]),
            )


def predicted(labels):
    """How many tokens of a batch are to be predicted."""
    return (labels[:, 1:] != IGNORED).sum().item()


def held_out_loss(model, tokenizer):
    """The loss in float32 on stories of another seed, in nats a token."""
    model.eval()
    total = count = 0
    supply = batches(tokenizer, HELD_OUT_SEED, POOL)
    with torch.no_grad():
        for tokens, labels in (next(supply) for _ in range(HELD_OUT_STORIES // POOL)):
            total += losses(model, tokens, labels).sum().item()
            count += predicted(labels)
    return total / count


def optimizer_for(model, rate: float):
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
        fused=True,
    )


def save_checkpoint(model, tokenizer, out):
    """Writes config, generation config, weights and tokenizer to the directory `out`."""
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id
    )
    save(model, out, tokenizer, bos_token=BEGIN, eos_token=END)


def train(model, tokenizer, args):
    """Trains in place, and returns the run."""
    optimizer = optimizer_for(model, args.lr)
    schedule = cosine_schedule(optimizer, args.steps, args.warmup)
    run = Training(args.out, settings_of(args), model=model, optimizer=optimizer, schedule=schedule)
    supply = batches(tokenizer, args.seed, args.batch, run.step)
    model.train()
    compiled = torch.compile(model, dynamic=True)  # half as fast again
    words = memorable(tokenizer)
    for _ in run.steps(args.steps):
        tokens, labels = next(supply)
        with torch.autocast("cpu", torch.bfloat16):
            nats = losses(compiled, tokens, labels)
        again = torch.from_numpy(np.stack([recalled(row, words) for row in tokens.numpy()]))
        again = again[:, 1:] & (labels[:, 1:] != IGNORED)
        weights = 1 + (RECALL_WEIGHT - 1) * again
        n = predicted(labels)
        update(model, (nats * weights).sum() / n, [optimizer], [schedule])
        run.seen += n
        run.show(loss=nats.sum().item() / n, recall=nats[again].mean().item())
    return run


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Train a model on the grammar's stories.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=8, help="stories a step")
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args(arguments)
    if is_done(args.out, settings_of(args)):
        return
    tokenizer = train_tokenizer(args.seed)
    model = new_model(args, tokenizer)
    print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size()} tokens")
    run = train(model, tokenizer, args)
    save_checkpoint(model, tokenizer, args.out)
    loss = round(held_out_loss(model, tokenizer), 4)
    run.finish({"parameters": model.num_parameters(), "held_out_loss": loss})


if __name__ == "__main__":
    main()
