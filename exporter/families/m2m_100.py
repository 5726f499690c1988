"""M2M-100 and NLLB."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from .bart import M2M_SINUSOID, bart_like


def m2m_100(c: Config) -> Knobs:
    """M2M-100 and NLLB: sinusoids that begin after the padding token's place."""
    return bart_like(
        c, 128112, M2M_SINUSOID, post_norm=False, embed_norm=False, act="relu", scale=True
    )
