"""Research with small models, run from the repository's root with `python -m`; needs torch.

    grammar.py, stories.py   stories by a grammar, which both rooms' models learn
    learning.py              what both rooms do with torch
    training/                how the models in models/ are trained: `make model`
    lab/                     variants of attention, trained and compared: `make lab`

The engine is used through the module heads, from the package or else from python/, and through
./run and export.py.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))
