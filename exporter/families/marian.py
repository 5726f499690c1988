"""Marian."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..tensor import ExportError
from .bart import SINUSOID, bart_like


def marian(c: Config) -> Knobs:
    """Marian, OPUS-MT: sinusoids; each side may have a vocabulary of its own."""
    k = bart_like(c, 58101, SINUSOID, post_norm=True, embed_norm=False)
    n = k.vocab_size if c.get("decoder_vocab_size") is None else c.int("decoder_vocab_size")
    if (k.parts[0].shared or not k.source_layers) and n != k.vocab_size:
        raise ExportError(
            f"{c.where}: decoder_vocab_size is {n} and vocab_size {k.vocab_size}, though the "
            "embeddings are shared"
        )
    k.source_vocab, k.vocab_size = k.vocab_size * (k.source_layers > 0), n
    k.parts[0].vocab_size = n
    return k
