#!/usr/bin/env python3
"""Attention weights of the golden checkpoints, as transformers' eager attention has them.

    python tests/reference/make_attention.py [NAME...]      (torch 2.13.0, transformers 5.23.0)

Writes attention.npz beside each golden.json: "made", a JSON object that says by whom and with what;
"positions"; and for the first, second, .. layer that has attention the array "0", "1", .. of the
prompt's rows at these positions, float32 [heads][positions][tokens]. What a sink takes is not
there: rows of such a layer sum to less than 1.

Of NAME encoders/bert or encoder_decoders/t5, and their like, the arrays are "3.encoder.0", and with
a decoder "3.decoder.0" and "3.cross.0": of golden.json's texts, or sources and targets, number 3,
the rows 1, n // 2 and n - 1 of n; and "rounding" is the largest difference of these weights from
transformers' own in float64: T5's scores are not scaled, and large ones lose digits."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Iterator
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


@contextmanager
def corrected() -> Iterator[None]:
    """With transformers' functions corrected."""
    with ExitStack() as patches:
        for family, function, correct in CORRECTED:
            module = import_module(f"transformers.models.{family}.modeling_{family}")
            better = correct(getattr(module, function))
            patches.enter_context(patch.object(module, function, better))
        yield


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
    with corrected(), torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=False, output_attentions=True)
    found = getattr(out, "attentions", None) or ()  # which a model without attention lacks
    return [layer[0].float().numpy() for layer in found if layer is not None]


KINDS = {
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}


def rows_of_kinds(directory: Path, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Of an encoder's texts, or an encoder-decoder's sources and targets, of some length."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    golden = json.loads((directory / "golden.json").read_text())
    targets = golden.get("targets")
    loader = transformers.AutoModelForSeq2SeqLM if targets else transformers.AutoModel
    model = loader.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    rows = {}
    for i, text in enumerate(golden["sources"] if targets else golden["texts"]):
        if 96 not in (len(text), len(targets[i]) if targets else 0):
            continue
        more = dict(decoder_input_ids=torch.tensor([targets[i]])) if targets else {}
        with torch.no_grad():
            out = model.eval()(torch.tensor([text]), output_attentions=True, **more)
        kinds = KINDS if targets else {"encoder": "attentions"}
        for kind, name in kinds.items():
            for layer, weights in enumerate(out[name]):
                n = weights.shape[2]
                rows[f"{i}.{kind}.{layer}"] = weights[0, :, [1, n // 2, n - 1]].numpy()
    return rows


def rows_of(directory: Path) -> dict[str, np.ndarray]:
    if directory.parent != GOLDEN:
        rows, exact = rows_of_kinds(directory), rows_of_kinds(directory, "float64")
        rounding = max(np.abs(rows[key] - exact[key]).max() for key in rows)
        return {"rounding": np.array(rounding), **rows}
    rows = {str(i): layer[:, POSITIONS] for i, layer in enumerate(weights(directory))}
    return {"positions": np.array(POSITIONS), **rows}


def committed() -> list[str]:
    seeing = ("encoders", "encoder_decoders")
    paths = [path.parent for kind in seeing for path in GOLDEN.glob(f"{kind}/*/golden.json")]
    return [*make_golden.COMMITTED, *sorted(f"{path.parent.name}/{path.name}" for path in paths)]


def main() -> int:
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=committed(), metavar="NAME")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in parser.parse_args().names:
        made = dict(
            by="tests/reference/make_attention.py",
            command=f"python tests/reference/make_attention.py {name}",
            torch=torch.__version__,
            transformers=transformers.__version__,
        )
        rows = rows_of(GOLDEN / name)
        path = GOLDEN / name / "attention.npz"
        np.savez_compressed(path, made=json.dumps(made), **rows)
        print(f"{path}: {len(rows)} arrays, {path.stat().st_size:,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
