"""Oracles of the mixture-of-experts ops in fp64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Linear = Callable[[F32], F64]
"""The oracle of `linear` with one weight."""


def moe_route(logits: F32, top_k: int) -> tuple[I64, F64]:
    """(ids_out, weights_out) of the contract."""
    wide = logits.astype(np.float64)
    p = np.exp(wide - wide.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    ids = np.argsort(-p, axis=-1, kind="stable")[:, :top_k].astype(np.int64)
    chosen = np.take_along_axis(p, ids, axis=-1)
    return ids, chosen / chosen.sum(axis=-1, keepdims=True)


def moe_experts(x: F32, gate_up: Sequence[Linear], down: Sequence[Linear], ids: I64, weights: F32) -> F64:
    """out [T, H] of the contract; gate_up [.., H] -> [.., 2I] and down [.., I] -> [.., H] are of each expert."""
    out = np.zeros(x.shape, np.float64)
    for row, (chosen, shares) in enumerate(zip(ids, weights.astype(np.float64), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            out[row] += share * down[expert](gated(x[row : row + 1], gate_up[expert]))[0]
    return out


def gated(x: F32, gate_up: Linear) -> F32:
    """SiLU(gate x) * up x of some rows, as it is stored before `down` takes it."""
    gate, up = np.split(gate_up(x), 2, axis=1)
    product: F32 = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    return product


def moe_shared_add(shared: F32, score: F32, routed: F32, residual: F32) -> F64:
    """out [T, H] of the contract."""
    gated = shared.astype(np.float64) / (1 + np.exp(-score.astype(np.float64)))
    result: F64 = residual.astype(np.float64) + (routed.astype(np.float64) + gated)
    return result
