"""python -m heads COMMAND ..

    export SRC OUT   makes a checkpoint of a Hugging Face or GGUF model
    serve MODEL      answers in OpenAI's protocol
    eval MODEL ..    runs lm-evaluation-harness

python -m heads COMMAND --help says more."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {"export": "heads._export", "serve": "heads.serve", "eval": "heads.evaluate"}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    if name not in COMMANDS:
        print(f"heads: there is no command {name!r}; see python -m heads --help", file=sys.stderr)
        return 2
    try:
        command = import_module(COMMANDS[name])
    except ModuleNotFoundError as error:
        print(f"heads: {name} needs {error.name}, which comes with the extra {name!r}: "
              f"pip install '.[{name}]' in the repository", file=sys.stderr)  # fmt: skip
        return 1
    return command.main(sys.argv[2:])


sys.exit(main())
