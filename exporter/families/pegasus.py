"""Pegasus."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .bart import SINUSOID, bart_like


def pegasus(c: Config) -> Knobs:
    """Pegasus: sinusoids."""
    return bart_like(c, 50265, SINUSOID, post_norm=False, embed_norm=False)
