"""Damaged and hostile bytes, under ASan and UBSan: each is refused with a sentence or gives a result;
none crashes, hangs (10 seconds), or takes gigabytes.

    python tests/campaigns/bytes.py N [--seed S] [--only KIND]

N inputs over all kinds. The programs in C make and try theirs in one process; those of the exporter
are made here. A failure prints the command that shows it again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import corpus
from corpus import GOLDEN, ROOT

import special_tokens
from chat_templates import EXACT, REFUSED
from chats import with_chat

from exporter.templates import bounded
from exporter.templates.chat import chat_metadata
from exporter.tensor import ExportError
from exporter.tokenizers.files import tokenizer_metadata

PROGRAMS = ROOT / "build" / "asan" / "scalar" / "tests" / "c"
FOLDER = ROOT / "build" / "campaign"
SECONDS, MEMORY = 10, 2 << 30
# Of a thousand inputs: how many are of a kind.
SHARES = {
    "checkpoints": 80.7,
    "shapes": 40,
    "tokenizers": 90,
    "chat tables": 130,
    "sessions": 220,
    "messages": 220,
    "batch lines": 215,
    "tokenizer files": 4,
    "chat templates": 0.3,
}
HOW = {"knobs": 4, "flip": 2, "overwrite": 2, "damage": 2, "weights": 1}
SESSIONS = ["llama", "gemma3", "gpt_oss", "phi3-longer", "deepseek_v2", "deepseek_v3", "lfm3"]
SESSIONS += ["llama4", "qwen3_next", "mamba2", "falcon_mamba", "falcon_h1-norm", "bart", "t5-gated"]
SESSIONS += ["recurrent_gemma", "zamba2"]


class Broken(Exception):
    """What was found, and how to see it again."""


# ---- the programs in C ---------------------------------------------------------------------------


def jobs(kind: str, n: int, rng: random.Random) -> list[list[object]]:
    """The commands that try n inputs of a kind."""

    def share(i: int, of: int) -> int:
        return n * (i + 1) // of - n * i // of

    def checkpoints(files: list[Path], hows: list[str]) -> list[list[object]]:
        pairs = [(file, how) for file in files for how in hows]
        rng.shuffle(pairs)
        counts = [share(i, len(pairs)) for i in range(len(pairs))]
        return [
            ["fuzz_checkpoint", file, how, count, rng.getrandbits(32)]
            for (file, how), count in zip(pairs, counts)
            if count
        ]

    files = sorted(FOLDER.glob("*.bin"))
    others = ("tokenizer-", "template-", "chat-")
    models = [f for f in files if not f.stem.startswith(others)]
    every_how = [how for how, times in HOW.items() for _ in range(times)]
    if kind == "checkpoints":
        return checkpoints(models, every_how)
    if kind == "shapes":
        return checkpoints(sorted(FOLDER.glob("*.shape")), ["knobs", "flip", "overwrite", "damage"])
    if kind == "tokenizers":
        small = [f for f in files if f.stem.startswith("tokenizer-")]
        letters = [FOLDER / "bert.bin", FOLDER / "mbart.bin"]
        hows = ["tokenizer"] * 3 + ["flip", "overwrite", "damage"]
        return checkpoints([*small * 8, *letters], hows)
    if kind == "chat tables":
        tables = [f for f in files if f.stem.startswith("template-")]
        return checkpoints(tables, ["chat"] * 3 + ["flip", "overwrite", "damage"])
    if kind == "sessions":
        types = [(k, v) for k in range(4) for v in range(4)]
        rng.shuffle(types)
        return [
            [
                "fuzz_session",
                FOLDER / f"{name}.bin",
                *types[i % 16],
                share(i, 24),
                rng.getrandbits(32),
            ]
            for i, name in enumerate(SESSIONS * 2)
            if share(i, 24)
        ]
    talkers = [f for f in files if f.stem.startswith("chat-")]
    if kind == "messages":
        return [
            ["fuzz_lines", file, "messages", share(i, len(talkers)), rng.getrandbits(32)]
            for i, file in enumerate(talkers)
        ]
    takers = [*talkers, FOLDER / "mbart.bin"]
    return [
        ["fuzz_lines", file, "lines", share(i, len(takers)), rng.getrandbits(32)]
        for i, file in enumerate(takers)
    ]


def run_job(job: list[object]) -> tuple[int, int]:
    """Inputs tried, and how many of them gave a result."""
    command = [str(PROGRAMS / str(job[0])), *map(str, job[1:])]
    env = {
        **os.environ,
        "HEADS_ISA": "scalar",
        "ASAN_OPTIONS": f"hard_rss_limit_mb={MEMORY >> 20}",
    }
    done = subprocess.run(command, capture_output=True, env=env)
    said = done.stdout.decode(errors="replace")
    numbers = re.search(
        r"(\d+) tried, (?:(\d+) accepted|(\d+) refused(?:, (\d+) refused when)?)", said
    )
    if done.returncode or not numbers:
        shown = f"HEADS_ISA=scalar {shlex.join(command)}"
        raise Broken(f"{shown}\n{said}{done.stderr.decode(errors='replace')[-6000:]}")
    tried, accepted, refused, later = (int(x or 0) for x in numbers.groups())
    return tried, accepted if numbers[2] else tried - refused - later


# ---- files for the exporter ----------------------------------------------------------------------

EXTREMES = [None, True, -1, 0, 1, 2**24 - 1, 2**31, 2**63, 1e308, float("nan"), "", "\0", "\ud800"]
EXTREMES += ["\u2581", "<s>", "a" * 5000, [], {}, [[]], [None], {"type": "Sequence"}]
EXTREMES += [{"type": kind} for kind in ("NFC", "Lowercase", "ByteLevel", "Metaspace", "Split")]
EXTREMES += [{"Regex": "(a+)+$"}, {"String": " "}, {"Regex": "["}]


def nodes(tree: object) -> list[tuple[object, object]]:
    """Every place in a JSON value: what holds it, and its key there."""
    found, rest = [], [tree]
    while rest:
        holder = rest.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in list(keys):
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                rest.append(holder[key])
    return found


def mutate_json(text: str, rng: random.Random) -> str:
    """Parts of a JSON text left out, repeated, exchanged or set to extremes."""
    tree = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        places = nodes(tree)
        if not places:
            break
        holder, key = rng.choice(places)
        other_holder, other = rng.choice(places)
        how = rng.randrange(5)
        if how == 0:
            del holder[key]
        elif how == 1:
            holder[key] = copy.deepcopy(other_holder[other])
        elif how == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(rng.choice((holder[key], other_holder[other]))))
        elif how == 3 and rng.random() < 0.05:
            holder[key] = json.loads("[" * 900 + "]" * 900)
        else:
            holder[key] = copy.deepcopy(rng.choice(EXTREMES))
    return json.dumps(tree) if rng.random() < 0.98 else "[" * 100_000


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, to = rng.randrange(len(out) + 1), rng.randrange(len(out) + 1)
        size = rng.choice((1, 1, 4, 64))
        how = rng.randrange(5)
        if how == 0:
            out[at : at + size] = bytes(rng.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in range(size))
        elif how == 1:
            out[at:at] = out[to : to + size]
        elif how == 2:
            del out[at : at + size]
        elif how == 3 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def tokenizer_folders(folder: Path) -> list[Path]:
    for case in special_tokens.CASES:
        to = folder / f"special {case}"
        to.mkdir(parents=True)
        special_tokens.write(case, to)
    for source in sorted((GOLDEN / "unigram").iterdir()):
        to = folder / source.name
        to.mkdir()
        for file in source.iterdir():
            if file.name != "expected.json":
                shutil.copy(file, to)
    for name in ("bert", "mbart"):
        to = folder / f"letters of {name}"
        to.mkdir()
        for file in (FOLDER / "sources" / name).iterdir():
            if file.suffix in (".json", ".txt") and "golden" not in file.name:
                shutil.copy(file, to)
    return sorted(folder.iterdir())


@contextlib.contextmanager
def bounds():
    """Too much memory, or time beyond signal.alarm's, is an exception."""

    def too_long(*_):
        raise Broken("it takes too long")

    before = resource.getrlimit(resource.RLIMIT_AS)
    signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def kept(what: str, content: bytes) -> str:
    path = FOLDER / f"broken-{what}"
    path.write_bytes(content)
    return f"the input is {path}"


def taken_by_the_engine(model: Path) -> None:
    """The engine takes what the exporter has made."""
    unlimited = (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2  # ASan reserves terabytes
    done = subprocess.run(
        [PROGRAMS / "fuzz_checkpoint", model, "grow"],
        capture_output=True,
        env={**os.environ, "HEADS_ISA": "scalar"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, unlimited),
    )
    if done.returncode:
        raise Broken(f"{model}: {(done.stdout + done.stderr).decode(errors='replace')[-4000:]}")


def try_tokenizer_files(n: int, rng: random.Random) -> tuple[int, int]:
    accepted = 0
    with tempfile.TemporaryDirectory() as folder:
        sources = tokenizer_folders(Path(folder))
        for i in range(n):
            source = rng.choice(sources)
            file = rng.choice([f for f in sorted(source.iterdir()) if f.name != "config.json"])
            before = file.read_bytes()
            after = mutate_bytes(before, rng)
            if file.suffix == ".json" and rng.random() < 0.9:
                with contextlib.suppress(RecursionError):  # nested too deep for us
                    after = mutate_json(before.decode(), rng).encode()
            file.write_bytes(after)
            signal.alarm(SECONDS)
            try:
                metadata = tokenizer_metadata(str(source))
                accepted += 1
            except ExportError as error:
                metadata = None
                if not str(error).strip():
                    raise Broken("a refusal says nothing")
            except (Exception, Broken) as error:
                where = f"{kept(file.name, after)}, in the place of that of {source.name}"
                raise Broken(f"{where}: {type(error).__name__}: {error}") from error
            finally:
                signal.alarm(0)
                file.write_bytes(before)
            if metadata and accepted % 10 == 0:
                corpus.tokenizer_texts.write_model(FOLDER / "made.bin", metadata)
                taken_by_the_engine(FOLDER / "made.bin")
    return n, accepted


# ---- chat templates ------------------------------------------------------------------------------

STATEMENTS = ["{% set x = 'a' * 10**9 %}", "{% set ns = namespace(n=0) %}", "{{ bos_token }}", "\n"]
STATEMENTS += ["{{ raise_exception('no') }}", "{{ loop.index0 }}", "{% if loop.last %}x{% endif %}"]
STATEMENTS += ["{% for i in range(10**9) %}{% endfor %}", "{{ range(10**9) | list | length }}"]
STATEMENTS += ["{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ messages | tojson }}"]
STATEMENTS += ["{{ strftime_now('%Y') }}", "{{ messages[::-1][0]['content'] }}", "{# a #}", "}}"]
WORDS = ["messages", "loop", "m", "message", "content", "role", "true", "none", "trim", "upper"]
STRINGS = ["''", "'user'", "'system'", "'assistant'", "'\\n'", "'</s>'", "'\u2003'", "'%'"]


def mutate_template(text: str, rng: random.Random) -> str:
    """Statements left out, repeated, exchanged or put in; words and strings inside them changed."""
    parts = re.findall(r"\{\{.*?\}\}|\{%.*?%\}|(?:(?!\{[{%]).)+", text, re.S)
    for _ in range(rng.randint(1, 3)):
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        how = rng.randrange(8)
        if how == 0 and len(parts) > 1:
            del parts[at]
        elif how == 1:
            parts[at] = parts[other]
        elif how == 2:
            parts.insert(at, rng.choice([*STATEMENTS, parts[other]]))
        else:
            pattern, others = rng.choice(((r"\b[a-z_]\w*\b", WORDS), (r"'[^']*'", STRINGS)))
            found = list(re.finditer(pattern, parts[at]))
            if found:
                start, end = rng.choice(found).span()
                parts[at] = parts[at][:start] + rng.choice(others) + parts[at][end:]
    return "".join(parts)


def try_chat_templates(n: int, rng: random.Random) -> tuple[int, int]:
    accepted = 0
    bounded.SECONDS = 4  # of computing, so that no template needs ours
    narrow = (FOLDER / "tokenizer-stories.bin").read_bytes()
    sources = [*EXACT.values(), *EXACT.values(), *REFUSED]
    for i in range(n):
        template = mutate_template(rng.choice(sources), rng)
        signal.alarm(6 * SECONDS)  # of the clock
        try:
            metadata, remark = chat_metadata(template, {"bos_token": "<s>", "eos_token": "</s>"})
        except (Exception, Broken) as error:
            where = kept("template", template.encode("utf-8", "replace"))
            raise Broken(f"{where}: {type(error).__name__}: {error}") from error
        finally:
            signal.alarm(0)
        if "chat.refused" not in metadata:
            accepted += 1
            (FOLDER / "made.bin").write_bytes(with_chat(narrow, metadata))
            taken_by_the_engine(FOLDER / "made.bin")
    return n, accepted


# ---- all of it -----------------------------------------------------------------------------------


def try_kind(kind: str, n: int, seed: int) -> tuple[int, int]:
    rng = random.Random(f"{seed} {kind}")
    made_here = {"tokenizer files": try_tokenizer_files, "chat templates": try_chat_templates}
    if kind in made_here:
        with bounds():
            return made_here[kind](n, rng)
    found = [run_job(job) for job in jobs(kind, n, rng)]
    return sum(tried for tried, _ in found), sum(accepted for _, accepted in found)


def prepare() -> None:
    programs = [f"build/asan/scalar/tests/c/fuzz_{p}" for p in ("checkpoint", "session", "lines")]
    subprocess.run(["make", "-s", "ASAN=1", "SCALAR=1", *programs], cwd=ROOT, check=True)
    corpus.make(FOLDER)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SHARES, help="all N are of this kind")
    options = parser.parse_args()
    prepare()
    counts, total = [], 0
    for kind in [options.only] if options.only else SHARES:
        n = options.n if options.only else round(options.n * SHARES[kind] / 1000)
        start = time.monotonic()
        try:
            tried, accepted = try_kind(kind, n, options.seed)
        except Broken as broken:
            again = f"--only {shlex.quote(kind)} --seed {options.seed}"
            print(f"broken: {broken}\n{sys.argv[0]} {n} {again} shows it again")
            return 1
        total += tried
        counts.append(f"{tried} {kind} ({accepted} gave a result)")
        print(f"{counts[-1]}, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{total} inputs, none broke anything: {', '.join(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
