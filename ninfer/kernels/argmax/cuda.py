"""argmax on a GPU: a peak per span of columns, then the greatest peak; a comparison has no rounding."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.argmax.plan import cuda_plan
from ninfer.kernels.jit import CudaSource, Launch, workspace
from ninfer.kernels.spans import THREADS


class _Args(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("peaks", ctypes.c_void_p),
        ("mask_stride", ctypes.c_int64),
        ("columns", ctypes.c_int32),
        ("spans", ctypes.c_int32),
    )


SOURCE = CudaSource(Path(__file__).with_name("argmax.cu"), {"argmax_spans": _Args, "argmax_rows": _Args})
WARM: tuple[tuple[CudaSource, dict[str, int]], ...] = ((SOURCE, {}),)
DECODE_KERNELS = frozenset({"argmax_spans", "argmax_rows"})


def argmax(logits: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> None:
    """See the contract in the package's docstring. Waits for the answer in order to check it."""
    choose(logits, mask, out)
    for row, token in enumerate(out.tolist()):
        if token < 0:
            raise ValueError(f"argmax: row {row} has no answer: its best allowed logit is -inf, or one is NaN")


def choose(logits: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> None:
    """The launches of `argmax`; out is -1 where a row has no answer."""
    rows, columns = logits.shape
    plan = cuda_plan(rows, columns)
    peaks = workspace("argmax", plan.workspace, like=logits)
    words = None if mask is None else mask.data_ptr()
    stride = 0 if mask is None or len(mask) == 1 else mask.shape[1]
    args = _Args(logits.data_ptr(), words, out.data_ptr(), peaks.data_ptr(), stride, columns, plan.spans)
    keep = (logits, mask, out, peaks)
    SOURCE.launch("argmax_spans", Launch(plan.grid, (THREADS, 1, 1)), args, *keep)
    SOURCE.launch("argmax_rows", Launch((rows, 1, 1), (THREADS, 1, 1)), args, *keep)
