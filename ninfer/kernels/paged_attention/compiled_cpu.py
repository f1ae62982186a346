"""paged_attention in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ninfer.kernels.kv_cache.compiled_cpu import PlaneArgs, plane_args
from ninfer.kernels.kv_cache.pool import KvPool
from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments

SOURCE = Path(__file__).with_name("paged_attention.cpp")


class _Args(ctypes.Structure):
    _fields_ = (
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("keys", PlaneArgs),
        ("values", PlaneArgs),
        ("batch", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("unused", ctypes.c_float),
    )


_KERNEL = Kernel(SOURCE, "paged_attention", _Args)


def paged_attention(
    body: Route,
    q: torch.Tensor,
    pool: KvPool,
    tables: torch.Tensor,
    segments: Segments,
    scale: float,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    batch, width = tables.shape
    args = _Args(
        q.data_ptr(),
        out.data_ptr(),
        segments.data.data_ptr(),
        tables.data_ptr(),
        plane_args(pool.keys),
        plane_args(pool.values),
        batch,
        width,
        q.shape[1],
        pool.kv_heads,
        pool.head_dim,
        scale,
    )
    _KERNEL.launch(body, args, q, pool, tables, segments, out)
