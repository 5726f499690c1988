"""The copy task: what one layer can do with 1 to 16 heads at width 64.

A row is 24 random symbols of 4 bits, a separator, and 12 symbols to be predicted, in which each bit
is copied from a place of its own:

    one place    y[i] = x[i], all four bits from the same place
    four places  bit b of y[i] is bit b of x[i + OFFSETS[b]]

Rope turns queries and keys, not values, so a head that looks at several places brings back their
mean, in which nobody can tell whose bit is whose. Copying from four places at once wants four
heads, one from a single place needs only one: that is where the number of heads can matter, and
where it should not.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from research.lab.variants import THETA
from research.learning import IGNORED, start_small

WIDTH, D_FF, BITS = 64, 128, 4
SEPARATOR = 1 << BITS
SOURCE, COPIED = 24, 12
OFFSETS = {"one place": (0, 0, 0, 0), "four places": (0, 3, 7, 12)}
BATCH = 32
HELD_OUT_SEED, HELD_OUT = 1_000_000, 64


def rows(task: str, seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """n rows, and their labels."""
    x = np.random.default_rng(seed).integers(0, SEPARATOR, (n, SOURCE))
    y = sum(x[:, o : o + COPIED] & (1 << bit) for bit, o in enumerate(OFFSETS[task]))
    whole = np.concatenate([x, np.full((n, 1), SEPARATOR), y], axis=1)
    labels = whole.copy()
    labels[:, : SOURCE + 1] = IGNORED
    return whole, labels


def new_model(n_heads: int, seed: int):
    """One layer of Llama's; its parameters do not depend on the number of heads."""
    torch.manual_seed(seed)
    return start_small(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=SEPARATOR + 1,
                hidden_size=WIDTH,
                intermediate_size=D_FF,
                num_hidden_layers=1,
                num_attention_heads=n_heads,
                num_key_value_heads=n_heads,
                max_position_embeddings=64,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
                initializer_range=WIDTH**-0.5,
                bos_token_id=None,
                eos_token_id=None,
                rope_parameters={"rope_type": "default", "rope_theta": THETA},
            )
        )
    )


def loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Nats a copied symbol, from the logits [row][token][symbol]."""
    at, wanted = logits[:, :-1].astype(np.float64), labels[:, 1:]
    at = at - at.max(-1, keepdims=True)
    nats = (
        np.log(np.exp(at).sum(-1))
        - np.take_along_axis(at, np.maximum(wanted, 0)[..., None], -1)[..., 0]
    )
    return nats[wanted != IGNORED].mean()
