"""Trains a small model from nothing, on stories that stories.py makes up as it goes: what train.py
begins with.

    python models/pretrain.py OUT     writes an ordinary Hugging Face checkpoint

Needs torch, transformers, tokenizers and tqdm. The same seed, machine and libraries give the same
model. training.json beside the weights says how it went.
"""

import argparse
import json
import math
import os
import random
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import (AttentionInterface, GenerationConfig, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)

import stories

BEGIN, END, IGNORED = "<|begin|>", "<|end|>", -100
VOCAB_STORIES, VOCAB_SIZE = 20_000, 1_600
COMMON = "a an the in on of by to two some".split()
HELD_OUT_SEED, HELD_OUT_STORIES = 1_000_000, 512
RECALL_WEIGHT = 6  # how much more a recalled word counts than any other; see recalled()
POOL = 16  # batches drawn together and sorted by length, so that rows need little padding


def train_tokenizer(seed):
    """A byte-level BPE tokenizer fit to the stories; all of its words become single tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    rng = random.Random(seed)
    tokenizer.train_from_iterator((stories.story(rng) for _ in range(VOCAB_STORIES)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))])
    return tokenizer


def causal_attention(module, query, key, value, attention_mask, **kwargs):
    """Attention in float32, which PyTorch's fused CPU kernel runs twice as fast as bfloat16."""
    with torch.autocast("cpu", enabled=False):
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2), None


def new_model(args, tokenizer):
    """A randomly initialised Llama: grouped-query attention, tied embeddings.

    The usual spread of 0.02 suits wide models. In one as narrow as this, what the layers add would
    drown a token's own embedding, and the model would be slow to learn to copy a name. So weights
    start wide enough to keep the size of what passes through them, and what the layers add starts
    small.
    """
    torch.manual_seed(args.seed)
    AttentionInterface.register("causal_attention", causal_attention)
    model = LlamaForCausalLM(LlamaConfig(
        attn_implementation="causal_attention",
        vocab_size=tokenizer.get_vocab_size(), hidden_size=args.dim, intermediate_size=args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=8, num_key_value_heads=4,
        max_position_embeddings=512, rope_theta=10000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END), initializer_range=args.dim ** -0.5))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight /= math.sqrt(2 * args.layers)
    return model


def batches(tokenizer, seed, size):
    """Endless (tokens, labels), each [size][longest story]: a story a row, from BEGIN to END.

    A row is padded with END at its right, where causal attention cannot see it, and the padding is
    not to be predicted.
    """
    rng = random.Random(seed)
    end = tokenizer.token_to_id(END)
    while True:
        texts = [stories.story(rng) + END for _ in range(POOL * size)]
        rows = sorted((encoding.ids for encoding in tokenizer.encode_batch(texts)), key=len)
        pool = [rows[i:i + size] for i in range(0, len(rows), size)]
        rng.shuffle(pool)
        for rows in pool:
            width = len(rows[-1])
            yield (torch.tensor([row + [end] * (width - len(row)) for row in rows]),
                   torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows]))


def words_to_recall(tokenizer):
    """The tokens of names, colours and the like: what a story chooses once and must then keep
    to."""
    fields = "name kind colour part loan one".split()
    words = {word for slot, rows in stories.TABLES.items() if slot != "home" for row in rows
             for field in fields for word in row.get(field, "").split()}
    tokens = ((tokenizer.token_to_id("\u0120" + word), word) for word in words)
    return [token for token, word in tokens if token is not None and word not in COMMON]


def recalled(tokens, words):
    """Which of `tokens` are among `words` and have been in their row before: a mask of booleans.

    They are few and the hardest to learn, since the choice to be copied lies far back. The loss
    counts them more, or learning would stop at "his mother" where the story began with an uncle.
    """
    memorable = torch.isin(tokens, words)
    same = tokens[:, :, None] == tokens[:, None, :]
    return memorable & same.tril(-1).any(-1)


def losses_of(model, tokens, labels):
    """The cross-entropy of each token after the first, in nats; 0 where nothing is to be
    predicted."""
    logits = model(tokens).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none")


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
            total += losses_of(model, tokens, labels).sum().item()
            count += predicted(labels)
    return total / count


def optimizer_for(model, args):
    """AdamW that decays matrices only, and its schedule: a warmup, then half a cosine to a 50th."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), fused=True)

    def rate(step):
        progress = step / args.steps
        return min((step + 1) / args.warmup, 0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def save(model, tokenizer, out):
    """Writes the checkpoint to the directory `out`: config, generation config, weights,
    tokenizer."""
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id)
    model.save_pretrained(out)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END).save_pretrained(out)


def train(model, tokenizer, args):
    """Trains in place, and returns the number of tokens predicted."""
    model.train()
    optimizer, schedule = optimizer_for(model, args)
    compiled = torch.compile(model, dynamic=True)  # half as fast again
    supply = batches(tokenizer, args.seed, args.batch)
    words = torch.tensor(words_to_recall(tokenizer))
    seen = 0
    progress = tqdm(range(1, args.steps + 1), mininterval=5)
    for step in progress:
        tokens, labels = next(supply)
        with torch.autocast("cpu", torch.bfloat16):
            losses = losses_of(compiled, tokens, labels)
        again = recalled(tokens, words)[:, 1:] & (labels[:, 1:] != IGNORED)
        weights = 1 + (RECALL_WEIGHT - 1) * again
        ((losses * weights).sum() / predicted(labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seen += predicted(labels)
        progress.set_postfix(loss=f"{losses.sum().item() / predicted(labels):.4f}",
                             recall=f"{losses[again].mean().item():.4f}",
                             tokens=f"{seen / 1e6:.2f}M", refresh=False)
        if step % args.save_every == 0:
            save(model, tokenizer, args.out)
    return seen


def main():
    parser = argparse.ArgumentParser(description="Train a model on the grammar's stories.")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=11000)
    parser.add_argument("--batch", type=int, default=8, help="stories a step")
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    args = parser.parse_args()

    start = time.time()
    tokenizer = train_tokenizer(args.seed)
    model = new_model(args, tokenizer)
    print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size()} tokens")
    seen = train(model, tokenizer, args)
    save(model, tokenizer, args.out)
    report = {"parameters": model.num_parameters(), "tokens_seen": seen,
              "minutes": round((time.time() - start) / 60, 1),
              "held_out_loss": round(held_out_loss(model, tokenizer), 4), **vars(args)}
    del report["out"]
    with open(os.path.join(args.out, "training.json"), "w") as file:
        json.dump(report, file, indent=1)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
