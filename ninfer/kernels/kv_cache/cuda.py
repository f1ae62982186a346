"""kv_append in CUDA C++, and the macros by which other CUDA kernels read a pool."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.kv_cache.codec import KvCodec, RowFormat
from ninfer.kernels.kv_cache.compiled_cpu import PlaneArgs, plane_args
from ninfer.kernels.kv_cache.pool import KvPool

_WARPS = 4
_FORMATS = {fmt: number for number, fmt in enumerate(RowFormat)}


class _Args(ctypes.Structure):
    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("keys", PlaneArgs),
        ("values", PlaneArgs),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
    )


_SOURCE = CudaSource(Path(__file__).with_name("kv_append.cu"), {"kv_append": _Args})


def pool_macros(codec: KvCodec, head_dim: int) -> dict[str, int]:
    """What a kernel is compiled for: the numbers of a row, and the formats of keys and values."""
    return {
        "NINFER_DIM": head_dim,
        "NINFER_KEYS": _FORMATS[codec.key_format],
        "NINFER_VALUES": _FORMATS[codec.value_format],
    }


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = tuple((_SOURCE, pool_macros(codec, 256)) for codec in KvCodec)
DECODE_KERNELS = frozenset({"kv_append"})


def kv_append(pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    tokens = slots.numel()
    planes = plane_args(pool.keys), plane_args(pool.values)
    args = _Args(k.data_ptr(), v.data_ptr(), slots.data_ptr(), *planes, tokens, pool.kv_heads)
    blocks = -(-2 * tokens * pool.kv_heads // _WARPS)
    how = Launch((blocks, 1, 1), (32 * _WARPS, 1, 1), macros=pool_macros(pool.codec, pool.head_dim))
    _SOURCE.launch("kv_append", how, args, pool, k, v, slots)
