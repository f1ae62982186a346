"""Which routes serve a write to the paged KV store, best first.

Floor on CUDA: 8 D bytes read per token and KV head, and its stored bytes (of 256 numbers, both sides: bf16 1024, int8
528, fp8 516, k8v4 402, nvfp4 288) written. In a decode round that is less than a launch, so the model uses
qk_norm_rope_append.
"""

from __future__ import annotations

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]
