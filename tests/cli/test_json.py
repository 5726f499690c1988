"""The JSON reader in C against Python's, on documents by hand, at random, and damaged."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
import tokenizer_texts as texts

BUILD = Path(os.environ.get("HEADS_TESTS_C", ROOT / "build" / "tests" / "c"))
BY_HAND = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1",
    "-1",
    "1.5",
    "1e5",
    "1E+5",
    "1e-400",
    "1e400",
    "-1e400",
    "123456789012345678901",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "00",
    "01",
    "-01",
    "-",
    "+1",
    "1.",
    ".1",
    "1e",
    "1e+",
    "0x10",
    "1_000",
    "Infinity",
    "NaN",
    "-Infinity",
    "nul",
    "nulll",
    "True",
    "",
    " ",
    "\t\n\r 1 \n",
    "\x0b1",
    "\xa01",
    "\ufeff1",
    "[]",
    "[ ]",
    "[1]",
    "[1,]",
    "[,]",
    "[,1]",
    "[1 2]",
    "[1",
    "]",
    "[1]]",
    "[[]",
    "{}",
    "{ }",
    '{"a":1}',
    '{"a":1,}',
    "{,}",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "{'a':1}",
    '{"a":1 "b":2}',
    '{"a":1,"a":2}',
    '{"a":1,"\\u0061":2}',
    '{"":1}',
    "{1:2}",
    '{"a":{"a":{}}}',
    '""',
    '"a',
    'a"',
    '"\\',
    '"\\"',
    '"\\a"',
    '"\\u"',
    '"\\u12"',
    '"\\u123g"',
    '"\\u1234"',
    '"\\U00001234"',
    '"\\ud83e\\udd8a"',
    '"\\ud83e"',
    '"\\udd8a"',
    '"\\ud83e\\ud83e"',
    '"\\ud83ex"',
    '"\\u0000"',
    '"\x00"',
    '"\n"',
    '"\t"',
    '"\x7f"',
    '"\x1f"',
    '"\u2028"',
    '"/\\/"',
    '"\U0001f98a"',
    "[" * 64 + "]" * 64,
    "[" * 65 + "]" * 65,
    "1 2",
    "{} []",
    "// 1",
    "/**/1",
    "[1]//",
    '"\\ud83e\\u0041"',
    "[1.0, 1e2, 2E0]",
    "[0.1, 5e-324, 1.7976931348623157e308]",
]
BYTES = [
    b'"\xff"',
    b'"\xc3"',
    b'"\xc0\x80"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"\xe2\x82\xac"',
    b"\xff",
    b"1\0",
    b"\0",
]


def read(documents: list[bytes]) -> list[tuple[bool, str]]:
    """The reader's answers: whether it read a document, and the value written again or the message."""
    records = b"".join(struct.pack("<I", len(d)) + d for d in documents)
    done = subprocess.run([BUILD / "read_json"], input=records, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers, at = [], 0
    for _ in documents:
        good, n = struct.unpack_from("<II", done.stdout, at)
        answers.append((bool(good), done.stdout[at + 8 : at + 8 + n].decode()))
        at += 8 + n
    return answers


def refuse(*args):
    raise ValueError(args)


def members(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        refuse("a key twice")
    return dict(pairs)


def finite(text: str) -> float:
    return float(text) if abs(float(text)) != float("inf") else refuse(text)


def integer(text: str):
    value = int(text)
    return value if -(2**63) <= value < 2**63 else finite(text)


def depth(value) -> int:
    inside = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inside is None else 1 + max(map(depth, inside), default=0)


def expected(document: bytes):
    """Python's value, with what this reader is stricter in; ValueError if it is to be refused."""
    text = document.decode("utf-8")
    if text.startswith("\ufeff"):
        refuse("a byte order mark")
    value = json.loads(
        text,
        object_pairs_hook=members,
        parse_constant=refuse,
        parse_float=finite,
        parse_int=integer,
    )
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair
    return value if depth(value) <= 64 else refuse("too deep")


def compare(documents: list[bytes]) -> tuple[int, int]:
    """Fails where the two differ; returns how many were read and how many refused."""
    counts, answers = [0, 0], read(documents)
    assert len(answers) == len(documents)
    for document, (good, text) in zip(documents, answers):
        try:
            want = expected(document)
        except (ValueError, RecursionError):
            assert not good, f"{document!r} was read as {text}"
            assert text.startswith("byte ") or "byte " in text, text
            counts[1] += 1
            continue
        assert good, f"{document!r} was refused: {text}"
        found = json.loads(text)
        assert repr(found) == repr(want), f"{document!r}: {text}"
        counts[0] += 1
    return counts[0], counts[1]


def random_value(rng: random.Random, deep: int = 0):
    kind = rng.randrange(7 if deep < 5 else 5)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice((rng.randint(-(2**63), 2**63 - 1), rng.randint(-100, 100), 0))
    if kind == 2:
        return rng.choice((rng.random(), rng.gauss(0, 1e300), 10.0 ** rng.randint(-320, 300)))
    if kind < 5:
        return texts.random_strings(rng.getrandbits(32), 1, most=6)[0]
    if kind == 5:
        return [random_value(rng, deep + 1) for _ in range(rng.randint(0, 4))]
    return {
        str(random_value(rng, 9)): random_value(rng, deep + 1) for _ in range(rng.randint(0, 4))
    }


def random_documents(seed: int, n: int) -> list[bytes]:
    rng = random.Random(seed)
    return [
        json.dumps(
            random_value(rng), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1, "\t"))
        ).encode()
        for _ in range(n)
    ]


def damaged(documents: list[bytes], seed: int) -> list[bytes]:
    """Each with a byte changed, taken out, put in, or its end cut off."""
    rng, out = random.Random(seed), []
    for document in documents:
        i = rng.randrange(len(document))
        byte = bytes([rng.choice(b'"\\{}[],: 01e.-ut\n\xff\xc3\x80')])
        out.append(
            rng.choice(
                (
                    document[:i] + byte + document[i + 1 :],
                    document[:i] + document[i + 1 :],
                    document[:i] + byte + document[i:],
                    document[:i],
                )
            )
        )
    return out


@pytest.mark.parametrize("text", BY_HAND)
def test_by_hand(text):
    compare([text.encode()])


def test_bytes_that_are_not_utf8():
    assert compare(BYTES) == (1, 8)


def test_random_documents():
    documents = random_documents(1, 400)
    assert compare(documents) == (400, 0)
    read_again, refused = compare(damaged(documents, 2))
    assert read_again > 20 and refused > 100


def test_large_documents_take_no_longer_than_their_size():
    keys = b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(100_000)) + b"}"
    strings = json.dumps([",:[{" * 1000] * 200).encode()
    assert compare([keys, strings, b"[" * 100_000, b"[" + b"1," * 300_000 + b"1]"]) == (3, 1)


def test_the_fuzz_target_runs():
    done = subprocess.run(
        [BUILD / "fuzz_json", "100000", "7"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[2]) > 1000, done.stdout
