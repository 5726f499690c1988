"""GGUF files: their metadata become a config.json, their tensors get the names and the form that
Hugging Face gives them, and families.registry.canonical does the rest. The `gguf` package knows
what both call a tensor."""

from __future__ import annotations

import os
from dataclasses import replace

from ..assemble import in_layers
from ..checkpoint import KEEP
from ..config import Config
from ..families.registry import FAMILIES, canonical
from ..layers.part import KINDS as PART_KINDS
from ..model import Model
from ..tensor import ExportError, Tensor, stack
from .gguf_architectures import ARCHITECTURES
from .gguf_file import File, read_gguf
from .gguf_tokenizer import gguf_vocabulary


def open_gguf(path: str, shape_only: bool = False) -> Model:
    """The checkpoint in a GGUF file. For a shape only the header is read, and the tokenizer is left
    out. Errors: ExportError."""
    file = read_gguf(path, shape_only)
    try:
        return _model_of(path, file)
    # A list where a number should be.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ExportError(
            f"{path}: its metadata make no sense: {type(error).__name__}: {error}"
        ) from error


def _model_of(path: str, file: File) -> Model:
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
    config_of, restore = ARCHITECTURES[arch]
    config = config_of(metadata, file)
    metadata.finish()
    if file.shape_only:
        family, knobs, found, remarks = canonical(config, None)
        return Model(_name(file), family, knobs, found, [*file.parts], remarks=remarks)
    # Llama 3's scaling, as divisors of the frequencies.
    factors = file.tensors.pop("rope_freqs.weight", None)
    family, knobs, found, remarks = canonical(
        config, _huggingface_names(file, arch, config, restore)
    )
    if factors is not None:
        divisors = factors.array()
        n = len(knobs.ropes[0].inv_freq) if knobs.ropes else 0
        if divisors.shape != (n,) or not (divisors > 0).all():
            raise ExportError(f"{path}: tensor rope_freqs.weight holds no {n} positive numbers")
        knobs.ropes = [replace(rope, inv_freq=rope.inv_freq / divisors) for rope in knobs.ropes]
    template = file.values.get("tokenizer.chat_template")
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
            f"{path} is an adapter (general.type), not a model; merge it into its base model "
            "(llama-export-lora), and export the result"
        )
    if kind == "mmproj":
        raise ExportError(
            f"{path} is what a model has for pictures or sounds (mmproj); export the file of the "
            "model itself, which lies beside it"
        )
    Config(file.values, path).require(**{"general.type": "model"})
    if not file.tensors:
        raise ExportError(f"{path} is a vocabulary alone: it holds no tensors")


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


# Tensors that a family's table names, but not every model has: assemble() reports those it needs.
OPTIONAL = PART_KINDS - {"router"} | {
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_norm",
    "attn_q_norm",
    "attn_k_norm",
    "output",
}


def _huggingface_names(file: File, arch: str, config: dict, restore) -> dict[str, Tensor]:
    """The tensors by the names that the family has for them; those that it has none for keep
    theirs."""
    import gguf

    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    n_layers = file.values[f"{arch}.block_count"]
    stored_names = gguf.get_tensor_name_map(number, n_layers)
    left, named = dict(file.tensors), {}
    for name, modules_of in in_layers(FAMILIES[config["model_type"]][1], n_layers):
        kind = name.split(".")[-1]
        modules = [
            (_stored_name(stored_names, name, kind, module), module)
            for module in modules_of.split("|")
        ]
        stored, module = next(((s, m) for s, m in modules if f"{s}.weight" in left), modules[0])
        for suffix in (".weight", ".bias"):
            tensor = left.pop(f"{stored}{suffix}", None)
            if tensor is not None:
                named |= _modules(module, suffix, kind, restore(stored, tensor, config))
            elif suffix == ".weight" and kind not in OPTIONAL:
                raise ExportError(f"{file.path} lacks the tensor {stored}.weight")
    return named | left


def _stored_name(stored_names, name: str, kind: str, module: str) -> str | None:
    """GGUF's name of a module of a family's table, without the suffix."""
    if kind == "output":
        return kind
    if kind.startswith("expert_"):
        return f"blk.{name.split('.')[1]}.ffn_{kind.removeprefix('expert_')}_exps"
    return stored_names.get_name(module.replace(".norms.*", ""))


def _modules(module: str, suffix: str, kind: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor in Hugging Face's form: experts one below the other, norms of heads one by
    one."""
    if kind.startswith("expert_") and len(tensor.shape) == 3:
        return {module + suffix: stack(tensor.matrices())}
    if "*" in module:
        return {
            module.replace("*", str(i)) + suffix: part for i, part in enumerate(tensor.matrices())
        }
    if kind == "shared_gate" and len(tensor.shape) == 1:
        return {module + suffix: tensor.map(lambda w: w[None], (1, *tensor.shape))}
    return {module + suffix: tensor}
