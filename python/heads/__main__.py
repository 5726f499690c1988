"""heads [MODEL] [options]  continues a text with a language model
heads export SRC OUT     makes a checkpoint of a Hugging Face or GGUF model
heads cache [--clear]    lists what was exported by itself: MODEL may be a directory, a GGUF or org/name
heads serve MODEL        answers in OpenAI's protocol
heads eval MODEL ..      runs lm-evaluation-harness

heads COMMAND --help says more; python -m heads is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from .exporter.streams import open_streams

COMMANDS = {
    "cache": "heads._cache",
    "export": "heads._export",
    "serve": "heads.server.serve",
    "eval": "heads.evaluate",
}


def program() -> Path | None:
    """The engine's command line: in the package, or in a checkout that was built by make."""
    package = Path(__file__).resolve().parent
    name = "run.exe" if sys.platform == "win32" else "run"
    places = (package / name, package.parent.parent / name)
    return next((path for path in places if os.access(path, os.X_OK)), None)


def run_program(arguments: list[str]) -> int:
    path = program()
    if path is None:
        print(
            "heads: the engine's program is missing; run make in the checkout, or pip install .",
            file=sys.stderr,
        )
        return 1
    os.environ.setdefault("HEADS_PYTHON", sys.executable)  # where it finds the exporter
    sys.stdout.flush()
    if sys.platform == "win32":  # there exec starts a process beside the shell
        return subprocess.call(["heads", *arguments], executable=path)
    os.execv(path, ["heads", *arguments])


def main() -> int:
    try:
        return run()
    except KeyboardInterrupt:  # before a command says something better
        return 130


def run() -> int:
    open_streams()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print(__doc__ + "\n")
    if name not in COMMANDS:
        meant = get_close_matches(name, COMMANDS, n=1)
        if meant and not os.path.exists(name):
            said = f"there is no file and no command {name!r}: did you mean {meant[0]}?"
            print(f"heads: {said}", file=sys.stderr)
            return 2
        return run_program(sys.argv[1:])
    if name == "export":  # as export.py has it
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        command = import_module(COMMANDS[name])
    except ModuleNotFoundError as error:
        print(
            f"heads: {name} needs {error.name}, which comes with the extra {name!r}: "
            f"pip install '.[{name}]' in the repository",
            file=sys.stderr,
        )
        return 1
    return command.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
