"""Ops that work row by row around the large ones: norms, gates, rotations, and the way of keys and values to pages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ninfer.kernels import gated_rmsnorm, gated_sigmoid, gdn_gates, kv_append, qk_norm_rope, rmsnorm
from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, make_kv_pool
from ninfer.kernels.qk_norm_rope import RopeSpec
from ops.geometry import Geometry
from ops.work import Setting, Work

_EPS = 1e-6


def works(setting: Setting) -> Iterator[Work]:
    """Each at each number of tokens."""
    shape = setting.geometry
    for count in setting.tokens:
        yield _rmsnorm(shape, count)
        yield _gated_rmsnorm(shape, count)
        yield _gated_sigmoid(shape, count)
        yield _gates(shape, count)
        yield _qk_norm_rope(shape, count)
        yield _append(setting, count)


def _rmsnorm(shape: Geometry, count: int) -> Work:
    x, weight = torch.randn(count, shape.hidden), torch.randn(shape.hidden)
    call = partial(rmsnorm, x, weight, _EPS, True, torch.empty_like(x))
    return Work("rmsnorm", f"{count} x {shape.hidden}", (call,), 2 * x.nbytes, 4 * x.numel())


def _gated_rmsnorm(shape: Geometry, count: int) -> Work:
    x = torch.randn(count, shape.gdn_value_heads, shape.gdn_head_dim)
    call = partial(gated_rmsnorm, x, torch.randn_like(x), torch.randn(shape.gdn_head_dim), _EPS, torch.empty_like(x))
    return Work("gated_rmsnorm", f"{count} x {shape.gdn_value_heads} x {shape.gdn_head_dim}", (call,), 3 * x.nbytes)


def _gated_sigmoid(shape: Geometry, count: int) -> Work:
    x = torch.randn(count, shape.query_heads * shape.head_dim)
    call = partial(gated_sigmoid, x, torch.randn_like(x), torch.empty_like(x))
    return Work("gated_sigmoid", f"{count} x {x.shape[1]}", (call,), 3 * x.nbytes)


def _gates(shape: Geometry, count: int) -> Work:
    a, heads = torch.randn(count, shape.gdn_value_heads), torch.randn(shape.gdn_value_heads)
    call = partial(gdn_gates, a, torch.randn_like(a), heads, heads, torch.empty_like(a), torch.empty_like(a))
    return Work("gdn_gates", f"{count} x {shape.gdn_value_heads}", (call,), 4 * a.nbytes)


def _qk_norm_rope(shape: Geometry, count: int) -> Work:
    q, k = (torch.randn(count, heads, shape.head_dim) for heads in (shape.query_heads, shape.key_heads))
    norm, rope = torch.randn(shape.head_dim), RopeSpec(1e7, shape.rotary_dim, (11, 11, 10))
    positions = torch.arange(count, dtype=torch.int32).expand(3, -1).contiguous()
    call = partial(qk_norm_rope, q, k, norm, norm, _EPS, positions, rope, torch.empty_like(q), torch.empty_like(k))
    return Work("qk_norm_rope", f"{count} x {shape.query_heads}+{shape.key_heads}", (call,), 2 * (q.nbytes + k.nbytes))


def _append(setting: Setting, count: int) -> Work:
    shape = setting.geometry
    pool = make_kv_pool(KvCodec.INT8, -(-count // PAGE_TOKENS), shape.key_heads, shape.head_dim, setting.placement)
    k = torch.randn(count, shape.key_heads, shape.head_dim)
    call = partial(kv_append, pool, k, torch.randn_like(k), torch.arange(count))
    nbytes = 2 * k.nbytes + count * pool.bytes_per_page // PAGE_TOKENS
    return Work("kv_append", f"int8 {count} x {shape.key_heads}", (call,), nbytes)
