"""The command: export.py in the repository, python -m heads export where the package is."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from difflib import get_close_matches

from . import cache, plan
from .adapters.adapter import with_scale
from .adapters.apart import DTYPES as APART
from .assemble import pool_kv_heads
from .checkpoint import KEEP, Stats, entries, output_file
from .convert import convert, convert_apart, open_model, refuse_overwriting
from .knobs import values_of
from .model import Model
from .quantize.budget import BITS, MIXED, rounding_of
from .quantize.panels import WEIGHTS
from .random_weights import SHAPES, open_random
from .streams import Output, open_streams
from .tensor import ExportError


BUDGETS = ("bits", "size", "memory")


def pool(model: Model, n_kv_heads: int) -> None:
    """Pools the KV heads and says what that did."""
    knobs = model.knobs
    before = sum(e.bytes for e in entries(model.tensors, "f32"))
    was = knobs.n_kv_heads
    pool_kv_heads(knobs, model.tensors, n_kv_heads)
    after = sum(e.bytes for e in entries(model.tensors, "f32"))
    cache = 4 * knobs.n_layers * knobs.head_dim  # bytes a KV head and token: K and V in f16
    print(
        f"pooled: {was} KV heads to {n_kv_heads} by their means; weights "
        f"{100 * (after / before - 1):+.1f} %, "
        f"KV cache {cache * was} to {cache * n_kv_heads} bytes per token (f16)"
    )


def report(model: Model, args: argparse.Namespace, stats: Stats) -> None:
    """Prints what was written, on stdout."""
    k = model.knobs
    n_heads, n_kv_heads = max(values_of(k.n_heads)), max(values_of(k.n_kv_heads))
    kind = "MHA" if n_kv_heads == n_heads else "MQA" if n_kv_heads == 1 else "GQA"
    heads = (
        f"{n_heads} query and {n_kv_heads} KV heads ({kind}) of {max(values_of(k.head_dim))}"
        if any(k.has("attn_q", i) for i in range(k.n_layers))
        else "no attention"
    )
    guess = f" and {k.guess_layers} that guess" if k.guess_layers else ""
    print(
        f"{model.name}: {model.family}, {k.n_layers - k.guess_layers} layers of {k.n_embd}{guess}, {heads}, "
        f"feed-forward {max(values_of(k.d_ff))}, vocabulary {k.vocab_size}, context {k.context}"
    )
    bits = 8 * stats.data_bytes / stats.n_weights
    what = f"{stats.n_weights:,} weights, {bits:.2f} bits per weight"
    if args.shape_only:
        print(
            f"{args.out}: {os.path.getsize(args.out):,} bytes, the shape of a checkpoint that "
            f"would have {stats.file_bytes:,}: {what}"
        )
        return
    if model.adapters:
        print(f"merged: {model.adapters}")
    print(f"{args.out}: {stats.file_bytes:,} bytes, {what}")
    if args.dtype == KEEP:
        print(f"kept as {', '.join(sorted(stats.squares))}")
    elif args.dtype not in ("f32", MIXED):
        error = 100 * stats.relative_error("q4" if args.dtype in BITS else args.dtype)
        print(
            f"relative quantization error: {error:.3f} % (RMS of the rounding over RMS of the "
            "weights)"
        )
    if stats.curve:
        print(
            "matrices in so many MB would cost, each alone and these summed, so much "
            f"({stats.unit}):"
        )
        print("; ".join(f"{n / 1e6:.1f} {cost:.4f}" for n, cost in stats.curve))
    if stats.types:
        print(stats.types)


def budget_of(args: argparse.Namespace) -> dict[str, float]:
    """What the file may take, if that was said."""
    return {key: vars(args)[key] for key in BUDGETS if vars(args)[key] is not None}


def say(sentence: str) -> None:
    print(f"export: {sentence}", file=sys.stderr)


def run_apart(args: argparse.Namespace) -> None:
    """The export of an adapter alone. Errors: ExportError, OSError."""
    dtype = args.dtype or "f32"
    given = (args.src, args.base, args.out, dtype, args.adapter, args.revision)
    model, stats = convert_apart(*given, say)
    for remark in model.remarks:
        say(f"note: {remark}")
    print(
        f"{args.out}: {stats.file_bytes:,} bytes, {model.adapters} apart from {args.base}, "
        f"{stats.n_weights:,} weights in {dtype}"
    )


def run(args: argparse.Namespace) -> None:
    """The export. Errors: ExportError, OSError."""
    model = (
        open_random(args.random, args.seed)
        if args.random
        else open_model(
            args.src,
            args.tokenizer,
            args.revision,
            args.shape_only,
            say,
            args.adapter,
            not args.no_guesses,
        )
    )
    refuse_overwriting(args.out, model.files)
    if budget_of(args) and args.dtype is None:
        args.dtype = MIXED
    args.dtype = args.dtype or ("q8" if args.calibrate is not None else model.dtype)
    if args.kv_heads is not None:
        pool(model, args.kv_heads)
    stats = convert(
        model,
        args.out,
        args.dtype,
        args.shape_only,
        note=lambda remark: say(f"note: {remark}"),
        rounding=rounding_of(
            args.dtype,
            calibrated=args.calibrate is not None,
            text=args.calibrate,
            **budget_of(args),
        ),
    )
    report(model, args, stats)


def run_cached(args: argparse.Namespace) -> None:
    """Prints the path of the source's checkpoint in the cache. Errors: ExportError, OSError."""
    if not cache.is_source(args.src):
        raise ExportError(f"{args.src}: no such file or directory, and not a hub id")
    print(cache.checkpoint(args.src, args.revision, say))


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        near = get_close_matches(unknown[1], self._option_string_actions, 1) if unknown else []
        message += f"; did you mean {near[0]}?" if near else ""
        say(f"{message}; see {self.prog} --help")
        sys.exit(2)


def parse(argv: list[str], prog: str) -> argparse.Namespace:
    parser = Parser(prog=prog, description="Makes a checkpoint for ./run.", allow_abbrev=False)
    kinds = "a Hugging Face directory, a hub id (org/name), a .gguf, or a llama2.c .bin"
    parser.add_argument("src", metavar="SRC", nargs="?", help=kinds)
    parser.add_argument("out", metavar="OUT", nargs="?", help="the file to write")
    parser.add_argument(
        "--dtype",
        choices=(*WEIGHTS, "q4m", "f16", KEEP),
        help="of the matrices (q8); vectors are always f32. q4m: q4 with more matrices in q8. keep: "
        "as the source has them; a .gguf is kept unless this says otherwise",
    )
    parser.add_argument(
        "--bits",
        type=float,
        metavar="B",
        help="without --dtype: what all matrices may have a weight, from 2.32 to 8.5, each in the "
        "type of q2 to q8 that buys most for its bytes; of q4: what the layers' may have, from 4.5, "
        f"where those that it costs most get eight ({BITS['q4']:g}; {BITS['q4m']:g} for q4m)",
    )
    parser.add_argument(
        "--size",
        type=plan.scaled("KMGT", 1000),
        metavar="SIZE",
        help="as --bits, by what the file may have: 100M is 100,000,000 bytes",
    )
    parser.add_argument(
        "--memory",
        type=plan.scaled("KMGT", 1000),
        metavar="SIZE",
        help="as --size, by what ./run may take: the file, the cache of its whole context in f16, "
        "and a sixteenth for all else; needs `make lib`",
    )
    parser.add_argument(
        "--calibrate",
        nargs="?",
        const="",
        metavar="FILE",
        help="of q4 and q8: run the model on the text of FILE, or on what it writes itself, and "
        "choose codes and bits by what they do there; of an encoder-decoder FILE has sources, a "
        "line each; takes minutes, and needs `make lib`",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        metavar="DIR[:SCALE]",
        help="merge an adapter (LoRA and its kin) of peft, a folder or a hub id, or of a .gguf; "
        "several add up; without SRC, into the base that it names",
    )
    parser.add_argument(
        "--for",
        dest="base",
        metavar="BASE.bin",
        help="of --adapter: do not merge it, but write it to OUT, for ./run BASE.bin --adapter OUT; "
        f"BASE.bin is a checkpoint made of SRC. --dtype is then {', '.join(APART)}",
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
        "--no-guesses",
        action="store_true",
        help="leave out the layers that some models have to guess next tokens with; they are in q8 "
        "beside q4 too",
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
        "--cached",
        action="store_true",
        help="no OUT: into the user's cache, unless it is there "
        "already; prints its path, as ./run asks for it. --cache lists, --cache --clear empties it",
    )
    parser.add_argument(
        "--plan", action="store_true", help="a shape for a budget instead; see --plan --help"
    )
    if not argv:
        parser.error("give SRC and OUT")
    args = parser.parse_intermixed_args(argv)
    given = {name for name, value in vars(args).items() if value is not None and value is not False}
    if args.cached and given - {"src", "revision", "cached"}:
        parser.error("--cached: give SRC alone")
    if args.cached and args.src:
        return args
    if (args.random or args.adapter) and args.out is None:  # OUT alone
        args.src, args.out = None, args.src
    known = bool(args.random) or bool(args.adapter) and not args.src
    if bool(args.src) == known or not args.out:
        parser.error("give SRC and OUT, or --random SHAPE and OUT")
    if args.base and not args.adapter:
        parser.error("--for belongs to --adapter")
    if args.base and given - {"src", "out", "base", "adapter", "revision", "dtype"}:
        parser.error("--for: an adapter by itself takes --dtype and --revision alone")
    if args.base and args.dtype not in (None, *APART):
        parser.error(f"--for: the dtypes of an adapter by itself are {', '.join(APART)}")
    if args.dtype == "f16" and not args.base:
        parser.error("--dtype f16 is for an adapter by itself, with --for BASE.bin")
    if args.adapter and (args.random or args.shape_only):
        parser.error("--adapter: there are no trained weights to change")
    try:
        args.adapter = [with_scale(given) for given in args.adapter or ()]
    except ExportError as error:
        parser.error(str(error))
    if args.random and args.tokenizer:
        parser.error("--tokenizer: random weights have none")
    if args.random and args.revision:
        parser.error("--revision: random weights have none")
    if args.shape_only and args.tokenizer:
        parser.error("--tokenizer: a shape has none")
    budget = " and ".join(f"--{key}" for key in budget_of(args))
    if budget and args.dtype not in (*BITS, None):
        parser.error(f"{budget} belongs to --dtype q4, or goes without --dtype")
    if len(budget_of(args)) > 1:
        parser.error(f"give one of {budget}")
    if args.calibrate is not None and args.dtype not in (*BITS, "q8", None):
        parser.error("--calibrate belongs to --dtype q4 and q8")
    if args.dtype == KEEP and (args.random or args.shape_only):
        parser.error("--dtype keep: there are no numbers to keep")
    if args.calibrate is not None and (args.random or args.shape_only):
        parser.error("--calibrate: there are no trained weights")
    if args.seed is not None and not args.random:
        parser.error("--seed belongs to --random")
    args.seed = 1 if args.seed is None else args.seed
    return args


def parse_plan(argv: list[str], prog: str) -> argparse.Namespace:
    parser = Parser(prog=prog, description="Proposes a shape for a budget.", allow_abbrev=False)
    plan.add_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str], prog: str = "export.py") -> int:
    """The exit status; SystemExit for wrong usage."""
    if argv[:1] == ["--cache"]:
        return cache.main(argv[1:], f"{prog} --cache")
    plans = "--plan" in argv
    args = parse_plan(argv, prog) if plans else parse(argv, prog)
    try:
        known = (
            plan.run if plans else run_cached if args.cached else run_apart if args.base else run
        )
        known(args)
    except KeyboardInterrupt as stop:
        say("interrupted; nothing was written" + kept(args))
        return status_of(stop)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except ExportError as error:
        say(str(error))
        return 1
    return 0


def kept(args: argparse.Namespace) -> str:
    """A remark on what an interrupted calibration has left."""
    if getattr(args, "calibrate", None) is None:
        return ""
    folder = output_file(args.out) + ".calibration"
    return f"; {folder} has what was done, for the same command" if os.path.isdir(folder) else ""


def interrupt(number: int, _) -> None:
    """A handler of signals that end the program, so that the temporary file goes as with Ctrl-C."""
    raise KeyboardInterrupt(number)


def status_of(stop: KeyboardInterrupt) -> int:
    """The exit status of what a signal ended, as a shell has it."""
    return 128 + (stop.args[0] if stop.args else signal.SIGINT)


def as_program(argv: list[str], prog: str) -> int:
    """main() in a process of its own."""
    open_streams()
    sys.stdout, sys.stderr = Output(sys.stdout, "stdout"), Output(sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, interrupt)
    try:
        status = main(argv, prog)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as stop:  # while main() read its arguments, or said why it ended
        say("interrupted")
        return status_of(stop)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}")
        return 1
