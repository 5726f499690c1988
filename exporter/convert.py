"""A model becomes a checkpoint: what the command and `heads.export` share."""

from __future__ import annotations

import os
import re
from typing import Callable, Mapping, Sequence

import numpy as np

from .adapters.adapter import Adapter
from .adapters.apart import StandIns, check_kinds, write_adapter
from .adapters.open import Given, find_base, open_adapters
from .bars import Progress, bar
from .checkpoint import (
    KEEP,
    Entry,
    Stats,
    dtype_of,
    entries,
    file_bytes,
    output_file,
    write_checkpoint,
    write_shape,
)
from .families.registry import ENCODERS
from .model import Model
from .quantize.budget import (
    CHOICES,
    MIXED,
    WIDTHS,
    Rounding,
    bytes_of,
    choose,
    described,
    prior,
    room_of,
    rounded_matrices,
    rounding_of,
    shapes_of,
)
from .sources.generation import languages
from .sources.gguf import open_gguf
from .sources.huggingface import download, open_directory
from .sources.kinds import is_gguf, is_hub_id
from .sources.llama2c import open_llama2c
from .sources.ollama import blob_of, is_manifest, model_in
from .sources.pointers import refuse_pointer
from .templates.chat import chat_metadata
from .templates.jinja import chat_template, left_out
from .tensor import ExportError, Tensor
from .tokenizers.added_tokens import named_tokens
from .tokenizers.classes import gives_types
from .tokenizers.files import find_tokenizer, named_eos, tokenizer_metadata
from .tokenizers.metadata import check_rows
from .tokenizers.vocabulary import Vocabulary

VERSION = "1"
SAID = 4096  # bytes of a file that the names of matrices may take
BETWEEN, SECOND_TYPE = "tokenizer.between", "tokenizer.second_type"


def open_model(
    src: str | None,
    tokenizer: str | None,
    revision: str | None,
    shape_only: bool,
    say: Callable[[str], None] = lambda sentence: None,
    adapters: Given = (),
    guesses: bool = True,
) -> Model:
    """Opens a directory, a GGUF or llama2.c file, or a hub id, which is downloaded first, after
    `say` has said so, and merges adapters into it; src None: the base that the first of them names.
    A shape needs only config.json, or the header. guesses False: without the layers that guess next
    tokens. Errors: ExportError."""
    opened = open_adapters(adapters, say)
    if src is None:
        src, named = find_base(adapters, say)
        revision = revision or named
    model = _open(src, tokenizer, revision, shape_only, say, opened, guesses)
    for adapter in opened:
        model.files += adapter.files
        if adapter.directory:
            _take_tokenizer(model, adapter)
    model.adapters = ", ".join(one.described for one in opened)
    return model


def convert_apart(
    src: str | None,
    base: str,
    out: str,
    dtype: str,
    adapters: Given,
    revision: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> tuple[Model, Stats]:
    """Writes adapters to a file of their own, for the checkpoint `base`, which was made of src; src
    None: of what the first of them names. Errors: ExportError, OSError."""
    stand_ins = StandIns()
    opened = open_adapters(adapters, say)
    for adapter in opened:
        check_kinds(adapter.path, adapter.changes)
        adapter.apart = stand_ins
    if src is None:
        src, named = find_base(adapters, say)
        revision = revision or named
    model = _open(src, None, revision, False, say, opened)
    model.adapters = ", ".join(one.described for one in opened)
    refuse_overwriting(out, [*model.files, *(f for one in opened for f in one.files), base])
    try:
        return model, write_adapter(model, stand_ins, base, out, dtype)
    except ExportError as error:
        raise ExportError(f"{adapters[0][0]}: {error}") from error


def _take_tokenizer(model: Model, adapter: Adapter) -> None:
    """An adapter's tokenizer and chat template, with which it was trained, in the place of the
    base's, whose ends of texts still end one."""
    if isinstance(model.tokenizer, Vocabulary):
        model.more_eos = model.tokenizer.eos
    elif model.directory and not model.more_eos:
        model.more_eos = named_eos(model.directory)
    model.directory, model.tokenizer = adapter.directory, find_tokenizer(adapter.directory)
    model.remarks.append(f"the tokenizer and the chat template are those of {adapter.path}")


def _open(
    src: str,
    tokenizer: str | None,
    revision: str | None,
    shape_only: bool,
    say: Callable[[str], None],
    adapters: Sequence[Adapter],
    guesses: bool = True,
) -> Model:
    if tokenizer and not os.path.isfile(src):
        raise ExportError(
            "--tokenizer is for llama2.c files; a Hugging Face checkpoint holds its own tokenizer"
        )
    if revision and os.path.exists(src):
        raise ExportError(f"--revision is for hub ids; {src} is a file or directory here")
    if os.path.isdir(src) and not os.path.exists(os.path.join(src, "config.json")):
        src = model_in(src) or src
    if is_manifest(src):
        src = blob_of(src)
    gguf = os.path.isfile(src) and is_gguf(src)
    other = next((one for one in adapters if one.architecture and not gguf), None)
    if other:
        raise ExportError(
            f"{other.path} is an adapter for a GGUF file, and {src} is none: name the base's file, or "
            "as the adapter the folder that it was made from"
        )
    if os.path.isdir(src):
        return open_directory(
            src, os.path.basename(os.path.abspath(src)), shape_only, adapters, guesses
        )
    if os.path.exists(src):
        refuse_pointer(src)
        if src.endswith(".safetensors"):
            raise ExportError(
                f"{src} holds tensors alone; name the directory that holds it, config.json and the "
                "tokenizer"
            )
        if gguf and tokenizer:
            raise ExportError(
                "--tokenizer is for llama2.c files; a GGUF file holds its own tokenizer"
            )
        if adapters and not gguf:
            raise ExportError(f"{src}: a llama2.c file takes no adapter")
        if gguf:
            return open_gguf(src, shape_only, adapters, guesses)
        return open_llama2c(src, tokenizer)
    if is_hub_id(src):
        which = f"its revision {revision}" if revision else "it"
        say(f"{src} is no file or directory here: downloading {which} from the hub")
        name = f"{src}@{revision}" if revision else src
        directory = download(src, revision, shape_only)
        return open_directory(directory, name, shape_only, adapters, guesses)
    raise ExportError(f"{src}: no such file or directory, and not a hub id such as org/name")


def refuse_overwriting(out: str, files: Sequence[str] = ()) -> None:
    """ExportError if `out` is a directory or a device, is in no directory, or is one of the files
    that it is made from."""
    target = output_file(out)
    if os.path.isdir(out):
        raise ExportError(
            f"{out} is a directory; name a file, such as {os.path.join(out, 'model.bin')}"
        )
    if not os.path.isdir(os.path.dirname(target)):
        raise ExportError(f"{out}: its directory does not exist")
    if os.path.exists(out) and any(
        os.path.samefile(out, file) for file in files if os.path.exists(file)
    ):
        raise ExportError(f"{out} belongs to the source; name another file for the result")


def _pairs(model: Model, between: object, second_type: object) -> dict[str, object]:
    """How two texts are read as one, of a model that classifies texts."""
    if not model.knobs.classes.get("model.class_pooling") or second_type is None:
        return {}
    typed = not model.directory or gives_types(model.directory)
    pairs = {SECOND_TYPE: second_type if typed else 0}
    return pairs if between is None else {**pairs, BETWEEN: between}


def text_metadata(model: Model) -> dict[str, object]:
    """The tokenizer and the chat template."""
    meta: dict[str, object] = {}
    if model.tokenizer:
        meta.update(tokenizer_metadata(model.tokenizer, model.family not in ENCODERS))
        if model.more_eos:
            own = np.asarray(meta.get("tokenizer.eos", []), np.int32)
            meta["tokenizer.eos"] = np.union1d(own, model.more_eos).astype(np.int32)
        meta.update(_pairs(model, meta.pop(BETWEEN, None), meta.pop(SECOND_TYPE, None)))
        model.remarks += check_rows(meta, model.knobs.source_vocab or model.knobs.vocab_size)
        if model.knobs.source_layers:
            meta.update(languages(model.family, meta, model.knobs.vocab_size))
    else:
        model.remarks.append("no tokenizer found: ./run will take --tokens, but no text")
    template = chat_template(model.directory) if model.directory else model.template
    named_only = left_out(model.directory) if model.directory and not template else None
    model.remarks += [named_only] if named_only else []
    if template:
        named = named_tokens(model.directory) if model.directory else model.special_tokens
        chat, remark = chat_metadata(template, named)
        meta.update(chat)
        model.remarks += [remark] if remark else []
    return meta


def metadata(model: Model, dtype: str, shape_only: bool) -> dict[str, object]:
    """Everything but the tensors; of a shape no text."""
    return {
        **model.knobs.metadata(model.tensors),
        **({} if shape_only else text_metadata(model)),
        "info.source": model.name,
        "info.family": model.family,
        "info.dtype": dtype,
        "info.exporter": f"heads.c export.py {VERSION}",
        **({"info.adapters": model.adapters} if model.adapters else {}),
    }


def dequantized(tensors: Mapping[str, Tensor], adapters: str) -> list[str]:
    """A remark on matrices whose numbers no type of the engine keeps, if there are any."""
    found = [n for n, t in tensors.items() if dtype_of(n, t, KEEP) == "f16" != t.stored]
    more = f" and {len(found) - 1} more" if found[1:] else ""
    why = ", some because an adapter has changed them" if adapters else ""
    return [f"{found[0]}{more} cannot be kept as stored{why}: rounded to f16"] if found else []


def convert(
    model: Model,
    out: str,
    dtype: str,
    shape_only: bool,
    note: Callable[[str], None],
    rounding: Rounding | None = None,
    progress: Progress = None,
) -> Stats:
    """Writes the checkpoint, whole or not at all. note: takes each remark that a user should read.
    rounding: if not as usual. Errors: ExportError, OSError."""
    if shape_only and model.knobs.mask == 1:
        raise ExportError(
            f"--shape-only: {model.family} is an encoder, which keeps no KV cache to plan for, and "
            "whose head only the checkpoint tells; export it with its weights"
        )
    meta = metadata(model, dtype, shape_only)
    if dtype == KEEP:
        model.remarks += dequantized(model.tensors, model.adapters)
    for remark in model.remarks:
        note(remark)
    rounding = rounding or rounding_of(dtype)
    if rounding and rounding.calibrated:
        return _calibrated(model, out, meta, rounding, progress)

    def write(path: str, meta: dict[str, object], stored: list[Entry]) -> Stats:
        if shape_only:
            return write_shape(path, meta, stored)
        total = sum(e.bytes for e in stored)
        with bar(progress, total, str(meta["info.dtype"]), unit="B", unit_scale=True) as shown:
            return write_checkpoint(path, meta, stored, shown.update)

    if not rounding:
        return write(out, meta, entries(model.tensors, dtype))
    shapes = shapes_of(without_guesses(meta, model.tensors)[1], rounding.dtype)
    room = _room(model, meta, rounding, shapes)
    chosen = choose(shapes, prior(shapes), rounding.dtype, room)
    return _write(model.tensors, out, meta, rounding.dtype, chosen, write)


def _room(model: Model, meta, rounding: Rounding, shapes) -> int:
    """The bytes that these matrices may have together. Errors: ExportError."""
    if rounding.bits is not None:
        return room_of(shapes, rounding.dtype, rounding.bits)
    least = dict.fromkeys(shapes, CHOICES[rounding.dtype][0])
    stored = entries(
        model.tensors, rounding.dtype, _types(model.tensors, meta, rounding.dtype, least)
    )
    smallest = file_bytes(meta, stored) + SAID
    if rounding.size is not None:
        most, option = rounding.size, f"--size {rounding.size:,}: "
    else:
        from .quantize.engine import cache_bytes

        cache = cache_bytes(meta, stored)
        most = rounding.memory * 15 // 16 - cache
        option = (
            f"--memory {rounding.memory:,}: of which a cache of {cache:,} leaves {max(most, 0):,}; "
        )
    if most < smallest:
        narrowest = CHOICES[rounding.dtype][0]
        raise ExportError(f"{option}the smallest file, all in {narrowest}, has {smallest:,} bytes")
    return most - smallest + bytes_of(shapes, least)


def without_guesses(meta: dict, tensors: Mapping[str, Tensor]) -> tuple[dict, dict[str, Tensor]]:
    """The same without the layers that guess, which stay in eight bits."""
    n = int(meta["model.n_layers"]) - int(meta.get("model.guess_layers", 0))
    kept = {k: v for k, v in meta.items() if k != "model.guess_layers"} | {"model.n_layers": n}
    for key, value in kept.items():
        if key.startswith("layer.") and isinstance(value, list):
            kept[key] = value[:n]
    guess = re.compile(r"guess_|layers\.(\d+)\.")
    found = {name: guess.match(name) for name in tensors}
    left_out = {name for name, m in found.items() if m and (m[1] is None or int(m[1]) >= n)}
    return kept, {name: tensor for name, tensor in tensors.items() if name not in left_out}


def _types(tensors, meta, dtype: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """The types of all matrices: layers that guess have q8."""
    of_text = rounded_matrices(without_guesses(meta, tensors)[1], dtype)
    types = dict.fromkeys(rounded_matrices(tensors, dtype), "q8")
    return types | {name: chosen[first] for name, first in of_text.items()}


def _write(tensors, out: str, meta, dtype: str, chosen, write, left: str = "") -> Stats:
    """A file whose matrices have the types that were chosen. left: what that costs."""
    types = _types(tensors, meta, dtype, chosen)
    of_text = without_guesses(meta, tensors)[1]

    def named(width: str) -> str:
        return described([n for n, found in types.items() if n in of_text and found == width])

    if dtype == MIXED:
        said = meta["info.types"] = "; ".join(f"{w}: {n}" for w in WIDTHS if (n := named(w))) + left
    elif dtype == "q4":
        meta["info.eight_bits"] = (named("q8") or "none") + left
        said = f"in eight bits: {meta['info.eight_bits']}"
    else:
        said = ""
    stats = write(out, meta, entries(tensors, dtype, types))
    stats.types = said
    return stats


def _calibrated(model: Model, out: str, meta, rounding: Rounding, progress: Progress) -> Stats:
    from .quantize.calibrate import calibrate, progress_of
    from .quantize.steps import Folder, fingerprint

    if rounding.text and not os.path.isfile(rounding.text):
        raise ExportError(f"{rounding.text}, whose text was to calibrate the model, is no file")
    of_text = without_guesses(meta, model.tensors)
    room = _room(model, meta, rounding, shapes_of(of_text[1], rounding.dtype))
    files = [*model.files, *([rounding.text] if rounding.text else [])]
    key = fingerprint(
        files,
        source=model.name,
        adapters=model.adapters,
        exporter=VERSION,
        text=rounding.text is not None,
        heads=model.knobs.n_kv_heads,
        dtype=rounding.dtype,
        room=room if rounding.dtype == MIXED else None,
    )
    folder = Folder(out, key)
    with progress_of(*of_text, rounding, progress) as shown:
        try:
            found = calibrate(folder, *of_text, rounding, room, shown)
        except ExportError:
            if not folder.has("texts.json"):  # nothing that took time to make
                folder.remove()
            raise

        def write(path: str, meta: dict[str, object], stored: list[Entry]) -> Stats:
            count = shown.counter("file", sum(e.bytes for e in stored))
            return write_checkpoint(path, meta, stored, count)

        with found:
            left = found.divergence()
            given = found.with_codes(model.tensors), out, meta, rounding.dtype, found.chosen
            stats = _write(*given, write, left)
            stats.curve = found.curve
            stats.unit = found.trials.unit if found.trials else ""
    folder.remove()
    return stats
