"""Memory that costs nothing until it is used."""

from __future__ import annotations

import math

import numpy as np
import torch

_ALIGN = 64  # a cache line, as torch aligns its own


def lazy_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A contiguous CPU tensor of zeros whose pages the system provides when they are first touched.

    Pools are sized for the worst case; `torch.zeros` would write, and so occupy, all of it at once.
    """
    size = math.prod(shape) * dtype.itemsize
    backing = np.zeros(size + _ALIGN - 1, np.uint8)
    begin = -backing.ctypes.data % _ALIGN
    return torch.from_numpy(backing[begin : begin + size]).view(dtype).view(shape)
