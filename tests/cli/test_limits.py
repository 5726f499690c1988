"""Files at the edge: temporaries of those who died, links to nothing, folders of long names, limits,
signals while a file is written, and files that lose their end while they are in use."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import checkpoints
from conftest import ROOT, drawn, on_linux

SETPIPE_SZ = 1031  # of Linux; fcntl names it from Python 3.10 on

PROGRAM = os.environ.get("HEADS_RUN", str(ROOT / "run"))


TOKENS = ["--tokens", " ".join(str(5 + i % 9) for i in range(60))]


def text(*more: object) -> list[object]:
    return [*TOKENS, "-n", 5, "--temp", 0, *more]


def loads(run, model: Path, file: Path | str, **options) -> bool:
    done = run(model, *text("--prompt-cache", file, "--prompt-cache-ro"), **options)
    return done.returncode == 0 and "59 from" in done.stderr


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "tmp" in path.name]


# ---- names ----


def test_temporaries_of_the_dead_block_nobody(run, bare, tmp_path):
    """Their process may have had the number that ours has, as in containers."""
    file = tmp_path / "s"
    script = 'for name in "$2" "$3"; do : > "$name.$$.tmp"; done; shift 3; exec "$@"'

    def after_a_death(*command: object) -> subprocess.CompletedProcess:
        words = ["sh", "-c", script, "sh", "", file, tmp_path / "x", *command]
        return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60)

    done = after_a_death(PROGRAM, bare, *text("--prompt-cache", file))
    assert done.returncode == 0, done.stderr
    assert loads(run, bare, file)
    done = after_a_death(PROGRAM, bare, *TOKENS, "--logits", tmp_path / "x")
    assert done.returncode == 0 and (tmp_path / "x").stat().st_size > 0, done.stderr


@pytest.mark.parametrize("deep", [False, True], ids=["beside", "elsewhere"])
def test_links_to_nothing(run, bare, tmp_path, deep):
    """The file that the link names is made, as if the path were its own."""
    folder = tmp_path / "elsewhere" if deep else tmp_path
    folder.mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to(os.path.relpath(folder / "second", tmp_path))
    (folder / "second").symlink_to(folder / "file")
    for _ in range(2):  # once it is missing, once it is there
        done = run(bare, *text("--prompt-cache", tmp_path / "link"))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "link").is_symlink() and (folder / "second").is_symlink()
        assert (folder / "file").is_file() and loads(run, bare, folder / "file")
    (tmp_path / "round").symlink_to("round")
    done = run(bare, *text("--prompt-cache", tmp_path / "round"))
    assert done.returncode == 1 and "Too many levels" in done.stderr


def test_a_folder_of_a_very_long_name(bare, tmp_path):
    """Longer than any path may be: the file is named from within."""
    home, name, depth = os.getcwd(), "d" * 200, 25
    try:
        os.chdir(tmp_path)
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
        for origin in ("prompt 60", "59 from s", "59 from s"):
            command = [PROGRAM, bare, *text("--prompt-cache", "s")]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            assert done.returncode == 0 and origin in done.stderr, done.stderr
        assert os.listdir() == ["s"]
    finally:
        os.chdir(home)
        subprocess.run(["rm", "-rf", tmp_path / name], check=True)


def test_a_name_as_long_as_names_may_be(run, bare, tmp_path):
    file = tmp_path / ("n" * 255)
    done = run(bare, *text("--prompt-cache", file))
    assert done.returncode == 0 and loads(run, bare, file), done.stderr


@pytest.mark.parametrize("length", [500, 4000, 9000])
def test_a_long_path_leaves_room_for_the_reason(run, bare, length):
    path = "/no-such/" + "d/" * (length // 2) + "end"
    for command in ([path], [bare, *text("--prompt-cache", path)]):
        said = run(*command).stderr
        assert re.search("/no-such/d.*d/end: (No such file|File name too long)", said), said


# ---- limits ----


def limited(kib: int):
    """For preexec_fn: files may have so many KiB."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kib, 1024 * kib))


@pytest.mark.parametrize(
    "options", [["--prompt-cache", "{}/s"], ["--logits", "{}/s"], ["--kv"], ["--batch", "{}/in"]]
)
def test_a_limit_on_files_gives_a_sentence(run, bare, tmp_path, options):
    """Memory that sequences share counts as a file, too."""
    alike = ", ".join(["5"] * 100)
    (tmp_path / "in").write_text("".join(f'{{"tokens": [{alike}, {i}]}}\n' for i in range(9)))
    before = sorted(os.listdir(tmp_path))
    arguments = [option.format(tmp_path) for option in options]
    if arguments[0] in ("--prompt-cache", "--logits"):
        arguments += TOKENS
    done = run(bare, *arguments, preexec_fn=limited(20))
    if arguments[0] == "--batch":  # its caches need not be shared
        assert done.returncode == 0 and done.stdout == run(bare, *arguments).stdout
        return
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "(ulimit -f)" in done.stderr or "File too large" in done.stderr
    assert len(done.stderr.splitlines()) <= 2 and sorted(os.listdir(tmp_path)) == before


def test_a_limit_on_files_leaves_the_old_one(run, bare, tmp_path):
    file = tmp_path / "s"
    assert run(bare, *text("--prompt-cache", file)).returncode == 0
    before = file.read_bytes()
    longer = ["--tokens", " ".join("7" * 300), "-n", 2, "--prompt-cache", file]
    assert run(bare, *longer, preexec_fn=limited(40)).returncode == 1
    assert file.read_bytes() == before and os.listdir(tmp_path) == ["s"]


# ---- signals ----


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A model whose session takes a while to write."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    shape = {"n_layers": 4, "n_heads": 32, "n_kv_heads": 32, "head_dim": 128, "context": 4096}
    path.write_bytes(checkpoints.random_model(**shape))
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_a_save_leaves_nothing(large, tmp_path, number):
    """Wherever it comes: before, while or after the temporary file is there."""
    ids, seen = " ".join(["5"] * 300), 0
    command = [PROGRAM, large, "--tokens", ids, "-n", 1, "-t", 2, "--prompt-cache", tmp_path / "s"]
    attempts = drawn(range(6), 2)
    for attempt in attempts:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.0005)
            if leftovers(tmp_path):
                time.sleep(0.003 * attempt)
                process.send_signal(number)
                seen += 1
                break
        process.wait(timeout=60)
        assert process.returncode in (0, 1, 130, -number) and leftovers(tmp_path) == []
        (tmp_path / "s").unlink(missing_ok=True)
    assert seen > len(attempts) // 3


def test_a_kill_during_a_save_blocks_nobody(large, run, tmp_path):
    ids = " ".join(["5"] * 300)
    command = [large, "--tokens", ids, "-n", 1, "--prompt-cache", tmp_path / "s"]
    process = subprocess.Popen([PROGRAM, *map(str, command)], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while process.poll() is None and not leftovers(tmp_path) and time.monotonic() < end:
        pass
    process.kill()
    process.wait()
    assert run(*command).returncode == 0 and (tmp_path / "s").stat().st_size > 1 << 20


def test_a_second_interrupt_during_the_save_leaves_nothing(large, tmp_path):
    """The first ends the text, whose session is then saved; the second ends the program."""
    ids, seen = " ".join(["5"] * 100), 0
    command = [PROGRAM, large, "--tokens", ids, "-n", 2000, "--prompt-cache", tmp_path / "s"]
    for attempt in range(3):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)
        process.stdout.read(450)  # the prompt and more
        process.send_signal(signal.SIGINT)
        end = time.monotonic() + 60
        while process.poll() is None and not leftovers(tmp_path) and time.monotonic() < end:
            pass
        if leftovers(tmp_path):
            time.sleep(0.002 * attempt)
            process.send_signal(signal.SIGINT)
            seen += 1
        process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT) and leftovers(tmp_path) == []
        (tmp_path / "s").unlink(missing_ok=True)
    assert seen


def test_an_ignored_interrupt_stays_ignored(large):
    """As a shell leaves it for what runs in the background."""
    words = [PROGRAM, large, "--tokens", "5 6 7", "-n", "40", "--temp", "0", "--ids"]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
    begin = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and len((begin + rest).split()) == 43


# ---- files that lose their end ----


def cut_while_it_runs(command: list[object], file: Path) -> subprocess.CompletedProcess:
    """It waits for a first line of its conversation while the file is cut short."""
    words = list(map(str, [PROGRAM, *command]))
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(words, **pipes) as process:
        maps, end = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 20
        while str(file) not in maps.read_text() and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.3)
        os.truncate(file, 4096)
        out, said = process.communicate(b"Once upon a time\n", timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, said.decode())


@on_linux
def test_a_model_that_is_cut_short_while_it_runs(stories, tmp_path):
    model = tmp_path / "model.bin"
    shutil.copy(stories, model)
    done = cut_while_it_runs([model, "-f", "/dev/stdin", "-n", 5], model)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert re.search(r"^run: /.*/model.bin was cut short, .*run again", done.stderr, re.MULTILINE)


def wait_to_write(process: subprocess.Popen) -> None:
    """Until its first thread sleeps, and goes on to."""
    stat, slept, end = Path(f"/proc/{process.pid}/stat"), 0, time.monotonic() + 20
    while slept < 20 and time.monotonic() < end:
        slept = slept + 1 if stat.read_text().rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.005)


@on_linux
def test_a_session_that_is_cut_short_while_the_program_runs(run, large, tmp_path):
    """Its reader lets it wait with the first word, when it has not looked at the session's layers."""
    file, ids = tmp_path / "s", " ".join(["5"] * 300)
    assert run(large, "--tokens", ids, "-n", 1, "--prompt-cache", file).returncode == 0
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl.fcntl(writer, SETPIPE_SZ, 4096)))
    command = [PROGRAM, large, "--tokens", ids, "-n", 9, "-t", 1, "--prompt-cache", file]
    process = subprocess.Popen(
        list(map(str, command)), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    wait_to_write(process)
    os.truncate(file, 4096)
    with open(reader, "rb") as pipe:
        pipe.read()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1, (process.returncode, said)
    assert re.search(r"^run: /.*/s was cut short, .*run again", said, re.MULTILINE)
    assert os.listdir(tmp_path) == ["s"]
