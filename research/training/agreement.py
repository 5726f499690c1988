"""Judges names and pronouns in the bundled model's stories.

    python -m research.training.agreement FILE...

It prints a verdict a line; "-" is stdin, and "---" lines stand between texts.

A text whose first sentence is the grammar's is judged by the grammar, all of it (stories.py). In
any other, `slip` keeps a list of who was mentioned. It is lenient: it speaks up only if nobody
mentioned so far can be meant, and where a name is another one misspelt.
"""

from __future__ import annotations

import difflib
import re
import sys

from research.grammar import ANIMALS, HE, SHE
from research.stories import check, described, texts_of
from research.training.beginnings import CHOICES

PRONOUNS = {
    **dict.fromkeys(["she", "her", "hers", "herself"], "she"),
    **dict.fromkeys(["he", "him", "his", "himself"], "he"),
}
WOMEN = """girl woman lady mother mom mum mommy mama grandmother grandma granny sister aunt daughter
    queen princess witch fairy wife girls women mothers sisters""".split()
MEN = """boy man father dad daddy papa grandfather grandpa brother uncle son king prince wizard
    knight husband boys men fathers brothers""".split()
NOT_NAMES = """I I'm I'll I've I'd Monday Tuesday Wednesday Thursday Friday Saturday Sunday January
    February March April May June July August September October November December Christmas Easter
    Mr Mrs Miss Mom Mum Dad Mommy Daddy Mama Papa Grandma Grandpa Grandmother Grandfather Mother
    Father Aunt Uncle The A An And But So Oh Yes No""".split()
ALIKE = 0.75  # of two names, from where one is taken for the other misspelt
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")


def gender_of(word: str) -> str | None:
    """she, he, or None for those who may be either."""
    if word in SHE or word.lower() in WOMEN:
        return "she"
    return "he" if word in HE or word.lower() in MEN else None


def is_name(text: str, at: int, word: str) -> bool:
    """Capitalised inside of a sentence, or known."""
    known = word in SHE or word in HE or word in CHOICES["name"]
    inside = re.search(r"[a-z,] $", text[:at]) is not None
    return known or (word[0].isupper() and len(word) > 1 and inside and word not in NOT_NAMES)


def misspelt(name: str, people: dict[str, str | None]) -> bool:
    """Whether the name is new, but nearly one that was mentioned."""
    return name not in people and any(
        difflib.SequenceMatcher(None, name, other).ratio() >= ALIKE
        for other in people
        if other[0] == name[0]
    )


def slip(text: str) -> int | None:
    """The character of the first wrong name or pronoun; None: there is none."""
    people = {}  # who was mentioned, in this order -> she, he, or None as long as it may be either
    for match in WORD.finditer(text):
        at, word = match.start(), match[0].removesuffix("'s")
        pronoun = PRONOUNS.get(word.lower())
        if is_name(text, at, word):
            if misspelt(word, people):
                return at
            noun = re.search(r"(\w+) (?:named|called) $", text[:at])
            people.setdefault(word, gender_of(noun[1] if noun else word))
        elif gender_of(word) or word.lower() in ANIMALS + CHOICES["animal"] + CHOICES["person"]:
            people.setdefault(word.lower(), gender_of(word))
        elif pronoun and pronoun not in people.values():
            unsettled = [name for name, gender in people.items() if gender is None]
            if people and not unsettled:
                return at
            people[unsettled[-1] if unsettled else pronoun] = pronoun
    return None


def verdict(text: str) -> str:
    """One line on `text`: "good", or "broken" with the place where it breaks."""
    first = re.match(r".*?[.!?]", text.strip(), re.DOTALL)
    in_grammar = first is not None and check(first[0]) is None
    return described(text, check(text) if in_grammar else slip(text))


if __name__ == "__main__":
    print("\n".join(verdict(text) for path in sys.argv[1:] for text in texts_of(path)))
