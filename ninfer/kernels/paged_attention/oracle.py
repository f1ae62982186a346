"""Oracle of paged_attention in fp64, one token and head at a time, over keys and values already gathered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def paged_attention(
    q: F32, keys: Sequence[F64], values: Sequence[F64], starts: Sequence[int], counts: Sequence[int], scale: float
) -> F64:
    """out [T, Hq, D]; keys and values are, per row, the represented [length_b, Hkv, D] in order of position."""
    out = np.zeros(q.shape)
    token = 0
    for k, v, start, count in zip(keys, values, starts, counts, strict=True):
        group = q.shape[1] // k.shape[1]
        for position in range(start, start + count):
            for head in range(q.shape[1]):
                past = slice(0, position + 1), head // group
                scores = k[past] @ q[token, head].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
                out[token, head] = weights @ v[past] / weights.sum()
            token += 1
    return out
