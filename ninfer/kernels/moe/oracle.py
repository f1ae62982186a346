"""Oracles of the mixture-of-experts ops in fp64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def moe_route(logits: F32, top_k: int) -> tuple[I64, F64]:
    """(ids_out, weights_out) of the contract."""
    wide = logits.astype(np.float64)
    p = np.exp(wide - wide.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    ids = np.argsort(-p, axis=-1, kind="stable")[:, :top_k].astype(np.int64)
    chosen = np.take_along_axis(p, ids, axis=-1)
    return ids, chosen / chosen.sum(axis=-1, keepdims=True)


def moe_experts(x: F32, gate_up: Sequence[F64], down: Sequence[F64], ids: I64, weights: F32) -> F64:
    """out [T, H] of the contract; gate_up [2I, H] and down [H, I] are each expert's represented weights."""
    out = np.zeros(x.shape, np.float64)
    for row, (chosen, shares) in enumerate(zip(ids, weights.astype(np.float64), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = np.split(gate_up[expert] @ x[row].astype(np.float64), 2)
            out[row] += share * (down[expert] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def moe_shared_add(shared: F32, score: F32, out: F32) -> F64:
    """The new out [T, H] of the contract, from its old value."""
    result: F64 = out.astype(np.float64) + shared.astype(np.float64) / (1 + np.exp(-score.astype(np.float64)))
    return result
