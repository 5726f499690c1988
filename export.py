#!/usr/bin/env python3
"""export.py SRC OUT [--dtype f32|bf16|q8|q4] [--kv-heads N] [--revision REV]: a Hugging Face
checkpoint (directory or hub id), a GGUF or a llama2.c file to a checkpoint for ./run.
docs/format.md describes the file; exporter/families.py is where a family is added.
export.py SRC OUT --shape-only: what needs no weights, from config.json or a GGUF file's header.
export.py --random SHAPE OUT: random weights in a known shape, to measure with.
export.py --plan --params N --context N --kv-memory SIZE: shapes for a budget."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys

from exporter import plan
from exporter.assemble import pool_kv_heads
from exporter.chat import chat_metadata
from exporter.checkpoint import Entry, Stats, entries, output_file, write_checkpoint, write_shape
from exporter.gguf import MAGIC, open_gguf
from exporter.huggingface import download, open_directory
from exporter.jinja import chat_template, special_tokens
from exporter.knobs import Source, values_of
from exporter.llama2c import open_llama2c
from exporter.quantize import DTYPES
from exporter.random_weights import SHAPES, open_random
from exporter.tensor import ExportError
from exporter.tokenizer import check_rows
from exporter.tokenizer_files import tokenizer_metadata

VERSION = "1"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.bin)(?<!\.gguf)(?<!\.safetensors)")


def open_source(
    source: str, tokenizer: str | None, revision: str | None, shape_only: bool
) -> Source:
    """Opens a directory, a GGUF or llama2.c file, or a hub id, which is downloaded first. Of a
    shape only config.json is needed, or the header. Errors: ExportError."""
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
        print(
            f"export: {source} is no file or directory here: downloading {which} from the hub",
            file=sys.stderr,
        )
        name = f"{source}@{revision}" if revision else source
        return open_directory(download(source, revision, shape_only), name, shape_only)
    raise ExportError(f"{source}: no such file or directory, and not a hub id such as org/name")


def refuse_overwriting(out: str, source: Source) -> None:
    """ExportError if `out` is a directory or a device, is in no directory, or is one of the
    source's files."""
    target = output_file(out)
    if os.path.isdir(out):
        raise ExportError(
            f"{out} is a directory; name a file, such as {os.path.join(out, 'model.bin')}"
        )
    if not os.path.isdir(os.path.dirname(target)):
        raise ExportError(f"{out}: its directory does not exist")
    if os.path.exists(out) and any(
        os.path.samefile(out, file) for file in source.files if os.path.exists(file)
    ):
        raise ExportError(f"{out} belongs to the source; name another file for the result")


def text_metadata(source: Source) -> dict[str, object]:
    """The tokenizer and the chat template."""
    meta: dict[str, object] = {}
    if source.tokenizer:
        meta.update(tokenizer_metadata(source.tokenizer))
        source.remarks += check_rows(meta, source.knobs.vocab_size)
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


def pool(source: Source, n_kv_heads: int) -> None:
    """Pools the KV heads and says what that did."""
    knobs = source.knobs
    before = sum(e.bytes for e in entries(source.tensors, "f32"))
    was = knobs.n_kv_heads
    pool_kv_heads(knobs, source.tensors, n_kv_heads)
    after = sum(e.bytes for e in entries(source.tensors, "f32"))
    cache = 4 * knobs.n_layers * knobs.head_dim  # bytes a KV head and token: K and V in f16
    print(
        f"pooled: {was} KV heads to {n_kv_heads} by their means; weights "
        f"{100 * (after / before - 1):+.1f} %, "
        f"KV cache {cache * was} to {cache * n_kv_heads} bytes per token (f16)"
    )


def report(source: Source, args: argparse.Namespace, stats: Stats) -> None:
    """What was written, on stdout."""
    k = source.knobs
    n_kv_heads = max(values_of(k.n_kv_heads))
    kind = "MHA" if n_kv_heads == k.n_heads else "MQA" if n_kv_heads == 1 else "GQA"
    print(
        f"{source.name}: {source.family}, {k.n_layers} layers of {k.n_embd}, {k.n_heads} query and "
        f"{n_kv_heads} KV heads "
        f"({kind}) of {max(values_of(k.head_dim))}, feed-forward {max(values_of(k.d_ff))}, "
        f"vocabulary {k.vocab_size}, "
        f"context {k.context}"
    )
    bits = 8 * stats.data_bytes / stats.n_weights
    what = f"{stats.n_weights:,} weights, {bits:.2f} bits per weight"
    if args.shape_only:
        print(
            f"{args.out}: {os.path.getsize(args.out):,} bytes, the shape of a checkpoint that "
            f"would have {stats.file_bytes:,}: {what}"
        )
        return
    print(f"{args.out}: {stats.file_bytes:,} bytes, {what}")
    if args.dtype != "f32":
        error = 100 * stats.relative_error(args.dtype)
        print(
            f"relative quantization error: {error:.3f} % (RMS of the rounding over RMS of the "
            "weights)"
        )


def run(args: argparse.Namespace) -> None:
    """The export. Errors: ExportError, OSError."""
    source = (
        open_random(args.random, args.seed)
        if args.random
        else open_source(args.src, args.tokenizer, args.revision, args.shape_only)
    )
    refuse_overwriting(args.out, source)
    if args.kv_heads is not None:
        pool(source, args.kv_heads)
    meta = metadata(source, args.dtype, args.shape_only)
    tensors = entries(source.tensors, args.dtype)
    for remark in source.remarks:
        print(f"export: note: {remark}", file=sys.stderr)
    write = write_shape if args.shape_only else write_with_progress
    report(source, args, write(args.out, meta, tensors))


def write_with_progress(path: str, meta: dict[str, object], tensors: list[Entry]) -> Stats:
    import tqdm

    with tqdm.tqdm(
        total=sum(e.bytes for e in tensors),
        unit="B",
        unit_scale=True,
        desc=meta["info.dtype"],
        disable=None,
    ) as bar:
        return write_checkpoint(path, meta, tensors, bar.update)


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        print(f"export: {message}; see export.py --help", file=sys.stderr)
        sys.exit(2)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="export.py", description="Makes a checkpoint for ./run.", allow_abbrev=False
    )
    sources = "a Hugging Face directory, a hub id (org/name), a .gguf, or a llama2.c .bin"
    parser.add_argument("src", metavar="SRC", nargs="?", help=sources)
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="q8", help="of the matrices (q8); vectors are always f32"
    )
    parser.add_argument(
        "--kv-heads",
        type=int,
        metavar="N",
        help="mean-pool the KV heads to N, a divisor of what there is",
    )
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="of a llama2.c .bin; otherwise the tok*.bin beside it"
    )
    parser.add_argument(
        "--revision", metavar="REV", help="of a hub id: a branch, a tag or a commit"
    )
    parser.add_argument(
        "--shape-only",
        action="store_true",
        help="a few KB for --kv and --info, without weights: of SRC only config.json is needed, or "
        "a .gguf's header",
    )
    parser.add_argument(
        "--random",
        metavar="SHAPE",
        help="no SRC, but random weights, to measure with, in the shape of a config.json or in a "
        f"known one: {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of --random; the same seed gives the same file (1)"
    )
    parser.add_argument(
        "--plan", action="store_true", help="a shape for a budget instead; see --plan --help"
    )
    args = parser.parse_intermixed_args(argv)
    if bool(args.src) == bool(args.random):
        parser.error("give SRC and OUT, or --random SHAPE and OUT")
    if args.random and args.tokenizer:
        parser.error("--tokenizer: random weights have none")
    if args.random and args.revision:
        parser.error("--revision: random weights have none")
    if args.shape_only and args.tokenizer:
        parser.error("--tokenizer: a shape has none")
    if args.seed is not None and not args.random:
        parser.error("--seed belongs to --random")
    args.seed = 1 if args.seed is None else args.seed
    return args


def parse_plan(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="export.py", description="Proposes a shape for a budget.", allow_abbrev=False
    )
    plan.add_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    plans = "--plan" in argv
    args = parse_plan(argv) if plans else parse(argv)
    try:
        plan.run(args) if plans else run(args)
    except KeyboardInterrupt:
        print("export: interrupted; nothing was written", file=sys.stderr)
        return 1
    except (ExportError, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    return 0


def interrupt(*_) -> None:
    """A handler of signals that end the program, so that the temporary file goes as with Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, interrupt)
    sys.exit(main())
