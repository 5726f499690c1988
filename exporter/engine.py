"""The engine, through libheads.so: what a checkpoint makes of texts, and of what its matrices are
multiplied by."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Callable, Sequence

import numpy as np

from .tensor import ExportError

TakeInput = Callable[[list[str], int, np.ndarray], None]


def _native():
    """The package's ctypes declarations, from beside this package or from the repository."""
    try:
        if __package__ != "exporter":
            return importlib.import_module(".._native", __package__)
        folder = str(Path(__file__).resolve().parent.parent / "python")
        if folder not in sys.path:
            sys.path.append(folder)
        return importlib.import_module("heads._native")
    except ImportError as error:
        raise ExportError(f"calibration runs the engine: {error}") from None


class Engine:
    """A checkpoint that runs texts of at most `context` tokens. Errors: ExportError."""

    def __init__(self, path: str, context: int, chunk: int, logit_rows: int):
        self.native = native = _native()
        self.calls = native.calls
        self.model = self.workspace = self.tokenizer = None
        options = native.WorkspaceOptions(context=context, chunk=chunk, logit_rows=logit_rows)
        try:
            self.model = self.calls.model_open(str(path).encode())
            self.workspace = self.calls.workspace_new(self.model, ctypes.byref(options))
        except native.HeadsError as error:
            self.close()
            raise ExportError(str(error)) from None
        self.vocab_size = self.calls.model_shape(self.model).vocab_size

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.calls.tokenizer_free(self.tokenizer)
        self.calls.workspace_free(self.workspace)
        self.calls.model_close(self.model)

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text, with those that the model wants around it."""
        try:
            self.tokenizer = self.tokenizer or self.calls.tokenizer_new(self.model)
        except self.native.HeadsError as error:
            raise ExportError(str(error)) from None
        ids = self.native.INTS()
        n = self.calls.encode(self.tokenizer, text, len(text), 1, ctypes.byref(ids))
        return self.native.taken(ids, n)

    def continued(self, beginnings: Sequence[list[int]], length: int, seed: int) -> np.ndarray:
        """Texts of `length` tokens, sampled as the model finds them likely: ids [n, length]."""
        calls = self.calls
        sequences = [calls.sequence_new(self.workspace, 0) for _ in beginnings]
        samplers = [self._sampler(seed + i) for i in range(len(beginnings))]
        texts, new = [list(ids) for ids in beginnings], list(beginnings)
        try:
            while short := [i for i, text in enumerate(texts) if len(text) < length]:
                n = len(short)
                handles = (ctypes.c_void_p * n)(*(samplers[i] for i in short))
                picked = (ctypes.c_int * n)()
                logits = self._run([sequences[i] for i in short], [new[i] for i in short], 1)
                calls.sampler_pick_each(self.workspace, handles, n, logits, picked)
                for i, token in zip(short, picked):
                    new[i] = [token]
                    texts[i].append(token)
        finally:
            for sampler, sequence in zip(samplers, sequences):
                calls.sampler_free(sampler)
                calls.sequence_free(sequence)
        return np.array([text[:length] for text in texts], np.int32)

    def _sampler(self, seed: int) -> int:
        options = self.native.SamplerOptions(temperature=1.0, seed=seed)
        return self.calls.sampler_new(self.workspace, ctypes.byref(options))

    def logits(self, texts: np.ndarray, n_logits: int) -> np.ndarray:
        """Of the last n_logits tokens of each text: [texts * n_logits, vocab_size]."""
        sequences = [self.calls.sequence_new(self.workspace, 0) for _ in texts]
        try:
            found = self._run(sequences, texts.tolist(), n_logits)
            stride = self.calls.logit_stride(self.workspace)
            rows = np.ctypeslib.as_array(found, (len(texts) * n_logits, stride))
            return rows[:, : self.vocab_size].copy()
        finally:
            for sequence in sequences:
                self.calls.sequence_free(sequence)

    def watch(self, texts: np.ndarray, take: TakeInput, n_logits: int = 0) -> None:
        """Runs the texts, with the logits of the last n_logits tokens of each, and gives `take`
        each product's input: the names of the matrices, which of a stack, and float32 rows
        [n, n_in], borrowed."""
        failed: list[BaseException] = []

        def show(_context, given) -> None:
            product = given.contents
            names = [product.tensors[i].decode() for i in range(product.n_tensors)]
            rows = np.ctypeslib.as_array(product.rows, (product.n, product.stride))
            try:
                if not failed:
                    take(names, product.which, rows[:, : product.width])
            except BaseException as error:  # ctypes would print and forget it, Ctrl-C too
                failed.append(error)

        native = self.native
        probe = native.Probe(native.Look(), None, native.TakeInput(show))
        self.calls.workspace_probe(self.workspace, ctypes.byref(probe))
        sequences = [self.calls.sequence_new(self.workspace, 0) for _ in texts]
        try:
            self._run(sequences, texts.tolist(), n_logits)
        finally:
            self.calls.workspace_probe(self.workspace, None)
            for sequence in sequences:
                self.calls.sequence_free(sequence)
        if failed:
            raise failed[0]

    def _run(self, sequences: list[int], texts: Sequence[list[int]], n_logits: int):
        native = self.native
        runs = (native.Run * len(texts))(
            *[native.Run(s, native.int_array(t), len(t), n_logits)
              for s, t in zip(sequences, texts)]
        )  # fmt: skip
        try:
            return self.calls.forward_runs(self.workspace, runs, len(runs))
        except native.HeadsError as error:
            raise ExportError(str(error)) from None
