#!/usr/bin/env python3
"""Attention weights of the golden checkpoints, as transformers' eager attention has them.

    python tests/reference/make_attention.py [NAME...]      (torch 2.13.0, transformers 5.23.0)

Writes attention.npz beside each golden.json: "made", a JSON object that says by whom and with what;
"positions"; and for the first, second, .. layer that has attention the array "0", "1", .. of the
prompt's rows at these positions, float32 [heads][positions][tokens]. What a sink takes is not
there: rows of such a layer sum to less than 1."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import make_golden
import numpy as np

POSITIONS = [1, 8, 30, 61, 95]  # inside windows and beyond them
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def once(build_alibi):
    """Falcon's eager attention adds ALiBi twice: twice the half of it is as others add it."""
    return lambda *args, **kwargs: build_alibi(*args, **kwargs) / 2


def with_sinks(forward):
    """Granite's eager attention scales its output for the sinks, and shows the weights as they were
    before: of values that are all 1, the output is that scale."""

    def scaled(module, query, key, value, *args, **kwargs):
        out, shown = forward(module, query, key, value, *args, **kwargs)
        ones, _ = forward(module, query, key, value.new_ones(value.shape), *args, **kwargs)
        return out, shown * ones.transpose(1, 2)[..., :1]

    return scaled


CORRECTED = [
    ("falcon", "build_alibi_tensor", once),
    ("granite_swa", "eager_attention_forward", with_sinks),
    ("granitemoe_swa", "eager_attention_forward", with_sinks),
]


def weights(directory: Path) -> list[np.ndarray]:
    """Of the golden prompt, by layer that has attention: [heads][tokens][tokens]."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    prompt = json.loads((directory / "golden.json").read_text())["prompt"]
    with ExitStack() as patches, torch.no_grad():
        for family, function, correct in CORRECTED:
            module = import_module(f"transformers.models.{family}.modeling_{family}")
            corrected = correct(getattr(module, function))
            patches.enter_context(patch.object(module, function, corrected))
        out = model(torch.tensor([prompt]), use_cache=False, output_attentions=True)
    found = getattr(out, "attentions", None) or ()  # which a model without attention lacks
    return [layer[0].float().numpy() for layer in found if layer is not None]


def main() -> int:
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=make_golden.COMMITTED, metavar="NAME")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in parser.parse_args().names:
        made = dict(
            by="tests/reference/make_attention.py",
            command=f"python tests/reference/make_attention.py {name}",
            torch=torch.__version__,
            transformers=transformers.__version__,
        )
        rows = [layer[:, POSITIONS] for layer in weights(GOLDEN / name)]
        path = GOLDEN / name / "attention.npz"
        np.savez_compressed(
            path,
            made=json.dumps(made),
            positions=np.array(POSITIONS),
            **{str(i): layer for i, layer in enumerate(rows)},
        )
        print(f"{path}: {len(rows)} layers, {path.stat().st_size:,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
