"""Bad use of the command line, what it says of it, and --help."""

from __future__ import annotations

import os
import re
import resource
import subprocess

import pytest

import checkpoints
from conftest import ROOT, on_linux

USAGE = [
    (["MODEL", "--no-such-flag"], 'there is no option "--no-such-flag"'),
    (["MODEL", "-x"], 'there is no option "-x"'),
    (["MODEL", "--heads", "x.html"], "--heads needs a text to look at"),
    (["-m", "MODEL", "OTHER"], 'and "OTHER"; a prompt goes after -p, in quotes'),
    (["MODEL", "-p"], "-p wants a value"),
    (["MODEL", "--temp"], "--temp wants a value"),
    (["MODEL", "-t", "0.8"], "use --temp"),
    (["MODEL", "-t", "0"], "-t wants a number from 1 to 1024, or several"),
    (["MODEL", "-t", "1,2"], "-t takes one number; only --bench takes several"),
    (["MODEL", "-n", "x"], '-n wants a whole number, found "x"'),
    (["MODEL", "-n", ""], "-n wants a whole number"),
    (["MODEL", "-n", "5x"], "-n wants a whole number"),
    (["MODEL", "-n", "1.5"], "-n wants a whole number"),
    (["MODEL", "-n", "-3"], "-n wants a number from 0"),
    (["MODEL", "-n", "99999999999999999999"], "-n wants a number from 0"),
    (["MODEL", "-n", "nan"], "-n wants a whole number"),
    (["MODEL", "-c", "0"], "-c wants a number from 1"),
    (["MODEL", "-b", "0"], "-b wants a number from 1"),
    (["MODEL", "-s", "-1"], "-s wants a whole number"),
    (["MODEL", "-s", "18446744073709551616"], "-s wants a whole number"),
    (["MODEL", "--temp", "hot"], "--temp wants a number"),
    (["MODEL", "--temp", "-1"], "--temp wants a number from 0"),
    (["MODEL", "--temp", "inf"], "--temp wants a number from 0"),
    (["MODEL", "--top-p", "0"], "--top-p wants a number"),
    (["MODEL", "--top-p", "1.5"], "--top-p wants a number"),
    (["MODEL", "--min-p", "2"], "--min-p wants a number"),
    (["MODEL", "--top-k", "-1"], "--top-k wants a number"),
    (["MODEL", "--repeat-penalty", "0"], "--repeat-penalty wants a number"),
    (["MODEL", "-ctk", "bf16"], "-ctk wants f32, f16, q8 or q4"),
    (["MODEL", "-ctv", ""], "-ctv wants f32, f16, q8 or q4"),
    (["MODEL", "--tokens", "1 x 3"], '--tokens wants ids such as "1 2 3"'),
    (["MODEL", "--tokens", "1 2.5"], "--tokens wants ids"),
    (["MODEL", "--tokens", "1+2"], "--tokens wants ids"),
    (["MODEL", "--tokens", "1 300"], "300 is no token of this model; its ids are 0 to 299"),
    (["MODEL", "--tokens", "-1"], "-1 is no token of this model"),
    (["MODEL", "--tokens", "99999999999999999999"], "is no token of this model"),
    (["MODEL", "--tokens", " "], "--tokens is empty"),
    (["MODEL", "--tokens", "1", "-p", "text"], "give one of them"),
    (["MODEL", "-f", "a", "-p", "b"], "give one of them"),
    (
        ["MODEL", "--tokens", "1 2 3 4 5", "-c", "4"],
        "the prompt has 5 tokens and the context has room for 4",
    ),
    (["MODEL", "--kv", "--info"], "one thing at a time"),
    (["MODEL", "--check", "--ppl", "x"], "one thing at a time"),
    (["MODEL", "--check", "-p", "x"], "-p means nothing for --check"),
    (["MODEL", "--kv", "-n", "5"], "-n means nothing for --kv"),
    (
        ["MODEL", "--json"],
        "--json is for --probs, --kv, --info, --bench, --classify, --patch, --attribute and --parts",
    ),
    (["MODEL", "--bench", "-p", "x"], "-p means nothing for --bench"),
    (["MODEL", "--bench", "-n", "5"], "-n means nothing for --bench"),
    (["MODEL", "--bench", "--temp", "0"], "--temp means nothing for --bench"),
    (["MODEL", "--bench", "--tokens", "1"], "--tokens means nothing for --bench"),
    (["MODEL", "--bench", "--kv"], "one thing at a time"),
    (["MODEL", "-np", "4"], "-np means nothing for generation"),
    (["MODEL", "--kv", "-np", "4"], "-np means nothing for --kv"),
    (["MODEL", "--bench", "-np"], "-np wants a value: -np LIST"),
    *[
        (
            ["MODEL", "--bench", "-np", value],
            f'-np wants a number from 1 to 256, or several (16 at most) such as 1,4,8, found "{value}"',
        )
        for value in (
            "",
            "0",
            "257",
            "x",
            "1,",
            ",1",
            "1,,2",
            "1;2",
            "1 2",
            "-1",
            "1,2x",
            "99999999999999999999",
            "1" + ",1" * 16,
        )
    ],
    (["MODEL", "--info", "-b", "5"], "-b means nothing for --info"),
    (["MODEL", "-p", "x", "--draft", "5"], "--draft is for -md DRAFT"),
    (["MODEL", "-p", "x", "--lookup", "5", "--draft", "5"], "--draft is for -md DRAFT"),
    (["MODEL", "--bench", "-c", "1073741825"], "-c wants a number"),
    (["MODEL", "MODEL", "--bench"], "takes several models"),
    (["MODEL", "--tokenize", "--tokens", "1"], "--tokens means nothing for --tokenize"),
    (["MODEL", "MODEL"], "takes several models"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), USAGE, ids=[" ".join(a) or "nothing" for a, _ in USAGE]
)
def test_wrong_usage(run, bare, arguments, message):
    done = run(*[str(bare) if a == "MODEL" else a for a in arguments])
    assert done.returncode == 2 and message in done.stderr and "--help" in done.stderr
    assert done.stdout == b"" and len(done.stderr.splitlines()) == 1


def test_long_prompt_says_both_numbers(run, stories):
    done = run(stories, "-p", "word " * 200, "-c", 100)
    assert done.returncode == 2
    match = re.search(
        r"the prompt has (\d+) tokens and the context has room for 100; shorten it or raise -c",
        done.stderr,
    )
    assert match and int(match[1]) > 100


def test_a_context_beyond_the_models_warns_and_runs(bare, tmp_path, run):
    """Positions go on, and the tokens before have the bits that they have without."""
    ids = [1 + i * i % 250 for i in range(600)]
    rows = []
    for n, options in ((512, ()), (600, ("-c", 600)), (600, ("-c", 700, "-b", 7))):
        tokens = " ".join(map(str, ids[:n]))
        done = run(bare, "--tokens", tokens, "--logits", tmp_path / "logits", *options)
        assert done.returncode == 0, done.stderr
        assert ("was made for 512 positions; what it says of" in done.stderr) == bool(options)
        rows.append((tmp_path / "logits").read_bytes())
    assert rows[1].startswith(rows[0]) and rows[1] == rows[2]
    done = run(bare, "--tokens", " ".join(map(str, ids[:500])), "-n", 60, "-c", 600, "--temp", 0)
    assert done.returncode == 0 and len(done.stdout.split()) == 560


def test_learned_positions_end(exported, run):
    done = run(exported("gpt2"), "--tokens", "5", "-c", 193)
    assert done.returncode == 2 and "has positions for 192 tokens" in done.stderr


def test_unreadable_prompt(run, stories, tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        for mode in (["-f", path], ["--ppl", path]):
            done = run(stories, *mode)
            assert done.returncode == 1 and str(path) in done.stderr and done.stdout == b""


def test_unknown_instruction_set(run, stories):
    done = run(stories, "-p", "Once", env={"HEADS_ISA": "abacus"})
    assert done.returncode == 1 and "HEADS_ISA" in done.stderr and done.stdout == b""


def test_empty_instruction_set_is_none(run, bare):
    want = run(bare, "--info", env={"HEADS_ISA": ""})
    assert want.returncode == 0 and "HEADS_ISA" not in want.stdout.decode()
    assert run(bare, "--tokens", "1", "-n", 1, env={"HEADS_ISA": ""}).returncode == 0
    text = run(bare, "--info", env={"HEADS_ISA": "scalar"}).stdout.decode()
    assert "kernels      scalar (HEADS_ISA asks for it)" in text


def test_a_pipe_is_no_model(run, bare, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/stdin"):
        done = run(path, "--info", input=b"heads.c")
        assert done.returncode == 1 and f"{path} is no regular file" in done.stderr


def limited(*arguments: object, memory: int) -> subprocess.CompletedProcess:
    """Runs the program with so many bytes of address space."""
    program = os.environ.get("HEADS_RUN", str(ROOT / "run"))
    return subprocess.run(
        [program, *map(str, arguments)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        capture_output=True,
        text=True,
        timeout=60,
    )


@on_linux
@pytest.mark.skipif("asan" in os.environ.get("HEADS_RUN", ""), reason="ASan takes terabytes")
def test_too_little_memory_says_what_to_ask_less_of(tmp_path):
    model = tmp_path / "model.bin"
    model.write_bytes(checkpoints.random_model(context=1 << 24, n_layers=1))
    done = limited(model, "--tokens", "1", "-t", 1, "-b", 1, memory=1 << 31)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"run: .*positions; choose fewer with -c\n", done.stderr), done.stderr
    done = limited(model, "--tokens", "1", "-t", 1, "-c", 64, "-b", 65536, memory=1 << 26)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(
        r"run: .*activations .*; choose fewer with -b, or a shorter context with -c\n", done.stderr
    ), done.stderr


def test_help_names_every_option(run):
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    options = "-p -f -n -c -t -b -s -np -ctk -ctv --temp --top-k --top-p --min-p --repeat-penalty"
    modes = "--kv --info --bench --ppl --check --tokenize --tokens --logits --json"
    for option in options.split() + modes.split():
        assert re.search(rf"^  {option}[ ,]", done.stdout.decode(), re.MULTILINE), option
