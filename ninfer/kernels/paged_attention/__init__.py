"""paged_attention: causal grouped-query attention over keys and values kept in pages.

Math: for token i of row b, at absolute position p = starts[b] + i, and query head h with KV head h // (Hq / Hkv):
    s_j = (scale q) . K_j for j = 0 .. p;  out = sum_j exp(s_j) V_j / sum_j exp(s_j),
    where K_j, V_j are the represented (decoded) rows at column j % 64 of page tables[b, j // 64].
Shapes: q, out [T, Hq, D]; tables [B, L], row b used in its first ceil(length_b / 64) entries, where
    length_b = starts[b] + counts[b]; the pool holds Hkv heads of D.
Dtypes: q, out fp32; tables int32.
Domain: Hkv divides Hq; the used entries of tables are pages of the pool; columns up to length_b are written.
    Tables on a CUDA device are not checked: that would wait for it.
Effects: writes out; the pool is only read. Entries and columns past length_b may hold anything, NaN included.
Workspace: the compiled route keeps the queries of one tile, a few decoded keys or values and partial results (at most
    64 MiB) in its workers' scratch. The torch route allocates decoded pages, a bounded number at a time, and the tiles
    of one row. The CUDA route keeps partial results of splits (at most 128 MiB, or one tile's) in its workspace.
Numeric criterion: tolerances.ATTENTION against the oracle. Keys are divided by absolute position into pages, and
    pages are merged in their order (the compiled route: within spans of 8 pages, which are merged in their order); a
    query's bits depend on its own keys only, not on later keys, on page ids, on other rows or on how its sequence was
    cut into calls. In the compiled route a NaN among a row's keys or values shows only in queries that may see it.
    The CUDA route has two ways. Where no row has more than plan.MOST_SPLIT_TOKENS tokens (and for fp32 pools always),
    the above holds with splits of 1, 2, 4, ... pages by absolute position in place of spans; so a checked draft has
    the bits of plain decoding. Where a row has more tokens, queries, weights and decoded rows are rounded to bf16
    for the tensor cores: tolerances.ATTENTION_BF16, bits still a query's own, but not those of decoding. Both ways, a
    NaN value shows in all queries of its row that share a tile with one that may see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.dispatch import problem
from ninfer.kernels.jit import on_device
from ninfer.kernels.kv_cache.pool import PAGE_TOKENS, KvPool
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.paged_attention import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.paged_attention.plan import plan
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "paged_attention": MappingProxyType(
            compiled_routes(compiled_cpu.paged_attention)
            | {Route.CPU_TORCH: torch_cpu.paged_attention, Route.CUDA: cuda.paged_attention}
        )
    }
)


def paged_attention(
    q: torch.Tensor, pool: KvPool, tables: torch.Tensor, segments: Segments, scale: float, out: torch.Tensor
) -> None:
    """Attend every query token of `segments` to its sequence so far; see the module's contract.

    Raises:
        ValueError: a shape, dtype or page outside the contract.
    """
    if q.dim() != 3 or q.shape[1] == 0 or q.shape[1] % pool.kv_heads:
        raise ValueError(
            f"paged_attention: q must be [T, Hq, D] with Hq a multiple of {pool.kv_heads}, got {list(q.shape)}"
        )
    shape = (segments.total, q.shape[1], pool.head_dim)
    check("paged_attention", "q", q, shape, torch.float32)
    check("paged_attention", "out", out, shape, torch.float32)
    check("paged_attention", "tables", tables, (segments.batch, tables.shape[-1]), torch.int32)
    if not on_device(tables):
        _check_tables(tables, pool, segments)
    route = plan(problem(q, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["paged_attention"][route](q, pool, tables, segments, scale, out)


def _check_tables(tables: torch.Tensor, pool: KvPool, segments: Segments) -> None:
    width = tables.shape[-1]
    for row, (start, count) in enumerate(zip(segments.starts, segments.counts, strict=True)):
        pages = -(-(start + count) // PAGE_TOKENS)
        if pages > width:
            raise ValueError(f"paged_attention: row {row} needs {pages} table entries, got {width}")
        low, high = (int(x) for x in tables[row, :pages].aminmax())
        if low < 0 or high >= pool.pages:
            raise ValueError(f"paged_attention: row {row} names a page outside [0, {pool.pages})")
