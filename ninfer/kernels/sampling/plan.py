"""Which routes serve a sampling step, best first; and how the CUDA route divides the columns."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.bitset import mask_words
from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route
from ninfer.kernels.spans import span_grid, spans_of

MASSES = 257
"""Buckets of weights whose masses are kept per row, and one more: kEntries of parameters.cuh."""
_STATE_BYTES = 24


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """Four launches. Floor: the logits are read once, 4 * B * V bytes, and once more with V exponentials in fp64 by
    each row that no top-k bounds. Offsets are bytes of one workspace.

    Attributes:
        spans: pieces of a row, each of which leaves one peak.
        grid: blocks of the launches that look at all columns; the others have one block per row.
        words: of a row's bitset.
        scale: bits behind the point of the greatest weights: no sum of V of them leaves 63 bits.
        states, masses, fresh, outcome, workspace: where things begin; peaks begin at 0.
    """

    spans: int
    grid: tuple[int, int, int]
    words: int
    scale: int
    states: int
    masses: int
    fresh: int
    outcome: int
    workspace: int


def cuda_plan(rows: int, columns: int) -> CudaPlan:
    """The division of [rows, columns]. A row's part of it does not depend on the number of rows."""
    spans, words = spans_of(columns), mask_words(columns)
    states = rows * spans * 8
    masses = states + rows * _STATE_BYTES
    outcome = masses + rows * MASSES * 8
    fresh = outcome + rows * 2 * 8
    scale = min(52, 63 - columns.bit_length())
    return CudaPlan(
        spans, span_grid(rows, columns), words, scale, states, masses, fresh, outcome, fresh + rows * words * 4
    )
