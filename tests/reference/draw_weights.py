#!/usr/bin/env python3
"""Weights that no type restores, for compare_quantizers.py --model.

    draw_weights.py MODEL.gguf OUT.gguf [--seed N]

A checkpoint that was rounded once favours the type that it was rounded to. OUT has f32 weights: each
of a matrix in Q4_K or Q6_K lies anywhere, evenly, in the bin that its code stands for; others stay
as they are. Wants llama-cpp-python and gguf."""

from __future__ import annotations

import argparse
from pathlib import Path

import llama_cpp
import numpy as np
from compare_quantizers import quantize
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

# Bytes of a block, and where its codes lie: those of each part, and its bytes if all codes are 1.
CODES = {
    GGMLQuantizationType.Q4_K: (144, [(slice(16, 144), 0x11)]),
    GGMLQuantizationType.Q6_K: (210, [(slice(0, 128), 0x11), (slice(128, 192), 0)]),
}


def bins(data: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """How far apart a matrix's numbers of neighbouring codes are, [n_out][n_in]."""
    n_bytes, parts = CODES[kind]
    zeros = np.array(data).reshape(-1, n_bytes)
    ones = zeros.copy()
    for part, one in parts:
        zeros[:, part], ones[:, part] = 0, one
    return np.subtract(*(dequantize(b.reshape(data.shape), kind) for b in (ones, zeros)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    quantize(llama_cpp, args.model, args.out, llama_cpp.LLAMA_FTYPE_ALL_F32, {})
    out = {tensor.name: tensor.data for tensor in GGUFReader(args.out, "r+").tensors}
    random = np.random.default_rng(args.seed)
    for tensor in GGUFReader(args.model).tensors:
        if tensor.tensor_type in CODES:
            weights = out[tensor.name]
            drawn = random.random(weights.shape, dtype=np.float32) - np.float32(0.5)
            weights += drawn * bins(tensor.data, tensor.tensor_type).reshape(weights.shape)


if __name__ == "__main__":
    main()
