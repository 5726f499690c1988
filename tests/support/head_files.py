"""What --heads writes, as arrays, and what its scores should be by the formulas in docs/heads.md;
and a checkpoint whose heads are made by hand."""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path

import numpy as np

import checkpoints
from checkpoints import F32_META, I32, Meta, matrix, vector
from conftest import run_command

ROLES = ("previous", "itself", "duplicate", "induction", "first", "next", "last", "diagonal")
RESTS = ("first", "last", "itself")


def heads_of(model: Path, out: Path, *arguments: object) -> dict:
    """The JSON that the program writes, or that stands in the page that it writes."""
    done = run_command(model, "--heads", out, *arguments)
    assert done.returncode == 0 and done.stdout == b"", done.stderr
    text = out.read_text(encoding="utf-8")
    if out.suffix == ".html":
        script = r'<script type="application/json" id="data">(.*?)</script>'
        (text,) = re.findall(script, text, re.DOTALL)
    return json.loads(text)


def array_of(head: dict, shape: tuple[int, int] | None = None) -> np.ndarray:
    """A head's map: weights in float64, or a page's bytes. (tokens, tokens) with zeros above the
    diagonal; or of a head that sees all, of this shape."""
    map_ = head["map"]
    if isinstance(map_, str):
        values = np.frombuffer(base64.b64decode(map_), np.uint8)
        if shape:
            return values.reshape(shape)
        n = math.isqrt(2 * len(values))
        found = np.zeros((n, n), np.uint8)
        found[np.tril_indices(n)] = values
        return found
    found = np.zeros(shape or (len(map_), len(map_)))
    assert len(map_) == len(found)
    for i, row in enumerate(map_):
        assert len(row) == (shape[1] if shape else i + 1)
        found[i, : len(row)] = row
    return found


def ids_of(data: dict, layer: dict) -> tuple[list[int], list[int]]:
    """Of the tokens that look, and of those that are seen."""
    target = [token["id"] for token in data["tokens"]]
    source = [token["id"] for token in data.get("source_tokens", data["tokens"])]
    kind = layer.get("kind", "decoder")
    return source if kind == "encoder" else target, target if kind == "decoder" else source


def shape_of(data: dict, layer: dict) -> tuple[int, int] | None:
    """Of the maps of a layer whose heads see all, for array_of."""
    looks, seen = ids_of(data, layer)
    return None if layer.get("kind", "decoder") == "decoder" else (len(looks), len(seen))


def attention_layers(data: dict) -> list[np.ndarray]:
    """By layer that has attention: (heads, tokens, tokens)."""
    layers = [layer["heads"] for layer in data["layers"] if "heads" in layer]
    return [np.stack([array_of(head) for head in heads]) for heads in layers]


# ---- scores --------------------------------------------------------------------------------------


def sees(n: int, window: int, kind: str = "decoder", n_rows: int | None = None) -> np.ndarray:
    """(n_rows or n, n): whether token i sees token j."""
    i, j = np.mgrid[: n_rows or n, :n]
    near = np.abs(i - j) < window if window else np.full(i.shape, True)
    return near & (j <= i) if kind == "decoder" else near


def targets(ids: list[int], seen: np.ndarray, kind: str) -> dict[str, np.ndarray]:
    """By role, whether it is about the pair i, j; ids: of the tokens that look."""
    tokens = np.array(ids)
    i, j = np.mgrid[: seen.shape[0], : seen.shape[1]]
    end = seen.shape[1] - 1
    if kind == "cross":
        steps = max(1, len(ids) - 1)
        near = (np.abs(j - i * end / steps) <= 2) & (len(ids) > 1)
        masks = {"first": j == 0, "last": j == end, "diagonal": near}
    else:
        same = tokens[:, None] == tokens[None, :]
        follows = np.zeros(same.shape, bool)
        follows[:, 1:] = same[:, :-1] & (j[:, 1:] - 1 < i[:, 1:])
        masks = {
            "previous": j == i - 1,
            "itself": j == i,
            "duplicate": same & (j < i),
            "induction": follows,
            "first": (j == 0) & (i > 0),
        }
    if kind == "encoder":
        del masks["induction"]
        masks |= {"duplicate": same & (i != j), "next": j == i + 1, "last": (j == end) & (i != end)}
    several = seen.sum(1, keepdims=True) > 1
    return {role: mask & seen & several for role, mask in masks.items()}


def score_of(weights: np.ndarray, about: np.ndarray) -> float:
    """The mean, over rows that have such a pair, of the weights of these pairs."""
    rows = about.any(1)
    return float((weights * about).sum(1)[rows].mean()) if rows.any() else math.nan


def scores_of(
    weights: np.ndarray, ids: list[int], seen: np.ndarray, kind: str = "decoder"
) -> dict[str, float]:
    found = {role: score_of(weights, about) for role, about in targets(ids, seen, kind).items()}
    rows = [i for i in range(len(ids)) if seen[i].sum() > 1]
    distance, entropy, last = [], [], []
    for i in rows:
        j = np.flatnonzero(seen[i])
        p, far = weights[i, j] / weights[i, j].sum(), np.abs(i - j)
        distance.append((p * far).sum() / far.mean())
        entropy.append(-(p[p > 0] * np.log(p[p > 0])).sum() / math.log(len(j)))
        last.append(weights[i, max(0, i - 7) :].sum())
    mean = {"distance": distance, "entropy": entropy, "last8": last}
    means_nothing = {"decoder": (), "encoder": ("last8",), "cross": ("distance", "last8")}
    return found | {
        name: float(np.mean(x)) if x else math.nan
        for name, x in mean.items()
        if name not in means_nothing[kind]
    }


def role_of(scores: dict[str, float], uniform: dict[str, float]) -> str | None:
    roles = [role for role in ROLES if role in scores]
    has = [r for r in roles if scores[r] >= 0.3 and scores[r] >= 3 * uniform[r]]
    return max(has, key=lambda role: (role not in RESTS, scores[role]), default=None)


def pairs_of(weights: np.ndarray, kind: str = "decoder", n: int = 5) -> list[list]:
    """The strongest pairs of different rows, without the token itself and the first one, nor the
    last one where all see it."""
    strict = np.tril(weights, -1) if kind == "decoder" else weights.copy()
    if kind == "encoder":
        np.fill_diagonal(strict, 0)
    strict[:, 0] = 0
    if kind != "decoder":
        strict[:, -1] = 0
    best = [[i, int(row.argmax()), float(row.max())] for i, row in enumerate(strict)]
    return sorted((pair for pair in best if pair[2] > 0), key=lambda pair: -pair[2])[:n]


# ---- heads made by hand --------------------------------------------------------------------------


def handmade(vocab: int = 400, code: int = 32, context: int = 1024, window: int = 0) -> bytes:
    """Two layers of four heads. A token has a code of +-1 in x[0 : code - 1], token 0 a mark in
    x[2 code] instead, and all have 1 in x[code - 1]. Layer 0, head 0 finds the token before it by
    rope alone, whatever the tokens are, and copies its code to x[code : 2 code]; head 1 finds the
    token itself; the other heads look everywhere alike. Layer 1, without rope: head 0 looks for its
    own token's code among the copies, that is, one after an earlier such token, and as much for the
    mark; head 1 among the codes themselves; head 2 for the mark; head 3 everywhere alike."""
    rng, n_embd, n_heads = np.random.default_rng(3), 2 * code + 2, 4
    meta, tensors = checkpoints.parse(
        checkpoints.random_model(
            vocab=vocab,
            n_embd=n_embd,
            n_layers=2,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=code,
            d_ff=8,
            context=context,
        )
    )
    frequencies = np.geomspace(0.01, 3.0, code // 2)
    meta["model.rope.0.inv_freq"] = Meta(F32_META, code // 2, frequencies.astype("<f4").tobytes())
    meta["layer.rope"] = Meta(I32, 2, np.array([0, -1], "<i4").tobytes())
    meta["layer.window"] = Meta(I32, 2, np.array([window, window], "<i4").tobytes())
    meta["layer.attn_scale"] = Meta(F32_META, 2, np.array([4, 1], "<f4").tobytes())
    embed = np.zeros((vocab, n_embd))
    embed[:, :code] = rng.choice([-1.0, 1.0], (vocab, code))
    embed[0, : code - 1] = 0
    embed[:, code - 1] = embed[0, 2 * code] = 1
    tensors["embed"] = matrix(embed)
    shapes = {
        "attn_q": (n_heads * code, n_embd),
        "attn_k": (n_heads * code, n_embd),
        "attn_v": (n_heads * code, n_embd),
        "attn_o": (n_embd, n_heads * code),
        "ffn_gate": (8, n_embd),
        "ffn_up": (8, n_embd),
        "ffn_down": (n_embd, 8),
    }
    layers = [{name: np.zeros(shape) for name, shape in shapes.items()} for _ in range(2)]
    own, copy, one = slice(0, code), slice(code, 2 * code), np.eye(code)
    # Heads 0 and 1 of layer 0: queries turned back by one position and by none, as constants.
    half = code // 2
    bias_q, bias_k = np.zeros((n_heads, code)), np.zeros((n_heads, code))
    bias_k[:2, :half] = 1
    for head, turned in ((0, frequencies), (1, 0 * frequencies)):
        bias_q[head] = np.concatenate([np.cos(turned), -np.sin(turned)])
    layers[0]["attn_v"][own, own] = one / math.sqrt(n_embd / code)  # the norm makes codes larger
    layers[0]["attn_o"][copy, own] = one
    for head, (query, key) in enumerate([(own, own), (own, own)]):
        rows = slice(head * code, (head + 1) * code)
        layers[1]["attn_q"][rows, query] = one
        layers[1]["attn_k"][rows, copy if head == 0 else key] = one
    layers[1]["attn_k"][code - 1] = 0
    layers[1]["attn_k"][code - 1, 2 * code] = 16.4
    layers[1]["attn_k"][2 * code, 2 * code] = 100
    bias_1 = np.zeros(n_heads * code)
    bias_1[2 * code] = 1
    for i, biases in enumerate(
        [{"attn_q": bias_q.ravel(), "attn_k": bias_k.ravel()}, {"attn_q": bias_1}]
    ):
        for name, values in layers[i].items():
            tensors[f"layers.{i}.{name}"] = matrix(values)
        for name, values in biases.items():
            tensors[f"layers.{i}.{name}.bias"] = vector(values)
    return checkpoints.build(meta, tensors)


HANDMADE_ROLES = [["previous", "itself", None, None], ["induction", "duplicate", "first", None]]
