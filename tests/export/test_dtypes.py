"""The exporter's table of types is the engine's."""

from __future__ import annotations

import re

from conftest import ROOT

from exporter.quantize import panels

ROW = re.compile(
    r"\[\w+\] = \{\"(\w+)\", (\d+), (\d+), (\w+), (true|false), (true|false), \w+, (\w+)"
)


def test_both_tables_have_the_same_rows():
    rows = ROW.findall((ROOT / "math" / "dtypes.c").read_text(encoding="utf-8"))
    engine = {
        name: (
            int(code),
            int(bits),
            panels.BLOCK if block == "BLOCK" else int(block),
            scaled == "true",
        )
        for name, code, bits, block, scaled, _, _ in rows
    }
    assert len(engine) == 5
    exporter = {
        name: (kind.code, kind.bits, kind.block, kind.rounded is not None)
        for name, kind in panels.DTYPES.items()
    }
    assert engine == exporter
    assert panels.WEIGHTS == tuple(row[0] for row in rows if row[6] != "NULL")
