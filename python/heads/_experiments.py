"""What carries an answer, by the library: patching, attribution, and one head's parts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from ctypes import byref, c_double, c_void_p, cast, string_at
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from . import _adapters as adapters
from . import _arguments as arguments
from ._arguments import Floats, Prompt
from . import _steering as steering
from ._native import (
    FLOATS,
    Dissection,
    Error,
    InputError,
    Parts,
    Patching,
    Progress,
    Scoring,
    apart,
)
from ._native import calls, int_array

METRICS = ("difference", "log_probability", "kl")


@dataclass(repr=False)
class Attribution:
    """The parts of a logit, or of a difference of two, after a text's last token: heads, float32
    [n_layers][heads], 0 where a layer has fewer; ffn, [n_layers], what each layer's network or its
    experts add; the embedding; and the rest, biases. total: their sum, which is the logit; where
    the model has a softcap, the logit before it. logit: as the model gives it."""

    heads: Floats
    ffn: Floats
    embedding: float
    rest: float
    total: float
    logit: float

    def __repr__(self) -> str:
        return f"<heads.Attribution: {self.total:.4f} of {self.heads.shape} heads>"


@dataclass(repr=False)
class Scores:
    """How a head weighs the n tokens that it sees: its query q, float32 [dim], and their keys k,
    [n][dim], as they are multiplied; products, scale q . k; scores, after softcap and biases;
    weights, after the softmax; and the weight of the layer's sink, 0 if it has none."""

    q: Floats
    k: Floats
    products: Floats
    scores: Floats
    weights: Floats
    sink: float


@dataclass(repr=False)
class HeadParts:
    """One head computing, for one token. It sees n positions from `first` on and reads kv_head of
    kv_layer, which the query heads `sharing` read too. turned: how it weighs them; plain: the same
    without rope in this layer, which turns n_rope numbers from number `rope` on. v, float32
    [n][v_dim]; mix, [v_dim], their sum by weights; mixed, the same after a gate; out, [n_embd],
    what that adds to the output matrix's result. Of latent attention (MLA) also latents [n][rank],
    from which k and v are expanded, q_latent and mix_latent [rank]; else None."""

    first: int
    kv_layer: int
    kv_head: int
    sharing: range
    rope: int
    n_rope: int
    scale: float
    turned: Scores
    plain: Scores
    v: Floats
    mix: Floats
    mixed: Floats
    out: Floats
    latents: Optional[Floats] = None
    q_latent: Optional[Floats] = None
    mix_latent: Optional[Floats] = None

    def __repr__(self) -> str:
        seen = f"{self.first}..{self.first + len(self.v) - 1}"
        return f"<heads.HeadParts: positions {seen}, {self.v.shape[1]} numbers>"


def one_id(model, name: str, value: int | str | None) -> int:
    """An id, or the only one of a text; 0 where there is none."""
    if value is None:
        return 0
    if not isinstance(value, str):
        return arguments.whole(name, value, 0, model.shape.vocab_size - 1)
    ids = model._encoded(name, value, special=False)
    if len(ids) != 1:
        raise InputError(
            f"{name}: {value!r} is {len(ids)} tokens, {model._texts_of(ids)}; give one, or its id"
        )
    return ids[0]


def two_texts(model, clean: Prompt, corrupted: Prompt) -> tuple[list[int], list[int]]:
    """Their ids, as many of both."""
    pair = model._ids("clean", clean), model._ids("corrupted", corrupted)
    if len(pair[0]) != len(pair[1]):
        raise InputError(
            f"clean has {len(pair[0])} tokens and corrupted {len(pair[1])}: {model._texts_of(pair[0])} "
            f"and {model._texts_of(pair[1])}; patching needs as many of both"
        )
    return pair


def patch(
    model,
    ids: tuple[list[int], list[int]],
    answer: int | str | None,
    against: int | str | None,
    of: str,
    metric: str,
    off: str | None,
    progress: bool,
    adapter: object,
) -> tuple[Floats, float, float]:
    """The metric of each run, of the clean text and of the corrupted one."""
    for name, value, of_these in (("of", of, ("heads", "layers")), ("metric", metric, METRICS)):
        if value not in of_these:
            raise arguments.refusal(name, " or ".join(map(repr, of_these)), value)
    if answer is None and metric != "kl" or against is None and metric == "difference":
        raise InputError(f"metric {metric!r} needs answer{', against' * (metric == 'difference')}")
    opened, n, stopped = model._handles, len(ids[0]), []
    shape = (model.shape.n_layers, calls.model_heads(opened.model), n)
    results = np.empty(shape if of == "heads" else (shape[0], n), np.float32)
    metrics, step = (c_double * 2)(), _steps(_bar(progress))
    asked = Patching(
        int_array(ids[0]),
        int_array(ids[1]),
        n,
        of == "layers",
        METRICS.index(metric),
        one_id(model, "answer", answer),
        one_id(model, "against", against),
        None if off is None else arguments.c_string("off", off) or None,
        Progress(step(stopped)),
    )
    with adapters.turn(model, adapter) as opened:
        options = model._options_beside(n, opened)
        pointer = results.ctypes.data_as(FLOATS)
        given = opened.model, byref(options), byref(asked), pointer, metrics
        apart(calls.patch, *given, stop=lambda: stopped.append(True))
    return results, metrics[0], metrics[1]


def attribute(
    model,
    ids: list[int],
    answer: int | str,
    against: int | str | None,
    off: str | None,
    adapter: object,
) -> Attribution:
    n_layers = model.shape.n_layers
    heads = np.empty((n_layers, calls.model_heads(model._handles.model)), np.float32)
    ffn, parts = np.empty(n_layers, np.float32), Parts()
    tokens = one_id(model, "answer", answer), one_id(model, "against", against)
    with adapters.turn(model, adapter) as opened:
        options = model._options_beside(len(ids), opened)
        calls.attribute(
            opened.model,
            byref(options),
            int_array(ids),
            len(ids),
            tokens[0],
            -1 if against is None else tokens[1],
            None if off is None else arguments.c_string("off", off) or None,
            heads.ctypes.data_as(FLOATS),
            ffn.ctypes.data_as(FLOATS),
            byref(parts),
        )
    return Attribution(heads, ffn, parts.embedding, parts.rest, parts.total, parts.logit)


def parts(
    model,
    ids: list[int],
    layer: int,
    head: int,
    position: int | None,
    off: str | None,
    steer: object,
    adapter: object,
) -> HeadParts:
    layer = arguments.whole("layer", layer, 0, model.shape.n_layers - 1)
    at = len(ids) - 1
    position = at if position is None else arguments.whole("position", position, 0, at)
    head = arguments.whole("head", head, 0)
    steers = steering.steers(steer, model.shape)
    heads = None if off is None else arguments.c_string("off", off) or None
    asked = Dissection(int_array(ids), len(ids), layer, head, position, heads, steers, len(steers))
    with adapters.turn(model, adapter) as opened:
        options = model._options_beside(len(ids), opened)
        made = calls.dissect(opened.model, byref(options), byref(asked))
    try:
        return _copied(made.contents)
    finally:
        calls.free(cast(made, c_void_p))


def _copied(p) -> HeadParts:
    def floats(pointer, *shape: int) -> Optional[Floats]:
        return np.ctypeslib.as_array(pointer, shape).copy() if pointer else None

    def scores(s: Scoring) -> Scores:
        rows = (floats(getattr(s, name), p.n) for name in ("products", "scores", "weights"))
        return Scores(floats(s.q, p.dim), floats(s.k, p.n, p.dim), *rows, s.sink)

    return HeadParts(
        p.first,
        p.kv_layer,
        p.kv_head,
        range(p.sharing, p.sharing + p.n_sharing),
        p.rope,
        p.n_rope,
        p.scale,
        scores(p.turned),
        scores(p.plain),
        floats(p.v, p.n, p.v_dim),
        floats(p.mix, p.v_dim),
        floats(p.mixed, p.v_dim),
        floats(p.out, p.n_embd),
        floats(p.latents, p.n, p.rank),
        floats(p.q_latent, p.rank),
        floats(p.mix_latent, p.rank),
    )


def experiment(model, described: object, progress: bool) -> dict:
    given, stopped, step = _json("described", described), [], _steps(_bar(progress))
    with model._turn() as opened:
        options = model._options_beside(None, opened)
        call = calls.experiment, opened.model, byref(options), given, len(given)
        found = apart(*call, Progress(step(stopped)), None, stop=lambda: stopped.append(True))
    try:
        return json.loads(string_at(found))
    finally:
        calls.free(found)


def verify(model, result: object, progress: bool) -> Optional[str]:
    given, stopped, step = _json("result", result), [], _steps(_bar(progress))
    error = Error()
    with model._turn() as opened:
        options = model._options_beside(None, opened)
        call = calls.verify, opened.model, byref(options), given, len(given)
        found = apart(
            *call, Progress(step(stopped)), None, byref(error), stop=lambda: stopped.append(True)
        )
    said = error.text.decode("utf-8", "replace")
    if found < 0:
        raise InputError(said)
    return None if found else said


def _steps(bar):
    """A function from the list that says whether to stop to what the library calls."""

    def of(stopped: list):
        def step(_, done: int, total: int) -> int:
            bar(done, total)
            return bool(stopped)

        return step

    return of


def _json(name: str, given: object) -> bytes:
    """Of a dict, or of a file of JSON."""
    if isinstance(given, (str, os.PathLike)):
        return Path(arguments.path(name, given)).read_bytes()
    if not isinstance(given, Mapping):
        raise arguments.refusal(name, "a dict, or the path of a JSON file", given)
    given = dict(given)
    if isinstance(given.get("steer"), steering.Steering):
        vectors = given["steer"].vectors.items()
        given["steer"] = [{"layer": i, "vector": [float(x) for x in v]} for i, v in vectors]
    try:
        return json.dumps(given, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"JSON has no {type(value).__name__}")


def _bar(progress: bool):
    """Shows how many runs are done."""
    if not progress:
        return lambda done, total: None
    from tqdm.auto import tqdm

    bar = tqdm(unit="run")

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show
