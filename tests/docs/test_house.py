"""The house: how long the core is, what lies at the root, which files need each other, and how much
there is to read beside the code."""

from __future__ import annotations

import re

import documents
from conftest import ROOT
from reading_list import OPENED, core, doors, names_of, taken
from sources import NAMED, NO_CODE, c_files, circles, name_of, uses

CORE_LINES = 3_300
DOORS = 60
ROOT_FILES = 15
CIRCLES = 1
DOCS_WORDS = 26_700
README_WORDS = 1_200
JS_LINES = 4_000
WEB_LINES = 1_000


def core_lines() -> int:
    """As `wc -l` counts: every line, comments and blank ones too."""
    return sum((ROOT / name).read_bytes().count(b"\n") for name in core())


def test_the_core_is_short():
    files = core()
    assert files and len(set(files)) == len(files)
    assert not [name for name in files if not (ROOT / name).is_file()]
    print(f"{core_lines()} lines in {len(files)} files")
    assert core_lines() <= CORE_LINES


def test_the_core_takes_what_its_doors_give():
    """Whatever a file of the core calls, names or opens is the core's, heads.h's, or a door."""
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in c_files()}
    found = taken(texts, core())
    listed = [door.name for door in doors()]
    print(f"{len(listed)} doors")
    assert {name: sorted(files) for name, files in found.items() if name not in listed} == {}
    assert sorted(listed) == sorted(found)  # none twice, and none that nobody uses
    assert len(listed) <= DOORS
    for page in ("README.md", "docs/tour.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.search(rf"\b{len(listed)}( doors|, besides)", text), page
    for door in doors():
        names = names_of(texts[door.file])
        assert door.name in names.values | names.types, f"{door.file} has no {door.name}"
        assert door.file not in core() and len(door.promise.split()) > 2


def test_the_check_of_doors_itself():
    texts = {
        "heads.h": "typedef struct {\n    int size;\n} Public;\nint heads_open(int x);\n",
        "far.h": '#include "heads.h"\nenum { MOST = 3 };\ntypedef struct {\n    int depth;\n} Far;\n'
        "int call(Far f);\nextern const int table[];\n",
        "far.c": "int call(Far f) { return 1; }\nconst int table[] = {1};\n",
        "near.h": '#include "far.h"\ntypedef struct {\n    int width;\n} Near;\nint near(Near n);\n',
        "near.c": '#include "near.h"\nint near(Near n) { return n.width + heads_open(n.size); }\n',
    }

    def names(more: str) -> dict[str, set[str]]:
        changed = texts | {"near.c": texts["near.c"] + more}
        return taken(changed, ["near.h", "near.c"])

    assert names("") == {}
    assert names("int a(void) {\n    // call(1)\n    return 1;\n}\n") == {}
    for use in ("call(1)", "b->f(call)", "call"):
        assert names(f"int a(void) {{\n    return {use};\n}}\n") == {"call": {"near.c"}}
    assert names("int a(void) {\n    return table[MOST];\n}\n") == {
        "table": {"near.c"},
        "MOST": {"near.c"},
    }
    assert names("int a(void) {\n    return n->parts.depth;\n}\n") == {"Far": {"near.c"}}
    assert names("int a(Far *f) {\n    return 1;\n}\n") == {"Far": {"near.c"}}


def test_readme_says_how_long_the_core_is():
    """To the hundred."""
    assert f"{round(core_lines(), -2):,} lines" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tour_walks_through_the_core():
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    first = {name: tour.find(f"`{name}`") for name in core()}
    assert not [name for name, place in first.items() if place < 0]
    assert sorted(first, key=first.get) == core()


def opened_structs(texts: dict[str, str]) -> dict[str, set[str]]:
    """From each struct of the engine's that the command line names or opens to the files that do.
    Its own structs, heads.h's and inspect.h's are for it, and so are members of the same names."""
    cli = {name: text for name, text in texts.items() if name.startswith("cli/")}
    names = {name: names_of(text) for name, text in texts.items()}
    mine = [names[name] for name in [*cli, "heads.h", "library/inspect.h", "text/json.h"]]
    members = {word for file in mine for word in file.opened()}
    types = {word for file in mine for word in file.types}
    theirs = {
        struct: has
        for name, file in names.items()
        if name.endswith(".h") and file not in mine
        for struct, has in file.members.items()
    }
    found: dict[str, set[str]] = {}
    for name, text in cli.items():
        code = NO_CODE.sub(" ", text)
        opened, named = set(OPENED.findall(code)) - members, set(NAMED.findall(code)) - types
        for struct, has in theirs.items():
            if has & opened or struct in named:
                found.setdefault(struct, set()).add(name)
    return found


def test_the_command_line_opens_no_struct_of_the_engine():
    """It has the engine's calls, as any program has those of heads.h, and no more."""
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in c_files()}
    texts["cli/run.c"] = texts.pop("run.c")
    texts = {n: text for n, text in texts.items() if not n.startswith(("tests/", "examples/"))}
    assert opened_structs(texts) == {}
    for line in ("m->tower", "(&w)->spans", "Layer *l", "w->pool"):
        more = texts["cli/info.c"] + f"int more(void) {{\n    return {line};\n}}\n"
        assert opened_structs({**texts, "cli/info.c": more}), line


def test_few_files_lie_at_the_root():
    assert len([path for path in c_files() if path.parent == ROOT]) <= ROOT_FILES


def test_files_of_tests_have_names_of_their_own():
    """pytest reads all but the extras in one run, in which a file is a module of its bare name."""
    paths = [p for p in (ROOT / "tests").glob("**/test_*.py") if "extras" not in p.parts]
    names = [path.name for path in paths]
    assert len(names) > 50 and not {name for name in names if names.count(name) > 1}


def test_files_do_not_need_each_other_in_circles():
    """Kernels have one, which macros make. What a header declares belongs to the file that defines
    it."""
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in c_files()}
    outside = ("kernels/", "tests/", "examples/")
    found = circles(uses({n: text for n, text in texts.items() if not n.startswith(outside)}))
    assert len(found) <= CIRCLES, "\n".join(map(" ".join, found))


def test_the_check_of_circles_itself():
    texts = {
        "a.h": "extern const int table[];\nint below(int x);\nstatic inline int one(void) { return 1; }\n",
        "a.c": '#include "b.h"\nint below(int x) {\n    return x;  // above(x)\n}\n',
        "b.c": 'int above(\n    int x) {\n    char *s = "other(";\n    return below(x) + one();\n}\n',
        "room/a.c": "static int below(int x) { return x; }\nint other(void) { return below(x); }\n",
        "c.c": "const int table[] = {1};\n",
    }
    assert uses(texts) == {"a": set(), "b": {"a"}, "room/a": set(), "c": set()}
    assert circles(uses(texts)) == []
    texts["a.c"] += "int more(void) {\n    return table[0] + p->above(1);\n}\n"
    assert uses(texts)["a"] == {"c"} and circles(uses(texts)) == []
    texts["c.c"] += "void last(void) { above(1); }\n"
    assert circles(uses(texts)) == [["a", "b", "c"]]


DOCS = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}


def test_docs_are_short():
    """But for what code makes, which makes no sentences."""
    words = sum(map(documents.words, DOCS.values()))
    print(f"{words} words")
    assert words <= DOCS_WORDS


def test_what_docs_leave_uncounted_is_made():
    """Each table between comments that say so: its maker exists, and it has rows and headings."""
    made = {name: documents.MADE.findall(text) for name, text in DOCS.items()}
    assert {name: len(found) for name, found in made.items() if found} == {
        "accuracy.md": 1,
        "export.md": 1,
        "families.md": 1,
        "variants.md": 7,
    }
    for name, found in made.items():
        assert DOCS[name].count("end -->") == len(found)
        for maker, table in found:
            path = maker.split()[-1] if maker.endswith(".py") else "research/lab/report.py"
            if " -m " in maker:
                path = maker.split()[2].replace(".", "/")
            assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), maker
            lines = [line for line in table.splitlines() if line and not line.startswith("#")]
            rows = [line for line in lines if line.startswith("|")]
            assert len(rows) >= 0.9 * len(lines) > 0, maker


def test_the_count_of_words_itself():
    assert documents.words("one two\n<!-- lab: speed -->\n| a | b |\n<!-- end -->\nthree") == 3
    assert (
        documents.words("<!-- python -m x --y: begin -->\n| a |\n<!-- python -m x --y: end -->")
        == 0
    )
    assert documents.words("| a | b |\n<!-- note -->\n") == 8


def test_the_pages_scripts_are_short():
    scripts = [*(ROOT / "browser/live").glob("*.js"), *(ROOT / "browser/page").glob("*.js")]
    lines = sum(path.read_bytes().count(b"\n") for path in scripts)
    print(f"{lines} lines")
    assert 1_000 < lines <= JS_LINES


def test_the_library_for_pages_is_thin():
    web = ROOT / "browser" / "web"
    lines = sum(path.read_bytes().count(b"\n") for path in [web / "web.c", *web.glob("*.js")])
    assert 100 < lines <= WEB_LINES


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= README_WORDS


def test_types_are_told_apart_by_their_table():
    """math/dtypes.c and the kernels alone ask whether numbers are of one type or another."""
    asked = re.compile(
        r"[!=]= *(?:Q8|Q4|BF16|F16)\b|\b(?:Q8|Q4|BF16|F16) *[!=]=|\bcase (?:Q|B?F)\d"
    )
    assert asked.search("if (m->dtype == Q8)") and asked.search("case Q4:")
    rooms = ("kernels/", "tests/", "examples/")
    known = [
        name_of(path)
        for path in c_files()
        if not name_of(path).startswith(rooms) and asked.search(path.read_text(encoding="utf-8"))
    ]
    assert known == []


def test_only_system_knows_operating_systems():
    """They have files of their own there, which the Makefile chooses."""
    names = (
        "(__)?(linux|gnu_linux|unix|APPLE|MACH|WIN(32|64)|MINGW(32|64)|CYGWIN|wasi|ANDROID)(__)?"
    )
    asked = re.compile(rf"(?m)^[ \t]*#[ \t]*(?:if|elif).*\b_?{names}\b")
    assert asked.search("#if defined(_WIN32)") and asked.search("#ifdef __linux__")
    known = [
        name_of(path)
        for path in c_files()
        if not name_of(path).startswith(("system/", "tests/"))
        and asked.search(path.read_text(encoding="utf-8"))
    ]
    assert known == []


def test_contributing_shows_how_to_do_everything():
    """A page with the two commands of CI, the places where each kind of thing is added, and ten
    lines of style. tests/docs/test_docs.py checks its links and commands."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 600
    assert re.findall(r"^(?:HEADS_CI=all )?\.ci/run", text, re.MULTILINE) == [
        ".ci/run",
        "HEADS_CI=all .ci/run",
    ]
    added = re.findall(r"^\| (\w[\w .`/]*) \| [^|]*\]\(", text, re.MULTILINE)
    assert added == ["family", "mixer", "type of numbers", "verb of `./run`", "instruction set"]
    assert [int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] == list(range(1, 11))
    files = re.findall(r"^((?:data|models)/[\w./]+)", text, re.MULTILINE)
    assert len(files) == 5
    for file in files:
        root = file.replace("/NAME/tokenizer.json", "").rstrip("/")
        assert root in (ROOT / ".ci" / "run").read_text(encoding="utf-8"), file
