"""Programs that someone talks with: through pipes, and at a terminal whose screen can be read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata
from pathlib import Path

from conftest import ROOT

PROGRAM = os.environ.get("HEADS_RUN", str(ROOT / "run"))
PATIENCE = 60  # seconds


def usual_signals() -> None:
    """A job in the background of a script ignores these two, and so would its children."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def own_terminal() -> None:
    usual_signals()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Session:
    """A conversation through pipes."""

    def __init__(self, model: Path, *options: object):
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(
            [PROGRAM, model, "--chat", *map(str, options)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=usual_signals,
        )

    def type(self, text: str) -> None:
        os.write(self.child.stdin.fileno(), text.encode())

    def read(self, pattern: str | None = None) -> str:
        """Output until it holds the pattern, or until it ends."""
        seen, out = b"", self.child.stdout.fileno()
        while pattern is None or not re.search(pattern.encode(), seen):
            assert select.select([out], [], [], PATIENCE)[0], seen
            piece = os.read(out, 1 << 16)
            if not piece:
                assert pattern is None, seen
                break
            seen += piece
        return seen.decode()

    def interrupt(self) -> None:
        self.child.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Exit status, and stderr."""
        self.read()
        return self.child.wait(PATIENCE), self.child.stderr.read().decode()


class Screen:
    """What a terminal shows, of the codes that the program sends."""

    CODES = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns
        self.lines, self.row, self.column = [self.blank() for _ in range(rows)], 0, 0

    def blank(self) -> list[str]:
        return [" "] * self.columns

    def new_line(self) -> None:
        self.row += 1
        if self.row == self.rows:
            self.lines = [*self.lines[1:], self.blank()]
            self.row -= 1

    def put(self, c: str) -> None:
        if unicodedata.category(c) in ("Mn", "Me", "Cf"):
            self.lines[self.row][self.column - 1] += c
            return
        width = 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if self.column + width > self.columns:
            self.new_line()
            self.column = 0
        self.lines[self.row][self.column : self.column + width] = [c] + [""] * (width - 1)
        self.column += width

    def resize(self, rows: int, columns: int) -> None:
        """Rows that are too long now are broken, as most terminals do."""
        lines: list[list[str]] = []
        for i, line in enumerate(self.lines):
            here = self.column if i == self.row else -1
            lines.append([])
            for j, c in enumerate([*line, " "]):
                if c == "" or (j > here and not "".join(line[j:]).strip()):
                    continue  # a wide character's second column, or behind the text
                width = 1 + (line[j + 1 : j + 2] == [""])
                if len(lines[-1]) + width > columns:
                    lines.append([])
                if j == here:
                    at = len(lines) - 1, len(lines[-1])
                lines[-1] += [c] + [""] * (width - 1)
        while len(lines) > at[0] + 1 and not "".join(lines[-1]).strip():
            lines.pop()
        gone = max(0, len(lines) - rows)
        self.rows, self.columns, self.row, self.column = rows, columns, at[0] - gone, at[1]
        self.lines = [(line + self.blank())[:columns] for line in lines[gone:]]
        self.lines += [self.blank() for _ in range(rows - len(self.lines))]

    def obey(self, number: int, letter: str) -> None:
        column = min(self.column, self.columns - 1)  # of a full line, the last one
        if letter == "A":
            self.row = max(0, self.row - max(1, number))
        elif letter == "C":
            self.column = min(self.columns - 1, column + max(1, number))
        elif letter == "G":
            self.column = number - 1
        elif letter == "H":
            self.row = self.column = 0
        elif letter == "K":
            self.lines[self.row][column:] = self.blank()[column:]
        elif letter == "J":
            self.lines[self.row][column:] = self.blank()[column:]
            for row in range(0 if number == 2 else self.row + 1, self.rows):
                self.lines[row] = self.blank()
        else:
            assert letter in "mhl", letter

    def feed(self, text: str) -> None:
        i = 0
        while i < len(text):
            code = self.CODES.match(text, i)
            if code:
                if not code[1]:
                    self.obey(int(code[2].partition(";")[0] or 0), code[3])
                i = code.end()
                continue
            if text[i] == "\r":
                self.column = 0
            elif text[i] == "\n":
                self.new_line()
            else:
                self.put(text[i])
            i += 1

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip()


class Terminal:
    """A command at a terminal of its own. It may use an unfinished character's bytes, since what
    it prints is read as text when it waits."""

    def __init__(self, *command: object, rows: int = 24, columns: int = 80, **env: str):
        self.near, self.far = pty.openpty()
        self.seen, self.waiting = b"", b""
        self.screen = Screen(rows, columns)
        self.resize(rows, columns)
        self.mode = termios.tcgetattr(self.far)
        plain = {k: v for k, v in os.environ.items() if k not in ("TERM", "NO_COLOR")}
        self.child = subprocess.Popen(
            list(map(str, command)),
            stdin=self.far,
            stdout=self.far,
            stderr=self.far,
            start_new_session=True,
            preexec_fn=own_terminal,
            env={**plain, "TERM": "xterm", "HOME": "/nowhere", **env},
        )

    def resize(self, rows: int, columns: int) -> None:
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self.near, data[:1024]) :]
            self.take(0)

    def take(self, seconds: float) -> bool:
        if not select.select([self.near], [], [], seconds)[0]:
            return False
        piece = os.read(self.near, 1 << 16)
        self.seen += piece
        self.waiting += piece
        whole = self.waiting.decode("utf-8", "ignore")
        self.screen.feed(whole)
        self.waiting = self.waiting[len(whole.encode()) :]
        return True

    def read(self, pattern: str) -> str:
        """What was printed since the last call, up to here, where it holds the pattern."""
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, self.seen.decode("utf-8", "replace")):
            assert time.monotonic() < end, self.seen
            self.take(1)
        text, self.seen = self.seen.decode("utf-8", "replace"), b""
        return text

    def shows(self, text: str, cursor: tuple[int, int] | None = None) -> None:
        """Waits until the screen ends with this text, and the cursor is at this row of it, and
        this column."""
        end, screen = time.monotonic() + PATIENCE, self.screen
        while True:
            shown = screen.text()
            at = screen.row - shown[: -len(text)].count("\n"), screen.column
            if shown.endswith(text) and cursor in (None, at):
                return
            assert time.monotonic() < end, (at, shown)
            self.take(0.2)

    def end(self) -> tuple[int, str]:
        """Exit status, and the rest of what was printed. The terminal has its old mode."""
        end = time.monotonic() + PATIENCE
        while self.child.poll() is None:
            assert time.monotonic() < end, self.seen
            self.take(0.1)
        while self.take(0):
            pass
        assert termios.tcgetattr(self.far) == self.mode
        os.close(self.near)
        os.close(self.far)
        return self.child.returncode, self.seen.decode("utf-8", "replace")
