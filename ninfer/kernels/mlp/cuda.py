"""swiglu with CUDA. gate_up_swiglu is an epilogue of the linear kernels: see linear/cuda.py."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.jit import CudaSource, Launch, workspace
from ninfer.kernels.linear import cuda as linear_cuda
from ninfer.kernels.steps import whole_steps

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight


class SwigluArgs(ctypes.Structure):
    """See swiglu.cu."""

    _fields_ = (
        ("gate_up", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


SOURCE = CudaSource(Path(__file__).with_name("swiglu.cu"), {"swiglu": SwigluArgs})
_THREADS = 256


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = out.shape
    steps = rows * -(-columns // 4)
    macros = {"NINFER_WHOLE": int(whole_steps(columns, gate_up, out))}
    how = Launch((-(-steps // _THREADS), 1, 1), (_THREADS, 1, 1), macros=macros)
    SOURCE.launch("swiglu", how, SwigluArgs(gate_up.data_ptr(), out.data_ptr(), rows, columns), gate_up, out)


def gate_up_swiglu(x: torch.Tensor, w: LinearWeight, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    if linear_cuda.gate_up_swiglu(x, w, out):
        return
    tokens = len(x)
    between = workspace("gate and up", 4 * tokens * w.rows, like=x).view(torch.float32).view(tokens, w.rows)
    linear_cuda.linear(x, w, between)
    swiglu(between, out)


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = ((SOURCE, MappingProxyType({"NINFER_WHOLE": 1})),)
DECODE_KERNELS: frozenset[str] = frozenset({"swiglu"})
