"""Which routes serve a gated delta-net recurrence, best first."""

from __future__ import annotations

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]
