"""From a checkpoint's tensors to the canonical ones of docs/format.md, as a family's table of names
says."""

from __future__ import annotations

import re
from typing import Iterable

import numpy as np

from .knobs import DISTINCT, WHOLE, Knobs, of_layer
from .tensor import ExportError, Tensor, constant, pick, transposed, without_numbers

# Buffers, which older versions of transformers saved among the weights.
SKIPPED = re.compile(
    r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|attn\.(masked_bias|bias|causal_mask)|attention\.(masked_)?bias)$"
)


def assemble(
    knobs: Knobs, names: dict[str, str | None], left: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Takes each tensor of `names` out of `left`, checks its shape, and makes canonical ones of it.
    Returns these, in the order of the file, and remarks for the user. Errors: ExportError, also for
    what is left over."""
    prefixes = tuple(name.split(".")[0] + "." for name in names["embed"].split("|"))
    remarks: list[str] = []
    for part in knobs.parts:
        part.arrange(left)
        names = part.rename(names, left)
    # A model saved without its head has names without the prefix.
    bare = not any(name.startswith(prefixes) for name in left)

    def module(names: str | None) -> str | None:
        found = (
            [n.split(".", 1)[1] if bare and n.startswith(prefixes) else n for n in names.split("|")]
            if names
            else [None]
        )
        return next((n for n in found if f"{n}.weight" in left or n in left), found[0])

    output = module(names.get("output"))
    if output and bare and not knobs.tied and output + ".weight" not in left:
        output, names = None, {name: of for name, of in names.items() if name != "output"}
        remarks.append(
            "the checkpoint has no output matrix, as models saved for vectors of texts: it writes "
            "no text"
        )
    if output:
        _tie(knobs, module(names["embed"]), output, left, remarks)
    else:
        knobs.has_head, knobs.logit_scale = False, 1.0
    absent: list[str] = []
    found = _each(
        knobs, names, lambda name, names: _parts(knobs, name, module(names), left, absent)
    )
    _check_biases(found)
    if absent:
        more = f" and {len(absent) - 1} more biases" if absent[1:] else ""
        remarks.append(
            f"the checkpoint lacks {absent[0]}{more}, which its configuration or family has: taken "
            "for zeros, as in transformers"
        )
    unused = [name for name in left if not SKIPPED.search(name)]
    layers = _last_layers(module(name) for _, name in in_layers(names, knobs.n_layers))
    passed = [name for name in unused if _passed_over(name, layers)]
    if passed:
        remarks.append(f"{passed[0]} and its like are left out, as by transformers")
    unused = [name for name in unused if name not in passed]
    if unused:
        raise ExportError(
            f"the checkpoint holds {unused[0]}"
            + (f" and {len(unused) - 1} more tensors" if unused[1:] else "")
            + ", which nothing in this family uses"
        )
    return found, remarks


NUMBERED = re.compile(r"(.*?\.)(\d+)\.")  # a layer's tensor: what comes before its number


def _last_layers(modules: Iterable[str | None]) -> dict[str, int]:
    """The last layer of each stack, by the beginning of its names."""
    found: dict[str, int] = {}
    for layer in (NUMBERED.match(module or "") for module in modules):
        if layer:
            found[layer[1]] = max(found.get(layer[1], 0), int(layer[2]))
    return found


def _passed_over(name: str, layers: dict[str, int]) -> bool:
    """Whether it belongs to a value head of reinforcement learning, or to a layer beyond the last
    that config.json counts."""
    layer = NUMBERED.match(name)
    beyond = layer is not None and int(layer[2]) > layers.get(layer[1], int(layer[2]))
    return name.startswith("v_head.") or beyond


def _check_biases(found: dict[str, Tensor]) -> None:
    """A matrix or norm has a bias in all layers that have it, or in none; else the file is
    damaged."""
    layers: dict[str, dict[bool, list[str]]] = {}  # of each kind: with a bias, and without
    for name in found:
        if name.startswith("layers.") and not name.endswith(".bias"):
            kind, _ = _kind_and_layer(name)
            layers.setdefault(kind, {True: [], False: []})[f"{name}.bias" in found].append(name)
    for kind, names in layers.items():
        if names[True] and names[False]:
            raise ExportError(
                f"the checkpoint lacks a bias: {names[False][0]} has none, and {kind} has one in "
                f"{len(names[True])} of {len(names[True]) + len(names[False])} layers; the file is "
                "damaged or incomplete"
            )


def hollow(knobs: Knobs, names: dict[str, str | None]) -> dict[str, Tensor]:
    """The tensors that assemble() would give, without numbers, of a checkpoint that has every
    bias there may be, one matrix for tied embeddings and, of an encoder, no head. Tensors that no
    file holds have their numbers."""
    if knobs.mask == 1:
        for part in knobs.parts:
            names = part.rename(names, {})
    return _each(knobs, names, lambda name, module: _hollow_parts(knobs, name, module))


def _each(knobs: Knobs, names: dict[str, str | None], parts_of) -> dict[str, Tensor]:
    """The canonical tensors in the order of the file; parts_of(name, module) gives an entry's
    tensors."""
    found: dict[str, Tensor] = {}
    for name, module in in_layers(names, knobs.n_layers):
        kind, layer = _kind_and_layer(name)
        if name.startswith("layers.") and not knobs.has(kind, layer):
            continue
        found.update(parts_of(name, module))
        if knobs.slopes is not None and kind == "attn_o":
            found[name[: -len("o")] + "slopes"] = constant(knobs.slopes)
    return found


def _kind_and_layer(name: str) -> tuple[str, int]:
    """ "layers.3.attn_q" is an attn_q of layer 3. Tensors of no layer count as layer 0's."""
    return name.split(".")[-1], int(name.split(".")[1]) if name.startswith("layers.") else 0


def _hollow_parts(knobs: Knobs, name: str, module: str | None) -> list[tuple[str, Tensor]]:
    """The tensors that _parts() makes of the same entry, without numbers."""
    kind, layer = _kind_and_layer(name)
    shape = knobs.shape(kind, layer)
    if module is None:
        return [(name, constant(np.ones(shape, np.float32)))]
    if kind == "ffn_act":
        clamp = getattr(knobs.part_of(kind), "clamp", None)
        return [(name, constant(np.float32([*clamp, 0, 0])) if clamp else without_numbers(4))]
    if kind == "output" and knobs.tied:
        return [(name + ".bias", without_numbers(shape[0]))] if kind in knobs.biased else []
    if kind in ("embed_pos", "source_embed_pos"):
        shape = (knobs.context + _pads(knobs, kind), knobs.n_embd)
    split = _split(knobs, name, layer)
    parts = [(part, take(without_numbers(*shape))) for part, take in split]
    if _has_bias(knobs, kind):
        bias = without_numbers(*knobs.bias_shape(kind, layer))
        parts += [(part + ".bias", take(bias)) for part, take in split]
    return parts


def in_layers(names: dict[str, str | None], n_layers: int) -> list[tuple[str, str | None]]:
    """The table with N replaced, the layers' names in the middle."""
    items = list(names.items())
    per_layer = [(k, v) for k, v in items if ".N." in k]
    if not per_layer:  # it names each layer's tensors itself
        return items
    before = items[: items.index(per_layer[0])]
    after = [(k, v) for k, v in items if ".N." not in k and (k, v) not in before]
    layers = [
        (k.replace(".N.", f".{i}."), v and re.sub(r"\.N\b", f".{i}", v))
        for i in range(n_layers)
        for k, v in per_layer
    ]
    return before + layers + after


def _tie(
    knobs: Knobs, embed: str, output: str, left: dict[str, Tensor], remarks: list[str]
) -> None:
    """Tied embeddings, as transformers treats them: either name may hold them, and a head that
    differs is used as it is."""
    if not knobs.tied or output + ".weight" not in left:
        return
    if embed + ".weight" not in left:
        left[embed + ".weight"] = left.pop(output + ".weight")
    elif equal(left[embed + ".weight"], left[output + ".weight"]):
        del left[output + ".weight"]
    else:
        remarks.append(
            f"tie_word_embeddings is true, but {output}.weight differs from the embedding: kept, "
            "as transformers does"
        )


def equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    rows_a, rows_b = a.load(), b.load()
    return all(
        np.array_equal(rows_a(i, min(i + 256, a.shape[0])), rows_b(i, min(i + 256, a.shape[0])))
        for i in range(0, a.shape[0], 256)
    )


def _parts(
    knobs: Knobs, name: str, module: str | None, left: dict[str, Tensor], absent: list[str]
) -> list[tuple[str, Tensor]]:
    """The canonical tensors that one entry of the table becomes: a weight, and perhaps a bias;
    several if it is fused. absent: gets the name of a bias that is missing."""
    kind, layer = _kind_and_layer(name)
    if module is None:
        return [(name, constant(np.ones(knobs.shape(kind, layer), np.float32)))]
    if kind == "ffn_act" and not knobs.part_of(kind):
        return [(name, _xielu(left, module))]
    if kind in ("attn_sinks", "out_scale"):  # no module's weight, but a tensor as it is
        bare = left.pop(module)
        _check_shape(bare, knobs.shape(kind))
        return [(name, bare)]
    parts = []
    is_norm, is_tied = kind.endswith("norm"), kind == "output" and knobs.tied
    if not is_tied or module + ".weight" in left:
        weight = _per_head(left, module) if "*" in module else left.pop(module + ".weight")
        if is_norm:
            weight = _norm_weight(knobs, kind, weight)
        turned = knobs.conv1d and not is_norm and "." in name
        _check_shape(weight, knobs.shape(kind, layer), turned)
        if turned:
            weight = transposed(weight)
        if kind in ("embed_pos", "source_embed_pos"):
            weight = _positions(knobs, kind, weight)
        parts += [(part, take(weight)) for part, take in _split(knobs, name, layer)]
    if _has_bias(knobs, kind):
        bias = left.pop(module + ".bias", None)
        if bias is not None:
            _check_shape(bias, knobs.bias_shape(kind, layer))
            if kind == "norm" and knobs.logit_scale != 1:
                bias = bias.map(lambda b: b * np.float32(knobs.logit_scale))
            parts += [(part + ".bias", take(bias)) for part, take in _split(knobs, name, layer)]
        else:
            absent.append(module + ".bias")
    return parts


def _pads(knobs: Knobs, kind: str) -> bool:
    """Whether a table of positions ends with padding's: an encoder's, where padding has one."""
    return knobs.padding >= 0 and (kind == "source_embed_pos" or not knobs.source_layers)


def _positions(knobs: Knobs, kind: str, table: Tensor) -> Tensor:
    """The rows of a table that positions use."""
    first, pad = knobs.skipped_positions, knobs.padding
    if not _pads(knobs, kind):
        return table.slice(first, table.shape[0]) if first else table
    shape = (knobs.context + 1, table.shape[1])
    return table.map(lambda rows: np.concatenate([rows[first:], rows[pad : pad + 1]]), shape)


def _has_bias(knobs: Knobs, kind: str) -> bool:
    layernorm = knobs.layernorm and kind.endswith("norm") and kind not in knobs.bare_norms
    return kind in knobs.biased or layernorm


def _check_shape(tensor: Tensor, expected: tuple[int, ...], turned: bool = False) -> None:
    expected = expected[::-1] if turned else expected
    if tuple(tensor.shape) != expected:
        raise ExportError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, config.json makes it "
            f"{list(expected)}"
        )


def _per_head(left: dict[str, Tensor], module: str) -> Tensor:
    """The weights of all heads, one below the other, where each head is a module of its own, whose
    number the name has as *."""
    heads = []
    while module.replace("*", str(len(heads))) + ".weight" in left:
        heads.append(left.pop(module.replace("*", str(len(heads))) + ".weight"))
    if not heads:
        raise ExportError(f"the checkpoint lacks the tensor {module.replace('*', '0')}.weight")
    shape = (sum(h.shape[0] for h in heads),)
    return heads[0].map(
        lambda first: np.concatenate([first, *(h.array() for h in heads[1:])]), shape
    )


def _norm_weight(knobs: Knobs, kind: str, weight: Tensor) -> Tensor:
    """The factors of a norm, as a vector."""
    offset = np.float32(0 if kind == "delta_norm" else knobs.norm_offset)
    scale = np.float32(knobs.logit_scale if kind == "norm" else 1)
    shape = (int(np.prod(weight.shape)),)
    if not offset and scale == 1 and weight.shape == shape:
        return weight
    return weight.map(lambda w: ((w + offset) * scale).reshape(-1), shape)


def _xielu(left: dict[str, Tensor], module: str) -> Tensor:
    """The four parameters of an xIELU: the factors of x^2 and of expm1, softplus already applied,
    then beta and eps."""
    values = [left.pop(f"{module}.{name}") for name in ("alpha_p", "alpha_n", "beta", "eps")]
    alpha_p, alpha_n, beta, eps = (float(v.load()(0, 1).reshape(-1)[0]) for v in values)
    return constant(
        np.array([np.logaddexp(0, alpha_p), beta + np.logaddexp(0, alpha_n), beta, eps], np.float32)
    )


# ---- fused matrices, and the order of rows -------------------------------------------------------


def _split(knobs: Knobs, name: str, layer: int):
    """(canonical name, function from the checkpoint's tensor to the canonical one) of each part of
    an entry."""
    base, _, kind = name.rpartition(".")
    base += "." if base else ""
    if knobs.part_of(kind):
        return [(name, lambda tensor: tensor)]
    if kind == "ffn_gate_up":
        d_ff = of_layer(knobs.d_ff, layer)
        return [(base + "ffn_gate", _rows(0, d_ff)), (base + "ffn_up", _rows(d_ff, 2 * d_ff))]
    head_dim, n_kv = of_layer(knobs.head_dim, layer), of_layer(knobs.n_kv_heads, layer)
    n_heads = of_layer(knobs.n_heads, layer)
    heads = {"q": n_heads, "k": n_kv, "v": n_kv}
    if kind == "attn_qkv":
        parts, at = [], 0
        for letter, n in heads.items():
            if knobs.grouped_qkv:
                index = _grouped(letter, n_heads // n_kv, n_kv, head_dim)
            else:
                index, at = np.arange(at, at + n * head_dim), at + n * head_dim
            parts.append((f"{base}attn_{letter}", _pick(_half_split(knobs, layer, letter, index))))
        return parts
    all_heads = knobs.qk_norm in (WHOLE, DISTINCT)
    for letter in "qk":
        if kind == f"attn_{letter}" or kind == f"attn_{letter}_norm":
            n = heads[letter] if kind == f"attn_{letter}" or all_heads else 1
            return [(name, _pick(_half_split(knobs, layer, letter, np.arange(n * head_dim))))]
    return [(name, lambda tensor: tensor)]


def _grouped(letter: str, group: int, n_kv: int, head_dim: int) -> np.ndarray:
    """The rows of q, k or v in a matrix that has, for each KV head, its `group` queries, then its
    key, then its value."""
    rows = np.arange(n_kv * (group + 2) * head_dim).reshape(n_kv, group + 2, head_dim)
    return {"q": rows[:, :group], "k": rows[:, group], "v": rows[:, group + 1]}[letter].reshape(-1)


def _half_split(knobs: Knobs, layer: int, letter: str, rows: np.ndarray) -> np.ndarray:
    """Puts the rows of heads in the order in which rope rotates (i, i + n_rot / 2), not (2i,
    2i + 1). It does so in layers without rope too: what changes q and k alike changes no score."""
    if not knobs.interleaved or letter == "v":
        return rows
    n_rot = 2 * len(knobs.ropes[0].inv_freq)
    heads = rows.reshape(-1, of_layer(knobs.head_dim, layer))
    return np.concatenate([heads[:, 0:n_rot:2], heads[:, 1:n_rot:2], heads[:, n_rot:]], 1).reshape(
        -1
    )


def _rows(begin: int, end: int):
    return lambda tensor: tensor.slice(begin, end)


def _pick(index: np.ndarray):
    """The rows of that index: as a slice where they lie side by side, which needs no whole matrix
    in memory."""
    begin, end = int(index[0]), int(index[-1]) + 1
    if np.array_equal(index, np.arange(begin, end)):
        return lambda tensor: (
            tensor if (begin, end) == (0, tensor.shape[0]) else tensor.slice(begin, end)
        )
    return lambda tensor: pick(tensor, index)


# ---- fewer KV heads ------------------------------------------------------------------------------


def pool_kv_heads(knobs: Knobs, tensors: dict[str, Tensor], n_kv_heads: int) -> None:
    """Makes the K and V heads fewer by averaging neighbours, weights and biases: Ainslie et al.
    2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
    section 2.1. Changes knobs and tensors in place. Errors: ExportError if there is no attention,
    n_kv_heads is no divisor of what there is, or keys are normalised across heads."""
    if not any(name.endswith("attn_k") for name in tensors):
        raise ExportError("--kv-heads: the model has no attention, and so no KV heads")
    if isinstance(knobs.n_kv_heads, list) or isinstance(knobs.head_dim, list):
        raise ExportError("--kv-heads: the layers of this model differ in KV heads or head_dim")
    if any(name.endswith("attn_k_norm") for name in tensors) and knobs.qk_norm in (WHOLE, DISTINCT):
        raise ExportError(
            "--kv-heads: this model normalises keys with weights of all KV heads, which have no "
            "mean"
        )
    if n_kv_heads < 1 or knobs.n_kv_heads % n_kv_heads:
        divisors = [str(n) for n in range(1, knobs.n_kv_heads + 1) if knobs.n_kv_heads % n == 0]
        raise ExportError(
            f"--kv-heads {n_kv_heads} does not divide the model's {knobs.n_kv_heads} KV heads; "
            "possible: " + ", ".join(divisors)
        )
    group, head_dim = knobs.n_kv_heads // n_kv_heads, knobs.head_dim

    def pool(w: np.ndarray) -> np.ndarray:
        return (
            w.reshape(n_kv_heads, group, head_dim, -1)
            .mean(1, dtype=np.float64)
            .astype(np.float32)
            .reshape(-1, *w.shape[1:])
        )

    for name, tensor in tensors.items():
        if re.search(r"\.attn_[kv](\.bias)?$", name):
            tensors[name] = tensor.map(pool, (n_kv_heads * head_dim, *tensor.shape[1:]))
    knobs.n_kv_heads = n_kv_heads
