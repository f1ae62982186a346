"""swiglu in C++. gate_up_swiglu is an epilogue of the linear kernels: see linear/compiled_cpu.py."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("swiglu.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("gate_up", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "swiglu_rows", _Args)


def swiglu(body: Route, gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = out.shape
    _KERNEL.launch(body, _Args(gate_up.data_ptr(), out.data_ptr(), rows, columns), gate_up, out)
