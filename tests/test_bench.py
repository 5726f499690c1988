"""What --bench reports, as far as it can be told without a clock."""

from __future__ import annotations

import json
import re

import pytest

import checkpoints
from conftest import run_command

SPREAD = ("{0}", "{0}_min", "{0}_max")


def assert_between(share: float, row: dict, per_token: float, report: dict, ceiling: str):
    """A share is a median of ratios of pairs, so it lies between those of the extremes."""
    low = row["tok_s_min"] * per_token / report[ceiling + "_max"]
    high = row["tok_s_max"] * per_token / report[ceiling + "_min"]
    assert 0 < low * 0.999 <= share <= high * 1.001


def assert_share(row: dict, share: str, rate: float, report: dict, ceiling: str):
    assert_between(row[share], row, rate / row["tok_s"], report, ceiling)


def bench_json(*arguments: object) -> dict:
    done = run_command(*arguments, "--bench", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for figures in [report, *report["prefill"], *report["decode"], *report.get("batch", [])]:
        for low, high in [(key, key[:-4]) for key in figures if key.endswith("_min")]:
            assert 0 < figures[low] <= figures[high] <= figures[high + "_max"]
    return report


def test_bench_json(run, bare):
    """Names, and what can be told without a clock: bytes and operations from the shape alone."""
    report = bench_json(bare, "-t", 2, "-ctk", "f32", "-ctv", "f16")
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
    assert [row["depth"] for row in report["decode"]] == [0, 496] and report["filled"] == 495
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


def test_bench_goes_as_deep_as_the_context(run, tmp_path):
    model = tmp_path / "model.bin"
    model.write_bytes(checkpoints.random_model(context=4200, n_layers=1, window=32))
    report = bench_json(model, "-t", 1, "-b", 512)
    assert [row["depth"] for row in report["decode"]] == [0, 1024, 4096, 4184]
    report = bench_json(model, "-c", 100)
    assert [row["tokens"] for row in report["prefill"]] == [16]
    assert [row["depth"] for row in report["decode"]] == [0, 84]
    done = run(model, "--bench", "-c", 20)
    assert (
        done.returncode == 1
        and "--bench needs a context of 32 at least, this one is 20" in done.stderr
    )


def test_bench_text(run, stories):
    done = run(stories, "--bench", "-t", 1)
    text = done.stdout.decode()
    assert done.returncode == 0 and "nan" not in text and "inf" not in text
    assert re.search(r"^ceiling +arithmetic of q8 weights +[\d.]+ GOP/s", text, re.M)
    assert re.search(
        r"^ +streaming read +[\d.]+ GB/s \([\d.]+-[\d.]+\) over \d+ MB, a buffer$", text, re.M
    )
    assert re.search(r"^pool +an empty parallel_for +[\d.]+ us", text, re.M)
    assert re.findall(r"^prefill +(\d+) +[\d.]+ +[\d.]+-[\d.]+ +[\d.]+ +[\d.]+ %$", text, re.M) == [
        "16",
        "128",
        "512",
    ]
    assert re.findall(r"^decode +(\d+) +[\d.]+ +[\d.]+-[\d.]+ +[\d.]+ +[\d.]+ %$", text, re.M) == [
        "0",
        "496",
    ]
    assert re.search(r"^ 20%  round 3 of 15$", done.stderr, re.M) and "\r" not in done.stderr


def test_bench_of_sequences_side_by_side(run, bare):
    report = bench_json(bare, "-t", 2, "-ctk", "f32", "-np", "1,4,33")
    names = ["sequences", "depth", *(name.format("tok_s") for name in SPREAD)]
    names += ["share_of_peak", "share_of_read"]
    names += [*(name.format("chunk_tok_s") for name in SPREAD), "share_of_chunk"]
    assert all(list(row) == names for row in report["batch"])
    pairs = [(row["depth"], row["sequences"]) for row in report["batch"]]
    deep = 512 - 33  # room for a chunk of as many rows
    assert pairs == [(depth, n) for depth in (0, deep) for n in (1, 4, 33)]
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


def test_bench_of_sequences_whose_state_cannot_be_rewound(run, tmp_path):
    """A window that the text has outgrown: each sample is a fork of its own."""
    model = tmp_path / "window.bin"
    model.write_bytes(checkpoints.random_model(window=32, context=1100, n_layers=1))
    done = run(model, "--bench", "-np", "2", "-t", 1)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^batch +(\d+) +(\d+) +[\d.]+ ", done.stdout.decode(), re.M)
    assert rows == [("0", "2"), ("1024", "2")]
    assert "the sequences are forks of one" in done.stdout.decode()
