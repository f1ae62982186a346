"""The table of what kernels need."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from benchmarks import kernels_report as report
from ninfer.kernels.jit import CudaSource, catalogue
from ninfer.kernels.jit.build import TARGETS, Compiled, Resources

DOCUMENT = Path(report.__file__).with_name("KERNELS.md").read_text(encoding="utf-8")
TABLE = DOCUMENT.partition(report.BEGIN)[2].partition(report.END)[0]
ROWS = [[part.strip() for part in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")]
SOURCE = CudaSource(Path("op.cu"), {"fast": ctypes.Structure, "slow": ctypes.Structure})


def test_a_row_says_what_each_target_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "decode_kernels", lambda: frozenset({"fast"}))
    lean = Compiled(b"", {"fast": Resources(32, 0, 0, 0), "slow": Resources(40, 512, 16, 0)})
    full = Compiled(b"", {"fast": Resources(40, 0, 0, 0), "slow": Resources(255, 1024, 8, 24)})
    made = report.rows([(SOURCE, {"NINFER_DIM": 256})], ["80", "90a"], {(0, "80"): lean, (0, "90a"): full})
    assert made == ["| **fast** | dim 256 | 0 | 32 | 40 |", "| slow | dim 256 | 512 1024 | 40 s 16 | 255 +24 |"]


def test_only_the_generated_part_is_replaced() -> None:
    document = f"before {report.BEGIN} old {report.END} after"
    assert report.replaced(document, "new") == f"before {report.BEGIN}\nnew\n{report.END} after"
    with pytest.raises(AssertionError, match="lost its marks"):
        report.replaced("before", "new")


def test_the_document_has_every_kernel_with_every_combination_of_macros() -> None:
    """`python benchmarks/kernels_report.py` brings it up to date."""
    rows = {(row[0].strip("*"), row[1]) for row in ROWS}
    wanted = {(kernel, report.label(macros)) for source, macros in catalogue.warm() for kernel in source.kernels}
    assert wanted - rows == set()


def test_no_kernel_of_decode_rounds_spills_for_any_target() -> None:
    assert ROWS[0][3:] == [f"sm_{target}" for target in TARGETS]
    decode = [row for row in ROWS if row[0].strip("*") in catalogue.decode_kernels()]
    assert decode
    assert [row for row in decode if any("+" in need for need in row[3:])] == []
