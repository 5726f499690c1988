"""A source becomes a checkpoint: what the command and `heads.export` share."""

from __future__ import annotations

import os
import re
from typing import Callable, Sequence

from .budget import Rounding, described, eight_bits, prior, rounded_matrices
from .budget import rounding_of, sizes_of
from .chat import chat_metadata
from .checkpoint import Stats, entries, output_file, write_checkpoint, write_shape
from .generation import languages
from .gguf import MAGIC, open_gguf
from .huggingface import download, open_directory
from .jinja import chat_template, special_tokens
from .knobs import Source
from .llama2c import open_llama2c
from .tensor import ExportError
from .tokenizer import check_rows
from .tokenizer_files import tokenizer_metadata

VERSION = "1"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.bin)(?<!\.gguf)(?<!\.safetensors)")


def open_source(
    source: str,
    tokenizer: str | None,
    revision: str | None,
    shape_only: bool,
    say: Callable[[str], None] = lambda sentence: None,
) -> Source:
    """Opens a directory, a GGUF or llama2.c file, or a hub id, which is downloaded first, after
    `say` has said so. Of a shape only config.json is needed, or the header. Errors: ExportError."""
    if tokenizer and not os.path.isfile(source):
        raise ExportError(
            "--tokenizer is for llama2.c files; a Hugging Face checkpoint holds its own tokenizer"
        )
    if revision and os.path.exists(source):
        raise ExportError(f"--revision is for hub ids; {source} is a file or directory here")
    if os.path.isdir(source):
        return open_directory(source, os.path.basename(os.path.abspath(source)), shape_only)
    if os.path.exists(source):
        with open(source, "rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        if is_gguf and tokenizer:
            raise ExportError(
                "--tokenizer is for llama2.c files; a GGUF file holds its own tokenizer"
            )
        return open_gguf(source, shape_only) if is_gguf else open_llama2c(source, tokenizer)
    # A directory of the owner's name makes a mistyped path likelier than a model of that owner.
    if HUB_ID.fullmatch(source) and not os.path.isdir(os.path.dirname(source)):
        which = f"its revision {revision}" if revision else "it"
        say(f"{source} is no file or directory here: downloading {which} from the hub")
        name = f"{source}@{revision}" if revision else source
        return open_directory(download(source, revision, shape_only), name, shape_only)
    raise ExportError(f"{source}: no such file or directory, and not a hub id such as org/name")


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


def text_metadata(source: Source) -> dict[str, object]:
    """The tokenizer and the chat template."""
    meta: dict[str, object] = {}
    if source.tokenizer:
        meta.update(tokenizer_metadata(source.tokenizer))
        source.remarks += check_rows(
            meta, source.knobs.source_vocab or source.knobs.vocab_size
        )
        meta.update(languages(source.family, meta, source.knobs.vocab_size))
    else:
        source.remarks.append("no tokenizer found: ./run will take --tokens, but no text")
    template = chat_template(source.directory) if source.directory else source.template
    if template:
        named = special_tokens(source.directory) if source.directory else source.special_tokens
        chat, remark = chat_metadata(template, named)
        meta.update(chat)
        source.remarks += [remark] if remark else []
    return meta


def metadata(source: Source, dtype: str, shape_only: bool) -> dict[str, object]:
    """Everything but the tensors; of a shape no text."""
    return {
        **source.knobs.metadata(source.tensors),
        **({} if shape_only else text_metadata(source)),
        "info.source": source.name,
        "info.family": source.family,
        "info.dtype": dtype,
        "info.exporter": f"heads.c export.py {VERSION}",
    }


def convert(
    source: Source,
    out: str,
    dtype: str,
    shape_only: bool,
    note: Callable[[str], None],
    write: Callable[..., Stats] = write_checkpoint,
    rounding: Rounding | None = None,
) -> Stats:
    """Writes the checkpoint, whole or not at all. note: takes each remark that a user should read.
    write: what writes one that has weights. rounding: if not as usual. Errors: ExportError,
    OSError."""
    meta = metadata(source, dtype, shape_only)
    for remark in source.remarks:
        note(remark)
    if shape_only:
        write = write_shape
    rounding = rounding or rounding_of(dtype)
    if not rounding:
        return write(out, meta, entries(source.tensors, dtype))
    if rounding.calibrated:
        return _calibrated(source, out, meta, rounding, write)
    sizes = sizes_of(source.tensors, "q4")
    chosen = eight_bits(sizes, prior(sizes), rounding.bits)
    return _write_four(source.tensors, out, meta, chosen, write)


def _write_four(tensors, out: str, meta, chosen, write, left: str = "") -> Stats:
    """A four-bit file in which the chosen matrices have eight. left: what four bits cost still."""
    eight = [name for name, first in rounded_matrices(tensors, "q4").items() if first in chosen]
    meta["info.eight_bits"] = (described(eight) or "none") + left
    stats = write(out, meta, entries(tensors, "q4", eight))
    stats.eight = meta["info.eight_bits"]
    return stats


def _calibrated(source: Source, out: str, meta, rounding: Rounding, write) -> Stats:
    from .calibrate import calibrate
    from .steps import Folder, fingerprint

    if rounding.text and not os.path.isfile(rounding.text):
        raise ExportError(f"{rounding.text}, whose text was to calibrate the model, is no file")
    files = [*source.files, *([rounding.text] if rounding.text else [])]
    key = fingerprint(files, source=source.name, exporter=VERSION, text=rounding.text is not None,
                      heads=source.knobs.n_kv_heads, dtype=rounding.dtype)  # fmt: skip
    folder = Folder(out, key)
    try:
        found = calibrate(folder, meta, source.tensors, rounding)
    except ExportError:
        if not folder.has("texts.json"):  # nothing that took time to make
            folder.remove()
        raise
    with found:
        if rounding.dtype == "q8":
            stats = write(out, meta, entries(found.with_codes(source.tensors), "q8"))
        else:
            chosen = eight_bits(sizes_of(source.tensors, "q4"), found.costs, rounding.bits)
            nats = found.divergence(chosen)
            left = "" if nats is None else f"; {nats:.4f} nats a token from q8"
            tensors = found.with_codes(source.tensors, chosen)
            stats = _write_four(tensors, out, meta, chosen, write, left)
    folder.remove()
    return stats
