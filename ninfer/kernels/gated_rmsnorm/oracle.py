"""Oracle of gated_rmsnorm in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def gated_rmsnorm(x: F32, z: F32, weight: F32, eps: float) -> NDArray[np.float64]:
    """out [T, Nv, dv] of the contract."""
    wide, gate = x.astype(np.float64), z.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps)
    result: NDArray[np.float64] = normed * weight.astype(np.float64) * gate / (1 + np.exp(-gate))
    return result
