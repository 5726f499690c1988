"""export.py --plan: what it proposes has the parameters and the cache that it says, and both are
within the budget."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import export
from conftest import run_command, takes_long
from exporter import plan
from exporter.checkpoint import Checkpoint

READ, PEAK = 1e10, 5e11


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(plan, "ceilings", lambda: (READ, PEAK))


def propose(capsys, params: str, context: str, memory: str, *more: str) -> list[dict[str, str]]:
    """The rows of the three tables put together, the one to take first; a cell by the name of its
    column."""
    args = ["--plan", "--params", params, "--context", context, "--kv-memory", memory, *more]
    assert export.main(args) == 0
    text = capsys.readouterr().out
    plans: dict[str, dict[str, str]] = {}
    for table in re.findall(r"^  scheme .*\n(?:[* ] [A-Z]+ .*\n)+", text, re.MULTILINE):
        head, *rows = table.splitlines()
        assert len(head) <= 80
        assert [row[0] for row in rows] == ["*", *" " * (len(rows) - 1)]
        for row in rows:
            cells = dict(
                zip(*(re.split(r" {2,}", line.strip("* ").strip()) for line in (head, row)))
            )
            plans.setdefault(cells["scheme"], {}).update(cells)
    return list(plans.values())


def number(text: str) -> int:
    return int(text.split()[0].replace(",", ""))


def exported_shape(config: Path) -> Path:
    out = config.with_suffix(".shape")
    assert export.main(["--random", str(config), str(out), "--shape-only"]) == 0
    return out


BUDGETS = [
    ("260K", 512, "1M"),
    ("3M", 1024, "2M"),
    ("15M", 2048, "4M"),
    ("40M", 4096, "32M"),
    ("125M", 32768, "512M"),
    ("350M", 8192, "256M"),
    ("1.1B", 131072, "4G"),
    ("8B", 8192, "2G"),
]


@pytest.mark.parametrize(
    "budget, scheme",
    [
        *((budget, None) for budget in BUDGETS),
        *((budget, scheme) for budget in (BUDGETS[2], BUDGETS[4]) for scheme in plan.SCHEMES),
    ],
    ids=str,
)
def test_a_plan_is_what_it_says(budget, scheme, tmp_path, capsys):
    (params, context, memory), config = budget, tmp_path / "config.json"
    if scheme == "mha":
        memory = "100G"
    more = ["--scheme", scheme] if scheme else []
    rows = propose(capsys, params, str(context), memory, *more, "-o", str(config))
    most = plan.scaled("KMBT", 1000)(params)
    shape = exported_shape(config)
    weights = re.search(r"([\d,]+) weights", capsys.readouterr().out)[1]
    assert weights == rows[0]["parameters"] and 0.9 * most < number(weights) <= most
    tensors = Checkpoint(str(shape)).tensors.values()
    assert sum(rows * cols for _, rows, cols, _, _ in tensors) == number(weights)
    c = json.loads(config.read_text())
    assert [int(rows[0][k]) for k in ("layers", "width", "heads", "ff")] == [
        c["num_hidden_layers"],
        c["hidden_size"],
        c["num_attention_heads"],
        c["intermediate_size"],
    ]
    for row in rows:
        assert number(row["parameters"]) <= most
        assert scheme is None or row["scheme"].split()[0].lower() == scheme
    for dtype in plan.CACHES:
        done = run_command(shape, "--kv", "--json", "-c", context, "-ctk", dtype, "-ctv", dtype)
        own = next(row for row in json.loads(done.stdout)["rows"] if row["own"])
        assert own["scheme"].lower() == rows[0]["scheme"].split()[0].lower()
        assert plan.token_bytes(c)[dtype] * context == own["bytes_at_context"]
        assert plan.size(own["bytes_at_context"]) == rows[0][f"cache {dtype}"]
        if dtype == "f16":
            assert own["bytes_at_context"] <= plan.scaled("KMGT", 1024)(memory)
    info = json.loads(run_command(shape, "--info", "--json").stdout)
    bytes_in_all = sum(tensor["bytes"] for tensor in info["tensors"])
    assert plan.size(bytes_in_all) == rows[0]["q8"]
    rates = [float(rows[0][k].replace(",", "")) for k in ("decode", f"at {context:,}")]
    cache = plan.token_bytes(c)["f16"] * context
    assert rates[0] == pytest.approx(READ / info["weight_bytes"], rel=0.01)
    assert rates[1] == pytest.approx(READ / (info["weight_bytes"] + cache), rel=0.01)


def test_prefill_is_the_arithmetic_of_the_layers(capsys):
    row = propose(capsys, "8B", "8192", "2G", "--vocab", "128256")[0]
    layers = number(row["parameters"]) - 2 * 128256 * int(row["width"])
    assert float(row["prefill"].replace(",", "")) == pytest.approx(PEAK / 2 / layers, rel=0.01)


@pytest.mark.parametrize("scheme", plan.SCHEMES)
def test_a_plan_runs(scheme, tmp_path, capsys, run):
    config, out = tmp_path / "config.json", tmp_path / "x.bin"
    propose(capsys, "400K", "1K", "4M", "--scheme", scheme, "--vocab", "300", "-o", str(config))
    assert export.main(["--random", str(config), str(out)]) == 0
    assert "random weights in the shape of" in capsys.readouterr().out
    done = run(out, "--tokens", "5 6 7", "-n", 8, "-s", 1)
    assert done.returncode == 0 and len(done.stdout.split()) == 11


def test_more_memory_means_no_smaller_cache(capsys):
    caches = [
        int(propose(capsys, "125M", "32K", memory, "--scheme", "gqa")[0]["KV"])
        for memory in ("300M", "512M", "2G")
    ]
    assert caches == sorted(caches) and caches[0] < caches[-1]


def test_reasons_name_their_sources(capsys):
    def said(*args: str) -> str:
        assert export.main(["--plan", *args]) == 0
        return capsys.readouterr().out

    small = said("--params", "125M", "--context", "32768", "--kv-memory", "512M")
    for source in ("MobileLLM", "Ainslie", "2002.05202", "Tao et al. 2024", "Hoffmann"):
        assert source in small
    large = said(
        "--params",
        "8B",
        "--context",
        "8K",
        "--kv-memory",
        "1G",
        "--scheme",
        "mla",
        "--vocab",
        "32000",
    )
    assert "Kaplan" in large and "2405.04434" in large and "as --vocab says" in large


def test_impossible_budgets_name_the_nearest(capsys):
    """And the nearest is possible."""

    def refused(*args: str) -> str:
        assert export.main(["--plan", *args]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    for scheme in ([], ["--scheme", "mha"]):  # of all schemes it is MLA
        budget = ["--params", "125M", "--context", "1M", "--kv-memory", "64M", *scheme]
        said = refused(*budget)
        assert "parameters keeps 1,048,576 tokens in 64 M. The nearest is" in said
        memory, context = re.search(r"--kv-memory (\d+), or --context (\d+)", said).groups()
        propose(capsys, "125M", "1M", memory, *scheme)
        propose(capsys, "125M", context, "64M", *scheme)
        assert "The nearest" in refused(*budget[:4], "--kv-memory", str(int(memory) - 1), *scheme)
    said = refused("--params", "10K", "--context", "100", "--kv-memory", "1G", "--vocab", "256")
    least = re.search(r"the smallest with such a vocabulary has ([\d,]+)", said)[1]
    propose(capsys, str(number(least)), "100", "1G", "--vocab", "256")
    less = str(number(least) - 1)
    assert "the smallest" in refused(
        "--params", less, "--context", "100", "--kv-memory", "1G", "--vocab", "256"
    )
    budget = ["--context", "1", "--kv-memory", "1T", "--scheme", "mha"]
    said = refused("--params", "900T", *budget)
    most = number(re.search(r"256 heads and 512 layers at most, .* about ([\d,]+)", said)[1])
    assert export.main(["--plan", "--params", str(most), *budget]) == 0
    capsys.readouterr()
    budget = ["--params", "125M", "--context", "32K", "--kv-memory", "512M"]
    assert "its directory does not exist" in refused(*budget, "-o", "/nowhere/config.json")


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "the following arguments are required: --params, --context, --kv-memory"),
        (
            ["--params", "x", "--context", "1", "--kv-memory", "1"],
            "expected a size such as 125M: 'x'",
        ),
        (["--params", "0", "--context", "1", "--kv-memory", "1"], "expected a size"),
        (["--params", "1M", "--context", "1", "--kv-memory", "1Q"], "expected a size"),
        (
            ["--params", "1M", "--context", "1", "--kv-memory", "1", "--scheme", "nsa"],
            "invalid choice",
        ),
        (
            ["--params", "1M", "--context", "1", "--kv-memory", "1", "out.bin"],
            "unrecognized arguments",
        ),
    ],
)
def test_wrong_usage(args, said, capsys):
    with pytest.raises(SystemExit) as stop:
        export.main(["--plan", *args])
    assert stop.value.code == 2 and said in capsys.readouterr().err


def test_out_is_whole_or_not_there(tmp_path, capsys):
    budget = ["--plan", "--params", "1M", "--context", "1K", "--kv-memory", "1M"]
    assert export.main([*budget, "-o", str(tmp_path / "no" / "config.json")]) == 1
    assert export.main([*budget, "-o", str(tmp_path)]) == 1
    assert export.main([*budget, "--vocab", "0"]) == 1
    assert "expected 1 to" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_random_takes_a_config_and_keeps_it(tmp_path, capsys):
    config = tmp_path / "config.json"
    propose(capsys, "300K", "100", "1M", "-o", str(config))
    text = config.read_text()
    assert export.main(["--random", str(config), str(config)]) == 1
    assert "belongs to the source" in capsys.readouterr().err and config.read_text() == text
    config.write_text("{}")
    assert export.main(["--random", str(config), str(tmp_path / "x.bin")]) == 1
    assert "model_type is None, which is not known" in capsys.readouterr().err


@takes_long
def test_ceilings_are_those_of_bench(monkeypatch, tmp_path, capsys):
    monkeypatch.undo()
    read, peak = plan.ceilings()
    assert 1e8 < read < 1e13 and 1e8 < peak < 1e15
    monkeypatch.setattr(plan, "ROOT", str(tmp_path))
    assert plan.ceilings() is None
    assert "export: no speeds: they take ./run, which is not built" in capsys.readouterr().err
    rows = propose(capsys, "1M", "1K", "1M")
    assert rows[0]["prefill"] == rows[0]["decode"] == "-"
