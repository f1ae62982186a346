"""Which routes serve a query and key norm with RoPE, best first.

Floor on CUDA: 8 D bytes per token and head, read and written once; with the append, 4 D more per token and KV head for
its values, and the stored bytes of both sides. For the 27B model 57 KB a token: less than a launch in a decode round.
"""

from __future__ import annotations

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]
