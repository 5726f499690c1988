"""What someone meets at a terminal: keys, pastes, history, words that wrap, a mode that comes
back."""

from __future__ import annotations

import json
import os
import re
import signal
import termios
import unicodedata
from pathlib import Path

import checkpoints
import pytest
import talkers
from conftest import ROOT
from sessions import PROGRAM, Screen, Terminal

UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"
WORD_LEFT, WORD_RIGHT, HOME, END, DELETE = "\x1b[1;5D", "\x1bf", "\x1b[H", "\x1b[4~", "\x1b[3~"
PROMPT = r"> (\x1b\[m)?$"  # it waits


def control(letter: str) -> str:
    return chr(ord(letter) - 64)


def pasted(text: str) -> str:
    return "\x1b[200~" + text + "\x1b[201~"


@pytest.fixture(scope="session")
def model(tmp_path_factory, stories) -> Path:
    """One with room for long messages, whose answers mean nothing."""
    path = tmp_path_factory.mktemp("terminal") / "tiny.bin"
    tiny = checkpoints.random_model(tokenizer=stories, context=30_000)
    path.write_bytes(talkers.with_template(tiny, talkers.PLAIN))
    return path


@pytest.fixture
def talk(model):
    """A function that begins a conversation at a terminal and waits for its prompt."""

    def begin(*options: object, **terminal) -> Terminal:
        options = options or ("-n", 1, "--temp", 0)
        terminal = Terminal(PROGRAM, model, "--chat", *options, **terminal)
        terminal.read(PROMPT)
        return terminal

    return begin


def leave(terminal: Terminal) -> str:
    terminal.type("/bye\r")
    status, rest = terminal.end()
    assert status == 0, rest
    return rest


def said(terminal: Terminal, file: Path) -> list[str]:
    """The messages that were typed."""
    terminal.type(f"/save {file}\r")
    terminal.read("saved; --messages")
    leave(terminal)
    return [m["content"] for m in json.loads(file.read_text()) if m["role"] == "user"]


# ---- keys ----------------------------------------------------------------------------------------

LONG = "many words, " * 500  # 6,000 bytes: more than a line of the system has
EDITS = [
    ("abc" + LEFT + "X" + RIGHT + "Y", "abXcY"),
    ("abc" + HOME + "1" + END + "2" + "\x1b[1~3\x1bOF4", "31abc24"),
    ("bc" + control("A") + "a" + control("E") + "d", "abcd"),
    ("one two  three" + WORD_LEFT + "X" + "\x1bb\x1bb" + "Y", "one Ytwo  Xthree"),
    ("one two" + HOME + WORD_RIGHT + "X" + "\x1b[1;3C" + "Y", "oneX twoY"),
    ("one two" + "\x1b[1;3D" + "\x1b[1;5C!", "one two!"),
    ("abcdef" + LEFT * 3 + control("K") + "X", "abcX"),
    ("abcdef" + LEFT * 3 + control("U") + "X", "Xdef"),
    ("one two  three  " + control("W") + "X", "one two  X"),
    ("one two" + "\x1b\x7f" + "X", "one X"),
    ("abc" + LEFT + control("L") + "X", "abXc"),
    ("abc\x7f\x08X", "aX"),
    ("abc" + HOME + DELETE + control("D") + "X", "Xc"),
    ("abc" + LEFT * 9 + "X" + RIGHT * 9 + "Y" + "\x1b[3~", "XabcY"),
    ("añ世e\u0301🦊z" + LEFT * 2 + "\x7f" + LEFT + "X", "añX世🦊z"),
    ("\u00e9" * 3 + HOME + RIGHT + DELETE, "éé"),
    ("a\tb\x00\x1f\x1b[15~\x1b[1;2P\x1bzc", "a\tbc"),
    (LONG + HOME + "x" + END + "y", "x" + LONG + "y"),
    ("one\\\rtwo \\ \\\r", "one\ntwo \\ \n"),
    ('"""\rone\\\r\rtwo"""', "one\\\n\ntwo"),
    ('"""one', None),
    (pasted("def f(x):\n\treturn x\\\n\n/reset\n"), "def f(x):\n\treturn x\\\n\n/reset"),
    (pasted("a\r\nb\rc\n\x1b[31md\x1b[m") + "e" + pasted("f"), "a\nb\nc\ndef"),
    ("xz" + LEFT + pasted("1\n2"), "x1\n2z"),
    (
        pasted("one\ntwo\nthree") + UP * 2 + "1" + DOWN + "2" + DOWN + END + "3",
        "one1\ntwo2\nthree3",
    ),
]


def test_keys(talk, tmp_path):
    """Each message as it was edited. A paste is one message; so is what stands between quotes."""
    terminal, want = talk(), []
    for typed, message in EDITS:
        if message is None:
            terminal.type(typed + "\r")
            terminal.read(r"\.\.\. (\x1b\[m)?$")
            terminal.type(control("C"))
        else:
            terminal.type(typed + "\r")
            want.append(message)
        terminal.read(PROMPT)
    assert said(terminal, tmp_path / "x") == want


def test_history(talk, tmp_path):
    terminal = talk()
    for typed in (
        "first\r",
        "second\r",
        "second\r",  # stands there once
        UP + UP + "!\r",  # first!
        "not sent" + UP + DOWN + "?\r",
        UP * 9 + DOWN + "\r",  # second
        control("P") + control("P") + control("N") + "2\r",
        pasted("three\nfour") + "\r",
    ):
        terminal.type(typed)
        terminal.read(PROMPT)
    want = ["first", "second", "second", "first!", "not sent?", "second", "second2", "three\nfour"]
    assert said(terminal, tmp_path / "x") == want


def test_history_across_sessions(talk, tmp_path):
    """A file of the user's own, which one flag leaves alone."""
    home, file = {"HOME": str(tmp_path)}, tmp_path / ".heads_history"
    for typed in ("first\r", pasted("two\nlines\\n") + "\r", "third\r"):
        terminal = talk(**home)
        terminal.type(typed)
        terminal.read(PROMPT)
        leave(terminal)
    assert file.stat().st_mode & 0o777 == 0o600
    lines = ["first", "/bye", r"two\nlines\\n", "/bye", "third", "/bye"]
    assert file.read_text().splitlines() == lines
    terminal = talk(**home)
    terminal.type(UP * 4 + "!\r")
    terminal.read(PROMPT)
    assert said(terminal, tmp_path / "x") == ["two\nlines\\n!"]
    before = file.read_bytes()
    terminal = talk("--no-history", **home)
    terminal.type(UP + "unwritten\r")
    terminal.read(PROMPT)
    assert said(terminal, tmp_path / "x") == ["unwritten"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.touch(0)])
def test_a_history_that_is_no_file(talk, tmp_path, make):
    make(tmp_path / ".heads_history")
    terminal = talk(HOME=str(tmp_path))
    terminal.type("hello\r")
    terminal.read(PROMPT)
    leave(terminal)


def test_search(talk, tmp_path):
    """Ctrl-R narrows with each key and goes on to older messages; what fits nothing is not taken."""
    terminal = talk()
    for typed in (
        "red fox\r",
        "brown añ fox\r",
        "hen\r",
        control("R") + "fox" + "\r",  # brown añ fox
        control("R") + "fox" + control("R") * 2 + control("E") + "!\r",  # red fox!
        control("R") + "aqñ" + "_\r",  # q and _ are in none: brown añ fox
        "typed" + control("R") + "red" + control("G") + "?\r",
        control("R") + "nothing like it" + control("C"),
    ):
        terminal.type(typed)
        terminal.read(PROMPT)
    want = ["red fox", "brown añ fox", "hen", "brown añ fox", "red fox!"]
    want += ["brown añ fox", "typed?"]
    assert said(terminal, tmp_path / "x") == want


def test_tab_completes_commands(talk, tmp_path):
    terminal = talk()
    terminal.type("hello\r")
    terminal.read(PROMPT)
    terminal.type("/s\t")
    assert "/save  /system  /seed" in terminal.read(r"/seed[^>]*> /s")
    terminal.type(f"a\t{tmp_path}/x\r")
    terminal.read("saved; --messages")
    terminal.type("/b\t\x7f\r")
    assert terminal.end()[0] == 0


def test_the_list_of_commands_on_a_narrow_terminal(talk):
    terminal = talk(columns=25)
    terminal.type("/\t")
    terminal.shows("\n/help  /undo  /reset\n/save  /system  /seed\n/temp  /bye  /exit\n> /")
    terminal.type("\x7f")
    leave(terminal)


def test_save_at_home(talk, tmp_path):
    terminal = talk(HOME=str(tmp_path))
    terminal.type("hello\r")
    terminal.read(PROMPT)
    terminal.type("/save ~/talk.json\r")
    terminal.read("saved; --messages")
    leave(terminal)
    assert (tmp_path / "talk.json").exists()


def test_ctrl_c_asks_before_a_conversation_is_lost(talk, tmp_path):
    terminal = talk()
    terminal.type("hello\r")
    terminal.read(PROMPT)
    terminal.type(control("C"))
    terminal.read("/save FILE[^>]*" + PROMPT)
    terminal.type(f"/save {tmp_path}/x\r")
    terminal.read("saved[^>]*" + PROMPT)
    terminal.type(control("C"))
    assert terminal.end()[0] == 130
    terminal = talk()
    terminal.type("hello\r")
    terminal.read(PROMPT)
    terminal.type(control("C"))
    terminal.read("/save FILE[^>]*" + PROMPT)
    terminal.type(control("C"))
    assert terminal.end()[0] == 130


def test_the_end_of_input(talk):
    """Ctrl-D leaves where nothing was typed."""
    terminal = talk()
    terminal.type("a" + control("D") + LEFT + control("D") + control("D"))
    status, rest = terminal.end()
    assert status == 0 and "nothing was asked" in rest


def test_ctrl_c_at_the_prompt(talk):
    """Takes back what was typed, and leaves where that is nothing."""
    terminal = talk()
    terminal.type("a line that goes on \\\r")
    terminal.read(r"\.\.\. (\x1b\[m)?$")
    # No read waits for a key: of 1,600 signals, one came between a poll that saw Ctrl-C's byte and
    # the read, which then waited for another.
    assert termios.tcgetattr(terminal.far)[6][termios.VMIN] == 0
    terminal.type(control("C"))
    terminal.read(PROMPT)
    terminal.type(control("C"))
    status, rest = terminal.end()
    assert status == 130 and "nothing was asked" in rest and "prompt 0" not in rest


def test_it_ends_where_the_line_is_gone_and_SIGHUP_ignored(model):
    command = f"trap '' HUP; exec {PROGRAM} {model} --chat"
    terminal = Terminal("sh", "-c", command)
    terminal.read(PROMPT)
    os.close(terminal.near)
    terminal.child.wait(10)
    os.close(terminal.far)


def test_typed_ahead(talk, tmp_path):
    """What is typed while an answer is written waits for its turn."""
    terminal = talk("-n", 40, "--temp", 0)
    terminal.type("one\rtwo\r")
    assert terminal.read(r"> two(.|\n)*\n(.|\n)*> (\x1b\[m)?$").count("two") < 4  # and no echo
    assert said(terminal, tmp_path / "x") == ["one", "two"]


# ---- the screen ----------------------------------------------------------------------------------


def test_a_line_longer_than_the_terminal(talk):
    terminal = talk(columns=20, rows=8, NO_COLOR="1")
    screen = terminal.screen
    terminal.type("0123456789" * 4)
    terminal.shows("> 012345678901234567\n89012345678901234567\n89")
    assert screen.column == 2
    terminal.type(control("A") + "ab")
    terminal.shows("> ab0123456789012345\n67890123456789012345\n6789")
    assert (screen.column, screen.lines[screen.row][:4]) == (4, list("> ab"))
    terminal.type(END + "\x7f" * 4)
    terminal.shows("> ab0123456789012345\n67890123456789012345")
    terminal.read(r"$")
    assert screen.column == 0  # of the row below the full one
    terminal.type("x" * 400)  # more rows than the terminal has: the last ones are shown
    terminal.shows("\n".join(["x" * 20] * 7))
    terminal.type(HOME)
    terminal.shows("> ab0123456789012345\n67890123456789012345" + ("\n" + "x" * 20) * 6)
    assert (screen.row, screen.column) == (0, 2)
    terminal.type(control("C"))
    terminal.read(PROMPT)
    leave(terminal)


def test_wide_characters_and_marks(talk):
    terminal = talk(columns=20, rows=8)
    screen = terminal.screen
    terminal.type("世界e\u0301" * 5)
    first = "> " + "世界e\u0301" * 3 + "世"
    terminal.shows(first + "\n" + "界e\u0301世界e\u0301")
    assert screen.column == 8
    terminal.type(LEFT * 2)
    terminal.type(control("K"))
    terminal.shows("\n界e\u0301世")
    assert screen.column == 5
    terminal.type(HOME + RIGHT + "x")
    terminal.shows("> 世x" + "界e\u0301" + "世界e\u0301" * 2 + "世\n界e\u0301世")
    assert screen.column == 5
    terminal.type(control("C"))
    leave(terminal)


def test_many_lines_and_a_new_size(talk):
    terminal = talk(columns=30, rows=10)
    terminal.type(pasted("one\n\ttwo\n" + "x" * 30))
    terminal.shows("> one\n...     two\n... " + "x" * 26 + "\nxxxx")
    terminal.type(control("L"))
    terminal.resize(10, 20)
    terminal.shows("... " + "x" * 16 + "\n" + "x" * 14)
    terminal.type(control("C"))
    leave(terminal)


@pytest.mark.parametrize("columns", [60, 39, 25, 17])
def test_a_new_size_in_the_middle_of_a_message(talk, columns):
    """What stood above it stays, nothing of it stands there twice, and the cursor is where it
    was."""
    terminal = talk(columns=40, rows=400)
    screen = terminal.screen

    def drawn(before: str, after: str, columns: int) -> tuple[str, tuple[int, int]]:
        alone = Screen(40, columns)
        alone.feed("> " + before.replace("\n", "\r\n... "))
        cursor = (alone.row, alone.column) if alone.column < columns else (alone.row + 1, 0)
        alone.feed(after.replace("\n", "\r\n... "))
        return "\n" + alone.text(), (cursor[0] + 1, cursor[1])

    for before, after in (
        ("the quick brown fox " * 4, "and then it goes home"),
        ("the quick brown fox " * 3 + "jumps over!", ""),  # in a row that breaks
        ("x" * 38 + "x" * 40, ""),  # full rows
        ("x" * 38 + "x" * 20, "x" * 20),
        ("a\n\nb\n" + "世界e\u0301" * 20 + "\nd", ""),
        ("x" * 90 + "\nb", "c\n" + "y" * 50),
    ):
        above = "".join(screen.text().split())
        terminal.resize(400, 40)
        terminal.type(pasted(before + after) + LEFT * len(after))
        terminal.shows(*drawn(before, after, 40))
        terminal.resize(400, columns)
        text, cursor = drawn(before, after, columns)
        terminal.shows(text, cursor)
        assert "".join(screen.text().split()) == above[:-1] + "".join(text.split())
        terminal.type(control("C"))
        terminal.shows("\n>")
    leave(terminal)


def test_words_wrap(run, stories, tmp_path):
    """No line of an answer or a story ends inside a word, and none is lost; so do closing lines."""
    options, model = ["-n", 150, "--temp", 0], tmp_path / "m.bin"
    model.write_bytes(talkers.with_template(stories.read_bytes(), talkers.PLAIN))
    for question in ("a", "世界 b"):
        (tmp_path / "m").write_text(json.dumps([{"role": "user", "content": question}]))
        plain = run(model, "--messages", tmp_path / "m", *options).stdout.decode()
        terminal = Terminal(PROGRAM, model, "--chat", *options, columns=30, rows=60)
        terminal.read(PROMPT)
        terminal.type(question + "\r")
        terminal.read(PROMPT)
        lines = terminal.screen.text().split("\n> " + question + "\n")[1].split("\n")
        words = " ".join(lines).split()
        assert words[: len(plain.split())] == plain.split() and words[-1] == ">"
        assert max(map(len, lines)) > 22
        rest = leave(terminal)
        assert (
            "prompt " in rest and " ".join(terminal.screen.text().split()).count("stopped: ") == 1
        )
    story = run(stories, *options).stdout.decode()
    terminal = Terminal(PROGRAM, stories, *options, columns=30, rows=60)
    assert terminal.end()[0] == 0
    text = terminal.screen.text()
    assert " ".join(text.partition("prompt")[0].split()) == " ".join(story.split())
    assert all(len(line) <= 30 for line in text.split("\n"))


def test_widths_are_those_of_unicode():
    """Of the characters of Unicode 3.2, which all versions of Python know, and of some emoji."""
    source = (ROOT / "cli" / "width.c").read_text()
    tables = re.findall(r"static const uint32_t (\w+)\[\]\[2\] = \{(.*?)\};", source, re.S)
    ranges = {
        name: {
            c
            for a, b in re.findall(r"\{0x(\w+), 0x(\w+)\}", rows)
            for c in range(int(a, 16), int(b, 16) + 1)
        }
        for name, rows in tables
    }
    marks = {c for c in range(0x300, 0x3000) if unicodedata.category(chr(c)) in ("Me", "Cf")}
    arabic = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x61C, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2}
    assert marks - arabic <= ranges["NOTHING"]  # those are drawn, and have a width
    for c in range(0x300, 0x110000):
        if unicodedata.ucd_3_2_0.category(chr(c)) in ("Cn", "Co", "Cs"):
            continue
        wide = unicodedata.east_asian_width(chr(c)) in "WF"
        assert (c in ranges["WIDE"]) == wide, hex(c)
    for c in "🦊😀🚀⌚":
        assert ord(c) in ranges["WIDE"]


# ---- colours and what is said --------------------------------------------------------------------


def test_a_terminal(talk, model):
    """A banner; what is typed is green, unless that is refused; no prefix before sentences."""
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        terminal = Terminal(PROGRAM, model, "--chat", "-n", 1, "--temp", 0, **env)
        first = terminal.read(PROMPT)
        assert re.search(r"tiny.bin: \d+ MiB, context [\d,]+ tokens\. /help lists", first)
        terminal.type("hello\r")
        said = first + terminal.read(PROMPT)
        assert ("\x1b[32m> hello\x1b[m" in said) == coloured
        assert bool(re.search(r"\x1b\[\d+m", said)) == coloured
        terminal.type("/what\r")
        assert 'there is no "/what"' in terminal.read(PROMPT)
        assert "run: " not in said + leave(terminal)


def test_thoughts_are_dim(run, stories, tmp_path):
    model = tmp_path / "m.bin"
    model.write_bytes(talkers.with_template(stories.read_bytes(), talkers.THINKING))
    terminal = Terminal(PROGRAM, model, "--chat", "-n", 3, "--temp", 0)
    terminal.read(PROMPT)
    terminal.type("hello\r")
    said = terminal.read(PROMPT)
    assert re.search(r"\n\x1b\[2m.+\x1b\[0m", said)
    leave(terminal)


def test_a_terminal_without_a_cursor(model, tmp_path):
    """Lines as the system reads them; a backslash and quotes continue a message."""
    terminal = Terminal(PROGRAM, model, "--chat", "-n", 1, "--temp", 0, TERM="dumb")
    terminal.read(PROMPT)
    for typed, prompts in (("a\\\nb\n", 1), ('"""\nc\n\nd"""\n', 3)):
        for line in typed.splitlines(True):
            terminal.type(line)
            terminal.read(r"(> |\.\.\. )$")
    assert said(terminal, tmp_path / "x") == ["a\nb", "c\n\nd"]


# ---- the terminal's mode -------------------------------------------------------------------------

ENDS = ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGABRT", "SIGSEGV", "SIGFPE", "SIGUSR1", "SIGALRM"]


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_gives_the_mode_back(talk, name):
    """Session.end compares it."""
    terminal = talk()
    assert not termios.tcgetattr(terminal.far)[3] & (termios.ICANON | termios.ECHO)
    terminal.child.send_signal(getattr(signal, name))
    status, rest = terminal.end()
    assert status != 0 and "\x1b[?2004l" in rest


def test_a_failure_gives_the_mode_back(model, tmp_path):
    """A file that loses its end, which the program tells in a sentence."""
    copy = tmp_path / "m.bin"
    copy.write_bytes(model.read_bytes())
    terminal = Terminal(PROGRAM, copy, "--chat", "-n", 1)
    terminal.read(PROMPT)
    os.truncate(copy, 0)
    terminal.type("hello\r")
    status, rest = terminal.end()
    assert status == 1 and "was cut short, or its disk failed" in " ".join(rest.split())


def test_a_stop_gives_the_mode_back(model):
    """Ctrl-Z: a shell finds its own mode, and the conversation goes on."""
    mode = 'echo "[$(stty -g)]"; '
    script = f'{mode} set -m; "$@"; {mode} fg >/dev/null; {mode}'
    program = [PROGRAM, model, "--chat", "-n", 1, "--temp", 0]
    terminal = Terminal("bash", "-c", script, "bash", *program)
    before = re.search(r"\[(\S+:\S+)\]", terminal.read(PROMPT))[1]
    terminal.type("typed be")
    terminal.shows("> typed be")
    terminal.type(control("Z"))
    stopped = terminal.read(r"\[\S+:\S+\]\r\n(.|\n)*typed be(\x1b\[m)?$")
    terminal.type("fore\r")
    assert "> typed before" in terminal.read(PROMPT)
    terminal.type("/bye\r")
    status, rest = terminal.end()
    assert status == 0 and re.findall(r"\[(\S+:\S+)\]", stopped + rest) == [before] * 2
