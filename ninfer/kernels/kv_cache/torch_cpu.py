"""kv_append with torch: elementwise work and maxima only, so a row's bytes depend on the row alone."""

from __future__ import annotations

import torch

from ninfer.kernels.kv_cache.codec import encode
from ninfer.kernels.kv_cache.pool import PAGE_TOKENS, KvPool


def kv_append(pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    pages, columns = slots // PAGE_TOKENS, slots % PAGE_TOKENS
    for plane, rows in ((pool.keys, k), (pool.values, v)):
        codes, scales = encode(plane.row_format, rows)
        plane.codes[pages, :, columns] = codes
        if scales.shape[-1]:
            plane.scales[pages, :, columns] = scales
