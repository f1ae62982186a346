"""Which routes serve the mixture-of-experts ops, best first."""

from __future__ import annotations

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first. Experts that are not kept as they are stored have no body."""
    return COMPILED_OR_TORCH[problem]
