"""python -m heads export|serve|eval ..: see python -m heads COMMAND --help."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {"export": "heads._export", "serve": "heads.serve", "eval": "heads.evaluate"}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    try:
        command = import_module(COMMANDS[name])
    except ModuleNotFoundError as error:
        print(f"heads {name} needs {error.name}: pip install 'heads[{name}]'", file=sys.stderr)
        return 1
    return command.main(sys.argv[2:])


sys.exit(main())
