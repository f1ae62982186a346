"""paged_attention against its oracle, and equality of bits over chunks, batches, pages and unwritten columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, KvPool, Plane, kv_append, make_kv_pool
from ninfer.kernels.native import bodies, record
from ninfer.kernels.paged_attention import IMPLEMENTATIONS, compiled_cpu, oracle, paged_attention
from ninfer.kernels.paged_attention.cases import CASES, Case
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.tolerances import ATTENTION
from tests.kernels.harness import COMPILED, Trial, compare, conform, poisoned, routes_here, same_bits


def _routes() -> tuple[Route, ...]:
    return routes_here(IMPLEMENTATIONS["paged_attention"], compiled_cpu.SOURCE)


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _pages(length: int) -> int:
    return -(-length // PAGE_TOKENS)


def _slots(table: list[int], begin: int, end: int) -> torch.Tensor:
    return torch.tensor([table[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in range(begin, end)])


def _poison(pool: KvPool) -> None:
    """Fill every byte so that reading an unwritten column gives NaN where the format has one."""
    for plane in (pool.keys, pool.values):
        for tensor in (plane.codes, plane.scales):
            tensor.view(torch.uint8).fill_(0xFF)


def _tables(rng: np.random.Generator, lengths: list[int], pages: int) -> list[list[int]]:
    """Distinct scattered pages for each sequence."""
    free = rng.permutation(pages).tolist()
    return [[free.pop() for _ in range(_pages(length))] for length in lengths]


def _matrix(tables: list[list[int]], width: int) -> torch.Tensor:
    """Tables as int32 [B, width]; entries past a sequence's pages are out of range."""
    return torch.tensor([table + [-7] * (width - len(table)) for table in tables], dtype=torch.int32)


def _represented(plane: Plane, table: list[int], length: int) -> np.ndarray:
    rows = plane.read(torch.tensor(table)).transpose(1, 2).flatten(0, 1)
    return rows[:length].double().numpy()


@pytest.mark.parametrize("codec", KvCodec)
@pytest.mark.parametrize("case", CASES["paged_attention"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case, codec: KvCodec) -> None:
    lengths = [start + count for start, count in zip(case.starts, case.counts, strict=True)]
    pages = sum(map(_pages, lengths)) + 1
    tables = _tables(np.random.default_rng(len(lengths)), lengths, pages)
    pool = make_kv_pool(codec, pages, case.kv_heads, case.head_dim)
    _poison(pool)
    for seed, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        k, v = (_normal(length, case.kv_heads, case.head_dim, seed=2 * seed + side) for side in (0, 1))
        kv_append(pool, k, v, _slots(table, 0, length))
    segments = Segments(case.counts, case.starts)
    q = _normal(segments.total, case.heads, case.head_dim, seed=99)
    matrix, scale, out = _matrix(tables, max(map(len, tables)) + 1), case.head_dim**-0.5, poisoned(*q.shape)
    rows = list(zip(tables, lengths, strict=True))
    keys = [_represented(pool.keys, table, length) for table, length in rows]
    values = [_represented(pool.values, table, length) for table, length in rows]
    trial = Trial(
        {"q": q, "tables": matrix, "key codes": pool.keys.codes, "value codes": pool.values.codes},
        {"out": out},
        lambda route: IMPLEMENTATIONS["paged_attention"][route](q, pool, matrix, segments, scale, out),
        {"out": oracle.paged_attention(q.numpy(), keys, values, case.starts, case.counts, scale)},
        {"out": ATTENTION},
    )
    conform(trial, _routes())


@dataclass(frozen=True)
class Sequence:
    """All queries, keys and values of one sequence."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def length(self) -> int:
        return len(self.q)


def _sequence(length: int, heads: int, kv_heads: int, dim: int, seed: int) -> Sequence:
    q = _normal(length, heads, dim, seed=3 * seed)
    return Sequence(q, *(_normal(length, kv_heads, dim, seed=3 * seed + side) for side in (1, 2)))


def _step(
    pool: KvPool, tables: list[list[int]], parts: list[tuple[Sequence, int, int]], route: Route | None = None
) -> list[torch.Tensor]:
    """Append and attend to tokens [begin, end) of each sequence in one call; its output per sequence."""
    for table, (x, begin, end) in zip(tables, parts, strict=True):
        kv_append(pool, x.k[begin:end], x.v[begin:end], _slots(table, begin, end))
    segments = Segments(tuple(end - begin for _, begin, end in parts), tuple(begin for _, begin, _ in parts))
    q = torch.cat([x.q[begin:end] for x, begin, end in parts])
    out = poisoned(*q.shape)
    attend = paged_attention if route is None else IMPLEMENTATIONS["paged_attention"][route]
    attend(q, pool, _matrix(tables, max(map(len, tables)) + 2), segments, 0.125, out)
    assert bool(out.isfinite().all()), "an unwritten column was read"
    return list(out.split(segments.counts))


def _pool(codec: KvCodec, pages: int, x: Sequence) -> KvPool:
    pool = make_kv_pool(codec, pages, x.k.shape[1], x.k.shape[2])
    _poison(pool)
    return pool


def _whole(x: Sequence, codec: KvCodec, route: Route | None = None) -> torch.Tensor:
    table = list(range(_pages(x.length)))
    return _step(_pool(codec, len(table), x), [table], [(x, 0, x.length)], route)[0]


GEOMETRIES = [(1, 1, 64), (2, 1, 64), (6, 1, 128), (4, 2, 192), (17, 1, 64)]


@pytest.mark.parametrize("chunk", [1, 7, 63, 64, 65, 128])
@pytest.mark.parametrize(
    ("geometry", "codec"),
    [((2, 1, 64), KvCodec.FP32), ((12, 2, 256), KvCodec.BF16), ((8, 1, 128), KvCodec.K8V4)],
    ids=["2:1 of 64", "12:2 of 256", "8:1 of 128"],
)
def test_bits_do_not_depend_on_chunks(geometry: tuple[int, int, int], codec: KvCodec, chunk: int) -> None:
    x = _sequence(200, *geometry, seed=1)
    wanted = _whole(x, codec)
    table = [5, 0, 3, 1]
    pool, pieces = _pool(codec, 6, x), []
    for begin in range(0, 200, chunk):
        end = min(begin + chunk, 200)
        pieces += _step(pool, [table[: _pages(end)]], [(x, begin, end)])
    assert same_bits(torch.cat(pieces), wanted)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads for the rest of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("route", COMPILED)
def test_bits_of_compiled_routes_do_not_depend_on_calls_or_threads(
    route: Route, threads: Callable[[int], None]
) -> None:
    """Over borders of spans (512 keys), with chunks and single tokens, alone and in a batch, on 1, 2 and 3 threads."""
    if route not in _routes():
        pytest.skip("this machine cannot run it")
    x, other = _sequence(1100, 4, 2, 64, seed=2), _sequence(70, 4, 2, 64, seed=3)
    threads(1)
    wanted, wanted_other = _whole(x, KvCodec.INT8, route), _whole(other, KvCodec.INT8, route)
    table, table_other = list(range(18)), [19, 18]
    ends = [0, 1, 40, 64, 500, 511, 512, 513, 530, 600, 1020, 1024, 1025, 1026, 1100]
    for count in (1, 2, 3):
        threads(count)
        pool, pieces = _pool(KvCodec.INT8, 20, x), []
        _step(pool, [table_other], [(other, 0, 69)], route)
        for begin, end in pairwise(ends):
            alone = _step(pool, [table], [(x, begin, end)], route)[0]
            both = _step(pool, [table_other, table], [(other, 69, 70), (x, begin, end)], route)
            assert same_bits(both[1], alone)
            assert same_bits(both[0], wanted_other[69:])
            pieces.append(alone)
        assert same_bits(torch.cat(pieces), wanted)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_all_groups_and_numbers_of_tokens(group: int, dim: int) -> None:
    rng = np.random.default_rng(10 * group + dim)
    counts = tuple(int(n) for n in (*rng.integers(1, 5, 2), rng.integers(5, 131)))
    starts = tuple(int(n) for n in rng.integers(0, 150, 3))
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    tables = _tables(rng, lengths, 20)
    pool, segments = make_kv_pool(KvCodec.BF16, 20, 2, dim), Segments(counts, starts)
    _poison(pool)
    for seed, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        k, v = (_normal(length, 2, dim, seed=2 * seed + side) for side in (0, 1))
        kv_append(pool, k, v, _slots(table, 0, length))
    q, matrix, scale = _normal(segments.total, 2 * group, dim), _matrix(tables, 9), dim**-0.5
    rows = list(zip(tables, lengths, strict=True))
    keys, values = ([_represented(side, *row) for row in rows] for side in (pool.keys, pool.values))
    wanted = oracle.paged_attention(q.numpy(), keys, values, starts, counts, scale)
    for route in _routes():
        out = poisoned(*q.shape)
        IMPLEMENTATIONS["paged_attention"][route](q, pool, matrix, segments, scale, out)
        compare(route.value, out, wanted, ATTENTION)


@pytest.mark.parametrize("side", ["k", "v"])
def test_a_nan_token_shows_only_in_queries_that_see_it(side: str) -> None:
    x = _sequence(130, 2, 1, 64, seed=5)
    wanted = _whole(x, KvCodec.BF16)
    getattr(x, side)[70] = float("nan")
    for route in set(_routes()) - {Route.CPU_TORCH}:
        table, pool = [0, 1, 2], _pool(KvCodec.BF16, 3, x)
        kv_append(pool, x.k, x.v, _slots(table, 0, 130))
        out = poisoned(130, 2, 64)
        IMPLEMENTATIONS["paged_attention"][route](x.q, pool, _matrix([table], 3), Segments((130,), (0,)), 0.125, out)
        np.testing.assert_allclose(out[:70].numpy(), wanted[:70].numpy(), rtol=1e-4, atol=1e-5)
        assert bool(out[70:].isnan().all())


def test_a_tape_reads_tables_and_starts_anew() -> None:
    x = _sequence(600, 4, 2, 64, seed=6)
    wanted = _whole(x, KvCodec.BF16)
    for body in bodies(compiled_cpu.SOURCE)[:1]:
        pool = _pool(KvCodec.BF16, 20, x)
        kv_append(pool, x.k, x.v, _slots(list(range(10, 20)), 0, 600))
        q, tables, segments, out = poisoned(1, 4, 64), _matrix([[0]], 12), Segments((1,), (0,)), poisoned(1, 4, 64)
        with record() as tape:
            compiled_cpu.paged_attention(body, q, pool, tables, segments, 0.125, out)
        tables[0, :10] = torch.arange(10, 20)
        for position in (0, 63, 64, 511, 512, 599):
            segments.data[2, 0] = position
            q.copy_(x.q[position : position + 1])
            tape.run()
            assert same_bits(out, wanted[position : position + 1])


def test_bits_do_not_depend_on_how_many_tiles_are_held_at_once() -> None:
    x = _sequence(700, 4, 1, 64, seed=4)  # 175 tiles: several pieces per call
    wanted = _whole(x, KvCodec.FP32)
    pool, table = _pool(KvCodec.FP32, 11, x), list(range(11))
    first = _step(pool, [table], [(x, 0, 699)])[0]
    last = _step(pool, [table], [(x, 699, 700)])[0]
    assert same_bits(torch.cat((first, last)), wanted)


@settings(max_examples=12, deadline=None)
@given(data=st.data(), geometry=st.sampled_from(GEOMETRIES), codec=st.sampled_from(KvCodec))
def test_bits_do_not_depend_on_batch_and_pages(
    data: st.DataObject, geometry: tuple[int, int, int], codec: KvCodec
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 140), min_size=1, max_size=8))
    xs = [_sequence(n, *geometry, seed=i) for i, n in enumerate(lengths)]
    wanted = [_whole(x, codec) for x in xs]
    pages = sum(map(_pages, lengths)) + 2
    tables = _tables(np.random.default_rng(data.draw(st.integers(0, 99))), lengths, pages)
    pool, done = _pool(codec, pages, xs[0]), [0] * len(xs)
    pieces: list[list[torch.Tensor]] = [[] for _ in xs]
    while active := [i for i, x in enumerate(xs) if done[i] < x.length]:
        ends = [data.draw(st.integers(done[i] + 1, min(done[i] + 90, xs[i].length))) for i in active]
        parts = [(xs[i], done[i], end) for i, end in zip(active, ends, strict=True)]
        for i, end, piece in zip(active, ends, _step(pool, [tables[i] for i in active], parts), strict=True):
            pieces[i].append(piece)
            done[i] = end
    for piece, want in zip(pieces, wanted, strict=True):
        assert same_bits(torch.cat(piece), want)


def test_decoding_in_a_batch_of_eight_gives_the_bits_of_prefill() -> None:
    lengths = [3, 63, 64, 65, 100, 128, 129, 200]
    xs = [_sequence(n + 4, 6, 2, 64, seed=i) for i, n in enumerate(lengths)]
    wanted = [_whole(x, KvCodec.BF16) for x in xs]
    pages = sum(_pages(x.length) for x in xs)
    tables = _tables(np.random.default_rng(0), [x.length for x in xs], pages)
    pool = _pool(KvCodec.BF16, pages, xs[0])
    for table, x, n in zip(tables, xs, lengths, strict=True):
        _step(pool, [table], [(x, 0, n)])
    for step in range(4):
        parts = [(x, n + step, n + step + 1) for x, n in zip(xs, lengths, strict=True)]
        for out, want, n in zip(_step(pool, tables, parts), wanted, lengths, strict=True):
            assert same_bits(out, want[n + step : n + step + 1])


def test_later_keys_do_not_show() -> None:
    x = _sequence(130, 2, 1, 64, seed=7)
    wanted = _whole(x, KvCodec.FP32)
    pool, table = _pool(KvCodec.FP32, 3, x), [0, 1, 2]
    kv_append(pool, x.k, x.v, _slots(table, 0, 130))  # all keys are there before any query runs
    for position in (0, 63, 64, 100):
        assert same_bits(_step(pool, [table], [(x, position, position + 1)])[0], wanted[position : position + 1])


def test_large_scores_and_equal_keys_stay_finite() -> None:
    x = _sequence(100, 1, 1, 64, seed=8)
    big = Sequence(x.q * 1e4, x.k * 1e4, x.v)
    assert bool(_whole(big, KvCodec.FP32).isfinite().all())
    same = Sequence(x.q, torch.zeros_like(x.k), x.v)
    mean = x.v[:, 0].double().cumsum(0) / torch.arange(1, 101)[:, None]
    np.testing.assert_allclose(_whole(same, KvCodec.FP32)[:, 0].numpy(), mean.numpy(), rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_named() -> None:
    pool = make_kv_pool(KvCodec.FP32, 2, 2, 64)
    q, table = _normal(1, 4, 64), torch.zeros(1, 1, dtype=torch.int32)
    out, one = poisoned(1, 4, 64), Segments((1,), (0,))
    with pytest.raises(ValueError, match="Hq a multiple of 2"):
        paged_attention(_normal(1, 3, 64), pool, table, one, 1.0, out)
    with pytest.raises(ValueError, match="paged_attention: q"):
        paged_attention(q, pool, table, Segments((2,), (0,)), 1.0, out)
    with pytest.raises(ValueError, match="row 0 needs 2 table entries"):
        paged_attention(q, pool, table, Segments((1,), (64,)), 1.0, out)
    with pytest.raises(ValueError, match="row 0 names a page"):
        paged_attention(q, pool, table + 2, one, 1.0, out)
