"""Compares the engine's tokenizer with transformers and `tokenizers` on real tokenizer files.

    HEADS_TESTS=all python3 tests/reference/live_tokenizers.py DIRECTORY [MODEL ...]

DIRECTORY holds a folder a tokenizer, each with tokenizer.json. Every one must agree on 1 MB of
mixed text and 20,000 random strings, ids and decoded text; and on a quarter of that the same
tokenizer with its added tokens in tokenizer_config.json alone, and written in the other forms that
they come in: GGUF, vocab.json with merges.txt, tiktoken, tekken, a bare tokenizer.model. A MODEL is a SentencePiece
file (tokenizer.model) and is compared with `sentencepiece`. HEADS_TOKENIZE_BATCH names the engine's
side, tests/c/tokenize_batch.c, if it is not build/tests/c/tokenize_batch. Without HEADS_TESTS=all half of the
tokenizers, a quarter of the texts, and the other forms of a third, drawn by chance. Exit 1 if anything differs.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

import gguf  # noqa: E402
import gguf_files  # noqa: E402
import make_tokenizer_classes  # noqa: E402
import tokenizer_forms as forms  # noqa: E402
import tokenizer_texts as texts  # noqa: E402
from exporter.sources.gguf_file import read_gguf  # noqa: E402
from exporter.sources.gguf_tokenizer import gguf_vocabulary  # noqa: E402
from exporter.tensor import ExportError  # noqa: E402
from exporter.tokenizers.pre_tokenizers import COVERING  # noqa: E402
from exporter.tokenizers.files import tokenizer_metadata  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

# tokenizer.json that must be exported: all but what nobody has implemented.
PROMISED = {
    "deepseek-coder",
    "deepseek-v3",
    "falcon",
    "gemma2",
    "gpt2",
    "gpt4o-o200k",
    "llama2",
    "llama3",
    "mistral-nemo",
    "mistral-v1",
    "mistral-v3",
    "neox-mpt",
    "olmo2",
    "phi-2",
    "phi-3",
    "qwen2.5",
    "qwen3.5",
    "starcoder2",
}


def compare(
    name: str, source: object, expected: Tokenizer | dict, program: Path, model: Path, share=4
) -> bool:
    """Prints a line about a tokenizer, which must be the one expected, or that of a tokenizer.json
    with this content; false: it differs or was refused. share: 1 takes all texts; for another form
    of the same tokenizer a quarter is enough."""
    try:
        metadata = tokenizer_metadata(source() if callable(source) else str(source))
    except ExportError as error:
        print(f"not ok {name}: {error}")
        return False
    texts.write_model(model, metadata)
    tokenizer = expected
    if isinstance(expected, dict):
        tokenizer = Tokenizer.from_str(json.dumps(expected))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    cases = [
        texts.mixed_text(1, (1 << 20) // share, added),
        *texts.random_strings(2, 20000 // share, added),
        " " * 5000,
        "a" * 50000,
    ]
    begin = time.monotonic()
    ours = texts.tokenize(program, model, [text.encode() for text in cases])
    middle = time.monotonic()
    theirs = texts.expected(tokenizer, cases)
    end = time.monotonic()
    return verdict(
        name, cases, ours, theirs, f"{middle - begin:.1f} s; tokenizers {end - middle:.1f} s"
    )


# ---- tokenizer.json and what lies beside it ------------------------------------------------------


def loaded(folder: Path) -> Tokenizer:
    """What transformers makes of a tokenizer.json and the files beside it."""
    return PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer


def compare_declared(name: str, data: dict, scratch: Path, program: Path, model: Path) -> bool:
    """A tokenizer.json without added tokens, beside a tokenizer_config.json that declares them."""
    folder = scratch / name
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({**data, "added_tokens": []}))
    forms.config_files(data, folder, "llama", tokenizer_class="PreTrainedTokenizerFast")
    return compare(f"{name}, declared beside", folder, loaded(folder), program, model)


# ---- other forms of the same tokenizers ----------------------------------------------------------

# Folder -> what llama.cpp's converter calls it.
GGUF = {
    "deepseek-coder": "deepseek-coder",
    "deepseek-v3": "deepseek-v3",
    "falcon": "falcon",
    "gpt2": "gpt-2",
    "gpt4o-o200k": "gpt-4o",
    "llama3": "llama-bpe",
    "mistral-nemo": "tekken",
    "neox-mpt": "olmo",
    "olmo2": "dbrx",
    "phi-2": "phi-2",
    "qwen2.5": "qwen2",
    "qwen3.5": "qwen35",
    "starcoder2": "starcoder",
}
MERGES = {"gpt2": "gpt2", "phi-2": "phi", "qwen2.5": "qwen2", "starcoder2": "starcoder2"}


def from_gguf(fields: dict, path: Path):
    """A function that reads the tokenizer back from a GGUF file without tensors."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in fields.items():
        gguf_files.add(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return lambda: gguf_vocabulary(read_gguf(str(path)))


def compare_forms(name: str, data: dict, scratch: Path, program: Path, model: Path) -> bool:
    """The forms that a tokenizer.json can be written in."""
    good = True
    if name in GGUF:
        fields = gguf_files.byte_level_fields(data, GGUF[name])
        good &= compare(
            f"{name} as GGUF", from_gguf(fields, scratch / "x.gguf"), data, program, model
        )
    if name in MERGES:
        forms.vocab_and_merges(data, scratch)
        forms.config_files(data, scratch, MERGES[name])
        good &= compare(f"{name} as vocab.json", scratch / "vocab.json", data, program, model)
    if name == "llama3":  # the file here is the first one, which puts nothing before a text
        forms.tiktoken(data, scratch / "tokenizer.model")
        forms.config_files(data, scratch, "llama", add_bos_token=False)
        good &= compare(f"{name} as tiktoken", scratch / "tokenizer.model", data, program, model)
    if name == "mistral-nemo":
        forms.tekken(data, scratch / "tekken.json", next(p for p, n in COVERING.items() if n == 9))
        good &= compare(f"{name} as tekken", scratch / "tekken.json", data, program, model)
    if name == "gemma2":
        pieces = forms.pieces(data)
        normalizer = forms.protobuf(3, 0) + forms.protobuf(4, 0)
        ids = forms.protobuf(41, 2) + forms.protobuf(42, 1)
        (scratch / "gemma.model").write_bytes(
            forms.sentencepiece(pieces, normalizer=normalizer, trainer=ids)
        )
        good &= compare(f"{name} as tokenizer.model", scratch / "gemma.model", data, program, model)
        fields = gguf_files.scored_fields(pieces, prefix=False, bos_token_id=2, eos_token_id=1)
        good &= compare(
            f"{name} as GGUF", from_gguf(fields, scratch / "x.gguf"), data, program, model
        )
    for path in scratch.glob("*.json"):
        path.unlink()
    return good


def compare_qwen(folder: Path, data: dict, program: Path, model: Path) -> bool:
    """Qwen 1's tiktoken file against Qwen 2.5's merges, which were made of it, with Qwen 1's added
    tokens."""
    beside = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    data = {**data, "added_tokens": [{"id": int(id), **token} for id, token in beside.items()]}
    return compare("Qwen 1's tiktoken file", folder / "qwen.tiktoken", data, program, model)


def compare_llama2(path: Path, data: dict, program: Path, model: Path, scratch: Path) -> bool:
    """Llama 2's SentencePiece file as GGUF, against its tokenizer.json."""
    from sentencepiece import SentencePieceProcessor

    p = SentencePieceProcessor(model_file=str(path))
    kinds = [(p.is_unknown, 2), (p.is_control, 3), (p.is_byte, 6), (lambda id: True, 1)]
    pieces = [
        (p.id_to_piece(id), p.get_score(id), next(k for test, k in kinds if test(id)))
        for id in range(p.vocab_size())
    ]
    return compare(
        "llama2 as GGUF",
        from_gguf(gguf_files.scored_fields(pieces), scratch / "x.gguf"),
        data,
        program,
        model,
    )


def compare_sentencepiece(path: Path, program: Path, model: Path) -> bool:
    """The same for a SentencePiece file, without the names of special tokens in the text: those are
    only text to it."""
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


def compare_unigram(folder: Path, program: Path, model: Path) -> bool:
    """A SentencePiece file against what transformers makes of it (needs protobuf): ids and, where
    `tokenizers` does the work, decoded text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts.write_model(model, tokenizer_metadata(str(folder)))
    added = tokenizer.all_special_tokens[:8]
    mixed = texts.mixed_text(1, 1 << 20, added).replace("\0", "")
    cases = [mixed[i : i + 20000] for i in range(0, len(mixed), 20000)]
    cases += [text.replace("\0", "") for text in texts.random_strings(2, 20000, added)]
    ours = texts.tokenize(program, model, [text.encode() for text in cases])
    if tokenizer.is_fast:
        theirs = texts.expected(tokenizer.backend_tokenizer, cases)
    else:
        ids = tokenizer(cases).input_ids
        theirs = [texts.Answer(i, a.shown, a.skipped) for i, a in zip(ids, ours)]
    return verdict(f"{folder.name} as SentencePiece", cases, ours, theirs, "transformers")


def compare_classes(scratch: Path, every: bool) -> bool:
    """AutoTokenizer makes the rows of tests/golden/tokenizer_classes.json, or five of them, which
    the tests compare with the export."""
    golden = json.loads((ROOT / "tests" / "golden" / "tokenizer_classes.json").read_text())
    rows = [*make_tokenizer_classes.ROWS, *make_tokenizer_classes.FORGETFUL]
    pairs = list(zip(rows, golden["rows"] + golden["forgetful"]))
    chosen = pairs if every else random.sample(pairs, 5)
    made = [make_tokenizer_classes.row(scratch / f"row{i}", *r) for i, (r, _) in enumerate(chosen)]
    good = made == [row for _, row in chosen]
    print(f"{'ok' if good else 'not ok'} {len(made)} classes of tokenizers", flush=True)
    return good


def verdict(
    name: str, cases: list[str], ours: list[texts.Answer], theirs: list[texts.Answer], remark: str
) -> bool:
    """Prints whether all answers are equal."""
    wrong = texts.differences(cases, ours, theirs)
    for line in wrong[:5]:
        print("   ", line)
    result = f"ok {name}: {sum(len(a.ids) for a in ours)} ids"
    if wrong:
        result = f"not ok {name}: {len(wrong)} texts differ"
    print(f"{result} ({remark})", flush=True)
    return not wrong


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    program = Path(
        os.environ.get("HEADS_TOKENIZE_BATCH", ROOT / "build" / "tests" / "c" / "tokenize_batch")
    )
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob("*/tokenizer.json"))
    missing = PROMISED - {folder.name for folder in folders}
    if missing:
        print(f"not ok: {sys.argv[1]} lacks {', '.join(sorted(missing))}")
        return 1
    data = {folder.name: json.loads((folder / "tokenizer.json").read_text()) for folder in folders}
    every = os.environ.get("HEADS_TESTS") == "all"
    some = list(data) if every else random.sample(list(data), len(data) // 3)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        model = scratch / "model.bin"
        files = folders if every else random.sample(folders, len(folders) // 2)
        good = [compare(f.name, f, loaded(f), program, model, 1 if every else 4) for f in files]
        good += [compare_declared(name, data[name], scratch, program, model) for name in some]
        good += [compare_forms(name, data[name], scratch, program, model) for name in some]
        good += [
            compare_qwen(Path(sys.argv[1]) / "file-qwen-tiktoken", data["qwen2.5"], program, model)
        ]
        good += [compare_classes(scratch, every)]
        unigram = (ROOT / "tests" / "golden" / "unigram").glob("*/expected.json")
        good += [compare_unigram(path.parent, program, model) for path in sorted(unigram)]
        good += [compare_sentencepiece(Path(path), program, model) for path in sys.argv[2:]]
        good += [
            compare_llama2(Path(path), data["llama2"], program, model, scratch)
            for path in sys.argv[2:]
        ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
