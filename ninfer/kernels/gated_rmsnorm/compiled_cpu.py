"""gated_rmsnorm in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("gated_rmsnorm.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("z", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("eps", ctypes.c_float),
    )


_KERNEL = Kernel(SOURCE, "gated_rmsnorm", _Args)


def gated_rmsnorm(
    body: Route, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring."""
    tokens, heads, width = x.shape
    args = _Args(x.data_ptr(), z.data_ptr(), weight.data_ptr(), out.data_ptr(), tokens * heads, width, eps)
    _KERNEL.launch(body, args, x, z, weight, out)
