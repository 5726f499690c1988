"""The library as others use it: what it shows, how it is installed, what it says to bad calls."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

import pytest
import talkers

from conftest import ROOT, on_linux
from heads._native import (
    LIBRARY,
    ChatOptions,
    Error,
    KvPlan,
    Message,
    SamplerOptions,
    WorkspaceOptions,
)

SHARED, STATIC = ROOT / "build" / LIBRARY, ROOT / "build" / "libheads.a"
HEADER = (ROOT / "heads.h").read_text()
EXAMPLE = ROOT / "examples" / "batch.c"
ABI = int(re.search(r"#define HEADS_ABI (\d+)", HEADER)[1])
VERSION = re.search(r'#define HEADS_VERSION "(.*)"', HEADER)[1]
NUMBER = int(re.search(r"#define HEADS_VERSION_NUMBER (\d+)", HEADER)[1])
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def output(*command: object, **options) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


# ---- what it shows ----


def defined(*nm: object) -> set[str]:
    lines = output("nm", "--defined-only", *nm).splitlines()
    return {line.split()[2] for line in lines if len(line.split()) == 3}


@on_linux
@pytest.mark.parametrize("nm", [("-D", SHARED), ("-g", STATIC)], ids=["so", "a"])
def test_only_the_headers_calls_are_visible(nm):
    declared = set(re.findall(r"^HEADS_API [^(]*?(heads_\w+)\(", HEADER, re.MULTILINE))
    assert len(declared) > 30 and defined(*nm) == declared


@on_linux
def test_no_call_depends_on_the_locale():
    """A program that calls setlocale gets the same texts: no dates, numbers or classes of
    characters by the C library's tables. (text/json.c gives strtod numbers without a point.)"""
    local = "strftime|wcsftime|nl_langinfo|localeconv|strtof|strtold|atof|strcoll|strxfrm"
    local += "|__ctype_.*|isw.*|tow.*|mbr?towc|mbs.*|wc.*|strn?casecmp|strcasestr"
    names = output("nm", "-D", "--undefined-only", "--format=posix", SHARED).splitlines()
    names = [line.split()[0].partition("@")[0] for line in names]
    assert len(names) > 30 and [n for n in names if re.fullmatch(local, n)] == []


def test_header_stands_alone():
    assert set(re.findall(r"#include (.*)", HEADER)) == {"<stddef.h>", "<stdint.h>"}


@on_linux
def test_abi_and_version(heads, stage):
    assert heads.heads_abi() == ABI and heads.heads_version().decode() == VERSION
    major, minor, patch = [*map(int, VERSION.split(".")), 0][:3]
    assert NUMBER == 10000 * major + 100 * minor + patch
    assert os.readlink(stage.lib / "libheads.so") == f"libheads.so.{ABI}"
    assert f"[libheads.so.{ABI}]" in output("readelf", "-d", SHARED)
    assert f"Version: {VERSION}\n" in (stage.lib / "pkgconfig" / "heads.pc").read_text()


# ---- installed ----


class Stage:
    """An installation for /opt/heads that lies under `root` for now, as packagers have it."""

    def __init__(self, root: Path):
        self.root, self.lib = root, root / "opt/heads/lib"

    def make(self, goal: str) -> None:
        output("make", goal, "PREFIX=/opt/heads", f"DESTDIR={self.root}")

    def files(self) -> set[str]:
        paths = [path for path in self.root.rglob("*") if not path.is_dir()]
        return {str(path.relative_to(self.root)) for path in paths}

    def flags(self, field: str) -> list[str]:
        """heads.pc's Cflags or Libs, as pkg-config tells them where there is one."""
        if shutil.which("pkg-config"):
            env = {
                **os.environ,
                "PKG_CONFIG_LIBDIR": str(self.lib / "pkgconfig"),
                "PKG_CONFIG_SYSROOT_DIR": str(self.root),
            }
            return output("pkg-config", f"--{field.lower()}", "heads", env=env).split()
        text = (self.lib / "pkgconfig" / "heads.pc").read_text()
        values = dict(re.findall(r"^(\w+)[=:] ?(.*)$", text, re.MULTILINE))
        flags = re.sub(r"\$\{(\w+)\}", lambda name: str(self.root) + values[name[1]], values[field])
        return flags.split()

    def compile(self, source: Path, program: Path, language: list[str], static: bool) -> None:
        libraries = [self.lib / "libheads.a", "-lm", "-pthread"] if static else self.flags("Libs")
        output(
            *language,
            *STRICT,
            *self.flags("Cflags"),
            "-o",
            program,
            source,
            "-x",
            "none",
            *libraries,
        )

    def run(self, *command: object) -> str:
        return output(*command, env={**os.environ, "LD_LIBRARY_PATH": str(self.lib)})


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    stage.make("install")
    return stage


@on_linux
def test_install_and_uninstall(tmp_path, stage):
    names = [
        "bin/heads",
        "include/heads.h",
        "lib/libheads.a",
        "lib/libheads.so",
        f"lib/libheads.so.{ABI}",
        "lib/cmake/heads/heads-config-version.cmake",
        "lib/cmake/heads/heads-config.cmake",
        "lib/pkgconfig/heads.pc",
        "share/bash-completion/completions/heads",
        "share/fish/vendor_completions.d/heads.fish",
        "share/man/man1/heads.1",
        "share/zsh/site-functions/_heads",
    ]
    assert stage.files() == {f"opt/heads/{name}" for name in names}
    for name in names[-4:]:
        assert "prompt-cache" in (stage.root / "opt/heads" / name).read_text().replace("\\", "")
    assert str(stage.root) not in (stage.lib / "pkgconfig" / "heads.pc").read_text()
    again = Stage(tmp_path)
    again.make("install")
    again.make("uninstall")
    assert again.files() == set()


@pytest.fixture(scope="module")
def stories_alone(run, stories) -> str:
    """The example's output, put together from runs of one prompt each."""
    source = EXAMPLE.read_text()
    longest = int(re.search(r"LONGEST = (\d+)", source)[1])
    text = ""
    for prompt in re.findall(r'"([^"]+)"', re.search(r"prompts\[N\] = {(.*)}", source)[1]):
        n = len(run(stories, "-p", prompt, "--tokenize").stdout.split())
        done = run(stories, "-p", prompt, "--temp", "0", "-n", longest - n)
        assert done.returncode == 0, done.stderr
        text += done.stdout.decode() + "\n\n"
    return text


@pytest.mark.parametrize("static", [False, True], ids=["so", "a"])
@pytest.mark.parametrize("language", [["cc", "-std=c11"], ["c++", "-x", "c++"]], ids=["c", "c++"])
def test_example(stage, stories, stories_alone, tmp_path, language, static):
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    if not shutil.which(language[0]):
        pytest.skip(f"there is no {language[0]}")
    stage.compile(EXAMPLE, tmp_path / "batch", language, static)
    assert stage.run(tmp_path / "batch", stories) == stories_alone
    failed = subprocess.run(
        [tmp_path / "batch", "missing.bin"],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(stage.lib)},
    )
    assert failed.returncode == 1
    assert failed.stderr == "batch: cannot open missing.bin: No such file or directory\n"


OWN_NAMES = """
#include <heads.h>
#include <stdio.h>
int forward(void), fail(void), multiply(void);
int forward(void) { return 1; }
int fail(void) { return 2; }
int multiply(void) { return 3; }
int main(int argc, char **argv) {
    heads_error err = {""};
    int token = 5;
    heads_model *m = heads_model_open(argv[argc - 1], &err);
    heads_workspace *w = m ? heads_workspace_new(m, NULL, &err) : NULL;
    heads_sequence *s = w ? heads_sequence_new(w, 0, &err) : NULL;
    const float *logits = s ? heads_forward(s, &token, 1, 1, &err) : NULL;
    heads_model *missing = heads_model_open("missing.bin", &err);
    printf("%d%d%d %d %s", forward(), fail(), multiply(), logits && !missing, err.text);
    return 0;
}
"""


@pytest.mark.parametrize("static", [False, True], ids=["so", "a"])
def test_a_program_may_use_our_names(stage, stories, tmp_path, static):
    (tmp_path / "own.c").write_text(OWN_NAMES)
    stage.compile(tmp_path / "own.c", tmp_path / "own", ["cc", "-std=c11"], static)
    text = stage.run(tmp_path / "own", stories)
    assert text == "123 1 cannot open missing.bin: No such file or directory"


# ---- what it says when asked wrongly ----


class Usage(ctypes.Structure):
    _fields_ = [
        (name, c_size_t)
        for name in ("reserved", "in_use", "resident", "expected_resident", "shared")
    ]


@pytest.fixture(scope="module")
def heads():
    library = ctypes.CDLL(str(SHARED))
    for name in (
        "model_open",
        "model_parse",
        "tokenizer_new",
        "chat_new",
        "decoder_new",
        "workspace_new",
        "sequence_new",
        "sequence_load",
        "sequence_fork",
        "sampler_new",
        "forward",
        "forward_runs",
    ):
        getattr(library, f"heads_{name}").restype = c_void_p
    for name in ("model_close", "workspace_free", "sequence_free"):
        getattr(library, f"heads_{name}").argtypes = [c_void_p]
    library.heads_version.restype = c_char_p
    library.heads_sequence_kv_usage.restype = Usage
    return library


@pytest.fixture(scope="module")
def model(heads, stories):
    handle = heads.heads_model_open(str(stories).encode(), None)
    yield c_void_p(handle)
    heads.heads_model_close(handle)


@pytest.fixture(scope="module")
def workspace(heads, model):
    handle = heads.heads_workspace_new(model, byref(WorkspaceOptions(n_threads=1)), None)
    yield c_void_p(handle)
    heads.heads_workspace_free(handle)


@pytest.fixture
def sequence(heads, workspace):
    handle = heads.heads_sequence_new(workspace, 0, None)
    yield c_void_p(handle)
    heads.heads_sequence_free(handle)


def refusal(call, *args) -> str:
    """What a call that fails says; and it fails as well where nobody wants to hear why."""
    err = Error()
    assert call(*args, byref(err)) in (None, -1)
    assert call(*args, None) in (None, -1)
    return err.text.decode()


def test_files_that_are_no_model(heads, tmp_path, bare):
    empty, text = tmp_path / "empty.bin", tmp_path / "text.bin"
    empty.write_bytes(b"")
    text.write_bytes(b"once upon a time " * 100)
    for path, said in (
        ("missing.bin", "No such file"),
        (tmp_path, "is a directory"),
        (empty, "is empty"),
        (text, str(text)),
    ):
        assert said in refusal(heads.heads_model_open, str(path).encode())
    memory = ctypes.create_string_buffer(192)
    aligned = ctypes.addressof(memory) // 64 * 64 + 64
    for start, said in ((aligned, "not a heads.c checkpoint"), (aligned + 8, "multiple of 64")):
        assert said in refusal(heads.heads_model_parse, c_void_p(start), c_size_t(64))
    nothing = refusal(heads.heads_model_parse, c_void_p(aligned), c_size_t(0))
    assert nothing == "it is empty"
    model = c_void_p(heads.heads_model_open(str(bare).encode(), None))
    assert "tokenizer" in refusal(heads.heads_tokenizer_new, model)
    heads.heads_model_close(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context": -1}, "context: -1, expected 0.."),
        ({"chunk": -1}, "-1, expected 1.."),
        ({"n_threads": 5000}, "threads: 5000, expected 0..1024"),
        ({"logit_rows": -7}, "rows of logits: -7"),
        ({"k_type": 9}, "cached keys: type 9, expected HEADS_F16"),
        ({"v_type": -1}, "cached values: type -1, expected HEADS_F16"),
        ({"isa": b"nope"}, '"nope": it must be scalar'),
    ],
)
def test_workspace_options(heads, model, options, said):
    assert said in refusal(heads.heads_workspace_new, model, byref(WorkspaceOptions(**options)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -1}, "temperature -1; expected 0 (greedy) to 1000"),
        ({"top_p": 2}, "top-p 2; expected"),
        ({"repeat_penalty": -1}, "repeat penalty -1; expected"),
        ({"repeat_last": -1}, "repeat_last -1; expected"),
    ],
)
def test_sampler_options(heads, workspace, options, said):
    assert said in refusal(heads.heads_sampler_new, workspace, byref(SamplerOptions(**options)))


def test_passes(heads, workspace, sequence):
    tokens = (c_int * 3)(1, 2, 1 << 30)
    forward = heads.heads_forward
    said = refusal(forward, sequence, tokens, 3, 1)
    assert "token 2 is 1073741824, the vocabulary has 0.." in said
    assert "0 tokens" in refusal(forward, sequence, tokens, 0, 0)
    assert "2 tokens with 3 rows" in refusal(forward, sequence, tokens, 2, 3)
    assert heads.heads_sequence_length(sequence) == 0
    assert heads.heads_forward_runs(workspace, None, -1, None) is None
    assert forward(sequence, tokens, 2, 1, None)
    assert heads.heads_sequence_mark(sequence, None) == 0
    for call, said in (
        (heads.heads_sequence_rewind, "it cannot go back to 3"),
        (heads.heads_sequence_fork, "no fork can have its first 3"),
    ):
        assert f"has 2 tokens, so {said}" in refusal(call, sequence, 3)
    assert "empty.bin" in refusal(heads.heads_sequence_load, workspace, b"empty.bin")


def test_options_of_a_conversation_may_be_null(heads, stories, tmp_path):
    """That is a struct of zeros."""
    path = tmp_path / "talker.bin"
    path.write_bytes(talkers.with_template(stories.read_bytes(), talkers.PLAIN))
    talker = c_void_p(heads.heads_model_open(str(path).encode(), None))
    chat, tokenizer = (
        c_void_p(getattr(heads, f"heads_{name}_new")(talker, None))
        for name in ("chat", "tokenizer")
    )
    messages, found = (Message * 1)(Message(b"user", b"hello", 5)), []
    for options in (None, byref(ChatOptions())):
        ids = ctypes.POINTER(c_int)()
        n = heads.heads_chat_encode(
            chat, tokenizer, messages, c_size_t(1), options, byref(ids), None
        )
        found.append(ids[:n])
    assert found[0] == found[1] != []
    for bad, said in (
        (Message(None, b"x", 1), "no role"),
        (Message(b"user", None, 1), "no content"),
    ):
        one = (Message * 1)(bad)
        args = (chat, tokenizer, one, c_size_t(1), None, byref(ids))
        assert f"message 1 has {said}: it is NULL" in refusal(heads.heads_chat_encode, *args)
        assert not ids  # so that it may be freed
    for name, handle in (
        ("chat_free", chat),
        ("tokenizer_free", tokenizer),
        ("model_close", talker),
    ):
        getattr(heads, f"heads_{name}")(handle)


UNDER_A_LIMIT = """
import ctypes, resource, sys
from ctypes import byref, c_char_p, c_int, c_void_p
heads, err = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(400)
for name in ("model_open", "workspace_new", "sequence_new", "forward"):
    getattr(heads, f"heads_{name}").restype = c_void_p
model = c_void_p(heads.heads_model_open(sys.argv[2].encode(), err))
workspace = c_void_p(heads.heads_workspace_new(model, None, err))
sequence = c_void_p(heads.heads_sequence_new(workspace, 0, err))
assert heads.heads_forward(sequence, (c_int * 3)(1, 2, 3), 3, 0, err)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
assert heads.heads_sequence_save(sequence, sys.argv[3].encode(), err) == -1
print(err.value.decode())
assert heads.heads_sequence_new(workspace, 1, err) is None
print(err.value.decode())
"""


def test_a_limit_on_files_does_not_end_the_host(stories, tmp_path):
    """Though it has not ignored SIGXFSZ."""
    command = [sys.executable, "-c", "import signal; signal.signal(25, signal.SIG_DFL)"]
    command[-1] += UNDER_A_LIMIT
    done = subprocess.run(
        [*command, SHARED, stories, tmp_path / "s"], capture_output=True, text=True
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.count("(ulimit -f)") == 2 and os.listdir(tmp_path) == []


def test_kv_plan_is_what_a_sequence_takes(heads, model, sequence):
    plan, options = KvPlan(), WorkspaceOptions()
    tokens = (c_int * 2)(1, 2)
    assert heads.heads_model_kv_plan(model, byref(options), byref(plan), None) == 0
    assert heads.heads_forward(sequence, tokens, 2, 0, None)
    usage = heads.heads_sequence_kv_usage(sequence)
    assert plan.reserved == usage.reserved and usage.in_use == 2 * plan.bytes_per_token + plan.state
    for bad, said in (
        (WorkspaceOptions(context=-1), "context: -1"),
        (WorkspaceOptions(k_type=4), "cached keys: type 4"),
    ):
        assert said in refusal(heads.heads_model_kv_plan, model, byref(bad), byref(plan))
