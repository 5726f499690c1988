"""Torch for training/ and lab/: narrow models that start well, their losses, a step of training,
checkpoints on disk, runs that can be stopped."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

IGNORED = -100  # a label that is not to be predicted
SAVE_EVERY = 100  # steps of a run that can be stopped


def start_small(model):
    """Shrinks what the layers of a new model add to the residual stream.

    The usual spread of 0.02 suits wide models. In one as narrow as these, what the layers add would
    drown a token's own embedding, and the model would be slow to learn to copy a name. So weights
    start wide enough to keep the size of what passes through them (initializer_range is the
    width's inverse root), and what the layers add starts small.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight /= math.sqrt(2 * model.config.num_hidden_layers)
    return model


def losses(model, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
    """The cross-entropy of each token after the first, in nats; 0 where its label is IGNORED."""
    logits = model(tokens, use_cache=False).logits[:, :-1].float()
    labels = tokens if labels is None else labels
    return torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none"
    )


def cosine_schedule(optimizer, steps: int, warmup: int):
    """The learning rate over `steps`: a warmup, then half a cosine down to a fiftieth."""

    def rate(step: int) -> float:
        cosine = (1 + math.cos(math.pi * step / steps)) / 2
        return min((step + 1) / warmup, 0.02 + 0.98 * cosine)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def layers_and_others(model) -> tuple[list, list]:
    """The matrices of the layers, for Muon; the embedding and the norms, for AdamW."""
    named = list(model.named_parameters())
    layers = [weight for name, weight in named if weight.dim() == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.dim() == 1 or "embed" in name]
    return layers, others


def update(model, loss: torch.Tensor, optimizers: list, schedules: list | tuple = ()) -> None:
    """One step of training: the gradient of the loss, clipped to a norm of 1, moves the weights."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    for schedule in schedules:
        schedule.step()


def save(model, folder: Path, tokenizer=None, state_dict: dict | None = None, **special) -> None:
    """Writes a Hugging Face checkpoint, beside its place first, so that each file is whole at any
    time. special: bos_token and the like, for the tokenizer."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, state_dict=state_dict)
    if tokenizer:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(partial)
    folder.mkdir(parents=True, exist_ok=True)
    for file in partial.iterdir():
        file.replace(folder / file.name)
    partial.rmdir()


def settings_of(args) -> dict:
    """A command's options, without its files."""
    return {name: value for name, value in vars(args).items() if not isinstance(value, Path)}


def is_done(out: Path, settings: dict) -> bool:
    """Whether a run with these settings has finished there."""
    report = out / "training.json"
    found = json.loads(report.read_text()) if report.exists() else {}
    done = all(found.get(name) == value for name, value in settings.items())
    if done:
        print(f"{out} is done.")
    return done


class Training:
    """A run of training that may be stopped at any time, kill -9 included: the same command goes on
    from where it last saved, and comes to the same weights.

    parts: whatever changes from step to step, by name (model, optimizers, ..). In `out` lies
    state.pt while it runs, and training.json, with the settings, when all is done.
    """

    def __init__(self, out: Path, settings: dict, **parts):
        self.state, self.report = out / "state.pt", out / "training.json"
        self.settings, self.parts = settings, parts
        self.step, self.seen, self.seconds = 0, 0, 0.0
        if self.state.exists():
            self._load()

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left."""
        before, start = self.seconds, time.monotonic()
        self.bar = tqdm(range(self.step, total), initial=self.step, total=total, mininterval=5)
        for step in self.bar:
            yield step
            self.step, self.seconds = step + 1, before + time.monotonic() - start
            if self.step % SAVE_EVERY == 0:
                self._save()

    def show(self, **figures: float) -> None:
        """Shows figures and the number of tokens beside the progress bar."""
        texts = {name: f"{value:.4f}" for name, value in figures.items()}
        self.bar.set_postfix(**texts, tokens=f"{self.seen / 1e6:.2f}M", refresh=False)

    def finish(self, figures: dict) -> None:
        """Writes down what came of it. Whatever else is to be kept was saved before."""
        minutes = round(self.seconds / 60, 1)
        report = {"tokens_seen": self.seen, "minutes": minutes, **figures, **self.settings}
        text = json.dumps(report, indent=1) + "\n"
        partial = self.report.with_suffix(".part")
        partial.write_text(text)
        os.replace(partial, self.report)
        self.state.unlink(missing_ok=True)
        print(text, end="")

    def _save(self) -> None:
        self.state.parent.mkdir(parents=True, exist_ok=True)
        numbers = {"step": self.step, "seen": self.seen, "seconds": self.seconds}
        states = {name: part.state_dict() for name, part in self.parts.items()}
        partial = self.state.with_suffix(".part")
        torch.save({"settings": self.settings, "numbers": numbers, "parts": states}, partial)
        os.replace(partial, self.state)

    def _load(self) -> None:
        saved = torch.load(self.state)
        if saved["settings"] != self.settings:
            raise SystemExit(
                f"{self.state} is of a run with other settings: {saved['settings']}, not"
                f" {self.settings}. Give those again, or remove the file to start over."
            )
        for name, part in self.parts.items():
            part.load_state_dict(saved["parts"][name])
        vars(self).update(saved["numbers"])
