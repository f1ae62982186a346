"""qk_norm_rope in C++, and qk_norm_rope_append, which is two kernels here."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from ninfer.kernels.kv_cache import KvPool
from ninfer.kernels.kv_cache import compiled_cpu as kv_cache
from ninfer.kernels.native import Kernel
from ninfer.kernels.qk_norm_rope.spec import RopeSpec, frequencies
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("qk_norm_rope.cpp")


class _Side(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
    )


class _Args(ctypes.Structure):
    _fields_ = (
        ("sides", _Side * 2),
        ("positions", ctypes.c_void_p),
        ("frequencies", ctypes.c_void_p),
        ("axes", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("pairs", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("unused", ctypes.c_float),
    )


_KERNEL = Kernel(SOURCE, "qk_norm_rope", _Args)


def qk_norm_rope(
    body: Route,
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    rope: RopeSpec,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    tokens, _, dim = q.shape
    turns, axes = frequencies(rope), _axes(rope)
    args = _Args(
        (_side(q, q_weight, q_out), _side(k, k_weight, k_out)),
        positions.data_ptr(),
        turns.data_ptr(),
        axes.data_ptr(),
        tokens,
        dim,
        turns.numel(),
        eps,
    )
    _KERNEL.launch(body, args, q, k, q_weight, k_weight, positions, turns, axes, q_out, k_out)


def qk_norm_rope_append(
    body: Route,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    rope: RopeSpec,
    pool: KvPool,
    slots: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    qk_norm_rope(body, q, k, q_weight, k_weight, eps, positions, rope, q, k)
    kv_cache.kv_append(body, pool, k, v, slots)


def _side(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> _Side:
    return _Side(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[1])


@cache
def _axes(rope: RopeSpec) -> torch.Tensor:
    return torch.tensor(rope.axes, dtype=torch.int32)
