"""Which routes serve log-probabilities, best first; and how the CUDA route divides the columns."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route
from ninfer.kernels.spans import span_grid, spans_of


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """Two launches. Floor: the logits are read once, 4 * T * V bytes, and T * V exponentials in fp32.

    Attributes:
        spans: pieces of a row, each of which leaves its greatest value and a sum.
        grid: blocks of the first launch; the second has one per row.
        sums: where the sums begin in the workspace, in bytes.
        workspace: bytes.
    """

    spans: int
    grid: tuple[int, int, int]
    sums: int
    workspace: int


def cuda_plan(rows: int, columns: int) -> CudaPlan:
    """The division of [rows, columns]. A row's part of it does not depend on the number of rows."""
    spans = spans_of(columns)
    return CudaPlan(spans, span_grid(rows, columns), rows * spans * 4, rows * spans * 8)
