"""gated_sigmoid in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("gated_sigmoid.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "gated_sigmoid", _Args)


def gated_sigmoid(body: Route, x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    args = _Args(x.data_ptr(), gate.data_ptr(), out.data_ptr(), x.numel())
    _KERNEL.launch(body, args, x, gate, out)
