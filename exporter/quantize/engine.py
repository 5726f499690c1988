"""The engine, through libheads.so: runs texts, and gives the logits and the inputs of matrices."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from ..checkpoint import Entry, write_shape
from ..native import native
from ..tensor import ExportError

TakeInput = Callable[[list[str], int, np.ndarray], None]


class Text(NamedTuple):
    """Tokens that the model runs; for an encoder-decoder also the source that they answer."""

    ids: Sequence[int]
    source: Sequence[int] = ()


class Stream(NamedTuple):
    """What comes into a layer: the residual stream of each pass, float32 [n_rows, n_embd]."""

    layer: int
    passes: list[np.ndarray]


START = Stream(0, [])  # a pass begins at the embeddings


def _rows(given) -> np.ndarray:
    """The rows of a product's or a layer's input, borrowed: float32 [n, width]."""
    return np.ctypeslib.as_array(given.rows, (given.n, given.stride))[:, : given.width]


def longest(texts: Sequence[Text]) -> int:
    """The number of tokens of the longest text or source."""
    return max(max(len(text.ids), len(text.source)) for text in texts)


def begins(metadata: Mapping[str, object]) -> list[int]:
    """For each layer, the one at which a pass can begin that changes in it: itself, unless later
    ones read keys and values from before it. 0: at the embeddings."""
    n_layers, first = int(metadata["model.n_layers"]), int(metadata.get("model.source_layers", 0))
    read = np.broadcast_to(metadata.get("layer.kv_source", -1), n_layers)
    begins = []
    for begin in range(n_layers):
        while earlier := [int(at) for at in read[begin:] if 0 <= at < begin]:
            begin = min(earlier)
        begins.append(begin if begin > first else 0)
    return begins


def cache_bytes(metadata: Mapping[str, object], stored: Sequence[Entry]) -> int:
    """Of the KV cache of the checkpoint's whole context, in f16. Errors: ExportError."""
    try:
        found = native()
    except ImportError as error:
        raise ExportError(f"--memory asks the engine what a cache takes: {error}") from None
    plan, options = found.KvPlan(), found.WorkspaceOptions(context=int(metadata["model.context"]))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "shape.bin")
        write_shape(path, metadata, stored)
        try:
            model = found.calls.model_open(path.encode())
            try:
                found.calls.model_kv_plan(model, ctypes.byref(options), ctypes.byref(plan))
            finally:
                found.calls.model_close(model)
        except found.HeadsError as error:
            raise ExportError(str(error)) from None
    return plan.reserved


class Engine:
    """A checkpoint that runs texts of at most `context` tokens. Errors: ExportError."""

    def __init__(self, path: str, context: int, chunk: int, logit_rows: int):
        try:
            self.native = found = native()
        except ImportError as error:
            raise ExportError(f"calibration runs the engine: {error}") from None
        self.calls = found.calls
        self.model = self.workspace = self.tokenizer = None
        options = found.WorkspaceOptions(context=context, chunk=chunk, logit_rows=logit_rows)
        try:
            self.model = self.calls.model_open(str(path).encode())
            self.workspace = self.calls.workspace_new(self.model, ctypes.byref(options))
        except found.HeadsError as error:
            self.close()
            raise ExportError(str(error)) from None
        shape = self.calls.model_shape(self.model)
        self.vocab_size, self.n_layers = shape.vocab_size, shape.n_layers
        self.vector, self.token_vectors = shape.vector, shape.token_vectors

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.calls.tokenizer_free(self.tokenizer)
        self.calls.workspace_free(self.workspace)
        self.calls.model_close(self.model)

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text, without those that the model wants around it."""
        try:
            self.tokenizer = self.tokenizer or self.calls.tokenizer_new(self.model)
        except self.native.HeadsError as error:
            raise ExportError(str(error)) from None
        ids = self.native.INTS()
        n = self.calls.encode(self.tokenizer, text, len(text), 0, ctypes.byref(ids))
        return self.native.taken(ids, n)

    def continued(
        self,
        beginnings: Sequence[Text],
        length: int,
        seed: int,
        progress: Callable[[float], None] = lambda share: None,
    ) -> list[Text]:
        """Texts of `length` tokens, sampled as the model finds them likely. Answers to a source,
        for which encode() has been called, may end before."""
        calls = self.calls
        texts, new = ([list(text.ids) for text in beginnings] for _ in range(2))
        with self._sequences(beginnings) as sequences, self._samplers(texts, seed) as samplers:
            while short := [i for i, ids in enumerate(texts) if len(ids) < length and new[i]]:
                n = len(short)
                handles = (ctypes.c_void_p * n)(*(samplers[i] for i in short))
                picked = (ctypes.c_int * n)()
                logits = self._run([sequences[i] for i in short], [new[i] for i in short], 1)
                calls.sampler_pick_each(self.workspace, handles, n, logits, picked)
                for i, token in zip(short, picked):
                    ends = beginnings[i].source and calls.is_eos(self.tokenizer, token)
                    calls.sampler_accept(samplers[i], token)
                    new[i] = [] if ends else [token]
                    texts[i] += new[i]
                progress(min(len(texts[i]) for i in short) / length)
        return [Text(ids[:length], text.source) for ids, text in zip(texts, beginnings)]

    @contextlib.contextmanager
    def _samplers(self, texts: Sequence[Sequence[int]], seed: int) -> Iterator[list[int]]:
        """A sampler for each text, which has accepted its tokens."""
        samplers: list[int] = []
        try:
            for i, ids in enumerate(texts):
                options = self.native.SamplerOptions(temperature=1.0, seed=seed + i)
                samplers.append(self.calls.sampler_new(self.workspace, ctypes.byref(options)))
                for token in ids:
                    self.calls.sampler_accept(samplers[i], token)
            yield samplers
        finally:
            for sampler in samplers:
                self.calls.sampler_free(sampler)

    @contextlib.contextmanager
    def _sequences(self, texts: Sequence[Text]) -> Iterator[list[int]]:
        """A sequence for each text, which has read its source."""
        sequences: list[int] = []
        try:
            for _ in texts:
                sequences.append(self.calls.sequence_new(self.workspace, 0))
            if texts[0].source:
                sources = [text.source for text in texts]
                self._call(self.calls.read_sources, sequences, sources, 0)
            yield sequences
        finally:
            for sequence in sequences:
                self.calls.sequence_free(sequence)

    def logits(self, texts: Sequence[Text], n_logits: int, begin: Stream = START) -> np.ndarray:
        """The logits of the last n_logits tokens of each text, or of all it has: [..,
        vocab_size], borrowed until the next run. begin: what these texts have at a layer, from
        which they go on."""
        ids = [text.ids for text in texts]
        with self._sequences(texts) as sequences, self._seen(enter=self._entering(begin)):
            found = self.native.apart(self._run, sequences, ids, n_logits)
            shape = sum(min(len(i), n_logits) for i in ids), self.calls.logit_stride(self.workspace)
            return np.ctypeslib.as_array(found, shape)[:, : self.vocab_size]

    def vectors(self, texts: Sequence[Text]) -> np.ndarray:
        """The vectors of texts, or of all their tokens, each of length 1: [n, width]."""
        native, rows = self.native, len(texts)
        if self.token_vectors:
            rows = sum(len(text.ids) for text in texts)
        array = (native.Text * len(texts))(
            *[native.Text(native.int_array(text.ids), len(text.ids)) for text in texts]
        )
        found = np.empty((rows, self.vector), np.float32)
        try:
            data = found.ctypes.data_as(native.FLOATS)
            self.calls.embed(self.model, None, array, len(array), data)
        except native.HeadsError as error:
            raise ExportError(str(error)) from None
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def stream(self, texts: Sequence[Text], layer: int, begin: Stream = START) -> Stream:
        """What comes into a layer of the decoder. begin: what came into one before it."""
        return self.watch(texts, None, 0, begin, layer)

    def _entering(
        self, begin: Stream, end: int | None = None, take: Callable | None = None
    ) -> Callable:
        """What passes call before a layer: those before `begin` are passed over; `take` gets what
        comes into the layer `end`, and none is left then."""
        given = iter(begin.passes)

        def enter(at) -> int:
            if at.layer < begin.layer:
                _rows(at)[:] = next(given)
                return begin.layer
            if at.layer == end:
                take(_rows(at).copy())
                return self.n_layers
            return at.layer

        return enter

    def watch(
        self,
        texts: Sequence[Text],
        take: TakeInput | None,
        n_logits: int = 0,
        begin: Stream = START,
        end: int | None = None,
    ) -> Stream:
        """Runs the texts, with the logits of the last n_logits tokens of each, and gives `take`
        each product's input: the names of the matrices, which of a stack, and float32 rows
        [n, n_in], borrowed. begin: as of logits(); end: the layer before which a pass ends, of
        which it returns the input."""
        passes: list[np.ndarray] = []

        def show(product) -> None:
            names = [product.tensors[i].decode() for i in range(product.n_tensors)]
            take(names, product.which, _rows(product))

        def run() -> None:
            with self._sequences(texts) as sequences:
                self._run(sequences, [text.ids for text in texts], n_logits)

        looks = {"product": show} if take else {}
        with self._seen(**looks, enter=self._entering(begin, end, passes.append)):
            self.native.apart(run)
        return begin if end is None else Stream(end, passes)

    @contextlib.contextmanager
    def _seen(self, **see: Callable) -> Iterator[None]:
        """Passes call each of `see` with what the probe of that name sees. Raises what one raised."""
        failed: list[BaseException] = []

        def caught(see: Callable) -> Callable:
            def called(_context, given) -> int:
                try:
                    return 0 if failed else see(given.contents) or 0
                except BaseException as error:  # ctypes would print and forget it
                    failed.append(error)
                    return 0

            return called

        kinds = dict(self.native.Probe._fields_)
        probe = self.native.Probe(**{what: kinds[what](caught(f)) for what, f in see.items()})
        with self.native.watched(self.workspace, probe):
            yield
        if failed:
            raise failed[0]

    def _run(self, sequences: list[int], ids: Sequence[Sequence[int]], n_logits: int):
        return self._call(self.calls.forward_runs, sequences, ids, n_logits)

    def _call(self, call, sequences: list[int], ids: Sequence[Sequence[int]], n_logits: int):
        native = self.native
        runs = (native.Run * len(ids))(
            *[
                native.Run(s, native.int_array(i), len(i), min(len(i), n_logits))
                for s, i in zip(sequences, ids)
            ]
        )
        try:
            return call(self.workspace, runs, len(runs))
        except native.HeadsError as error:
            raise ExportError(str(error)) from None
