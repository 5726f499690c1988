"""export.py's work as a function and as python -m heads export. The package holds exporter/."""

from __future__ import annotations

import os
import warnings

from ._native import HeadsError, InputError


def export(src: str | os.PathLike, out: str | os.PathLike, dtype: str = "q8", *,
           kv_heads: int | None = None, tokenizer: str | os.PathLike | None = None,
           revision: str | None = None, shape_only: bool = False, bits: float | None = None,
           calibrate: bool | str | os.PathLike = False) -> None:  # fmt: skip
    """Makes the checkpoint `out` of a Hugging Face directory or hub id, a GGUF or a llama2.c file,
    as export.py does with the options of these names. It is written under another name and then
    renamed: a call that fails or is interrupted leaves what was there. What a user should know is
    warned of. Errors: InputError (dtype, bits, calibrate); HeadsError, OSError."""
    from .exporter.assemble import pool_kv_heads
    from .exporter.budget import BITS, rounding_of
    from .exporter.convert import convert, open_source, refuse_overwriting
    from .exporter.quantize import DTYPES
    from .exporter.tensor import ExportError

    if dtype not in (*DTYPES, *BITS):
        raise InputError(f"dtype: {dtype!r} is none of {', '.join((*DTYPES, 'q4m'))}")
    if bits is not None and dtype not in BITS:
        raise InputError("bits belongs to q4 and q4m")
    if calibrate and dtype not in (*BITS, "q8"):
        raise InputError("calibrate belongs to q4, q4m and q8")
    text = None if isinstance(calibrate, bool) else os.fspath(calibrate)
    rounding = rounding_of(dtype, bits, bool(calibrate), text)
    try:
        source = open_source(os.fspath(src), tokenizer and os.fspath(tokenizer), revision,
                             shape_only)  # fmt: skip
        refuse_overwriting(os.fspath(out), source.files)
        if kv_heads is not None:
            pool_kv_heads(source.knobs, source.tensors, kv_heads)
        convert(source, os.fspath(out), dtype, shape_only,
                note=lambda remark: warnings.warn(remark, stacklevel=4), rounding=rounding)  # fmt: skip
    except ExportError as error:
        raise HeadsError(str(error)) from None


def main(arguments: list[str]) -> int:
    from .exporter.command import as_program

    return as_program(arguments, "python -m heads export")
