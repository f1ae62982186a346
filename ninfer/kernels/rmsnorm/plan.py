"""Which routes serve an RMSNorm, best first, and how the CUDA kernel divides a row.

Floors on CUDA, per row of H columns: 4 H bytes read, 4 H written, and 4 H of weight once per call; 4 H operations. At
the widths of decoding a launch costs more than these, so a row is read once, all its loads at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

_STEP = 4  # columns of a 16-byte access
_THREADS = 256
_MOST_THREADS = 1024
_MOST_STEPS = 8  # of a thread; more would leave a block of 1024 short of registers


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """A block of `threads` has one row; each thread has `steps` times four columns."""

    threads: int
    steps: int


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(columns: int) -> CudaPlan:
    """How to divide a row. The columns alone decide, because the order of the sum follows from it."""
    steps = -(-columns // _STEP)
    threads = 32
    while threads < _THREADS and threads < steps:
        threads *= 2
    while threads < _MOST_THREADS and threads * _MOST_STEPS < steps:
        threads *= 2
    return CudaPlan(threads, -(-steps // threads))
