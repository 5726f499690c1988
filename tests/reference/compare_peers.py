#!/usr/bin/env python3
"""The speed of this engine beside others on this machine: the same random weights in each, measured
in turn, as a table.

    python tests/reference/compare_peers.py [--shape smollm-135m] [--dtypes f32,bf16,q8,q4]
        [--threads N] [--rounds 5] [--sequences 1,8,16,32] [--keep DIR]

Peers are what is installed: llama.cpp (pip install llama-cpp-python gguf) and transformers (torch,
transformers). Each makes its own file of the same weights, lives in a process of its own, and is
asked round after round for the same things: a prompt of 256 tokens, single tokens after 0 and after
4096 others, and with --sequences the decode of so many sequences as one batch, after 0 and after
512 tokens that they share. A ratio is this engine's tokens per second over the peer's, the median
of the rounds. Not part of `make test`: it takes minutes and wants a machine without neighbours."""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from exporter.assemble import in_layers  # noqa: E402
from exporter.families.common import LLAMA  # noqa: E402
from exporter.model import Model  # noqa: E402
from exporter.random_weights import SHAPES, open_random  # noqa: E402
from exporter.tensor import Tensor  # noqa: E402

SEED, PROMPT, DECODE = 1, 256, 16
BATCH_DEPTHS, MAX_SEQUENCES = (0, 512), 256
SHAPES_OF_ALL = [
    name for name, c in SHAPES.items() if c["model_type"] == "llama" and "rope_scaling" not in c
]


class Absent(Exception):
    """Why a peer cannot be measured here."""


@dataclass(frozen=True)
class Task:
    """What each engine is asked for: a file of that shape and dtype in `directory`, so many threads
    and positions, and for this engine how many tokens of a prompt it runs at once."""

    shape: str
    dtype: str
    threads: int
    chunk: int
    context: int
    directory: str

    def file(self, name: str) -> str:
        return os.path.join(self.directory, name)


def tokens(n: int, shape: str) -> list[int]:
    """Those of --bench: spread over the vocabulary."""
    return [i * 7919 % SHAPES[shape]["vocab_size"] for i in range(n)]


# ---- engines -------------------------------------------------------------------------------------
#
# Each has logits() of the first 8 tokens and, in tokens per second, prefill(n), decode(depth) and
# batch(n, depth): DECODE steps of n sequences that share their first `depth` tokens, with the logits
# of every token, after a step that is not timed.


class Heads:
    """This engine: a session held open by tests/c/compare_peers.c, with an f16 KV cache; the logits
    are those of ./run."""

    version = ""

    def __init__(self, task: Task):
        self.task = task
        self.path = task.file(f"{task.shape}-{task.dtype}.bin")
        if not os.path.exists(self.path):
            command = [
                sys.executable,
                ROOT / "export.py",
                "--random",
                task.shape,
                self.path,
                "--seed",
                str(SEED),
            ]
            subprocess.run([*command, "--dtype", task.dtype], check=True, capture_output=True)
        command = [
            ROOT / "build/tests/c/compare_peers",
            self.path,
            *map(str, (task.threads, task.chunk, task.context)),
        ]
        self.session = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _seconds(self, depth: int, n: int, m: int) -> float:
        """A line of compare_peers.c: DEPTH N AT_ONCE or DEPTH -SEQUENCES STEPS."""
        print(depth, n, m, file=self.session.stdin, flush=True)
        return float(self.session.stdout.readline())

    def logits(self) -> np.ndarray:
        ids = " ".join(map(str, tokens(8, self.task.shape)))
        with tempfile.NamedTemporaryFile() as out:
            command = [
                ROOT / "run",
                self.path,
                "--tokens",
                ids,
                "-t",
                str(self.task.threads),
                "--logits",
                out.name,
            ]
            subprocess.run(command, check=True, capture_output=True)
            return np.fromfile(out.name, "<f4").reshape(8, -1)[-1]

    def prefill(self, n: int) -> float:
        return n / self._seconds(0, n, n)

    def decode(self, depth: int) -> float:
        return DECODE / self._seconds(depth, DECODE, 1)

    def batch(self, n: int, depth: int) -> float:
        return n * DECODE / self._seconds(depth, -n, DECODE)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.weight", name)
    if layer:
        return f"blk.{layer[1]}.{GGUF_NAMES[layer[2]]}.weight"
    return GGUF_NAMES[name.removesuffix(".weight")] + ".weight"


def hub_tensors(source: Model) -> dict[str, Tensor]:
    """The weights of a Llama under the names of its Hugging Face checkpoint."""
    return {
        f"{module}.weight": source.tensors[name]
        for name, module in in_layers(LLAMA, source.knobs.n_layers)
        if name in source.tensors
    }


def pairs_interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of q or k as GGUF's Llama wants them: its rope rotates neighbours, so i and i + d / 2
    become neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: str, config: dict, tensors: dict[str, Tensor], kinds: dict[str, str]) -> None:
    """A Llama of that config.json as a GGUF file without a vocabulary. kinds: GGUF's types for
    some of the tensors; the others are F32."""
    import gguf

    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters", config)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")

    def kind(name: str) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType[kinds.get(name, "F32")]

    for name, tensor in tensors.items():
        shape, stored = tensor.shape, np.dtype(np.float32)
        if kind(name).name != "F32":
            shape, stored = gguf.quant_shape_to_byte_shape(shape, kind(name)), np.dtype(np.uint8)
        nbytes = int(np.prod(shape)) * stored.itemsize
        writer.add_tensor_info(gguf_name(name), shape, stored, nbytes, raw_dtype=kind(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in tensors.items():
        weight = tensor.array()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = pairs_interleaved(weight, heads if "q_proj" in name else kv_heads)
        writer.write_tensor_data(gguf.quants.quantize(np.ascontiguousarray(weight), kind(name)))
    writer.close()


def gguf_kinds(tensors: dict[str, Tensor], dtype: str) -> dict[str, str]:
    """GGUF's types for a dtype's matrices; the embedding of q4 is in 8 bits, as it is here."""
    kinds = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_0"}
    return {
        name: kinds["q8" if dtype == "q4" and not name.startswith("model.layers.") else dtype]
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2
    }


class LlamaCpp:
    """llama.cpp by its C functions, with the defaults of its Python package: an f16 KV cache, chunks
    of 512, no flash attention. batch() takes what is fastest."""

    def __init__(self, task: Task):
        try:
            import gguf  # noqa: F401
            import llama_cpp
        except ImportError as error:
            raise Absent(
                f"{error.name} is not installed (pip install llama-cpp-python gguf)"
            ) from None
        self.api, self.task, self.version = llama_cpp, task, llama_cpp.__version__
        path = task.file(f"{task.shape}-{task.dtype}.gguf")
        if not os.path.exists(path):
            tensors = hub_tensors(open_random(task.shape, SEED))
            kinds = gguf_kinds(tensors, task.dtype)
            write_gguf(path + ".tmp", SHAPES[task.shape], tensors, kinds)
            os.replace(path + ".tmp", path)
        threads = {"n_threads": task.threads, "n_threads_batch": task.threads}
        self.llama = llama_cpp.Llama(path, n_ctx=task.context, verbose=False, **threads)
        self.contexts = {0: self.llama.ctx}
        self.batches = {}  # (n, depth): its context

    def _after(self, depth: int):
        """The context that holds so many tokens and no more; filled when it is first asked for."""
        if depth not in self.contexts:
            self.contexts[depth] = self.api.llama_init_from_model(
                self.llama.model, self.llama.context_params
            )
            self._fill(self.contexts[depth], depth)
        self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.contexts[depth]), 0, depth, -1)
        return self.contexts[depth]

    def _fill(self, context, depth: int) -> None:
        for at in range(0, depth, 512):
            self._run(context, tokens(depth, self.task.shape)[at : at + 512])

    def _run(self, context, ids: list[int]) -> None:
        array = (self.api.llama_token * len(ids))(*ids)
        if self.api.llama_decode(context, self.api.llama_batch_get_one(array, len(ids))):
            raise RuntimeError("llama_decode failed")
        self.api.llama_synchronize(context)

    def logits(self) -> np.ndarray:
        context = self._after(0)
        self._run(context, tokens(8, self.task.shape))
        row = self.api.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(row, (SHAPES[self.task.shape]["vocab_size"],)).copy()

    def prefill(self, n: int) -> float:
        context = self._after(0)
        start = time.perf_counter()
        self._run(context, tokens(n, self.task.shape))
        return n / (time.perf_counter() - start)

    def decode(self, depth: int) -> float:
        context = self._after(depth)
        start = time.perf_counter()
        for token in tokens(DECODE, self.task.shape):
            self._run(context, [token])
        return DECODE / (time.perf_counter() - start)

    def _sequences(self, n: int, depth: int, unified: bool, flash: int):
        """A context of n sequences that share their first `depth` tokens; its cache is one buffer
        for all, with the shared tokens once, or a buffer for each."""
        params = type(self.llama.context_params).from_buffer_copy(self.llama.context_params)
        params.n_ctx = n * (depth + DECODE + 1)
        params.n_seq_max, params.kv_unified, params.flash_attn_type = n, unified, flash
        context = self.api.llama_init_from_model(self.llama.model, params)
        self._fill(context, depth)
        for i in range(1, n):
            self.api.llama_memory_seq_cp(self.api.llama_get_memory(context), 0, i, -1, -1)
        return context

    def _step(self, context, batch, at: int) -> None:
        """A token of each sequence, all of them at the same position."""
        for i in range(batch.n_tokens):
            batch.pos[i] = at
        if self.api.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        self.api.llama_synchronize(context)

    def _batch_rate(self, context, n: int, depth: int) -> float:
        batch = self.api.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(tokens(depth + n, self.task.shape)[depth:]):
            batch.token[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, 1, i, 1
        self._step(context, batch, depth)
        start = time.perf_counter()
        for at in range(depth + 1, depth + 1 + DECODE):
            self._step(context, batch, at)
        took = time.perf_counter() - start
        for i in range(n):
            self.api.llama_memory_seq_rm(self.api.llama_get_memory(context), i, depth, -1)
        self.api.llama_batch_free(batch)
        return n * DECODE / took

    def batch(self, n: int, depth: int) -> float:
        """With the layout of the cache and the kind of attention that are fastest the first time."""
        if (n, depth) not in self.batches:
            flash = self.api.LLAMA_FLASH_ATTN_TYPE_DISABLED, self.api.LLAMA_FLASH_ATTN_TYPE_ENABLED
            ways = itertools.product((False, True), flash)
            contexts = [self._sequences(n, depth, *way) for way in ways]
            contexts.sort(key=lambda context: self._batch_rate(context, n, depth))
            self.batches[n, depth] = contexts.pop()
            for context in contexts:
                self.api.llama_free(context)
        return self._batch_rate(self.batches[n, depth], n, depth)


class Torch:
    """transformers on torch, eager; it has no counterpart of q8 and q4."""

    def __init__(self, task: Task):
        try:
            import torch
            import transformers
        except ImportError as error:
            raise Absent(
                f"{error.name} is not installed (pip install torch transformers)"
            ) from None
        if task.dtype not in ("f32", "bf16"):
            raise Absent(f"transformers has no {task.dtype} on a CPU")
        torch.set_num_threads(task.threads)
        torch.set_grad_enabled(False)
        self.torch, self.transformers, self.task = torch, transformers, task
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        config = {key: value for key, value in SHAPES[task.shape].items() if key != "model_type"}
        with torch.device("meta"):
            self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
        dtype = torch.float32 if task.dtype == "f32" else torch.bfloat16
        weights = {
            name: torch.from_numpy(t.array()).to(dtype)
            for name, t in hub_tensors(open_random(task.shape, SEED)).items()
        }
        self.model.load_state_dict(weights, strict=False, assign=True)
        self.model.tie_weights()
        self.model.model.rotary_emb = type(self.model.model.rotary_emb)(self.model.config)
        self.filled = {}  # depth: the cache that holds so many tokens

    def _run(self, rows: list[list[int]], cache):
        """The logits of the last token of each row."""
        ids = self.torch.tensor(rows)
        options = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        return self.model(ids, **options).logits[:, -1]

    def _after(self, depth: int):
        """The cache that holds so many tokens; filled when it is first asked for."""
        if not depth:
            return self.transformers.DynamicCache()
        if depth not in self.filled:
            self.filled[depth] = self.transformers.DynamicCache()
            for at in range(0, depth, 512):
                ids = tokens(depth, self.task.shape)[at : at + 512]
                self._run([ids], self.filled[depth])
        return self.filled[depth]

    def logits(self) -> np.ndarray:
        return self._run([tokens(8, self.task.shape)], self._after(0))[0].float().numpy()

    def prefill(self, n: int) -> float:
        start = time.perf_counter()
        self._run([tokens(n, self.task.shape)], self._after(0))
        return n / (time.perf_counter() - start)

    def decode(self, depth: int) -> float:
        cache = self._after(depth)
        start = time.perf_counter()
        for token in tokens(DECODE, self.task.shape):
            self._run([[token]], cache)
        took = time.perf_counter() - start
        if depth:
            cache.crop(-DECODE)
        return DECODE / took

    def batch(self, n: int, depth: int) -> float:
        cache = copy.deepcopy(self._after(depth))
        if depth:
            cache.batch_repeat_interleave(n)
        rows = [[token] for token in tokens(depth + n, self.task.shape)[depth:]]
        self._run(rows, cache)
        start = time.perf_counter()
        for _ in range(DECODE):
            self._run(rows, cache)
        return n * DECODE / (time.perf_counter() - start)


ENGINES = {"heads.c": Heads, "llama.cpp": LlamaCpp, "transformers": Torch}


# ---- a process for each engine, and the rounds ---------------------------------------------------


def serve(pipe, name: str, task: Task) -> None:
    """Runs an engine and answers (method, arguments) until the pipe closes."""
    try:
        engine = ENGINES[name](task)
        pipe.send(("ready", engine.version))
        while True:
            method, *arguments = pipe.recv()
            pipe.send(("done", getattr(engine, method)(*arguments)))
    except EOFError:
        pass
    except Absent as reason:
        pipe.send(("absent", str(reason)))
    except Exception as error:  # whatever a peer may throw is its result
        pipe.send(("absent", f"failed: {type(error).__name__}: {error}"))


def label(request: tuple) -> str:
    """prefill 256, decode 4096, batch of 16, decode 512"""
    if request[0] == "batch":
        return f"batch of {request[1]}, decode {request[2]}"
    return f"{request[0]} {request[1]}"


@dataclass
class Engine:
    """An engine in its process, which is killed when an answer takes more than `limit` seconds.
    `absent` says why there is nothing to measure any more."""

    name: str
    task: Task
    limit: float
    absent: str = ""
    over: tuple | None = None  # what took so long
    version: str = ""
    rates: dict[tuple, list[float]] = field(default_factory=dict)

    def __post_init__(self):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, child = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(child, self.name, self.task), daemon=True)
        self.process.start()
        child.close()
        self.version = self._answer() or ""

    def _answer(self):
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            self.process.join()
            kind, value = "absent", f"its process ended with status {self.process.exitcode}"
        if kind == "absent":
            self.absent, value = value, None
        return value

    def ask(self, *request):
        if self.absent:
            return None
        self.pipe.send(request)
        if self.pipe.poll(self.limit):
            return self._answer()
        self.process.kill()
        self.absent, self.over = (
            f"stopped, as {label(request)} took over {self.limit:g} s",
            request,
        )
        return None

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


def measure(task: Task, what: list[tuple], rounds: int, limit: float) -> list[Engine]:
    """All engines on one dtype: a round asks each thing of each engine in turn."""
    engines = [Engine(name, task, limit) for name in ENGINES]
    ours = engines[0].ask("logits")
    for engine in engines[1:]:
        theirs = engine.ask("logits")
        if ours is not None and theirs is not None:
            distance = np.sqrt(((theirs - ours) ** 2).mean() / (ours**2).mean())
            engine.version += f"; its logits differ from ours by {100 * distance:.2g} %"
            if distance > 1:  # more than rounding does
                engine.absent = f"{engine.version}: it runs another model"
    for r in range(rounds):
        for request in what:
            for engine in engines:
                if sys.stderr.isatty():
                    line = f"{task.dtype}, round {r + 1} of {rounds}: {engine.name}, "
                    line += label(request)
                    print(f"{line:78}", end="\r", file=sys.stderr)
                rate = engine.ask(*request)
                if rate is not None:
                    engine.rates.setdefault(request, []).append(rate)
                time.sleep(0.1)  # until the threads of the one before are asleep
    for engine in engines:
        engine.close()
    return engines


def row(dtype: str, request: tuple, engines: list[Engine]) -> str:
    """A line of the table: medians of tokens per second, and of the ratios round by round."""
    ours = engines[0].rates.get(request, [])
    cells = [dtype, label(request)]
    for engine in engines:
        rates = engine.rates.get(request, [])
        missing = f"over {engine.limit:g} s" if engine.over == request else "-"
        cells.append(f"{statistics.median(rates):.1f}" if rates else missing)
        if engine is engines[0]:
            continue
        ratios = sorted(a / b for a, b in zip(ours, rates))
        cells.append(
            f"**{statistics.median(ratios):.2f}** ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            if ratios
            else "-"
        )
    return "| " + " | ".join(cells) + " |"


def sequences(text: str) -> list[int]:
    """1,8,16,32"""
    numbers = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
    if not all(1 <= n <= MAX_SEQUENCES for n in numbers):
        reason = f"{text}: expected numbers from 1 to {MAX_SEQUENCES} with commas between"
        raise argparse.ArgumentTypeError(reason)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES_OF_ALL, default="smollm-135m")
    parser.add_argument("--dtypes", default="f32,bf16,q8,q4")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--chunk", type=int, default=128, help="of this engine, as ./run -b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--depth",
        type=int,
        default=4096,
        help="of the second measurement of decode; 0: leave it out",
    )
    parser.add_argument(
        "--sequences",
        type=sequences,
        default=[],
        metavar="N,..",
        help=f"decode of so many at a time, 1 to {MAX_SEQUENCES}",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=300,
        help="seconds for an answer, filling the cache included; then a peer is stopped",
    )
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="where files of models are kept and taken from; empty it if the exporter has changed",
    )
    args = parser.parse_args()
    if not set(args.dtypes.split(",")) <= {"f32", "bf16", "q8", "q4"}:
        parser.error(
            f"--dtypes {args.dtypes}: expected f32, bf16, q8 and q4, or some of them, with commas "
            "between"
        )
    what = [("prefill", PROMPT), ("decode", 0), *([("decode", args.depth)] if args.depth else [])]
    what += [("batch", n, depth) for depth in BATCH_DEPTHS for n in args.sequences]
    peers = [name for name in ENGINES if name != "heads.c"]
    remarks = []
    subprocess.run(
        ["make", "-s", "-C", ROOT, "run", "build/tests/c/compare_peers"],
        check=True,
        stdout=sys.stderr,
    )
    print(
        f"{args.shape}, random weights, {args.threads} threads, {args.rounds} rounds: "
        "tokens per second, medians; ratio:"
    )
    print("heads.c over the peer, round by round (least-most)\n")
    print("| weights | | heads.c |" + "".join(f" {name} | ratio |" for name in peers))
    print("|---|---|---|" + "---|---|" * len(peers), flush=True)
    with contextlib.ExitStack() as stack:
        directory = args.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(directory, exist_ok=True)
        for dtype in args.dtypes.split(","):
            context = max(args.depth, PROMPT, *BATCH_DEPTHS) + 2 * DECODE
            task = Task(args.shape, dtype, args.threads, args.chunk, context, directory)
            engines = measure(task, what, args.rounds, args.limit)
            for request in what:
                print(row(dtype, request, engines), flush=True)
            remarks += [
                f"{dtype}: {e.name}: {e.absent or e.version}"
                for e in engines
                if e.absent or e.version
            ]
    print("\n" + "\n".join(f"- {remark}" for remark in remarks))


if __name__ == "__main__":
    main()
