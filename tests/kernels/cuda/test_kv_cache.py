"""kv_append on CUDA, in the emulator: the bytes of the scalar oracle for every codec."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.kernels.jit import record, using
from ninfer.kernels.kv_cache import KvCodec, KvPool, kv_append, make_kv_pool
from ninfer.kernels.kv_cache.cases import CASES
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import same_bits
from tests.kernels.test_kv_cache import _bytes, _expected, _poison, _rows

pytestmark = NEEDS_EMULATOR
_SMALL = (3, 64, 127)


def _pool(codec: KvCodec, pages: int, heads: int, dim: int) -> KvPool:
    pool = make_kv_pool(codec, pages, heads, dim)
    for plane in (pool.keys, pool.values):
        _poison(plane)
    return pool


def _appends(pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: tuple[int, ...], device: Emulator) -> None:
    """Append, and compare every byte of the pool with the oracle's."""
    sides = (pool.keys, k), (pool.values, v)
    expected = [_expected(plane, rows, slots) for plane, rows in sides]
    before = k.clone(), v.clone()
    with using(device):
        kv_append(pool, k, v, torch.tensor(slots))
    for (plane, _), (codes, scales) in zip(sides, expected, strict=True):
        assert np.array_equal(_bytes(plane.codes), codes)
        assert np.array_equal(_bytes(plane.scales), scales)
    assert same_bits(k, before[0])
    assert same_bits(v, before[1])


@pytest.mark.parametrize("codec", KvCodec)
def test_official_heads_are_stored_as_the_oracle_stores_them(codec: KvCodec) -> None:
    case = CASES["kv_append"][0]
    rng = np.random.default_rng(1)
    k, v = (_rows(rng, len(case.slots), case.kv_heads, case.head_dim) for _ in range(2))
    _appends(_pool(codec, case.pages, case.kv_heads, case.head_dim), k, v, case.slots, Emulator("check"))


@pytest.mark.parametrize("dim", [64, 128, 192])
def test_heads_of_other_sizes(dim: int) -> None:
    rng = np.random.default_rng(dim)
    for codec in (KvCodec.INT8, KvCodec.K8V4):
        k, v = (_rows(rng, len(_SMALL), 3, dim) for _ in range(2))
        _appends(_pool(codec, 2, 3, dim), k, v, _SMALL, Emulator("check"))


@pytest.mark.parametrize("codec", KvCodec)
def test_small_numbers_and_ties_are_rounded_as_the_oracle_rounds_them(codec: KvCodec) -> None:
    """Rows down to fp32's subnormal numbers, whose scales are subnormal or zero, and rows of exact halves."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((48, 1, 64)) * 10.0 ** np.linspace(-44, 4, 48)[:, None, None]
    rows[::3] = rng.integers(-254, 255, (16, 1, 64)) / 2
    rows[::3, :, 0] = 127
    k = torch.from_numpy(rows.astype(np.float32))
    _appends(_pool(codec, 1, 1, 64), k, k.flip(0), tuple(range(48)), Emulator())


@pytest.mark.parametrize("codec", KvCodec)
def test_a_nan_stays_in_its_row(codec: KvCodec) -> None:
    k = torch.ones(2, 1, 64)
    k[0, 0, 5] = float("nan")
    pool = make_kv_pool(codec, 1, 1, 64)
    with using(Emulator()):
        kv_append(pool, k, k, torch.tensor([3, 4]))
    for plane in (pool.keys, pool.values):
        rows = plane.read(torch.tensor([0]))[0, 0]
        assert bool(rows[3, 5].isnan())
        assert bool(rows[4].isfinite().all())


def test_a_recording_reads_slots_and_rows_anew() -> None:
    pool, plain = (make_kv_pool(KvCodec.K8V4, 2, 2, 64) for _ in range(2))
    k, v = (torch.randn(8, 2, 64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    key, value, slots = k[:1].clone(), v[:1].clone(), torch.tensor([0])
    with using(Emulator()):
        recording = record(lambda: kv_append(pool, key, value, slots))
        for token, slot in enumerate((0, 5, 127, 64, 63, 1, 2, 99)):
            key.copy_(k[token : token + 1])
            value.copy_(v[token : token + 1])
            slots.fill_(slot)
            recording.run()
    kv_append(plain, k, v, torch.tensor([0, 5, 127, 64, 63, 1, 2, 99]))
    for got, wanted in ((pool.keys, plain.keys), (pool.values, plain.values)):
        assert same_bits(got.codes, wanted.codes)
        assert same_bits(got.scales, wanted.scales)
