"""paged_attention on CUDA, in the emulator: both ways against the oracle, and whose bits depend on what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from ninfer.kernels.jit import DeviceFacts, record, using
from ninfer.kernels.kv_cache import KvCodec, KvPool, kv_append, make_kv_pool
from ninfer.kernels.paged_attention import IMPLEMENTATIONS, cuda, oracle, paged_attention
from ninfer.kernels.paged_attention.plan import SPLITS_OF_SIZE, Shape, SplitPlan, TilePlan, cuda_plan, split_count
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.tolerances import ATTENTION, ATTENTION_BF16, Tolerance
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, conform, poisoned, same_bits
from tests.kernels.test_paged_attention import _matrix, _normal, _pages, _poison, _represented, _slots, _tables

WITH_TENSOR_CORES = [codec for codec in KvCodec if codec is not KvCodec.FP32]
H200 = DeviceFacts(arch=90, multiprocessors=132, shared_bytes=227 * 1024)
RTX = DeviceFacts(arch=89, multiprocessors=128, shared_bytes=99 * 1024)


@dataclass(frozen=True)
class Filled:
    """Sequences in scattered pages of a pool whose other columns are poison; `tables` has two entries too many."""

    pool: KvPool
    rows: list[list[int]]
    lengths: list[int]
    tables: torch.Tensor

    def wanted(self, q: torch.Tensor, segments: Segments) -> np.ndarray:
        used = [(table, start + count) for table, start, count in self._triples(segments)]
        keys, values = ([_represented(plane, *row) for row in used] for plane in (self.pool.keys, self.pool.values))
        scale = q.shape[-1] ** -0.5
        return oracle.paged_attention(q.numpy(), keys, values, segments.starts, segments.counts, scale)

    def _triples(self, segments: Segments) -> Iterator[tuple[list[int], int, int]]:
        return zip(self.rows, segments.starts, segments.counts, strict=True)


def _filled(codec: KvCodec, kv_heads: int, dim: int, lengths: list[int], seed: int = 0) -> Filled:
    pages = sum(map(_pages, lengths)) + 1
    rows = _tables(np.random.default_rng(seed), lengths, pages)
    pool = make_kv_pool(codec, pages, kv_heads, dim)
    _poison(pool)
    for i, (table, length) in enumerate(zip(rows, lengths, strict=True)):
        k, v = (_normal(length, kv_heads, dim, seed=100 * seed + 2 * i + side) for side in (0, 1))
        kv_append(pool, k, v, _slots(table, 0, length))
    return Filled(pool, rows, lengths, _matrix(rows, max(map(len, rows)) + 2))


def _attend(filled: Filled, q: torch.Tensor, segments: Segments, device: Emulator) -> torch.Tensor:
    out = poisoned(*q.shape)
    with using(device):
        paged_attention(q, filled.pool, filled.tables, segments, q.shape[-1] ** -0.5, out)
    assert bool(out.isfinite().all()), "an unwritten column was read"
    return out


def _conforms(
    geometry: tuple[int, int, int],
    codec: KvCodec,
    rows: list[tuple[int, int]],
    tolerance: Tolerance,
    device: Emulator | None = None,
    size: float = 1.0,
) -> None:
    """Rows of (start, count), with queries of this size, against the oracle."""
    heads, kv_heads, dim = geometry
    filled = _filled(codec, kv_heads, dim, [start + count for start, count in rows])
    segments = Segments(tuple(count for _, count in rows), tuple(start for start, _ in rows))
    q = _normal(segments.total, heads, dim, seed=99) * size
    out, route = poisoned(*q.shape), IMPLEMENTATIONS["paged_attention"][Route.CUDA]
    planes = filled.pool.keys, filled.pool.values
    trial = Trial(
        {"q": q, "tables": filled.tables, "keys": planes[0].codes, "values": planes[1].codes},
        {"out": out},
        lambda _: route(q, filled.pool, filled.tables, segments, dim**-0.5, out),
        {"out": filled.wanted(q, segments)},
        {"out": tolerance},
    )
    with using(device or Emulator("check")):
        conform(trial, (Route.CUDA,))


@NEEDS_EMULATOR
@pytest.mark.parametrize("codec", KvCodec)
def test_few_tokens_match_the_oracle_in_every_codec(codec: KvCodec) -> None:
    _conforms((6, 2, 64), codec, [(0, 1), (62, 1), (63, 2), (64, 1), (126, 1), (129, 1)], ATTENTION)


@NEEDS_EMULATOR
@pytest.mark.parametrize(
    ("geometry", "codec", "rows"),
    [
        ((24, 4, 256), KvCodec.BF16, [(70, 1)]),
        ((16, 2, 256), KvCodec.INT8, [(127, 1), (3, 4)]),
        ((20, 1, 64), KvCodec.FP8, [(31, 5)]),  # four tiles of a wide group
        ((3, 3, 128), KvCodec.K8V4, [(65, 4)]),
        ((4, 2, 192), KvCodec.INT8, [(64, 20), (0, 3)]),  # a warp's columns lie under two scales
        ((8, 1, 128), KvCodec.NVFP4, [(60, 8)]),
    ],
    ids=["27b", "35b", "wide", "no_group", "dim_192", "draft"],
)
def test_few_tokens_match_the_oracle_in_other_geometries(
    geometry: tuple[int, int, int], codec: KvCodec, rows: list[tuple[int, int]]
) -> None:
    _conforms(geometry, codec, rows, ATTENTION)


@NEEDS_EMULATOR
def test_large_scores_keep_the_accuracy_of_fp32() -> None:
    _conforms((6, 2, 64), KvCodec.BF16, [(126, 2), (129, 1)], ATTENTION, size=8.0)


@NEEDS_EMULATOR
@pytest.mark.parametrize("codec", WITH_TENSOR_CORES)
def test_many_tokens_match_the_oracle_in_every_codec(codec: KvCodec) -> None:
    _conforms((6, 2, 64), codec, [(0, 20), (63, 1), (100, 65)], ATTENTION_BF16)


@NEEDS_EMULATOR
@pytest.mark.parametrize(
    ("geometry", "codec", "rows", "processors"),
    [
        ((3, 1, 256), KvCodec.BF16, [(62, 66)], 132),
        ((3, 1, 256), KvCodec.INT8, [(0, 65)], 1),
        ((2, 2, 128), KvCodec.K8V4, [(1, 70)], 1),
        ((2, 1, 192), KvCodec.FP8, [(5, 65), (7, 7)], 132),
    ],
    ids=["4_warps", "8_warps", "no_group", "dim_192"],
)
def test_many_tokens_match_the_oracle_in_other_geometries(
    geometry: tuple[int, int, int], codec: KvCodec, rows: list[tuple[int, int]], processors: int
) -> None:
    device = Emulator("check", order="lifo", cp_async="eager", facts=replace(H200, multiprocessors=processors))
    _conforms(geometry, codec, rows, ATTENTION_BF16, device)


@NEEDS_EMULATOR
def test_many_tokens_of_fp32_are_computed_in_fp32() -> None:
    _conforms((6, 2, 64), KvCodec.FP32, [(30, 66)], ATTENTION)


@NEEDS_EMULATOR
@pytest.mark.parametrize("codec", [KvCodec.BF16, KvCodec.INT8])
def test_bits_of_few_tokens_do_not_depend_on_the_call(codec: KvCodec) -> None:
    """A long sequence, over splits of one page and of two, by steps of 1 to 4 tokens, alone and among others."""
    long, start = 2120, 2114
    filled, alone = _filled(codec, 1, 64, [long, 70, 1]), _filled(codec, 1, 64, [long])
    q = _normal(long, 6, 64, seed=7)
    wanted = torch.cat(
        [
            _attend(alone, q[p : p + 1], Segments((1,), (p,)), Emulator(order="random", seed=p))
            for p in range(start, long)
        ]
    )
    device, begin = Emulator(order="sticky", cp_async="eager"), start
    for count in (1, 4, 1):
        among = torch.cat((q[begin : begin + count], q[:3]))
        segments = Segments((count, 2, 1), (begin, 68, 0))
        got = _attend(filled, among, segments, device)[:count]
        assert same_bits(got, wanted[begin - start : begin - start + count])
        begin += count


@NEEDS_EMULATOR
def test_bits_of_many_tokens_do_not_depend_on_the_call() -> None:
    alone, filled = _filled(KvCodec.INT8, 2, 64, [150]), _filled(KvCodec.INT8, 2, 64, [150, 40])
    q, other = _normal(150, 4, 64, seed=7), _normal(20, 4, 64, seed=8)
    wanted = _attend(alone, q, Segments((150,), (0,)), Emulator(order="random"))
    device, pieces = Emulator(order="sticky", cp_async="eager"), []
    for begin, end in ((0, 66), (66, 150)):
        segments = Segments((end - begin, 20), (begin, 20))
        pieces.append(_attend(filled, torch.cat((q[begin:end], other)), segments, device)[: end - begin])
    assert same_bits(torch.cat(pieces), wanted)


@NEEDS_EMULATOR
def test_partial_results_may_take_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    filled, q = _filled(KvCodec.BF16, 1, 64, [90, 70, 3]), _normal(12, 3, 64)
    segments = Segments((5, 4, 3), (85, 66, 0))
    wanted = _attend(filled, q, segments, Emulator())
    monkeypatch.setattr(cuda, "cuda_plan", _tile_by_tile)
    assert same_bits(_attend(filled, q, segments, Emulator("check")), wanted)


def _tile_by_tile(shape: Shape, facts: DeviceFacts) -> SplitPlan:
    chosen = cuda_plan(shape, facts)
    assert isinstance(chosen, SplitPlan)
    assert chosen.tiles_at_once == 3
    return replace(chosen, tiles_at_once=1, partial=chosen.partial // 3)


@NEEDS_EMULATOR
def test_a_recording_reads_tables_and_starts_anew() -> None:
    filled, q = _filled(KvCodec.BF16, 1, 64, [140]), _normal(140, 2, 64)
    segments, tables, token, out = Segments((1,), (0,)), filled.tables.clone(), q[:1].clone(), poisoned(1, 2, 64)
    device = Emulator()
    with using(device):
        recording = record(lambda: paged_attention(token, filled.pool, tables, segments, 0.125, out))
        for position in (139, 63, 64, 0):
            segments.data[2, 0] = position
            token.copy_(q[position : position + 1])
            recording.run()
            now = out.clone()
            assert same_bits(now, _eager(filled, token, position))


def _eager(filled: Filled, token: torch.Tensor, position: int) -> torch.Tensor:
    out = poisoned(*token.shape)
    paged_attention(token, filled.pool, filled.tables, Segments((1,), (position,)), 0.125, out)
    return out


@NEEDS_EMULATOR
@pytest.mark.parametrize("side", ["keys", "values"])
def test_a_nan_does_not_reach_calls_before_it(side: str) -> None:
    filled, q = _filled(KvCodec.BF16, 1, 64, [100]), _normal(100, 2, 64)
    page, column = filled.rows[0][1], 90 - 64
    getattr(filled.pool, side).codes[page, :, column] = float("nan")
    assert bool(_attend(filled, q[80:90], Segments((10,), (80,)), Emulator()).isfinite().all())
    assert bool(_attend(filled, q[20:90], Segments((70,), (20,)), Emulator()).isfinite().all())


def test_the_number_of_splits_is_that_of_the_last_page() -> None:
    begins = [0]
    for size in (1, 2, 4, 8):
        begins += [begins[-1] + size * (i + 1) for i in range(SPLITS_OF_SIZE)]
    for pages in range(1, begins[-1] + 1):
        assert split_count(pages) == sum(begin < pages for begin in begins[:-1])
    assert split_count(4096) == 225  # a context of 262144


OFFICIAL = Shape(batch=8, most=1, heads=24, kv_heads=4, dim=256, width=4096, codec=KvCodec.BF16)


def test_decoding_splits_and_prefill_tiles() -> None:
    decode = cuda_plan(OFFICIAL, H200)
    assert isinstance(decode, SplitPlan)
    assert (decode.queries, decode.warps, decode.tiles, decode.splits, decode.tiles_at_once) == (8, 4, 1, 225, 8)
    assert 2 * (decode.shared + 1024) <= 164 * 1024, "two blocks fit a multiprocessor of an A100"
    draft = cuda_plan(replace(OFFICIAL, most=5), H200)
    assert isinstance(draft, SplitPlan)
    assert (draft.queries, draft.warps, draft.tiles) == (32, 8, 1)
    prefill = cuda_plan(replace(OFFICIAL, batch=1, most=1024), H200)
    assert prefill == TilePlan(warps=8, tiles=48, shared=2 * 256 * 256)
    assert isinstance(cuda_plan(replace(OFFICIAL, most=1024, codec=KvCodec.FP32), H200), SplitPlan)


@pytest.mark.parametrize("codec", KvCodec)
@pytest.mark.parametrize("most", [1, 3, 64, 65, 1024])
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
def test_every_plan_fits_every_gpu(codec: KvCodec, most: int, dim: int) -> None:
    for batch in (1, 8):
        for facts in (H200, RTX):
            chosen = cuda_plan(replace(OFFICIAL, codec=codec, most=most, dim=dim, batch=batch), facts)
            assert chosen.shared <= facts.shared_bytes
            if isinstance(chosen, SplitPlan):
                assert chosen.queries * chosen.tiles >= 6 * most
                assert 1 <= chosen.tiles_at_once <= batch * chosen.tiles
                assert chosen.partial <= 128 << 20 or chosen.tiles_at_once == 1
                assert dim % (16 * chosen.warps) == 0
            else:
                assert 16 * chosen.warps * chosen.tiles >= 6 * most
