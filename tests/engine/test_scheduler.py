"""heads_batch_*: what requests give is what each gives alone; prompts share passes fairly; texts,
masks, log-probabilities, and failures that are one request's own."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import contextmanager
from ctypes import POINTER, byref, c_uint32, string_at

import numpy as np
import pytest

import checkpoints
from conftest import ROOT, on_linux
import heads
from heads._native import DONE, FAILED, FLOATS, SCORE, TOKEN, BatchOptions, Bias, Event, HeadsError
from heads._native import Mask, Request, SamplerOptions, Stop, WorkspaceOptions, calls, int_array

CHUNK = 16


class Batch:
    """A batch of its own workspace, and the events of its requests."""

    def __init__(self, model: int, tokenizer: int | None, keep: int = 0, rows: int = CHUNK):
        options = WorkspaceOptions(chunk=CHUNK, n_threads=2, logit_rows=rows)
        self.workspace = calls.workspace_new(model, byref(options))
        self.batch = calls.batch_new(self.workspace, byref(BatchOptions(8, keep, tokenizer)))
        self.tokens: dict[int, list[int]] = {}
        self.text: dict[int, bytes] = {}
        self.scores: dict[int, list] = {}  # (id, best, log-probability, top)
        self.ends: dict[int, str] = {}
        self.started: dict[int, int] = {}  # the step that gave the first token
        self.steps = 0

    def add(self, ids: list[int], max_tokens: int = 8, stops: list[bytes] = (), **options) -> int:
        request = Request(ids=int_array(ids), n=len(ids), max_tokens=max_tokens)
        for name, value in options.items():
            setattr(request if hasattr(Request, name) else request.sampler, name, value)
        request.stops = (Stop * len(stops))(*(Stop(stop, len(stop)) for stop in stops))
        request.n_stops = len(stops)
        number = calls.batch_add(self.batch, byref(request))
        self.tokens[number], self.text[number], self.scores[number] = [], b"", []
        return number

    def step(self) -> None:
        events = POINTER(Event)()
        n = calls.batch_step(self.batch, byref(events))
        self.steps += 1
        for event in events[:n]:
            number = event.request
            assert number not in self.ends  # nothing comes after the end
            if event.kind in (TOKEN, SCORE):
                top = [(x.id, x.log_probability) for x in event.top[: event.n_top]]
                self.scores[number].append((event.id, event.best, event.log_probability, top))
            if event.kind == TOKEN:
                self.tokens[number].append(event.id)
                self.text[number] += string_at(event.text, event.len) if event.len else b""
                self.started.setdefault(number, self.steps)
            elif event.kind in (DONE, FAILED):
                self.ends[number] = (event.stopped or event.error).decode()

    def run(self) -> None:
        while sum(self.left()):
            self.step()

    def left(self) -> tuple[int, int]:
        counts = calls.batch_count(self.batch)
        return counts.waiting, counts.running

    def close(self) -> None:
        calls.batch_free(self.batch)
        calls.workspace_free(self.workspace)


@contextmanager
def opened(path, **options):
    model = calls.model_open(str(path).encode())
    try:
        tokenizer = calls.tokenizer_new(model)
    except HeadsError:
        tokenizer = None
    batch = Batch(model, tokenizer, **options)
    try:
        yield batch
    finally:
        batch.close()
        calls.tokenizer_free(tokenizer)
        calls.model_close(model)


def alone(path, *args, **options) -> tuple:
    with opened(path) as b:
        number = b.add(*args, **options)
        b.run()
        return b.tokens[number], b.text[number], b.ends[number]


def ids_of(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(8, 300, n).tolist()


# ---- fairness ----


def test_a_short_prompt_starts_within_two_passes(bare):
    """Beside one that needs 30 passes, whether that is new or under way, and beside texts that
    generate. The shortest rest comes first."""
    for before in (0, 1, 7):
        with opened(bare) as b:
            long = b.add(ids_of(480, 1))
            texts = [b.add(ids_of(2, seed), max_tokens=60) for seed in (2, 3)]
            for _ in range(before):
                b.step()
            start = b.steps
            short = [b.add(ids_of(n, n)) for n in (1, 2, 5)]
            b.run()
            assert all(b.started[number] <= start + 2 for number in short)
            assert 30 <= b.started[long] and b.ends[texts[0]] == "max_tokens"


def test_no_prompt_waits_for_ever(bare):
    """Half of what generating texts leave belongs to the oldest prompt: others that keep coming
    can make it take twice as many passes, and no more."""
    with opened(bare) as b:
        long = b.add(ids_of(320, 1))
        while long not in b.started:
            b.add(ids_of(40, b.steps), max_tokens=1)
            b.step()
            assert b.steps < 60
        assert b.steps >= 320 / CHUNK
        calls.batch_cancel(b.batch, long)


def test_passes_are_full(bare):
    """As many prompts as there are places cost as few passes as one text of their length."""
    with opened(bare) as b:
        numbers = [b.add(ids_of(64, seed), max_tokens=1) for seed in range(8)]
        b.run()
        assert b.steps == 8 * 64 // CHUNK
        # One after the other, so that the first generate while others are still read.
        assert sorted(b.started[n] for n in numbers) == [4, 8, 12, 16, 20, 24, 28, 32]


# ---- neighbours ----


@pytest.mark.parametrize("keep", [0, 4])
def test_neighbours_do_not_matter(stories, keep):
    """Whatever is shared, kept, added later or cancelled."""
    shared = ids_of(70, 5)
    prompts = [shared + ids_of(n, n) for n in (1, 9, 33)] + [ids_of(n, n) for n in (1, 4, 300)]
    prompts += [shared[:50], shared + ids_of(33, 33) + ids_of(12, 6)]
    sampling = SamplerOptions(temperature=0.9, top_p=0.95, seed=3)
    want = [alone(stories, p, 20, sampler=sampling) for p in prompts]
    with opened(stories, keep=keep) as b:
        rounds = []
        for at in range(3):
            rounds.append([b.add(p, 20, sampler=sampling) for p in prompts])
            gone = b.add(shared + ids_of(3, at), 400)
            for _ in range(10 * at):
                b.step()
            if gone not in b.ends:
                assert calls.batch_cancel(b.batch, gone) == 1
                assert calls.batch_cancel(b.batch, gone) == 0 and gone not in b.ends
        b.run()
        for numbers in rounds:
            assert [(b.tokens[n], b.text[n], b.ends[n]) for n in numbers] == want
        counts = calls.batch_count(b.batch)
        assert counts.prompt_tokens == 3 * sum(map(len, prompts)) and counts.spared > 200


def test_cancel(bare):
    with opened(bare) as b:
        numbers = [b.add(ids_of(5, seed), max_tokens=30) for seed in range(12)]
        b.step()
        assert b.left() == (4, 8)
        assert all(calls.batch_cancel(b.batch, n) for n in (numbers[2], numbers[11]))
        assert b.left() == (3, 7)
        assert not calls.batch_cancel(b.batch, 99) and not calls.batch_cancel(b.batch, numbers[2])
        b.run()
        assert set(b.ends) == set(numbers) - {numbers[2], numbers[11]}
        assert not calls.batch_cancel(b.batch, numbers[0])  # it has ended


# ---- texts ----


@pytest.mark.parametrize("keep", [0, 4])
def test_spared_tokens_are_some_of_the_prompts(bare, keep):
    """Both counts are of requests that are done: what was cancelled or failed is in neither."""
    shared = ids_of(100, 5)
    with opened(bare, keep=keep) as b:
        for gone in range(1, 4):
            numbers = [b.add(shared + ids_of(4, seed), 20) for seed in range(4)]
            while numbers[0] not in b.started:
                b.step()
            assert all(calls.batch_cancel(b.batch, n) for n in numbers[:gone])
            b.run()
            counts = calls.batch_count(b.batch)
            assert counts.spared <= counts.prompt_tokens
        assert counts.prompt_tokens == 6 * 104
        assert counts.spared >= 600 if keep else counts.spared == 600  # kept prompts come again


def test_stop_strings_across_tokens(stories):
    """Nothing is handed out that a stop string takes back, and what it might take is held back."""
    ids = ids_of(6, 2)
    _, text, _ = alone(stories, ids, 60)
    with opened(stories) as b:
        cases = []
        for at in range(0, len(text) - 12, 3):
            stop = text[at : at + 9]
            cases.append((b.add(ids, 60, stops=[b"\xff no", stop]), text[: text.index(stop)]))
        near = b.add(ids, 60, stops=[text[5:14] + b"no", text[-3:] + b"!"])  # begin, never end
        b.run()
        for number, want in cases:
            assert (b.text[number], b.ends[number]) == (want, "stop")
        assert (b.text[near], b.ends[near]) == (text, "max_tokens")


def test_stop_ids(bare):
    tokens, _, _ = alone(bare, [5, 6], 30)
    id = tokens[9]
    stop_ids = dict(stop_ids=int_array([300, id]), n_stop_ids=2)
    assert alone(bare, [5, 6], 30, **stop_ids) == (tokens[: tokens.index(id) + 1], b"", "eos")


# ---- log-probabilities ----


def log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows.astype(np.float64) - rows.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("n_top", [0, 1, 5, 300])
def test_log_probabilities_are_a_softmax(stories, n_top):
    """Of generated tokens, and of a prompt's; with equal ones the lower id stands first."""
    import heads

    ids = ids_of(40, 8)
    with opened(stories) as b:
        sampling = SamplerOptions(temperature=1.5, seed=2, repeat_penalty=1.3)
        wanted = dict(likely=1, n_top=n_top, sampler=sampling)
        numbers = [b.add(ids, 12, n_scored=n, **wanted) for n in (0, 7, 39)]
        scored = b.add(ids, 0, n_scored=39, n_top=n_top)
        b.run()
        found, tokens, ends = b.scores, b.tokens[numbers[0]], b.ends
    with heads.Model(stories) as m:
        rows = log_softmax(m.logits(ids + tokens))
    known = ids + tokens
    for number, n in zip(numbers, (0, 7, 39)):
        assert [id for id, *_ in found[number]] == known[len(ids) - n :]
        for at, (id, best, value, top) in enumerate(found[number], len(ids) - n - 1):
            assert value == pytest.approx(rows[at][id], abs=1e-6) and best == rows[at].argmax()
            want = np.argsort(-rows[at], kind="stable")[:n_top]
            assert [i for i, _ in top] == want.tolist()
            assert np.allclose([p for _, p in top], rows[at][want], rtol=0, atol=1e-6)
    assert found[scored] == found[numbers[2]][:39] and ends[scored] == "max_tokens"


# ---- masks ----


def test_masks(bare):
    """Bits say which tokens may be picked; the callback knows what was generated."""
    seen = []

    @Mask
    def sevens(context, tokens, n, bits):
        assert context == 5 and all(bits[i] == 2**32 - 1 for i in range(9))
        seen.append(tokens[:n])
        for id in range(300):
            if id % 7:
                bits[id // 32] &= ~(1 << id % 32)
        return 0

    @Mask
    def nothing(context, tokens, n, bits):
        for i in range(10):
            bits[i] = 0
        return 0

    refuse = Mask(lambda context, tokens, n, bits: int(n == 3))
    free = alone(bare, [5, 6], 20)
    with opened(bare) as b:
        hot = SamplerOptions(temperature=5, seed=1)
        masked = b.add([5, 6], 20, mask=sevens, mask_context=5, sampler=hot)
        greedy = b.add([5, 6], 20, mask=sevens, mask_context=5, likely=1)
        ends = [b.add([5, 6], 20, mask=mask) for mask in (nothing, refuse)]
        plain = b.add([5, 6], 20)
        b.run()
        assert len(b.tokens[masked]) == 20 and not any(id % 7 for id in b.tokens[masked])
        assert not any(id % 7 for id in b.tokens[greedy]) and b.tokens[greedy] in (
            [*tokens, b.tokens[greedy][-1]] for tokens in seen
        )
        assert any(best % 7 for _, best, *_ in b.scores[greedy])  # what the model says, unmasked
        assert b.ends[ends[0]] == "the mask allows no token that could be picked"
        assert b.ends[ends[1]] == "the mask gave an error" and len(b.tokens[ends[1]]) == 3
        assert (b.tokens[plain], b.text[plain], b.ends[plain]) == free


def test_biases_and_penalties(bare):
    """The logits that the sampler sees are the model's with sums; log-probabilities are without."""
    biases = (Bias * 2)((7, 3), (34, -100))
    asked = [
        dict(biases=biases, n_biases=2),
        dict(frequency_penalty=1.5),
        dict(presence_penalty=-3),
        dict(biases=biases, n_biases=2, frequency_penalty=-0.2, presence_penalty=1.1),
    ]
    with opened(bare) as b, heads.Model(bare, threads=1) as m:
        numbers = [b.add([5, 6], 30, likely=1, **options) for options in asked]
        plain = b.add([5, 6], 30)
        b.run()
        assert b.tokens[plain] == alone(bare, [5, 6], 30)[0]
        for number, options in zip(numbers, asked):
            found = b.tokens[number]
            assert found != b.tokens[plain]
            rows = m.logits([5, 6, *found[:-1]])[1:].astype(np.float32)
            for at, (row, id) in enumerate(zip(rows, found)):
                sums = row.copy()
                for bias in biases if "biases" in options else ():
                    sums[bias.id] += np.float32(bias.value)
                for before in found[:at]:
                    sums[before] -= np.float32(options.get("frequency_penalty", 0))
                for before in set(found[:at]):
                    sums[before] -= np.float32(options.get("presence_penalty", 0))
                assert id == np.argmax(sums)
                wide = row.astype(np.float64)
                own = wide[id] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
                assert b.scores[number][at][2] == pytest.approx(own, abs=1e-6)


def test_a_bias_of_minus_infinity_bans(bare):
    """A token, or all of them: then there is none to pick, and the request says so."""
    ban = [(id, float("-inf")) for id in range(300)]
    with opened(bare) as b:
        free = b.add([5, 6], 4)
        b.run()
        first = b.tokens[free][0]
        most = b.add([5, 6], 4, biases=(Bias * 299)(*ban[:first], *ban[first + 1 :]), n_biases=299)
        none = b.add([5, 6], 4, biases=(Bias * 300)(*ban), n_biases=300)
        b.run()
        assert b.tokens[most] == [first] * 4
        assert (
            b.ends[none] == "biases and the checkpoint's rules leave no token that could be picked"
        )


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_one_sampler_for_both(bare, temperature):
    """A sampler by itself, fed by forward passes, gives a request's ids: biases, penalties, bits."""
    options = dict(temperature=temperature, seed=3, repeat_penalty=1.3, frequency_penalty=0.7)
    options.update(biases=(Bias * 2)((7, 3), (34, float("-inf"))), n_biases=2)
    options.update(presence_penalty=-0.4)
    bits = (c_uint32 * 10)(*[0x55555555] * 10)  # even ids

    @Mask
    def even(context, tokens, n, allowed):
        ctypes.memmove(allowed, bits, 40)
        return 0

    with opened(bare) as b, heads.Model(bare, threads=1) as m:
        number = b.add([5, 6], 30, mask=even, **options)
        b.run()
        sampler = calls.sampler_new(b.workspace, byref(SamplerOptions(n_prompt=2, **options)))
        calls.sampler_allow(sampler, bits)
        found, session = [], m.session()
        for id in (5, 6):
            calls.sampler_accept(sampler, id)
        logits = session.feed([5, 6])
        for _ in range(30):
            found.append(calls.sampler_pick(sampler, logits.ctypes.data_as(FLOATS)))
            calls.sampler_accept(sampler, found[-1])
            logits = session.feed([found[-1]])
        assert found == b.tokens[number] and not any(id % 2 for id in found)
        calls.sampler_allow(sampler, None)
        odd = {calls.sampler_pick(sampler, logits.ctypes.data_as(FLOATS)) % 2 for _ in range(50)}
        assert odd == {0, 1} or temperature == 0
        bits[:] = [0] * 10
        calls.sampler_allow(sampler, bits)
        assert calls.sampler_pick(sampler, logits.ctypes.data_as(FLOATS)) == -1
        calls.sampler_free(sampler)


def test_a_mask_in_c(stories):
    program = ROOT / "build" / "tests" / "c" / "mask"
    assert program.exists(), f"{program} is not built: run make c-tests"
    done = subprocess.run([program, stories], capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stdout + done.stderr


# ---- failures ----


def test_logits_that_are_no_numbers_fail_one_request(bare, tmp_path):
    """Its neighbours go on in the same pass, and no token comes twice."""
    path = tmp_path / "nan.bin"
    path.write_bytes(checkpoints.with_nan(bare.read_bytes(), token=7))
    with opened(path) as b:
        good = [b.add([i + 10, 1], 15) for i in range(5)]
        bad = b.add([3, 7], 15)
        b.step()
        assert "are no finite numbers" in b.ends[bad] and not b.tokens[bad]
        assert all(len(b.tokens[n]) == 1 for n in good)
        b.run()
        for i, number in enumerate(good):
            tokens, _, _ = alone(bare, [i + 10, 1], 15)
            if 7 not in tokens:
                assert b.tokens[number] == tokens and b.ends[number] == "max_tokens"


MEMORY = """
import resource, sys
sys.path[:0] = [{root!r} + "/tests/engine", {root!r} + "/tests", {root!r} + "/tests/support",
                {root!r} + "/python", {root!r}]
from test_scheduler import alone, ids_of, opened
prompts = [ids_of(n, n) for n in (40, 60, 30, 50)]
want = [alone({path!r}, p, 5) for p in prompts]
with opened({path!r}) as b:
    numbers = [b.add(p, 5) for p in prompts]
    size = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + {room}, resource.RLIM_INFINITY))
    b.step()
    at_once = len(b.ends)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    b.run()
    found = [(b.tokens[n], b.text[n], b.ends[n]) for n in numbers]
    failed = [end for _, _, end in found if "memory" in end or "cannot reserve" in end]
    assert all(f == w for f, w in zip(found, want) if f[2] not in failed), found
    assert at_once == len(failed)
    print(len(failed), *failed[:1])
"""


@on_linux
def test_an_allocation_that_fails_fails_one_request(tmp_path):
    """With room for some of the requests' caches, these run as if nothing had happened."""
    path = tmp_path / "model.bin"
    path.write_bytes(checkpoints.random_model(context=1 << 17))  # 50 MB of cache each
    counts = set()
    for room in (10, 80, 140):
        script = MEMORY.format(root=str(ROOT), path=str(path), room=room << 20)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        counts.add(int(done.stdout.split()[0]))
        assert "cannot reserve" in done.stdout or "memory" in done.stdout
    assert len(counts) >= 2 and max(counts) == 4


# ---- what is refused ----


def test_refusals(bare, stories, tmp_path):
    mask = dict(n_top=1001)
    with opened(bare) as b:
        for says, ids, options in (
            ("prompt is empty", [], {}),
            ("has 513 tokens and the context has room for 512", [5] * 513, {}),
            ("has token 300, which the model does not know; its ids are 0 to 299", [300], {}),
            ("has token -1", [-1], {}),
            ("-1 tokens to generate", [5], dict(max_tokens=-1)),
            ("2 to score", [5, 6], dict(n_scored=2)),
            ("1001 most likely tokens", [5], mask),
            ("stop strings need a tokenizer", [5], dict(stops=[b"a"])),
            ("temperature -1", [5], dict(sampler=SamplerOptions(temperature=-1))),
            ("no encoder to read", [5], dict(source=int_array([1]), n_source=1)),
            ("a language is for", [5], dict(lang=b"fr")),
            ("-1 biases", [5], dict(n_biases=-1)),
            ("1 biases", [5], dict(n_biases=1)),
            ("bias 0 is 1 for token 300", [5], dict(biases=(Bias * 1)((300, 1)), n_biases=1)),
            ("bias 0 is 1 for token -1", [5], dict(biases=(Bias * 1)((-1, 1)), n_biases=1)),
            ("bias 0 is inf", [5], dict(biases=(Bias * 1)((3, float("inf"))), n_biases=1)),
            ("bias 0 is nan", [5], dict(biases=(Bias * 1)((3, float("nan"))), n_biases=1)),
            ("penalties of nan and 0", [5], dict(frequency_penalty=float("nan"))),
            ("penalties of 0 and inf", [5], dict(presence_penalty=float("inf"))),
        ):
            with pytest.raises(HeadsError, match=says):
                b.add(ids, **options)
        b.add([5] * 513, 0, n_scored=1)  # whose last token need not run
        with pytest.raises(HeadsError, match="needs a batch"):
            calls.batch_step(None, byref(POINTER(Event)()))
        with pytest.raises(HeadsError, match="needs .*events"):
            calls.batch_step(b.batch, None)
        with pytest.raises(HeadsError, match="needs a request"):
            calls.batch_add(b.batch, None)
        for options in (BatchOptions(17), BatchOptions(-1), BatchOptions(1, -1)):
            with pytest.raises(HeadsError, match="expected 1..16"):
                calls.batch_new(b.workspace, byref(options))
        assert calls.batch_cancel(None, 0) == 0 and calls.batch_count(None).running == 0
        calls.batch_free(None)
    with pytest.raises(HeadsError, match="needs a workspace"):
        calls.batch_new(None, None)
    model = calls.model_open(str(bare).encode())
    states = calls.workspace_new(model, byref(WorkspaceOptions(n_threads=1, hidden=1)))
    with pytest.raises(HeadsError, match="gives hidden states"):
        calls.batch_new(states, None)
    calls.workspace_free(states)
    calls.model_close(model)
    with opened(stories) as b:
        with pytest.raises(HeadsError, match="stop string 1 is empty"):
            b.add([5], stops=[b"a", b""])


def test_few_rows_of_logits(bare):
    """A workspace with a row for each place, fewer than a prompt has to score."""
    with opened(bare, rows=8) as b:
        ids = ids_of(50, 1)
        numbers = [b.add(ids, 0, n_scored=49) for _ in range(3)] + [b.add(ids, 5)]
        b.run()
        assert b.scores[numbers[0]] == b.scores[numbers[2]] and len(b.scores[numbers[0]]) == 49
        assert b.tokens[numbers[3]] == alone(bare, ids, 5)[0]


def test_a_text_that_needs_other_tables_starts_again(bare, tmp_path):
    """Where its cache cannot go back, since another request's shares it, in a cache of its own."""
    meta, tensors = checkpoints.parse(bare.read_bytes())
    key = "model.rope.0."
    meta[key + "long_freq"] = meta[key + "inv_freq"]._replace(
        values=(meta[key + "inv_freq"].array() / 3).tobytes()
    )
    meta[key + "length"] = checkpoints.Meta(checkpoints.I32, 1, np.int32(300).tobytes())
    path = tmp_path / "long.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    prompt, other = ids_of(270, 1), ids_of(270, 1)[:265] + ids_of(5, 2)
    with opened(path, keep=2) as b:
        first = b.add(prompt, max_tokens=60)
        while first not in b.started:
            b.step()
        second = b.add(other, max_tokens=4)
        b.run()
        assert calls.batch_count(b.batch).spared == 265
        found = [(b.tokens[n], b.text[n], b.ends[n]) for n in (first, second)]
    assert found == [alone(path, prompt, max_tokens=60), alone(path, other, max_tokens=4)]


def test_a_model_without_logits(bare, tmp_path):
    meta, tensors = checkpoints.parse(bare.read_bytes())
    meta["model.head"] = checkpoints.Meta(checkpoints.I32, 1, bytes(4))
    path = tmp_path / "headless.bin"
    path.write_bytes(checkpoints.build(meta, tensors))
    with opened(path) as b:
        number = b.add([5, 6])
        b.run()
        assert b.ends[number] == "the model gives hidden states and has no logits"
