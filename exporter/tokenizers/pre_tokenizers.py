"""The pre_tokenizer of a tokenizer.json -> the steps that cut a text, as text/scanners.c numbers
them."""

from __future__ import annotations

from .components import expect, opened
from .normalizers import SPACE_MARK
from .normalizers import refuse as _refuse

# The steps of pre-tokenizers, as text/scanners.c numbers them.
METASPACE = {"never": 1, "first": 2, "always": 3}
GPT2, DIGIT, DIGITS, PUNCTUATION, BYTE_DIGIT, BYTE_DIGITS, THREE_DIGITS, PREFIX_SPACE = (
    4,
    11,
    12,
    14,
    20,
    21,
    22,
    23,
)
BERT, VISIBLE, WORDS, PUNCTUATION_MARK, MARKED = range(28, 33)
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
)
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_POWERS = "|".join(rf"\s{{{1 << k}}}(?!\S)" for k in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"
# Cased letters that DeepSeek-LLM knows. By number, because normalization would make other
# characters of some.
_DEEPSEEK_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-"
    "\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-"
    "\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-"
    "\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2"
    "\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
# Patterns of Split that match somewhere in every text, whatever it is: what does not match is
# empty.
COVERING = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2,
    _WORDS + r"\p{N}{1,3}" + _REST: 5,
    _WORDS + r"\p{N}" + _REST: 6,
    _WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+")
    + r"\p{N}"
    + _REST.replace(r"\s\p{L}", r"\s\p{L}\p{M}"): 7,
    _CASED % (_CONTRACTION, _CONTRACTION)
    + r"\p{N}{1,3}"
    + _REST.replace(r"[\r\n]*", r"[\r\n/]*"): 8,
    _CASED % ("", "") + r"\p{N}" + _REST.replace(r"[\r\n]*", r"[\r\n/]*"): 9,
    _WORDS + r"\p{N}{1}" + _REST.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"): 33,
    _WORDS + r"\p{N}{1,3}" + _REST.replace(r"\s+(?!\S)|\s+", _POWERS): 34,
    _WORDS.replace(r"\p{L}+|", r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|")
    + r"\p{N}"
    + _REST.replace(r"[\r\n]*", r"[\r\n/]?").replace(r"\s*[\r\n]+", r"\s*[\r\n]"): 35,
    _CASED % (_CONTRACTION, _CONTRACTION) + r"\p{N}" + _REST.replace(r"[\r\n]*", r"[\r\n/]*"): 36,
    r"[\p{Han}]+|"
    + (_CASED % (_CONTRACTION, _CONTRACTION)).replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
    + r"\p{N}{1,3}"
    + _REST: 48,
}
PARTIAL = {
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": 10,
    r"\p{N}{1,3}": 13,
    r"[\r\n]": 15,
    r"\s?\p{L}+": 16,
    r"\s?\p{P}+": 17,
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+": 18,
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+": 19,
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+": 24,
    r"\s?[" + _DEEPSEEK_LETTERS + "]+": 25,
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+": 26,
    r"\s+$": 27,
    "[\uac00-\ud7a3\u3131-\u318e]+": 37,
    "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+": 38,
    "[\u3105-\u312f]+": 39,
    r"[\p{P}$+<=>^~|]+": 40,
    r"\p{N}+": 41,
    "<sentinel:[0-9]+>": 42,
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z": 43,
    r"([\t\n]|    |  )": 44,
    r"\d{1,3}(?=(?:\d{3})*\b)": 45,
    r"(?=(\d{3})+(?!\d))": 47,
}
# Trinity's patterns that only mean something together: threes of digits that end with a run of any
# length, then runs of characters of one script. The steps that do the same.
TRINITY = (
    r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
    r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
    r"\A\p{Nd}{3}|\G\p{Nd}{3}",
    r"(?:[\u4E00-\u9FFF\u3040-\u309F\u30A0-\u30FF\u3400-\u4DBF\uf900-\uFAFF\uFF65-\uFF9F"
    r"\u2F00-\u2FDF]+|[\u0E00-\u0E7F]+|[\u0E80-\u0EFF]+|[\u1780-\u17FF]+|"
    r"[\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF]+|[\uAC00-\uD7AF\u1100-\u11FF]+)",
)
TRINITY_STEPS = (46, 49, 50, 51, 52, 53, 54)


def pre_tokenizer(component: dict | None) -> tuple[bool, list[int]]:
    """Whether the model works on bytes, and the steps. -1 stands for a split at spaces, which must
    not be able to happen."""
    parts = opened(component, "pretokenizers")
    together = parts[: len(TRINITY)] == [isolated(regex) for regex in TRINITY]
    steps = list(TRINITY_STEPS * together)
    byte_level = False
    for part in parts[len(TRINITY) * together :]:
        kind = part.get("type")
        if kind == "ByteLevel" and not byte_level:
            # After another step it would be put before each piece.
            prefix = (False,) if steps else (False, True)
            part = {"add_prefix_space": True, **part}
            expect(
                "pre_tokenizer.ByteLevel",
                part,
                {"add_prefix_space": prefix, "use_regex": (True, False)},
                ("type", "trim_offsets"),
            )
            byte_level = True
            steps += [PREFIX_SPACE] * part["add_prefix_space"]
            steps += [GPT2] if part.get("use_regex", True) else []
        elif kind == "Metaspace":
            steps += metaspace(part, first=not steps)
        else:
            steps.append(_split(part, byte_level))
    if byte_level and (-1 in steps or set(steps) & set(METASPACE.values())):
        raise _refuse("pre_tokenizer", component)
    if -1 in steps and len(steps) > 1:
        raise _refuse("pre_tokenizer", component)
    return byte_level, steps


def isolated(regex: str) -> dict:
    """The part of a pre_tokenizer whose pieces are the matches, and what is between."""
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def metaspace(part: dict, first: bool) -> list[int]:
    """Spaces become marks, one goes in front, and each mark begins a piece."""
    part = {"prepend_scheme": "always", "split": True, "add_prefix_space": True, **part}
    schemes = ("always", "never", "first") if first else ("always", "never")
    expect(
        "pre_tokenizer.Metaspace",
        part,
        {
            "replacement": (SPACE_MARK,),
            "prepend_scheme": schemes,
            "split": (True, False),
            "add_prefix_space": (True, part["prepend_scheme"] != "never"),
        },
        ("type", "str_rep"),
    )
    return [METASPACE[part["prepend_scheme"]]] + [MARKED] * part["split"]


def _split(part: dict, after_bytes: bool) -> int:
    """The number of a step that cuts. After ByteLevel, steps see bytes in place of characters."""
    kind = part.get("type")
    if kind == "Digits" and set(part) == {"type", "individual_digits"}:
        individual = part["individual_digits"]
        return (
            (BYTE_DIGIT if individual else BYTE_DIGITS)
            if after_bytes
            else DIGIT
            if individual
            else DIGITS
        )
    if kind == "Punctuation" and not after_bytes:
        behavior = part.get("behavior", "Isolated")
        if set(part) <= {"type", "behavior"} and behavior in ("Contiguous", "Isolated"):
            return PUNCTUATION if behavior == "Contiguous" else PUNCTUATION_MARK
    if part == {"type": kind} and kind in ("WhitespaceSplit", "Whitespace") and not after_bytes:
        return VISIBLE if kind == "WhitespaceSplit" else WORDS
    if kind == "Split" and set(part) == {"type", "pattern", "behavior", "invert"}:
        pattern, how = part["pattern"], (part["behavior"], part["invert"])
        if pattern == {"String": " "} and how == ("MergedWithPrevious", False) and not after_bytes:
            return -1
        regex = str(pattern.get("Regex"))
        for character, escape in (("\r", r"\r"), ("\n", r"\n"), ("\t", r"\t")):
            regex = regex.replace(character, escape)
        if after_bytes:
            if regex == "[0-9][0-9][0-9]" and how == ("Isolated", False):
                return THREE_DIGITS
        elif regex in COVERING and how in (("Isolated", False), ("Removed", True)):
            return COVERING[regex]
        elif regex in PARTIAL and how == ("Isolated", False):
            return PARTIAL[regex]
    raise _refuse("pre_tokenizer", part)
