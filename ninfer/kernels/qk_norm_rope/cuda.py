"""qk_norm_rope and qk_norm_rope_append in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.kv_cache.codec import KvCodec
from ninfer.kernels.kv_cache.compiled_cpu import PlaneArgs, plane_args
from ninfer.kernels.kv_cache.cuda import pool_macros
from ninfer.kernels.kv_cache.pool import KvPool
from ninfer.kernels.qk_norm_rope.spec import RopeSpec, frequencies

_WARPS = 4
_MOST_PAIRS = 128


class _Side(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
    )


class _Turns(ctypes.Structure):
    _fields_ = (
        ("positions", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("frequencies", ctypes.c_float * _MOST_PAIRS),
        ("axes", ctypes.c_uint8 * _MOST_PAIRS),
    )


class _Args(ctypes.Structure):
    _fields_ = (
        ("sides", _Side * 2),
        ("turns", _Turns),
        ("eps", ctypes.c_float),
        ("unused", ctypes.c_float),
    )


class _AppendArgs(ctypes.Structure):
    _fields_ = (
        ("sides", _Side * 2),
        ("v", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("keys", PlaneArgs),
        ("values", PlaneArgs),
        ("turns", _Turns),
        ("eps", ctypes.c_float),
        ("unused", ctypes.c_float),
    )


_SOURCE = CudaSource(Path(__file__).with_name("qk_norm_rope.cu"), {"qk_norm_rope": _Args})
_APPEND = CudaSource(Path(__file__).with_name("append.cu"), {"qk_norm_rope_append": _AppendArgs})


def _macros(dim: int, pairs: int) -> dict[str, int]:
    return {"NINFER_DIM": dim, "NINFER_PAIRS": pairs}


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = (
    (_SOURCE, _macros(256, 32)),
    *((_APPEND, _macros(256, 32) | pool_macros(codec, 256)) for codec in KvCodec),
)
DECODE_KERNELS = frozenset({"qk_norm_rope", "qk_norm_rope_append"})


def qk_norm_rope(
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
    """See the contract in the package's docstring. The frequencies travel in the arguments, not in device memory."""
    tokens, heads, dim = q.shape
    sides = _side(q, q_weight, q_out), _side(k, k_weight, k_out)
    args = _Args(sides, _Turns(positions.data_ptr(), tokens, *_frequencies(rope)), eps)
    grid = tokens, -(-(heads + k.shape[1]) // _WARPS), 1
    how = Launch(grid, (32 * _WARPS, 1, 1), macros=_macros(dim, rope.rotary_dim // 2))
    _SOURCE.launch("qk_norm_rope", how, args, q, k, q_weight, k_weight, positions, q_out, k_out)


def qk_norm_rope_append(
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
    tokens, heads, dim = q.shape
    args = _AppendArgs(
        (_side(q, q_weight, q), _side(k, k_weight, k)),
        v.data_ptr(),
        slots.data_ptr(),
        plane_args(pool.keys),
        plane_args(pool.values),
        _Turns(positions.data_ptr(), tokens, *_frequencies(rope)),
        eps,
    )
    grid = tokens, -(-(heads + 2 * pool.kv_heads) // _WARPS), 1
    macros = _macros(dim, rope.rotary_dim // 2) | pool_macros(pool.codec, dim)
    how = Launch(grid, (32 * _WARPS, 1, 1), macros=macros)
    _APPEND.launch("qk_norm_rope_append", how, args, q, k, v, q_weight, k_weight, positions, pool, slots)


def _side(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> _Side:
    return _Side(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[1])


@cache
def _frequencies(rope: RopeSpec) -> tuple[ctypes.Array[ctypes.c_float], ctypes.Array[ctypes.c_uint8]]:
    pairs = rope.rotary_dim // 2
    assert pairs <= _MOST_PAIRS, f"rotary_dim is at most {2 * _MOST_PAIRS} on CUDA, got {rope.rotary_dim}"
    turns = (ctypes.c_float * _MOST_PAIRS)(*frequencies(rope).tolist())
    return turns, (ctypes.c_uint8 * _MOST_PAIRS)(*rope.axes)
