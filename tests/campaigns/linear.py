"""Doubles inputs that are bad on purpose, and counts the instructions: at most 2.6 times as many.

    python tests/campaigns/linear.py [--only WORD] [--real DIRECTORY] [--share N [--seed S]]

Counted by valgrind's callgrind in tests/c's programs and ./run; lines of Python for the exporter.
WORD: an expression that the names of what is tried must match. Every kind of tokenizer in the
tests; --real: and those of a directory's tokenizer.json, a folder each. --share: an Nth of all
that, by chance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "python"),
    *(str(ROOT / "tests" / f) for f in ("", "support", "text")),
]

import chat_templates  # noqa: E402
import chats  # noqa: E402
import checkpoints  # noqa: E402
import numpy as np  # noqa: E402
import talkers  # noqa: E402
import tokenizer_texts as texts  # noqa: E402

from exporter.templates import chat  # noqa: E402
from exporter.tokenizers.files import tokenizer_metadata  # noqa: E402

MOST = 2.6
C = Path(os.environ.get("HEADS_TESTS_C", ROOT / "build" / "tests" / "c"))
RUN = Path(os.environ.get("HEADS_RUN", ROOT / "run"))
SIZE = 1 << 11
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}  # of chat templates


def callgrind(command: list, folder: Path, stdin: bytes, *options: str) -> tuple[Path, str]:
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    grind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options]
    done = subprocess.run(
        [*grind, *map(str, command)], input=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    return out, done.stderr.decode("utf-8", "replace")


def instructions(out: Path) -> int:
    return int(re.search(r"(?m)^(?:totals|summary): (\d+)", out.read_text())[1])


def of_each_call(call: str, command: list, folder: Path, stdin: bytes) -> list[int]:
    """Instructions of each call of a function, in order."""
    options = (f"--toggle-collect={call}", f"--dump-after={call}")
    out, said = callgrind(command, folder, stdin, *options)
    parts = sorted(out.parent.glob("out.*"), key=lambda path: int(path.suffix[1:]))
    found = [instructions(part) for part in parts]
    shutil.rmtree(out.parent)
    assert found, said[-2000:]
    return found


def of_all_calls(call: str, command: list, folder: Path, stdin: bytes = b"") -> int:
    """Instructions of a function, or, without a name, of the whole run."""
    out, said = callgrind(command, folder, stdin, *([f"--toggle-collect={call}"] if call else []))
    assert out.exists(), said[-2000:]
    return instructions(out)


def repeated(unit: str, size: int = SIZE) -> bytes:
    """Whole units, as many as come close to a size in bytes."""
    one = unit.encode()
    return one * max(1, size // len(one))


def text(before: str, unit: str, after: str = ""):
    return lambda size: before.encode() + repeated(unit, size) + after.encode()


MARKS = "\u0301\u0323\u0327\u0345"
TEXTS = {
    "a letter": text("", "a"),
    "a capital": text("", "A"),
    "two letters": text("", "ab"),
    "a word": text("", "the "),
    "a word of many": text("", "internationalization"),
    "spaces": text("", " "),
    "spaces and a word": text("", " ", "a"),
    "lines": text("", "\n"),
    "lines and spaces": text("", "\n "),
    "windows lines": text("", "\r\n"),
    "tabs": text("", "\t\t "),
    "odd spaces and a letter": text("", "\t ", "\u05d0"),
    "digits": text("", "0"),
    "other digits": text("", "\u0663\u00bd"),
    "quotes": text("", "'"),
    "contractions": text("", "'l"),
    "dots": text("", "."),
    "slashes": text("", "/\n"),
    "added, almost": text("", "<|im_start|"),
    "added, hardly": text("", "<"),
    "added": text("", "<|end|>"),
    "added that strip": text("<r>", " "),
    "added that strip left": text("", " ", "<l>"),
    "added that strip often": text("", "<lr> "),
    "added, one word": text("", "word"),
    "added, spaces": text("", "   x"),
    "added of tabs": text("", "\t"),
    "marks": text("", MARKS),
    "marks in reverse": text("e", "\u0345\u0327\u0323\u0301"),
    "one mark after another": lambda n: (
        b"e" + repeated("\u0301", n // 2) + repeated("\u0323", n // 2)
    ),
    "accented": text("", "e\u0301"),
    "hangul": text("", "\u1100\u1161\u11a8"),
    "compatible": text("", "\ufdfa"),
    "joined emoji": text("", "\U0001f468\u200d"),
    "flags": text("", "\U0001f1e9"),
    "marks of spaces": text("", "\u2581"),
    "chinese": text("", "\u4e09"),
    "kana": text("", "\u3042"),
    "bad bytes": lambda n: b"\xff" * n,
    "half characters": lambda n: b"\xe2\x96" * (n // 2),
    "zeros": lambda n: b"\0" * n,
    "unknown": text("", "\U0010fffd"),
    "case changes": text("", "aA"),
    "no W": text("\u00aa", "A"),
    "titles": text("", "\u01c5"),
    "mixed": lambda n: texts.mixed_text(3, n).encode(),
}


def record(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


class Report:
    def __init__(self, only: str, share: int, seed: int):
        self.only, self.share, self.seed = only, share, seed
        self.tried, self.wrong = 0, []

    def wanted(self, name: str) -> bool:
        drawn = random.Random(f"{self.seed} {name}").randrange(self.share) == 0
        return drawn and bool(re.search(self.only, name))

    def add(self, name: str, once: int, twice: int) -> None:
        assert once > 100, f"{name}: {once} instructions: the call was not found"
        self.tried += 1
        if twice > MOST * once:
            self.wrong.append(name)
            print(f"not ok {name}: {once:,} instructions, then {twice:,}: x {twice / once:.2f}")


# ---- tokenizers ----


def tokenizer_models(folder: Path, real: str | None):
    """Names and checkpoints; each is made when it is asked for."""
    import test_tokenizer
    import test_unigram
    import test_wordpiece

    kinds = {f"bpe {name}": make for name, make in test_tokenizer.KINDS.items()}
    kinds |= {f"unigram {name}": make for name, make in test_unigram.KINDS.items()}
    kinds |= {
        f"wordpiece {name}": (lambda name=name: json.loads(test_wordpiece.trained(name)))
        for name in test_wordpiece.NORMALIZERS
    }
    for path in sorted(Path(real).glob("*/tokenizer.json")) if real else []:
        kinds[f"real {path.parent.name}"] = path.parent

    def made(name: str) -> Path:
        source = kinds[name]
        directory = folder / re.sub(r"\W", "-", name)
        directory.mkdir()
        if not isinstance(source, Path):
            (directory / "tokenizer.json").write_text(json.dumps(source()))
            source = directory
        texts.write_model(directory / "model.bin", tokenizer_metadata(str(source)))
        return directory / "model.bin"

    return kinds, made


def try_tokenizer(name: str, model: Path, folder: Path, report: Report) -> None:
    records = b"".join(record(make(n)) for make in TEXTS.values() for n in (SIZE, 2 * SIZE))
    found = of_each_call("heads_encode", [C / "tokenize_batch", model], folder, records)
    assert len(found) == 2 * len(TEXTS), (name, len(found))
    for i, which in enumerate(TEXTS):
        report.add(f"{name}: {which}", *found[2 * i : 2 * i + 2])


# One that holds bytes of characters back, one that holds byte tokens, marks, spaces between words.
DECODED = ("bpe llama3", "bpe llama2", "unigram t5", "wordpiece uncased")


def try_decoder(name: str, model: Path, folder: Path, report: Report) -> None:
    """The same few tokens again and again; bytes that never become a character."""
    n = len(checkpoints.parse(model.read_bytes())[0]["tokenizer.token.kind"].values)
    for ids in ([0], [n - 1], [5, 6], list(range(min(n, 300)))):
        found = []
        for size in (SIZE, 2 * SIZE):
            one = struct.pack(f"<{len(ids)}i", *ids) * (size // len(ids))
            command = [C / "tokenize_batch", model, "ids"]
            found.append(of_all_calls("heads_decoder_push", command, folder, record(one)))
        report.add(f"{name}: decoding {len(ids)} tokens", *found)


# ---- conversations, JSON ----


def chat_record(messages: list[tuple[str, bytes]]) -> bytes:
    parts = [struct.pack("<IqI", 1, 1772409600, len(messages))]
    for role, content in messages:
        parts += [record(role.encode()), record(content)]
    return b"".join(parts)


def talk(n: int, content) -> list[tuple[str, bytes]]:
    return [(("user", "assistant")[i % 2], content(i)) for i in range(n | 1)]


CONVERSATIONS = {
    "messages": lambda n: talk(n // 4, lambda i: b"message %d" % i),
    "equal messages": lambda n: talk(n // 4, lambda i: b"yes"),
    "a long message": lambda n: talk(1, lambda i: b"a" * n),
    "spaces in a message": lambda n: talk(1, lambda i: b"a" + b" " * n + b"a"),
    "spaces around a message": lambda n: talk(1, lambda i: b" " * n + b"a" + b" " * n),
    "markers": lambda n: talk(3, lambda i: b"</think>" * (n // 8) + b"a"),
    "markers, almost": lambda n: talk(3, lambda i: b"</think" * (n // 7) + b"a"),
    "tags": lambda n: talk(3, lambda i: b"<|im_end|" * (n // 9) + b"a"),
}


def try_chat(name: str, folder: Path, report: Report) -> None:
    model = folder / f"chat {name}.bin"
    chats.write_model(model, chat.chat_metadata(chat_templates.EXACT[name], TOKENS)[0])
    records = b"".join(
        chat_record(make(n)) for make in CONVERSATIONS.values() for n in (SIZE, 2 * SIZE)
    )
    found = of_each_call("chat_render", [C / "render_chat", model], folder, records)
    for i, which in enumerate(CONVERSATIONS):
        report.add(f"chat {name}: {which}", *found[2 * i : 2 * i + 2])


JSON = {
    "a string": lambda n: b'"' + b"a" * n + b'"',
    "escapes": lambda n: b'"' + b"\\u00e9" * (n // 6) + b'"',
    "no end": lambda n: b'"' + b"a" * n,
    "quotes": lambda n: b'"' * n,
    "digits": lambda n: b"1" * n,
    "small digits": lambda n: b"0." + b"1" * n,
    "numbers": lambda n: b"[" + b"1," * n + b"1]",
    "strings": lambda n: b"[" + b'"a",' * n + b"1]",
    "spaces": lambda n: b" " * n + b"1",
    "brackets": lambda n: b"[" * n,
    "deep": lambda n: b"[" + (b"[" * 60 + b"]" * 60 + b",") * (n // 120) + b"1]",
    "keys": lambda n: json.dumps({str(i): i for i in range(n // 8)}).encode(),
    "keys in reverse": lambda n: json.dumps({str(i): i for i in range(n // 8, 0, -1)}).encode(),
    "a key again and again": lambda n: b"{" + b'"a":1,' * (n // 6) + b'"a":1}',
    "long keys": lambda n: json.dumps({"k" * 99 + str(i): i for i in range(n // 100)}).encode(),
    "objects": lambda n: json.dumps([{"role": "user", "content": "a"}] * (n // 32)).encode(),
}


def try_json(folder: Path, report: Report) -> None:
    records = b"".join(record(make(n)) for make in JSON.values() for n in (SIZE, 2 * SIZE))
    found = of_each_call("json_parse", [C / "read_json"], folder, records)
    for i, which in enumerate(JSON):
        report.add(f"json {which}", *found[2 * i : 2 * i + 2])


# ---- checkpoints ----


def numbers(values) -> checkpoints.Meta:
    array = np.array(values, "<i4")
    return checkpoints.Meta(checkpoints.I32, array.size, array.tobytes())


def with_meta(n: int) -> bytes:
    meta, tensors = checkpoints.parse(checkpoints.random_model())
    extra = {f"note.{i:05}": numbers([i]) for i in range(n, 0, -1)}
    return checkpoints.build({**extra, **meta}, tensors)


def with_tensors(n: int) -> bytes:
    """All of them unknown, which is said at the end."""
    meta, tensors = checkpoints.parse(checkpoints.random_model())
    extra = {f"other.{i:05}": checkpoints.vector(np.zeros(1)) for i in range(n, 0, -1)}
    return checkpoints.build(meta, {**tensors, **extra})


def with_shared_tensors(n: int) -> bytes:
    return checkpoints.random_model(
        n_layers=n, n_embd=8, d_ff=8, n_heads=1, n_kv_heads=1, head_dim=8
    )


def with_vocabulary(n: int) -> bytes:
    meta, tensors = checkpoints.parse(checkpoints.random_model(vocab=16))
    vocabulary = talkers.tokenizer_metadata(n)
    return checkpoints.build({**meta, **vocabulary}, tensors)


CHECKPOINTS = {
    "metadata": ("model_open", with_meta, 1024),
    "tensors": ("model_open", with_tensors, 2048),
    "layers": ("model_open", with_shared_tensors, 48),
    "a vocabulary": ("tokenizer_new", with_vocabulary, 300),
}


def try_checkpoint(name: str, folder: Path, report: Report) -> None:
    call, make, size = CHECKPOINTS[name]
    found = []
    for n in (size, 2 * size):
        path = folder / f"{name} {n}.bin"
        path.write_bytes(make(n))
        found.append(of_all_calls(call, [C / "tokenize_batch", path], folder))
    report.add(f"checkpoint: {name}", *found)


# ---- ./run ----


def requests(folder: Path, name: str, lines: list[dict]) -> list:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["--batch", path, "-t", 1]


def stories(n: int) -> list[int]:
    return [(i * i * 31 + i * 7) % 2000 + 10 for i in range(n)]


def greedy(folder: Path) -> str:
    line = {"prompt": "Once", "temperature": 0, "max_tokens": 450}
    command = [RUN, ROOT / "models/stories.bin", *requests(folder, "greedy", [line])]
    done = subprocess.run([str(part) for part in command], capture_output=True, check=True)
    return json.loads(done.stdout)["text"]


def of_stop_strings(folder: Path, n: int, many: bool) -> list:
    """Strings that the text begins with, but for their last character."""
    text = greedy(folder)
    assert len(text) > n
    stops = [text[: n - i] + "#" for i in range(100)] if many else [text[:n] + "#"]
    line = {"prompt": "Once", "temperature": 0, "max_tokens": n // 4, "stop": stops}
    return requests(folder, f"stops {n} {many}", [line])


def kept(folder: Path, n: int) -> list:
    """A prompt whose session is in a file: the first run saves it, the next one loads it."""
    tokens = " ".join(map(str, stories(n)))
    return ["--tokens", tokens, "-n", 1, "--prompt-cache", folder / f"s{n}"]


RUNS = {  # the call to count, the size, what is doubled
    "batch lines": (
        "read_line",
        500,
        lambda f, n: requests(f, f"lines {n}", [{"prompt": "Once", "max_tokens": 0}] * n),
    ),
    "a line's tokens": (
        "read_line",
        5000,
        lambda f, n: requests(f, f"tokens {n}", [{"tokens": stories(n), "max_tokens": 0}]),
    ),
    "a line's stop strings": (
        "read_line",
        2000,
        lambda f, n: requests(
            f, f"many {n}", [{"prompt": "a", "stop": ["a" * 30 + str(i) for i in range(n)]}]
        ),
    ),
    "a line's messages": (
        "messages_from_json",
        2000,
        lambda f, n: requests(
            f,
            f"messages {n}",
            [{"messages": [{"role": "user", "content": str(i)} for i in range(n)]}],
        ),
    ),
    "all of a batch": (
        "batch",
        500,
        lambda f, n: requests(f, f"all {n}", [{"prompt": "Once", "max_tokens": 0}] * n),
    ),
    "prompts that begin alike": (
        "find_prefixes",
        300,
        lambda f, n: requests(
            f, f"alike {n}", [{"tokens": stories(99) + [9, i], "max_tokens": 0} for i in range(n)]
        ),
    ),
    "a stop string": ("add_token", 400, lambda f, n: of_stop_strings(f, n, False)),
    "stop strings": ("add_token", 400, lambda f, n: of_stop_strings(f, n, True)),
    "saving a session": ("heads_sequence_save", 200, kept),
    "loading a session": ("heads_sequence_load", 200, kept),
    "checking a session": ("checksum", 200, kept),
}


def try_run(name: str, folder: Path, report: Report) -> None:
    call, size, options = RUNS[name]
    talker = folder / "talker.bin"
    found = []
    for n in (size, 2 * size):
        command = [RUN, talker, *options(folder, n)]
        if call in ("heads_sequence_load", "checksum"):
            subprocess.run([str(part) for part in command], capture_output=True, check=True)
        found.append(of_all_calls(call, command, folder))
    report.add(f"run: {name}", *found)


# ---- the exporter ----


def lines_of(work) -> int:
    """Lines of Python that work() runs, once for each turn of a comprehension too."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]


def bpe_file(n: int, added: int = 0) -> dict:
    """Merges of one word: aa, aaa, aaaa, and of words of two letters."""
    vocab = {letter: i for i, letter in enumerate(LETTERS)}
    merges = []
    for i in range(n):
        left, right = ("a" * (i + 1), "a") if i < 50 else (LETTERS[i % 26], LETTERS[i // 26 % 26])
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append(f"{left} {right}")
    tokens = [
        {"id": len(vocab) + i, "content": f"<extra_{i}>", "normalized": False, "special": True}
        for i in range(added)
    ]
    return {
        "added_tokens": tokens,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


def unigram_file(n: int) -> dict:
    return {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [["<unk>", 0.0], *([f"piece{i}", -1.5 * i] for i in range(n))],
        },
    }


def read_by(name: str, data: dict, folder: Path):
    directory = Path(tempfile.mkdtemp(dir=folder))
    (directory / name).write_text(json.dumps(data))
    return lambda: tokenizer_metadata(str(directory))


EXPORTED = {
    "merges": (300, lambda f, n: read_by("tokenizer.json", bpe_file(n), f)),
    "added tokens": (500, lambda f, n: read_by("tokenizer.json", bpe_file(60, n), f)),
    "pieces": (1000, lambda f, n: read_by("tokenizer.json", unigram_file(n), f)),
    "a template's text": (
        2000,
        lambda f, n: lambda: chat._tables("x" * n + talkers.PLAIN, TOKENS),
    ),
    "a template's conditions": (
        20,
        lambda f, n: lambda: chat._tables("{% if false %}x{% endif %}" * n + talkers.PLAIN, TOKENS),
    ),
}


def try_exporter(name: str, folder: Path, report: Report) -> None:
    size, make = EXPORTED[name]
    lines_of(make(folder, size))  # what is read once
    report.add(f"exporter: {name}", *(lines_of(make(folder, n)) for n in (size, 2 * size)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--real")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = Report(options.only, options.share, options.seed)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder, jobs = Path(temporary), []
        talker = talkers.with_template((ROOT / "models/stories.bin").read_bytes(), talkers.PLAIN)
        (folder / "talker.bin").write_bytes(talker)

        def start(name: str, work, *arguments) -> None:
            if report.wanted(name):
                jobs.append(pool.submit(work, *arguments, folder, report))

        for name in filter(lambda name: report.wanted(f"exporter {name}"), EXPORTED):
            try_exporter(name, folder, report)
        start("json", try_json)
        for name in CHECKPOINTS:
            start(f"checkpoint {name}", try_checkpoint, name)
        for name in RUNS:
            start(f"run {name}", try_run, name)
        for name in sorted(chat_templates.EXACT):
            start(f"chat {name}", try_chat, name)
        kinds, made = tokenizer_models(folder, options.real)
        for name in filter(report.wanted, kinds):
            model = made(name)
            start(name, try_tokenizer, name, model)
            if name in DECODED:
                start(name, try_decoder, name, model)
        for job in jobs:
            job.result()
    print(f"{report.tried} inputs doubled, {len(report.wrong)} of them not linear")
    return 1 if report.wrong or not report.tried else 0


if __name__ == "__main__":
    sys.exit(main())
