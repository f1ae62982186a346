"""paged_attention in CUDA C++."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch, device, workspace
from ninfer.kernels.kv_cache.codec import KvCodec
from ninfer.kernels.kv_cache.compiled_cpu import PlaneArgs, plane_args
from ninfer.kernels.kv_cache.cuda import pool_macros
from ninfer.kernels.kv_cache.pool import KvPool
from ninfer.kernels.paged_attention.plan import Shape, SplitPlan, TilePlan, cuda_plan
from ninfer.kernels.segments import Segments


class _SplitArgs(ctypes.Structure):
    _fields_ = (
        ("q", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("marks", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("keys", PlaneArgs),
        ("values", PlaneArgs),
        ("batch", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("tiles", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class _MergeArgs(ctypes.Structure):
    _fields_ = (
        ("out", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("marks", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("batch", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("tiles", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("queries", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class _TileArgs(ctypes.Structure):
    _fields_ = (
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("keys", PlaneArgs),
        ("values", PlaneArgs),
        ("batch", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("unused", ctypes.c_int32),
    )


_HERE = Path(__file__)
_DECODE = CudaSource(_HERE.with_name("decode.cu"), {"attend_split": _SplitArgs})
_DECODE_FP32 = CudaSource(_HERE.with_name("decode_fp32.cu"), {"attend_split_fp32": _SplitArgs})
_MERGE = CudaSource(_HERE.with_name("merge.cu"), {"merge_splits": _MergeArgs})
_PREFILL = CudaSource(_HERE.with_name("prefill.cu"), {"attend_tile": _TileArgs})
_FORMATS = (KvCodec.BF16, KvCodec.INT8, KvCodec.FP8, KvCodec.NVFP4, KvCodec.K8V4)
WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = (
    (_MERGE, {"NINFER_DIM": 256}),
    (_DECODE_FP32, {"NINFER_DIM": 256, "NINFER_QUERIES": 8, "NINFER_WARPS": 4}),
    *((_DECODE, pool_macros(codec, 256) | {"NINFER_QUERIES": 8, "NINFER_WARPS": 4}) for codec in _FORMATS),
    *((_DECODE, pool_macros(codec, 256) | {"NINFER_QUERIES": 32, "NINFER_WARPS": 8}) for codec in _FORMATS),
    *((_PREFILL, pool_macros(codec, 256) | {"NINFER_WARPS": warps}) for codec in _FORMATS for warps in (4, 8)),
)
DECODE_KERNELS = frozenset({"attend_split", "attend_split_fp32", "merge_splits"})


def paged_attention(
    q: torch.Tensor, pool: KvPool, tables: torch.Tensor, segments: Segments, scale: float, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring. Starts are read from `segments.data` and nowhere else."""
    batch, width = tables.shape
    shape = Shape(batch, max(segments.counts), q.shape[1], pool.kv_heads, pool.head_dim, width, pool.codec)
    chosen = cuda_plan(shape, device().facts)
    scale *= math.log2(math.e)  # the kernels use powers of two
    if isinstance(chosen, SplitPlan):
        _attend_splits(chosen, q, pool, tables, segments, scale, out)
    else:
        _attend_tiles(chosen, q, pool, tables, segments, scale, out)


def _attend_splits(
    chosen: SplitPlan,
    q: torch.Tensor,
    pool: KvPool,
    tables: torch.Tensor,
    segments: Segments,
    scale: float,
    out: torch.Tensor,
) -> None:
    batch, width = tables.shape
    group, count = q.shape[1] // pool.kv_heads, batch * chosen.tiles
    partial = workspace("paged_attention", chosen.partial, like=q)
    sums = partial.data_ptr()
    marks = sums + chosen.partial // (pool.head_dim + 2) * pool.head_dim
    planes, rows = (plane_args(pool.keys), plane_args(pool.values)), segments.data.data_ptr()
    source, kernel, macros = _split_kernel(chosen, pool)
    for first in range(0, count, chosen.tiles_at_once):
        tiles = min(chosen.tiles_at_once, count - first)
        split = _SplitArgs(
            *(q.data_ptr(), sums, marks, rows, tables.data_ptr(), *planes, batch, width, pool.kv_heads, group),
            *(chosen.tiles, chosen.splits, first, scale),
        )
        grid = chosen.splits, pool.kv_heads, tiles
        how = Launch(grid, (32 * chosen.warps, 1, 1), chosen.shared, macros)
        source.launch(kernel, how, split, q, pool, tables, segments, partial)
        merge = _MergeArgs(
            *(out.data_ptr(), sums, marks, rows, batch, pool.kv_heads, group),
            *(chosen.tiles, chosen.splits, first, chosen.queries),
        )
        grid = chosen.queries, pool.kv_heads, tiles
        how = Launch(grid, (pool.head_dim, 1, 1), macros={"NINFER_DIM": pool.head_dim})
        _MERGE.launch("merge_splits", how, merge, segments, partial, out)


def _split_kernel(chosen: SplitPlan, pool: KvPool) -> tuple[CudaSource, str, Mapping[str, int]]:
    tile = {"NINFER_DIM": pool.head_dim, "NINFER_QUERIES": chosen.queries, "NINFER_WARPS": chosen.warps}
    if pool.codec is KvCodec.FP32:
        return _DECODE_FP32, "attend_split_fp32", tile
    return _DECODE, "attend_split", pool_macros(pool.codec, pool.head_dim) | tile


def _attend_tiles(
    chosen: TilePlan,
    q: torch.Tensor,
    pool: KvPool,
    tables: torch.Tensor,
    segments: Segments,
    scale: float,
    out: torch.Tensor,
) -> None:
    batch, width = tables.shape
    args = _TileArgs(
        q.data_ptr(),
        out.data_ptr(),
        segments.data.data_ptr(),
        tables.data_ptr(),
        plane_args(pool.keys),
        plane_args(pool.values),
        batch,
        width,
        pool.kv_heads,
        q.shape[1] // pool.kv_heads,
        scale,
        0,
    )
    macros = pool_macros(pool.codec, pool.head_dim) | {"NINFER_WARPS": chosen.warps}
    how = Launch((chosen.tiles, pool.kv_heads, batch), (32 * chosen.warps, 1, 1), chosen.shared, macros)
    _PREFILL.launch("attend_tile", how, args, q, pool, tables, segments, out)
