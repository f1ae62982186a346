"""gated_sigmoid in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.gated_sigmoid.plan import CUDA_THREADS, cuda_plan
from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.steps import whole_steps


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


_SOURCE = CudaSource(Path(__file__).with_name("gated_sigmoid.cu"), {"gated_sigmoid": _Args})

WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = ((_SOURCE, {"NINFER_WHOLE": 1}),)
DECODE_KERNELS = frozenset({"gated_sigmoid"})


def gated_sigmoid(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    args = _Args(x.data_ptr(), gate.data_ptr(), out.data_ptr(), x.numel())
    macros = {"NINFER_WHOLE": int(whole_steps(x.numel(), x, gate, out))}
    how = Launch((cuda_plan(x.numel()), 1, 1), (CUDA_THREADS, 1, 1), macros=macros)
    _SOURCE.launch("gated_sigmoid", how, args, x, gate, out)
