"""What the tests of tokenizers share: texts that are hard to tokenize, and the comparison of ours
with another's answers."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence

import checkpoints
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(
    os.environ.get("HEADS_TOKENIZE_BATCH", ROOT / "build" / "tests" / "c" / "tokenize_batch")
)

ROOT = Path(__file__).resolve().parents[2]
WORDS = """the of and to in is that it was for on are as with his they at be this have from or one
had by word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look two
more write go see number no way could people my than first water been call who oil its now find long
down day did get come made may part""".split()
CODE = [
    "for (int i = 0; i < n; i++) {\n    ",
    "}\n\n",
    "def f(x):\n\treturn x ** 2\n",
    "==",
    "!=",
    "->",
    "::",
    "/* */",
    "// ",
    "#include <",
    "\n\t\t\t",
    "\r\n",
    "        ",
    "0x1F",
    "3.14159",
    "1_000_000",
    "\\n",
    "{{",
    "}}",
    "[[0]]",
    "$PATH",
    "https://a.b/c?d=e&f#g",
]
CONTRACTIONS = [
    "'s",
    "'S",
    "'\u017f",
    "'t",
    "'re",
    "'RE",
    "'vE",
    "'m",
    "'ll",
    "'lL",
    "'d",
    "\u2019s",
    "''",
    "'",
    "'l",
    "'r e",
    "n't",
]
SPACES = [
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1f",
    "\x85",
    "\xa0",
    "\u1680",
    "\u180e",
    "\u2000",
    "\u2009",
    "\u200b",
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
    "\ufeff",
]
DIGITS = list("0123456789") + [
    "12",
    "345",
    "6789",
    "1234567",
    "\u0663",
    "\u0e53",
    "\xb2",
    "\xbd",
    "\u2163",
    "\u2460",
    "\u4e09",
    "\U0001d7d8",
    "\u0be6",
    "\u3007",
    "\U00011de0",
]
MARKS = [
    "\u0301",
    "\u0300",
    "\u0327",
    "\u0323",
    "\u0345",
    "\u0334",
    "\u05b0",
    "\u064b",
    "\u093c",
    "\u0e38",
    "\u20dd",
    "\u3099",
    "\u1ab0",
    "\U0001d165",
    "\u0f71",
    "\u1dfa",
    "\u08ca",
]
ODD = [
    "\u2581",
    "\u2581\u2581",
    "\u0120",
    "\u010a",
    "\xad",
    "\u0000",
    "\x03",
    "\x7f",
    "\ufffd",
    "\ufffe",
    "\ue000",
    "\U0010ffff",
    "\U00050000",
    "<0x41>",
    "<0xE2>",
    "\u212b",
    "\u2126",
    "\u212a",
    "\u1e9b\u0323",
    "\uac00\u11a8",
    "\u1100\u1161\u11a8",
    "\ufb1d",
    "\u0958",
    "\U0002f868",
    "\U0001109a",
    "\U00011938",
    "e\u0301",
    "\xe9",
    "A\u030a",
    "\u01c5",
    "\u02b0",
    "\xaa",
    "\u0f77",
    "\u1f80",
    "\xe9\u0323",
    "a\u0310\u0301",
    "\uac00\u11a7",
    "\u07ff",
    "\u0800",
    "\u9fa5",
    "\u9fa6",
    "\ud7ff",
]
EMOJI = [
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea",
    "\u263a",
    "\U0001fae8",
    "1\ufe0f\u20e3",
    "\u200d",
    "\ufe0e",
]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + [
    "...",
    "--",
    "\u2014",
    "\u2026",
    "\xab",
    "\xbb",
    "\u3002",
    "\uff0c",
    "\u060c",
    "\u166d",
    "\U000111c9",
    "\u2e50",
    "\xa7",
    "\u20ac",
    "\xb4",
    "\u02c6",
]
SCRIPTS = [
    (0x61, 0x7A),
    (0x41, 0x5A),
    (0xC0, 0x24F),
    (0x370, 0x3FF),
    (0x400, 0x4FF),
    (0x531, 0x587),
    (0x5D0, 0x5EA),
    (0x620, 0x64A),
    (0x904, 0x95F),
    (0x985, 0x9E3),
    (0xB85, 0xBCD),
    (0xE01, 0xE4E),
    (0x10A0, 0x10FF),
    (0x1200, 0x137C),
    (0x1E00, 0x1FFE),
    (0x3041, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0x1100, 0x11FF),
    (0x10400, 0x1044F),
    (0x1D400, 0x1D7FF),
    (0x20000, 0x2A6DF),
    (0x2190, 0x22FF),
    (0x1E900, 0x1E95F),
    (0x2C00, 0x2DFF),
    (0xA640, 0xA7FF),
]


def any_character(rng: random.Random) -> str:
    """A code point of any plane but a surrogate, assigned or not."""
    plane = rng.choice([0x250, 0x3100, 0x10000, 0x20000, 0x110000])
    c = rng.randrange(plane)
    return chr(c if not 0xD800 <= c < 0xE000 else c - 0x800)


def script_word(rng: random.Random) -> str:
    """A few letters of one script."""
    low, high = rng.choice(SCRIPTS)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 7)))


def random_strings(seed: int, n: int, added: Sequence[str] = (), most: int = 24) -> list[str]:
    """n strings of 0..most elements each, of all kinds mixed; `added`: more elements, such as added
    tokens."""
    rng = random.Random(seed)
    makers: list[Callable[[], str]] = [
        lambda: rng.choice(WORDS),
        lambda: " " + rng.choice(WORDS),
        lambda: rng.choice(WORDS).upper(),
        lambda: rng.choice(CONTRACTIONS),
        lambda: rng.choice(SPACES),
        lambda: rng.choice(SPACES),
        lambda: rng.choice(SPACES) * rng.randint(1, 5),
        lambda: rng.choice(DIGITS),
        lambda: rng.choice(DIGITS),
        lambda: rng.choice(MARKS),
        lambda: rng.choice(ODD),
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(PUNCTUATION),
        lambda: rng.choice(PUNCTUATION) * rng.randint(1, 4),
        lambda: rng.choice(CODE),
        lambda: any_character(rng),
        lambda: script_word(rng),
        lambda: script_word(rng),
    ]
    if added:
        makers += [lambda: rng.choice(added)] * 3

    def string() -> str:
        some = rng.sample(makers, rng.randint(1, 6)) if rng.random() < 0.5 else makers
        return "".join(rng.choice(some)() for _ in range(rng.randint(0, most)))

    return [string() for _ in range(n)]


def mixed_text(seed: int, size: int, added: Sequence[str] = ()) -> str:
    """At least `size` bytes of text: this repository's own, then sentences of many scripts, code,
    numbers, emoji."""
    rng = random.Random(seed)
    files = sorted(
        p
        for pattern in ("*.c", "*.h", "*.md", "exporter/**/*.py", "docs/*.md")
        for p in ROOT.glob(pattern)
    )
    text = "".join(p.read_text() for p in files)[: size // 3]
    parts, length = [text], len(text.encode())
    while length < size:
        kind = rng.random()
        if kind < 0.55:
            line = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 20)))
            line += rng.choice([". ", "!\n", "?\n\n", ", ", "\r\n"])
        elif kind < 0.75:
            line = rng.choice([" ", "", "\u3000"]).join(
                script_word(rng) for _ in range(rng.randint(2, 15))
            )
            line += rng.choice([". ", "\n", "\u3002"])
        elif kind < 0.85:
            line = "".join(rng.choice(CODE) + rng.choice(WORDS) for _ in range(rng.randint(2, 12)))
        else:
            line = random_strings(rng.getrandbits(40), 1, added)[0]
        parts.append(line)
        length += len(line.encode())
    return "".join(parts)


class Answer(NamedTuple):
    """Ids of a text, and what they decode to, with and without special tokens."""

    ids: list[int]
    shown: bytes
    skipped: bytes


def write_model(path: Path, metadata: dict[str, bytes | np.ndarray]) -> None:
    """A checkpoint with this tokenizer around a model of one weight a tensor."""
    meta, tensors = checkpoints.parse(
        checkpoints.random_model(
            vocab=1, n_embd=1, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2, d_ff=1, context=8
        )
    )
    for key, values in metadata.items():
        array = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
        kind = {np.dtype(np.uint8): checkpoints.U8, np.dtype(np.int32): checkpoints.I32}[
            array.dtype
        ]
        meta[key] = checkpoints.Meta(kind, array.size, array.tobytes())
    path.write_bytes(checkpoints.build(meta, tensors))


def tokenize(
    program: Path, model: Path, texts: Sequence[bytes], ids: bool = False, timeout: float = 300
) -> list[Answer]:
    """The engine's answers to many texts or, with `ids`, to many arrays of int32; raises with its
    message if it fails."""
    records = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    done = subprocess.run(
        [program, model, *["ids"] * ids], input=records, capture_output=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    data, at, answers = done.stdout, 0, []

    def take() -> bytes:
        nonlocal at
        (n,) = struct.unpack_from("<I", data, at)
        at += 4 + n
        return data[at - n : at]

    for _ in texts:
        (n,) = struct.unpack_from("<I", data, at)
        ids = np.frombuffer(data, "<i4", n, at + 4).tolist()
        at += 4 + 4 * n
        answers.append(Answer(ids, take(), take()))
    assert at == len(data)
    return answers


def expected(tokenizer, texts: Sequence[str]) -> list[Answer]:
    """What a `tokenizers.Tokenizer` answers."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    shown = tokenizer.decode_batch(ids, skip_special_tokens=False)
    skipped = tokenizer.decode_batch(ids, skip_special_tokens=True)
    return [Answer(i, a.encode(), b.encode()) for i, a, b in zip(ids, shown, skipped)]


def kinds(names: Iterable[str]) -> list:
    """Kinds of tokenizers, for pytest. The last `tokenizers` for Python 3.9 decodes two of them
    with fewer spaces than 0.23."""
    old = pytest.mark.skipif(version("tokenizers") < "0.23", reason="needs tokenizers 0.23")
    return [
        pytest.param(name, marks=[old] if name in ("byte fallback", "llama2") else [])
        for name in names
    ]


def share_of(texts: list[str], kind: str) -> list[str]:
    """A twelfth of the texts, by chance (HEADS_SEED), and another one for kinds with another name;
    all of them if HEADS_TESTS is "all", as in a step of CI."""
    first = (sum(kind.encode()) + int(os.environ.get("HEADS_SEED", 0))) % 12
    return texts if os.environ.get("HEADS_TESTS") == "all" else texts[first::12]


def differences(
    texts: Sequence[str], ours: Sequence[Answer], theirs: Sequence[Answer]
) -> list[str]:
    """A line for every text whose answers differ."""
    out = []
    assert len(texts) == len(ours) == len(theirs)
    for text, a, b in zip(texts, ours, theirs):
        if a != b:
            field = next(name for name in Answer._fields if getattr(a, name) != getattr(b, name))
            x, y = getattr(a, field), getattr(b, field)
            i = next((k for k in range(min(len(x), len(y))) if x[k] != y[k]), min(len(x), len(y)))
            where = f"{field} of {text[:80]!r} ({len(text)} characters) at {i}"
            out.append(f"{where}: ours {x[i : i + 12]}, theirs {y[i : i + 12]}")
    return out
