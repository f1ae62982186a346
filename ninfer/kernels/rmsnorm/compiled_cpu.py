"""rmsnorm in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("rmsnorm.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("shift", ctypes.c_float),
    )


_KERNEL = Kernel(SOURCE, "rmsnorm", _Args)


def rmsnorm(body: Route, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: bool, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = x.shape
    args = _Args(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, columns, eps, float(offset))
    _KERNEL.launch(body, args, x, weight, out)
