"""Oracle of rmsnorm in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def rmsnorm(x: F32, weight: F32, eps: float, offset: bool) -> NDArray[np.float64]:
    """out [T, H] of the contract."""
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps)
    result: NDArray[np.float64] = normed * (float(offset) + weight.astype(np.float64))
    return result
