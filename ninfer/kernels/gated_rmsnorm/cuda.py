"""gated_rmsnorm in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.gated_rmsnorm.plan import cuda_plan
from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.steps import whole_steps


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


_SOURCE = CudaSource(Path(__file__).with_name("gated_rmsnorm.cu"), {"gated_rmsnorm": _Args})


def _macros(steps: int, whole: bool) -> Mapping[str, int]:
    return {"NINFER_STEPS": steps, "NINFER_WHOLE": int(whole)}


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = ((_SOURCE, _macros(cuda_plan(48, 128).steps, True)),)
DECODE_KERNELS = frozenset({"gated_rmsnorm"})


def gated_rmsnorm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    tokens, heads, width = x.shape
    rows = tokens * heads
    plan = cuda_plan(rows, width)
    args = _Args(x.data_ptr(), z.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps)
    macros = _macros(plan.steps, whole_steps(width, x, z, weight, out))
    how = Launch((-(-rows // plan.warps), 1, 1), (32 * plan.warps, 1, 1), macros=macros)
    _SOURCE.launch("gated_rmsnorm", how, args, x, z, weight, out)
