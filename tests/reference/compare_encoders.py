#!/usr/bin/env python3
"""The speed of sentence embeddings beside other engines on this machine: all-MiniLM-L6-v2, 1,000
sentences, measured in turn, as a table.

    python tests/reference/compare_encoders.py [--threads 2] [--rounds 5] [--keep DIR]

Peers are what is installed: sentence-transformers on torch, and onnxruntime (pip install
onnxruntime onnx), whose model is exported from torch, fused by onnxruntime's own optimizer and, for
int8, quantized by quantize_dynamic. Each engine lives in a process of its own with the same number
of threads, has its model loaded and warm, and gets the texts in the order of the list; all sort
them by length. The batches of a peer are as large as is best for it, and its threads wait without
spinning, which costs less where a machine has other work to do. A ratio is the peer's time over
this engine's, the median of the rounds: of the clock, and of the processor, which is steadier on
such a machine. The build must have the library (make library)."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "support")]

import packages  # noqa: E402

N_TEXTS, MOST_TOKENS, BATCHES = 1000, 256, (1, 8, 32)
ENGINES = {  # name: (what makes it, dtype, whom it is compared with)
    "heads f32": ("Heads", "f32", None),
    "heads q8": ("Heads", "q8", None),
    "torch f32": ("Torch", "f32", ("heads f32", "heads q8")),
    "onnxruntime f32": ("Onnx", "f32", ("heads f32",)),
    "onnxruntime int8": ("Onnx", "int8", ("heads q8",)),
}


def sentences() -> list[str]:
    """Of the documentation, those of 3 to 60 words, in an order that says nothing of length."""
    found = []
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("*/*/*.md")]):
        text = re.sub(
            r"^(```.*?^```|[|#<>] ?.*?$|    .*?$)", "", path.read_text(), flags=re.S | re.M
        )
        for sentence in re.split(r"(?<=[.!?:])\s+|\n\n", text):
            words = sentence.split()
            if 3 <= len(words) <= 60:
                found.append(" ".join(words))
    order = np.random.RandomState(1).permutation(len(found))
    return [found[i % len(found)] for i in np.resize(order, N_TEXTS)]


def by_length(texts: list[str]) -> list[int]:
    return sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)


# ---- engines: embed(texts) gives float32 [texts][384] --------------------------------------------


class Heads:
    """This engine by its library."""

    def __init__(self, folder: Path, dtype: str, threads: int):
        import heads

        path = folder / f"minilm-{dtype}.bin"
        if not path.exists():
            command = [sys.executable, ROOT / "export.py", packages.minilm(folder), path]
            subprocess.run([*command, "--dtype", dtype], check=True, capture_output=True)
        self.model = heads.Model(str(path), threads=threads)

    def embed(self, texts: list[str]) -> np.ndarray:
        return self.model.embed(texts)


class Torch:
    """sentence-transformers, which sorts texts itself."""

    def __init__(self, folder: Path, dtype: str, threads: int):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self.model, self.batch = SentenceTransformer(str(packages.minilm(folder)), device="cpu"), 32

    def embed(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, batch_size=self.batch, normalize_embeddings=True)


class Onnx:
    """onnxruntime with the tokenizer of the tokenizers package; padded to a batch's longest."""

    def __init__(self, folder: Path, dtype: str, threads: int):
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = str(onnx_model(folder, dtype))
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(packages.minilm(folder) / "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.enable_padding()
        self.batch = 32

    def embed(self, texts: list[str]) -> np.ndarray:
        order, found = by_length(texts), np.empty((len(texts), 384), np.float32)
        for at in range(0, len(texts), self.batch):
            some = order[at : at + self.batch]
            coded = self.tokenizer.encode_batch([texts[i] for i in some])
            ids = np.array([c.ids for c in coded], np.int64)
            mask = np.array([c.attention_mask for c in coded], np.int64)
            inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
            hidden = self.session.run(None, inputs)[0]
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            found[some] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return found


def onnx_model(folder: Path, dtype: str) -> Path:
    """The model as ONNX, fused; int8: its matrices quantized besides."""
    path = folder / f"minilm-{dtype}.onnx"
    if path.exists():
        return path
    if dtype == "int8":
        from onnx import TensorProto
        from onnxruntime.quantization import QuantType, quantize_dynamic

        unknown = dict(DefaultTensorType=TensorProto.FLOAT)  # of what fused operators give
        plain, kind = str(onnx_model(folder, "f32")), QuantType.QInt8
        quantize_dynamic(plain, str(path), weight_type=kind, extra_options=unknown)
        return path
    import torch
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    model = AutoModel.from_pretrained(packages.minilm(folder), attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        """The hidden states and nothing else."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(names, inputs))).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "texts", 1: "tokens"} for name in (*names, "hidden")}
    ones = torch.ones(2, 5, dtype=torch.long)
    plain = str(folder / "plain.onnx")
    torch.onnx.export(
        Hidden().eval(),
        tuple([ones] * 3),
        plain,
        input_names=names,
        output_names=["hidden"],
        dynamic_axes=axes,
        dynamo=False,
        opset_version=17,
    )
    fused = optimize_model(plain, model_type="bert", num_heads=12, hidden_size=384)
    fused.save_model_to_file(str(path))
    return path


# ---- measuring -----------------------------------------------------------------------------------


def measured(engine, texts: list[str]) -> tuple[float, float]:
    """Seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    engine.embed(texts)
    return time.perf_counter() - clock, time.process_time() - processor


def serve(pipe, kind: str, folder: Path, dtype: str, threads: int, texts: list[str]) -> None:
    """An engine in its own process: its vectors, then a measurement for every message."""
    try:
        engine = globals()[kind](folder, dtype, threads)
    except ImportError as error:
        pipe.send(str(error))
        return
    if hasattr(engine, "batch"):
        trial = {}
        for engine.batch in BATCHES:
            engine.embed(texts[:20])
            trial[engine.batch] = measured(engine, texts[:200])[1]
        engine.batch = min(trial, key=trial.get)
    pipe.send((engine.embed(texts), getattr(engine, "batch", None)))
    while pipe.recv():
        pipe.send(measured(engine, texts))


def start(name: str, folder: Path, threads: int, texts: list[str]):
    """The pipe to an engine, its vectors and its batch; None if it is not there."""
    kind, dtype, _ = ENGINES[name]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, kind, folder, dtype, threads, texts)
    context.Process(target=serve, args=arguments, daemon=True).start()
    theirs.close()  # so that recv ends if the process does
    try:
        answer = ours.recv()
    except EOFError:
        answer = "it failed"
    if isinstance(answer, str):
        print(f"{name}: {answer}")
        return None
    return ours, *answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="where models stay between calls")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        texts = sentences()
        running = {name: start(name, folder, args.threads, texts) for name in ENGINES}
        running = {name: engine for name, engine in running.items() if engine}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        for _ in range(args.rounds):
            for name, (pipe, _, _) in running.items():
                pipe.send(True)
                times[name].append(pipe.recv())
        for pipe, _, _ in running.values():
            pipe.send(False)
        report(running, times)
    return 0


def report(running: dict, times: dict) -> None:
    reference = running["heads f32"][1]
    print("engine | batch | clock s | processor s | least cosine | ratios: clock, processor")
    for name, (_, vectors, batch) in running.items():
        clock, processor = (statistics.median(t[i] for t in times[name]) for i in (0, 1))
        cosine = float((vectors * reference).sum(1).min())
        line = f"{name} | {batch or '-'} | {clock:.2f} | {processor:.2f} | {cosine:.5f} |"
        for ours in ENGINES[name][2] or ():
            pairs = list(zip(times[name], times[ours]))
            ratios = [statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 1)]
            line += f" {ratios[0]:.2f} and {ratios[1]:.2f} x {ours};"
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
