"""Oracle of gdn_gates in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def gdn_gates(a: F32, b: F32, a_log: F32, dt_bias: F32) -> tuple[F64, F64]:
    """(g, beta), both [T, Nv], of the contract."""
    softplus = np.logaddexp(0.0, a.astype(np.float64) + dt_bias.astype(np.float64))
    return -np.exp(a_log.astype(np.float64)) * softplus, 1 / (1 + np.exp(-b.astype(np.float64)))
