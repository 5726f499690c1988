"""What `make coverage` prints: how many lines and branches of the C outside kernels/ were reached,
the files that lack most first, and what tests/uncovered.txt does not explain.

A line of tests/uncovered.txt is a file, a function, how many of its lines may stay uncovered, and
why; with ~ before the number, chance may cover them. A branch is a way out of a condition, as gcov
counts it. --ran, for `make one-token`: what ran at all."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("support")))
from reading_list import core  # noqa: E402

BARS = {"lines": 99.0, "branches": 92.0}
ELSEWHERE = ("kernels/", "tests/", "examples/", "build/", "/")
REASONS = Path(__file__).with_name("uncovered.txt")


def read(tree: Path, elsewhere: tuple[str, ...] = ELSEWHERE) -> tuple[Counter, Counter]:
    """(file, function, line) -> times run; (file, function, line, branch) -> times taken."""
    rooms = {path.name for path in tree.iterdir() if path.is_dir()} - {"tests", "build"}
    notes = [*(tree / "build").glob("*.gcno")]
    notes += [path for room in rooms for path in (tree / "build" / room).rglob("*.gcno")]
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", *notes]
    done = subprocess.run(command, cwd=tree, check=True, capture_output=True)
    lines, branches = Counter(), Counter()
    for document in filter(None, done.stdout.split(b"\n")):
        for file in json.loads(document)["files"]:
            name = file["file"]
            for line in [] if name.startswith(elsewhere) else file["lines"]:
                place = name, line.get("function_name", ""), line["line_number"]
                lines[place] += line["count"]
                for i, branch in enumerate(line["branches"]):
                    branches[(*place, i)] += branch["count"]
    return lines, branches


def per_cent(counts: list) -> float:
    return 100 * sum(count > 0 for count in counts) / max(len(counts), 1)


def unexplained(lines: Counter, reasons: str) -> list[str]:
    """Uncovered lines without a reason, and reasons without such lines."""
    missed, found = defaultdict(list), []
    for (file, function, number), count in sorted(lines.items()):
        if not count:
            missed[file, function].append(number)
    for text in filter(None, reasons.splitlines()):
        if text.startswith("#"):
            continue
        file, function, most, _ = text.split(None, 3)
        numbers = missed.pop((file, function), [])
        if len(numbers) > int(most.strip("~")):
            found.append(f"{file}: {function}: not {most} lines are uncovered but {numbers}")
        elif not numbers and not (most[0] == "~" and any(k[:2] == (file, function) for k in lines)):
            found.append(f"{file}: {function}: {REASONS.name} gives a reason for no uncovered line")
    return found + [f"{file}: {function}: {n}" for (file, function), n in missed.items()]


def say_what_ran(tree: Path) -> None:
    """What `make one-token` prints: of the core and of all files, what was entered."""
    lines, _ = read(tree, ("tests/", "examples/", "build/", "/"))
    ran = [place for place, count in lines.items() if count]
    for what, places in (("the core", [p for p in ran if p[0] in core()]), ("all", ran)):
        functions = len({place[:2] for place in places})
        files = len({file for file, _, _ in places})
        print(f"{what}: {functions} functions, {len(places):,} lines, {files} files")
    readme = " ".join((tree.parents[1] / "README.md").read_text(encoding="utf-8").split())
    said = re.search(r"runs ([\d,]+) functions in all, ([\d,]+) lines of (\d+) files", readme)
    said = [int(number.replace(",", "")) for number in said.groups()] if said else []
    if not said or any(
        abs(a - b) > 0.05 * b for a, b in zip(said, (functions, len(places), files))
    ):
        sys.exit(f"README.md, Reading the code, says {said}: more than 5 % away from what ran")


def main(tree: Path) -> int:
    lines, branches = read(tree)
    table = []
    for name in {key[0] for key in lines}:
        parts = [[n for key, n in x.items() if key[0] == name] for x in (lines, branches)]
        table.append((sum(not n for part in parts for n in part), name, *map(per_cent, parts)))
    for missing, name, *shares in sorted(table, reverse=True):
        if missing:
            print(f"{shares[0]:6.1f} % of lines {shares[1]:6.1f} % of branches  {name}")
    wrong = unexplained(lines, REASONS.read_text(encoding="utf-8"))
    for text in wrong:
        print(text)
    shares = {name: per_cent(list(x.values())) for name, x in zip(BARS, (lines, branches))}
    print(", ".join(f"{name} {share:.1f} %" for name, share in shares.items()))
    return bool(wrong) or any(shares[name] < bar for name, bar in BARS.items())


if __name__ == "__main__":
    made = Path(sys.argv[-1]).resolve()
    sys.exit(say_what_ran(made) if "--ran" in sys.argv else main(made))
