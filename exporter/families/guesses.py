"""Layers that guess the token after the next (multi-token prediction, arXiv 2412.19437), which a
checkpoint may have besides the text's: a row a family says where they are. They become layers
behind the text's, so the family's own function and table take them; docs/format.md, "Guesses", has
the formula."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

import numpy as np

from ..assemble import SKIPPED, equal
from ..config import Config
from ..tensor import Tensor, Tensors
from .common import FULL, LINEAR
from .nemotron import nemotron_guesses, nemotron_kinds

PARTS = ("proj", "embed_norm", "hidden_norm", "norm", "embed", "output")  # embed, output: if own


def _modules(*names: str) -> dict[str, str]:
    return dict(zip(PARTS, names))


def _kinds(c: Config, n: int) -> dict[str, list]:
    """The lists of config.json with what it says of a layer that guesses, or what is usual."""
    return {
        key: c.list(key)[:n] + [(c.list(own) or [usual])[0]]
        for key, own, usual in (
            ("layer_types", "mtp_layer_types", FULL),
            ("mlp_layer_types", "mtp_mlp_layer_types", "sparse"),
        )
        if c.list(key) is not None
    }


def _qwen_kinds(c: Config, n: int) -> dict[str, list]:
    every = c.int("full_attention_interval", 4)
    usual = [FULL if (i + 1) % every == 0 else LINEAR for i in range(n)]
    return {"layer_types": (c.list("layer_types") or usual)[:n] + [FULL]}


def _exaone_kinds(c: Config, n: int) -> dict[str, list]:
    first = c.int("first_k_dense_replace", 1, least=0)
    usual = ["sparse" if i >= first else "dense" for i in range(n)]
    return {**_kinds(c, n), "mlp_layer_types": (c.list("mlp_layer_types") or usual)[:n] + ["dense"]}


def _ernie_kinds(c: Config, n: int) -> dict[str, int]:
    last = c.get("moe_layer_end_index", -1)
    return {"moe_layer_end_index": n - 1 if last == -1 else last}  # the layer has no experts


def _nemotron_kinds(c: Config, n: int) -> dict[str, list]:
    return {"layers_block_type": nemotron_kinds(c) + nemotron_guesses(c)}


def _text_layers(c: Config) -> int:
    return c.int("num_hidden_layers", most=4096)


@dataclass(frozen=True)
class Row:
    """`layers` is a layer's module, N its number, which counts on from the text's layers, or, with
    `own`, from 0. `modules` names what PARTS lists; there N is the first layer's number and L the
    last one's. `kinds` gives what config.json says of layers, the guessing ones behind the text's.
    hidden_first: proj reads [hidden; embedding]."""

    layers: str
    modules: dict[str, str]
    kinds: Callable[[Config, int], dict] = _kinds
    own: bool = True
    hidden_first: bool = False
    text_layers: Callable[[Config], int] = _text_layers
    count: Callable[[Config], int] = lambda c: 1

    def at(self, n: int, count: int = 1) -> tuple[list[str], dict[str, str]]:
        """The modules of `count` layers behind a text of n, and those around them."""
        first = 0 if self.own else n

        def numbered(module: str, i: int) -> str:
            module = re.sub(r"\bN\b", str(first + i), module)
            return re.sub(r"\bL\b", str(first + count - 1), module)

        layers = [numbered(self.layers, i) for i in range(count)]
        return layers, {part: numbered(m, 0) for part, m in self.modules.items()}

    def longer(self, c: Config, n: int) -> dict:
        """config.json with the layers among the text's."""
        return {**c.values, **self.kinds(c, n), "num_hidden_layers": n + self.count(c)}


NEXTN = Row(
    "model.layers.N",
    _modules(
        *(f"model.layers.N.{m}" for m in ("eh_proj", "enorm", "hnorm", "shared_head.norm")),
        "model.layers.N.embed_tokens",
        "model.layers.N.shared_head.head",
    ),
    own=False,
)
MTP = _modules("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
QWEN = Row("mtp.layers.N", MTP, _qwen_kinds)
MIMO = "model.mtp_layers.N"
TEXT_NORM = "model.norm"  # which a layer may share

ROWS = {
    "deepseek_v3": NEXTN,
    "ernie4_5_moe": Row(
        "model.mtp_block.N",
        _modules(
            *(f"model.mtp_{m}.N" for m in ("linear_proj", "emb_norm", "hidden_norm")),
            TEXT_NORM,
        ),
        _ernie_kinds,
    ),
    "exaone_moe": Row("mtp.layers.N", MTP, _exaone_kinds),
    "glm4_moe": NEXTN,
    "glm4_moe_lite": NEXTN,
    "mellum": Row("mtp.layers.N", MTP),
    "mimo": Row(
        MIMO,
        _modules(
            *(
                f"{MIMO}.{m}"
                for m in ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
            )
        ),
        hidden_first=True,
    ),
    "nemotron_h": Row(
        "mtp.layers.N",
        _modules(
            *(f"mtp.layers.N.{m}" for m in ("eh_proj", "enorm", "hnorm")),
            "mtp.layers.L.final_layernorm",
        ),
        _nemotron_kinds,
        text_layers=lambda c: len(nemotron_kinds(c)),
        count=lambda c: len(nemotron_guesses(c)),
    ),
    "qwen3_5_moe_text": QWEN,
    "qwen3_5_text": QWEN,
    "qwen3_next": QWEN,
}


def take_guesses(c: Config, family: str, left: Tensors, wanted: bool) -> tuple[dict[str, str], int]:
    """Renames the tensors of the layers that guess and counts them among config.json's layers.
    Returns the table's entries of what is before and after them, and how many there are; {} and 0
    without them. If they are damaged, a remark says so and they are left out. Errors: ExportError
    for config.json."""
    row = ROWS.get(family)
    if not wanted or not left:
        return {}, 0
    n, count = (row.text_layers(c), row.count(c)) if row else (c.get("num_hidden_layers"), 1)
    layers, modules = row.at(n, count) if row else ([], {})
    if modules.get("proj", "") + ".weight" not in left:
        found = _unknown(left, n)
        if found:
            c.remarks.append(
                f"the layers that guess next tokens are left out: {found} is not known"
            )
        return {}, 0
    root = next((name for name in left if ".layers.0." in name), "model").split(".")[0]
    fault = _fault(c, left, modules, layers, f"{root}.layers", n)
    if fault:
        c.remarks.append(f"the layers that guess next tokens are left out: {fault}")
        return {}, 0
    c.values = row.longer(c, n)
    left["guess.proj.weight"] = _columns(left.pop(modules["proj"] + ".weight"), row.hidden_first)
    for part, name in modules.items():
        if name + ".weight" in left:
            take = left.get if name == TEXT_NORM else left.pop
            left[f"guess.{part}.weight"] = take(name + ".weight")
    for i, layer in enumerate(layers):
        for name in [name for name in left if name.startswith(layer + ".")]:
            left[f"{root}.layers.{n + i}{name[len(layer) :]}"] = left.pop(name)
    _share(left, "embed", "model.embed_tokens")
    _share(left, "output", "model.embed_tokens" if "lm_head.weight" not in left else "lm_head")
    kept = [part for part in PARTS if f"guess.{part}.weight" in left]
    return {f"guess_{part}": f"guess.{part}" for part in kept}, count


def _unknown(left: Tensors, n: object) -> str | None:
    """A tensor of a layer that is not the text's, which has n."""
    for name in left:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        behind = layer and isinstance(n, int) and int(layer[1]) >= n
        if behind or re.search(r"(^|\.)mtp[._]", name):
            return name
    return None


def _columns(proj: Tensor, hidden_first: bool) -> Tensor:
    """The embedding's columns, then the hidden state's."""
    n = proj.shape[0]
    return proj.map(lambda w: np.concatenate([w[:, n:], w[:, :n]], 1)) if hidden_first else proj


def _share(left: Tensors, part: str, module: str) -> None:
    """Leaves out a copy of the model's own matrix."""
    own, whole = left.get(f"guess.{part}.weight"), left.get(module + ".weight")
    if own and whole and equal(own, whole):
        del left[f"guess.{part}.weight"]


def _fault(
    c: Config, left: Tensors, modules: dict[str, str], layers: list[str], texts: str, n: int
) -> str | None:
    """What is wrong with the layers that guess; texts: the module of the text's n layers."""
    width, vocab = c.int("hidden_size"), c.int("vocab_size")
    shapes = {"proj": (width, 2 * width), "embed": (vocab, width), "output": (vocab, width)}
    for part, module in modules.items():
        tensor = left.get(module + ".weight")
        if tensor is None and part not in ("embed", "output"):
            return f"the checkpoint lacks the tensor {module}.weight"
        expected = shapes.get(part, (width,))
        if tensor is not None and tensor.shape != expected:
            return (
                f"tensor {tensor.name} has shape {list(tensor.shape)}, config.json makes it "
                f"{list(expected)}"
            )
    around = {module + ".weight" for module in modules.values()}
    likes = [_parts(left, f"{texts}.{i}.", set()) for i in range(n)]
    faults = (_unlike(_parts(left, f"{layer}.", around), likes, f"{layer}.") for layer in layers)
    return next((fault for fault in faults if fault), None)


def _parts(left: Tensors, layer: str, without: set[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's tensors by the ends of their names."""
    return {
        name[len(layer) :]: tensor.shape
        for name, tensor in left.items()
        if name.startswith(layer) and name not in without and not SKIPPED.search(name)
    }


def _unlike(parts: dict, likes: list[dict], layer: str) -> str | None:
    """In what a layer differs from the layer of the text that is most like it."""
    like = max(likes, key=lambda one: len(set(one) & set(parts)) - len(set(one) ^ set(parts)))
    if like == parts:
        return None
    for name in sorted(set(like) | set(parts)):
        if name not in parts:
            return f"the checkpoint lacks the tensor {layer}{name}"
        if name not in like:
            return f"tensor {layer}{name} is like nothing in the text's layers"
        if like[name] != parts[name]:
            return (
                f"tensor {layer}{name} has shape {list(parts[name])}, that of the text's layers "
                f"{list(like[name])}"
            )
    return None
