"""heads: runs language models on a CPU, from Python.

    import heads
    with heads.Model("model.bin") as m:
        print(m.generate("Once upon a time"))
"""

from ._attention import Attention
from ._export import export
from ._native import ContextError, FileError, HeadsError, InputError, calls
from .model import Completion, Model, Session

__version__ = calls.version().decode()
__all__ = ["Attention", "Completion", "ContextError", "FileError", "HeadsError", "InputError",
           "Model", "Session", "export"]  # fmt: skip
