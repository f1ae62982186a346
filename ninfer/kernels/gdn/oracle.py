"""Oracle of gdn in fp64: the recurrence, one head and one token at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def gdn(
    q: F32,
    k: F32,
    v: F32,
    g: F32,
    beta: F32,
    state: F32,
    sources: Sequence[int],
    targets: Sequence[int],
    counts: Sequence[int],
) -> tuple[F64, F64]:
    """(out [T, Nv, dv], state after the call [S, Nv, dv, dk]) of the contract."""
    out, after = np.zeros(v.shape), state.astype(np.float64)
    group = v.shape[1] // k.shape[1]
    begin = 0
    for source, target, count in zip(sources, targets, counts, strict=True):
        memory = state[source].astype(np.float64) if source >= 0 else np.zeros(state.shape[1:])
        for t in range(begin, begin + count):
            for j in range(v.shape[1]):
                key, query = _unit(k[t, j // group]), _unit(q[t, j // group])
                decayed = np.exp(np.float64(g[t, j])) * memory[j]
                correction = np.float64(beta[t, j]) * (v[t, j] - decayed @ key)
                memory[j] = decayed + np.outer(correction, key)
                out[t, j] = memory[j] @ query / np.sqrt(len(key))
        after[target] = memory
        begin += count
    return out, after


def _unit(x: F32) -> F64:
    wide = x.astype(np.float64)
    result: F64 = wide / np.sqrt((wide**2).sum() + 1e-6)
    return result
