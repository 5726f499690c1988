"""heads.h through ctypes. What the header says of a call (shapes, owners, threads) holds here; a call
that fails raises a HeadsError with the engine's sentence."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_double, c_float
from ctypes import c_int, c_int64, c_long, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Callable, Iterator, NoReturn

ABI = 14  # of heads.h that these declarations were written for


class HeadsError(RuntimeError):
    """The engine's sentence on what it refused or could not do. A full disk, logits that are not
    finite and a closed session are of none of the kinds below."""

    __module__ = "heads"  # where people find it


class FileError(HeadsError):
    """A file cannot be used: a checkpoint, for what it has or lacks, or a session's."""

    __module__ = "heads"


class InputError(HeadsError, ValueError):
    """A request is refused: an argument is out of range, or this model does not do it."""

    __module__ = "heads"


class ContextError(InputError):
    """More tokens than the context has room for."""

    __module__ = "heads"


class Error(Structure):
    _fields_ = [("text", c_char * 400)]


class Shape(Structure):
    _fields_ = [
        ("vocab_size", c_int),
        ("n_embd", c_int),
        ("n_layers", c_int),
        ("context", c_int),
        ("weight_bytes", c_size_t),
        ("encoder", c_int),
        ("source_vocab", c_int),
        ("greedy", c_int),
        ("target_ids", c_int),
        ("vector", c_int),
        ("n_labels", c_int),
        ("token_classes", c_int),
        ("token_vectors", c_int),
        ("most_read", c_int),
    ]


class WorkspaceOptions(Structure):
    _fields_ = [
        ("context", c_int),
        ("chunk", c_int),
        ("n_threads", c_int),
        ("logit_rows", c_int),
        ("k_type", c_int),
        ("v_type", c_int),
        ("isa", c_char_p),
        ("threads_of", c_void_p),
        ("hidden", c_int),
    ]


class Bias(Structure):
    _fields_ = [("id", c_int), ("value", c_float)]


class SamplerOptions(Structure):
    _fields_ = [
        ("temperature", c_float),
        ("top_k", c_int),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repeat_penalty", c_float),
        ("repeat_last", c_int),
        ("seed", c_uint64),
        ("most", c_int),
        ("biases", POINTER(Bias)),
        ("n_biases", c_int),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("n_prompt", c_int),
    ]


class Message(Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p), ("content_len", c_size_t)]


class ChatOptions(Structure):
    _fields_ = [("answer", c_int), ("no_think", c_int), ("clock", c_int64)]


class Run(Structure):
    _fields_ = [
        ("sequence", c_void_p),
        ("tokens", POINTER(c_int)),
        ("n", c_int),
        ("n_logits", c_int),
    ]


class Text(Structure):
    _fields_ = [
        ("ids", POINTER(c_int)),
        ("n", c_int),
        ("second", c_int),
        ("bounds", POINTER(c_int)),
        ("n_parts", c_int),
    ]


class BatchOptions(Structure):
    _fields_ = [
        ("places", c_int),
        ("keep", c_int),
        ("tokenizer", c_void_p),
        ("draft", c_void_p),
        ("n_draft", c_int),
    ]


class Stop(Structure):
    _fields_ = [("text", c_char_p), ("len", c_size_t)]


# context, tokens generated so far, how many, bits of those allowed
Mask = CFUNCTYPE(c_int, c_void_p, POINTER(c_int), c_int, POINTER(c_uint32))


class Steer(Structure):
    _fields_ = [("layer", c_int), ("vector", POINTER(c_float)), ("scale", c_float)]


class Request(Structure):
    _fields_ = [
        ("ids", POINTER(c_int)),
        ("n", c_int),
        ("n_scored", c_int),
        ("max_tokens", c_int),
        ("sampler", SamplerOptions),
        ("answer", c_int),
        ("stops", POINTER(Stop)),
        ("n_stops", c_int),
        ("stop_ids", POINTER(c_int)),
        ("n_stop_ids", c_int),
        ("likely", c_int),
        ("n_top", c_int),
        ("source", POINTER(c_int)),
        ("n_source", c_int),
        ("lang", c_char_p),
        ("mask", Mask),
        ("mask_context", c_void_p),
        ("lookup", c_int),
        ("steers", POINTER(Steer)),
        ("n_steers", c_int),
        ("adapter", c_void_p),
        ("adapter_scale", c_float),
    ]


class LikelyToken(Structure):
    _fields_ = [("id", c_int), ("log_probability", c_double)]


TOKEN, SCORE, DONE, FAILED = range(4)  # kinds of events


class Event(Structure):
    _fields_ = [
        ("request", c_long),
        ("kind", c_int),
        ("id", c_int),
        ("best", c_int),
        ("log_probability", c_double),
        ("top", POINTER(LikelyToken)),
        ("n_top", c_int),
        ("text", c_void_p),
        ("len", c_size_t),
        ("stopped", c_char_p),
        ("error", c_char_p),
    ]


class BatchCounts(Structure):
    _fields_ = [
        ("waiting", c_long),
        ("running", c_int),
        ("prompt_tokens", c_size_t),
        ("spared", c_size_t),
        ("drafted", c_size_t),
        ("accepted", c_size_t),
    ]


class KvPlan(Structure):
    _fields_ = [
        (name, c_size_t)
        for name in (
            "bytes_per_token",
            "growing",
            "windows",
            "state",
            "reserved",
            "bytes_per_source_token",
        )
    ]


class AttentionRow(Structure):
    _fields_ = [
        ("sequence", c_void_p),
        ("layer", c_int),
        ("head", c_int),
        ("position", c_int),
        ("first", c_int),
        ("n", c_int),
        ("weights", POINTER(c_float)),
        ("sink", c_float),
        ("of_source", c_int),
    ]


Look = CFUNCTYPE(None, c_void_p, POINTER(AttentionRow), c_int)


class ProductInput(Structure):
    _fields_ = [
        ("tensors", POINTER(c_char_p)),
        ("n_tensors", c_int),
        ("which", c_int),
        ("rows", POINTER(c_float)),
        ("stride", c_size_t),
        ("n", c_int),
        ("width", c_int),
    ]


TakeInput = CFUNCTYPE(None, c_void_p, POINTER(ProductInput))


class LensRow(Structure):
    _fields_ = [
        ("sequence", c_void_p),
        ("layer", c_int),
        ("position", c_int),
        ("logits", POINTER(c_float)),
    ]


TakeLens = CFUNCTYPE(None, c_void_p, POINTER(LensRow))


class LayerInput(Structure):
    _fields_ = [
        ("layer", c_int),
        ("rows", POINTER(c_float)),
        ("stride", c_size_t),
        ("n", c_int),
        ("width", c_int),
    ]


Enter = CFUNCTYPE(c_int, c_void_p, POINTER(LayerInput))


class Mixed(Structure):
    _fields_ = [
        ("layer", c_int),
        ("head", c_int),
        ("rows", POINTER(c_float)),
        ("stride", c_size_t),
        ("n", c_int),
        ("n_heads", c_int),
        ("width", c_int),
    ]


TakeMixed = CFUNCTYPE(None, c_void_p, POINTER(Mixed))


class Probe(Structure):
    _fields_ = [
        ("attention", Look),
        ("context", c_void_p),
        ("product", TakeInput),
        ("lens", TakeLens),
        ("enter", Enter),
        ("mixed", TakeMixed),
    ]


class Parts(Structure):
    _fields_ = [(name, c_double) for name in ("embedding", "rest", "total", "logit")]


# context, runs that are done, all of them; not 0: stop
Progress = CFUNCTYPE(c_int, c_void_p, c_long, c_long)


class Patching(Structure):
    _fields_ = [
        ("clean", POINTER(c_int)),
        ("corrupted", POINTER(c_int)),
        ("n", c_int),
        ("layers", c_int),
        ("metric", c_int),
        ("answer", c_int),
        ("against", c_int),
        ("off", c_char_p),
        ("progress", Progress),
        ("context", c_void_p),
        *((name, c_int) for name in ("from_layer", "n_layers", "from_position", "n_positions")),
        ("steers", POINTER(Steer)),
        ("n_steers", c_int),
    ]


class Dissection(Structure):
    _fields_ = [
        ("ids", POINTER(c_int)),
        ("n", c_int),
        ("layer", c_int),
        ("head", c_int),
        ("position", c_int),
        ("off", c_char_p),
        ("steers", POINTER(Steer)),
        ("n_steers", c_int),
    ]


class Scoring(Structure):
    _fields_ = [
        *((name, POINTER(c_float)) for name in ("q", "k", "products", "scores", "weights")),
        ("sink", c_float),
    ]


class HeadParts(Structure):
    _fields_ = [
        *((name, c_int) for name in ("first", "n", "kv_layer", "kv_head", "sharing", "n_sharing")),
        *((name, c_int) for name in ("dim", "v_dim", "n_embd", "rank", "rope", "n_rope")),
        ("scale", c_float),
        ("turned", Scoring),
        ("plain", Scoring),
        *((name, POINTER(c_float)) for name in ("v", "mix", "mixed", "out")),
        *((name, POINTER(c_float)) for name in ("latents", "q_latent", "mix_latent")),
    ]


TYPES = {"f16": 0, "f32": 1, "q8": 2, "q4": 3}  # of cached keys and values
FLOATS, INTS = POINTER(c_float), POINTER(c_int)

# name: (result, arguments); a call whose last argument is an exception may fail, and raises it.
CALLS = {
    "abi": (c_int, ()),
    "version": (c_char_p, ()),
    "free": (None, (c_void_p,)),
    "model_open": (c_void_p, (c_char_p, FileError)),
    "model_close": (None, (c_void_p,)),
    "model_shape": (Shape, (c_void_p,)),
    "model_kv_plan": (c_int, (c_void_p, POINTER(WorkspaceOptions), POINTER(KvPlan), InputError)),
    "tokenizer_new": (c_void_p, (c_void_p, FileError)),
    "tokenizer_free": (None, (c_void_p,)),
    "encode": (c_long, (c_void_p, c_char_p, c_size_t, c_int, POINTER(INTS), HeadsError)),
    "is_eos": (c_int, (c_void_p, c_int)),
    "is_special": (c_int, (c_void_p, c_int)),
    "token_bytes": (c_long, (c_void_p, c_int, c_char_p, c_size_t)),
    "decoder_new": (c_void_p, (c_void_p, c_int, HeadsError)),
    "decoder_free": (None, (c_void_p,)),
    "decoder_push": (c_int, (c_void_p, c_int, POINTER(c_void_p), POINTER(c_size_t), InputError)),
    "decoder_finish": (c_int, (c_void_p, POINTER(c_void_p), POINTER(c_size_t), HeadsError)),
    "chat_new": (c_void_p, (c_void_p, InputError)),
    "chat_free": (None, (c_void_p,)),
    "chat_encode": (
        c_long,
        (
            c_void_p,
            c_void_p,
            POINTER(Message),
            c_size_t,
            POINTER(ChatOptions),
            POINTER(INTS),
            InputError,
        ),
    ),
    "chat_template": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "chat_end": (c_int, (c_void_p, c_void_p)),
    "workspace_new": (c_void_p, (c_void_p, POINTER(WorkspaceOptions), InputError)),
    "workspace_free": (None, (c_void_p,)),
    "guess_layers": (c_int, (c_void_p,)),
    "workspace_guess": (c_int, (c_void_p, c_int, InputError)),
    "guess": (c_int, (c_void_p, INTS, c_int, c_int, INTS, InputError)),
    "workspace_context": (c_int, (c_void_p,)),
    "workspace_threads": (c_int, (c_void_p,)),
    "workspace_isa": (c_char_p, (c_void_p,)),
    "workspace_probe": (None, (c_void_p, POINTER(Probe))),
    "logit_stride": (c_size_t, (c_void_p,)),
    "sequence_new": (c_void_p, (c_void_p, c_int, HeadsError)),
    "sequence_free": (None, (c_void_p,)),
    "sequence_fork": (c_void_p, (c_void_p, c_int, InputError)),
    "sequence_rewind": (c_int, (c_void_p, c_int, InputError)),
    "sequence_expect": (None, (c_void_p, c_int)),
    "adapter_open": (c_void_p, (c_void_p, c_char_p, FileError)),
    "adapter_close": (None, (c_void_p,)),
    "workspace_adapter": (c_int, (c_void_p, c_void_p, c_float, InputError)),
    "sequence_adapter": (c_int, (c_void_p, c_void_p, c_float, InputError)),
    "sequence_off": (c_int, (c_void_p, c_char_p, InputError)),
    "sequence_steer": (c_int, (c_void_p, c_int, FLOATS, c_float, InputError)),
    "read_steers": (c_long, (c_void_p, c_char_p, c_float, POINTER(POINTER(Steer)), FileError)),
    "sequence_length": (c_int, (c_void_p,)),
    "sequence_tokens": (INTS, (c_void_p,)),
    "sequence_save": (c_int, (c_void_p, c_char_p, HeadsError)),
    "sequence_load": (c_void_p, (c_void_p, c_char_p, FileError)),
    "sequence_bytes": (c_int, (c_void_p, POINTER(c_void_p), POINTER(c_size_t), HeadsError)),
    "sequence_parse": (c_void_p, (c_void_p, c_void_p, c_size_t, FileError)),
    "forward_runs": (FLOATS, (c_void_p, POINTER(Run), c_int, HeadsError)),
    "forward": (FLOATS, (c_void_p, INTS, c_int, c_int, HeadsError)),
    "read_sources": (c_int, (c_void_p, POINTER(Run), c_int, HeadsError)),
    "start_tokens": (c_long, (c_void_p, c_void_p, c_char_p, POINTER(INTS), InputError)),
    "source_language": (c_int, (c_void_p, c_void_p, c_char_p, INTS, c_long, InputError)),
    "text_ids": (c_long, (c_void_p, c_void_p, c_char_p, c_size_t, POINTER(INTS), HeadsError)),
    "pair_ids": (
        c_long,
        (
            c_void_p,
            c_void_p,
            c_char_p,
            c_size_t,
            c_char_p,
            c_size_t,
            POINTER(INTS),
            POINTER(c_int),
            InputError,
        ),
    ),
    "embed": (
        c_int,
        (c_void_p, POINTER(WorkspaceOptions), POINTER(Text), c_int, FLOATS, InputError),
    ),
    "shorten": (c_int, (c_void_p, FLOATS, c_size_t, c_int, InputError)),
    "classify": (
        c_int,
        (c_void_p, POINTER(WorkspaceOptions), POINTER(Text), c_int, FLOATS, InputError),
    ),
    "label": (POINTER(c_char), (c_void_p, c_int, POINTER(c_size_t))),
    "model_heads": (c_int, (c_void_p,)),
    "attribute": (
        c_int,
        (
            c_void_p,
            POINTER(WorkspaceOptions),
            INTS,
            c_int,
            c_int,
            c_int,
            c_char_p,
            FLOATS,
            FLOATS,
            POINTER(Parts),
            InputError,
        ),
    ),
    "patch": (
        c_int,
        (
            c_void_p,
            POINTER(WorkspaceOptions),
            POINTER(Patching),
            FLOATS,
            POINTER(c_double),
            InputError,
        ),
    ),
    "dissect": (
        POINTER(HeadParts),
        (c_void_p, POINTER(WorkspaceOptions), POINTER(Dissection), InputError),
    ),
    "experiment": (
        c_void_p,
        (
            c_void_p,
            POINTER(WorkspaceOptions),
            c_char_p,
            c_size_t,
            Progress,
            c_void_p,
            InputError,
        ),
    ),
    "verify": (
        c_int,
        (
            c_void_p,
            POINTER(WorkspaceOptions),
            c_char_p,
            c_size_t,
            Progress,
            c_void_p,
            POINTER(Error),
        ),
    ),
    "likeliest": (c_int, (c_void_p, FLOATS, POINTER(LikelyToken), c_int)),
    "sampler_defaults": (SamplerOptions, (c_int,)),
    "sampler_new": (c_void_p, (c_void_p, POINTER(SamplerOptions), InputError)),
    "sampler_free": (None, (c_void_p,)),
    "sampler_accept": (None, (c_void_p, c_int)),
    "sampler_allow": (None, (c_void_p, POINTER(c_uint32))),
    "sampler_pick": (c_int, (c_void_p, FLOATS)),
    "sampler_pick_each": (None, (c_void_p, POINTER(c_void_p), c_int, FLOATS, INTS)),
    "batch_new": (c_void_p, (c_void_p, POINTER(BatchOptions), InputError)),
    "batch_free": (None, (c_void_p,)),
    "batch_add": (c_long, (c_void_p, POINTER(Request), InputError)),
    "batch_step": (c_int, (c_void_p, POINTER(POINTER(Event)), HeadsError)),
    "batch_cancel": (c_int, (c_void_p, c_long)),
    "batch_count": (BatchCounts, (c_void_p,)),
    "pack": (
        c_int,
        (
            c_char_p,
            c_void_p,
            c_size_t,
            c_size_t,
            c_void_p,
            c_size_t,
            POINTER(c_double),
            InputError,
        ),
    ),
}


def _that_may_fail(function, kind: type[HeadsError]):
    """The same call without its Error: NULL and negative results are raised."""

    def call(*arguments):
        error = Error()
        result = function(*arguments, byref(error))
        if result < 0 if function.restype in (c_int, c_long) else not result:
            raise kind(error.text.decode("utf-8", "replace"))
        return result

    return call


LIBRARY = {"darwin": "libheads.dylib", "win32": "heads.dll"}.get(sys.platform, "libheads.so")


def _library() -> CDLL:
    """Beside this file where the package is installed; in a checkout, what `make lib` built."""
    here = Path(__file__).resolve().parent
    for path in (here / LIBRARY, here.parent.parent / "build" / LIBRARY):
        if path.exists():
            return CDLL(str(path))
    raise ImportError(
        f"{LIBRARY} is neither beside the module nor in build/: run `make lib` in "
        "the repository, or `pip install .`"
    )


class Calls:
    """The calls of the library, without their prefix: calls.forward(..)."""

    def __init__(self):
        library = _library()
        library.heads_abi.restype = c_int
        if library.heads_abi() != ABI:
            raise ImportError(
                f"{LIBRARY} has ABI {library.heads_abi()}, expected {ABI}: "
                "build both from the same sources"
            )
        for name, (result, arguments) in CALLS.items():
            function = getattr(library, f"heads_{name}", None)
            if function is None:
                raise ImportError(
                    f"{LIBRARY} has no heads_{name}: build both from the same sources"
                )
            function.restype = result
            *others, last = arguments or (None,)
            fails = isinstance(last, type) and issubclass(last, HeadsError)
            function.argtypes = [*others, POINTER(Error)] if fails else arguments
            setattr(self, name, _that_may_fail(function, last) if fails else function)


if sys.byteorder != "little":
    raise ImportError("heads needs a little-endian machine: checkpoints are computed as they lie")
calls = Calls()


@functools.lru_cache(maxsize=1)
def _caller(process: int) -> ThreadPoolExecutor:
    """The thread of apart(); a child of fork() gets its own."""
    thread = ThreadPoolExecutor(1, "heads-calls")
    thread.submit(int).result()  # nobody waits for a thread whose start is interrupted
    return thread


def apart(function: Callable, *given, stop: Callable[[], object] = int):
    """function(*given), which calls the library, which calls back. Python takes Ctrl-C in the main
    thread; in a callback ctypes would print and forget it. So that thread waits for another, and
    calls stop() first if it is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return function(*given)
    thread = _caller(os.getpid())
    try:
        return thread.submit(function, *given).result()
    except BaseException:
        stop()
        _wait_for(thread)
        raise


def _wait_for(thread: ThreadPoolExecutor) -> None:
    """Until it has made its calls, which use what their callers then free; however often Ctrl-C is
    pressed meanwhile."""
    done = False
    while not done:
        with contextlib.suppress(BaseException):
            done = thread.submit(int).result() == 0


@contextlib.contextmanager
def watched(workspace: Handle | int, probe: Probe) -> Iterator[None]:
    """The probe sees the passes of the workspace, which run apart()."""
    calls.workspace_probe(workspace, byref(probe))
    try:
        yield
    finally:
        calls.workspace_probe(workspace, None)


class NotCopied:
    """What owns memory of the engine."""

    _copied_by: str = "it belongs to this process and to this object"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"a heads.{type(self).__name__} cannot be copied or pickled: {self._copied_by}"
        )


def _free(process: int, free, pointer: int, needs: tuple) -> None:
    if process == os.getpid():
        free(pointer)


class Handle(NotCopied):
    """A pointer that a call made. It is freed when nothing refers to it any more, and what it
    `needs` later: whoever closes a model, what another thread is calling has its handles to the
    end. A child of fork() leaves its parent's alone."""

    def __init__(self, pointer: int, free: Callable[[int], None], *needs: Handle | None):
        self.pointer: int = pointer
        self._as_parameter_: int = pointer
        # Not __del__: of objects in a cycle the garbage collector would call it in any order.
        weakref.finalize(self, _free, os.getpid(), free, pointer, needs).atexit = False


def int_array(ids) -> ctypes.Array:
    return (c_int * len(ids))(*ids)


def taken(array: INTS, n: int) -> list[int]:
    """A list of the n ids, which are the caller's to free."""
    ids = array[:n]
    calls.free(array)
    return ids
