"""--batch: a request gives what ./run gives for it alone, to the byte and the id, whatever runs
beside it."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import checkpoints
from chat_templates import EXACT
from chats import metadata_of, with_chat
from conftest import ROOT, run_command
from outputs import ids_of


FAMILIES = [
    "llama",
    "mistral",
    "gemma3",
    "gpt_oss",  # the last three with windows
    "deepseek_v2",  # MLA
    "lfm3",
    "llama4",
    "lfm2_moe",
    "qwen3_next",  # short convolutions, DeltaNet
    "mamba2",
    "falcon_h1-norm",
    "phi3-longer",  # longrope
    "qwen2_moe",  # experts
    "gemma4",  # layers that read another's cache
]
OPTIONS = {
    "max_tokens": "-n",
    "temperature": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repeat_penalty": "--repeat-penalty",
    "seed": "-s",
}
STOPS = {"end-of-text token": "eos", "-n reached": "max_tokens", "context full": "context"}


def lines_of(requests: list) -> bytes:
    return "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests).encode()


def batch(run, model: Path, requests: list, *options: object, status: int = 0) -> list[dict]:
    done = run(model, "--batch", "-", *options, input=lines_of(requests))
    assert done.returncode == status, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == sum(r != "" and not str(r).isspace() for r in requests)
    return results


def alone(run, model: Path, request: dict, *options: object) -> dict:
    """The result that ./run gives for the request, which has no stop strings."""
    arguments = ["-s", 0, *options]
    for key, option in OPTIONS.items():
        arguments += [option, request[key]] if key in request else []
    if "prompt" in request:
        prompt, stdin = ["-p", "-"], {"input": request["prompt"].encode()}
        before = len(ids_of(run(model, "--tokenize", *prompt, **stdin)))
    else:
        prompt, stdin = ["--tokens", " ".join(map(str, request["tokens"]))], {}
        before = len(request["tokens"])
    done = run(model, *prompt, *arguments, "--ids", **stdin)
    stopped = done.stderr.strip().rsplit("stopped: ", 1)[1]
    result = {"tokens": ids_of(done)[before:], "stopped": STOPS[stopped]}
    if stdin:
        text = run(model, *prompt, *arguments, **stdin).stdout.decode()
        result["text"] = text.removeprefix(request["prompt"])
    return result | ({"id": request["id"]} if "id" in request else {})


def shuffled(items: list, seed: int) -> tuple[list, list[int]]:
    order = random.Random(seed).sample(range(len(items)), len(items))
    return [items[i] for i in order], order


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_to_single_runs(run, exported, name):
    """Prompts that share beginnings (two groups, one within the other), and prompts that do not."""
    model, rng = exported(name), random.Random(name)
    info = json.loads(run(model, "--info", "--json").stdout)
    draw = lambda n: [rng.randrange(1, info["vocab_size"]) for _ in range(n)]  # noqa: E731
    outer, inner = draw(37), draw(40)
    prompts = [draw(n) for n in (1, 5, 90, 17)] + [outer + draw(n) for n in (3, 30, 1)]
    prompts += [outer] + [outer + inner] * 2 + [outer + inner + draw(n) for n in (2, 33)]
    requests = [
        {
            "id": i,
            "tokens": prompt,
            "max_tokens": rng.choice([1, 7, 30]),
            "seed": i % 3,
            "temperature": rng.choice([0, 0.7, 1.2]),
            "repeat_penalty": rng.choice([1, 1.3]),
        }
        for i, prompt in enumerate(prompts)
    ]
    context = ["-c", min(info["context"], 128)]
    want = [alone(run, model, request, *context) for request in requests]
    ways = ((1, []), (3, ["-b", 7, "-t", 1]), (16, ["-t", 2]), (16, ["-b", 1]), (5, ["-b", 33]))
    for np, options in ways:
        mixed, order = shuffled(requests, seed=np)
        got = batch(run, model, mixed, "-np", np, *context, *options)
        for result in got:
            result.pop("text", None)  # of a family with a tokenizer
        assert got == [want[i] for i in order], (np, options)


def test_text_equal_to_single_runs(run, stories):
    rng = random.Random(4)
    starts = ["Once upon a time", "One day, Lily", "", "Ünïcödé 🦔", 'Tom said: "Hi!"\n\n']
    shared = "A long tale that several requests begin with, so that it is run only once. " * 4
    requests = [
        {
            "id": f"{i}é",
            "prompt": (shared if i % 3 == 0 else "") + starts[i % 5],
            "max_tokens": rng.choice([0, 20, 400]),
            "temperature": rng.choice([0, 0.8, 1.5]),
            "top_p": rng.choice([0.5, 0.95, 1]),
            "top_k": rng.choice([0, 40]),
            "min_p": rng.choice([0, 0.05]),
            "seed": rng.randrange(9),
        }
        for i in range(20)
    ]
    want = [alone(run, stories, request) for request in requests]
    assert {result["stopped"] for result in want} >= {"eos", "max_tokens"}
    for np in (1, 3, 16):
        mixed, order = shuffled(requests, seed=np)
        assert batch(run, stories, mixed, "-np", np) == [want[i] for i in order]


def test_cache_types_and_defaults(run, stories):
    """What a request leaves out comes from the command line; its own values come first."""
    own = {"prompt": "One day", "max_tokens": 9, "seed": 8, "temperature": 0.1}
    requests = [{"prompt": "Once"}, own]
    options = ["-n", 30, "--temp", 1.3, "--top-k", 30, "-s", 11, "--repeat-penalty", 1.2]
    options += ["-ctk", "q8", "-ctv", "f32"]
    want = [alone(run, stories, request, *options) for request in requests]
    assert batch(run, stories, requests, *options) == want
    assert len(want[0]["tokens"]) == 30 and len(want[1]["tokens"]) == 9


def test_shared_beginnings_run_once(run, bare):
    rng = random.Random(2)
    draw = lambda n: [rng.randrange(300) for _ in range(n)]  # noqa: E731
    shared, other = draw(200), draw(100)
    requests = [{"tokens": shared + draw(1 + i), "max_tokens": 3} for i in range(10)]
    requests += [{"tokens": shared + other + [i], "max_tokens": 3} for i in range(10)]
    done = run(bare, "--batch", "-", "-np", 4, input=lines_of(requests))
    # The 300 tokens of the second group's beginning are a fork of the first one's 200.
    spared = 10 * 200 + 10 * 300 + 200 - (200 + 300)
    total = sum(len(request["tokens"]) for request in requests)
    assert f"prompts {total:,} tokens, {spared:,} of them spared" in done.stderr
    short = [{"tokens": shared[:31] + draw(5), "max_tokens": 3} for i in range(4)]
    assert ", 0 of them spared" in run(bare, "--batch", "-", input=lines_of(short)).stderr


def test_stop_strings(run, stories):
    base = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}
    [plain] = batch(run, stories, [base])
    text = plain["text"]
    stops = [text[10:13], text[20:31], text[5:7], text[:1], text]
    requests = [base | {"stop": stop} for stop in [*stops, stops[:3], ["no such text"]]]
    pieces = [run(stories, "--tokens", id, "-n", 0).stdout.decode() for id in plain["tokens"]]
    assert not any(stops[1] in piece for piece in pieces)  # it spans tokens
    for np in (1, 16):
        results = batch(run, stories, requests, "-np", np)
        for request, result in zip(requests[:-1], results):
            given = request["stop"] if isinstance(request["stop"], list) else [request["stop"]]
            assert result["stopped"] == "stop"
            cut = min(text.find(stop) for stop in given if stop in text)
            assert result["text"] == text[:cut]
            n = len(result["tokens"])
            assert result["tokens"] == plain["tokens"][:n]
            # The last of its tokens is the one that completes a stop string.
            ended = ["".join(pieces[:k]) for k in (n - 1, n)]
            assert [any(stop in end for stop in given) for end in ended] == [False, True]
        assert results[-1] == plain


def test_characters_across_tokens(run, tmp_path, stories):
    """A text that ends inside of a character ends with U+FFFD."""
    random_model = tmp_path / "random.bin"
    random_model.write_bytes(checkpoints.random_model(tokenizer=stories, seed=3))
    base = {"prompt": "é", "temperature": 30, "top_p": 1}
    requests = [base | {"max_tokens": n, "seed": s} for n in (1, 2, 9, 80) for s in range(12)]
    results = batch(run, random_model, requests)
    assert results == [alone(run, random_model, request) for request in requests]
    assert any(result["text"].endswith("\N{REPLACEMENT CHARACTER}") for result in results)
    prompt = ids_of(run(stories, "--tokenize", "-p", "x🦔"))
    ids = prompt[:-1]  # a prompt that ends inside of a character
    [result] = batch(run, stories, [{"tokens": ids, "max_tokens": 3, "temperature": 0}])
    whole = run(stories, "--tokens", " ".join(map(str, ids)), "-n", 3, "--temp", 0)
    assert whole.stdout.decode() == "x" + result["text"]


def test_full_context(run, bare, stories):
    requests = [{"tokens": list(range(n))} for n in (3, 8, 1, 9)]
    requests[2]["max_tokens"] = 8
    results = batch(run, bare, requests, "-c", 8, status=1)
    assert [r.get("stopped") for r in results] == ["context", "context", "max_tokens", None]
    assert [len(r.get("tokens", [])) for r in results] == [6, 1, 8, 0]
    assert results[3]["error"] == "the prompt has 9 tokens and the context has room for 8"
    assert results[:3] == [alone(run, bare, request, "-c", 8) for request in requests[:3]]
    [none] = batch(run, stories, [{"prompt": "One day", "max_tokens": 0}])
    assert none == {"text": "", "tokens": [], "stopped": "max_tokens"}


BAD = [
    ("nonsense", 'has to be a line of JSON, such as {"prompt": "Once"}; byte 0'),
    ("[1]", "a request has to be an object, such as"),
    ("{}", "one of"),
    ({"prompt": "a", "tokens": [1]}, "one of"),
    ({"prompt": 5}, '"prompt" has to be a string'),
    ({"tokens": "1 2"}, "array of ids"),
    ({"tokens": [1, -1]}, "element 1"),
    ({"tokens": [1, 2.5]}, "element 1"),
    ({"tokens": [99999999]}, "element 0"),
    ({"tokens": []}, "the prompt is empty"),
    ({"prompt": "a", "maxtokens": 5}, 'unknown key "maxtokens"; a request may have id or '),
    ({"prompt": "a", "seed\0": 5}, 'unknown key "seed", with a zero byte'),
    (
        {"prompt": "a", "max_tokens": -1},
        '"max_tokens" has to be a whole number from 0 to 1000000000',
    ),
    ({"prompt": "a", "max_tokens": 1.5}, '"max_tokens"'),
    ({"prompt": "a", "temperature": "hot"}, '"temperature" has to be a number'),
    ({"prompt": "a", "top_p": 0}, '"top_p"'),
    ('{"prompt": "a", "temperature": 1e300}', '"temperature"'),
    ({"prompt": "a", "repeat_penalty": 0}, '"repeat_penalty"'),
    ({"prompt": "a", "seed": -1}, '"seed"'),
    ({"prompt": "a", "seed": 1e30}, '"seed"'),
    ({"prompt": "a", "stop": ""}, '"stop"'),
    ({"prompt": "a", "stop": ["a", 1]}, '"stop"'),
    ({"prompt": "a", "id": [1]}, '"id"'),
    ({"prompt": "a", "id": 1.5}, '"id"'),
    ({"prompt": "a", "id": 1, "custom_id": "a"}, 'one of "id" and "custom_id"'),
    (
        {"prompt": "a", "frequency_penalty": 3},
        '"frequency_penalty" has to be a number from -2 to 2',
    ),
    ({"body": {"prompt": "a"}, "seed": 1}, '"seed" is beside "body"'),
    ({"body": 5}, '"body" has to be an object'),
    ({"prompt": None}, "one of"),
    ('{"prompt": "a", "prompt": "b"}', "twice"),
    ('{"prompt": "\\ud800"}', "surrogate"),
    ("[" * 1000, "deeper"),
]


def test_bad_lines(run, stories):
    """Each has its error in its place, with its id where it could be read; no other is lost."""
    good = [{"id": i, "prompt": "Once", "max_tokens": 5, "seed": i} for i in range(len(BAD))]
    requests = [line for pair in zip(good, (bad for bad, _ in BAD)) for line in pair]
    results = batch(run, stories, requests, "-np", 3, status=1)
    assert results[::2] == [alone(run, stories, request) for request in good]
    for (bad, message), result in zip(BAD, results[1::2]):
        assert set(result) == {"error"} and message in result["error"], (bad, result)
    with_id = {"id": "x", "prompt": "a", "foo": 1}
    assert batch(run, stories, [with_id], status=1)[0]["id"] == "x"
    done = run(stories, "--batch", "-", input=b'{"prompt": "a\xff"}\n')
    assert done.returncode == 1 and b"error" in done.stdout
    assert "1 of them with an error" in done.stderr


def test_hostile_texts(stories, tmp_path):
    """Lines and conversations made of pieces of JSON: refused with a sentence, or run to an end."""
    narrow = checkpoints.random_model(tokenizer=stories, n_embd=8, n_layers=1, head_dim=8, d_ff=8)
    chat = metadata_of(EXACT["chatml"], {"bos_token": "<s>", "eos_token": "</s>"})
    (tmp_path / "model.bin").write_bytes(with_chat(narrow, chat))
    programs = Path(os.environ.get("HEADS_TESTS_C", ROOT / "build" / "tests" / "c"))
    for what in ("lines", "messages"):
        command = [programs / "fuzz_lines", tmp_path / "model.bin", what, "3000", "4"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.stdout.startswith("ok: 3000 tried"), done.stdout + done.stderr
        refused, taken = (int(n) for n in done.stdout.replace(",", "").split()[3:6:2])
        assert refused + taken == 3000 and refused > 500 and taken > 500


def test_ids_come_back(run, bare):
    ids = [0, -5, 2**63 - 1, 'a"\\\n\u0001é🦔', ""]
    results = batch(run, bare, [{"id": id, "tokens": [1], "max_tokens": 1} for id in ids])
    assert [result["id"] for result in results] == ids
    assert set(results[0]) == {"id", "tokens", "stopped"}  # no tokenizer, no text
    [error] = batch(run, bare, [{"prompt": "text"}], status=1)
    assert "no tokenizer" in error["error"]


def test_what_other_programs_write(run, stories):
    """Nulls, 64.0, other names, OpenAI's lines, and lines with nothing."""
    plain = {"prompt": "Once", "max_tokens": 8, "seed": 3}
    [want] = batch(run, stories, [plain])
    lines = [
        {
            "prompt": "Once",
            "max_tokens": 8.0,
            "seed": 3.0,
            "top_k": None,
            "beams": None,
            "id": None,
        },
        "",
        {"custom_id": "a", "prompt": "Once", "max_completion_tokens": 8, "seed": 3},
        " \t",
        {"custom_id": "b", "method": "POST", "url": "/v1", "body": {"model": "m", **plain}},
    ]
    results = batch(run, stories, lines)
    assert [result.pop("custom_id", None) for result in results] == [None, "a", "b"]
    assert results == [want] * 3


def test_penalties(run, stories):
    """Of what was generated, the more often the more."""
    base = {"prompt": "Once", "max_tokens": 60, "temperature": 0}
    lines = [base, {**base, "presence_penalty": 2}, {**base, "frequency_penalty": 2}]
    found = [len(set(result["tokens"])) for result in batch(run, stories, lines)]
    assert found[0] < min(found[1:])


def test_logits_that_are_no_numbers(run, tmp_path, bare):
    """The requests beside one whose logits overflow are not lost."""
    model = tmp_path / "nan.bin"
    model.write_bytes(checkpoints.with_nan(bare.read_bytes(), token=7))
    requests = [
        {"id": i, "tokens": [i + 10, 7 if i == 5 else 1], "max_tokens": 20, "seed": i}
        for i in range(12)
    ]
    good = [request for request in requests if request["id"] != 5]
    want = [alone(run, bare, request) for request in good]
    want = [result for result in want if 7 not in result["tokens"]]
    results = batch(run, model, requests, "-np", 4, status=1)
    assert "no finite numbers" in results[5]["error"] and set(results[5]) == {"id", "error"}
    kept = [result for result in results if result["id"] in {w["id"] for w in want}]
    assert kept == want and len(want) > 6


def test_empty_and_last_line(run, bare, tmp_path):
    assert run(bare, "--batch", "-", input=b"").stdout == b""
    line = b'{"tokens": [1], "max_tokens": 2}'
    (tmp_path / "in").write_bytes(line + b"\r\n" + line)
    done = run(bare, "--batch", tmp_path / "in", "-o", "/dev/stdout")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    assert done.stdout == run(bare, "--batch", tmp_path / "in").stdout


def test_usage(run, bare, tmp_path):
    for arguments, message in (
        (["--batch", "-", "-np", "1,2"], "--batch takes one number"),
        (["--batch", "-", "-p", "x"], "means nothing for --batch"),
        (["-o", "x"], "means nothing for generation"),
        (["--batch", "x", "--again"], "--again is for -o FILE"),
        (["--batch", "-", "--ids"], "means nothing"),
    ):
        done = run(bare, *arguments, input=b"")
        assert done.returncode == 2 and message in done.stderr
    (tmp_path / "in").write_bytes(b"{}\n")
    for arguments, message in (
        ([tmp_path / "none"], "cannot open"),
        ([tmp_path / "in", "-o", tmp_path / "in"], "has the requests"),
        ([tmp_path / "in", "-o", bare], "the model itself"),
        ([tmp_path / "in", "-o", tmp_path], "cannot write"),
    ):
        before = bare.read_bytes()
        done = run(bare, "--batch", *arguments)
        assert done.returncode == 1 and message in done.stderr and bare.read_bytes() == before
    assert (tmp_path / "in").read_bytes() == b"{}\n"


# ---- going on ----


def write_requests(path: Path, n: int) -> None:
    rng = random.Random(n)
    prompts = [[rng.randrange(300) for _ in range(rng.randrange(1, 80))] for _ in range(n)]
    requests = [{"id": i, "tokens": ids, "max_tokens": 40} for i, ids in enumerate(prompts)]
    requests[n // 2]["foo"] = 1
    path.write_bytes(lines_of(requests))


def start(model: Path, *arguments: object, **options) -> subprocess.Popen:
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    command = [program, model, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, **options)


def wait_for_lines(path: Path, process: subprocess.Popen, n: int) -> None:
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= n:
            return
        time.sleep(0.002)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A batch and its results, made in one go."""
    folder = tmp_path_factory.mktemp("reference")
    model = folder / "model.bin"
    model.write_bytes(checkpoints.random_model(n_layers=8, n_embd=96, d_ff=256))
    write_requests(folder / "in", 60)
    done = run_command(model, "--batch", folder / "in", "-o", folder / "out")
    assert done.returncode == 1  # a bad line
    return model, folder / "in", (folder / "out").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_goes_on_after_an_end(run, reference, tmp_path, number):
    model, requests, want = reference
    out = tmp_path / "out"
    for lines in (1, 20, 45):
        process = start(model, "--batch", requests, "-o", out, "-np", 7, stderr=subprocess.DEVNULL)
        wait_for_lines(out, process, lines)
        process.send_signal(number)
        status = process.wait()
        if number == signal.SIGINT:
            assert status in (130, 1)  # 1: it was done before the signal came
        assert want.startswith(out.read_bytes())
    done = run(model, "--batch", requests, "-o", out)
    assert done.returncode == 1 and out.read_bytes() == want and "done before" in done.stderr
    assert run(model, "--batch", requests, "-o", out).returncode == 1 and out.read_bytes() == want


def test_torn_last_line_is_redone(run, reference, tmp_path):
    model, requests, want = reference
    out = tmp_path / "out"
    ends = [i + 1 for i, byte in enumerate(want) if byte == 10]
    for cut in (1, ends[0] - 1, ends[0], ends[3] + 30, len(want) - 1):
        out.write_bytes(want[:cut])
        assert run(model, "--batch", requests, "-o", out, "-np", 5).returncode == 1
        assert out.read_bytes() == want


def test_refuses_results_of_other_requests(run, reference, tmp_path):
    model, requests, want = reference
    lines = want.splitlines(keepends=True)
    out = tmp_path / "out"
    for other, message in (
        (lines[1], "line 1"),
        (lines[0] + lines[2], "line 2"),
        (want + lines[0], "line 61 is one more"),
        (want + b"x", "line 61"),
        (b"my notes", "line 1"),
        (b'{"id": 0, "tokens": \n', "line 1"),
        (b'{"id": 0, "prompt": [1]}\n', "line 1"),
        (b"\n", "line 1"),
        (lines[0] + b"\0\0", "line 2"),
        (b'{"id": 1, "tok', "line 1"),
    ):
        out.write_bytes(other)
        done = run(model, "--batch", requests, "-o", out)
        assert done.returncode == 1 and message in done.stderr and "name a new file" in done.stderr
        assert out.read_bytes() == other


def test_what_another_run_gave_is_refused_or_made_again(run, stories, tiny, tmp_path):
    """A result says what it was made by; one that does not fit is named, and --again makes it, and
    no other, anew."""
    out, file = tmp_path / "out", tmp_path / "in"
    requests = [{"id": i, "prompt": "One day", "max_tokens": 4, "seed": i} for i in range(4)]

    def ask(model: Path, *options: object):
        file.write_bytes(lines_of(requests))
        return run(model, "--batch", file, "-o", out, *options)

    assert ask(stories).returncode == 0
    first = out.read_bytes()
    requests[1]["max_tokens"] = 5
    for model, options, said in (
        (tiny, [], "line 1 was made by another model"),
        (stories, ["--temp", 0.1], "line 1 was made with other options"),
        (stories, ["-ctk", "q8"], "line 1 was made with other options"),
        (stories, ["-c", 64], "line 1 was made with other options"),
        (stories, [], "line 2 was made for another request"),
    ):
        done = ask(model, *options)
        assert done.returncode == 1 and said in done.stderr and "--again" in done.stderr
        assert out.read_bytes() == first
    done = ask(stories, "--again", "-t", 1, "-np", 2)  # these change no result
    assert done.returncode == 0 and "\n1 request and 3 that were done before" in done.stderr
    again = out.read_bytes()
    (tmp_path / "fresh").write_bytes(b"")
    assert run(stories, "--batch", file, "-o", tmp_path / "fresh").returncode == 0
    assert again == (tmp_path / "fresh").read_bytes() != first
    for text in (
        first,
        first + first,
        first + b"{",
        b'{"id": 0, "tokens": [1], "stopped": "eos"}\n',
    ):
        out.write_bytes(text)
        assert ask(stories, "--again").returncode == 0 and out.read_bytes() == again
    assert "\n4 requests; " in ask(tiny, "--again").stderr
    for text in (b"my notes", b"my notes\n", first + b"notes\n", b'{"a": 1}\n'):
        out.write_bytes(text)
        done = ask(stories, "--again")
        assert done.returncode == 1 and "--again" not in done.stderr and out.read_bytes() == text


def test_line_ends_and_marks_of_windows(run, stories, tmp_path):
    """They change no request, and a text's mark is none of it."""
    requests = lines_of([{"id": i, "prompt": "One day", "max_tokens": 4} for i in range(3)])
    results = []
    for text in (requests, b"\xef\xbb\xbf" + requests.replace(b"\n", b"\r\n")):
        (tmp_path / "in").write_bytes(text)
        assert run(stories, "--batch", tmp_path / "in", "-o", tmp_path / "out").returncode == 0
        results.append((tmp_path / "out").read_bytes())
    assert results[0] == results[1]
    (tmp_path / "out").write_bytes(b"\xef\xbb\xbf" + results[0])  # which no batch writes
    assert run(stories, "--batch", tmp_path / "in", "-o", tmp_path / "out").returncode == 1
    texts = []
    for text in ("One day", "\ufeffOne day"):
        (tmp_path / "text").write_text(text, encoding="utf-8")
        texts.append(run(stories, "-f", tmp_path / "text", "-s", 1, "-n", 5).stdout)
        texts.append(run(stories, "-p", "-", "-s", 1, "-n", 5, input=text.encode()).stdout)
    assert len(set(texts)) == 1 and texts[0].startswith(b"One day")


def test_one_writer_at_a_time(run, reference, tmp_path):
    model, requests, want = reference
    out = tmp_path / "out"
    process = start(model, "--batch", requests, "-o", out, "-t", 1, stderr=subprocess.DEVNULL)
    wait_for_lines(out, process, 1)
    process.send_signal(signal.SIGSTOP)
    done = run(model, "--batch", requests, "-o", out)
    process.send_signal(signal.SIGCONT)
    assert done.returncode == 1 and "another batch is writing it" in done.stderr
    process.wait()
    assert out.read_bytes() == want


def test_closed_stdout_is_no_error(reference, tmp_path):
    model = reference[0]
    requests = [{"id": i, "tokens": [i], "max_tokens": 150} for i in range(200)]  # more than a pipe
    (tmp_path / "in").write_bytes(lines_of(requests))
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([program, model, "--batch", tmp_path / "in"], **pipes)
    assert process.stdout.readline().startswith(b'{"id": 0, ')
    process.stdout.close()
    seen = process.stderr.read()
    assert process.wait(60) == 0 and b"requests" in seen and b"100%" not in seen
    process.stderr.close()


def test_progress_at_a_terminal(reference, tmp_path):
    model, requests, _ = reference
    parent, child = pty.openpty()
    process = start(model, "--batch", requests, "-o", tmp_path / "out", stderr=child)
    os.close(child)
    seen = b""
    try:
        while piece := os.read(parent, 4096):
            seen += piece
    except OSError:  # its end is closed
        pass
    os.close(parent)
    assert process.wait() == 1
    assert b"[####" in seen and b" of 60 requests, " in seen and b"tok/s" in seen
    last = seen.rstrip().splitlines()[-1]
    assert last.startswith(b"60 requests, 1 of them with an error; prompts ")
