"""The mean of two checkpoints' weights, which may be better than either where one went on from the
other, or both from a third (Wortsman et al. 2022, arXiv:2203.05482).

    python -m research.training.average FIRST SECOND OUT --share 0.6

FIRST, SECOND: directories that train.py wrote. OUT is SECOND with these weights.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Average the weights of two checkpoints.")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, required=True, help="of SECOND")
    args = parser.parse_args(arguments)
    first, second = load_file(args.first / WEIGHTS), load_file(args.second / WEIGHTS)
    mean = {
        name: torch.lerp(first[name].float(), second[name].float(), args.share).to(torch.bfloat16)
        for name in second
    }
    shutil.copytree(args.second, args.out, dirs_exist_ok=True)
    save_file(mean, args.out / WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
