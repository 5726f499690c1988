"""The exporter's table of types is the engine's."""

from __future__ import annotations

import re

from conftest import ROOT

from exporter.quantize import kept, panels

ROW = re.compile(r'\[(\w+)\] = \{"(\w+)", (\d+), (\d+), (\w+), ')
ALONE = re.compile(r'(?:KEPT|TURNED)\((\w+), "(\w+)", (\d+), (\d+)\)')
FORM = re.compile(r"\[HEADS_(\w+)\] = \{(\d), (\w+), (true|false), (\w+), (-?\d+)\}")
# Bytes that a block of 16 rows has beside its codes, and those that 256 columns share.
SCALES = {
    "SCALE": (32, 0),
    "SCALE_MIN": (64, 0),
    "SCALE_K": (32, 64),
    "SCALE_K16": (32, 32),
    "SCALE_8": (16, 32),
}


def test_both_tables_have_the_same_rows():
    source = (ROOT / "math" / "dtypes.c").read_text(encoding="utf-8")
    header = (ROOT / "kernels" / "blocks.h").read_text(encoding="utf-8")
    forms = {
        name.lower(): (int(bits), SCALES[scales]) for name, bits, scales, *_ in FORM.findall(header)
    }
    rows = [*ROW.findall(source), *((t, n, c, b, "BLOCK") for t, n, c, b in ALONE.findall(source))]
    engine = {
        name: (
            int(code),
            int(bits),
            32 if block == "BLOCK" else int(block),
            *forms.get(name, (0, (0, 0)))[1],
        )
        for _, name, code, bits, block in rows
    }
    assert len(engine) == 21
    assert all(bits == engine[name][1] for name, (bits, _) in forms.items())
    exporter = {
        name: (kind.code, kind.bits, kind.block, kind.scales, kind.shared)
        for name, kind in panels.DTYPES.items()
    }
    assert engine == exporter


def test_what_codes_mean():
    header = (ROOT / "kernels" / "blocks.h").read_text(encoding="utf-8")
    for name, _, _, is_kept, numbers, least in FORM.findall(header):
        if is_kept == "true":
            assert (name.lower() in kept.NUMBERS) == (numbers != "NULL"), name
            assert kept.LEAST.get(name.lower(), 0) == int(least), name
    assert {source.dtype for source in kept.SOURCES.values()} == {
        name for name, kind in panels.DTYPES.items() if kind.scales and not kind.rounded
    }
