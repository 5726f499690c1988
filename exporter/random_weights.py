"""Checkpoints of random weights in a known shape, for measuring speed without downloading anything.

SHAPES holds what a config.json says, so a shape of any family of families/registry.py is one entry
more. A matrix is made of panels of 16 rows drawn from a small pool: packing the pool once
makes a model of a billion weights a matter of seconds, and every panel still lies in the file as
often as a real model's would."""

from __future__ import annotations

import os
import zlib
from functools import cached_property

import numpy as np

from .families.registry import canonical
from .model import Model
from .quantize.panels import LANES, pack
from .json_files import read_json
from .tensor import CONSTANT, ExportError, Tensor

POOL = 64  # panels of one width to choose from


def _llama(
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    ff: int,
    vocab: int,
    context: int,
    tied: bool,
    **more,
) -> dict:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ff,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-5,
        **more,
    }


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

# A context of 16384 stands where the original has 8192, so that there is room for a token at depth
# 8192.
SHAPES: dict[str, dict] = {
    "stories-260k": _llama(5, 64, 8, 4, 172, 512, 512, True),
    "smollm-135m": _llama(30, 576, 9, 3, 1536, 49152, 16384, True, rope_theta=100000.0),
    "smollm-360m": _llama(32, 960, 15, 5, 2560, 49152, 16384, True, rope_theta=100000.0),
    "qwen3-0.6b": _llama(
        28,
        1024,
        16,
        8,
        3072,
        151936,
        40960,
        True,
        model_type="qwen3",
        head_dim=128,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
    ),
    "llama-1b": _llama(16, 2048, 32, 8, 8192, 32000, 16384, True),
    "tinyllama-1.1b": _llama(22, 2048, 32, 4, 5632, 32000, 2048, False),
    "llama-3.2-1b": _llama(
        16, 2048, 32, 8, 8192, 128256, 131072, True, rope_theta=500000.0, rope_scaling=_LLAMA3_ROPE
    ),
    "moe-1b": _llama(
        12,
        1024,
        16,
        8,
        3072,
        49152,
        16384,
        False,
        model_type="qwen3_moe",
        head_dim=64,
        rope_theta=1e6,
        num_experts=32,
        num_experts_per_tok=4,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
    "mamba2-130m": {
        "model_type": "mamba2",
        "num_hidden_layers": 24,
        "hidden_size": 768,
        "num_heads": 24,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "vocab_size": 50288,
        "tie_word_embeddings": True,
    },
    "minilm": {
        "model_type": "bert",
        "num_hidden_layers": 6,
        "hidden_size": 384,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    },
}


class _Pool:
    """Panels of 16 rows of one width: float32 [POOL][16][n_in], and the same packed, once a dtype.

    Weights are normal with variance 1 / n_in, so that a product keeps the scale of what goes in."""

    def __init__(self, seed: int, n_in: int):
        self.seed, self.n_in = seed, n_in
        self._packed: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def rows(self) -> np.ndarray:
        """Drawn when they are first asked for, which for a shape is never."""
        # The generator whose stream numpy promises to keep.
        numbers = np.random.RandomState([self.seed, self.n_in])
        drawn = numbers.standard_normal((POOL, LANES, self.n_in)).astype(np.float32)
        return drawn * np.float32(self.n_in**-0.5)

    def packed(self, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """The panels' bytes, uint8 [POOL][panel bytes], and the squares of what rounding changed,
        [POOL]."""
        if dtype not in self._packed:
            panels = [pack(panel, dtype) for panel in self.rows]
            data = np.array([np.frombuffer(packed, np.uint8) for packed, _ in panels])
            self._packed[dtype] = (data, np.array([error for _, error in panels]))
        return self._packed[dtype]


def _matrix(name: str, shape: tuple[int, int], pool: _Pool, seed: int) -> Tensor:
    """Rows of the pool's panels, in an order that seed and name decide."""
    order = np.random.RandomState([seed, zlib.crc32(name.encode())]).randint(
        0, POOL, -(-shape[0] // LANES)
    )

    def rows(a: int, b: int) -> np.ndarray:
        first = a // LANES
        panels = pool.rows[order[first : -(-b // LANES)]]
        return panels.reshape(-1, shape[1])[a - first * LANES : b - first * LANES]

    def packed(dtype: str, a: int, b: int) -> tuple[bytes, float]:
        if b % LANES:
            return pack(rows(a, b), dtype)
        data, errors = pool.packed(dtype)
        chosen = order[a // LANES : b // LANES]
        return data[chosen].tobytes(), float(errors[chosen].sum())

    return Tensor(name, shape, lambda: rows, packed)


def _vector(name: str, size: int, seed: int) -> Tensor:
    """A norm's weight around 1, or a bias around 0."""
    centre = 0.0 if name.endswith(".bias") else 1.0
    numbers = np.random.RandomState([seed, zlib.crc32(name.encode())])
    values = (centre + 0.1 * numbers.standard_normal(size)).astype(np.float32)
    return Tensor(name, (size,), lambda: lambda a, b: values[a:b].copy())


def random_tensors(tensors: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Canonical tensors of these shapes; what is no weight, as the slopes of ALiBi, stays as it is.
    Errors: ExportError."""
    if not 0 <= seed < 1 << 32:
        raise ExportError(f"--seed {seed}: expected a whole number from 0 to 2^32 - 1")
    pools: dict[int, _Pool] = {}
    found = {}
    for name, tensor in tensors.items():
        if tensor.name == CONSTANT:
            found[name] = tensor
        elif len(tensor.shape) == 1:
            found[name] = _vector(name, tensor.shape[0], seed)
        else:
            n_in = tensor.shape[1]
            if n_in not in pools:
                pools[n_in] = _Pool(seed, n_in)
            found[name] = _matrix(name, tensor.shape, pools[n_in], seed)
    return found


def open_random(shape: str, seed: int) -> Model:
    """A model of random weights in a known shape, or in a config.json's. Errors:
    ExportError."""
    is_file = os.path.isfile(shape)
    if not is_file and shape not in SHAPES:
        raise ExportError(
            f"--random {shape}: no such shape; there are {', '.join(SHAPES)}, and any config.json"
        )
    config = read_json(shape) if is_file else SHAPES[shape]
    family, knobs, tensors, remarks = canonical(config, None)
    remarks.append("the weights are random: made for --bench and --kv")
    return Model(
        f"random weights in the shape of {shape}, seed {seed}",
        family,
        knobs,
        random_tensors(tensors, seed),
        [shape] if is_file else [],
        remarks=remarks,
    )
