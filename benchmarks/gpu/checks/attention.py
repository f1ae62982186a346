"""Rotation, keys and values on their way to pages, and attention over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ops import Geometry

from gpu.checks.outcome import Outcome, Sizes, as_numpy, outcome
from ninfer.kernels import (
    kv_append,
    paged_attention,
    qk_norm_rope,
    qk_norm_rope_append,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, KvPool, Plane, make_kv_pool
from ninfer.kernels.kv_cache import oracle as kv_oracle
from ninfer.kernels.paged_attention import oracle as attention_oracle
from ninfer.kernels.qk_norm_rope import RopeSpec
from ninfer.kernels.qk_norm_rope import oracle as rope_oracle
from ninfer.kernels.qk_norm_rope.spec import frequencies
from ninfer.kernels.segments import Segments

_EPS = 1e-6


def check_rope(sizes: Sizes) -> Iterator[Outcome]:
    g, tokens = sizes.geometry, sizes.prompt
    q, k = (torch.randn(tokens, heads, g.head_dim) for heads in (g.query_heads, g.key_heads))
    norms, rope = [torch.randn(g.head_dim) for _ in range(2)], _rope_spec(g)
    positions = torch.randint(0, 100_000, (3, tokens), dtype=torch.int32)
    outs = torch.empty_like(q), torch.empty_like(k)
    qk_norm_rope(q, k, *norms, _EPS, positions, rope, *outs)
    turned = as_numpy(positions), as_numpy(frequencies(rope)), rope.sections
    for x, norm, out in zip((q, k), norms, outs, strict=True):
        wanted = rope_oracle.qk_norm_rope(as_numpy(x), as_numpy(norm), _EPS, *turned)
        yield outcome("qk_norm_rope", f"{x.shape[1]} heads", out, wanted, within.ROTATION)


def check_append(sizes: Sizes) -> Iterator[Outcome]:
    g, tokens = sizes.geometry, 3
    slots, positions = torch.tensor([5, 64, 127]), torch.randint(0, 9000, (3, tokens), dtype=torch.int32)
    norm, rope = torch.randn(g.head_dim), _rope_spec(g)
    for codec in KvCodec:
        pool = make_kv_pool(codec, 2, g.key_heads, g.head_dim, sizes.placement)
        k, v = (torch.randn(tokens, g.key_heads, g.head_dim) for _ in range(2))
        kv_append(pool, k, v, slots)
        yield _appended("kv_append", codec, pool, k, v, slots)
        q = torch.randn(tokens, g.query_heads, g.head_dim)
        qk_norm_rope_append(q, k, v, norm, norm, _EPS, positions, rope, pool, slots)
        yield _appended("qk_norm_rope_append", codec, pool, k, v, slots)


def _appended(op: str, codec: KvCodec, pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> Outcome:
    same = all(_stored_as(plane, x, slots) for plane, x in ((pool.keys, k), (pool.values, v)))
    return Outcome(op, codec.value, 0.0 if same else np.inf)


def _rope_spec(g: Geometry) -> RopeSpec:
    pairs = g.rotary_dim // 2
    return RopeSpec(1e7, g.rotary_dim, (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3))


def _stored_as(plane: Plane, x: torch.Tensor, slots: torch.Tensor) -> bool:
    """Whether every row has the oracle's bytes."""
    for token, slot in enumerate(slots.tolist()):
        for head in range(x.shape[1]):
            at = slot // PAGE_TOKENS, head, slot % PAGE_TOKENS
            got = tuple(
                bytes(as_numpy(part[at].contiguous().view(torch.uint8))) for part in (plane.codes, plane.scales)
            )
            if got != kv_oracle.encode_row(plane.row_format.value, as_numpy(x[token, head]).tolist()):
                return False
    return True


def check_attention(sizes: Sizes) -> Iterator[Outcome]:
    for codec in KvCodec:
        yield _attend(sizes, codec, (1, 1), (sizes.depth, 3))
        yield _attend(sizes, codec, (sizes.prompt, 1), (5, 70))


def _attend(sizes: Sizes, codec: KvCodec, counts: tuple[int, ...], starts: tuple[int, ...]) -> Outcome:
    g = sizes.geometry
    lengths = [count + start for count, start in zip(counts, starts, strict=True)]
    width = max(-(-length // PAGE_TOKENS) for length in lengths)
    tables = torch.randperm(len(counts) * width).to(torch.int32).view(len(counts), width)
    pool = _filled(sizes, codec, tables)
    q, scale = torch.randn(sum(counts), g.query_heads, g.head_dim), g.head_dim**-0.5
    out = torch.empty_like(q)
    paged_attention(q, pool, tables, Segments(counts, starts), scale, out)
    keys, values = (
        [_represented(plane, row)[:length] for row, length in zip(tables, lengths, strict=True)]
        for plane in (pool.keys, pool.values)
    )
    wanted = attention_oracle.paged_attention(as_numpy(q), keys, values, starts, counts, scale)
    tolerance = within.ATTENTION if sum(counts) == len(counts) else within.ATTENTION_BF16
    return outcome("paged_attention", f"{codec.value} {counts} after {starts}", out, wanted, tolerance)


def _filled(sizes: Sizes, codec: KvCodec, tables: torch.Tensor) -> KvPool:
    g, columns = sizes.geometry, tables.numel() * PAGE_TOKENS
    pool = make_kv_pool(codec, tables.numel(), g.key_heads, g.head_dim, sizes.placement)
    k, v = (torch.randn(columns, g.key_heads, g.head_dim) for _ in range(2))
    kv_append(pool, k, v, torch.arange(columns))
    return pool


def _represented(plane: Plane, table: torch.Tensor) -> np.ndarray[Any, Any]:
    """The rows of a sequence in order of position, f64 [pages * 64, heads, dim], decoded on the host."""
    host = Plane(plane.row_format, plane.codes.cpu(), plane.scales.cpu())
    with torch.device("cpu"):
        rows = host.read(table.cpu().long()).transpose(1, 2).flatten(0, 1)
    return rows.double().numpy()


CHECKS = (
    check_rope,
    check_append,
    check_attention,
)
