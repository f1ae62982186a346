"""Oracles of swiglu and gate_up_swiglu in fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def swiglu(gate_up: NDArray[Any]) -> F64:
    """out [T, I] of the contract."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    result: F64 = gate / (1 + np.exp(-gate)) * up
    return result


def gate_up_swiglu(x: NDArray[np.float32], w: F64) -> F64:
    """out [T, I] of the contract; w [2I, K] are the represented weights."""
    return swiglu(x.astype(np.float64) @ w.T)
