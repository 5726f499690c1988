#!/usr/bin/env python3
"""Makes the golden adapters: peft's for golden checkpoints, with the logits of merge_and_unload.

    python tests/reference/make_adapters.py [--seed S] [--out DIR]

(torch 2.13.0, transformers 5.23.0, peft 0.21.2.) Each directory holds an adapter (float32),
golden.json with a prompt, the base and what made it, and logits.npy: int16, 32767 times the logit
over the largest magnitude, which golden.json has."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent))
import live_adapters  # noqa: E402
from live_adapters import DECODER, PATTERNS, experts, lora  # noqa: E402

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
N_PROMPT = 8
# name: (base, the adapter's configuration)
ADAPTERS = {
    "dora": (
        "llama",
        lora(
            r=1,
            target_modules=["q_proj", "v_proj", "down_proj"],
            use_dora=True,
            use_rslora=True,
            **PATTERNS,
        ),
    ),
    "experts": ("qwen2_moe", experts("q_proj", r=1, layers_to_transform=[1])),
    "tokens": ("smollm2", lora(r=1, target_modules=["o_proj"], trainable_token_indices=[3, 96])),
    "conv1d": ("gpt2", lora(r=1, target_modules=["c_attn", "wte"], use_dora=True)),
}


def make(name: str, seed: int, out: Path) -> Path:
    base, config = ADAPTERS[name]
    folder = out / name
    torch.manual_seed(seed)
    live_adapters.make_adapter(GOLDEN / base, DECODER, config, folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    values = {**json.loads(path.read_text()), "base_model_name_or_path": f"tests/golden/{base}"}
    path.write_text(json.dumps(values, indent=1) + "\n")
    model = live_adapters.merged(GOLDEN / base, DECODER, [folder], [1])
    prompt = torch.randint(3, model.config.vocab_size, (N_PROMPT,)).tolist()
    logits = live_adapters.reference(model, DECODER, [prompt])
    largest = float(np.abs(logits).max())
    np.save(folder / "logits.npy", np.rint(logits * (32767 / largest)).astype(np.int16))
    made = dict(
        by="tests/reference/make_adapters.py",
        command=f"python tests/reference/make_adapters.py --seed {seed}",
        torch=torch.__version__,
        transformers=transformers.__version__,
        peft=peft.__version__,
    )
    golden = dict(made=made, base=base, prompt=prompt, largest=largest)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=GOLDEN / "adapters")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ADAPTERS:
        folder = make(name, args.seed, args.out)
        print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
