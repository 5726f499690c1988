"""What --bench reports, as far as it can be told without a clock.

A run reads four times the last-level cache for every case of a round, so tests share runs."""

from __future__ import annotations

import json
import re

import pytest

import checkpoints
from test_refusals import ints, joined, kind
from conftest import run_command, takes_long

SPREAD = ("{0}", "{0}_min", "{0}_max")


def assert_between(share: float, row: dict, per_token: float, report: dict, ceiling: str):
    """A share is a median of ratios of pairs, so it lies between those of the extremes."""
    low = row["tok_s_min"] * per_token / report[ceiling + "_max"]
    high = row["tok_s_max"] * per_token / report[ceiling + "_min"]
    assert 0 < low * 0.999 <= share <= high * 1.001


def assert_share(row: dict, share: str, rate: float, report: dict, ceiling: str):
    assert_between(row[share], row, rate / row["tok_s"], report, ceiling)


@pytest.fixture(scope="session")
def side_by_side(bare, made_once) -> dict:
    """A report with sequences side by side."""

    def fill(folder):
        options = ["--bench", "--json", "-t", 2, "-ctk", "f32", "-ctv", "f16", "-np", "1,33"]
        done = run_command(bare, *options)
        assert done.returncode == 0, done.stderr
        (folder / "report.json").write_bytes(done.stdout)

    report = json.loads((made_once("side-by-side", fill) / "report.json").read_text())
    for figures in [report, *report["prefill"], *report["decode"], *report.get("batch", [])]:
        for low, high in [(key, key[:-4]) for key in figures if key.endswith("_min")]:
            assert 0 < figures[low] <= figures[high] <= figures[high + "_max"]
    return report


@pytest.fixture(scope="session")
def deep(made_once) -> str:
    """The text for a model whose context is long, and whose window every long text outgrows."""

    def fill(folder):
        model = folder / "model.bin"
        model.write_bytes(checkpoints.random_model(context=4200, n_layers=1, window=32))
        done = run_command(model, "--bench", "-t", 1, "-b", 512, "-np", 2)
        assert done.returncode == 0, done.stderr
        (folder / "report.txt").write_bytes(done.stdout)

    return (made_once("deep-bench", fill) / "report.txt").read_text()


def prompts_and_depths(text: str) -> tuple[list[str], list[str]]:
    """Those that the table of a text has."""
    return tuple(
        re.findall(rf"^{kind} +(\d+) +[\d.]+ +[\d.]+-[\d.]+ +[\d.]+ +[\d.]+ %$", text, re.M)
        for kind in ("prefill", "decode")
    )


def test_bench_json(run, bare, side_by_side):
    """Names, and what can be told without a clock: bytes and operations from the shape alone."""
    report = side_by_side
    assert [report[key] for key in ("threads", "dtype", "k_dtype", "v_dtype")] == [
        2,
        "f32",
        "f32",
        "f16",
    ]
    assert report["isa"] == json.loads(run(bare, "--info", "--json").stdout)["isa"]
    assert report["read_over"] == "buffer" and 3 <= report["rounds"] <= 15
    names = {
        name.format(key)
        for name in SPREAD
        for key in ("read_gb_s", "peak_gflop_s", "parallel_for_us")
    }
    assert names < set(report)
    assert [row["tokens"] for row in report["prefill"]] == [16, 128, 512]
    assert [row["depth"] for row in report["decode"]] == [0, 479] and report["filled"] == 478
    layer = 2 * (40 * 6 * 16 + 40 * 2 * 16) + 3 * 40 * 72
    for row in report["prefill"]:
        operations = 2 * (3 * layer + 300 * 40 / row["tokens"])
        assert row["gflop_s"] == pytest.approx(row["tok_s"] * operations * 1e-9, rel=1e-4)
        assert_share(row, "share_of_peak", row["gflop_s"], report, "peak_gflop_s")
    weights = json.loads(run(bare, "--info", "--json").stdout)["weight_bytes"]
    for row in report["decode"]:
        read = (
            row["gb_s"] / row["tok_s"] * 1e9 - weights
        )  # of the cache: between the first and the last timed token
        per_token = 3 * 2 * 16 * (4 + 2)
        assert (
            (row["depth"] + 1) * per_token * 0.99 <= read <= (row["depth"] + 16) * per_token * 1.01
        )
        assert_share(row, "share_of_read", row["gb_s"], report, "read_gb_s")


@takes_long
def test_bench_goes_as_deep_as_the_context(run, tiny, deep):
    assert prompts_and_depths(deep) == (["16", "128", "512"], ["0", "1024", "4096", "4184"])
    done = run(tiny, "--bench", "-c", 20)
    assert (
        done.returncode == 1
        and "--bench needs a context of 32 at least, this one is 20" in done.stderr
    )


def test_bench_text(run, stories):
    done = run(stories, "--bench", "-t", 1, "-c", 100)
    text = done.stdout.decode()
    assert done.returncode == 0 and "nan" not in text and "inf" not in text
    assert re.search(r"^ceiling +arithmetic of q8 weights +[\d.]+ GOP/s", text, re.M)
    assert re.search(
        r"^ +streaming read +[\d.]+ GB/s \([\d.]+-[\d.]+\) over \d+ MB, a buffer, streams a thread: [1248]$",
        text,
        re.M,
    )
    assert re.search(r"^pool +an empty parallel_for +[\d.]+ us", text, re.M)
    assert prompts_and_depths(text) == (["16"], ["0", "84"])
    assert re.search(r"^ 20%  round 3 of 15$", done.stderr, re.M) and "\r" not in done.stderr


def test_bench_of_sequences_side_by_side(run, bare, side_by_side):
    report = side_by_side
    names = ["sequences", "depth", *(name.format("tok_s") for name in SPREAD)]
    names += ["share_of_peak", "share_of_read"]
    names += [*(name.format("chunk_tok_s") for name in SPREAD), "share_of_chunk"]
    assert all(list(row) == names for row in report["batch"])
    pairs = [(row["depth"], row["sequences"]) for row in report["batch"]]
    deep = 512 - 33  # room for a chunk of as many rows
    assert pairs == [(depth, n) for depth in (0, deep) for n in (1, 33)]
    assert [row["depth"] for row in report["decode"]] == [0, deep]
    weights = json.loads(run(bare, "--info", "--json").stdout)["weight_bytes"]
    layer = 2 * (40 * 6 * 16 + 40 * 2 * 16) + 3 * 40 * 72
    per_token = 3 * 2 * 16 * (4 + 2)
    for row in report["batch"]:
        low, high = row["tok_s_min"], row["tok_s_max"]
        assert low / row["chunk_tok_s_max"] <= row["share_of_chunk"] * 1.0001
        assert row["share_of_chunk"] <= high / row["chunk_tok_s_min"] * 1.0001
        operations = 2e-9 * (3 * layer + 300 * 40)
        assert_between(row["share_of_peak"], row, operations, report, "peak_gflop_s")
        read = 1e-9 * (weights / row["sequences"] + (row["depth"] + 8.5) * per_token)
        assert_between(row["share_of_read"], row, read, report, "read_gb_s")


@takes_long
def test_bench_of_sequences_whose_state_cannot_be_rewound(deep):
    """A window that the text has outgrown: each sample is a fork of its own."""
    rows = re.findall(r"^batch +(\d+) +(\d+) +[\d.]+ ", deep, re.M)
    assert rows == [("0", "2"), ("1024", "2")]
    assert "the sequences are forks of one" in deep


@takes_long
def test_bench_of_several_numbers_of_threads(run, tiny):
    """A report for each; as JSON a list."""
    several = ["--bench", "-c", 40, "-t", "1,2"]
    done = run(tiny, *several, "--json")
    assert done.returncode == 0, done.stderr
    assert [report["threads"] for report in json.loads(done.stdout)] == [1, 2]
    text = run(tiny, *several).stdout.decode()
    assert re.findall(r", (\d) threads; ", text) == ["1", "2"]


@takes_long
def test_bench_counts_the_products_of_every_mixer(run, tmp_path):
    meta = {"model.context": ints(64), "layer.mixer": ints(2, 1)}
    model = tmp_path / "mixers.bin"
    model.write_bytes(joined(kind("deltanet"), kind("shortconv"), meta).file({}, {}))
    done = run(model, "--bench", "--json", "-t", 1)
    assert done.returncode == 0, done.stderr
    prompt = json.loads(done.stdout)["prefill"][0]
    rows = (
        20 + 8 + 2 + 2 + 8
    )  # of DeltaNet: its input, gate, beta and decay, and its output's columns
    products = 16 * 24 * (rows + 3 * 24 + 24 + 2 * 3 * 28) + 24 * 20
    assert prompt["gflop_s"] == pytest.approx(2e-9 * products / 16 * prompt["tok_s"], rel=1e-4)
