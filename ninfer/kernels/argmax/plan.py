"""Which routes serve an argmax, best first; and how the CUDA route divides the columns."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route
from ninfer.kernels.spans import span_grid, spans_of


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """Two launches. Floor: the logits and masks are read once, 4 * B * V bytes and B * V comparisons.

    Attributes:
        spans: pieces of a row, each of which leaves one peak.
        grid: blocks of the first launch; the second has one per row.
        workspace: bytes.
    """

    spans: int
    grid: tuple[int, int, int]
    workspace: int


def cuda_plan(rows: int, columns: int) -> CudaPlan:
    """The division of [rows, columns]. A row's part of it does not depend on the number of rows."""
    spans = spans_of(columns)
    return CudaPlan(spans, span_grid(rows, columns), rows * spans * 8)
