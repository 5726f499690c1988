"""Steering vectors: what is added to the residual stream after layers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from ctypes import POINTER, byref, c_void_p, cast
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike

from . import _arguments as arguments
from ._arguments import LARGEST, Floats, Prompt
from ._native import FLOATS, Enter, InputError, Probe, Steer, apart, calls, watched
from ._public import own


@own
class Steering:
    """Vectors to be added to the residual stream after layers, {layer: float32 [n_embd]}, for the
    `steer` of Model.generate, chat and session. Model.direction makes one of texts, Model.steering
    reads a file. `2 * s` scales it, `s + t` adds two up. Errors: numbers that are not finite."""

    def __init__(self, vectors: Mapping[int, ArrayLike]):
        if not isinstance(vectors, Mapping):
            raise arguments.refusal("vectors", "a dict of vectors by their layers", vectors)
        self.vectors: dict[int, Floats] = {}
        for layer, given in vectors.items():
            with np.errstate(over="ignore"):  # infinity is refused below
                vector = np.array(given, np.float32)
            if vector.ndim != 1 or not np.isfinite(vector).all():
                raise InputError(f"vectors: layer {layer}'s is no vector of finite numbers")
            self.vectors[arguments.whole("vectors", layer, 0)] = vector

    def __mul__(self, scale: float) -> Steering:
        scale = arguments.number("scale", scale, -LARGEST, LARGEST)
        return Steering({i: np.float64(scale) * v for i, v in self.vectors.items()})

    __rmul__ = __mul__

    def __add__(self, other: Steering) -> Steering:
        if not isinstance(other, Steering):
            return NotImplemented
        total = dict(self.vectors)
        for layer, vector in other.vectors.items():
            total[layer] = total[layer] + vector if layer in total else vector
        return Steering(total)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a GGUF file of control vectors, as repeng does, that ./run --steer, llama.cpp and
        Model.steering read. llama.cpp wants no vector after layer 0."""
        with open(arguments.path("path", path), "wb") as f:
            f.write(_gguf(self.vectors))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{i}: {np.linalg.norm(v):.3g}" for i, v in self.vectors.items())
        return f"<heads.Steering, lengths by layer {{{sizes}}}>"


Steerings = Union[Steering, Sequence[Optional[Steering]], None]  # of all texts, or of each


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf(vectors: dict[int, Floats]) -> bytes:
    """Version 3 (github.com/ggml-org/ggml/blob/master/docs/gguf.md): strings have type 8, u32 type
    4; a tensor has its dimensions, type 0 (F32) and its place in the data, a multiple of 32."""
    values = [("general.architecture", 8, _string("controlvector"))]
    values += [("controlvector.layer_count", 4, struct.pack("<I", len(vectors)))]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(vectors), len(values))
    head += b"".join(_string(name) + struct.pack("<I", kind) + data for name, kind, data in values)
    data = b""
    for layer, vector in vectors.items():
        info = struct.pack("<IQIQ", 1, len(vector), 0, len(data))
        head += _string(f"direction.{layer}") + info
        data += vector.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def steers(steering: object, shape: Any) -> Any:
    """An array of heads_steer, which borrows the vectors, for a model of this shape."""
    if steering is None:
        return (Steer * 0)()
    if not isinstance(steering, Steering):
        raise arguments.refusal("steer", "a heads.Steering", steering)
    for layer, vector in steering.vectors.items():
        if layer >= shape.n_layers:
            raise InputError(f"steer: layer {layer}; there are layers 0..{shape.n_layers - 1}")
        if len(vector) != shape.n_embd:
            raise InputError(
                f"steer: layer {layer}'s vector has {len(vector)} numbers, and the model's stream "
                f"{shape.n_embd}: it is for another model"
            )
    found = (Steer(i, v.ctypes.data_as(FLOATS), 1.0) for i, v in steering.vectors.items())
    return (Steer * len(steering.vectors))(*found)


def read(model: Any, path: str | os.PathLike[str]) -> Steering:
    found = POINTER(Steer)()
    name = os.fsencode(arguments.path("path", path))
    n = calls.read_steers(model._handles.model, name, 1.0, byref(found))
    try:
        total = Steering({})
        for one in found[:n]:
            vector = np.ctypeslib.as_array(one.vector, (model.shape.n_embd,))
            total += Steering({one.layer: vector})
        return total
    finally:
        calls.free(cast(found, c_void_p))


def direction(
    model: Any, positive: Iterable[Prompt], negative: Iterable[Prompt], layers: list[int]
) -> Steering:
    sums = []
    for name, given in (("positive", positive), ("negative", negative)):
        texts = arguments.prompts(name, given)
        if not texts:
            raise arguments.refusal(name, "a list of texts, one or more", given)
        streams = [_streams(model, text, layers) for text in texts]
        sums.append(np.mean(streams, 0, np.float64))
    return Steering({i: (sums[0] - sums[1])[at] for at, i in enumerate(layers)})


def _streams(model: Any, text: Prompt, layers: list[int]) -> Floats:
    """The residual stream after the layers at a text's last token, [layers][n_embd]."""
    found = np.empty((len(layers), model.shape.n_embd), np.float32)

    def note(_, given) -> int:
        x = given.contents
        if x.layer - 1 in layers:
            rows = np.ctypeslib.as_array(x.rows, (x.n, x.stride))
            found[layers.index(x.layer - 1)] = rows[-1, : x.width]
        return x.layer

    with closing(model.session()) as session, session._turn() as sequence:
        with watched(model._opened.workspace, Probe(enter=Enter(note))):
            apart(session._run, sequence, session._ids(text), False)
    return found
