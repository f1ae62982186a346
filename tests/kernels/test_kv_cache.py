"""KV codecs, pools and kv_append against the scalar oracle, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.kernels.kv_cache import (
    IMPLEMENTATIONS,
    PAGE_TOKENS,
    KvCodec,
    KvPool,
    Plane,
    RowFormat,
    compiled_cpu,
    decode,
    encode,
    kv_append,
    make_kv_pool,
    oracle,
    row_layout,
)
from ninfer.kernels.kv_cache.cases import CASES, Case
from tests.kernels.harness import routes_here, same_bits

BYTES_OF_256 = {
    KvCodec.FP32: (1024, 1024),
    KvCodec.BF16: (512, 512),
    KvCodec.INT8: (264, 264),
    KvCodec.FP8: (258, 258),
    KvCodec.NVFP4: (144, 144),
    KvCodec.K8V4: (258, 144),
}


def _poison(plane: Plane) -> None:
    for tensor in (plane.codes, plane.scales):
        tensor.view(torch.uint8).fill_(0xAB)


def _rows(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Rows of widely different sizes, with zeros, signed zeros and exact ties among them."""
    rows = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4, (*shape[:-1], 1))
    rows[..., ::7] = 0.0
    rows[..., 3::11] = -0.0
    return torch.from_numpy(rows.astype(np.float32))


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy().copy()


def _expected(plane: Plane, rows: torch.Tensor, slots: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    codes, scales = _bytes(plane.codes), _bytes(plane.scales)
    for token, slot in enumerate(slots):
        for head in range(rows.shape[1]):
            row = rows[token, head].tolist()
            row_codes, row_scales = oracle.encode_row(plane.row_format.value, row)
            codes[slot // 64, head, slot % 64] = np.frombuffer(row_codes, np.uint8)
            scales[slot // 64, head, slot % 64] = np.frombuffer(row_scales, np.uint8)
    return codes, scales


@pytest.mark.parametrize("codec", KvCodec)
@pytest.mark.parametrize("case", CASES["kv_append"], ids=lambda case: case.name)
def test_append_stores_the_bytes_of_the_oracle(case: Case, codec: KvCodec) -> None:
    rng = np.random.default_rng(case.head_dim)
    k, v = (_rows(rng, len(case.slots), case.kv_heads, case.head_dim) for _ in range(2))
    pool = make_kv_pool(codec, case.pages, case.kv_heads, case.head_dim)
    slots = torch.tensor(case.slots)
    for route in routes_here(IMPLEMENTATIONS["kv_append"], compiled_cpu.SOURCE):
        for plane in (pool.keys, pool.values):
            _poison(plane)
        expected = [_expected(plane, rows, case.slots) for plane, rows in ((pool.keys, k), (pool.values, v))]
        before = k.clone(), v.clone()
        IMPLEMENTATIONS["kv_append"][route](pool, k, v, slots)
        for plane, (codes, scales) in zip((pool.keys, pool.values), expected, strict=True):
            assert np.array_equal(_bytes(plane.codes), codes)
            assert np.array_equal(_bytes(plane.scales), scales)
        assert same_bits(k, before[0])
        assert same_bits(v, before[1])


@pytest.mark.parametrize("codec", KvCodec)
def test_append_rounds_small_numbers_and_ties_like_the_oracle(codec: KvCodec) -> None:
    """Rows down to fp32's subnormal numbers, whose scales are subnormal or zero, and rows of exact halves."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((48, 1, 64)) * 10.0 ** np.linspace(-44, 4, 48)[:, None, None]
    rows[::3] = rng.integers(-254, 255, (16, 1, 64)) / 2
    rows[::3, :, 0] = 127
    k = torch.from_numpy(rows.astype(np.float32))
    slots = tuple(range(48))
    for route in routes_here(IMPLEMENTATIONS["kv_append"], compiled_cpu.SOURCE):
        pool = make_kv_pool(codec, 1, 1, 64)
        expected = [_expected(plane, k, slots) for plane in (pool.keys, pool.values)]
        IMPLEMENTATIONS["kv_append"][route](pool, k, k, torch.tensor(slots))
        for plane, (codes, scales) in zip((pool.keys, pool.values), expected, strict=True):
            assert np.array_equal(_bytes(plane.codes), codes), route
            assert np.array_equal(_bytes(plane.scales), scales), route


@pytest.mark.parametrize("codec", KvCodec)
def test_append_keeps_a_nan_in_its_row(codec: KvCodec) -> None:
    k = torch.ones(2, 1, 64)
    k[0, 0, 5] = float("nan")
    for route in routes_here(IMPLEMENTATIONS["kv_append"], compiled_cpu.SOURCE):
        pool = make_kv_pool(codec, 1, 1, 64)
        IMPLEMENTATIONS["kv_append"][route](pool, k, k, torch.tensor([3, 4]))
        for plane in (pool.keys, pool.values):
            rows = plane.read(torch.tensor([0]))[0, 0]
            assert bool(rows[3, 5].isnan()), route
            assert bool(rows[4].isfinite().all()), route


@pytest.mark.parametrize("row_format", RowFormat)
def test_decode_gives_what_the_bytes_represent(row_format: RowFormat) -> None:
    rows = _rows(np.random.default_rng(5), 12, 128)
    codes, scales = encode(row_format, rows)
    got = decode(row_format, codes, scales)
    for row in range(12):
        wanted = oracle.decode_row(row_format.value, _bytes(codes[row]).tobytes(), _bytes(scales[row]).tobytes())
        assert same_bits(got[row], torch.tensor(wanted, dtype=torch.float32))


@pytest.mark.parametrize("row_format", [RowFormat.FP8, RowFormat.NVFP4])
def test_every_code_decodes_to_its_value(row_format: RowFormat) -> None:
    legal = [c for c in range(256) if c & 0x7F != 0x7F or row_format is RowFormat.NVFP4]
    codes = torch.tensor(legal, dtype=torch.uint8)
    scales = torch.ones(1, dtype=torch.bfloat16)
    if row_format is RowFormat.NVFP4:
        scales = torch.full((len(legal) // 8,), 0x38, dtype=torch.uint8)  # 1.0 in E4M3FN
    wanted = oracle.decode_row(row_format.value, _bytes(codes).tobytes(), _bytes(scales).tobytes())
    assert decode(row_format, codes, scales).tolist() == wanted


@pytest.mark.parametrize(
    ("row_format", "bound"),
    [
        (RowFormat.FP32, 0.0),
        (RowFormat.BF16, 2**-8),
        (RowFormat.INT8, 0.51 / 127),
        (RowFormat.FP8, 2**-4),
        (RowFormat.NVFP4, 0.2),
    ],
)
def test_the_error_is_within_the_format(row_format: RowFormat, bound: float) -> None:
    rows = torch.randn(50, 256, generator=torch.Generator().manual_seed(0))
    got = decode(row_format, *encode(row_format, rows))
    assert bool(((got - rows).abs() <= bound * rows.abs().amax(-1, keepdim=True)).all())


def test_quotients_halfway_between_e2m1_values_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2)
    signs = torch.tensor([1.0] * 8 + [-1.0] * 8)
    got = decode(RowFormat.NVFP4, *encode(RowFormat.NVFP4, (ties * signs)))
    assert got.tolist() == (torch.tensor([0.0, 1, 1, 2, 2, 4, 4, 6] * 2) * signs).tolist()


@pytest.mark.parametrize("row_format", [f for f in RowFormat if f is not RowFormat.FP32])
def test_a_nan_stays_visible(row_format: RowFormat) -> None:
    row = torch.ones(1, 64)
    row[0, 5] = float("nan")
    assert bool(decode(row_format, *encode(row_format, row))[0, 5].isnan())


@pytest.mark.parametrize("codec", KvCodec)
def test_byte_sizes(codec: KvCodec) -> None:
    layouts = row_layout(codec.key_format, 256), row_layout(codec.value_format, 256)
    assert (layouts[0].nbytes, layouts[1].nbytes) == BYTES_OF_256[codec]
    assert make_kv_pool(codec, 3, 2, 256).bytes_per_page == 64 * 2 * sum(BYTES_OF_256[codec])


def _filled(codec: KvCodec, pages: int = 4) -> KvPool:
    pool = make_kv_pool(codec, pages, 2, 64)
    rng = np.random.default_rng(1)
    k, v = (_rows(rng, pages * PAGE_TOKENS, 2, 64) for _ in range(2))
    kv_append(pool, k, v, torch.arange(pages * PAGE_TOKENS))
    return pool


def _page(pool: KvPool, page: int) -> torch.Tensor:
    packed = torch.empty(pool.bytes_per_page, dtype=torch.uint8)
    pool.pack_page(page, packed)
    return packed


@pytest.mark.parametrize("codec", KvCodec)
def test_pages_are_copied_whole_and_through_packed_bytes(codec: KvCodec) -> None:
    pool = _filled(codec)
    before = [_page(pool, page) for page in range(4)]
    pool.copy_page(1, 3)
    assert torch.equal(_page(pool, 3), before[1])
    pool.unpack_page(before[2], 0)
    assert torch.equal(_page(pool, 0), before[2])
    assert torch.equal(_page(pool, 1), before[1])
    assert torch.equal(_page(pool, 2), before[2])


@pytest.mark.parametrize("codec", KvCodec)
@pytest.mark.parametrize("columns", [0, 1, 63, 64])
def test_columns_are_copied_and_the_rest_is_kept(codec: KvCodec, columns: int) -> None:
    pool = _filled(codec)
    pages = torch.tensor([0, 1])
    before = [(plane.read(pages), plane) for plane in (pool.keys, pool.values)]
    pool.copy_columns(0, 1, columns)
    for rows, plane in before:
        after = plane.read(pages)
        assert torch.equal(after[0], rows[0])
        assert torch.equal(after[1, :, :columns], rows[0, :, :columns])
        assert torch.equal(after[1, :, columns:], rows[1, :, columns:])


def test_a_rows_bytes_do_not_depend_on_the_call() -> None:
    for codec in KvCodec:
        whole, single = (make_kv_pool(codec, 2, 2, 64) for _ in range(2))
        rng = np.random.default_rng(2)
        k, v = (_rows(rng, 100, 2, 64) for _ in range(2))
        kv_append(whole, k, v, torch.arange(100))
        for t in torch.randperm(100).tolist():
            kv_append(single, k[t : t + 1], v[t : t + 1], torch.tensor([t]))
        assert all(torch.equal(_page(whole, page), _page(single, page)) for page in (0, 1))


def test_bad_arguments_are_named() -> None:
    pool = make_kv_pool(KvCodec.BF16, 2, 2, 64)
    rows = torch.zeros(1, 2, 64)
    for slot in (-1, 128):
        with pytest.raises(ValueError, match="slots must lie in"):
            kv_append(pool, rows, rows, torch.tensor([slot]))
    with pytest.raises(ValueError, match="kv_append: v"):
        kv_append(pool, rows, torch.zeros(1, 2, 32), torch.tensor([0]))
    with pytest.raises(ValueError, match="multiple of 64"):
        make_kv_pool(KvCodec.BF16, 1, 1, 96)
    with pytest.raises(ValueError, match="page 2"):
        pool.copy_page(0, 2)
    with pytest.raises(ValueError, match="columns"):
        pool.copy_columns(0, 1, 65)
    with pytest.raises(ValueError, match="packed page"):
        pool.pack_page(0, torch.empty(3, dtype=torch.uint8))
