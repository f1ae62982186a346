"""Oracle of conv_silu in fp64, one token at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def conv_silu(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    history: NDArray[np.float32],
    sources: Sequence[int],
    targets: Sequence[int],
    counts: Sequence[int],
) -> tuple[F64, F64]:
    """(out [T, C], history after the call [S, K-1, C]) of the contract."""
    taps = len(weight)
    out, after = [], history.astype(np.float64)
    begin = 0
    for source, target, count in zip(sources, targets, counts, strict=True):
        past = history[source] if source >= 0 else np.zeros_like(history[0])
        columns = np.concatenate((past, x[begin : begin + count])).astype(np.float64)
        for t in range(count):
            total = (columns[t : t + taps] * weight.astype(np.float64)).sum(axis=0)
            out.append(total / (1 + np.exp(-total)))
        after[target] = columns[count:]
        begin += count
    return np.array(out), after
