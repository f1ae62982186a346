"""Oracle of qk_norm_rope in fp64, from angles rounded to fp32 as the contract defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def qk_norm_rope(
    x: F32,
    weight: F32,
    eps: float,
    positions: NDArray[np.int32],
    inverse_frequencies: F32,
    sections: tuple[int, int, int],
) -> F64:
    """One side, queries or keys: x [T, heads, D] normed and rotated; frequencies [rotary_dim / 2] as represented."""
    wide = x.astype(np.float64)
    out: F64 = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * (1 + weight.astype(np.float64))
    pairs = len(inverse_frequencies)
    for r, frequency in enumerate(inverse_frequencies):
        axis = 1 if r % 3 == 1 and r < 3 * sections[1] else 2 if r % 3 == 2 and r < 3 * sections[2] else 0
        angle = (positions[axis].astype(np.float32) * frequency).astype(np.float64)[:, None]
        first, second = out[..., r].copy(), out[..., r + pairs].copy()
        out[..., r] = first * np.cos(angle) - second * np.sin(angle)
        out[..., r + pairs] = second * np.cos(angle) + first * np.sin(angle)
    return out
