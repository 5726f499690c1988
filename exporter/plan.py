"""A model's shape for a budget: so many parameters, and a KV cache of so many bytes at a context.
Counts come from the exporter itself, as it would write the model; speeds from ./run's --bench."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import textwrap
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

from .checkpoint import Entry, entries, replacing
from .convert import refuse_overwriting
from .families.registry import canonical
from .quantize.panels import panel_bytes, value_bytes
from .tensor import ExportError

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
SCHEMES = ("gqa", "mla", "mqa", "mha")  # in the order in which they are chosen
LARGE = 1_000_000_000  # parameters from which on models are made wider, and embeddings untied
ASPECTS = {True: {"deep": 24, "wide": 64}, False: {"deep": 64, "wide": 128}}  # width over layers
MOST_HEADS, MOST_LAYERS = 256, 512

WHY = {
    "deep": "layers, width: below a billion parameters deep and thin did better, 19 to 30 times as "
    "wide as deep (Liu et al. 2024, MobileLLM, arXiv 2402.14905)",
    "wide": "layers, width: the shape matters little: 6 layers of 4288 came within 3 % of the loss "
    "of 48 layers of 1600 (Kaplan et al. 2020, arXiv 2001.08361), and fewer layers cache less",
    "ff": "feed-forward: 8/3 of the width or a little more, as a gated one has three matrices and "
    "a plain one of 4 two (Shazeer 2020, arXiv 2002.05202); it takes what the budget leaves",
    "vocab": "vocabulary: 3.1 M parameters times (others / 33 M)^0.835 (Tao et al. 2024, arXiv "
    "2407.13623, by derivatives); --vocab takes that of a tokenizer you have",
    "given": "vocabulary: as --vocab says",
    "tied": "output: tied to the embedding, which costs little below a billion parameters "
    "(MobileLLM)",
    "untied": "output: a matrix of its own, since the vocabulary is a small share of so many "
    "parameters",
    "gqa": "KV heads: the most that the cache has room for, fewer than query heads: close to MHA "
    "in quality and to MQA in speed (Ainslie et al. 2023, GQA, arXiv 2305.13245)",
    "mqa": "KV heads: one, which costs some quality (Shazeer 2019, arXiv 1911.02150; Ainslie et "
    "al. 2023)",
    "mha": "KV heads: as many as query heads, which --scheme asks for and the cache has room for",
    "mla": "latent: rank of at most 4 head_dim and a rope key of head_dim / 2 for all heads; at "
    "that rank DeepSeek-V2 found it stronger than MHA (arXiv 2405.04434)",
    "tokens": "training: about 20 tokens a parameter use a fixed amount of arithmetic best "
    "(Hoffmann et al. 2022, arXiv 2203.15556)",
}


@dataclass(frozen=True)
class Plan:
    """A candidate: what a config.json says, and what that costs."""

    scheme: str
    depth: str
    config: dict
    parameters: int
    token_bytes: dict[str, int]  # of the cache, by its type


@dataclass(frozen=True)
class Outline:
    """What the candidates of a scheme and a depth share."""

    width: int
    head_dim: int
    vocab: int
    tied: bool


# ---- what a config costs -------------------------------------------------------------------------


def make_config(scheme: str, o: Outline, group: int, context: int) -> dict:
    """All but layers and feed-forward. group: as groups() has it."""
    heads = o.width // o.head_dim
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": o.vocab,
        "hidden_size": o.width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0 if context > 8192 else 10000.0,
        "tie_word_embeddings": o.tied,
    }
    if scheme != "mla":
        return config | {"num_key_value_heads": heads // group, "head_dim": o.head_dim}
    return config | {
        "architectures": ["YoutuForCausalLM"],
        "model_type": "youtu",
        "q_lora_rank": None,
        "kv_lora_rank": group * o.head_dim,
        "qk_nope_head_dim": o.head_dim,
        "qk_rope_head_dim": o.head_dim // 2,
        "v_head_dim": o.head_dim,
        "rope_interleave": True,
    }


def count(config: dict) -> int:
    """Parameters, as the exporter writes them."""
    tensors = canonical(config, None)[2]
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


WEIGHTS, CACHES = ("f32", "bf16", "q8", "q4"), ("f16", "q8", "q4")  # that the table has


def token_bytes(config: dict) -> dict[str, int]:
    """Bytes of the KV cache for each token, keys and values in f16, q8 or q4."""

    def key(dtype: str, n: int) -> int:
        return panel_bytes(dtype, n) // 16

    def of(dtype: str) -> int:
        if config["model_type"] == "youtu":
            return key(dtype, config["kv_lora_rank"] + config["qk_rope_head_dim"])
        n = config["head_dim"]
        return config["num_key_value_heads"] * (key(dtype, n) + value_bytes(dtype, n))

    return {dtype: config["num_hidden_layers"] * of(dtype) for dtype in CACHES}


# ---- the search ----------------------------------------------------------------------------------


def best_vocabulary(parameters: int, tied: bool) -> float:
    """Parameters of the embedding, by Tao et al.; an output of its own is none of the others."""
    embedding = 0.0
    for _ in range(20):
        others = max(parameters - embedding * (1 if tied else 2), 1)
        embedding = 3_145_728 * (others / 33_000_000) ** 0.8354
    return embedding


def usual_head_dim(parameters: int) -> int:
    return next(
        d for d, most in ((16, 3e6), (32, 3e7), (64, 2e9), (128, math.inf)) if parameters < most
    )


@lru_cache(maxsize=None)
def linear(context: int, scheme: str, o: Outline, group: int) -> tuple[int, int, int]:
    """Parameters beside the layers, and of one layer with a feed-forward of 8/3 of the width; and
    that."""
    config = make_config(scheme, o, group, context)
    ff = round(o.width / 12) * 32
    one, two = (count(config | {"num_hidden_layers": n, "intermediate_size": ff}) for n in (1, 2))
    return 2 * one - two, two - one, ff


def outline(args: argparse.Namespace, scheme: str, depth: str) -> Outline | None:
    """The width whose layers, as many as the parameters allow, come closest to the aspect ratio
    that `depth` says. The number of heads is no prime, so that GQA has a choice."""
    tied, head_dim = args.params < LARGE, usual_head_dim(args.params)
    aspect = ASPECTS[tied][depth]
    embedding = best_vocabulary(args.params, tied)
    best = None
    for heads in range(4, MOST_HEADS + 1):
        width = heads * head_dim
        rough = 12 * width**3 / args.params  # the ratio if all were layers of 12 width^2
        if all(heads % n for n in range(2, heads)) or not aspect / 8 < rough < aspect * 8:
            continue
        vocab = args.vocab or max(256, round(embedding / width / 64) * 64)
        o = Outline(width, head_dim, vocab, tied)
        base, layer, _ = linear(args.context, scheme, o, groups(scheme, o)[0])
        layers = (args.params - base) // layer
        if 1 <= layers <= MOST_LAYERS:
            off = abs(math.log(width / layers / aspect))
            best = min(best or (off, o), (off, o), key=lambda found: found[0])
    return best and best[1]


def groups(scheme: str, o: Outline) -> list[int]:
    """Query heads to a KV head, or of MLA ranks over head_dim: from the largest cache to the
    smallest."""
    heads = o.width // o.head_dim
    between = [n for n in range(2, heads) if heads % n == 0]
    return {"mha": [1], "gqa": between, "mqa": [heads], "mla": [4, 3, 2, 1]}[scheme]


def fill(args: argparse.Namespace, scheme: str, depth: str, o: Outline, group: int) -> Plan | None:
    """As many layers as the parameters allow, and the rest to the feed-forward."""
    base, layer, ff = linear(args.context, scheme, o, group)
    layers = (args.params - base) // layer
    if layers < 1:
        return None
    more = (args.params - base - layers * layer) // (3 * o.width * layers) // 32 * 32
    shape = {"num_hidden_layers": layers, "intermediate_size": ff + more}
    config = make_config(scheme, o, group, args.context) | shape
    parameters = base + layers * (layer + 3 * o.width * more)
    return Plan(scheme, depth, config, parameters, token_bytes(config))


def all_plans(args: argparse.Namespace, scheme: str, depth: str) -> list[Plan]:
    o = outline(args, scheme, depth)
    plans = [fill(args, scheme, depth, o, group) for group in groups(scheme, o)] if o else []
    return [plan for plan in plans if plan]


def smallest(args: argparse.Namespace) -> int:
    """Parameters of the smallest model that there can be."""
    o = Outline(64, 16, args.vocab or 256, True)
    return min(sum(linear(args.context, s, o, groups(s, o)[-1])[:2]) for s in args.schemes)


def is_shape(args: argparse.Namespace, params: int) -> bool:
    """Whether a model can have so many parameters."""
    those = argparse.Namespace(**{**vars(args), "params": params})
    return any(all_plans(those, s, d) for s in args.schemes for d in ("deep", "wide"))


def largest(args: argparse.Namespace) -> int:
    """Parameters of the largest model that there can be, if those asked for are too many; found by
    halving, and rounded down to two digits."""
    low, high = smallest(args), args.params
    while high > 1.01 * low:
        middle = math.isqrt(low * high)
        low, high = (middle, high) if is_shape(args, middle) else (low, middle)
    unit = 10 ** (len(str(low)) - 2)
    return low // unit * unit


def candidates(args: argparse.Namespace) -> list[Plan]:
    """For each scheme and depth the one with the largest cache that has room; the first is the one
    to take. Errors: ExportError, if there is none."""
    fitting, others = [], []
    for scheme in args.schemes:
        for depth in ("deep", "wide") if args.params < LARGE else ("wide", "deep"):
            plans = all_plans(args, scheme, depth)
            room = [p for p in plans if p.token_bytes["f16"] * args.context <= args.kv_memory]
            fitting += room[:1]
            others += plans
    if fitting:
        return fitting
    if not others:
        too_few = any(is_shape(args, args.params * n) for n in (2, 8, 64, 512))
        bound = (
            f"the smallest with such a vocabulary has {smallest(args):,}"
            if too_few or args.params < smallest(args)
            else f"with {MOST_HEADS} heads and {MOST_LAYERS} layers at most, the largest has about "
            f"{largest(args):,}"
        )
        raise ExportError(
            f"--params: there is no shape for {args.params:,} parameters here; {bound}"
        )
    near = min(others, key=lambda p: p.token_bytes["f16"])
    need, tokens = near.token_bytes["f16"] * args.context, args.kv_memory // near.token_bytes["f16"]
    raise ExportError(
        f"no {'/'.join(args.schemes).upper()} model of {args.params:,} parameters keeps "
        f"{args.context:,} tokens in {size(args.kv_memory)}. The nearest is {near.scheme.upper()}"
        f" with {near.config['num_hidden_layers']} layers of {near.config['hidden_size']}: it needs"
        f" --kv-memory {need}" + (f", or --context {tokens}" if tokens else "")
    )


# ---- what it says --------------------------------------------------------------------------------


def ceilings() -> tuple[float, float] | None:
    """Bytes read and int8 operations done in a second at best, by the bundled model's --bench; None
    and a line on stderr if that cannot be had."""
    run, model = (os.path.join(ROOT, *path) for path in (("run",), ("models", "stories.bin")))
    if not os.path.exists(run):
        print(
            "export: no speeds: they take ./run, which is not built; type make in heads.c's folder",
            file=sys.stderr,
        )
        return None
    print("export: measuring this machine by ./run --bench, some seconds", file=sys.stderr)
    try:
        done = subprocess.run([run, model, "--bench", "--json"], capture_output=True, check=True)
        found = json.loads(done.stdout)
        return found["read_gb_s"] * 1e9, found["peak_gflop_s"] * 1e9
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        print(f"export: no speeds: ./run --bench failed: {error}", file=sys.stderr)
        return None


def speeds(plan: Plan, tensors: list[Entry], context: int, machine: tuple[float, float] | None):
    """Tokens per second at most: of a prompt, and generated at the beginning and at the end."""
    if machine is None:
        return ["-", "-", "-"]
    read, peak = machine
    tied = plan.config["tie_word_embeddings"]
    weights = sum(t.bytes for t in tensors if tied or t.name != "embed")
    products = sum(t.rows * t.cols for t in tensors if t.name.startswith("layers.") and t.rows > 1)
    cache = plan.token_bytes["f16"] * context
    found = (peak / (2 * products), read / weights, read / (weights + cache))
    return [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in found]


def print_tables(args: argparse.Namespace, plans: list[Plan]) -> None:
    """Shapes, sizes and speeds, each table within 80 columns."""
    machine = ceilings()
    shapes = [("layers", "width", "heads", "KV", "head_dim", "ff", "vocab", "parameters")]
    sizes = [(*WEIGHTS, *(f"cache {d}" for d in CACHES))]
    rates = [("prefill", "decode", f"at {args.context:,}")]
    for plan in plans:
        c, tensors = plan.config, canonical(plan.config, None)[2]
        stored = {dtype: entries(tensors, dtype) for dtype in WEIGHTS}
        latent = c["model_type"] == "youtu"
        shapes.append(
            (
                *(str(c[k]) for k in ("num_hidden_layers", "hidden_size", "num_attention_heads")),
                f"r{c['kv_lora_rank']}" if latent else str(c["num_key_value_heads"]),
                str(c["hidden_size"] // c["num_attention_heads"]),
                str(c["intermediate_size"]),
                f"{c['vocab_size']:,}",
                f"{plan.parameters:,}",
            )
        )
        weights = [size(sum(e.bytes for e in stored[dtype])) for dtype in stored]
        sizes.append((*weights, *(size(plan.token_bytes[d] * args.context) for d in CACHES)))
        rates.append(speeds(plan, stored["q8"], args.context, machine))
    names = ["  scheme", *(f"{' *'[plan is plans[0]]} {title(plan)}" for plan in plans)]
    print_table(names, shapes)
    print(f"\nThe file, and the cache at {args.context:,} tokens, in units of 1024 bytes:")
    print_table(names, sizes)
    print(
        "\nTokens a second at most, with weights in q8 and the cache in f16: what this\n"
        "machine's memory and arithmetic allow (--bench):"
    )
    print_table(names, rates)


def print_table(names: list[str], rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for name, row in zip(names, rows):
        cells = "  ".join(f"{x:>{w}}" for x, w in zip(row, widths))
        print(f"{name:<11}  {cells}")


def title(plan: Plan) -> str:
    return f"{plan.scheme.upper()} {plan.depth}"


def size(n: int) -> str:
    unit = min(int(math.log(max(n, 1), 1024)), 4)
    return f"{n / 1024**unit:.4g} {'BKMGT'[unit]}"


def reasons(args: argparse.Namespace, plan: Plan) -> list[str]:
    tied = "tied" if plan.config["tie_word_embeddings"] else "untied"
    vocab = "given" if args.vocab else "vocab"
    return [WHY[key] for key in (plan.depth, plan.scheme, "ff", vocab, tied, "tokens")]


# ---- the command line ----------------------------------------------------------------------------


def scaled(units: str, base: int):
    """A parser of numbers such as 1.5G."""

    def parse(text: str) -> int:
        match = re.fullmatch(rf"(\d+(?:\.\d+)?)([{units}]?)", text, re.IGNORECASE)
        n = 0
        if match:
            power = units.upper().find(match[2].upper()) + 1 if match[2] else 0
            n = int(float(match[1]) * base**power)
        if not 1 <= n < 1 << 60:
            raise argparse.ArgumentTypeError(f"expected a size such as 125{units[1]}: {text!r}")
        return n

    return parse


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", action="store_true", required=True, help="what this is about")
    parser.add_argument(
        "--params",
        type=scaled("KMBT", 1000),
        required=True,
        metavar="N",
        help="parameters at most, such as 125M or 1.1B",
    )
    parser.add_argument(
        "--context",
        type=scaled("KM", 1024),
        required=True,
        metavar="N",
        help="tokens, such as 32768 or 32K",
    )
    parser.add_argument(
        "--kv-memory",
        type=scaled("KMGT", 1024),
        required=True,
        metavar="SIZE",
        help="of the KV cache at most, in f16, such as 512M",
    )
    parser.add_argument(
        "--scheme", choices=SCHEMES, help="of attention; otherwise the first of these that has room"
    )
    parser.add_argument(
        "--vocab", type=int, metavar="N", help="tokens of the vocabulary, if it is known"
    )
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FILE",
        help="where the config.json of the first goes, for --random and for transformers",
    )


def run(args: argparse.Namespace) -> None:
    """Errors: ExportError, OSError."""
    args.schemes = (args.scheme,) if args.scheme else SCHEMES
    if not 1 <= args.context <= 1 << 24:
        raise ExportError(f"--context {args.context:,}: expected 1 to {1 << 24:,}")
    if args.vocab is not None and not 1 <= args.vocab <= 1 << 24:
        raise ExportError(f"--vocab {args.vocab:,}: expected 1 to {1 << 24:,}")
    if args.out:
        refuse_overwriting(args.out)
    plans = candidates(args)
    print(
        f"at most {args.params:,} parameters, and {size(args.kv_memory)} of KV cache in f16 at "
        f"{args.context:,} tokens\n* the one to take\n"
    )
    print_tables(args, plans)
    print()
    for why in reasons(args, plans[0]):
        print(textwrap.fill(why, 80, initial_indent="- ", subsequent_indent="  "))
    if args.out:
        with replacing(args.out) as file:
            file.write(json.dumps(plans[0].config, indent=1).encode() + b"\n")
        print(f"\n{args.out}: the config.json of {title(plans[0])}")
