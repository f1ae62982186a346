"""paged_attention: one request's decode step at depths, and the reading of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ninfer.kernels import paged_attention
from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, KvPool, make_kv_pool
from ninfer.kernels.segments import Segments
from ops.geometry import Geometry
from ops.work import Work

_DEPTHS = (512, 4096)
_CODECS = (KvCodec.BF16, KvCodec.INT8)
_COLD_BYTES = 96 << 20


def works(shape: Geometry, tokens: Sequence[int], formats: Sequence[str]) -> Iterator[Work]:
    """One token after each depth in each codec, then prompts of more than 8 `tokens` from their beginning."""
    for codec in _CODECS:
        for depth in _DEPTHS:
            yield _work(shape, codec, 1, depth)
    for count in tokens:
        if count > 8:
            yield _work(shape, KvCodec.BF16, count, 0)


def _work(shape: Geometry, codec: KvCodec, count: int, depth: int) -> Work:
    pages = -(-(depth + count) // PAGE_TOKENS)
    q = torch.randn(count, shape.query_heads, shape.head_dim)
    out, tables = torch.empty_like(q), torch.arange(pages, dtype=torch.int32).view(1, -1)
    first = _pool(codec, pages, shape)
    nbytes = pages * first.bytes_per_page
    pools = [first, *(_pool(codec, pages, shape) for _ in range(min(_COLD_BYTES // nbytes, 64)))]
    segments, scale = Segments((count,), (depth,)), shape.head_dim**-0.5
    calls = tuple(partial(paged_attention, q, pool, tables, segments, scale, out) for pool in pools)
    pairs = count * depth + count * (count + 1) // 2  # of a query and a key that it sees
    flops = 4 * pairs * shape.query_heads * shape.head_dim
    return Work("paged_attention", f"{codec.value} {count} after {depth}", calls, nbytes + 8 * q.numel(), flops)


def _pool(codec: KvCodec, pages: int, shape: Geometry) -> KvPool:
    """Small values: scales of about 1/100, codes of any kind."""
    pool = make_kv_pool(codec, pages, shape.key_heads, shape.head_dim)
    for plane in (pool.keys, pool.values):
        if plane.codes.is_floating_point():
            plane.codes.normal_()
        else:
            plane.codes.random_(-127, 128)
            plane.scales.fill_(0.01)
    return pool
