"""Oracle of linear in fp64, from weights decoded exactly by the artifact's codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.formats import Format

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows [row_begin, row_end) of a stored matrix of `shape`; `data` are the bytes of the whole object."""

    format: Format
    shape: tuple[int, int]
    row_begin: int
    row_end: int
    data: NDArray[np.uint8]


def represented(parts: Sequence[StoredRows]) -> F64:
    """The values that the stored rows represent, concatenated: [N, K]."""
    decoded = [codec.decode(p.data, p.format, p.shape)[p.row_begin : p.row_end] for p in parts]
    return np.concatenate(decoded).astype(np.float64)


def linear(x: F32, parts: Sequence[StoredRows], signs: F32 | None = None, residual: F32 | None = None) -> F64:
    """out [T, N] of the contract."""
    wide = x.astype(np.float64)
    if signs is not None:
        blocks = (wide * signs).reshape(len(x), -1, 1024)
        wide = (blocks @ _sylvester(1024).T).reshape(x.shape)
    product: F64 = wide @ represented(parts).T
    return product if residual is None else product + residual.astype(np.float64)


def _sylvester(order: int) -> F64:
    """The normalised Hadamard matrix: entry (i, j) is (-1)^popcount(i & j) / sqrt(order)."""
    index = np.arange(order)
    parity = np.array([int(v).bit_count() & 1 for v in range(order)])[index[:, None] & index[None, :]]
    result: F64 = (1.0 - 2.0 * parity) / np.sqrt(order)
    return result
