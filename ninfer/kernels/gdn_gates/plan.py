"""Which routes serve a computation of GDN gates, best first, and how many blocks the CUDA kernel runs.

Floors on CUDA, per token and head: 8 bytes read, 8 written; some 80 operations of accurate functions.
"""

from __future__ import annotations

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

CUDA_THREADS = 128


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(elements: int) -> int:
    """Blocks of CUDA_THREADS threads with one element each."""
    return -(-elements // CUDA_THREADS)
