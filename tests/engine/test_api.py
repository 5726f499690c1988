"""Every call of heads.h with what a wrong program gives it: NULL for each pointer, zeros and extreme
numbers for each member and argument. Calls, structs and arguments are read from heads.h."""

from __future__ import annotations

import ctypes
import math
import os
import pickle
import re
from ctypes import byref, c_char_p, c_float, c_int, c_void_p
from pathlib import Path

import checkpoints
import declarations
import numpy as np
import peft_folders
import pytest
import talkers

import export
from conftest import ROOT
from heads import _native

STRUCTS = declarations.structs()
CALLS = {call.name: call for call in declarations.calls()}
LIBRARY = os.environ.get("HEADS_LIBRARY", str(ROOT / "build" / _native.LIBRARY))
FILLED = 0xA5  # each byte of what a call may write to

# heads.h says that these may be NULL; besides errors, options, and what is freed.
MAY_BE_NULL = {("heads_workspace_probe", "probe"), ("heads_sequence_off", "heads")}
WRITTEN = ("heads_kv_plan *", "heads_parts *")  # structs that calls fill
MAY_BE_NULL |= {("heads_patch", "metrics"), ("heads_attribute", "off")}
MAY_BE_NULL |= {(f"heads_{x}_adapter", "adapter") for x in ("sequence", "workspace")}
MAY_BE_NULL |= {("heads_pack", "error"), ("heads_sequence_steer", "vector")} | {
    (name, "lang") for name in ("heads_start_tokens", "heads_source_language")
}
MAY_BE_NULL |= {
    (f"heads_{x}", p) for x in ("experiment", "verify") for p in ("progress", "context")
}
JSON = {"heads_experiment": b'{"text": [5], "sampler": {"max_tokens": 1}}'}
JSON["heads_verify"] = b'{"experiment": ' + JSON["heads_experiment"] + b', "results": {}}'
# A block of weights for each of 16 rows, which q8 packs into 512 + 64 bytes.
PACKED = {"rows": 16, "cols": 32, "size": 576}
# The model says not how it pools, has no classes, and joins no texts; the sequence has tokens.
REFUSED = {"heads_embed", "heads_shorten", "heads_classify", "heads_pair_ids"}
REFUSED |= {"heads_sequence_off", "heads_read_steers"}  # whose file is a checkpoint
REFUSED |= {"heads_sequence_adapter"}
REFUSED |= {"heads_workspace_guess", "heads_guess"}  # the model has no layers that guess
# One that reads a source and knows a language is needed.
TRANSLATES = ("heads_read_sources", "heads_start_tokens", "heads_source_language")
# Arguments that say how much stands at a pointer: a larger number is the caller's lie.
COUNTS = {"n", "n_runs", "n_top", "len", "first_len", "then_len", "size", "most"}


def may_be_null(call: declarations.Call, p: declarations.Parameter) -> bool:
    freed = call.name.endswith(("_free", "_close"))
    return freed or p.name in ("err", "options") or (call.name, p.name) in MAY_BE_NULL


class World:
    """A model with one of everything that a call may need, in the process that asks for it."""

    def __init__(self, path: Path, folder: Path):
        self.library = ctypes.CDLL(LIBRARY)
        for call in CALLS.values():
            function = getattr(self.library, call.name)
            function.restype = declarations.of_type(call.result, STRUCTS)
            function.argtypes = [declarations.of_type(p.type, STRUCTS) for p in call.parameters]
        self.kept = []  # what C has pointers to
        made = self.made = {"path": str(path).encode()}
        model = made["heads_model"] = self.new("model_open", made["path"])
        made["heads_tokenizer"] = self.new("tokenizer_new", model)
        made["heads_decoder"] = self.new("decoder_new", made["heads_tokenizer"], 0)
        made["heads_chat"] = self.new("chat_new", model)
        options = STRUCTS["heads_workspace_options"](n_threads=1, logit_rows=4)
        workspace = made["heads_workspace"] = self.new("workspace_new", model, byref(options))
        made["heads_sequence"] = self.new("sequence_new", workspace, 0)
        adapter = peft_folders.file_for(path, path.with_suffix(".adapter"), "attn_q")
        made["adapter"] = str(adapter).encode()
        made["heads_adapter"] = self.new("adapter_open", model, made["adapter"])
        made["heads_sampler"] = self.new("sampler_new", workspace, None)
        made["heads_batch"] = self.new("batch_new", workspace, None)
        self.shape = self.library.heads_model_shape(model)
        if not self.shape.source_vocab:
            assert self.library.heads_forward(made["heads_sequence"], self.ints(5, 6), 2, 1, None)
            made["session"] = str(folder / "session").encode()
            assert not self.library.heads_sequence_save(
                made["heads_sequence"], made["session"], None
            )

    def new(self, name: str, *arguments) -> int:
        error = STRUCTS["heads_error"]()
        handle = getattr(self.library, f"heads_{name}")(*arguments, byref(error))
        assert handle, (name, error.text)
        return handle

    def keep(self, thing):
        self.kept.append(thing)
        return thing

    def ints(self, *numbers: int) -> ctypes.Array:
        return self.keep((c_int * len(numbers))(*numbers))

    def address(self, thing) -> int:
        return ctypes.addressof(self.keep(thing))

    def struct(self, name: str, **members) -> ctypes.Structure:
        """One that a good program would give."""
        s = self.keep(STRUCTS[name]())
        given = {}
        if name == "heads_message":
            given = {"role": self.text(b"user"), "content": self.text(b"hello"), "content_len": 5}
        elif name == "heads_run":
            given = {
                "sequence": self.made["heads_sequence"],
                "tokens": self.address(self.ints(5, 6)),
                "n": 2,
                "n_logits": 0 if self.shape.source_vocab else 1,
            }
        elif name == "heads_text":
            given = {"ids": self.address(self.ints(5, 6)), "n": 2}
        elif name == "heads_request":
            given = {"ids": self.address(self.ints(5, 6)), "n": 2, "max_tokens": 2}
        elif name == "heads_patching":
            texts = {
                x: self.address(self.ints(5, i)) for i, x in enumerate(("clean", "corrupted"), 6)
            }
            given = {**texts, "n": 2, "answer": 5, "against": 6}
        elif name == "heads_dissection":
            given = {"ids": self.address(self.ints(5, 6)), "n": 2}
        elif name == "heads_workspace_options":
            given = {"n_threads": 1}
        for member, value in {**given, **members}.items():
            setattr(s, member, value)
        return s

    def text(self, text: bytes) -> int:
        return ctypes.cast(self.keep(c_char_p(text)), c_void_p).value

    def argument(self, call: declarations.Call, p: declarations.Parameter):
        """A good one."""
        base = p.type.rstrip(" *")
        session = call.name in ("heads_sequence_save", "heads_sequence_load")
        if p.name == "path":
            adapter = "adapter" if call.name == "heads_adapter_open" else "path"
            return self.text(self.made["session" if session else adapter])
        if p.type == "heads_sampler **":
            return self.address((c_void_p * 1)(self.made["heads_sampler"]))
        if (
            p.type.endswith("**")
            or p.type in ("size_t *", "int *")
            and p.name in ("len", "n", "second", "size")
        ):
            return self.out(8)
        if base in self.made and p.is_pointer:
            return self.made[base]
        if p.type in WRITTEN:
            return self.out(ctypes.sizeof(STRUCTS[base]))
        if base in STRUCTS:
            return ctypes.addressof(self.struct(base))
        good = {
            ("char *", "text"): lambda: self.text(b"once"),
            ("char *", "first"): lambda: self.text(b"once"),
            ("char *", "then"): lambda: self.text(b"more"),
            ("size_t", "first_len"): lambda: 4,
            ("size_t", "then_len"): lambda: 4,
            ("int", "i"): lambda: 0,
            ("int", "layer"): lambda: 1,
            ("float *", "vector"): lambda: self.address((c_float * self.shape.n_embd)()),
            ("float", "scale"): lambda: 2.0,
            ("float *", "scores"): lambda: self.out(4),
            ("float *", "results"): lambda: self.out(4096),
            ("double *", "metrics"): lambda: self.out(16),
            ("float *", "heads"): lambda: self.out(4096),
            ("float *", "ffn"): lambda: self.out(4096),
            ("int", "answer"): lambda: 5,
            ("int", "against"): lambda: -1,
            ("char *", "off"): lambda: self.text(b"0.0"),
            ("char *", "lang"): lambda: self.text(b"a:a"),
            ("char *", "heads"): lambda: self.text(b"0.0"),
            ("float *", "logits"): lambda: self.address((c_float * self.shape.vocab_size)()),
            ("float *", "vectors"): lambda: self.out(4 * self.shape.n_embd),
            ("int *", "ids"): lambda: self.address(self.ints(5, 6)),
            ("int *", "tokens"): lambda: self.address(self.ints(5, 6)),
            ("void *", "memory"): lambda: None,
            ("void *", "bytes"): lambda: self.bytes_of(self.file_for(call)),
            ("size_t", "size"): lambda: self.size_for(call),
            ("size_t", "rows"): lambda: PACKED["rows"],
            ("size_t", "cols"): lambda: PACKED["cols"],
            ("char *", "dtype"): lambda: self.text(b"q8"),
            ("float *", "weights"): lambda: self.address((c_float * (16 * 32))()),
            ("void *", "panels"): lambda: self.out(PACKED["size"]),
            ("double *", "error"): lambda: self.out(8),
            ("size_t", "len"): lambda: len(JSON.get(call.name, b"once")),
            ("char *", "json"): lambda: self.text(JSON[call.name]),
            ("heads_progress *", "progress"): lambda: None,
            ("void *", "context"): lambda: None,
            ("char *", "bytes"): lambda: self.out(8),
            ("size_t", "room"): lambda: 8,
            ("int", "n_top"): lambda: 1,
            ("int", "most"): lambda: 4,
            ("int *", "guesses"): lambda: self.out(16),
            ("int", "dimensions"): lambda: 1,
            ("uint32_t *", "bits"): lambda: self.address((ctypes.c_uint32 * 9999)()),
            ("size_t", "n"): lambda: 1,
            ("int", "n"): lambda: 2 if call.name == "heads_forward" else 1,
            ("int", "n_logits"): lambda: 1,
            ("int", "n_runs"): lambda: 1,
            ("int", "id"): lambda: 5,
            ("int", "shared"): lambda: 0,
            ("int", "conversation"): lambda: 1,
            ("int", "add_special"): lambda: 0,
            ("int", "skip_special"): lambda: 0,
            ("long", "n"): lambda: 1,
            ("long", "request"): lambda: 0,
        }
        assert (p.type, p.name) in good, f"say here what is good for {call.name}: {p}"
        return good[p.type, p.name]()

    def size_for(self, call: declarations.Call) -> int:
        packs = call.name == "heads_pack"
        return PACKED["size"] if packs else len(self.file_for(call))

    def file_for(self, call: declarations.Call) -> bytes:
        names = {"heads_sequence_parse": "session", "heads_adapter_parse": "adapter"}
        name = names.get(call.name, "path")
        return Path(self.made[name].decode()).read_bytes()

    def bytes_of(self, content: bytes) -> int:
        buffer = self.keep((ctypes.c_char * (len(content) + 64))())
        offset = -ctypes.addressof(buffer) % 64
        buffer[offset : offset + len(content)] = content
        return ctypes.addressof(buffer) + offset

    def out(self, size: int) -> int:
        return self.address(ctypes.create_string_buffer(bytes([FILLED] * size), size))


class Outcome:
    """What a call did: its result, its sentence, and the bytes of what it may have written to."""

    def __init__(self, call: declarations.Call, result, said: str, written: list[bytes]):
        self.result, self.said, self.written = result, said, written
        negative = isinstance(result, int) and result < 0
        self.failed = call.can_fail and (result is None or negative)
        self.gave_nothing = not any(result) if isinstance(result, list) else result in (None, 0, -1)


def make_call(world: World, name: str, changed: dict[str, object]) -> Outcome:
    """With good arguments, but for those that are changed."""
    call = CALLS[name]
    error = STRUCTS["heads_error"]()
    ctypes.memset(byref(error), FILLED, ctypes.sizeof(error))
    arguments, outs = [], []
    for p in call.parameters:
        value = changed[p.name] if p.name in changed else None
        if p.name not in changed:
            first = len(world.kept)
            is_error = p.type == "heads_error *"
            value = ctypes.addressof(error) if is_error else world.argument(call, p)
            outs += [k for k in world.kept[first:] if bytes(k)[:1] == bytes([FILLED])]
        arguments.append(value)
    result = getattr(world.library, name)(*arguments)
    if isinstance(result, ctypes.Structure):
        result = [getattr(result, name) for name, _ in result._fields_]
    end = bytes(error).find(b"\0")
    said = bytes(error)[:end].decode("utf-8", "replace") if end >= 0 else ""
    return Outcome(call, result, said, [bytes(out) for out in outs])


def in_a_child(work):
    """What work() returns in a process of its own; a signal that ends it is this test's failure."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = pickle.dumps(work())
        except BaseException as e:  # noqa: B902  (reported by the parent)
            answer = pickle.dumps(AssertionError(f"{type(e).__name__}: {e}"))
        with os.fdopen(writing, "wb") as f:
            f.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as f:
        answer = f.read()
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"it ended with signal {status & 127}, status {status >> 8}"
    found = pickle.loads(answer)
    if isinstance(found, AssertionError):
        raise found
    return found


@pytest.fixture(scope="module")
def worlds(stories, tmp_path_factory):
    """A function from a call's name to the world in which it is made."""
    folder = tmp_path_factory.mktemp("api")
    talker, reader = folder / "talker.bin", folder / "reader.bin"
    talker.write_bytes(talkers.with_template(stories.read_bytes(), talkers.PLAIN))
    bart = ROOT / "tests" / "golden" / "encoder_decoders" / "bart"
    assert export.main([str(bart), str(reader)]) == 0
    talkers.make(reader, reader, talkers.PLAIN, 130)
    meta, tensors = checkpoints.parse(reader.read_bytes())
    one = np.int32(talkers.tokens(30).index("a"))
    meta["model.languages"] = checkpoints.Meta(checkpoints.I32, 1, one.tobytes())
    reader.write_bytes(checkpoints.build(meta, tensors))
    made = [World(talker, folder), World(reader, folder)]
    return lambda name: made[name in TRANSLATES]


def check_outs(outcome: Outcome, what: str) -> None:
    """After an error, what a call may write to is as it was, or zero: a caller may free it."""
    for bytes_ in outcome.written:
        assert set(bytes_) in ({FILLED}, {0}), what


# ---- what the tests know of the header ----


def test_the_declarations_are_those_of_the_library(worlds):
    text = declarations.HEADER.read_text()
    assert set(CALLS) == set(re.findall(r"(?m)^HEADS_API [^(]*?(heads_\w+)\(", text))
    assert len(CALLS) > 55 and len(STRUCTS) > 15
    assert sum(call.can_fail for call in CALLS.values()) > 25


def test_the_module_has_the_headers_structs():
    """Their members in their places."""
    names = {"Error": "heads_error", "LikelyToken": "heads_likely"}
    found = 0
    for theirs in vars(_native).values():
        if not isinstance(theirs, type) or ctypes.Structure not in theirs.__bases__:
            continue
        words = re.sub("(?<!^)([A-Z])", r"_\1", theirs.__name__).lower()
        ours = STRUCTS[names.get(theirs.__name__, f"heads_{words}")]
        places = [[(f[0], getattr(s, f[0]).offset) for f in s._fields_] for s in (ours, theirs)]
        assert places[0] == places[1] and ctypes.sizeof(ours) == ctypes.sizeof(theirs), words
        found += 1
    assert found > 15
    assert {f"heads_{name}" for name in _native.CALLS} <= set(CALLS)


def test_good_arguments_are_good(worlds):
    """Else the tests below would see refusals of something else."""
    refused = set()
    for call in CALLS.values():
        if call.name.endswith(("_free", "_close")):
            continue
        outcome = in_a_child(lambda: make_call(worlds(call.name), call.name, {}))
        if call.can_fail and outcome.failed:
            refused.add(call.name)
    assert refused == REFUSED


# ---- NULL ----


@pytest.mark.parametrize("name", CALLS)
def test_null_is_refused(worlds, name):
    """In each call that can say so, for each pointer that must not be; other calls give nothing."""
    call, world = CALLS[name], worlds(name)
    for p in call.parameters:
        if not p.is_pointer:
            continue
        freed = {q.name: None for q in call.parameters if may_be_null(call, q)}
        changed = {**(freed if name.endswith(("_free", "_close")) else {}), p.name: None}
        outcome = in_a_child(lambda: make_call(world, name, changed))
        what = f"{p.name}: {outcome.result} {outcome.said}"
        if may_be_null(call, p):
            assert name in REFUSED or not outcome.failed, what
        elif call.can_fail:
            assert outcome.failed and "NULL" in outcome.said, what
            check_outs(outcome, what)
            silent = in_a_child(lambda: make_call(world, name, {**changed, "err": None}))
            assert silent.failed
        elif call.result != "void" and (name, p.name) != ("heads_sequence_source", "n"):
            assert outcome.gave_nothing, what
    pointers = [p.name for p in call.parameters if p.is_pointer and p.name != "lang"]
    outcome = in_a_child(lambda: make_call(world, name, dict.fromkeys(pointers)))
    assert outcome.failed if call.can_fail else outcome.gave_nothing or not pointers


# ---- extreme numbers ----

SIGNED = {c_int: 31, ctypes.c_long: 63, ctypes.c_int64: 63}
UNSIGNED = {ctypes.c_size_t: 64, ctypes.c_uint64: 64}


def extremes(kind: type) -> list:
    if kind in (c_float, ctypes.c_double):
        return [math.nan, math.inf, -math.inf, 1e-45, 3.4e38, -3.4e38]
    if kind in SIGNED:
        bits = SIGNED[kind]
        return [-(2**bits), -100, -1, 1, 2**bits - 1]
    return [1, 2 ** UNSIGNED[kind] - 1] if kind in UNSIGNED else []


def use(world: World, name: str, result) -> None:
    """Goes on with what a call has made."""
    library, made = world.library, world.made
    if name == "heads_workspace_new" and result:
        sequence = library.heads_sequence_new(result, 1, None)
        if sequence:
            library.heads_forward(sequence, world.ints(5, 6), 2, 0, None)
            library.heads_sequence_free(sequence)
        library.heads_workspace_free(result)
    if name == "heads_sampler_new" and result:
        logits = (c_float * world.shape.vocab_size)(*range(world.shape.vocab_size))
        for _ in range(3):
            library.heads_sampler_accept(result, library.heads_sampler_pick(result, logits))
        library.heads_sampler_free(result)
    if name in ("heads_batch_new", "heads_batch_add") and result is not None and result >= 0:
        batch = result if name == "heads_batch_new" else made["heads_batch"]
        events, steps = c_void_p(), 0
        for _ in range(3):
            library.heads_batch_add(batch, byref(world.struct("heads_request")), None)
        while steps < 60 and library.heads_batch_step(batch, byref(events), None) >= 0:
            steps += 1
        library.heads_batch_cancel(batch, 0)
        library.heads_batch_free(batch)


def try_call(world: World, name: str, changed: dict[str, object]) -> Outcome:
    def work():
        outcome = make_call(world, name, changed)
        use(world, name, outcome.result)
        return outcome

    outcome = in_a_child(work)
    if outcome.failed:
        assert len(outcome.said) > 8, (changed, outcome.said)
        check_outs(outcome, str(changed))
    return outcome


def members(s: ctypes.Structure, path: tuple = ()):
    for name, kind in s._fields_:
        if issubclass(kind, ctypes.Structure):
            yield from members(kind, (*path, name))
        else:
            yield (*path, name), kind


def set_member(s: ctypes.Structure, path: tuple, value) -> None:
    for name in path[:-1]:
        s = getattr(s, name)
    setattr(s, path[-1], value)


# How much stands at a member's pointer: more than there is, is the caller's lie.
POINTED_AT = {"n": "ids", "n_stops": "stops", "n_stop_ids": "stop_ids", "n_source": "source"}


def given_structs():
    return [
        (call.name, p.name, p.type.rstrip(" *"))
        for call in CALLS.values()
        for p in call.parameters
        if p.is_pointer
        and p.type.count("*") == 1
        and p.type.rstrip(" *") in STRUCTS
        and p.type not in ("heads_error *", "heads_likely *", *WRITTEN)
    ]


@pytest.mark.parametrize(("name", "argument", "kind"), given_structs())
def test_members_of_structs(worlds, name, argument, kind):
    """Each member is NULL or extreme, the others good, or zero; and all of them extreme."""
    world, said = worlds(name), set()

    def attempt(make) -> None:
        def work():
            outcome = make_call(world, name, {argument: ctypes.addressof(make())})
            use(world, name, outcome.result)
            return outcome

        outcome = in_a_child(work)
        if outcome.failed:
            assert len(outcome.said) > 8
            check_outs(outcome, outcome.said)
            said.add(outcome.said)

    def changed(base, path, value):
        s = world.struct(kind) if base == "good" else world.keep(STRUCTS[kind]())
        set_member(s, path, value)
        return s

    attempt(lambda: world.keep(STRUCTS[kind]()))
    numbers = [(path, type_) for path, type_ in members(STRUCTS[kind]) if extremes(type_)]
    for path, type_ in members(STRUCTS[kind]):
        if type_ is c_void_p:
            attempt(lambda: changed("good", path, None))
        for value in extremes(type_):
            lie = path[-1] in ("n", "len", "content_len") and value > 1
            if not lie:
                attempt(lambda: changed("good", path, value))
            attempt(lambda: changed("zero", path, value))
    for i in range(8):

        def all_extreme():
            s = world.keep(STRUCTS[kind]())
            for path, type_ in numbers:
                set_member(s, path, extremes(type_)[i % len(extremes(type_))])
            return s

        attempt(all_extreme)
    if name not in ("heads_workspace_probe", "heads_chat_encode"):
        assert said, "nothing was refused"


@pytest.mark.parametrize("name", [n for n, call in CALLS.items() if len(call.parameters) > 1])
def test_numbers_of_calls(worlds, name):
    for p in CALLS[name].parameters:
        for value in [] if p.is_pointer else extremes(declarations.of_type(p.type, STRUCTS)):
            lie = p.name in COUNTS and value > 1
            if not lie or (name, p.name, value) == ("heads_encode", "len", 2**64 - 1):
                try_call(worlds(name), name, {p.name: value})
