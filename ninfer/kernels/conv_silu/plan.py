"""Which routes serve a short convolution, best first, and how the CUDA kernel divides the tokens.

Floors on CUDA for T tokens of B rows, C channels and K taps: 4 C (2 T + 2 B (K - 1) + K) bytes, that is x, out, the
histories before and after, and the weight; 2 K C T operations and a SiLU for each output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

CUDA_THREADS = 64
_CHANNELS = 4 * CUDA_THREADS  # of a block
_RUN = 16
"""Tokens that a thread takes in a row: it reads K - 1 more, and 16 of them are work for all places of a big GPU from
some 1000 tokens on."""


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """Blocks of CUDA_THREADS threads with four channels and `run` tokens each; the grid is blocks x runs x rows."""

    blocks: int
    run: int
    runs: int


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(counts: Sequence[int], channels: int, taps: int) -> CudaPlan:
    """How to divide rows of `counts` tokens. A run is never shorter than the history (see the kernel)."""
    run = max(_RUN, taps - 1)
    return CudaPlan(-(-channels // _CHANNELS), run, max((-(-count // run) for count in counts), default=0))
