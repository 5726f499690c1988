"""--chat and --messages: each answer is that of a fresh start with the conversation so far."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import chats
import checkpoints
import guess_layers
import pytest
import talkers
from conftest import ROOT, in_part
from sessions import Session

import export

GOLDEN = ROOT / "tests" / "golden"
# A plain decoder, windows, latent attention, short convolution, the delta rule, Mamba-2 beside
# attention, a rope that depends on the text's length, experts.
FAMILIES = [
    "llama",
    "mistral",
    "gemma3",
    "deepseek_v2",
    "lfm3",
    "qwen3_next",
    "falcon_h1-norm",
    "phi3-longer",
    "granitemoe",
]
TEMPLATES = {"plain": talkers.PLAIN, "thinking": talkers.THINKING}
QUESTIONS = [
    "what is it?",
    "a2 and b2",
    "go on. go on. go on. go on.",
    "why? why? why? why? why?",
    "the end, then",
]


@pytest.fixture(scope="session")
def talker(tmp_path_factory):
    """A function from a golden family and a template to a checkpoint, made once."""
    folder = tmp_path_factory.mktemp("talkers")

    def make(name: str, template: str = "plain", context: int = 1024) -> Path:
        plain = folder / f"{name}.bin"
        if not plain.exists():
            assert export.main([str(GOLDEN / name), str(plain), "--dtype", "q8"]) == 0
        path = folder / f"{name}-{template}-{context}.bin"
        if not path.exists():
            talkers.make(plain, path, TEMPLATES[template], context)
        return path

    return make


@pytest.fixture(scope="session")
def endless(tmp_path_factory, stories) -> Path:
    """One whose answers at temperature 0 take minutes."""
    path = tmp_path_factory.mktemp("endless") / "endless.bin"
    model = checkpoints.random_model(tokenizer=stories, context=2_000_000, n_layers=8, d_ff=2000)
    path.write_bytes(talkers.with_template(model, talkers.PLAIN))
    return path


def chat(run, model: Path, lines: list[str], *options: object) -> subprocess.CompletedProcess:
    typed = "".join(line + "\n" for line in lines).encode()
    env = guess_layers.STOPPED if "-md" in options else {}
    done = run(model, "--chat", *options, input=typed, env=env)
    assert done.returncode == 0, done.stderr
    return done


def saved(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def write(path: Path, *contents: str) -> Path:
    """A conversation that alternates, beginning with the user."""
    roles = ["user", "assistant"] * len(contents)
    path.write_text(json.dumps([{"role": r, "content": c} for r, c in zip(roles, contents)]))
    return path


def closing(stderr: str) -> tuple[int, int, str]:
    """Prompt tokens that ran, those of earlier turns, why the last answer ended."""
    match = re.search(
        r"^prompt (\d+) tokens, [\d.]+ tok/s(?:, (\d+) from earlier turns)?; .*"
        r"stopped: (.*)$",
        stderr,
        re.M,
    )
    assert match, stderr
    return int(match[1]), int(match[2] or 0), match[3]


# ---- the same answers as from a fresh start ------------------------------------------------------


@in_part(3)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_those_of_a_fresh_start(run, talker, tmp_path, name, template):
    """Every turn's answer, greedy and sampled, with guesses and without, byte for byte; and what is
    in the cache does not run again."""
    model = talker(name, template)
    for sampling in (["--temp", 0], ["-s", 5, "--temp", 2, "--repeat-penalty", 1.3]):
        options = ["-n", 40, *sampling]
        done = chat(run, model, [*QUESTIONS, f"/save {tmp_path / 'all'}"], *options)
        messages = saved(tmp_path / "all")
        answers = [m["content"] for m in messages if m["role"] == "assistant"]
        answer_to = {m["content"]: a for m, a in zip(messages[::2], answers)}
        # A question that got nothing but the end of the text is not kept.
        assert done.stdout.decode() == "".join(answer_to.get(q, "") + "\n" for q in QUESTIONS)
        assert len(answers) + done.stderr.count("there is no answer") == len(QUESTIONS)
        tokens = 0
        for i, answer in enumerate(answers):
            (tmp_path / "part").write_text(json.dumps(messages[: 2 * i + 1]))
            fresh = run(model, "--messages", tmp_path / "part", *options)
            assert fresh.returncode == 0 and fresh.stdout.decode() == answer, fresh.stderr
            tokens += len(run(model, "--messages", tmp_path / "part", "--tokenize").stdout.split())
        ran, reused, _ = closing(done.stderr)
        assert reused > tokens / 4 and (ran + reused == tokens or len(answers) < len(QUESTIONS))
        for guesses in (["--lookup", 5], ["-md", model]):
            assert chat(run, model, QUESTIONS, *options, *guesses).stdout == done.stdout


def test_thoughts_leave_the_past(run, talker, tmp_path):
    """The test above has met answers that are written otherwise once they are past."""
    found = 0
    for name in FAMILIES:
        options = ["-n", 40, "-s", 5, "--temp", 2, "--repeat-penalty", 1.3]
        chat(run, talker(name, "thinking"), [*QUESTIONS, f"/save {tmp_path / 'all'}"], *options)
        found += sum("</think>" in m["content"] for m in saved(tmp_path / "all")[:-1])
    assert found > 3


@pytest.mark.parametrize("name", FAMILIES)
def test_reset(run, talker, name):
    """Begins anew, also where the cache cannot go back; the system message stays."""
    model, options = talker(name), ["-n", 20, "-s", 3, "-sys", "be kind"]
    whole = chat(run, model, QUESTIONS, *options)
    again = chat(run, model, [*QUESTIONS, "/reset", *QUESTIONS], *options)
    assert again.stdout == 2 * whole.stdout


def test_going_on_from_a_file(run, talker, tmp_path):
    """--chat --messages answers if the user spoke last, and waits if the model did."""
    model, file, options = talker("llama"), tmp_path / "saved", ["-n", 12, "-s", 9]
    done = chat(run, model, [*QUESTIONS[:2], f"/save {file}", QUESTIONS[2]], *options)
    more = chat(run, model, QUESTIONS[2:3], *options, "--messages", file)
    assert done.stdout.endswith(more.stdout) and len(more.stdout) > 1
    messages = saved(file)
    file.write_text(json.dumps(messages[:-1]))
    more = chat(run, model, QUESTIONS[2:3], *options, "--messages", file)
    assert done.stdout.endswith(more.stdout) and more.stdout.count(b"\n") >= 2
    assert more.stdout.startswith(messages[-1]["content"].encode() + b"\n")


def test_line_ends_and_marks_of_windows(run, talker, tmp_path):
    """A pipe's \\r and a byte order mark are in no message, command or file name."""
    model, out = talker("llama"), [tmp_path / "a", tmp_path / "b"]
    options = ["-s", 4, "-n", 9]
    plain = chat(run, model, ["a \\", "b", "c", f"/save {out[0]}"], *options)
    typed = f"\ufeffa \\\r\nb\r\nc\r\n/save {out[1]}\r\n/bye\r\n".encode()
    done = run(model, "--chat", *options, input=typed)
    assert done.stdout == plain.stdout and out[1].read_bytes() == out[0].read_bytes()
    assert saved(out[0])[0]["content"] == "a \nb"
    messages = write(tmp_path / "m", "a b")
    want = run(model, "--messages", messages, *options).stdout
    messages.write_bytes(b"\xef\xbb\xbf" + messages.read_bytes().replace(b"\n", b"\r\n"))
    assert run(model, "--messages", messages, *options).stdout == want


def test_an_answer_may_be_long(run, endless, tmp_path):
    """Longer than a continuation; where it is cut off, that is said."""
    done = chat(run, endless, ["a"], "--temp", 0, "-c", 2048)
    assert "generated 1024, " in done.stderr and closing(done.stderr)[2] == "-n reached"
    assert done.stderr.startswith("run: the answer was cut off at -n 1024")
    done = run(endless, "--messages", write(tmp_path / "m", "a"), "--temp", 0, "-c", 2048)
    assert "generated 1024, " in done.stderr


def test_a_control_token_in_a_message(run, talker, tmp_path):
    """Becomes that token, as in transformers, and ends nothing."""
    model, typed = talker("llama"), "a<end>b</think>c"
    ids = run(model, "--messages", write(tmp_path / "m", typed), "--tokenize").stdout.split()
    names = talkers.tokens(131)
    want = [*"[U]a", "<end>", "b", "</think>", "c", "<end>", *"[A]"]
    assert [names[int(i)] for i in ids] == want
    done = chat(run, model, [typed, f"/save {tmp_path / 's'}"], "-n", 5, "--temp", 0)
    assert saved(tmp_path / "s")[0]["content"] == typed and closing(done.stderr)[0] == len(want)


# ---- what is typed -------------------------------------------------------------------------------


def test_lines(run, talker, tmp_path):
    """A backslash at the end goes on, an empty line is nothing, the last needs no newline."""
    file = tmp_path / "saved"
    typed = f"one \\\ntwo\\\n\\\nfour\n\n\nfive\n/save {file}\n".encode()
    done = run(talker("llama"), "--chat", "-n", 5, "-s", 1, input=typed)
    users = [m["content"] for m in saved(file) if m["role"] == "user"]
    assert users == ["one \ntwo\n\nfour", "five"] and done.returncode == 0
    for last in (b"five", b"five\n"):
        assert run(talker("llama"), "--chat", "-n", 5, "-s", 1, input=last).stdout.count(b"\n") == 1
    done = run(talker("llama"), "--chat", input=b"")
    assert done.returncode == 0 and done.stdout == b"" and "nothing was asked" in done.stderr


def test_commands(run, talker, tmp_path):
    model = talker("llama")
    done = chat(run, model, ["/exit", "never said"], "-s", 1)
    assert done.stdout == b"" and "nothing was asked" in done.stderr
    done = chat(run, model, ["/bye", "never said"], "-s", 1)
    assert done.stdout == b"" and "nothing was asked" in done.stderr
    done = chat(run, model, ["/help", "/what", "/save", "/bye now", f"/save {tmp_path / 'x'}"])
    for name in ["help", "undo", "reset", "save", "system", "seed", "temp", "bye"]:
        assert f"run: /{name} " in done.stderr
    assert 'there is no "/what": /help lists' in done.stderr and done.stdout == b""
    assert "/save wants FILE" in done.stderr and "/bye wants nothing after it" in done.stderr
    assert "nothing has been said yet" in done.stderr and not (tmp_path / "x").exists()
    typed = f"a\n/save {tmp_path}/no/x\nb\n".encode()
    done = run(model, "--chat", "-s", 1, "-n", 4, input=typed)
    assert done.returncode == 1  # the talk goes on, and its end says that something is missing
    assert f"cannot write {tmp_path}/no/x" in done.stderr and done.stdout.count(b"\n") == 2


def test_undo(run, talker, tmp_path):
    """The question is as if it had never been asked, also where the cache cannot go back."""
    for name in ("llama", "lfm3"):
        model, options = talker(name), ["-n", 12, "-s", 3, "--temp", 1]
        plain = chat(run, model, ["a", "b", f"/save {tmp_path / 'x'}"], *options)
        undone = ["/undo", "a", "no", "/undo", "b", f"/save {tmp_path / 'y'}"]
        done = chat(run, model, undone, *options)
        assert saved(tmp_path / "x") == saved(tmp_path / "y") and len(saved(tmp_path / "x")) == 4
        assert done.stdout.splitlines()[-1:] == plain.stdout.splitlines()[-1:]
        assert "nothing has been asked yet" in done.stderr
        system = chat(run, model, ["/undo"], "-sys", "be kind")
        assert "nothing has been asked yet" in system.stderr


def test_system_seed_and_temperature(run, talker, tmp_path):
    """Commands do what the options do, from the next answer on."""
    model, file = talker("llama"), tmp_path / "saved"
    want = chat(run, model, ["a", "b"], "-sys", "be kind", "-s", 7, "--temp", 2, "-n", 20)
    lines = ["/system be brief", "/system be kind", "/seed 7", "/temp 2", "a", "b"]
    done = chat(run, model, [*lines, f"/save {file}"], "-s", 1, "--temp", 1, "-n", 20)
    assert done.stdout == want.stdout and len(done.stdout) > 10
    assert saved(file)[0] == {"role": "system", "content": "be kind"}
    chat(run, model, ["/system be kind", "a", "/system", f"/save {file}"], "-n", 3)
    assert [m["role"] for m in saved(file)] == ["user", "assistant"]
    done = chat(run, model, ["/seed -1", "/seed 1x", "/temp x", "/temp 1001", "/temp nan"])
    assert done.stderr.count("/seed wants a whole number") == 2
    assert done.stderr.count("/temp wants a number from 0 to 1000") == 3
    done = chat(run, talker("llama", "thinking"), ["/system x"])
    assert "the chat template has no place for a system message" in done.stderr


def test_a_saved_file_keeps_its_place(run, talker, tmp_path):
    """What stands there is replaced where links lead, and its permissions stay."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("target")
    chat(run, talker("llama"), ["a", f"/save {link}"], "-s", 1, "-n", 4)
    assert link.is_symlink() and saved(target)[0]["content"] == "a"
    assert target.stat().st_mode & 0o777 == 0o640 and len(list(tmp_path.iterdir())) == 2


def test_bytes_that_are_no_text(run, stories, tmp_path):
    """What is saved can be read again, whatever was typed."""
    model = tmp_path / "m.bin"
    model.write_bytes(talkers.with_template(stories.read_bytes(), talkers.PLAIN))
    file = tmp_path / "saved"
    typed = b'a \xff \x00 "\\ \xc3\xa9\n/save ' + str(file).encode() + b"\n"
    first = run(model, "--chat", "-n", 8, "--temp", 0, input=typed)
    assert first.returncode == 0 and saved(file)[0]["content"] == 'a \ufffd \0 "\\ \xe9'
    file.write_text(json.dumps(saved(file)[:1]))
    fresh = run(model, "--messages", file, "-n", 8, "--temp", 0)
    assert fresh.stdout + b"\n" == first.stdout


# ---- what does not fit ---------------------------------------------------------------------------


def test_the_context_is_full(run, endless):
    """An answer ends there, and the next question is answered all the same."""
    done = chat(run, endless, ["a b c", "and then?", "x"], "-c", 40, "--temp", 0)
    said = done.stderr.splitlines()
    assert said[0].startswith(
        "run: the context is full, which ended the answer: the oldest turns are dropped next; "
        "/save FILE keeps them"
    )
    assert said[1] == "run: the context is full: the oldest turn is dropped"
    assert [line[:40] for line in said[2:4]] == [line[:40] for line in said[:2]]
    assert done.stdout.count(b"\n") >= 3 and closing(done.stderr)[2] == "context full"


@pytest.mark.parametrize("name", FAMILIES)
def test_oldest_turns_are_dropped(run, talker, tmp_path, name):
    """Then each answer is that of a conversation that begins with the turns that remain; the
    system message stays, and saving is suggested before."""
    model, file = talker(name), tmp_path / "saved"
    options = ["-c", 150, "-n", 20, "-s", 5, "--temp", 1.5, "-sys", "be kind"]
    questions = [f"question {i}, and more of it" for i in range(9)]
    lines = [line for i, q in enumerate(questions) for line in (q, f"/save {file}{i}")]
    done = chat(run, model, lines, *options)
    past, lengths = done.stdout.decode(), []
    for i, question in enumerate(questions):
        messages = saved(Path(f"{file}{i}"))
        lengths.append(len(messages))
        assert messages[0] == {"role": "system", "content": "be kind"}
        assert [m["role"] for m in messages[1:]] == ["user", "assistant"] * (len(messages) // 2)
        if messages[-2]["content"] != question:
            continue  # there was no answer
        (tmp_path / "part").write_text(json.dumps(messages[:-1]))
        fresh = run(model, "--messages", tmp_path / "part", *options[:-2])
        assert fresh.stdout.decode() == messages[-1]["content"] and fresh.stdout.decode() in past
    assert max(lengths) > 3 and lengths != sorted(lengths)
    events = re.findall(r"(nearly full|turns? (?:is|are) dropped)\b(?! next)", done.stderr)
    assert [event[:6] == "nearly" for event in events[:4]] == [True, False] * 2, events


def test_a_message_that_does_not_fit(run, talker):
    """It is forgotten, the conversation is not."""
    model, options = talker("llama"), ["-c", 80, "-n", 10, "--temp", 0]
    done = chat(run, model, ["a", "b" * 100, "c"], *options)
    assert re.search(r"makes a prompt of \d+ tokens, and the context has room for 80", done.stderr)
    assert done.stdout == chat(run, model, ["a", "c"], *options).stdout


def test_no_answer(run, talker, tmp_path):
    """It is not kept, for many templates refuse an empty message."""
    done = chat(run, talker("llama"), ["a", f"/save {tmp_path / 'x'}"], "-n", 0)
    assert done.stdout == b"\n" and "there is no answer, so the message is" in done.stderr
    assert "nothing has been said yet" in done.stderr


def test_a_token_that_the_model_does_not_have(run, stories, tmp_path):
    model = tmp_path / "small.bin"
    small = checkpoints.random_model(tokenizer=stories, vocab=700)
    model.write_bytes(talkers.with_template(small, talkers.PLAIN))
    done = chat(run, model, ["Once upon a time, a hedgehog", "a"], "-n", 3, "--temp", 0)
    assert re.search(r"run: the model has no token \d+, which", done.stderr)
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        ("thinking", ["-sys", "x"], "-sys: the template of .* has no place for a system message"),
        ("plain", ["--no-think"], "--no-think: the template of .* has no switch for thinking"),
        ("plain", ["-sys", "x", "--messages", "FILE"], "-sys and --messages: give one of them"),
        ("plain", ["--ids"], "--ids means nothing for --chat"),
        ("plain", ["-p", "x", "--messages", "FILE"], "-p, -f, --tokens and --messages: give one"),
    ],
)
def test_wrong_use(run, talker, tmp_path, template, options, message):
    file = write(tmp_path / "m", "a")
    options = [file if option == "FILE" else option for option in options]
    done = run(talker("llama", template), "--chat", *options)
    assert done.returncode == 2 and re.search(message, done.stderr), done.stderr


def test_one_turn(run, talker, tmp_path):
    """--chat -p asks one question, prints the answer and ends, whatever stdin has."""
    model, options = talker("llama"), ["-s", 3, "-n", 12]
    want = chat(run, model, ["a question"], *options, "-sys", "be kind").stdout
    for text, typed in (("a question", b"never said\n"), ("-", b"a question")):
        done = run(model, "--chat", "-p", text, *options, "-sys", "be kind", input=typed)
        assert done.returncode == 0 and done.stdout == want, done.stderr
    done = run(model, "--chat", "-p", "b" * 100, "-c", 40)
    assert done.returncode == 1 and done.stdout == b"" and "room for 40" in done.stderr


def test_a_prompt_for_a_model_that_chats(run, talker, tmp_path):
    """-p goes on with the text as before, and says how to ask."""
    model = talker("llama")
    done = run(model, "-p", "a question", "-n", 2)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"run: {model} was made to chat, and this")
    assert "--chat -p TEXT asks one question" in lines[0]
    assert len(run(model, "--messages", write(tmp_path / "m", "a")).stderr.splitlines()) == 1
    assert len(run(model, "-n", 2).stderr.splitlines()) == 1


def test_the_defaults_of_a_conversation(run, talker, tmp_path):
    """What is given wins, each option by itself."""
    model, file = talker("llama"), write(tmp_path / "m", "a b c")
    names = {"-n": 1024, "--temp": 0.5, "--top-p": 0.9, "--repeat-penalty": 1.1}
    said = [x for pair in names.items() for x in pair]
    options = ["-s", 4, "-c", 200]
    plain = run(model, "--messages", file, *options).stdout
    assert plain == run(model, "--messages", file, *options, *said).stdout
    assert chat(run, model, ["a b c"], *options).stdout == plain + b"\n"
    for name, value in (("-n", 2), ("--temp", 3), ("--repeat-penalty", 5), ("--top-p", 0.01)):
        whole = [x for pair in {**names, name: value}.items() for x in pair]
        given = run(model, "--messages", file, *options, name, value).stdout
        assert given == run(model, "--messages", file, *options, *whole).stdout != plain


def test_models_that_cannot_chat(run, stories, bare):
    done = run(stories, "--chat")
    assert done.returncode == 1 and "the checkpoint has no chat template" in done.stderr
    done = run(bare, "--chat")
    assert done.returncode == 2 and "has no tokenizer, so it cannot chat" in done.stderr


def test_what_the_template_refuses(run, talker, tmp_path):
    file = tmp_path / "m"
    file.write_text('[{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]')
    done = run(talker("llama", "thinking"), "--messages", file)
    assert done.returncode == 1 and "with a system message: it fails with: no sys" in done.stderr
    done = chat(run, talker("llama", "thinking"), [], "--messages", file)
    assert "no system messages; say it otherwise, or /reset" in done.stderr
    file.write_text('[{"role": "us\\u0000er", "content": "y"}]')
    done = run(talker("llama"), "--messages", file)
    assert done.returncode == 1 and 'message 1: role is "us' in done.stderr


def test_no_think(run, talker, tmp_path):
    model = talker("llama", "thinking")
    file = write(tmp_path / "m", "a")
    ids = [
        run(model, "--messages", file, "--tokenize", *switch).stdout.split()
        for switch in ([], ["--no-think"])
    ]
    assert ids[0] == ids[1] + [b"1"]


def test_info(run, talker, stories):
    cases = [
        (talker("llama"), "system yes, thinking no, date no"),
        (stories, None),
        (
            talker("llama", "thinking"),
            "system no, thinking yes (off: enable_thinking=false), date no",
        ),
    ]
    for model, said in cases:
        assert f"\nchat         {said or 'none'}\n" in run(model, "--info").stdout.decode()
        assert json.loads(run(model, "--info", "--json").stdout)["chat"] == said


def test_info_of_a_refused_template(run, tiny, tmp_path):
    model = tmp_path / "m.bin"
    metadata = {"chat.template": "x", "chat.refused": "it leaves out a message"}
    model.write_bytes(chats.with_chat(tiny.read_bytes(), metadata))
    said = "the chat template could not be compiled: it leaves out a message"
    assert f"\nchat         {said}\n" in run(model, "--info").stdout.decode()


# ---- Ctrl-C ---------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer(endless, tmp_path):
    """And not the program: what was said is kept, and the next message is answered."""
    session = Session(endless, "--temp", 0)
    for _ in range(2):
        session.type("Once upon a time\n")
        session.read(".{20}")
        session.interrupt()
        session.read("\n$")
    session.type(f"/save {tmp_path / 'x'}\n/exit\n")
    status, stderr = session.end()
    assert status == 0 and closing(stderr)[2] == "interrupted" and closing(stderr)[1] > 10
    assert [m["role"] for m in saved(tmp_path / "x")] == ["user", "assistant"] * 2
    assert all(m["content"] for m in saved(tmp_path / "x"))


def test_ctrl_c_in_the_first_answer_of_a_file(endless, tmp_path):
    file = write(tmp_path / "m", "a")
    session = Session(endless, "--temp", 0, "--messages", file)
    session.read(".{20}")
    session.interrupt()
    session.type("/exit\n")
    assert session.end()[0] == 0


def test_a_model_without_a_template_says_where_one_is(run, stories):
    for options in (["--chat"], ["--messages", ROOT / "examples" / "messages.json"]):
        done = run(stories, *options)
        assert done.returncode == 1 and done.stderr.endswith("; make chat fetches one\n")
