"""conv_silu in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots

SOURCE = Path(__file__).with_name("conv_silu.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("history", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("taps", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "conv_silu", _Args)


def conv_silu(
    body: Route,
    x: torch.Tensor,
    weight: torch.Tensor,
    history: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    taps, channels = weight.shape
    args = _Args(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        history=history.data_ptr(),
        out=out.data_ptr(),
        slots=slots.data.data_ptr(),
        segments=segments.data.data_ptr(),
        batch=segments.batch,
        channels=channels,
        taps=taps,
    )
    _KERNEL.launch(body, args, x, weight, history, slots, segments, out)
