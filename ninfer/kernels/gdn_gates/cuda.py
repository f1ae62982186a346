"""gdn_gates in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.gdn_gates.plan import CUDA_THREADS, cuda_plan
from ninfer.kernels.jit import CudaSource, Launch


class _Args(ctypes.Structure):
    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("a_log", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("heads", ctypes.c_int64),
    )


_SOURCE = CudaSource(Path(__file__).with_name("gdn_gates.cu"), {"gdn_gates": _Args})

WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = ((_SOURCE, {}),)
DECODE_KERNELS = frozenset({"gdn_gates"})


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    g_out: torch.Tensor,
    beta_out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    tensors = (a, b, a_log, dt_bias, g_out, beta_out)
    args = _Args(*(tensor.data_ptr() for tensor in tensors), a.numel(), a.shape[1])
    how = Launch((cuda_plan(a.numel()), 1, 1), (CUDA_THREADS, 1, 1))
    _SOURCE.launch("gdn_gates", how, args, *tensors)
