"""A precompiled charsmap, as SentencePiece models and tokenizer.json have one: a trie of the texts
that are replaced, and their replacements. Only unicode_tables.py and the tests make one."""

from __future__ import annotations

import struct


def charsmap(pairs: dict[str, str]) -> bytes:
    """The map that replaces each key by its value. The trie is a double array (Darts-clone): a node
    at `base` has its child by byte b at base ^ b."""
    texts = b"".join(value.encode() + b"\0" for value in pairs.values())
    root: dict = {}
    at = 0
    for key, value in pairs.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node["value"] = at
        at += len(value.encode()) + 1
    units = _units(root)
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def _units(root: dict) -> list[int]:
    """Every node's children lie in a block of 256 units of their own. A unit: 0-7 the byte that
    leads to it, 8 whether a key ends there, 9 whether the offset counts 256-fold, 10-30 offset; or
    bit 31 and the value of a key, at the node's own block."""
    units = [0] * 256
    nodes = [(0, root)]
    while nodes:
        place, node = nodes.pop()
        base = len(units)
        units += [1 << 31 | 0xFF] * 256  # a label that no byte has
        offset = place ^ base
        small = offset < 1 << 21
        units[place] |= (offset if small else offset >> 8) << 10 | (not small) << 9
        if "value" in node:
            units[place] |= 1 << 8
            units[base] = 1 << 31 | node["value"]
        for byte, child in node.items():
            if byte != "value":
                units[base ^ byte] = byte
                nodes.append((base ^ byte, child))
    return units
