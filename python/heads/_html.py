"""What notebooks show of results: small pictures and tables, which need nothing but a browser."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable
from html import escape

import numpy as np

from ._arguments import Floats

SIDE = 48  # most points of a picture's side; of more tokens the largest weights are shown


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(grey: np.ndarray) -> bytes:
    """grey [height][width], uint8 (PNG, third edition, W3C 2025)."""
    height, width = grey.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    parts = _part(b"IHDR", header) + _part(b"IDAT", zlib.compress(rows)) + _part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _smaller(weights: Floats) -> Floats:
    """The same map with at most SIDE rows and columns, by the maximum of what falls together."""
    for axis in (0, 1):
        n = weights.shape[axis]
        if n > SIDE:
            begins = np.arange(SIDE) * n // SIDE
            weights = np.maximum.reduceat(weights, begins, axis=axis)
    return weights


def _picture(weights: Floats, title: str) -> str:
    grey = 255 - np.rint(255 * np.sqrt(np.clip(_smaller(weights), 0, 1))).astype(np.uint8)
    data = b64encode(_png(grey)).decode()
    style = "width:48px;height:48px;image-rendering:pixelated;border:1px solid #888"
    return f'<img style="{style}" title="{title}" alt="{title}" src="data:image/png;base64,{data}">'


def maps(name: str, weights: Floats) -> str:
    """A table of [layers][heads][tokens][tokens]: a row for each layer, a picture for each head."""
    heads = "".join(f"<th>{head}</th>" for head in range(weights.shape[1]))
    rows = "".join(
        f"<tr><th>{layer}</th>"
        + "".join(
            f"<td>{_picture(map, f'layer {layer}, head {head}')}</td>"
            for head, map in enumerate(of_layer)
        )
        + "</tr>"
        for layer, of_layer in enumerate(weights)
    )
    return (
        f"<p>{escape(name)}: a row for each layer, a column for each head. A line of a picture is a "
        "token, a point of it a token that it looks at: white takes nothing, black all.</p>"
        f"<table><tr><th></th>{heads}</tr>{rows}</table>"
    )


def words(texts: Iterable[str]) -> str:
    """Tokens by their numbers."""
    style = 'style="white-space:pre;margin-right:1em"'
    cells = (
        f"<small>{i}</small> <code {style}>{escape(text)}</code>" for i, text in enumerate(texts)
    )
    return "<p>" + " ".join(cells) + "</p>"


def table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return "<table>" + "".join(cells) + "</table>"


def in_bytes(n: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.3g} GB"
