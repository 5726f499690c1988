#!/usr/bin/env python3
"""The speed of this engine beside others on this machine: the same random weights in each, measured
in turn, as a table.

    python tests/reference/compare_peers.py [--shapes smollm-135m,moe-1b,minilm,MODEL.gguf]
        [--dtypes f32,bf16,q8,q4] [--threads N] [--rounds 5] [--prompt 256] [--depth 4096]
        [--sequences 1,8,16,32] [--keep DIR] [--peers llama.cpp,transformers]
        [--browser DIR MODEL.gguf MODEL.bin]

Peers are what is installed: llama.cpp (pip install llama-cpp-python gguf) and transformers (torch,
transformers), or with --peers ik_llama.cpp (CMAKE_ARGS=-DGGML_NATIVE=ON pip install
--no-binary ik-llama-cpp-python ik-llama-cpp-python) and OpenVINO (openvino optimum-intel nncf) too.
Each makes its own file of the same weights, lives in a process of its own, and is
asked round after round for the same things: a prompt of 256 tokens, single tokens after 0 and after
4096 others, and with --sequences the decode of so many sequences as one batch, after 0 and after
512 tokens that they share; an encoder for a text of 256 tokens and for 8 texts of 32. A GGUF file is a
shape, too: llama.cpp runs it with flash attention, this engine what export.py keeps of it. A ratio is
this engine's tokens per second over the peer's, the median of the rounds. --browser adds the engine
in Chromium beside wllama and ./run, as compare_wllama.mjs measures them; DIR and the files are as
it says. Not part of `make test`: it takes minutes and wants a machine without neighbours."""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from peers_gguf import ARCHITECTURES, hub_tensors, write_gguf  # noqa: E402

from exporter.checkpoint import KEEP  # noqa: E402
from exporter.families.registry import ENCODERS  # noqa: E402
from exporter.random_weights import SHAPES, open_random  # noqa: E402
from exporter.sources.gguf import open_gguf  # noqa: E402
from exporter.sources.kinds import is_gguf  # noqa: E402

SEED, DECODE = 1, 16
TEXTS = ((1, 256), (8, 32))  # for encoders: so many of so many tokens
# How far logits may differ, as a part of their size. Rounding moved them by up to 0.0004, 0.03, 0.13
# and 0.7; rope of the wrong pairs moves them by 0.37, experts in another order by 0.82. So what
# q4 lets pass is to be seen in another type, whose file is made in the same way.
LIMITS = {"f32": 0.01, "bf16": 0.1, "q8": 0.25, "q4": 1.0, KEEP: 0.25}
BATCH_DEPTHS, MAX_SEQUENCES = (0, 512), 255  # llama.cpp has one more, which the others copy
SHAPES_OF_ALL = [
    name
    for name, c in SHAPES.items()
    if c["model_type"] in ARCHITECTURES and "rope_scaling" not in c
]


class Absent(Exception):
    """Why a peer cannot be measured here."""


@functools.lru_cache(maxsize=None)
def config_of(shape: str) -> dict:
    """What the config of a shape's model says, of a GGUF file what is asked for here."""
    if shape in SHAPES:
        return SHAPES[shape]
    model = open_gguf(shape, shape_only=True)
    knobs = model.knobs
    return {
        "model_type": model.family,
        "vocab_size": knobs.vocab_size,
        "hidden_size": knobs.n_embd,
        "max_position_embeddings": knobs.context,
    }


@dataclass(frozen=True)
class Task:
    """What each engine is asked for: a file of that shape and dtype in `directory`, so many threads
    and positions, and for this engine how many tokens of a prompt it runs at once. The shape of a
    GGUF file is its path, and its dtype KEEP."""

    shape: str
    dtype: str
    threads: int
    chunk: int
    context: int
    directory: str

    def file(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @property
    def name(self) -> str:
        return os.path.basename(self.shape)

    @property
    def encoder(self) -> bool:
        return config_of(self.shape)["model_type"] in ENCODERS


def tokens(n: int, shape: str) -> list[int]:
    """Those of --bench: spread over the vocabulary."""
    return [i * 7919 % config_of(shape)["vocab_size"] for i in range(n)]


# ---- engines -------------------------------------------------------------------------------------
#
# Each has logits() after 8 tokens, which of an encoder are the last one's hidden state, and, in
# tokens per second, prefill(n), decode(depth) and batch(n, depth): DECODE steps of n sequences that
# share their first `depth` tokens, with the logits of every token, after a step that is not timed.
# Encoders have texts(n, length) instead: the hidden states of n texts in one pass.


class Heads:
    """This engine: a session held open by tests/c/compare_peers.c, with an f16 KV cache; the logits
    are those of ./run."""

    version = ""

    def __init__(self, task: Task):
        self.task = task
        self.path = task.file(f"{task.name}-{task.dtype}.bin")
        if not os.path.exists(self.path):
            random = ["--seed", str(SEED), "--random"] if task.dtype != KEEP else []
            command = [ROOT / "export.py", *random, task.shape, self.path, "--dtype", task.dtype]
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
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
                "--hidden" if self.task.encoder else "--logits",
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

    def texts(self, n: int, length: int) -> float:
        return n * length / self._seconds(0, -n, length)


class Peer:
    """One that goes on from a state: _after(depth) gives that which holds so many tokens, and
    _run(state, ids) adds more."""

    def _fill(self, state, depth: int) -> None:
        for at in range(0, depth, 512):
            self._run(state, tokens(depth, self.task.shape)[at : at + 512])

    def prefill(self, n: int) -> float:
        state = self._after(0)
        start = time.perf_counter()
        self._run(state, tokens(n, self.task.shape))
        return n / (time.perf_counter() - start)

    def decode(self, depth: int) -> float:
        state = self._after(depth)
        start = time.perf_counter()
        for token in tokens(DECODE, self.task.shape):
            self._run(state, [token])
        return DECODE / (time.perf_counter() - start)

    def batch(self, n: int, depth: int) -> float | None:
        """None: not measured in it."""
        return None


def gguf_file(task: Task) -> str:
    if task.dtype == KEEP:
        return task.shape
    path = task.file(f"{task.shape}-{task.dtype}.gguf")
    if not os.path.exists(path):
        tensors = hub_tensors(open_random(task.shape, SEED))
        write_gguf(path + ".tmp", SHAPES[task.shape], tensors, task.dtype)
        os.replace(path + ".tmp", path)
    return path


class LlamaCpp(Peer):
    """llama.cpp by its C functions, with the defaults of its Python package: an f16 KV cache, chunks
    of 512, no flash attention but for GGUF files. batch() takes what is fastest."""

    def __init__(self, task: Task):
        try:
            import gguf  # noqa: F401
            import llama_cpp
        except ImportError as error:
            raise Absent(
                f"{error.name} is not installed (pip install llama-cpp-python gguf)"
            ) from None
        self.api, self.task, self.version = llama_cpp, task, llama_cpp.__version__
        options = {"n_threads": task.threads, "n_threads_batch": task.threads}
        options |= {"n_ctx": task.context, "embedding": task.encoder, "verbose": False}
        options["flash_attn"] = task.dtype == KEEP
        self.llama = llama_cpp.Llama(gguf_file(task), **options)
        self.model, self.params = self.llama.model, self.llama.context_params
        self.contexts = {0: self.llama.ctx}
        self.batches = {}  # (n, depth): its context

    def _after(self, depth: int):
        """The context that holds so many tokens and no more; filled when it is first asked for."""
        if depth not in self.contexts:
            self.contexts[depth] = self.api.llama_init_from_model(self.model, self.params)
            self._fill(self.contexts[depth], depth)
        context = self.contexts[depth]
        if not self._forget(context, 0, depth):  # a state that has gone on
            self._forget(context, 0, 0)
            self._fill(context, depth)
        return context

    def _forget(self, context, sequence: int, depth: int) -> bool:
        """All tokens of a sequence but the first so many."""
        memory = self.api.llama_get_memory(context)
        return not memory or self.api.llama_memory_seq_rm(memory, sequence, depth, -1)

    def _run(self, context, ids: list[int]) -> None:
        array = (self.api.llama_token * len(ids))(*ids)
        self._pass(context, self.api.llama_batch_get_one(array, len(ids)))

    def logits(self) -> np.ndarray:
        context = self._after(0)
        with self._batch(1, 8, 0) as batch:
            self._pass(context, batch)
        api, config = self.api, config_of(self.task.shape)
        if self.task.encoder:
            row, width = api.llama_get_embeddings_ith(context, -1), config["hidden_size"]
        else:
            row, width = api.llama_get_logits_ith(context, -1), config["vocab_size"]
        return np.ctypeslib.as_array(row, (width,)).copy()

    def _sequences(self, n: int, depth: int, unified: bool, flash: int):
        """A context with `depth` tokens in sequence 0 and room for n sequences that copy them; its
        cache is one buffer for all, with the shared tokens once, or a buffer for each."""
        params = type(self.params).from_buffer_copy(self.params)
        params.n_ctx = (n + 1) * (depth + DECODE + 1)
        params.n_seq_max, params.kv_unified, params.flash_attn_type = n + 1, unified, flash
        context = self.api.llama_init_from_model(self.model, params)
        self._fill(context, depth)
        return context

    @contextlib.contextmanager
    def _batch(self, n: int, length: int, first: int):
        """Texts of so many tokens each, in the sequences from `first` on, all of them with
        outputs."""
        batch = self.api.llama_batch_init(n * length, 0, 1)
        batch.n_tokens = n * length
        for i, token in enumerate(tokens(n * length, self.task.shape)):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i % length, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, first + i // length
        yield batch
        self.api.llama_batch_free(batch)

    def _pass(self, context, batch) -> None:
        if self.api.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        self.api.llama_synchronize(context)

    def _batch_rate(self, context, n: int, depth: int) -> float:
        """A token of each sequence a step, all of them at the same position."""
        for sequence in range(1, n + 1):
            self._forget(context, sequence, 0)
            memory = self.api.llama_get_memory(context)
            self.api.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        with self._batch(n, 1, 1) as batch:
            for at in range(depth, depth + 1 + DECODE):
                if at == depth + 1:
                    start = time.perf_counter()
                for i in range(n):
                    batch.pos[i] = at
                self._pass(context, batch)
            return n * DECODE / (time.perf_counter() - start)

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

    def texts(self, n: int, length: int) -> float:
        with self._batch(n, length, 0) as batch:
            start = time.perf_counter()
            self._pass(self.contexts[0], batch)
            return n * length / (time.perf_counter() - start)


class IkLlama(LlamaCpp):
    """ik_llama.cpp in its fastest way: weights repacked when it starts, flash attention; batches are
    left out."""

    def __init__(self, task: Task):
        try:
            import gguf  # noqa: F401
            import ik_llama_cpp
            from ik_llama_cpp import _ctypes_api as api
        except ImportError as error:
            raise Absent(f"{error.name} is not installed") from None
        if task.encoder:
            raise Absent("encoders are not measured in it")
        self.api, self.task, self.version = api, task, ik_llama_cpp.__version__
        how = api.llama_model_default_params()
        how.use_mmap, how.repack_tensors = False, True
        self.model = api.llama_model_load_from_file(gguf_file(task).encode(), how)
        if not self.model:
            raise Absent("it cannot load this model")
        self.params = api.llama_context_default_params()
        self.params.n_ctx, self.params.flash_attn = task.context, True
        self.params.n_threads = self.params.n_threads_batch = task.threads
        self.contexts = {}

    def _forget(self, context, sequence: int, depth: int) -> bool:
        remove = self.api._lib.llama_kv_cache_seq_rm
        remove.restype, remove.argtypes = ctypes.c_bool, [ctypes.c_void_p, *[ctypes.c_int32] * 3]
        return remove(context, sequence, depth, -1)

    def _run(self, context, ids: list[int]) -> None:
        """After what the context holds, with the logits of the last."""
        end = self.api._lib.llama_kv_cache_seq_pos_max
        end.restype, end.argtypes = ctypes.c_int32, [ctypes.c_void_p, ctypes.c_int32]
        n, first = len(ids), max(end(context, 0), -1) + 1
        with self._batch(1, n, 0) as batch:
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, i + 1 == n
            self._pass(context, batch)

    def _pass(self, context, batch) -> None:
        if self.api.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")

    def batch(self, n: int, depth: int) -> None:
        return None


class Torch(Peer):
    """transformers on torch, eager; it has no counterpart of q8 and q4."""

    def __init__(self, task: Task):
        try:
            import torch
            import transformers
            from transformers.initialization import no_init_weights
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
        config = transformers.AutoConfig.for_model(**SHAPES[task.shape])
        self.dtype = torch.float32 if task.dtype == "f32" else torch.bfloat16
        auto = transformers.AutoModel if task.encoder else transformers.AutoModelForCausalLM
        options = {"add_pooling_layer": False} if task.encoder else {}
        with no_init_weights():
            self.model = auto.from_config(config, dtype=self.dtype, **options).eval()
        self.model.load_state_dict(self._weights(), strict=False, assign=True)
        self.model.tie_weights()
        self.filled = {}  # depth: the cache that holds so many tokens

    def _weights(self) -> dict:
        """Of experts the gates and what they multiply as one."""
        found = {
            name: self.torch.from_numpy(tensor.array()).to(self.dtype)
            for name, tensor in hub_tensors(open_random(self.task.shape, SEED)).items()
        }
        for name in [name for name in found if name.endswith("experts.gate_proj.weight")]:
            experts = name.removesuffix("gate_proj.weight")
            both = found.pop(name), found.pop(experts + "up_proj.weight")
            found[experts + "gate_up_proj"] = self.torch.cat(both, 1)
            found[experts + "down_proj"] = found.pop(experts + "down_proj.weight")
        return found

    def _run(self, cache, ids: list[int]):
        return self._run_rows(cache, [ids])

    def _run_rows(self, cache, rows: list[list[int]]):
        """The logits of the last token of each row."""
        name = "cache_params" if self.model.config.model_type == "mamba2" else "past_key_values"
        options = {name: cache, "use_cache": True, "logits_to_keep": 1}
        return self.model(self.torch.tensor(rows), **options).logits[:, -1]

    def _after(self, depth: int):
        """A cache that holds so many tokens; filled when it is first asked for."""
        if depth not in self.filled:
            self.filled[depth] = self.transformers.DynamicCache(config=self.model.config)
            self._fill(self.filled[depth], depth)
        return copy.deepcopy(self.filled[depth])

    def logits(self) -> np.ndarray:
        ids = tokens(8, self.task.shape)
        if self.task.encoder:
            return self.model(self.torch.tensor([ids])).last_hidden_state[0, -1].float().numpy()
        return self._run(self._after(0), ids)[0].float().numpy()

    def batch(self, n: int, depth: int) -> float:
        cache = self._after(depth)
        if depth:
            cache.reorder_cache(self.torch.zeros(n, dtype=self.torch.long))
        rows = [[token] for token in tokens(depth + n, self.task.shape)[depth:]]
        self._run_rows(cache, rows)
        start = time.perf_counter()
        for _ in range(DECODE):
            self._run_rows(cache, rows)
        return n * DECODE / (time.perf_counter() - start)

    def texts(self, n: int, length: int) -> float:
        rows = self.torch.tensor(tokens(n * length, self.task.shape)).reshape(n, length)
        start = time.perf_counter()
        self.model(rows)
        return n * length / (time.perf_counter() - start)


class OpenVino(Peer):
    """OpenVINO as optimum-intel exports for it: weights in eight or four bits, and what it takes for
    the rest: bf16 where the processor has it, and a cache in eight bits."""

    def __init__(self, task: Task):
        try:
            import nncf  # noqa: F401
            import openvino
            from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
        except ImportError as error:
            raise Absent(f"{error.name} is not installed") from None
        if task.dtype not in ("q8", "q4"):
            raise Absent(f"{task.dtype} is not measured in it")
        self.task, self.version = task, openvino.__version__
        folder = task.file(f"{task.shape}-{task.dtype}-openvino")
        if not os.path.exists(folder):
            whole = task.file(f"{task.shape}-hf")
            Torch(replace(task, dtype="bf16")).model.save_pretrained(whole)
            bits = {"bits": 8} if task.dtype == "q8" else {"bits": 4, "group_size": 32}
            bits = OVWeightQuantizationConfig(**bits)
            made = OVModelForCausalLM.from_pretrained(
                whole, export=True, load_in_8bit=False, quantization_config=bits
            )
            made.save_pretrained(folder)
            del made
        how = {"INFERENCE_NUM_THREADS": task.threads, "PERFORMANCE_HINT": "LATENCY"}
        model = openvino.Core().compile_model(f"{folder}/openvino_model.xml", "CPU", how)
        self.request, self.depth = model.create_infer_request(), 0

    def _run(self, request, ids: list[int]) -> None:
        end = self.depth + len(ids)
        inputs = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(self.depth, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer(inputs, share_inputs=True, share_outputs=True)
        self.depth = end

    def _after(self, depth: int):
        """Filled each time, since its state cannot go back."""
        self.request.reset_state()
        self.depth = 0
        self._fill(self.request, depth)
        return self.request

    def logits(self) -> np.ndarray:
        self._run(self._after(0), tokens(8, self.task.shape))
        return self.request.get_tensor("logits").data[0, -1].copy()


ENGINES = {
    "heads.c": Heads,
    "llama.cpp": LlamaCpp,
    "transformers": Torch,
    "ik_llama.cpp": IkLlama,
    "OpenVINO": OpenVino,
}


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
    """prefill 256, decode 4096, batch of 16, decode 512, texts: 8 of 32"""
    if request[0] == "batch":
        return f"batch of {request[1]}, decode {request[2]}"
    if request[0] == "texts":
        return f"texts: {request[1]} of {request[2]}"
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


def measure(
    task: Task, peers: list[str], what: list[tuple], rounds: int, limit: float
) -> list[Engine]:
    """All engines on one file: a round asks each thing of each engine in turn."""
    engines = [Engine(name, task, limit) for name in ["heads.c", *peers]]
    ours = engines[0].ask("logits")
    for engine in engines[1:]:
        theirs = engine.ask("logits")
        if ours is not None and theirs is not None:
            distance = np.sqrt(((theirs - ours) ** 2).mean() / (ours**2).mean())
            numbers = "hidden state differs" if task.encoder else "logits differ"
            engine.version += f"; its {numbers} from ours by {100 * distance:.2g} %"
            if not distance < LIMITS[task.dtype]:
                engine.absent = f"{engine.version}: it runs another model"
    for r in range(rounds):
        for request in what:
            for engine in engines:
                if sys.stderr.isatty():
                    line = f"{task.name}, {task.dtype}, round {r + 1} of {rounds}: {engine.name}, "
                    line += label(request)
                    print(f"{line:78}", end="\r", file=sys.stderr)
                rate = engine.ask(*request)
                if rate is not None:
                    engine.rates.setdefault(request, []).append(rate)
                time.sleep(0.1)  # until the threads of the one before are asleep
    for engine in engines:
        engine.close()
    return engines


def spread(numbers: list[float], form: str) -> str:
    """Median (least-most)."""
    least, most = (format(find(numbers), form) for find in (min, max))
    return f"{format(statistics.median(numbers), form)} ({least}-{most})"


def row(titles: list[str], ours: list[float], peers: list[list[float]], missing=None) -> str:
    """A line of the table: tokens per second, and the ratios round by round. missing: a word for
    each engine that has no rates."""
    missing = missing or ["-"] * (1 + len(peers))
    cells = [*titles, spread(ours, ".1f") if ours else missing[0]]
    for rates, word in zip(peers, missing[1:]):
        ratios = [a / b for a, b in zip(ours, rates)]
        cells += [spread(rates, ".1f") if rates else word, spread(ratios, ".2f") if ratios else "-"]
    return "| " + " | ".join(cells) + " |"


def row_of(task: Task, request: tuple, engines: list[Engine]) -> str:
    ours, *peers = [engine.rates.get(request, []) for engine in engines]
    missing = [f"over {e.limit:g} s" if e.over == request else "-" for e in engines]
    return row([task.name, task.dtype, label(request)], ours, peers, missing)


def browser_rows(folder: str, gguf: str, bin_file: str, rounds: int) -> list[str]:
    """The engine in a page beside wllama in the place of llama.cpp, then ./run."""
    script = ROOT / "tests/reference/compare_wllama.mjs"
    command = ["node", script, folder, gguf, bin_file, str(rounds), "--json"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    rows, name = [], Path(bin_file).stem
    for what, rates in found.items():
        peers = [rates["wllama"], []]
        rows.append(row([f"{name}, Chromium", "q8", what], rates["heads"], peers))
        rows.append(row([f"{name}, ./run -t 1", "q8", what], rates["run"], [[], []]))
    return rows


def sequences(text: str) -> list[int]:
    """1,8,16,32"""
    numbers = [int(n) if n.isdecimal() else 0 for n in text.split(",")]
    if not all(1 <= n <= MAX_SEQUENCES for n in numbers):
        reason = f"{text}: expected numbers from 1 to {MAX_SEQUENCES} with commas between"
        raise argparse.ArgumentTypeError(reason)
    return numbers


def shapes(text: str) -> list[str]:
    """smollm-135m,minilm,model.gguf"""
    names = text.split(",")
    random = {name for name in names if not os.path.isfile(name) or not is_gguf(name)}
    if not random <= set(SHAPES_OF_ALL):
        reason = f"{text}: expected some of {', '.join(SHAPES_OF_ALL)}, or GGUF files, with commas "
        reason += "between"
        raise argparse.ArgumentTypeError(reason)
    return names


def requests_of(task: Task, prompt: int, depth: int, n_sequences: list[int]) -> list[tuple]:
    if task.encoder:
        return [("texts", *texts) for texts in TEXTS]
    what = [("prefill", prompt), ("decode", 0), *([("decode", depth)] if depth else [])]
    return what + [("batch", n, shared) for shared in BATCH_DEPTHS for n in n_sequences]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--shapes", type=shapes, default="smollm-135m", metavar="NAME,..")
    parser.add_argument("--dtypes", default="f32,bf16,q8,q4")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--chunk", type=int, default=128, help="of this engine, as ./run -b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument(
        "--depth",
        type=int,
        default=4096,
        help="of the second measurement of decode; 0: leave it out",
    )
    parser.add_argument("--peers", default="llama.cpp,transformers")
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
    parser.add_argument(
        "--browser", nargs=3, metavar=("DIR", "MODEL.gguf", "MODEL.bin"), help="adds Chromium"
    )
    args = parser.parse_args()
    if not set(args.dtypes.split(",")) <= {"f32", "bf16", "q8", "q4"}:
        parser.error(
            f"--dtypes {args.dtypes}: expected f32, bf16, q8 and q4, or some of them, with commas "
            "between"
        )
    peers = args.peers.split(",")
    if not set(peers) <= {*ENGINES} - {"heads.c"}:
        parser.error(f"--peers {args.peers}: expected some of {', '.join([*ENGINES][1:])}")
    remarks = []
    subprocess.run(
        ["make", "-s", "-C", ROOT, "run", "build/tests/c/compare_peers"],
        check=True,
        stdout=sys.stderr,
    )
    print(
        f"random weights or a file's, {args.threads} threads, {args.rounds} rounds: tokens per second, median "
        "(least-most);"
    )
    print("ratio: heads.c over the peer, round by round\n")
    print("| shape | weights | | heads.c |" + "".join(f" {name} | ratio |" for name in peers))
    print("|---|---|---|---|" + "---|---|" * len(peers), flush=True)
    with contextlib.ExitStack() as stack:
        directory = args.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(directory, exist_ok=True)
        tasks = [
            (shape, dtype)
            for shape in args.shapes
            for dtype in (args.dtypes.split(",") if shape in SHAPES else [KEEP])
        ]
        for shape, dtype in tasks:
            context = max(args.depth, args.prompt, *BATCH_DEPTHS) + 2 * DECODE
            context = min(context, config_of(shape).get("max_position_embeddings", context))
            task = Task(shape, dtype, args.threads, args.chunk, context, directory)
            what = requests_of(task, args.prompt, args.depth, args.sequences)
            engines = measure(task, peers, what, args.rounds, args.limit)
            for request in what:
                print(row_of(task, request, engines), flush=True)
            remarks += [
                f"{task.name}, {dtype}: {e.name}: {e.absent or e.version}"
                for e in engines
                if e.absent or e.version
            ]
    if args.browser:
        print("\n".join(browser_rows(*args.browser, args.rounds)))
        remarks.append("Chromium: one thread, and in the place of llama.cpp wllama")
    print("\n" + "\n".join(f"- {remark}" for remark in remarks))


if __name__ == "__main__":
    main()
