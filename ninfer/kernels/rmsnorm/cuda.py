"""rmsnorm in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.rmsnorm.plan import CudaPlan, cuda_plan
from ninfer.kernels.steps import whole_steps


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("shift", ctypes.c_float),
    )


_SOURCE = CudaSource(Path(__file__).with_name("rmsnorm.cu"), {"rmsnorm": _Args})


def _macros(plan: CudaPlan, whole: bool) -> Mapping[str, int]:
    return {"NINFER_THREADS": plan.threads, "NINFER_STEPS": plan.steps, "NINFER_WHOLE": int(whole)}


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = tuple(
    (_SOURCE, _macros(cuda_plan(columns), True)) for columns in (1024, 2048, 5120)
)
DECODE_KERNELS = frozenset({"rmsnorm"})


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: bool, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = x.shape
    plan, whole = cuda_plan(columns), whole_steps(columns, x, weight, out)
    args = _Args(x.data_ptr(), weight.data_ptr(), out.data_ptr(), columns, eps, float(offset))
    how = Launch((rows, 1, 1), (plan.threads, 1, 1), macros=_macros(plan, whole))
    _SOURCE.launch("rmsnorm", how, args, x, weight, out)
