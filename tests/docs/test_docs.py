"""README.md and docs/: their commands run, their links lead somewhere, what they name exists, and
the output that they show is what the program prints.

    HEADS_DOCS=all python -m pytest tests/docs/test_docs.py    runs the slow commands too, as CI does
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import documents
import gguf_files
import guess_layers
import pytest
import sources
import talkers
from conftest import ROOT, drawn
from documents import Command

PAGES = documents.pages()
COMMANDS = [command for page in PAGES for command in documents.commands(page)]
ALL = os.environ.get("HEADS_DOCS") == "all"
RUN = os.environ.get("HEADS_RUN", str(ROOT / "run"))

# Commands that `make test` does not run: a pattern, why, and whether CI does, in a clone.
NOT_HERE = [
    (
        r"^make( demo| chat| heads| venv| test)?$",
        "is a step of CI, or these tests themselves",
        False,
    ),
    (r"^(HEADS_CI=all )?\.ci/run$", "is what runs these tests", False),
    (r"^make (lib|install)", "builds or installs", True),
    (r"^make (dist|live|wheels)$", "compiles for minutes; steps of CI", False),
    (r"^(cc|\./batch) ", "wants an installed library", True),
    (r"^pip install -r", "downloads packages", True),
    (r"^pip install '?\.", "builds the library once more; a step of CI makes the wheel", False),
    (r"^python -m heads", "wants packages that a step of CI installs", False),
    (r"pip install llama", "compiles for ten minutes", False),
    (r"python -m pytest", "is itself a part of make test", False),
    (r"^docker ", "wants a daemon; a step of CI does what the Dockerfile says", False),
    (r"live_(models|traps)\.py", "needs torch and transformers; a step of CI of its own", False),
    (r"compare_(peers|quantizers|kept)\.py", "needs llama.cpp, minutes and a quiet machine", False),
    (r"draw_quantizers\.py", "needs matplotlib; the laboratory's step of CI runs it", False),
    (r"calibrated_answers\.py", "needs torch and transformers, and minutes", False),
    (r"stories260K", "needs llama2.c's files; a step of CI of its own exports them", False),
    (r"--bench -", "takes a minute; tests/cli/test_bench.py does it with small models", False),
    (r"--bench", "takes 20 seconds", True),
    (r"export\.py .*--calibrate", "takes 20 seconds, and is a test", True),
    (r"--random(?!.*--shape-only)", "writes a gigabyte", True),
    (r"tests/engine/test_accuracy\.py", "takes seconds, and is a test", True),
]

PYTHONS = ("python", "python3", ".venv/bin/python")

# What stands for something else in the sandbox. The hub cannot be reached there, and a billion
# weights would take minutes.
STANDS_FOR = {
    "HuggingFaceTB/SmolLM2-135M": "models/hf",
    "llama-1b": "smollm-135m",
    "MODEL": "models/stories.bin",
    "DRAFT": "models/stories.bin",
    "FILE": "out.file",
}


def why_not(command: Command) -> str | None:
    for pattern, reason, in_ci in NOT_HERE:
        if re.search(pattern, command.text) and not (ALL and in_ci):
            return reason
    return None


# ---- the options that there are ----


def help_of(*program: object) -> str:
    done = subprocess.run(
        [*map(str, program), "--help"], stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=60
    )
    return done.stdout


_options: dict[str, set[str]] = {}


def options_of(program: str) -> set[str]:
    """The options that a program's --help names."""
    if program not in _options:
        text = help_of(RUN) if program == "./run" else help_of(sys.executable, ROOT / program)
        if program == "export.py":
            text += help_of(sys.executable, ROOT / program, "--plan")
        _options[program] = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
    return _options[program]


def targets() -> set[str]:
    return set(re.findall(r"^([\w./-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def faults_of(command: str) -> list[str]:
    """What a command line names that does not exist."""
    program, *words = shlex.split(re.sub(r"^(HEADS_[A-Z]+=\S+ )*", "", command))
    program = "python" if program in PYTHONS else program
    if program == "python" and words[:2] == ["-m", "pip"]:
        program, *words = words[1:]
    names = [word for word in words if not word.startswith("-")]
    given = [word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    if program == "./run":
        return [f"no option {o}" for o in given if o not in options_of(program)]
    if program == "make":
        goals = [name for name in names if "=" not in name]
        return [f"no goal {goal}" for goal in goals if goal not in targets()]
    if program == "python" and names and names[0].endswith(".py") and words[0] == names[0]:
        if not (ROOT / names[0]).exists():
            return [f"no file {names[0]}"]
        return [f"no option {o}" for o in given if o not in options_of(names[0])]
    if program == "python" and words[0] == "-m" and words[1].startswith("research."):
        source = ROOT / (words[1].replace(".", "/") + ".py")  # its own environment has torch
        if not source.exists():
            return [f"no module {words[1]}"]
        return [f"no option {o}" for o in given[1:] if f'"{o}"' not in source.read_text()]
    if program == "python" and words[:2] == ["-m", "heads"]:
        if words[2] == "eval":  # the harness's own options follow
            return []
        if words[2] == "export":
            return [
                f"no option {o}" for o in given if o != "-m" and o not in options_of("export.py")
            ]
        source = (ROOT / "python/heads/server" / f"{words[2]}.py").read_text()
        return [f"no option {o}" for o in given if o != "-m" and f'"{o}"' not in source]
    if program == "python" and words[:2] == ["-m", "pytest"] or program == "cc":
        files = [name for name in names if re.search(r"\.(py|c)$", name)]
        return [f"no file {file}" for file in files if not (ROOT / file).exists()]
    if program == "pip":
        lists = [name for name in names if name.endswith(".txt")]
        return [f"no file {file}" for file in lists if not (ROOT / file).exists()]
    if program == ".ci/run":
        script = (ROOT / program).read_text()
        given = re.findall(r"(HEADS_[A-Z]+)=(\S+)", command)
        return [
            f"no {name}={value}"
            for name, value in given
            if f'"${{{name}:-}}" = {value}' not in script
        ]
    return [] if program in ("./batch", "docker", "cmp") else [f"no program {program}"]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_what_a_command_names_exists(command):
    assert not faults_of(command.text), str(command)


def test_options_in_sentences_exist():
    scripts = ["./run", "export.py"]
    scripts += [f"tests/reference/{name}.py" for name in ("compare_peers", "compare_quantizers")]
    known = set().union(*map(options_of, scripts)) | {"--static", "-lm", "-pthread"}  # a linker's
    known |= {"-log"}  # a formula's
    known |= set(re.findall(r'"(--[a-z-]+)"', (ROOT / "python/heads/server/serve.py").read_text()))
    named = {
        (documents.name_of(page), option)
        for page in PAGES
        for span in documents.spans(page)
        for option in re.findall(r"(?:^| )(--?[a-zA-Z][\w-]*)", span)
        if not span.startswith(documents.PROGRAMS) or span.startswith("./run ")
    }
    assert len(named) > 30 and not {(page, o) for page, o in named if o not in known}


# ---- running them ----


def sandbox(root: Path) -> Path:
    """A copy of what commands need, with the files that pages' examples name."""
    ours = ["models", "export.py", "exporter", "tests", "examples", "requirements.txt"]
    if ALL:  # for make
        files = [path.relative_to(ROOT) for path in sources.c_files()]
        ours += ["Makefile", "packages", "browser", *(path.parts[0] for path in files)]
    for name in sorted(set(ours)):
        (root / name).symlink_to(ROOT / name)
    shutil.copy(RUN, root / "run")
    prompt = "One day, a fox went to the river. " * 4
    for name in ("prompt.txt", "text.txt", "notes.txt", "long.txt", "story.txt"):
        (root / name).write_text(prompt)
    (root / "talk.json").write_text('[{"role": "user", "content": "Hello!"}]')
    (root / "requests.jsonl").write_text('{"id": 1, "prompt": "Once", "max_tokens": 4}\n' * 3)
    for name in ("mha.bin", "gqa.bin", "mqa.bin", "model.bin"):
        shutil.copy(ROOT / "models" / "stories.bin", root / name)
    gguf_files.convert(ROOT / "tests" / "golden" / "llama", root / "model.gguf")
    stories = (ROOT / "models" / "stories.bin").read_bytes()
    (root / "chat.bin").write_bytes(talkers.with_template(stories, talkers.PLAIN))
    (root / "build").mkdir()
    plain, _ = guess_layers.checkpoint_with_guesses("deepseek_v3", root / "build")
    talkers.make(plain, root / "guesses.bin", talkers.PLAIN, 1024)
    shutil.copy(root / "chat.bin", root / "build" / "smollm2.bin")  # which make chat leaves
    return root


def for_sandbox(command: str) -> str:
    """The command for a shell in the sandbox."""
    stands_for = {**STANDS_FOR, "pip": f"{sys.executable} -m pip"}
    stands_for.update(dict.fromkeys(PYTHONS, sys.executable))
    if re.search("--(chat|messages)", command):
        stands_for["MODEL"] = "chat.bin"
    if "--guess" in command:
        stands_for["MODEL"] = "guesses.bin"
    return " ".join(stands_for.get(word, word) for word in command.split(" "))


def run_here(command: Command, folder: Path) -> str | None:
    """Runs a command in a sandbox, which is also where `make install` goes; what went wrong."""
    stage = folder / "stage"
    env = {
        **os.environ,
        "HEADS_PYTHON": sys.executable,
        "DESTDIR": str(stage),
        "LD_LIBRARY_PATH": str(stage / "usr/local/lib"),
        "PKG_CONFIG_SYSROOT_DIR": str(stage),
        "PKG_CONFIG_LIBDIR": str(stage / "usr/local/lib/pkgconfig"),
    }
    done = subprocess.run(
        for_sandbox(command.text),
        shell=True,
        cwd=folder,
        env=env,
        input=b"Hello!\n",
        timeout=600,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if done.returncode == 0:
        return None
    return f"{command}: exit status {done.returncode}, {done.stderr.decode()[-300:]}"


def pages_to_run() -> list[Path]:
    """README.md, and of the other pages with commands a quarter, by chance."""
    first, *others = [page for page in PAGES if any(c.runs for c in documents.commands(page))]
    assert first == ROOT / "README.md"
    return [first, *(others if ALL else drawn(others, 4))]


@pytest.mark.parametrize("page", pages_to_run(), ids=documents.name_of)
def test_commands_run(page, tmp_path):
    """All of a page in one sandbox, in order: one command may make what the next one reads."""
    ours = [command for command in documents.commands(page) if command.runs]
    folder = sandbox(tmp_path)
    failures = [run_here(command, folder) for command in ours if not why_not(command)]
    assert not list(filter(None, failures)), "\n".join(filter(None, failures))


def test_each_reason_is_needed():
    for pattern, reason, _ in NOT_HERE:
        assert any(re.search(pattern, c.text) for c in COMMANDS if c.runs), (pattern, reason)
    assert sum(not why_not(c) for c in COMMANDS if c.runs) > 25
    for word in STANDS_FOR:
        assert any(word in shlex.split(c.text) for c in COMMANDS if c.runs), word


# ---- links and names ----


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_links(page):
    assert not documents.broken_links(page)


def test_every_page_is_linked():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in documents.links(page)
        if not link.startswith("https://")
    }
    pictures = set((ROOT / "docs").rglob("*.svg")) | set((ROOT / "docs").rglob("*.png"))
    unlinked = {*PAGES, *pictures} - linked - {ROOT / "README.md"}
    assert not unlinked


PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_for_light_and_dark(path):
    root = ElementTree.parse(path).getroot()
    names = {child.tag.rpartition("}")[2]: child.text or "" for child in root}
    assert names["title"] and len(names["desc"]) > 80
    assert "prefers-color-scheme: dark" in names["style"]
    loaded = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "://" not in loaded


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_need_no_variables(path):
    """Which slides, Inkscape and rsvg do not know: their lines would be black or missing."""
    assert "var(" not in path.read_text(encoding="utf-8")


C_SOURCES = [
    path
    for path in sources.c_files()
    if path.relative_to(ROOT).parts[0] not in ("tests", "examples")
]
# Files of checkpoints and examples, which are not ours.
OTHERS = re.compile(r"(config|tokenizer|tokens|map|tekken|vocab|talk|modules)\.json|mean\.c")


def test_files_and_functions_that_pages_name_exist():
    scripts = sorted((ROOT / "browser/web").glob("*.js"))
    code = "\n".join(path.read_text(encoding="utf-8") for path in C_SOURCES + scripts)
    defined = set(re.findall(r"\b(\w+)\(", code))
    missing, functions = [], 0
    for page in PAGES:
        for span in documents.spans(page):
            file = re.fullmatch(r"[\w./-]+\.(?:c|h|py|json|bash)|\.?[\w-]+(?:/[\w-]+)*/", span)
            places = (ROOT / span, page.parent / span)
            if file and not OTHERS.search(span) and not any(place.exists() for place in places):
                missing.append((documents.name_of(page), span))
            function = re.fullmatch(r"(\w+)\(\)", span)
            functions += bool(function)
            if function and function[1] not in defined:
                missing.append((documents.name_of(page), span))
    assert functions > 20 and not missing


def test_readme_maps_every_file():
    named = documents.spans(ROOT / "README.md")
    files = {path.name for pattern in ("*.c", "*.h", "*.py") for path in ROOT.glob(pattern)}
    headers = {f"{name[:-2]}.h" for name in named if name.endswith(".c")} | {"workspace.h"}
    assert not files - named - headers


def test_tour_visits_every_file():
    named = documents.spans(ROOT / "docs" / "tour.md")
    files = {path.name for path in ROOT.glob("*.c")}
    assert not files - named


def test_prose_is_no_wider_than_100_columns():
    for page in PAGES:
        lines = documents.prose(page.read_text(encoding="utf-8")).split("\n")
        text = [line for line in lines if not line.startswith(("|", "<!--"))]
        if page.parent.name != "models":
            assert not [line for line in text if len(line) > documents.COLUMNS], page


# ---- samples of output ----


@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
def test_samples_are_what_the_program_prints(run, page):
    for command, part, sample in documents.SAMPLE.findall(page.read_text(encoding="utf-8")):
        want = documents.shown(documents.output_of(command), part)
        assert sample == want, f"{command}: python tests/support/documents.py renews the sample"


def test_there_are_samples():
    readme = documents.SAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [part for _, part, _ in readme] == ["five lines", "table"]
