"""Compares each token's bytes, of which grammars make their masks, with `tokenizers` and llguidance.

    HEADS_TESTS=all python3 tests/reference/live_token_bytes.py DIRECTORY

DIRECTORY holds a folder a tokenizer, each with tokenizer.json. Of every id the bytes are the text
that `tokenizers` decodes, where they are one, and those that llguidance finds in the file. Then
llguidance's tokenizer of ours and that of the file are asked for the masks of a grammar's texts,
token by token: they may differ only in what llguidance alone takes for special, which is any added
token, and the byte 0xff, which is its own mark. Without HEADS_TESTS=all a third of the tokenizers, drawn
by chance. Exit 1 if anything differs.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("python", "tests", "tests/support"))]

import llguidance  # noqa: E402
import numpy as np  # noqa: E402
import tokenizer_texts as texts  # noqa: E402
from live_tokenizers import PROMISED, loaded  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import heads  # noqa: E402
from exporter.tokenizers.files import tokenizer_metadata  # noqa: E402
from heads._grammars import _Tokens, of_schema, of_syntax  # noqa: E402

MARK = b"\xff"
GRAMMARS = [
    (
        of_schema({"type": "object", "properties": {"name": {"type": "string"}, "n": {}}}),
        '{"name": "M\u00e4rchen \U0001f98a, 12 < b \u2603", "n": [1, -2.5e3, true]}',
    ),
    (of_syntax("regex", "[a-z ]*[0-9]{2,}(\u00e9|\u4e2d)+"), "once upon 1234\u00e9\u4e2d\u4e2d"),
]


def decoded(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What `tokenizers` makes of each id behind a letter, since some cut a text's first space."""
    letter = tokenizer.token_to_id("a")
    before = len(tokenizer.decode([letter]))
    pairs = [[letter, id] for id in ids]
    return [text[before:] for text in tokenizer.decode_batch(pairs, skip_special_tokens=False)]


def wrong_bytes(ours: list[bytes], tokenizer: Tokenizer, theirs, alone: np.ndarray) -> list[str]:
    """Ids of which the bytes are others. What is no token has none."""
    shown = decoded(tokenizer, list(range(len(ours))))
    found = []
    for id, (data, text) in enumerate(zip(ours, shown)):
        if data.decode("utf-8", "replace") != text:
            found.append(f"{id}: {data!r}, by tokenizers {text!r}")
        elif tokenizer.id_to_token(id) is None or id >= len(alone) or alone[id]:
            continue
        elif theirs.decode_bytes([id]) != data:
            found.append(f"{id}: {data!r}, by llguidance {theirs.decode_bytes([id])!r}")
    return found


def masks(tokenizer, grammar: str, text: str) -> list[np.ndarray]:
    """Of each token of a text which ids may stand there instead."""
    matcher, found = llguidance.LLMatcher(tokenizer, grammar), []
    for id in [*tokenizer.tokenize_str(text), None]:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        found.append(np.unpackbits(bits, bitorder="little").astype(bool))
        assert id is None or matcher.consume_token(id), matcher.get_error()
    return found


def compare(folder: Path, model: Path) -> bool:
    begin = time.monotonic()
    metadata = tokenizer_metadata(str(folder))
    texts.write_model(model, metadata)
    with heads.Model(model, threads=1) as m:
        m.shape.vocab_size = n = len(metadata["tokenizer.token.begin"]) - 1
        theirs = llguidance.LLTokenizer(str(folder / "tokenizer.json"))
        tokens = _Tokens(m, m.eos_ids() or [theirs.eos_token])
        ends = [tokens.eos_token_id]
        made = llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens), eos_token=ends)
        of_theirs = [theirs.is_special_token(id) for id in range(min(n, theirs.vocab_size))]
        of_ours = set(tokens.special_token_ids)
        added = {
            x["id"] for x in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        }
        wrong = [
            f"{id}: {tokens.tokens[id]!r} is special to llguidance alone"
            for id, special in enumerate(of_theirs)
            if special and id not in added | of_ours and tokens.tokens[id] != MARK
        ]
        alone = np.array(of_theirs)
        wrong += wrong_bytes(tokens.tokens, loaded(folder), theirs, alone)
        n_masks = 0
        for grammar, text in GRAMMARS:
            pairs = list(zip(masks(made, grammar, text), masks(theirs, grammar, text)))
            if made.tokenize_str(text) != theirs.tokenize_str(text):
                wrong.append(f"{text!r} has other ids")
            for at, (one, other) in enumerate(pairs):
                common = ~alone[: min(len(one), len(other), len(alone))]
                for id in np.flatnonzero((one[: len(common)] ^ other[: len(common)]) & common)[:3]:
                    wrong.append(f"{id}: {tokens.tokens[id]!r} in one mask {at} of {text!r}")
            n_masks += len(pairs)
    for line in wrong[:5]:
        print("   ", line)
    result = f"{n} tokens, {n_masks} masks" if not wrong else f"{len(wrong)} differences"
    seconds = time.monotonic() - begin
    print(f"{'not ok' if wrong else 'ok'} {folder.name}: {result} ({seconds:.1f} s)", flush=True)
    return not wrong


def main() -> int:
    names = sorted(PROMISED)
    if os.environ.get("HEADS_TESTS") != "all":
        names = random.sample(names, len(names) // 3)
    folders = [Path(sys.argv[1]) / name for name in names]
    with tempfile.TemporaryDirectory() as scratch:
        return 0 if all([compare(folder, Path(scratch) / "m.bin") for folder in folders]) else 1


if __name__ == "__main__":
    sys.exit(main())
