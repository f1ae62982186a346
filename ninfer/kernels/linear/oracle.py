"""Oracle of linear in fp64, from weights decoded exactly by the artifact's codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.floats import bf16_to_fp32, fp32_to_bf16
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


def linear_bf16(x: F32, parts: Sequence[StoredRows], signs: F32 | None = None, residual: F32 | None = None) -> F64:
    """out [T, N] of the contract where x is rounded to bf16, but not for rows stored as fp32; what follows in fp64."""
    rotated = x if signs is None else _rotated(x, signs)
    rounded = bf16_to_fp32(fp32_to_bf16(rotated))
    taken = [rotated if part.format is Format.FP32 else rounded for part in parts]
    products = [given.astype(np.float64) @ represented([part]).T for given, part in zip(taken, parts, strict=True)]
    product: F64 = np.concatenate(products, axis=1)
    return product if residual is None else product + residual.astype(np.float64)


def linear_a8(x: F32, parts: Sequence[StoredRows], signs: F32 | None = None, residual: F32 | None = None) -> F64:
    """out [T, N] of the contract where x is quantised: its codes and scales in fp32, what follows in fp64."""
    rotated = x if signs is None else _rotated(x, signs)
    products = [_represented_a8(rotated, part.format.spec.group) @ represented([part]).T for part in parts]
    product: F64 = np.concatenate(products, axis=1)
    return product if residual is None else product + residual.astype(np.float64)


def _represented_a8(x: F32, group: int) -> F64:
    """The values that quantised x represents: scale times code, per token and group of columns."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % group)))
    groups = padded.reshape(len(x), -1, group)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    with np.errstate(all="ignore"):
        codes = np.rint(groups * (np.float32(127) / amax))
    kept = amax >= np.float32(2.0**-119)
    values = np.where(kept, codes, 0).astype(np.float64) * (amax / np.float32(127)).astype(np.float64)
    represented_x: F64 = values.reshape(padded.shape)[:, : x.shape[1]]
    return represented_x


def _rotated(x: F32, signs: F32) -> F32:
    """The rotation in fp32, in the stages of the fast transform: codes turn on the last bit of what they round."""
    values, span = x * signs, 1
    while span < 1024:
        pairs = values.reshape(len(x), -1, 2, span)
        values = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2)
        span *= 2
    result: F32 = values.reshape(x.shape) * np.float32(1 / 32)
    return result


def _sylvester(order: int) -> F64:
    """The normalised Hadamard matrix: entry (i, j) is (-1)^popcount(i & j) / sqrt(order)."""
    index = np.arange(order)
    parity = np.array([int(v).bit_count() & 1 for v in range(order)])[index[:, None] & index[None, :]]
    result: F64 = (1.0 - 2.0 * parity) / np.sqrt(order)
    return result
