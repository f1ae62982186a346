"""Log-probabilities on a GPU: columns are summed in spans whose place is fixed, a row's spans by one block."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch, workspace
from ninfer.kernels.log_softmax_gather.plan import cuda_plan
from ninfer.kernels.spans import THREADS


class _SpanArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("peaks", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("columns", ctypes.c_int32),
        ("spans", ctypes.c_int32),
    )


class _GatherArgs(ctypes.Structure):
    _fields_ = (("of", _SpanArgs), ("targets", ctypes.c_void_p), ("out", ctypes.c_void_p))


class _TopArgs(ctypes.Structure):
    _fields_ = (("of", _SpanArgs), ("ids", ctypes.c_void_p), ("values", ctypes.c_void_p), ("k", ctypes.c_int64))


SOURCE = CudaSource(
    Path(__file__).with_name("log_softmax_gather.cu"),
    {"log_softmax_spans": _SpanArgs, "log_softmax_gather": _GatherArgs, "top_logprobs": _TopArgs},
)
WARM: tuple[tuple[CudaSource, dict[str, int]], ...] = ((SOURCE, {}),)
DECODE_KERNELS = frozenset(SOURCE.kernels)


def log_softmax_gather(logits: torch.Tensor, targets: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring. The log-probability of a target that does not exist is NaN."""
    spans, scratch = _summarise(logits)
    args = _GatherArgs(spans, targets.data_ptr(), out.data_ptr())
    SOURCE.launch("log_softmax_gather", _per_row(len(logits)), args, logits, targets, out, scratch)


def top_logprobs(logits: torch.Tensor, k: int, ids_out: torch.Tensor, values_out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    if k == 0:
        return
    spans, scratch = _summarise(logits)
    args = _TopArgs(spans, ids_out.data_ptr(), values_out.data_ptr(), k)
    SOURCE.launch("top_logprobs", _per_row(len(logits)), args, logits, ids_out, values_out, scratch)


def _summarise(logits: torch.Tensor) -> tuple[_SpanArgs, torch.Tensor]:
    """Launch the first step; what it leaves, and the memory that holds it."""
    rows, columns = logits.shape
    plan = cuda_plan(rows, columns)
    scratch = workspace("log_softmax_gather", plan.workspace, like=logits)
    args = _SpanArgs(logits.data_ptr(), scratch.data_ptr(), scratch.data_ptr() + plan.sums, columns, plan.spans)
    SOURCE.launch("log_softmax_spans", Launch(plan.grid, (THREADS, 1, 1)), args, logits, scratch)
    return args, scratch


def _per_row(rows: int) -> Launch:
    return Launch((rows, 1, 1), (THREADS, 1, 1))
