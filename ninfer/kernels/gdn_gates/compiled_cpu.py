"""gdn_gates in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("gdn_gates.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("a_log", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "gdn_gates", _Args)


def gdn_gates(
    body: Route,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    g_out: torch.Tensor,
    beta_out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    tensors = (a, b, a_log, dt_bias, g_out, beta_out)
    _KERNEL.launch(body, _Args(*(tensor.data_ptr() for tensor in tensors), *a.shape), *tensors)
