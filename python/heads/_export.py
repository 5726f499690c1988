"""export.py's work as a function and as python -m heads export. The package holds exporter/."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from inspect import signature

from . import _arguments as arguments
from ._arguments import Adapters
from ._native import FileError, HeadsError, InputError


def export(
    src: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    kv_heads: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    shape_only: bool = False,
    bits: float | None = None,
    size: int | None = None,
    memory: int | None = None,
    calibrate: bool | str | os.PathLike[str] = False,
    adapters: Adapters = (),
    progress: bool | Callable[[str, float], None] | None = None,
) -> None:
    """Makes the checkpoint `out` of a Hugging Face directory or hub id, a GGUF or a llama2.c file,
    as export.py does with the options of these names. It is written under another name and then
    renamed: a call that fails or is interrupted leaves what was there. Notes are
    warnings. adapters: one or several, or scales by their paths; with them src None is the base that
    the first of them names. progress: True shows a bar on stderr, None only where that is a terminal; a function
    is called with the phase, such as "texts", and how much of the whole is done, from 0 to 1. Calibration is slow, and gives other codes, where OPENBLAS_NUM_THREADS was not 1 when
    numpy was imported. Errors: InputError (an argument); HeadsError, OSError."""
    from .exporter.adapters.adapter import with_scale
    from .exporter.assemble import pool_kv_heads
    from .exporter.checkpoint import KEEP
    from .exporter.convert import convert, open_model, refuse_overwriting
    from .exporter.quantize.budget import BITS, MIXED, rounding_of
    from .exporter.quantize.panels import WEIGHTS
    from .exporter.tensor import ExportError

    given = arguments.adapters(adapters)
    if src is not None or not given:
        src = arguments.path("src", src)
    out = arguments.path("out", out)
    tokenizer = None if tokenizer is None else arguments.path("tokenizer", tokenizer)
    if revision is not None:
        arguments.c_string("revision", revision)
    shape_only = arguments.flag("shape_only", shape_only)
    kv_heads = None if kv_heads is None else arguments.whole("kv_heads", kv_heads, 1)
    budget = {
        "bits": None if bits is None else arguments.number("bits", bits, 1, 32),
        "size": None if size is None else arguments.whole("size", size, 1),
        "memory": None if memory is None else arguments.whole("memory", memory, 1),
    }
    budget = {key: value for key, value in budget.items() if value is not None}
    if progress is not None and not callable(progress):
        progress = arguments.flag("progress", progress)
    if not isinstance(calibrate, bool):
        calibrate = arguments.path("calibrate", calibrate)
    if dtype is not None and not (isinstance(dtype, str) and dtype in (*WEIGHTS, *BITS, KEEP)):
        raise InputError(f"dtype: {dtype!r} is none of {', '.join((*WEIGHTS, 'q4m', KEEP))}")
    if given and shape_only:
        raise InputError("adapters: a shape has no weights to change")
    if dtype is None:
        dtype = MIXED if budget else "q8" if calibrate else None
    if budget and dtype not in (*BITS, MIXED):
        raise InputError(f"{', '.join(budget)} belongs to q4 and q4m, or goes without dtype")
    if len(budget) > 1:
        raise InputError(f"give one of {', '.join(budget)}")
    if calibrate and dtype not in (*BITS, MIXED, "q8"):
        raise InputError("calibrate belongs to q4, q4m and q8")
    text = None if isinstance(calibrate, bool) else calibrate
    rounding = rounding_of(dtype, calibrated=bool(calibrate), text=text, **budget)
    try:
        scaled = [with_scale(path) if scale is None else (path, scale) for path, scale in given]
        model = open_model(src, tokenizer, revision, shape_only, adapters=scaled)
        refuse_overwriting(out, model.files)
        if kv_heads is not None:
            pool_kv_heads(model.knobs, model.tensors, kv_heads)
        convert(
            model,
            out,
            dtype or model.dtype,
            shape_only,
            note=lambda remark: warnings.warn(_as_arguments(remark), stacklevel=4),
            rounding=rounding,
            progress=progress,
        )
    except ExportError as error:
        raise HeadsError(_as_arguments(str(error))) from None


def checkpoint_of(path: str) -> str:
    """The path itself, or of what is no checkpoint (a directory, a GGUF, a hub id) the one that was
    made of it, once, in the user's cache. Notes are warnings. Errors: FileError."""
    from .exporter import cache
    from .exporter.tensor import ExportError

    try:
        if not cache.is_source(path):
            return path
        return cache.checkpoint(path, None, _warn)
    except OSError as error:
        raise FileError(f"cannot export {path}: {error.filename}: {error.strerror}") from None
    except ExportError as error:
        raise FileError(str(error)) from None


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=6)


def _as_arguments(sentence: str) -> str:
    """What the command says of its options, of the function's arguments."""
    named = "|".join(name.replace("_", "-") for name in signature(export).parameters)
    return re.sub(rf"--({named})\b", lambda option: option[1].replace("-", "_"), sentence)


def main(arguments: list[str]) -> int:
    from .exporter.command import as_program

    return as_program(arguments, "python -m heads export")
