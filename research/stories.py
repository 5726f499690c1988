"""Stories for young children, written and read by one grammar (grammar.py): what the bundled model
and the laboratory's models learn from.

    python -m research.stories -n 3 --seed 1       writes three stories
    python -m research.stories --check FILE...     judges texts ("-": stdin), a verdict a line

`story` walks the grammar and writes; `check` walks it and reads, so whatever can be written can be
judged, a story cut off in mid-sentence included. Several texts in one file are separated by a line
of three dashes, as -n separates them.
"""

import argparse
import random
import re
import sys

from research.grammar import RULES, TABLES, UNLIKE

BEGIN, END = "<|begin|>", "<|end|>"  # the tokens before and after a story


def symbols(template):
    """The template in pieces: plain text, <rules> and {slots}, none of them empty."""
    return [piece for piece in re.split(r"(<[^>]+>|{[^}]+})", template) if piece]


def options(symbol, cast):
    """All (template, cast) that a <rule> or {slot} may become, given the rows chosen so far."""
    name = symbol[1:-1]
    if symbol[0] == "<":
        return [(template, cast) for template in RULES[name]]
    if name.lower() in ("he", "him", "his"):
        name = "hero." + name
    slot, field = name.split(".") if "." in name else (name, "name")
    fits = UNLIKE.get(slot, lambda row, cast: True)
    casts = (
        [cast] if slot in cast else [{**cast, slot: row} for row in TABLES[slot] if fits(row, cast)]
    )
    return [(value(cast[slot], field), cast) for cast in casts]


def value(row, field):
    """A row's field, its first letter a capital if the field's is."""
    text = row[field.lower()]
    return text if field.islower() else text[0].upper() + text[1:]


def story(rng):
    """A new story, drawn with `rng` (a random.Random): the same state gives the same story."""
    text, cast, pending = "", {}, ["<story>"]
    while pending:
        symbol = pending.pop(0)
        if symbol[0] in "<{":
            template, cast = rng.choice(options(symbol, cast))
            pending = symbols(template) + pending
        else:
            text += symbol
    return text


def check(text):
    """Where `text` stops being a story or the beginning of one.

    Returns None if it never does, else the number of characters up to the first that no story
    could have after what precedes it. White space at the end is ignored. Since slots keep their
    rows, a wrong pronoun, a friend renamed or a ball that changes colour is found too.
    """
    text = text.rstrip()
    furthest = 0
    readings = [(0, {}, ["<story>"])]  # a stack of: characters read, cast, symbols to come
    while readings:
        at, cast, pending = readings.pop()
        if not pending:
            furthest = max(furthest, at)
            if at == len(text):
                return None
            continue
        symbol, rest = pending[0], pending[1:]
        if symbol[0] in "<{":
            readings += [
                (at, cast, symbols(template) + rest) for template, cast in options(symbol, cast)
            ]
            continue
        agreed = agreement(symbol, text, at)
        furthest = max(furthest, at + agreed)
        if at + agreed == len(text):
            return None
        if agreed == len(symbol):
            readings.append((at + agreed, cast, rest))
    return furthest


def agreement(expected, text, at):
    """How many characters of `expected` stand in `text` from character `at` on."""
    found = text[at : at + len(expected)]
    return next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), len(found))


def described(text, broken):
    """One line on `text`: "good", or "broken" with the place where it breaks."""
    if broken is None:
        return "good"
    before, after = text[max(0, broken - 60) : broken], text[broken : broken + 20]
    return f"broken at character {broken}: {before!r} >> {after!r}"


def texts_of(path):
    """The texts of a file, which lines of three dashes separate; -: of stdin."""
    with sys.stdin if path == "-" else open(path) as file:
        return re.split(r"^---\n", file.read(), flags=re.M)


def main():
    parser = argparse.ArgumentParser(description="Write stories, or judge them.")
    parser.add_argument("-n", type=int, default=1, help="stories to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", nargs="+", metavar="FILE", help="texts to judge; - is stdin")
    args = parser.parse_args()
    if not args.check:
        rng = random.Random(args.seed)
        print("\n---\n".join(story(rng) for _ in range(args.n)))
        return 0
    verdicts = [described(text, check(text)) for path in args.check for text in texts_of(path)]
    print("\n".join(verdicts))
    return 0 if all(v == "good" for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
