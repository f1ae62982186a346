"""Which routes serve a paged attention, best first; and on CUDA which kernels, tiles and splits.

Floors on CUDA, with b bytes per key and KV head, both sides (of 256 numbers: bf16 1024, int8 528, fp8 516, k8v4 402,
nvfp4 288), n keys, Hkv KV heads and G query heads per KV head:
- decode: n Hkv b bytes, read once for up to 32 / G tokens. 27B in bf16 at n = 100000: 6.6 GB in 16 layers. A key takes
  6 ceil(G / 8) mma of 2048 products per KV head of 256: three terms of the queries and of the weights. Partial results
  are written and read once: 8 D bytes per query and split, against the 64 b bytes or more of a split's keys.
- prefill: 4 D operations per query and key before it, as mma. A page is read once per 64 or 128 queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.jit import DeviceFacts
from ninfer.kernels.kv_cache.codec import KvCodec, RowFormat
from ninfer.kernels.kv_cache.pool import PAGE_TOKENS
from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

MOST_SPLIT_TOKENS = 64
"""Tokens of a row up to which keys are split and sums are fp32: a decode round, the check of a draft, a short prompt.

Three terms cost three times the products of bf16 tiles. But 64 tokens are 24 tiles of 64 queries for the 27B model, a
fifth of a large GPU's multiprocessors, each on a walk through all pages.
"""
SPLITS_OF_SIZE = 32
"""Splits of each size in pages: 1, 2, 4, ... The mirror of positions.cuh."""
_MOST_PARTIAL = 128 << 20
_SCORE_STRIDE = 72


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides on CUDA.

    Attributes:
        batch: rows of the call.
        most: query tokens of the longest row.
        width: pages that a row's table can name.
    """

    batch: int
    most: int
    heads: int
    kv_heads: int
    dim: int
    width: int
    codec: KvCodec


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Splits of the keys, then a merge.

    Attributes:
        queries: of a tile: 8, 16 or 32 pairs of a token and a head of one group.
        warps: of a block: 4 or 8.
        tiles: per row.
        splits: that the longest sequence can have.
        tiles_at_once: of all rows, in one launch.
        shared: bytes of shared memory of a block.
        partial: bytes of partial results of a launch.
    """

    queries: int
    warps: int
    tiles: int
    splits: int
    tiles_at_once: int
    shared: int
    partial: int


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Tiles of 16 queries per warp against all their keys.

    Attributes:
        warps: of a block: 4 or 8.
        tiles: per row.
        shared: bytes of shared memory of a block.
    """

    warps: int
    tiles: int
    shared: int


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(shape: Shape, facts: DeviceFacts) -> SplitPlan | TilePlan:
    """The kernels for a call. fp32 pools have no tensor cores, so they are always split."""
    if shape.most <= MOST_SPLIT_TOKENS or shape.codec is KvCodec.FP32:
        return _split_plan(shape, facts)
    return _tile_plan(shape, facts)


def split_count(pages: int) -> int:
    """Splits of a sequence of `pages` pages."""
    size = ((pages - 1) // SPLITS_OF_SIZE + 1).bit_length() - 1
    before = SPLITS_OF_SIZE * ((1 << size) - 1)
    return SPLITS_OF_SIZE * size + -(-(pages - before) // (1 << size))


def _split_plan(shape: Shape, facts: DeviceFacts) -> SplitPlan:
    pairs = shape.most * (shape.heads // shape.kv_heads)
    fitting = [n for n in (8, 16, 32) if _split_shared(shape, n) <= facts.shared_bytes]
    assert fitting, f"paged_attention: a head of {shape.dim} does not fit in {facts.shared_bytes} bytes"
    queries = next((n for n in fitting if n >= pairs), fitting[-1])
    tiles, splits = -(-pairs // queries), split_count(shape.width)
    tile_bytes = 4 * (shape.dim + 2) * shape.kv_heads * queries * splits
    at_once = min(shape.batch * tiles, max(1, _MOST_PARTIAL // tile_bytes))
    warps = 8 if queries > 8 and shape.dim % 128 == 0 else 4  # a warp takes 16 columns of values or more
    return SplitPlan(queries, warps, tiles, splits, at_once, _split_shared(shape, queries), at_once * tile_bytes)


def _split_shared(shape: Shape, queries: int) -> int:
    """What decode.cu and decode_fp32.cu carve up."""
    scores, fades = 4 * queries * _SCORE_STRIDE, 4 * queries
    if shape.codec is KvCodec.FP32:
        return 4 * queries * shape.dim + scores + fades
    groups = sum(_scale_groups(side, shape.dim) for side in (shape.codec.key_format, shape.codec.value_format))
    tiles, terms = 2 * PAGE_TOKENS * 2 * shape.dim, 3 * 2 * queries * shape.dim
    return tiles + max(terms, 4 * scores) + fades + 4 * PAGE_TOKENS * groups


def _scale_groups(side: RowFormat, dim: int) -> int:
    return {RowFormat.INT8: dim // 64, RowFormat.FP8: 1}.get(side, 0)


def _tile_plan(shape: Shape, facts: DeviceFacts) -> TilePlan:
    """Eight warps share more reading, if that leaves enough blocks for all multiprocessors."""
    pairs = shape.most * (shape.heads // shape.kv_heads)
    blocks = -(-pairs // 128) * shape.kv_heads * shape.batch
    warps = 8 if blocks >= facts.multiprocessors and _tile_shared(shape, 8) <= facts.shared_bytes else 4
    return TilePlan(warps, -(-pairs // (16 * warps)), _tile_shared(shape, warps))


def _tile_shared(shape: Shape, warps: int) -> int:
    return 2 * shape.dim * (16 * warps + 2 * PAGE_TOKENS)
