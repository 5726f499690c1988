"""Makes text/unicode_tables.h from the answers of the `tokenizers` library, so that the engine sees
characters as it does.

    python3 exporter/tokenizers/unicode_tables.py           writes text/unicode_tables.h
    python3 exporter/tokenizers/unicode_tables.py --check   compares it with what it would write;
                                                            exit 1 if they differ

The library uses several versions of Unicode at once (its regular expressions, `Digits`,
`Punctuation` and NFC each have their own), so every code point is put to it. Python's unicodedata
only proposes decompositions and combining classes, which never change once a character has them;
the library says which of them it knows, and is asked again for every character at the end.
"""

from __future__ import annotations

import sys
import unicodedata
from itertools import accumulate
from pathlib import Path

import tokenizers
from charsmap import charsmap
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

OUTPUT = Path(__file__).resolve().parents[2] / "text" / "unicode_tables.h"
POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
CHUNK = 8192
# The flags of a class, in the order of their bits. UPPER is title case too; a caseless letter is a
# modifier or another one.
CATEGORIES = {
    "UPPER": r"[\p{Lu}\p{Lt}]",
    "LOWER": r"\p{Ll}",
    "CASELESS": r"[\p{Lm}\p{Lo}]",
    "MARK": r"\p{M}",
    "NUMBER": r"\p{N}",
    "PUNCT": r"\p{P}",
    "SYMBOL": r"\p{S}",
    "SPACE": r"\s",
}
FLAGS = [*CATEGORIES, "DIGITS", "PUNCTUATION", "WORD", "DECIMAL", "HAN"]
HANGUL = range(0xAC00, 0xAC00 + 11172)


def chunks() -> list[list[int]]:
    """All code points but NUL and the surrogates, some thousands at a time."""
    return [POINTS[i : i + CHUNK] for i in range(0, len(POINTS), CHUNK)]


def matching(pattern: str) -> set[int]:
    """The code points that a one-character pattern matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {
        ord(piece)
        for chunk in chunks()
        for piece, _ in split.pre_tokenize_str("".join(map(chr, chunk)))
    }


def isolated(pre_tokenizer) -> set[int]:
    """The code points that a pre-tokenizer cuts out from between two letters."""
    found = set()
    for chunk in chunks():
        text = "a" + "".join(chr(c) + "a" for c in chunk)
        pieces = pre_tokenizer.pre_tokenize_str(text)
        found |= {
            ord(piece) for piece, (begin, end) in pieces if end - begin == 1 and begin % 2 == 1
        }
    return found


def word_characters() -> set[int]:
    """The code points beside which an added token with `single_word` does not count: Rust's \\w."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("<|>", single_word=True, normalized=False)])
    found = set()
    for chunk in chunks():
        encoding = tokenizer.encode("".join(f" {chr(c)}<|>" for c in chunk))
        accepted = {begin // 5 for begin, _ in encoding.offsets}
        found |= {c for i, c in enumerate(chunk) if i not in accepted}
    return found


def stripped() -> set[int]:
    """The code points that an added token with `lstrip` swallows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("<|>", lstrip=True, normalized=False)])
    found = set()
    for chunk in chunks():
        encoding = tokenizer.encode("".join(f"a{chr(c)}<|>" for c in chunk))
        found |= {c for c, (begin, end) in zip(chunk, encoding.offsets) if end - begin == 4}
    return found


def classes() -> list[int]:
    """The flags of every code point, index 0..0x10ffff."""
    sets = [matching(pattern) for pattern in CATEGORIES.values()]
    assert stripped() == sets[FLAGS.index("SPACE")], "lstrip's white space is not the patterns'"
    sets += [
        isolated(pre_tokenizers.Digits(individual_digits=True)),
        isolated(pre_tokenizers.Punctuation("isolated")),
        word_characters(),
        matching(r"\p{Nd}"),
        matching(r"\p{Han}"),
    ]
    flags = [0] * 0x110000
    for bit, members in enumerate(sets):
        for c in members:
            flags[c] |= 1 << bit
    return flags


NFD, NFC = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
NFKD = normalizers.NFKD().normalize_str


def combining_classes() -> list[int]:
    """The combining class of every code point as far as the library knows it: it moves a mark of
    class c > 1 after U+0334 (class 1), and U+0345 (class 240) after one of class 1."""
    ccc = [0] * 0x110000
    for c in POINTS:
        k = unicodedata.combining(chr(c))
        low, high = chr(c), "\u0334"
        if k == 1:
            low, high = "\u0345", chr(c)
        if k and NFD("a" + low + high) == "a" + high + low:
            ccc[c] = k
    return ccc


def decompositions() -> list[tuple[int, int, int, bool]]:
    """(composed, first, second or 0, whether first + second compose), by composed, without the
    Hangul syllables, which the engine computes."""
    rows = []
    for c in POINTS:
        if c in HANGUL or NFD(chr(c)) == chr(c):
            continue
        parts = [int(part, 16) for part in unicodedata.decomposition(chr(c)).split()] + [0]
        rows.append(
            (c, parts[0], parts[1], parts[1] != 0 and NFC(chr(parts[0]) + chr(parts[1])) == chr(c))
        )
    return rows


def check(ccc: list[int], rows: list[tuple[int, int, int, bool]]) -> None:
    """Rebuilds the library's NFD of every code point from the table, and looks for compositions
    that it lacks."""
    table = {c: (a, b) for c, a, b, _ in rows}

    def decompose(c: int) -> str:
        a, b = table.get(c, (c, 0))
        return (decompose(a) if a != c else chr(c)) + (decompose(b) if b else "")

    for c in POINTS:
        if c not in HANGUL:
            assert decompose(c) == NFD(chr(c)), (
                f"U+{c:04X}: the table's decomposition is not the library's"
            )
    composed = {c for c, *_, composes in rows if composes}
    for c in POINTS:
        if c not in HANGUL and c not in composed:
            assert NFC(NFD(chr(c))) != chr(c) or NFD(chr(c)) == chr(c), (
                f"U+{c:04X} composes, but not from two characters"
            )
    by_class = {k: chr(c) for c, k in enumerate(ccc) if k}
    for first, x in by_class.items():
        for second, y in by_class.items():
            ordered = x + y if first <= second else y + x
            assert NFD("a" + x + y) == "a" + ordered, (
                f"combining classes {first} and {second} are not ordered as thought"
            )


def ranges(values: list[int]) -> list[tuple[int, int]]:
    """(first code point, value) of every run of equal values."""
    return [(c, v) for c, v in enumerate(values) if c == 0 or values[c - 1] != v]


def array(declaration: str, items: list[str]) -> str:
    """A C array, as many items a line as fit."""
    lines, line = [f"static const {declaration} = {{"], "   "
    for item in items:
        if len(line) + len(item) + 2 > 125:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line, "};", ""])


def bert(**on: bool):
    """One of the four things that BertNormalizer does, as a function of a text."""
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**off, **on}).normalize_str


def bert_sets(flags: list[int]) -> list[set[int]]:
    """The code points that BertNormalizer takes out as control characters and as accents, and
    those that it puts spaces around."""
    clean, accents, chinese = (
        bert(clean_text=True),
        bert(strip_accents=True),
        bert(handle_chinese_chars=True),
    )
    space = 1 << FLAGS.index("SPACE")
    cleaned = {c: clean(chr(c)) for c in POINTS}
    for c in POINTS:
        assert (cleaned[c] == " ") == bool(flags[c] & space) or cleaned[c] == "", hex(c)
        assert cleaned[c] in ("", " ", chr(c)), hex(c)
    marks = {c for c in POINTS if NFD(chr(c)) == chr(c) and accents(chr(c)) == ""}
    padded = {c for c in POINTS if chinese(chr(c)) != chr(c)}
    assert all(chinese(chr(c)) == f" {chr(c)} " for c in padded)
    return [{c for c in POINTS if cleaned[c] == ""}, marks, padded]


def lower_runs() -> list[tuple[int, int, int, int]]:
    """(first, last, step, distance): the characters first, first + step, .. last become those at
    that distance in lower case. U+0130, which becomes two, is not among them."""
    lower = bert(lowercase=True)
    assert [c for c in POINTS if len(lower(chr(c))) != 1] == [0x130], "one becomes two"
    pairs = [(c, ord(lower(chr(c))) - c) for c in POINTS if c != 0x130 and lower(chr(c)) != chr(c)]
    runs: list[tuple[int, int, int, int]] = []
    for c, distance in pairs:
        first, last, step, before = runs[-1] if runs else (0, -9, 0, 0)
        if distance == before and c - last in (1, 2) and (first == last or c - last == step):
            runs[-1] = (first, c, c - last, distance)
        else:
            runs.append((c, c, 1, distance))
    return runs


def compatibility() -> tuple[list[tuple[int, int, int]], list[tuple[int, str]]]:
    """What form KD makes of a character where that is not form D: runs (first, last, target of the
    first) of those that become one character each, in step; and (character, text) of others."""
    runs: list[tuple[int, int, int]] = []
    rows = []
    for c in POINTS:
        text = NFKD(chr(c))
        if text == NFD(chr(c)):
            continue
        if len(text) > 1:
            rows.append((c, text))
        elif runs and runs[-1][1] == c - 1 and runs[-1][2] + c - runs[-1][0] == ord(text):
            runs[-1] = (runs[-1][0], c, runs[-1][2])
        else:
            runs.append((c, c, ord(text)))
    return runs, rows


def graphemes() -> list[set[int]]:
    """The code points that join the character before them, those that join what comes after, and
    those that nothing joins: how Precompiled finds the graphemes that it replaces as a whole, which
    have 5 bytes at most. Its map here has an "a" and two graphemes of several characters."""
    a, with_mark, marks = "\ue000", "\ue001", "\ue002"
    keys = {"a": a, "e\u0301": with_mark, "\u0302\u0303": marks}
    see = normalizers.Precompiled(charsmap(keys)).normalize_str
    joins = {c for c in POINTS if see("a" + chr(c)) == a}
    before = {c for c in POINTS if c not in joins and with_mark not in see(chr(c) + "e\u0301")}
    control = {c for c in POINTS if marks in see(chr(c) + "\u0302\u0303")}
    return [joins, before, control]


def stripped_accents() -> set[int]:
    """The code points that StripAccents takes out."""
    strip = normalizers.StripAccents().normalize_str
    return {c for c in POINTS if strip(chr(c)) == ""}


def offsets(lengths: list[int]) -> list[int]:
    """Where each of several lists begins that follow each other, and where the last one ends."""
    return list(accumulate(lengths, initial=0))


def bounds(members: set[int]) -> list[str]:
    """The first and the last of every run of code points, as C."""
    marks = ranges([int(c in members) for c in range(0x110000)]) + [(0x110000, 0)]
    return [f"{{0x{a:x}, 0x{b - 1:x}}}" for (a, inside), (b, _) in zip(marks, marks[1:]) if inside]


def header() -> str:
    """The text of unicode_tables.h."""
    ccc, rows = combining_classes(), decompositions()
    check(ccc, rows)
    flags = classes()
    kinds = sorted(set(flags))
    assert len(FLAGS) <= 16 and len(kinds) <= 1 << 11, "a kind and a code point share 32 bits"
    marks = {c for c in POINTS if flags[c] & 1 << FLAGS.index("MARK")}
    joins, before, control = graphemes()
    runs, long_rows = compatibility()
    begins = offsets([len(text) for _, text in long_rows])
    compositions = sorted((a, b, i) for i, (_, a, b, composes) in enumerate(rows) if composes)
    return "\n".join(
        [
            f"// Made by exporter/tokenizers/unicode_tables.py from tokenizers {tokenizers.__version__}; do not "
            "edit.",
            "#ifndef UNICODE_TABLES_H",
            "#define UNICODE_TABLES_H",
            "",
            "#include <stdint.h>",
            "",
            "// The first code point of every run of characters of one class, shifted left by 11, and "
            "where the class stands in FLAGS.",
            array(
                "uint32_t CLASSES[]", [f"0x{c << 11 | kinds.index(v):x}" for c, v in ranges(flags)]
            ),
            "// The classes that there are (unicode.h).",
            array("uint16_t FLAGS[]", [f"0x{v:x}" for v in kinds]),
            "// The first code point of every run of one combining class, shifted left by 8, and the "
            "combining class.",
            array("uint32_t COMBINING[]", [f"0x{c << 8 | v:x}" for c, v in ranges(ccc)]),
            "// A character and the one or two that it decomposes into, by character.",
            array(
                "uint32_t DECOMPOSITIONS[][3]",
                [f"{{0x{c:x}, 0x{a:x}, 0x{b:x}}}" for c, a, b, _ in rows],
            ),
            "// The rows of DECOMPOSITIONS that also compose, by the two parts.",
            array("uint16_t COMPOSITIONS[]", [str(i) for *_, i in compositions]),
            "// What BertNormalizer takes out as control characters, takes out as accents, and puts "
            "spaces around: runs.",
            *(
                array(f"uint32_t {name}[][2]", bounds(members))
                for name, members in zip(("CONTROLS", "ACCENTS", "IDEOGRAPHS"), bert_sets(flags))
            ),
            "// Runs of characters with a lower case: the first, the last, the step from one to the "
            "next, the distance.",
            array(
                "int32_t LOWER_CASE[][4]",
                [f"{{0x{a:x}, 0x{b:x}, {step}, {d}}}" for a, b, step, d in lower_runs()],
            ),
            "// Runs of characters that form KD makes one other character of: the first, the last, what"
            " the first becomes.",
            array(
                "uint32_t COMPATIBLE[][3]", [f"{{0x{a:x}, 0x{b:x}, 0x{to:x}}}" for a, b, to in runs]
            ),
            "// Characters that form KD makes several of, and where these begin in COMPATIBLE_TEXT.",
            array(
                "uint32_t COMPATIBLE_LONG[][2]",
                [f"{{0x{c:x}, {at}}}" for (c, _), at in zip(long_rows, begins)]
                + [f"{{0x110000, {begins[-1]}}}"],
            ),
            array(
                "uint32_t COMPATIBLE_TEXT[]",
                [f"0x{ord(c):x}" for _, text in long_rows for c in text],
            ),
            "// What StripAccents takes out, and what joins the character before it in a grapheme: "
            "runs where that is not what the class MARK says.",
            array("uint32_t STRIPPED_BUT_MARK[][2]", bounds(stripped_accents() ^ marks)),
            array("uint32_t JOINING_BUT_MARK[][2]", bounds(joins ^ marks)),
            "// What joins the character after it in a grapheme, and what nothing joins: runs.",
            array("uint32_t PREPENDED[][2]", bounds(before)),
            array("uint32_t UNJOINED[][2]", bounds(control)),
            "#endif",
            "",
        ]
    )


def main() -> int:
    text = header()
    if sys.argv[1:] == ["--check"]:
        same = OUTPUT.read_text() == text
        verdict = "as the library says"
        if not same:
            verdict = "differs from what the library says; make it again"
        print(f"{OUTPUT.name}: {verdict}")
        return 0 if same else 1
    OUTPUT.write_text(text)
    print(f"{OUTPUT.name}: {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
