"""The engine's library from Python: passes over many sequences at a time, and their logits."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_size_t, c_void_p
from pathlib import Path

import numpy as np

LIBRARY = Path(__file__).resolve().parent.parent / "build" / "libheads.so"


class Error(ctypes.Structure):
    _fields_ = [("text", c_char * 400)]


class Options(ctypes.Structure):
    _fields_ = [(name, c_int) for name in
                ("context", "chunk", "n_threads", "logit_rows", "k_type", "v_type")]
    _fields_ += [("isa", c_char_p), ("threads_of", c_void_p)]


class Run(ctypes.Structure):
    _fields_ = [("sequence", c_void_p), ("tokens", POINTER(c_int)), ("n", c_int),
                ("n_logits", c_int)]


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("model_open", "workspace_new", "sequence_new", "sequence_fork", "forward_runs"):
        getattr(library, f"heads_{name}").restype = c_void_p
    library.heads_logit_stride.restype = c_size_t
    return library


class Engine:
    """A checkpoint and a workspace to run it in, on one thread."""

    def __init__(self, path: str | Path, context: int = 512):
        self.library, self.error = _library(), Error()
        self.model = self._made("model_open", str(path).encode())
        options = Options(context=context, n_threads=1, logit_rows=4096)
        self.workspace = self._made("workspace_new", self.model, byref(options))
        self.stride = self.library.heads_logit_stride(self.workspace)

    def _made(self, name: str, *args) -> c_void_p:
        made = getattr(self.library, f"heads_{name}")(*args, byref(self.error))
        if not made:
            raise RuntimeError(self.error.text.decode())
        return c_void_p(made)

    def sequence(self) -> c_void_p:
        return self._made("sequence_new", self.workspace, 0)

    def fork(self, sequence: c_void_p, n: int) -> c_void_p:
        """A sequence that begins with the first `n` tokens of another."""
        return self._made("sequence_fork", sequence, n)

    def free(self, sequence: c_void_p) -> None:
        self.library.heads_sequence_free(sequence)

    def forward(self, runs: list[tuple[c_void_p, list[int], int]]) -> np.ndarray:
        """Runs (sequence, tokens, number of last tokens whose logits are wanted) in one pass.

        The rows of logits, run after run, are the library's until the next pass.
        """
        array = (Run * len(runs))(*(
            Run(sequence, (c_int * len(tokens))(*tokens), len(tokens), n_logits)
            for sequence, tokens, n_logits in runs))
        logits = self._made("forward_runs", self.workspace, array, len(runs))
        rows = sum(n_logits for _, _, n_logits in runs)
        flat = ctypes.cast(logits, POINTER(c_float))
        return np.ctypeslib.as_array(flat, (rows, self.stride))
