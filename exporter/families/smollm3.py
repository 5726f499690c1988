"""SmolLM 3. SmolLM 1 and 2 are Llamas."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..rope import Shape, layer_kinds, rope_set, windows
from ..tensor import ExportError
from .common import biases, llama_block


def smollm3(c: Config) -> Knobs:
    """SmolLM 3: every fourth layer has no rope."""
    k = llama_block(
        c, num_key_value_heads=4, max_position_embeddings=32768, tie_word_embeddings=True
    )
    k.biased = biases(c)
    rope = rope_set(c, Shape(k.head_dim, k.context, theta=2e6))
    interval = c.int("no_rope_layer_interval", 4)
    c.ignore("max_window_layers")  # Qwen's
    rotates = c.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(k.n_layers)]
    if not isinstance(rotates, list) or len(rotates) != k.n_layers or not set(rotates) <= {0, 1}:
        raise ExportError(
            f"{c.where}: no_rope_layers has not a 0 or a 1 for each of the {k.n_layers} layers"
        )
    k.rotate(*[rope if one else None for one in rotates])
    slides = c.flag("use_sliding_window", False) and c.get("sliding_window") is not None
    k.window = windows(
        c,
        layer_kinds(c, k.n_layers, lambda layer: slides and not rotates[layer]),
        c.get("sliding_window"),
    )
    return k
