"""When CUDA kernels may move rows in steps of 16 bytes; `include/rows.cuh` is the other side."""

from __future__ import annotations

import torch

STEP_BYTES = 16


def whole_steps(columns: int, *tensors: torch.Tensor) -> bool:
    """Whether rows of `columns` fp32 numbers in contiguous tensors consist of whole steps at multiples of a step.

    Which thread takes which column does not depend on it, so neither do the bits of any result.
    """
    return 4 * columns % STEP_BYTES == 0 and all(tensor.data_ptr() % STEP_BYTES == 0 for tensor in tensors)
