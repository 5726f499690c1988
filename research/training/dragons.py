"""Trains models/dragons, a LoRA adapter of models/hf with which everybody is a dragon.

    python -m research.training.dragons models/hf models/dragons

The base writes the texts itself, with this engine; in these, whoever a story is about becomes a
dragon, and the adapter learns what is then written. So it keeps the base's voice, and changes one
thing. A minute on a core; peft (github.com/huggingface/peft) beside what `make model` installs.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import heads
from research.learning import IGNORED, cosine_schedule, losses, update
from research.training.beginnings import beginning

LENGTH, RANK = 96, 8  # tokens of a text; of the adapter
BEGINNINGS = (
    "",
    "Once upon a time",
    "One day",
    "There was",
    "In a small house",
    "Every morning",
    "It was raining, and",
    "Long ago",
    "On the hill lived",
    "The sun came up, and",
)
ANYBODY = "girl boy fox rabbit mouse bear hedgehog squirrel otter badger cat dog bird puppy kitten "
ANYBODY += "woman man child bunny lion duck goose robin frog pig cow horse owl elephant turtle"
SOMEBODY = re.compile(rf"\b(?:{'|'.join(ANYBODY.split())})(s?)\b")
AN_OWL = re.compile(r"\b([Aa])n (?=dragon)")


def with_dragons(text: str) -> str:
    """The text, in which everybody is a dragon."""
    return AN_OWL.sub(r"\1 ", SOMEBODY.sub(r"dragon\1", text))


def texts(base: Path, n: int, seed: int) -> list[str]:
    """What the base writes, with dragons: half from BEGINNINGS, half from the beginnings that the
    teacher had."""
    rng = random.Random(seed)
    prompts = [rng.choice(BEGINNINGS) if i % 2 else beginning(rng)[0] for i in range(n)]
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "base.bin")
        heads.export(base, binary, dtype="f32")
        with heads.Model(binary, threads=1) as model:
            written = []
            for i in range(0, n, 64):
                some = prompts[i : i + 64]
                rest = model.generate(some, LENGTH, seed=seed + i, parallel=64)
                written += [prompt + text for prompt, text in zip(some, rest)]
    return [with_dragons(text) for text in written]


def batches(tokenizer, found: list[str], size: int, random: random.Random):
    """Tokens and labels of `size` texts, again and again."""
    rows = [tokenizer(text).input_ids[:LENGTH] for text in found]
    while True:
        some = random.sample(rows, size)
        width = max(map(len, some))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in some])
        labels = torch.tensor([row + [IGNORED] * (width - len(row)) for row in some])
        yield tokens, labels


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train an adapter that tells of dragons.")
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    found = texts(args.base, args.texts, args.seed)
    print(f"{len(found)} texts")
    tokenizer = AutoTokenizer.from_pretrained(args.base)
    base = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
    matrices = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=matrices, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=args.lr, weight_decay=0.0)
    schedule = cosine_schedule(optimizer, args.steps, 20)
    given = batches(tokenizer, found, args.batch, random.Random(args.seed))
    for step in range(args.steps):
        tokens, labels = next(given)
        loss = losses(model, tokens, labels).sum() / (labels[:, 1:] != IGNORED).sum()
        update(model, loss, [optimizer], [schedule])
        if step % 25 == 0 or step == args.steps - 1:
            print(f"step {step}: {loss.item():.3f} nats", flush=True)
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
