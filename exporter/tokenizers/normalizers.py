"""The normalizer of a tokenizer.json -> steps of docs/format.md, and what it makes of an added
token."""

from __future__ import annotations

import base64
import json
import re
import struct
import unicodedata
from dataclasses import dataclass, field

from ..tensor import ExportError

SPACE_MARK = "\u2581"
STEPS = {
    "nfc": 1,
    "prepend mark": 2,
    "spaces to mark": 3,
    "prepend space": 4,
    "clean": 5,
    "pad ideographs": 6,
    "strip accents": 7,
    "lower case": 8,
    "nfd": 9,
    "nfkc": 10,
    "nfkd": 11,
    "no marks": 12,
    "charsmap": 13,
    "longest charsmap": 14,
    "strip left": 15,
    "strip right": 16,
    "replace": 17,
    "nmt": 18,
    "squeeze": 19,
}
# Those that have no settings.
PLAIN = {
    "NFC": "nfc",
    "NFD": "nfd",
    "NFKC": "nfkc",
    "NFKD": "nfkd",
    "Lowercase": "lower case",
    "StripAccents": "no marks",
    "Nmt": "nmt",
}


@dataclass
class Normalizer:
    """`replacements`: of each step "replace" the text that goes, the one that comes, and whether
    what follows and equals the last character goes too."""

    steps: list[int] = field(default_factory=list)
    replacements: list[tuple[str, str, bool]] = field(default_factory=list)
    charsmap: bytes = b""

    def add(self, name: str) -> None:
        self.steps.append(STEPS[name])

    def replace(self, what: str, by: str, repeats: bool = False) -> None:
        self.add("replace")
        self.replacements.append((what, by, repeats))

    def map(self, charsmap: bytes, longest: bool = False) -> None:
        if self.charsmap and self.charsmap != charsmap:
            raise ExportError("normalizer: it has two different charsmaps")
        if len(charsmap) < 8 or struct.unpack("<I", charsmap[:4])[0] > len(charsmap) - 4:
            raise ExportError("normalizer: its precompiled_charsmap is truncated")
        self.charsmap = charsmap
        self.add("longest charsmap" if longest else "charsmap")


def refuse(where: str, value: object) -> ExportError:
    text = json.dumps(value, ensure_ascii=True)
    text = text if len(text) < 200 else text[:200] + ".."
    return ExportError(f"{where} is {text}, which this exporter has no rule for")


def normalizer(component: dict | None) -> Normalizer:
    """The steps of a tokenizer.json's normalizer. Errors: ExportError."""
    out = Normalizer()
    for part in _opened(component):
        kind = part.get("type")
        if part == {"type": kind} and kind in PLAIN:
            out.add(PLAIN[kind])
        elif part == {"type": "Prepend", "prepend": SPACE_MARK}:
            out.add("prepend mark")
        elif part == {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}:
            out.add("spaces to mark")
        elif kind == "Replace" and set(part) == {"type", "pattern", "content"}:
            _replace(out, part)
        elif kind == "BertNormalizer":
            out.steps += bert_normalizer(part)
        elif kind == "Precompiled" and set(part) == {"type", "precompiled_charsmap"}:
            if part["precompiled_charsmap"]:
                out.map(base64.b64decode(part["precompiled_charsmap"]))
        elif kind == "Strip" and set(part) == {"type", "strip_left", "strip_right"}:
            for side in ("left", "right"):
                if part[f"strip_{side}"]:
                    out.add(f"strip {side}")
        else:
            raise refuse("normalizer", part)
    return out


def _opened(component: dict | None) -> list[dict]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for step in component.get("normalizers", []) for part in _opened(step)]
    return [component]


def _replace(out: Normalizer, part: dict) -> None:
    """A text is replaced, or a regular expression of characters that stand for themselves, whose
    last may be repeated: X+, X{2,}."""
    pattern = part["pattern"]
    what, repeats = pattern.get("String"), False
    if "Regex" in pattern:
        one, last = r"[^\\.^$*+?(){}\[\]|]|\\[nrt]", r"(?:(\+)|\{([1-9]),\})?"
        found = re.fullmatch(f"((?:{one})*?)({one}){last}", pattern["Regex"])
        if not found:
            raise refuse("normalizer", part)
        what, repeats = found[1] + found[2] * int(found[4] or 1), bool(found[3] or found[4])
        what = what.replace(r"\n", "\n").replace(r"\r", "\r").replace(r"\t", "\t")
    if not what:
        raise refuse("normalizer", part)
    out.replace(what, part["content"], repeats)


def bert_normalizer(part: dict) -> list[int]:
    """The steps of BERT's normalizer; accents go with capitals unless it says otherwise."""
    part = {"strip_accents": None, **part}
    keys = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    for key, value in part.items():
        allowed = (None, True, False) if key == "strip_accents" else (True, False)
        if key != "type" and (key not in keys or value not in allowed):
            raise refuse(f"normalizer.{key}", value)
    if part["strip_accents"] is None:
        part["strip_accents"] = part["lowercase"]
    steps = ("clean", "pad ideographs", "strip accents", "lower case")
    return [STEPS[step] for key, step in zip(keys, steps) if part[key]]


# ---- an added token ------------------------------------------------------------------------------


def normalize_added(content: str, z: Normalizer) -> str:
    """An added token's content as it looks in normalized text."""
    replacements = iter(z.replacements)
    names = {number: name for name, number in STEPS.items()}
    for name in (names[step] for step in z.steps):
        if name == "nfc" and unicodedata.normalize("NFC", content) != content:
            raise ExportError(
                f"added_tokens: {content!r} is looked for in normalized text, but is not in NFC "
                "itself"
            )
        plain = content.replace(SPACE_MARK, "")
        if STEPS[name] >= STEPS["clean"] and not (plain.isascii() and plain.isprintable()):
            raise ExportError(
                f"added_tokens: {content!r} is looked for in normalized text, which this exporter "
                "has no rule for unless it is ASCII"
            )
        if name == "lower case":
            content = content.lower()
        elif name == "spaces to mark":
            content = content.replace(" ", SPACE_MARK)
        elif name == "prepend mark":
            content = SPACE_MARK + content
        elif name == "nmt":
            content = content.replace(SPACE_MARK, " ")
        elif name == "charsmap":
            content = "".join(_mapped(c, z.charsmap) for c in content)
        elif name in ("strip left", "strip right"):
            content = content.lstrip() if name == "strip left" else content.rstrip()
        elif name == "replace":
            what, by, repeats = next(replacements)
            content = re.sub(
                re.escape(what) + f"(?:{re.escape(what[-1])})*" * repeats, lambda _: by, content
            )
    return content


def _mapped(c: str, charsmap: bytes) -> str:
    """What a charsmap makes of a character (charsmap.py says how one is built)."""
    (size,) = struct.unpack("<I", charsmap[:4])
    units = memoryview(charsmap)[4 : 4 + size].cast("I")
    children = lambda unit: (unit >> 10) << (unit >> 9 & 1) * 8  # noqa: E731
    node = children(units[0])
    for byte in c.encode():
        node ^= byte
        if node >= len(units) or units[node] & (1 << 31 | 0xFF) != byte:
            return c
        unit = units[node]
        node ^= children(unit)
        if unit >> 8 & 1:
            begin = 4 + size + (units[node] & ~(1 << 31))
            return charsmap[begin : charsmap.index(b"\0", begin)].decode()
    return c
