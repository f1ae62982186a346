"""Oracle of gated_sigmoid in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def gated_sigmoid(x: F32, gate: F32) -> NDArray[np.float64]:
    """out [T, N] of the contract."""
    result: NDArray[np.float64] = x.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    return result
