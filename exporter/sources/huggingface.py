"""Hugging Face checkpoints: a directory, whole or in shards, safetensors or pytorch_model.bin; or a
hub id."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from typing import Callable, Iterator, Sequence

import numpy as np

from ..adapters.adapter import Adapter
from ..families.registry import canonical
from ..json_files import read_json
from ..knobs import Knobs
from ..model import Model
from ..packed.methods import packed_stem, packing_beside
from ..tensor import ExportError, Tensor, from_file
from ..tokenizers.files import find_tokenizer
from .generation import generation_rules, read_values
from .pointers import refuse_pointer
from .sentences import cross_encoder, sentences


# A checkpoint's files of text.
SMALL = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt", "*.tiktoken")


def download(hub_id: str, revision: str | None, shape_only: bool) -> str:
    """The directory of a snapshot from the hub, with safetensors if it has them, or of config.json
    alone. revision: a branch, a tag or a commit, None for the default branch. Errors:
    ExportError."""
    if shape_only:
        return snapshot(hub_id, revision, "config.json")
    stems = ("model*", "gptq_model*", "*_Dense/model")
    path = snapshot(hub_id, revision, *SMALL, *(stem + ".safetensors" for stem in stems))
    if not any(name.endswith(".safetensors") for name in os.listdir(path)):
        stems = ("pytorch_model*", "gptq_model*", "*_Dense/pytorch_model")
        path = snapshot(hub_id, revision, *SMALL, *(stem + ".bin" for stem in stems))
    return path


def snapshot(hub_id: str, revision: str | None, *patterns: str) -> str:
    """The directory of a snapshot from the hub with such files. Errors: ExportError."""
    try:
        import huggingface_hub
    except ImportError:
        raise ExportError(
            f"downloading {hub_id} needs huggingface_hub; pip install huggingface_hub"
        ) from None
    try:
        return huggingface_hub.snapshot_download(
            hub_id, revision=revision, allow_patterns=list(patterns)
        )
    except Exception as error:  # the hub's own errors, and the network's below it
        reason = str(error).strip().split("\n")[0]
        unreached = re.fullmatch(r"Got: \w+: (?:\[Errno -?\d+\] )?(.*)", reason)
        reason = f"the hub is not reached: {unreached[1]}" if unreached else reason
        raise ExportError(f"cannot download {hub_id}: {reason or type(error).__name__}") from None


def open_directory(
    directory: str,
    name: str,
    shape_only: bool,
    adapters: Sequence[Adapter] = (),
    guesses: bool = True,
) -> Model:
    """The checkpoint in a directory, with the adapters merged; `name` is what it is called. Only
    headers are read, and for a shape config.json alone. guesses: as of canonical(). Errors:
    ExportError."""
    config, texts = _read_texts(directory)
    if shape_only:
        return _model(directory, name, config, None, texts[:1], (), guesses)
    tensors, files = _open_weights(directory)
    tensors, unwrapped = unwrap(tensors)
    config.update(cross_encoder(directory), **packing_beside(directory, config, tensors))
    model = _model(directory, name, config, tensors, files + texts, adapters, guesses)
    knobs = model.knobs
    more = sentences(
        directory, knobs.context, knobs.n_embd, knobs.mask == 1, bool(knobs.classes), _open_weights
    )
    knobs.pooling = more.entries
    model.tensors.update(more.tensors)
    model.remarks += more.remarks + unwrapped
    if os.path.isfile(os.path.join(directory, "adapter_config.json")) and not adapters:
        model.remarks.append(
            f"{directory} holds an adapter too, which is left out: --adapter {directory} merges it"
        )
    model.directory, model.tokenizer = directory, find_tokenizer(directory)
    return model


def _read_texts(directory: str) -> tuple[dict, list[str]]:
    """config.json, and the paths of all files of text, of which it is the first."""
    config_path = os.path.join(directory, "config.json")
    if not os.path.exists(config_path):
        raise ExportError(_no_checkpoint(directory))
    small = (".json", ".model", ".txt", ".jinja", ".tiktoken")
    texts = [os.path.join(directory, n) for n in os.listdir(directory) if n.endswith(small)]
    for path in texts:
        refuse_pointer(path)
    return read_json(config_path), sorted(texts, key=config_path.__ne__)


def _model(
    directory: str,
    name: str,
    config: dict,
    tensors: dict[str, Tensor] | None,
    files: list[str],
    adapters: Sequence[Adapter],
    guesses: bool,
) -> Model:
    family, knobs, found, remarks = canonical(config, tensors, adapters, guesses)
    remarks += _add_rules(directory, config, family, knobs)
    return Model(name, family, knobs, found, files, remarks=remarks)


def _no_checkpoint(directory: str) -> str:
    """Why a directory without config.json is no checkpoint, and what to do."""
    path = os.path.join(directory, "adapter_config.json")
    if os.path.exists(path):
        base = read_json(path).get("base_model_name_or_path") or "BASE"
        return (
            f"{directory} holds an adapter (adapter_config.json), not a model; its base, with the "
            f"adapter merged: export.py {base} OUT --adapter {directory}"
        )
    files = sorted(n for n in os.listdir(directory) if n.endswith(".gguf"))
    if files:
        which = f"that file, {files[0]}" if len(files) == 1 else f"one of them, such as {files[0]}"
        return f"{directory} has no config.json, but {len(files)} .gguf: name {which}"
    return f"{directory} has no config.json, so it is no Hugging Face checkpoint"


# What torch.compile, DistributedDataParallel and peft put before the names of all tensors.
WRAPPERS = ("_orig_mod.", "module.", "base_model.model.")


def unwrap(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors without the names of wrappers around the model, and remarks. Errors: ExportError
    for an adapter that is not merged."""
    cut: list[str] = []
    while tensors and (
        found := next((w for w in WRAPPERS if all(n.startswith(w) for n in tensors)), None)
    ):
        cut.append(found)
        tensors = {name[len(found) :]: tensor for name, tensor in tensors.items()}
    adapter = next((n for n in tensors if ".lora_" in n or ".base_layer." in n), None)
    if adapter:
        raise ExportError(
            f"the checkpoint holds {adapter}, of an adapter that is not merged; save the model "
            "after peft's merge_and_unload()"
        )
    remark = f"names of tensors begin with {''.join(cut)}, of a wrapper: left out"
    return tensors, [remark] if cut else []


def _add_rules(directory: str, config: dict, family: str, knobs: Knobs) -> list[str]:
    """Adds the rules of generation, for models whose files have some. Returns remarks."""
    if not knobs.source_layers:
        return []
    values = None if knobs.classes else read_values(directory)
    knobs.rules, remarks = generation_rules(config, family, knobs.vocab_size, values)
    if not knobs.classes:
        return remarks
    knobs.rules = {"model.start": knobs.rules["model.start"][:1]}  # for it writes nothing
    return []


def _forms(directory: str) -> Iterator[tuple[str, Callable[[str], dict[str, Tensor]]]]:
    """Names of a file of weights, and how it is read, in the order of transformers; AutoGPTQ had
    names of its own."""
    yield "model.safetensors", open_safetensors
    yield "pytorch_model.bin", open_torch
    own = packed_stem(directory)
    yield f"{own}.safetensors", open_safetensors
    yield f"{own}.bin", open_torch


def _open_weights(directory: str) -> tuple[dict[str, Tensor], list[str]]:
    """All tensors of a directory by name, and the files that hold them."""
    for single, read in _forms(directory):
        path = os.path.join(directory, single)
        refuse_pointer(path)
        if os.path.isfile(path):
            return read(path), [path]
        if os.path.isfile(path + ".index.json"):
            return _open_shards(directory, path + ".index.json", read)
    raise ExportError(
        f"{directory} has no model.safetensors and no pytorch_model.bin, whole or in shards with "
        "an index"
    )


def _open_shards(directory: str, index_path: str, read) -> tuple[dict[str, Tensor], list[str]]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ExportError(f"{index_path} has no weight_map of tensor names to files")
    shards: dict[str, dict[str, Tensor]] = {}
    for shard in sorted(set(weight_map.values())):
        path = os.path.join(directory, shard)
        if os.path.basename(shard) != shard or not os.path.isfile(path):
            missing = sum(v == shard for v in weight_map.values())
            raise ExportError(
                f"the shard {shard} is missing from {directory} ({missing} tensors are in it)"
            )
        refuse_pointer(path)
        shards[shard] = read(path)
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise ExportError(
                f"tensor {name} is not in {shard}, where {os.path.basename(index_path)} puts it"
            )
    files = [index_path, *(os.path.join(directory, shard) for shard in shards)]
    return {name: tensor for shard in shards.values() for name, tensor in shard.items()}, files


SAFETENSORS_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# Only quantization_config says what they mean: exporter/packed
BYTES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "I32": 4, "U32": 4, "I64": 8}


def open_safetensors(path: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file: 8 bytes with the length of a JSON header, the header, the
    data. The safetensors package has no bf16 without torch, so the file is read here. Errors:
    ExportError."""
    size = os.path.getsize(path)
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, 100 << 20):
                raise ValueError(f"its header claims {length} bytes, the file has {size}")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {
            name: _safetensor(path, name, entry, 8 + length, size) for name, entry in header.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExportError(f"{path} is no safetensors file, or is cut short: {error}") from None


def _safetensor(path: str, name: str, entry: dict, base: int, file_size: int) -> Tensor:
    begin, end, kind = *entry["data_offsets"], entry["dtype"]
    shape = tuple(entry["shape"])
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or end > file_size - base:
        raise ValueError(f"tensor {name} lies outside the file")
    stored = SAFETENSORS_DTYPES.get(kind)
    width = np.dtype(stored).itemsize if stored else BYTES.get(kind)
    expected = math.prod(shape) * width if width else end - begin
    if end - begin != expected or begin > end:
        raise ValueError(f"tensor {name} has {end - begin} bytes, its shape makes {expected}")
    shape = shape or (1,)
    in_bytes = shape if width == 1 else (*shape, width)
    raw = from_file(path, name, in_bytes, base + begin, "<u1") if width else None
    if stored:
        numbers = from_file(path, name, shape, base + begin, stored, bf16=kind == "BF16")
        return replace(numbers, raw=raw, floats=True)

    def refuse():
        raise ExportError(
            f"tensor {name} is stored as {kind}, which is not supported; supported: "
            + ", ".join(SAFETENSORS_DTYPES)
        )

    return Tensor(name, shape, refuse, raw=raw)


def open_torch(path: str) -> dict[str, Tensor]:
    """The tensors of a pytorch_model.bin, mapped, not read, where its format allows. Needs torch
    2.6: what weights_only promises, earlier versions did not keep. Errors: ExportError."""
    try:
        import torch
    except ImportError:
        raise ExportError(
            f"reading {path} needs torch, which is not installed; or take a checkpoint with "
            "safetensors"
        ) from None
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 6):
        raise ExportError(
            f"reading {path} needs torch 2.6 or later, and {torch.__version__} is installed, where "
            "such a file can run code (CVE-2025-32434); or take a checkpoint with safetensors"
        )
    try:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # a file of before torch 1.6 cannot be mapped
            state = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(state.get("state_dict"), dict):  # as trainers save it, among other things
            state = state["state_dict"]
        tensors = {
            name: value.detach() for name, value in state.items() if isinstance(value, torch.Tensor)
        }
    except Exception as error:  # pickle raises anything
        raise ExportError(
            f"cannot read {path}: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None
    return {name: _torch_tensor(name, value) for name, value in tensors.items()}


def _torch_tensor(name: str, value) -> Tensor:
    import torch

    value = value.reshape(value.shape or (1,))

    def bytes_of(a: int, b: int) -> np.ndarray:
        rows = value[a:b].contiguous().view(-1)
        return rows.view(torch.uint8).reshape(b - a, *in_bytes[1:]).float().numpy()

    def numbers(a: int, b: int) -> np.ndarray:
        return value[a:b].float().numpy()

    shape, width = tuple(value.shape), value.element_size()
    in_bytes = shape if width == 1 else (*shape, width)
    floats = value.is_floating_point() and width > 1
    raw = Tensor(name, in_bytes, lambda: bytes_of)
    return Tensor(name, shape, lambda: numbers, raw=raw, floats=floats)
