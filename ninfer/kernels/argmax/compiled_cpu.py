"""argmax in C++: columns are divided among the threads; a comparison has no rounding, so this cannot show."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("argmax.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("mask_stride", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "argmax", _Args)


def argmax(body: Route, logits: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, columns = logits.shape
    words = None if mask is None else mask.data_ptr()
    stride = 0 if mask is None or len(mask) == 1 else mask.shape[1]
    args = _Args(logits.data_ptr(), words, out.data_ptr(), rows, columns, stride)
    _KERNEL.launch(body, args, logits, mask, out)
    for row, token in enumerate(out.tolist()):
        if token < 0:
            raise ValueError(f"argmax: row {row} has no answer: its best allowed logit is -inf, or one is NaN")
