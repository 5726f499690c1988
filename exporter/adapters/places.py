"""Where the parameters that an adapter names lie in the base's checkpoint. An adapter has the names
of the model that was trained, as transformers 4 or 5 held it; a checkpoint may have others."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Mapping

from ..assemble import equal
from ..knobs import Knobs
from ..layers.experts import EXPERT, HUB
from ..tensor import ExportError, Tensor
from .changes import Change, Place

# What transformers 5 calls otherwise than files do (its conversion_mapping.py), and older files
# than newer ones; both sides of a comparison are rewritten.
RENAMED = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^(?:model|transformer|backbone)\.", ""),
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.mlp\.input_linear\.weight$", ".mlp.experts.gate_up_proj"),
        (r"\.mlp\.output_linear\.weight$", ".mlp.experts.down_proj"),
        (r"\.mlp\.experts\.fc1\.weight$", ".mlp.experts.gate_up_proj"),
        (r"\.mlp\.experts\.fc2\.weight$", ".mlp.experts.down_proj"),
        (r"\.experts\.(gate_up_proj|down_proj)_blocks$", r".experts.\1"),
        (r"\.mlp\.router(?:\.gate|\.layer)?\.", ".mlp.gate."),
        (r"\.shared_mlp\.", ".shared_experts."),
        (r"\.forget_gate\.", "."),
        (r"\.self_attn\.g_proj\.", ".self_attn.gate_proj."),
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
    )
]
TURNED = ("gpt_oss", "aria_text")  # whose experts read [n_in, n_out]
# Names of one embedding, where the config ties them.
EMBEDDINGS = (
    *("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head", "embed_tokens", "wte"),
    *("embed_out", "cls.predictions.decoder"),
)
OF_LAYER = re.compile(r"\b(?:h|layers)\.\d+\.")


class Named:
    """The tensors of a base, each by its own name. tables: embeddings and outputs."""

    tables: tuple[str, ...] = ("token_embd.weight", "output.weight")

    def __init__(self, left: Mapping[str, Tensor]):
        self.left = left
        self.names = {name: name for name in left}

    def key(self, name: str) -> str:
        """A name as both sides have it."""
        return name

    def places(self, parameter: str) -> list[Place]:
        """Where a parameter lies, in one piece or several; empty if nowhere."""
        name = self.names.get(parameter)
        return self.whole(name, False) if name else []

    def output_tied_to(self, name: str) -> str | None:
        """What the output would be called that is the embedding `name`; None if there is none."""
        return None

    def whole(self, name: str, turned: bool) -> list[Place]:
        """All of a tensor, matrix by matrix."""
        shape = self.left[name].shape
        if len(shape) < 3:
            return [Place(name, shape[0], turned=turned)]
        return [Place(name, shape[1], matrix=e, part=e, turned=turned) for e in range(shape[0])]

    def shape(self, places: list[Place]) -> tuple[int, ...]:
        """The shape of what lies there, in the orientation that the adapter has it in."""
        rows, columns = 0, ()
        for place in places:
            if place.part == places[0].part:
                shape = self.left[place.name].shape
                rows, columns = rows + place.rows, shape[2:] if len(shape) == 3 else shape[1:]
        return (*columns, rows) if places[0].turned else (rows, *columns)

    def check(self, change: Change, places: list[Place]) -> None:
        """Errors: ExportError, if the change does not fit."""
        count, shape = len({place.part for place in places}), self.shape(places)
        if change.fits(shape) and change.count == count:
            return
        many = f"{count} of " if count > 1 else ""
        raise ExportError(
            f"tensor {change.tensor.name} has shape {list(change.tensor.shape)}, which does not fit "
            f"{change.parameter} of the base, {many}{list(shape)}; it is an adapter of another base"
        )

    def refuse(self, change: Change) -> ExportError:
        """What to say of a change that no tensor of the base takes."""
        near = get_close_matches(self.key(change.parameter), self.names, 1, 0.0)
        hint = f"; the nearest is {self.names[near[0]]}" if near else ""
        return ExportError(
            f"tensor {change.tensor.name} is for {change.parameter}, which the base has not{hint}"
        )


class Base(Named):
    """The tensors of a base by the names that adapters may have for them."""

    def __init__(
        self, family: str, left: Mapping[str, Tensor], knobs: Knobs, table: dict[str, str | None]
    ):
        self.family, self.left, self.knobs = family, left, knobs
        embed, output = ((table.get(key) or "").split("|") for key in ("embed", "output"))
        self.output, self.head = output[0], table.get("head_dense")
        self.prefixes = tuple({name.split(".")[0] + "." for name in embed if "." in name})
        apart = [part for part in knobs.parts if hasattr(part, "fused")]
        self.older = [pair for part in apart for pair in part.names]
        self.fused = [fused for part in apart for fused in part.fused]
        self.tied = [*dict.fromkeys(map(self.key, filter(None, (*embed, *output, *EMBEDDINGS))))]
        self.tables = tuple(f"{name}.weight" for name in (*embed, *output))
        self.names: dict[str, str] = {}
        self.experts: dict[str, dict[tuple[str, int], str]] = {}
        for name in left:
            self.names.setdefault(self.key(name), name)
            match = EXPERT.fullmatch(self.key(name))
            if match and match[3] in HUB:
                of = self.experts.setdefault(match[1], {})
                of[HUB[match[3]], int(match[2])] = name

    def key(self, name: str) -> str:
        for old, new in self.older:
            name = name.replace(old, new)
        prefix = next((p for p in self.prefixes if name.startswith(p)), "")
        name = name[len(prefix) :]
        for pattern, new in RENAMED:
            name = pattern.sub(new, name)
        return name

    def places(self, parameter: str) -> list[Place]:
        key = self.key(parameter)
        name = self.names.get(key)
        if name is None and self.knobs.tied:
            name = self.tied_to(key)
        if name is None:
            return self.in_fused(key) or self.one_by_one(key) or self.in_stack(key)
        of_experts = len(self.left[name].shape) == 3 and self.family in TURNED
        of_layer = self.knobs.conv1d and len(self.left[name].shape) == 2 and OF_LAYER.search(key)
        return self.whole(name, bool(of_layer or of_experts and not name.endswith("_blocks")))

    def tied_to(self, key: str) -> str | None:
        """The tensor that is there for an embedding that is not."""
        module, _, kind = key.rpartition(".")
        if module not in self.tied or kind != "weight":
            return None
        found = [f"{other}.weight" for other in self.tied if f"{other}.weight" in self.names]
        return self.names[found[0]] if found else None

    def output_tied_to(self, name: str) -> str | None:
        module = self.key(name).removesuffix(".weight")
        if not self.knobs.tied or module not in self.tied or f"{self.output}.weight" in self.left:
            return None
        if self.knobs.source_layers:
            raise ExportError(
                f"it has {name} apart from those that the base ties to it, which is not supported for "
                "an encoder-decoder"
            )
        dense = self.head and not self.names.get(self.key(f"{self.head}.weight"))
        return f"{self.output}.weight" if self.output and not dense else None

    def in_fused(self, key: str) -> list[Place]:
        """A part of what a family's first files have in one."""
        for whole, parts in self.fused:
            for i, part in enumerate(parts):
                name = self.names.get(key.replace(f".{part}.", f".{whole}."))
                if f".{part}." in key and name:
                    n = self.left[name].shape[0] // len(parts)
                    return [Place(name, n, at=i * n)]
        return []

    def one_by_one(self, key: str) -> list[Place]:
        """All experts' matrices, where each has tensors of its own: gate's rows come first, then
        up's."""
        module, _, name = key.rpartition(".")
        kinds = {"gate_up_proj": ("gate", "up"), "up_proj": ("up",), "down_proj": ("down",)}
        found: list[Place] = []
        for (kind, expert), stored in self.experts.get(module, {}).items():
            if kind in kinds.get(name, ()):
                n = self.left[stored].shape[0]
                first = n * kinds[name].index(kind)
                found.append(Place(stored, n, first=first, part=expert))
        return found

    def in_stack(self, key: str) -> list[Place]:
        """One expert's matrix, where a tensor has them all."""
        match = EXPERT.fullmatch(key)
        kind = HUB.get(match[3]) if match else None
        stacks = ["down_proj"] if kind == "down" else ["gate_up_proj", "up_proj"]
        for stack in stacks if kind and self.family not in TURNED else []:
            name = self.names.get(f"{match[1]}.{stack}")
            if name is None or len(self.left[name].shape) != 3:
                continue
            expert, n = int(match[2]), self.left[name].shape[1]
            n = n // 2 if stack == "gate_up_proj" else n
            at = n if stack == "gate_up_proj" and kind == "up" else 0
            return (
                [Place(name, n, at=at, matrix=expert)] if expert < self.left[name].shape[0] else []
            )
        return []


def one_tied(left: dict[str, Tensor], table: dict[str, str | None]) -> None:
    """Leaves one of two tied tensors that are the same: a change is of both."""
    embed, output = (
        [f"{name}.weight" for name in (table.get(key) or "").split("|")]
        for key in ("embed", "output")
    )
    held = next((left[name] for name in embed if name in left), None)
    for name in output:
        if held and name in left and name not in embed and equal(held, left[name]):
            del left[name]
