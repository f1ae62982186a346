"""kv_append: encode new keys and values into their slots of a paged pool. Also the home of codecs and `KvPool`.

Math: for every token t and head h, row (page, h, column) of keys and values becomes encode(k[t, h]) and
    encode(v[t, h]), where page = slots[t] // 64, column = slots[t] % 64; `codec.py` defines encode.
Shapes: k, v [T, kv_heads, head_dim]; slots [T]; the pool has P pages of 64 columns.
Dtypes: k, v fp32; slots int64.
Domain: slots distinct and in [0, 64 P); head_dim a multiple of 64. A NaN is kept as NaN for its row or group. Slots on
    a CUDA device are not checked: that would wait for it.
Effects: overwrites the named columns of the pool; all others keep their bytes.
Workspace: the compiled and CUDA routes need none; the torch route allocates the encoded rows.
Numeric criterion: exact: the stored bytes equal the scalar oracle's. A row's bytes depend on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.dispatch import problem
from ninfer.kernels.jit import on_device
from ninfer.kernels.kv_cache import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.kv_cache.codec import KvCodec, RowFormat, RowLayout, decode, encode, row_layout
from ninfer.kernels.kv_cache.plan import plan
from ninfer.kernels.kv_cache.pool import PAGE_TOKENS, KvPool, Plane, make_kv_pool
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

__all__ = [
    "IMPLEMENTATIONS",
    "PAGE_TOKENS",
    "KvCodec",
    "KvPool",
    "Plane",
    "RowFormat",
    "RowLayout",
    "check_append",
    "decode",
    "encode",
    "kv_append",
    "make_kv_pool",
    "row_layout",
]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "kv_append": MappingProxyType(
            compiled_routes(compiled_cpu.kv_append) | {Route.CPU_TORCH: torch_cpu.kv_append, Route.CUDA: cuda.kv_append}
        )
    }
)


def kv_append(pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Encode k and v into `slots` of `pool`; see the module's contract.

    Raises:
        ValueError: a shape, dtype or slot outside the contract; the pool is then untouched.
    """
    check_append("kv_append", pool, k, v, slots)
    if slots.numel() == 0:
        return
    route = plan(problem(k, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["kv_append"][route](pool, k, v, slots)


def check_append(op: str, pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Require what kv_append requires.

    Raises:
        ValueError: naming the op.
    """
    tokens = slots.numel()
    for name, tensor in (("k", k), ("v", v)):
        check(op, name, tensor, (tokens, pool.kv_heads, pool.head_dim), torch.float32)
    check(op, "slots", slots, (tokens,), torch.int64)
    if tokens == 0 or on_device(slots):
        return
    low, high = int(slots.min()), int(slots.max())
    if low < 0 or high >= pool.pages * PAGE_TOKENS:
        raise ValueError(f"{op}: slots must lie in [0, {pool.pages * PAGE_TOKENS}), got {low} to {high}")
