"""Log-probabilities in C++: columns of all rows are divided among the threads, in spans whose order is fixed."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("log_softmax_gather.cpp")


class _GatherArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


class _TopArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("k", ctypes.c_int64),
    )


_GATHER = Kernel(SOURCE, "log_softmax_gather", _GatherArgs)
_TOP = Kernel(SOURCE, "top_logprobs", _TopArgs)


def log_softmax_gather(body: Route, logits: torch.Tensor, targets: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = logits.shape
    args = _GatherArgs(logits.data_ptr(), targets.data_ptr(), out.data_ptr(), rows, columns)
    _GATHER.launch(body, args, logits, targets, out)


def top_logprobs(body: Route, logits: torch.Tensor, k: int, ids_out: torch.Tensor, values_out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    if k == 0:
        return
    rows, columns = logits.shape
    args = _TopArgs(logits.data_ptr(), ids_out.data_ptr(), values_out.data_ptr(), rows, columns, k)
    _TOP.launch(body, args, logits, ids_out, values_out)
