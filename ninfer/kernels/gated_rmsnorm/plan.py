"""Which routes serve a gated RMSNorm, best first, and how the CUDA kernel divides the rows.

Floors on CUDA, per head of dv columns: 8 dv bytes read, 4 dv written; some 30 dv operations, most of them of SiLU.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

_COLUMNS = 128  # of one step of a warp
_MANY_ROWS = 1024  # from here on there is a warp for every place of a big GPU, so blocks of one would only cost
_WARPS = 4


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """A warp has one row, each lane `steps` times four columns of it; a block has `warps` rows."""

    warps: int
    steps: int


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(rows: int, columns: int) -> CudaPlan:
    """How to divide `rows` heads of `columns`; `steps`, and so the order of the sum, follow from the columns alone."""
    return CudaPlan(_WARPS if rows >= _MANY_ROWS else 1, -(-columns // _COLUMNS))
