"""Compares the engine's tokenizer with `tokenizers` on real tokenizer files.

    python3 tests/ci_tokenizers.py DIRECTORY [MODEL ...]

DIRECTORY holds a folder a tokenizer, each with tokenizer.json. Every one is either exported and must then agree on 1 MB of
mixed text and 20,000 random strings, ids and decoded text, or is refused with a sentence. A MODEL is a SentencePiece file
(tokenizer.model) and is compared with `sentencepiece`. HEADS_TOKENIZE_BATCH names the engine's side, tests/tokenize_batch.c,
if it is not build/tests/tokenize_batch. Exit 1 if anything differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import tokenizer_texts as texts  # noqa: E402
from exporter.tensor import ExportError  # noqa: E402
from exporter.tokenizer import tokenizer_metadata  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

# The families that the exporter promises; others may be refused.
PROMISED = {"falcon", "gemma2", "gpt2", "llama2", "llama3", "mistral-v1", "mistral-v3", "phi-3", "qwen2.5", "starcoder2"}


def compare(name: str, directory: Path, program: Path, model: Path) -> bool:
    """Prints a line about one tokenizer.json; false: it differs, or a family that is promised was refused."""
    try:
        metadata = tokenizer_metadata(str(directory))
    except ExportError as error:
        print(f"{'not ok' if name in PROMISED else 'refused'} {name}: {error}")
        return name not in PROMISED
    texts.write_model(model, metadata)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    cases = [texts.mixed_text(1, 1 << 20, added), *texts.random_strings(2, 20000, added), " " * 5000, "a" * 50000]
    begin = time.monotonic()
    ours = texts.tokenize(program, model, [text.encode() for text in cases])
    middle = time.monotonic()
    theirs = texts.expected(tokenizer, cases)
    end = time.monotonic()
    return verdict(name, cases, ours, theirs, f"{middle - begin:.1f} s; tokenizers {end - middle:.1f} s")


def compare_sentencepiece(path: Path, program: Path, model: Path) -> bool:
    """The same for a SentencePiece file, without the names of special tokens in the text: those are only text to it."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(path))
    texts.write_model(model, tokenizer_metadata(str(path)))
    prefix = [processor.bos_id()]
    cases = [texts.mixed_text(1, 1 << 20), *texts.random_strings(2, 20000)]
    for token in ("<unk>", "<s>", "</s>"):
        cases = [text.replace(token, "") for text in cases]
    ours = texts.tokenize(program, model, [text.encode() for text in cases])
    ids = [prefix + processor.encode(text) for text in cases]
    theirs = [texts.Answer(i, a.shown, processor.decode(i).encode()) for i, a in zip(ids, ours)]
    return verdict(path.name, cases, ours, theirs, "sentencepiece")


def verdict(name: str, cases: list[str], ours: list[texts.Answer], theirs: list[texts.Answer], remark: str) -> bool:
    """Prints whether all answers are equal."""
    wrong = texts.differences(cases, ours, theirs)
    for line in wrong[:5]:
        print("   ", line)
    result = f"not ok {name}: {len(wrong)} texts differ" if wrong else f"ok {name}: {sum(len(a.ids) for a in ours)} ids"
    print(f"{result} ({remark})", flush=True)
    return not wrong


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    program = Path(os.environ.get("HEADS_TOKENIZE_BATCH", ROOT / "build" / "tests" / "tokenize_batch"))
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob("*/tokenizer.json"))
    missing = PROMISED - {folder.name for folder in folders}
    if missing:
        print(f"not ok: {sys.argv[1]} lacks {', '.join(sorted(missing))}")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model.bin"
        good = [compare(folder.name, folder, program, model) for folder in folders]
        good += [compare_sentencepiece(Path(path), program, model) for path in sys.argv[2:]]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
