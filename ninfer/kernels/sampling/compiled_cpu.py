"""sample in C++: all rows in one launch, their columns divided among the threads."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route
from ninfer.kernels.sampling.params import SampleFault, SamplingBatch

SOURCE = Path(__file__).with_name("sampling.cpp")
_ID_OUTSIDE = 2


class _Args(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("status", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "sample", _Args)


def sample(body: Route, logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = logits.shape
    parameters = (ctypes.c_void_p * rows)(*[row.address for row in params.rows])
    positions = (ctypes.c_uint64 * rows)(*params.positions)
    status = (ctypes.c_int32 * rows)()
    args = _Args(
        logits.data_ptr(),
        ctypes.addressof(parameters),
        ctypes.addressof(positions),
        out_ids.data_ptr(),
        ctypes.addressof(status),
        rows,
        columns,
    )
    _KERNEL.launch(body, args, logits, params, parameters, positions, status, out_ids)
    if any(status):
        _raise(list(status), columns)


def _raise(status: list[int], columns: int) -> None:
    if _ID_OUTSIDE in status:
        row = status.index(_ID_OUTSIDE)
        raise ValueError(f"sample: row {row}: prompt_ids and outputs must lie in [0, {columns})")
    raise SampleFault(tuple(row for row, fault in enumerate(status) if fault))
