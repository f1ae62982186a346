"""gdn and gdn_fold in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots

SOURCE = Path(__file__).with_name("gdn.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("value_heads", ctypes.c_int64),
        ("dv", ctypes.c_int64),
        ("dk", ctypes.c_int64),
    )


_GDN = Kernel(SOURCE, "gdn", _Args)
_FOLD = Kernel(SOURCE, "gdn_fold", _Args)


def gdn(
    body: Route,
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    args = _args(qkv, g, beta, state, slots, segments)
    args.out = out.data_ptr()
    _GDN.launch(body, args, qkv, g, beta, state, slots, segments, out)


def gdn_fold(
    body: Route,
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
) -> None:
    """See the contract in the package's docstring."""
    _FOLD.launch(body, _args(qkv, g, beta, state, slots, segments), qkv, g, beta, state, slots, segments)


def _args(
    qkv: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor, slots: StateSlots, segments: Segments
) -> _Args:
    tokens, width = qkv.shape
    _, heads, dv, dk = state.shape
    return _Args(
        qkv=qkv.data_ptr(),
        g=g.data_ptr(),
        beta=beta.data_ptr(),
        state=state.data_ptr(),
        slots=slots.data.data_ptr(),
        segments=segments.data.data_ptr(),
        batch=segments.batch,
        tokens=tokens,
        width=width,
        value_heads=heads,
        dv=dv,
        dk=dk,
    )
