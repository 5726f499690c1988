""".ci/run without the folder of real files: what needs it is left out and named, all else counts."""

from __future__ import annotations

import re
import subprocess

from conftest import ROOT

SCRIPT = ROOT / ".ci" / "run"


def close(tmp_path, steps: str, data: str = "MISSING") -> tuple[int, list[str]]:
    """The exit status and lines of .ci/run's closing, after steps that are called alone."""
    (tmp_path / "logs").mkdir()
    script = f"""
        export HEADS_DATA='{tmp_path / data}'
        source '{SCRIPT}'
        logs='{tmp_path}/logs' results='{tmp_path}/results'
        : >"$results"
        {steps}
        closing"""
    done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout.splitlines()


def real_steps() -> list[str]:
    return re.findall(r'^    \["(.*)"\]=', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


def test_steps_without_their_files_are_left_out(tmp_path):
    names = real_steps()
    steps = "\n".join(f'step "{name}" false' for name in names) + '\nstep "another" true'
    status, lines = close(tmp_path, steps)
    assert status == 0 and lines[-1] == f"1 passed, 0 failed, {len(names)} skipped"
    left_out = [line.partition(": ")[2] for line in lines[-2 - len(names) : -2]]
    assert left_out == names and len(names) == 4


def test_each_of_these_steps_is_one(tmp_path):
    text = SCRIPT.read_text(encoding="utf-8")
    for name in real_steps():
        assert re.search(rf'^    (step|once) "{name}" \w', text, re.MULTILINE), name


def test_a_part_of_a_step_may_be_left_out(tmp_path):
    status, lines = close(tmp_path, 'part() { ! have "a part" data/x; }; step "the rest" part')
    assert status == 0 and lines[-1] == "1 passed, 0 failed, 1 skipped"
    assert lines[-3] == "left out, without data/x in HEADS_DATA: a part"


def test_steps_with_their_files_run(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chat_templates.json").write_text("[]")
    name = "chat templates against transformers, real ones"
    fails = "fails() { echo the reason; false; }; "
    status, lines = close(tmp_path, f'{fails}step "{name}" fails; step "another" true', ".")
    assert status == 1 and lines[-1] == "1 passed, 1 failed"
    assert f"failed: {name}: the reason" in lines


def drawn(how: str) -> list[str]:
    """The steps that a run with these settings leaves to other runs."""
    done = subprocess.run(
        ["bash", "-c", f"source '{SCRIPT}'; {how}; draw; printf '%s\\n' \"${{!not_drawn[@]}}\""],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return sorted(done.stdout.split("\n")[:-1])


def test_of_steps_that_take_turns_one_is_drawn():
    text = SCRIPT.read_text(encoding="utf-8")
    lines = re.search(r"^turns=\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL).group(1)
    turns = [re.findall(r'[^"|]+', line) for line in re.findall(r'"(.*)"', lines)]
    for name in sum(turns, []):
        assert re.search(rf'^    (step|once) "{name}" \w', text, re.MULTILINE), name
    left = [drawn(f"HEADS_SEED={seed}") for seed in range(12)]
    for names in turns:
        assert all(len(set(names) - set(one)) == 1 for one in left)
        assert len({tuple(set(names) - set(one)) for one in left}) == len(names)  # each in its turn
    assert drawn("HEADS_SEED=3") == left[3] and drawn("HEADS_CI=all") == [""]


def test_a_step_that_is_not_drawn_is_named(tmp_path):
    status, lines = close(tmp_path, "HEADS_SEED=7; not_drawn[a]=1; step a false; step b true")
    assert status == 0 and lines[-1] == "1 passed, 0 failed"
    assert lines[-3] == "not drawn by HEADS_SEED=7: a"
