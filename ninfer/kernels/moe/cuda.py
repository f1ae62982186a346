"""moe_route and moe_shared_add on a GPU: a warp per row, a thread per element."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.moe.plan import held_per_lane

_THREADS = 128
_ROWS = 4  # of a routing block


class _RouteArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("experts", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
    )


class _SharedAddArgs(ctypes.Structure):
    _fields_ = (
        ("shared", ctypes.c_void_p),
        ("score", ctypes.c_void_p),
        ("routed", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


SOURCE = CudaSource(Path(__file__).with_name("moe.cu"), {"moe_route": _RouteArgs, "moe_shared_add": _SharedAddArgs})
WARM: tuple[tuple[CudaSource, dict[str, int]], ...] = ((SOURCE, {"NINFER_HELD": 8}),)
DECODE_KERNELS = frozenset(SOURCE.kernels)


def moe_route(logits: torch.Tensor, top_k: int, ids_out: torch.Tensor, weights_out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, experts = logits.shape
    args = _RouteArgs(logits.data_ptr(), ids_out.data_ptr(), weights_out.data_ptr(), rows, experts, top_k)
    macros = {"NINFER_HELD": held_per_lane(experts)}
    how = Launch((-(-rows // _ROWS), 1, 1), (_THREADS, 1, 1), macros=macros)
    SOURCE.launch("moe_route", how, args, logits, ids_out, weights_out)


def moe_shared_add(
    shared: torch.Tensor, score: torch.Tensor, routed: torch.Tensor, residual: torch.Tensor, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring."""
    tensors, (rows, columns) = (shared, score, routed, residual, out), out.shape
    args = _SharedAddArgs(*(tensor.data_ptr() for tensor in tensors), rows, columns)
    # The other kernel's macro is set, so that both come from one module.
    how = Launch((rows, -(-columns // _THREADS), 1), (_THREADS, 1, 1), macros={"NINFER_HELD": 8})
    SOURCE.launch("moe_shared_add", how, args, *tensors)
