"""Which routes serve the output gate, best first, and how many blocks the CUDA kernel runs.

Floors on CUDA, per element: 8 bytes read, 4 written; some 20 operations.
"""

from __future__ import annotations

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

CUDA_THREADS = 128
_ELEMENTS = 4 * CUDA_THREADS  # of a block


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(elements: int) -> int:
    """Blocks of CUDA_THREADS threads with four elements each."""
    return -(-elements // _ELEMENTS)
