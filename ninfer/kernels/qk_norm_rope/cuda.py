"""qk_norm_rope in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch
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


class _Args(ctypes.Structure):
    _fields_ = (
        ("sides", _Side * 2),
        ("positions", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("unused", ctypes.c_float),
        ("frequencies", ctypes.c_float * _MOST_PAIRS),
        ("axes", ctypes.c_uint8 * _MOST_PAIRS),
    )


_SOURCE = CudaSource(Path(__file__).with_name("qk_norm_rope.cu"), {"qk_norm_rope": _Args})


def _macros(dim: int, pairs: int) -> Mapping[str, int]:
    return {"NINFER_DIM": dim, "NINFER_PAIRS": pairs}


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = ((_SOURCE, _macros(256, 32)),)
DECODE_KERNELS = frozenset({"qk_norm_rope"})


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
    turns, axes = _turns(rope)
    sides = _side(q, q_weight, q_out), _side(k, k_weight, k_out)
    args = _Args(sides, positions.data_ptr(), tokens, eps, 0.0, turns, axes)
    grid = tokens, -(-(heads + k.shape[1]) // _WARPS), 1
    how = Launch(grid, (32 * _WARPS, 1, 1), macros=_macros(dim, rope.rotary_dim // 2))
    _SOURCE.launch("qk_norm_rope", how, args, q, k, q_weight, k_weight, positions, q_out, k_out)


def _side(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> _Side:
    return _Side(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[1])


@cache
def _turns(rope: RopeSpec) -> tuple[ctypes.Array[ctypes.c_float], ctypes.Array[ctypes.c_uint8]]:
    pairs = rope.rotary_dim // 2
    assert pairs <= _MOST_PAIRS, f"rotary_dim is at most {2 * _MOST_PAIRS} on CUDA, got {rope.rotary_dim}"
    turns = (ctypes.c_float * _MOST_PAIRS)(*frequencies(rope).tolist())
    return turns, (ctypes.c_uint8 * _MOST_PAIRS)(*rope.axes)
