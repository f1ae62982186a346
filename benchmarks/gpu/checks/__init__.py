"""Every op on the device at official shapes against its fp64 oracle, under the tolerances that the tests use.

The oracles compute on the host from what the device's tensors hold, so shapes are official in their depths (columns,
heads, vocabulary) and short in what only repeats them (rows of weights, tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from gpu.checks import attention, experts, linears, logits, recurrence, rowwise
from gpu.checks.outcome import Outcome, Sizes
from ninfer.errors import CudaError

__all__ = ["Outcome", "Sizes", "run_checks"]

Check = Callable[[Sizes], Iterator[Outcome]]


def run_checks(sizes: Sizes) -> Iterator[Outcome]:
    """All of them, in the order of the catalogue's families. One that fails counts as wrong, and the others go on."""
    with torch.device(sizes.placement.place):
        for check in _CHECKS:
            torch.manual_seed(7)
            try:
                yield from check(sizes)
            except (CudaError, RuntimeError) as error:
                yield Outcome(check.__name__.removeprefix("check_"), f"failed: {error}", np.inf)


_CHECKS: tuple[Check, ...] = (
    *linears.CHECKS,
    *rowwise.CHECKS,
    *attention.CHECKS,
    *recurrence.CHECKS,
    *experts.CHECKS,
    *logits.CHECKS,
)
