"""Bent GGUF files: each is refused with a sentence or exported; nothing else is raised, and none takes
10 seconds or 2 GB.

    python tests/campaigns/ggufs.py N [FOLDER] [--seed S]

N files, made of golden checkpoints, or of the small ones of FOLDER, which are packed with xz. Of
each place that fails, the first file is kept.
"""

from __future__ import annotations

import argparse
import lzma
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / f) for f in ("", "support"))]

import gguf_files  # noqa: E402
import gguf_mutants  # noqa: E402

SECONDS, MEMORY, SMALL = 10, 2 << 30, 150_000
GOLDEN = ["llama", "llama-3", "gemma3", "gpt2", "phi3-longer", "falcon", "qwen3"]


class TooLong(Exception):
    pass


def sources(folder: Path | None) -> list[bytes]:
    """The files to bend."""
    if folder:
        found = [lzma.open(path).read() for path in sorted(folder.glob("*.gguf.xz"))]
        small = [data for data in found if data[:4] == b"GGUF" and len(data) < SMALL]
        return [data for data in small if b"chat_template" not in data]  # bytes.py tries these
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "x.gguf"
        found = []
        for name in GOLDEN:
            gguf_files.convert(ROOT / "tests" / "golden" / name, path)
            found.append(path.read_bytes())
        return found


def tried(files: list[bytes], n: int, rng: random.Random) -> tuple[int, dict[str, bytes]]:
    """Bends n files. Returns how many were exported, and the files that raised anything but
    ExportError, by what and where."""
    fields = [gguf_mutants.places(data) for data in files]
    exported, faults = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(n):
            i = rng.randrange(len(files))
            data = gguf_mutants.mutant(files[i], fields[i], rng)
            dtype = rng.choice(("keep", "keep", "q8", "f32"))
            signal.alarm(SECONDS)
            try:
                exported += not gguf_mutants.sentence(Path(folder), data, dtype)
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)
                ours = [frame for frame in where if "exporter" in frame.filename][-1]
                said = f"{Path(ours.filename).name}:{ours.lineno}: {type(error).__name__}: {error}"
                faults.setdefault(f"{ours.filename}:{ours.lineno}", (said, data))
            finally:
                signal.alarm(0)
    return exported, dict(faults.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("n", type=int, metavar="N")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    files = sources(args.folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def too_long(*_):
        raise TooLong("it takes too long")

    signal.signal(signal.SIGALRM, too_long)
    start = time.monotonic()
    exported, faults = tried(files, args.n, random.Random(args.seed))
    seconds = time.monotonic() - start
    for i, (said, data) in enumerate(faults.items()):
        kept = Path(tempfile.gettempdir()) / f"broken-{i}.gguf"
        kept.write_bytes(data)
        print(f"broken: {said}; the file is {kept}")
    print(f"{args.n} bent files, {exported} exported, {seconds:.0f} s, {len(faults)} broke it")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
