"""Oracles of log_softmax_gather and top_logprobs in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def log_softmax_gather(logits: F32, targets: I64) -> F64:
    """out [T] of the contract."""
    return _log_softmax(logits)[np.arange(len(targets)), targets]


def top_logprobs(logits: F32, k: int) -> tuple[I64, F64]:
    """(ids_out, values_out) of the contract."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k].astype(np.int64)
    return ids, np.take_along_axis(_log_softmax(logits), ids, axis=-1)


def _log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: F64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
