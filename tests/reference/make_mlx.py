"""Writes tests/golden/mlx.json: what mlx makes of random words in each of its forms. Needs mlx.

python3 tests/reference/make_mlx.py
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np

ROWS = 3
FORMS = [("affine", 32, 2), ("affine", 32, 3), ("affine", 64, 4), ("affine", 128, 4)]
FORMS += [("affine", 32, 5), ("affine", 32, 6), ("affine", 64, 8)]
FORMS += [("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8)]


def answer(mode: str, size: int, bits: int) -> dict:
    """The parts of a matrix, as bytes in hexadecimal digits, and float32 that they stand for."""
    rng, width = np.random.default_rng([size, bits]), 2 * size
    word = rng.integers(0, 256, (ROWS, width * bits // 8), np.uint8)
    if mode == "mxfp8":
        word[word % 128 == 127] = 0  # NaN
    shape = ROWS, width // size
    if mode == "affine":
        scales = rng.uniform(0.01, 0.1, shape).astype(np.float16)
        offsets = [rng.uniform(-1, 1, shape).astype(np.float16)]
    else:
        scales, offsets = rng.integers(100, 126, shape, np.uint8), []
    parts = [word.view(np.uint32), scales, *offsets]
    wide = [p if p.dtype.kind == "u" else p.astype(np.float32) for p in parts]
    how = dict(group_size=size, bits=bits, mode=mode, dtype=mx.float32)
    stands_for = np.array(mx.dequantize(*map(mx.array, wide), **how))
    names = ("weight", "scales", "biases")
    return {
        "says": {"group_size": size, "bits": bits, "mode": mode},
        **{name: part.tobytes().hex() for name, part in zip(names, parts)},
        "stands for": stands_for.astype("<f4").tobytes().hex(),
    }


def main() -> None:
    made_by = json.dumps(f"mlx {mx.__version__}; python3 tests/reference/make_mlx.py")
    rows = ",\n".join(json.dumps(answer(*form)) for form in FORMS)
    path = Path(__file__).resolve().parents[1] / "golden" / "mlx.json"
    path.write_text(f'{{"made by": {made_by}, "rows": {ROWS}, "forms": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
