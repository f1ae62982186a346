"""paged_attention with torch: fixed tiles of 16 query rows against pages of 64 keys.

Exactness: every matrix product is a batch of [16, D] x [D, 64] or [16, 64] x [64, D], padded with zero rows where
a sequence has fewer queries, because torch's products give a row other bits when its matrix has other numbers of
rows (measured: 1, 2 and 3 rows differ from 16; the place in the tile, the neighbours, the number of matrices in
the batch and the alignment do not matter, for D of 64, 128 and 256). A tile's row is a pair (token, query head of
the group). Pages are merged by the running softmax, in order of position. The running maximum is exact, so how
many pages are computed at once does not show. A masked key adds exactly zero, and a page of masked keys scales
by exactly one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ninfer.kernels.kv_cache.pool import PAGE_TOKENS, KvPool
from ninfer.kernels.segments import Segments

_TILE = 16
_TILE_PAGES = 32
"""Products (tile, page) computed at once per KV head: bounds memory, and does not show in the result."""
_FLOOR = -3.0e38
"""Stands for the maximum of no score at all: finite, so that differences of maxima are never NaN."""


@dataclass(frozen=True, slots=True)
class _Tiles:
    """U units of n tiles each: one tile of each of several rows, or several tiles of one row.

    Attributes:
        queries: fp32 [U, Hkv, n, 16, D], scaled; zeros where there is no query.
        positions: int64 [U, n, 16], of each query; -1 where there is none.
        first: no query of this piece is at a lower position.
        pages: int64 [U, pages], padded with pages that exist.
        lengths: per unit, the columns of its sequence that are written.
    """

    queries: torch.Tensor
    positions: torch.Tensor
    first: int
    pages: torch.Tensor
    lengths: tuple[int, ...]


def paged_attention(
    q: torch.Tensor, pool: KvPool, tables: torch.Tensor, segments: Segments, scale: float, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring."""
    group = q.shape[1] // pool.kv_heads
    for rows in _units(segments, group):
        queries = torch.stack([_row_tiles(q, row, pool, segments) for row in rows]).mul_(scale)
        attended = torch.cat([_attend(tiles, pool) for tiles in _split(queries, rows, tables, segments, group)], 2)
        for unit, row in enumerate(rows):
            _write_row(attended[unit], row, segments, out)


def _units(segments: Segments, group: int) -> list[list[int]]:
    """Rows to compute together: all that fit one tile, then each other row alone."""
    small = [row for row, count in enumerate(segments.counts) if count * group <= _TILE]
    large = [[row] for row, count in enumerate(segments.counts) if count * group > _TILE]
    return [small, *large] if small else large


def _row_tiles(q: torch.Tensor, row: int, pool: KvPool, segments: Segments) -> torch.Tensor:
    """One row's queries as [Hkv, n, 16, D], token by token with the heads of a group together."""
    count, heads, dim = segments.counts[row], pool.kv_heads, pool.head_dim
    own = q[segments.offsets[row] : segments.offsets[row + 1]].view(count, heads, -1, dim)
    pairs = count * own.shape[2]
    tiles = q.new_zeros(heads, -(-pairs // _TILE), _TILE, dim)
    tiles.view(heads, -1, dim)[:, :pairs] = own.transpose(0, 1).reshape(heads, pairs, dim)
    return tiles


def _write_row(tiles: torch.Tensor, row: int, segments: Segments, out: torch.Tensor) -> None:
    """The reverse of `_row_tiles`, into the row's part of out."""
    count, (heads, _, _, dim) = segments.counts[row], tiles.shape
    own = out[segments.offsets[row] : segments.offsets[row + 1]].view(count, heads, -1, dim)
    pairs = count * own.shape[2]
    own.copy_(tiles.reshape(heads, -1, dim)[:, :pairs].view(heads, count, -1, dim).transpose(0, 1))


def _split(
    queries: torch.Tensor, rows: list[int], tables: torch.Tensor, segments: Segments, group: int
) -> Iterator[_Tiles]:
    """Cut the tiles of a unit into pieces that `_attend` can hold."""
    spans = [(segments.starts[row], segments.starts[row] + segments.counts[row]) for row in rows]
    starts, lengths = torch.tensor(spans)[:, :, None].unbind(1)
    positions = starts + torch.arange(queries.shape[2] * _TILE) // group
    positions = torch.where(positions < lengths, positions, -1).view(len(rows), -1, _TILE)
    for begin in range(0, queries.shape[2], _TILE_PAGES):
        end = begin + _TILE_PAGES
        first = min(start for start, _ in spans) + begin * _TILE // group
        end_position = max(min(length, start + -(-end * _TILE // group)) for start, length in spans)
        pages = _page_ids(tables, rows, lengths, -(-end_position // PAGE_TOKENS))
        ends = tuple(length for _, length in spans)
        yield _Tiles(queries[:, :, begin:end], positions[:, begin:end], first, pages, ends)


def _page_ids(tables: torch.Tensor, rows: list[int], lengths: torch.Tensor, width: int) -> torch.Tensor:
    """The first `width` table entries of each row; a shorter row repeats its first page, all of it masked."""
    if len(rows) == 1:
        return tables[rows[0] : rows[0] + 1, :width].long()
    pages = tables[rows, :width].long()
    return torch.where(torch.arange(width) * PAGE_TOKENS < lengths, pages, pages[:, :1])


def _attend(tiles: _Tiles, pool: KvPool) -> torch.Tensor:
    """Softmax over the pages, in order of position: fp32 [U, Hkv, n, 16, D]."""
    units, _, count, _, _ = tiles.queries.shape
    best = tiles.queries.new_full((*tiles.queries.shape[:-1], 1), _FLOOR)
    total, sums = torch.zeros_like(best), torch.zeros_like(tiles.queries)
    step = max(1, _TILE_PAGES // (units * count))
    for begin in range(0, tiles.pages.shape[1], step):
        tops, masses, reads = _pages(tiles, pool, begin, min(begin + step, tiles.pages.shape[1]))
        maxima = torch.cat((best.unsqueeze(1), tops), dim=1).cummax(dim=1).values
        fades = (maxima[:, :-1] - maxima[:, 1:]).exp_()
        weights = tops.sub_(maxima[:, 1:]).exp_()
        masses.mul_(weights)
        reads.mul_(weights)
        for fade, mass, read in zip(fades.unbind(1), masses.unbind(1), reads.unbind(1), strict=True):
            total.mul_(fade).add_(mass)
            sums.mul_(fade).add_(read)
        best = maxima[:, -1]
    return sums.div_(total).add_(0.0)  # adding +0 makes the sign of a zero result independent of masked keys


def _pages(tiles: _Tiles, pool: KvPool, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per page in [begin, end): greatest score, sum of weights, weighted sum of values; [U, pages, Hkv, n, 16, .]."""
    units, heads, count, _, dim = tiles.queries.shape
    block = (units, end - begin, heads, count, _TILE)
    ids = tiles.pages[:, begin:end].reshape(-1)
    keys, values = pool.keys.read(ids), pool.values.read(ids)
    _clear_unwritten(values.view(units, end - begin, heads, PAGE_TOKENS, dim), tiles.lengths, begin)
    queries = tiles.queries.unsqueeze(1).expand(*block, dim).reshape(-1, count, _TILE, dim)
    scores = _products(queries, keys.flatten(0, 1).transpose(1, 2)).view(*block, PAGE_TOKENS)
    if end * PAGE_TOKENS - 1 > tiles.first:
        columns = torch.arange(begin * PAGE_TOKENS, end * PAGE_TOKENS).view(-1, 1, 1, 1, PAGE_TOKENS)
        scores.masked_fill_(columns > tiles.positions[:, None, None, :, :, None], -torch.inf)
    tops = scores.amax(-1, keepdim=True).clamp_min_(_FLOOR)
    weights = scores.sub_(tops).exp_()
    reads = _products(weights.view(-1, count, _TILE, PAGE_TOKENS), values.flatten(0, 1))
    return tops, weights.sum(-1, keepdim=True), reads.view(*block, dim)


def _clear_unwritten(values: torch.Tensor, lengths: tuple[int, ...], begin: int) -> None:
    """Zero the columns past each unit's length, because a weight of zero does not silence a NaN."""
    for unit, length in enumerate(lengths):
        page, column = divmod(max(0, length - begin * PAGE_TOKENS), PAGE_TOKENS)
        if page < values.shape[1]:
            values[unit, page, :, column:] = 0.0
            values[unit, page + 1 :] = 0.0


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left [X, n, 16, a] times right [X, a, b], tile by tile: [X, n, 16, b]."""
    count = left.shape[1]
    if count == 1:
        return torch.bmm(left.squeeze(1), right).unsqueeze(1)
    return torch.stack([torch.bmm(x, y.expand(count, -1, -1)) for x, y in zip(left, right, strict=True)])
