"""The user's cache: what ./run, the server and heads.Model are given that is no checkpoint, as one.

A source is exported once, with the export's defaults, to NAME-KEY.bin. KEY is of what the source is
(a file's or a directory's path, sizes and times; a hub id and its revision) and of the export.
NAME-KEY.json beside it says the source. A hub id is not asked for again: --clear forgets it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from typing import Callable, Iterator, NamedTuple

from .sources.kinds import PART, is_gguf, is_hub_id

FORMAT = 1  # counts up where an export of the same source becomes another


class Kept(NamedTuple):
    """A checkpoint in the cache, its bytes, and the source that it was made of."""

    path: str
    bytes: int
    source: str


def folder() -> str:
    """$XDG_CACHE_HOME/heads, or where the system's programs keep what can be made again."""
    home = os.path.expanduser("~")
    if os.environ.get("XDG_CACHE_HOME"):
        base = os.environ["XDG_CACHE_HOME"]
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    else:
        base = os.path.join(home, ".cache")
    return os.path.join(base, "heads")


def is_source(name: str) -> bool:
    """Whether it is to be exported before it can be opened: a directory, a GGUF or a hub id."""
    if os.path.isfile(name):
        return is_gguf(name)
    return os.path.isdir(name) or (not os.path.exists(name) and is_hub_id(name))


def _files(source: str) -> list[str]:
    """All files of a directory, all parts of a split GGUF, or the one file."""
    if os.path.isdir(source):
        directory, names = source, os.listdir(source)
    else:
        directory, name = os.path.split(source)
        part = PART.fullmatch(name)
        if not part:
            return [source]
        parts = map(PART.fullmatch, os.listdir(directory or "."))
        names = [one[0] for one in parts if one and one[1] == part[1]]
    paths = [os.path.join(directory, name) for name in sorted(names)]
    return [path for path in paths if os.path.isfile(path)]


def _identity(source: str, revision: str | None) -> list[object]:
    if not os.path.exists(source):
        return [source, revision or "main"]
    stats = [(os.path.realpath(path), os.stat(path)) for path in _files(source)]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def _place(source: str, revision: str | None) -> str:
    """Where the checkpoint of a source is, or will be, without .bin."""
    said = json.dumps([FORMAT, _identity(source, revision)])
    name = os.path.basename(os.path.abspath(source))
    part = PART.fullmatch(name)
    stem = part[1] if part else re.sub(r"\.gguf$", "", name)
    return os.path.join(folder(), f"{stem}-{hashlib.sha256(said.encode()).hexdigest()[:12]}")


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """One process at a time. The lock goes with its process; its file stays."""
    with open(path, "a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            while True:
                with contextlib.suppress(OSError):  # it waits for ten seconds
                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find(source: str, revision: str | None = None) -> str | None:
    """The checkpoint of a source, if the cache has it. Errors: OSError."""
    path = _place(source, revision) + ".bin"
    return path if os.path.exists(path) else None


def checkpoint(
    source: str, revision: str | None = None, say: Callable[[str], None] = lambda sentence: None
) -> str:
    """The checkpoint of a source: from the cache, or exported into it, after `say` has said so.
    Two processes that ask at once make one file. Errors: ExportError, OSError."""
    place = _place(source, revision)
    if os.path.exists(place + ".bin"):
        return place + ".bin"
    os.makedirs(folder(), exist_ok=True)
    with _locked(place + ".lock"):
        if not os.path.exists(place + ".bin"):
            _make(source, revision, place, say)
    return place + ".bin"


def _make(source: str, revision: str | None, place: str, say: Callable[[str], None]) -> None:
    from .convert import convert, open_model  # numpy, which find() does without

    model = open_model(source, None, revision, False, say)
    say(f"{source} is exported, once, to {place}.bin")
    name = os.path.realpath(source) if os.path.exists(source) else source
    earlier = [one.path for one in listed() if one.source == name]
    convert(model, place + ".bin", model.dtype, False, lambda remark: say(f"note: {remark}"))
    with open(place + ".json", "w", encoding="utf-8") as file:
        json.dump({"source": name}, file)
    for path in earlier:  # of the source as it was
        _remove(path)


def listed() -> list[Kept]:
    """What the cache holds, by name."""
    names = sorted(os.listdir(folder())) if os.path.isdir(folder()) else []
    paths = [os.path.join(folder(), name) for name in names if name.endswith(".bin")]
    return [Kept(path, os.path.getsize(path), _source(path)) for path in paths]


def _source(path: str) -> str:
    try:
        with open(path[: -len(".bin")] + ".json", encoding="utf-8") as file:
            return str(json.load(file)["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return "(not known)"


def _remove(path: str) -> None:
    for ending in (".bin", ".json", ".lock"):
        with contextlib.suppress(OSError):  # on Windows, a file that is in use stays
            os.remove(path[: -len(".bin")] + ending)


def clear() -> int:
    """Empties the cache. Returns the bytes that are gone."""
    before = listed()
    for one in before:
        _remove(one.path)
    for name in os.listdir(folder()) if os.path.isdir(folder()) else []:
        if name.endswith((".lock", ".tmp")):  # of exports that failed
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder(), name))
    return sum(one.bytes for one in before if not os.path.exists(one.path))


def main(argv: list[str], prog: str) -> int:
    """heads cache [--clear], and export.py --cache [--clear]."""
    if argv not in ([], ["--clear"]):
        print(f"{prog} [--clear]: lists what was exported by itself, or removes it all")
        return 0 if argv in (["-h"], ["--help"]) else 2
    if argv:
        print(f"{clear():,} bytes are free again")
        return 0
    found = listed()
    for one in found:
        print(f"{one.bytes:15,}  {one.path}  of {one.source}")
    print(f"{sum(one.bytes for one in found):15,}  in {folder()}")
    return 0
