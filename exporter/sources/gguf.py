"""GGUF files: their metadata become a config.json, their tensors get the names and the form that
Hugging Face gives them, and families.registry.canonical does the rest."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Sequence

from ..adapters.adapter import Adapter
from ..adapters.merge import merge
from ..adapters.places import Named
from ..checkpoint import KEEP
from ..config import Config
from ..families.guesses import ROWS
from ..families.registry import FAMILIES, canonical
from ..knobs import Knobs
from ..model import Model
from ..tensor import ExportError, Tensor
from .generation import generation_rules
from .gguf_architectures import ARCHITECTURES, Architecture
from .gguf_file import File, read_gguf
from .gguf_pooling import gguf_pooling, pooled
from .gguf_names import AROUND_GUESSES, Names, checkpoint_form
from .gguf_tokenizer import gguf_vocabulary


def open_gguf(
    path: str, shape_only: bool = False, adapters: Sequence[Adapter] = (), guesses: bool = True
) -> Model:
    """The checkpoint in a GGUF file, with the adapters merged. For a shape only the header is read,
    and the tokenizer is left out. guesses: as of canonical(). Errors: ExportError."""
    file = read_gguf(path, shape_only)
    try:
        return _model_of(path, file, adapters, guesses)
    # A list where a number should be.
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        MemoryError,
    ) as error:
        raise ExportError(
            f"{path}: its metadata make no sense: {type(error).__name__}: {error}"
        ) from error


def _model_of(path: str, file: File, adapters: Sequence[Adapter], guesses: bool) -> Model:
    arch = file.values.get("general.architecture")
    _refuse_other_files(file, arch)
    if arch not in ARCHITECTURES:
        raise ExportError(
            f"{path}: general.architecture is {arch!r}, which is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    of_arch = {
        key.removeprefix(f"{arch}."): v
        for key, v in file.values.items()
        if key.startswith(f"{arch}.")
    }
    metadata = Config(of_arch, f"{path}, metadata of {arch}")
    row = ARCHITECTURES[arch]
    merged = _merge(file, arch, [one for one in adapters if one.architecture])
    adapters = [one for one in adapters if not one.architecture]
    config = row.config(metadata, file)
    pooling, dense = gguf_pooling(metadata, file)
    metadata.finish()
    family, knobs, found, remarks = canonical(config, None)  # the shape
    if file.shape_only:
        return Model(_name(file), family, knobs, found, [*file.parts], remarks=remarks)
    # Llama 3's scaling, as divisors of the frequencies.
    factors = file.tensors.pop("rope_freqs.weight", None)
    names, layers = _names(config, family, knobs, row, file)
    try:
        family, knobs, found, remarks = canonical(
            config, _checkpoint(file, row, names, config, layers), adapters, guesses
        )
    except ExportError as error:
        raise ExportError(f"{path}: {names.in_file(str(error))}") from error
    knobs.pooling, more = pooled(pooling, knobs, len(dense))
    found, remarks = {**found, **dense}, merged + remarks + more
    if knobs.source_layers:
        knobs.rules, more = generation_rules(config, family, knobs.vocab_size, None)
        remarks = remarks + more
    if factors is not None:
        divisors = factors.array()
        n = len(knobs.ropes[0].inv_freq) if knobs.ropes else 0
        if divisors.shape != (n,) or not (divisors > 0).all():
            raise ExportError(f"{path}: tensor rope_freqs.weight holds no {n} positive numbers")
        knobs.ropes = [replace(rope, inv_freq=rope.inv_freq / divisors) for rope in knobs.ropes]
    template, more = _chat_template(file.values)
    remarks = remarks + more
    tokenizer = gguf_vocabulary(file)
    return Model(
        _name(file),
        family,
        knobs,
        found,
        [*file.parts],
        tokenizer=tokenizer,
        remarks=remarks,
        template=template,
        special_tokens=_special_tokens(file.values),
        dtype=KEEP,
    )


def _name(file: File) -> str:
    """One name for a model, whichever of its parts is named."""
    return os.path.basename(file.parts[0])


def _refuse_other_files(file: File, arch: object) -> None:
    """ExportError if it is no model: a sentence for what people take for one."""
    path = file.path
    kind = file.values.get("general.type") or ("mmproj" if arch == "clip" else "model")
    if kind == "adapter":
        raise ExportError(
            f"{path} is an adapter (general.type), not a model; its base, with the adapter merged: "
            f"export.py BASE.gguf OUT --adapter {path}"
        )
    if kind == "mmproj":
        raise ExportError(
            f"{path} is what a model has for pictures or sounds (mmproj); export the file of the "
            "model itself, which lies beside it"
        )
    Config(file.values, path).require(**{"general.type": "model"})
    if not file.tensors:
        raise ExportError(f"{path} is a vocabulary alone: it holds no tensors")


def _merge(file: File, arch: object, adapters: Sequence[Adapter]) -> list[str]:
    """Merges adapters that have GGUF's names. Returns remarks. Errors: ExportError."""
    for adapter in adapters:
        if adapter.architecture != arch:
            raise ExportError(
                f"{adapter.path} is an adapter for {adapter.architecture}, and {file.path} is {arch}"
            )
    return merge(adapters, Named(file.tensors))


def _chat_template(values: dict) -> tuple[str | None, list[str]]:
    """The template that is nobody's by name, and a remark on those that are."""
    begin = "tokenizer.chat_template."
    names = ", ".join(sorted(key.removeprefix(begin) for key in values if key.startswith(begin)))
    template = values.get("tokenizer.chat_template")
    if not names:
        return template, []
    if template is None:
        return None, [f"no chat template is the default, only {names} are there: it will not chat"]
    return template, [f"of the chat templates the default is taken; left out: {names}"]


def _special_tokens(values: dict) -> dict[str, str]:
    """The tokens that a chat template knows by name."""
    names = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
    tokens = values.get("tokenizer.ggml.tokens") or []
    found = {}
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        id = values.get(f"tokenizer.ggml.{names.get(name, name)}_token_id")
        if isinstance(id, int) and 0 <= id < len(tokens):
            found[f"{name}_token"] = tokens[id]
    return found


def _names(
    config: dict, family: str, knobs: Knobs, row: Architecture, file: File
) -> tuple[Names, dict[str, str]]:
    """The names of the file's tensors, and how a module's begins in layers that guess: among the
    text's -> in the checkpoint."""
    n, of_guesses, own, layers = knobs.n_layers, ROWS.get(family), row.names, {}
    if of_guesses and f"blk.{n}.nextn.eh_proj.weight" in file.tensors:
        knobs = canonical(of_guesses.longer(Config(config), n), None)[1]
        modules, around = of_guesses.at(n, knobs.n_layers - n)
        own = {**own, **{name: around[p] for name, p in AROUND_GUESSES.items() if p in around}}
        for root in ("model", "backbone"):
            layers |= {f"{root}.layers.{n + i}.": m + "." for i, m in enumerate(modules)}
    return Names(knobs, knobs.names or FAMILIES[family][1], own), layers


def _checkpoint(
    file: File, row: Architecture, names: Names, config: dict, layers: dict[str, str]
) -> dict[str, Tensor]:
    """The tensors as the Hugging Face checkpoint has them; those that the family has no name for
    keep theirs."""
    found: dict[str, Tensor] = {}
    for stored, tensor in row.whole(dict(file.tensors), config).items():
        kind, name = names.of(stored) or ("", stored)
        root = next((root for root in layers if name.startswith(root)), "")
        name = layers.get(root, "") + name[len(root) :]
        found |= checkpoint_form(kind, name, row.undo(stored, tensor, config))
    return found
