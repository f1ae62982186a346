"""kv_append in C++, and what other compiled ops need to read a pool."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.kv_cache.codec import RowFormat
from ninfer.kernels.kv_cache.pool import KvPool, Plane
from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("kv_append.cpp")
_FORMATS = {fmt: number for number, fmt in enumerate(RowFormat)}


class PlaneArgs(ctypes.Structure):
    """The mirror of Plane in rows.hpp."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("code_bytes", ctypes.c_int64),
        ("scale_bytes", ctypes.c_int64),
    )


def plane_args(plane: Plane) -> PlaneArgs:
    """Where one side of a pool lies, for as long as the pool lives."""
    codes, scales = plane.codes, plane.scales
    return PlaneArgs(
        _FORMATS[plane.row_format],
        0,
        codes.data_ptr(),
        scales.data_ptr(),
        codes.shape[-1] * codes.itemsize,
        scales.shape[-1] * scales.itemsize,
    )


class _Args(ctypes.Structure):
    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("keys", PlaneArgs),
        ("values", PlaneArgs),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
    )


_KERNEL = Kernel(SOURCE, "kv_append", _Args)


def kv_append(body: Route, pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    args = _Args(
        k.data_ptr(),
        v.data_ptr(),
        slots.data_ptr(),
        plane_args(pool.keys),
        plane_args(pool.values),
        slots.numel(),
        pool.kv_heads,
        pool.head_dim,
    )
    _KERNEL.launch(body, args, pool, k, v, slots)
