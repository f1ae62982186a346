"""paged_attention: decode steps at depths, and the reading of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ninfer.kernels import paged_attention
from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, KvPool, make_kv_pool
from ops.work import MOST_COPIES, MOST_ROWS, Setting, Work

_DEPTHS = (512, 4096)
_CODECS = (KvCodec.BF16, KvCodec.INT8)


def works(setting: Setting) -> Iterator[Work]:
    """Rows of one token after each depth in each codec; prompts from their beginning."""
    for count in setting.tokens:
        if count > MOST_ROWS:
            yield _work(setting, KvCodec.BF16, count, 0)
            continue
        for codec in _CODECS:
            for depth in _DEPTHS:
                yield _work(setting, codec, count, depth)


def _work(setting: Setting, codec: KvCodec, count: int, depth: int) -> Work:
    shape, segments = setting.geometry, setting.segments(count, depth)
    pages = -(-(depth + segments.counts[0]) // PAGE_TOKENS)
    q = torch.randn(count, shape.query_heads, shape.head_dim)
    tables = torch.arange(segments.batch * pages, dtype=torch.int32).view(segments.batch, pages)
    out, scale, first = torch.empty_like(q), shape.head_dim**-0.5, _pool(setting, codec, tables.numel())
    nbytes = tables.numel() * first.bytes_per_page
    copies = min(setting.cold_bytes // nbytes, MOST_COPIES)
    pools = [first, *(_pool(setting, codec, tables.numel()) for _ in range(copies))]
    calls = tuple(partial(paged_attention, q, pool, tables, segments, scale, out) for pool in pools)
    seen = sum(n * depth + n * (n + 1) // 2 for n in segments.counts)  # pairs of a query and a key
    flops = 4 * seen * shape.query_heads * shape.head_dim
    return Work("paged_attention", f"{codec.value} {count} after {depth}", calls, nbytes + 8 * q.numel(), flops)


def _pool(setting: Setting, codec: KvCodec, pages: int) -> KvPool:
    """Small values: scales of about 1/100, codes of any kind."""
    pool = make_kv_pool(codec, pages, setting.geometry.key_heads, setting.geometry.head_dim, setting.placement)
    for plane in (pool.keys, pool.values):
        if plane.codes.is_floating_point():
            plane.codes.normal_()
        else:
            plane.codes.random_(-127, 128)
            plane.scales.fill_(0.01)
    return pool
