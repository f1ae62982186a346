"""Decoders of stored weights and KV rows on the device against the artifact's codec and the KV codec, bit for bit."""

from __future__ import annotations

import ctypes
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.floats import bf16_to_fp32, e4m3_table, fp32_to_bf16
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, geometry
from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.jit.build import TARGETS
from ninfer.kernels.kv_cache import RowFormat, decode, encode, row_layout
from ninfer.kernels.kv_cache.compiled_cpu import PlaneArgs, plane_args
from ninfer.kernels.kv_cache.pool import Plane
from ninfer.kernels.linear.compiled_cpu import Part, part_of
from ninfer.kernels.weights import WeightView
from tests.kernels.cuda.probing import DEVICES, pointers, probe, require_compiles, run
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.weight_samples import view

pytestmark = NEEDS_EMULATOR

FORMATS = [fmt for fmt in Format if fmt is not Format.INT32]
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


class _DequantArgs(ctypes.Structure):
    _fields_ = (
        ("part", Part),
        ("columns", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


class _KvArgs(ctypes.Structure):
    _fields_ = (
        ("plane", PlaneArgs),
        ("rows", ctypes.c_void_p),
        ("decoded", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("dim", ctypes.c_int64),
    )


_DEQUANT = probe("dequant", " ".join(fmt.name.lower() for fmt in FORMATS), _DequantArgs)
_PAIRS = probe("pairs", "q4 q5 q6 q8 fp8 bf16 t2 nvfp4 fp32 int8x4 e4m3x4 e2m1x8", pointers("input", "out", count=True))
_KV = probe("kv_codec", "kv_codec", _KvArgs)


@pytest.fixture(params=["check-late", "random"])
def device(request: pytest.FixtureRequest) -> Emulator:
    """One that watches every access, and a quick one."""
    return DEVICES[request.param]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", [_DEQUANT, _PAIRS, _KV], ids=lambda source: source.path.stem)
def test_compiles(source: CudaSource, target: str) -> None:
    require_compiles(source, target)


# ---- stored weights


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def _scales(part: WeightView, stored: Geometry) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Group scales [rows, groups] and row factors [rows, 1], by the codec."""
    read = codec.byte_source(part.data.numpy(), stored)
    groups, factors = np.zeros((part.rows, 0), np.float32), np.ones((part.rows, 1), np.float32)
    if part.format.is_grouped:
        words = codec.unpack_grouped(read, stored, part.row_begin, part.row_end)[1]
        groups = words.view(np.float16).astype(np.float32)
    elif part.format is Format.NVFP4:
        factors[:] = np.float32(128) / codec.unpack_nvfp4(read, stored, 0, part.rows)[2]
    elif part.format is Format.FP8_ROW:
        factors[:, 0] = bf16_to_fp32(codec.unpack_fp8_rows(read, stored, part.row_begin, part.row_end)[1])
    return groups, factors


def _require_decoded(device: Emulator, part: WeightView) -> None:
    """Scales, factors and values of the view's rows are the codec's."""
    groups, factors = _scales(part, geometry(part.format, part.shape))
    outs = [torch.full((part.rows, n), torch.nan) for n in (groups.shape[1], 1, part.columns)]
    args = _DequantArgs(part_of(part), part.columns, groups.shape[1], *(out.data_ptr() for out in outs))
    run(device, _DEQUANT, part.format.name.lower(), Launch((part.rows, 1, 1), (32, 1, 1)), args, part, *outs)
    values = codec.decode(part.data.numpy(), part.format, part.shape)[part.row_begin : part.row_end]
    for got, wanted in zip(outs, (groups, factors, values), strict=True):
        assert np.array_equal(_bits(got.numpy()), _bits(cast("NDArray[np.float32]", wanted)))


@pytest.mark.parametrize("shape", [(5, 130), (6, 256), (7, 100)])
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt is not Format.NVFP4])
def test_rows_of_a_parent(device: Emulator, fmt: Format, shape: tuple[int, int]) -> None:
    _require_decoded(device, view(fmt, shape, 2, shape[0] - 1, seed=shape[1]))


@pytest.mark.parametrize("columns", [192, 256])
def test_nvfp4_parents(device: Emulator, columns: int) -> None:
    _require_decoded(device, view(Format.NVFP4, (256, columns), seed=3))


@pytest.mark.parametrize("fmt", [Format.BF16, Format.FP8_ROW, Format.FP32])
@pytest.mark.parametrize("columns", [1, 7, 15, 17])
def test_rows_that_lie_at_any_address(device: Emulator, fmt: Format, columns: int) -> None:
    _require_decoded(device, view(fmt, (4, columns), seed=columns))


def _whole_range(fmt: Format) -> NDArray[np.int8]:
    """A row with every legal code."""
    codes = np.arange(fmt.spec.qmin, fmt.spec.qmax + 1).astype(np.int8)
    return np.resize(codes, (1, 256))


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.is_grouped])
@pytest.mark.parametrize("order", [1, -1])
def test_every_integer_code(fmt: Format, order: int) -> None:
    codes = np.ascontiguousarray(_whole_range(fmt)[:, ::order])
    scales = np.array([0x0001, 0x3C00, 0x7BFF, 0x0400], np.uint16)  # 2^-24, 1, 65504, 2^-14
    groups = 256 // fmt.spec.group
    rows = codec.pack_grouped(codes, np.resize(scales, (1, groups)), fmt)
    data = codec.assemble(geometry(fmt, (1, 256)), rows)
    _require_decoded(DEVICES["random"], WeightView(fmt, (1, 256), 0, 1, torch.from_numpy(data)))


def test_every_fp8_code() -> None:
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    rows = codec.pack_fp8_rows(np.stack([codes, codes[::-1]]), np.array([0x3F80, 0x0001], np.uint16))
    data = codec.assemble(geometry(Format.FP8_ROW, (2, 254)), rows)
    _require_decoded(DEVICES["random"], WeightView(Format.FP8_ROW, (2, 254), 0, 2, torch.from_numpy(data)))


@pytest.mark.parametrize("divisor", [1.0, 3.0e-5, 1.7e7])
def test_every_nvfp4_code_with_every_scale(divisor: float) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (128, 4))
    scales = np.resize(np.arange(0x7F, dtype=np.uint8), (128, 4))
    data = codec.pack_nvfp4(codes, scales, divisor)
    _require_decoded(DEVICES["random"], WeightView(Format.NVFP4, (128, 64), 0, 128, torch.from_numpy(data)))


# ---- words to pairs


def _paired(kernel: str, words: NDArray[np.uint32], per_thread: int, numbers: int) -> NDArray[np.float32]:
    """What each thread makes of its words [256, per_thread]: [256, numbers]."""
    out = np.full((len(words), numbers), np.nan, np.float32)
    assert words.shape == (256, per_thread)
    tensors = torch.from_numpy(words.view(np.int32)), torch.from_numpy(out)
    run(DEVICES["random"], _PAIRS, kernel, Launch((1, 1, 1), (256, 1, 1)), *tensors, numbers=(len(words),))
    return out


def _random_words(*shape: int) -> NDArray[np.uint32]:
    return np.random.default_rng(23).integers(0, 2**32, shape, dtype=np.uint32)


def _bits_of(words: NDArray[np.uint32], width: int, count: int) -> NDArray[np.int64]:
    """The lowest `count` fields of `width` bits of each word [n]: [n, count]."""
    return (words[:, None].astype(np.int64) >> np.arange(count) * width) & ((1 << width) - 1)


def _signed(codes: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return (codes ^ 1 << bits - 1) - (1 << bits - 1)


def _every_byte(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The words, every byte among them at each of its places."""
    for place in range(4):
        words.view(np.uint8)[:, place] = np.roll(np.arange(256), place)
    return words


def test_pairs_of_integer_codes_ignore_other_bits() -> None:
    words = _random_words(256, 2)
    low, high = words[:, 0], words[:, 1]
    base = _bits_of(low, 4, 8)
    assert np.array_equal(_paired("q4", low[:, None].copy(), 1, 8), _signed(base, 4))
    assert np.array_equal(_paired("q5", words, 2, 8), _signed(base | _bits_of(high, 1, 8) << 4, 5))
    assert np.array_equal(_paired("q6", words, 2, 8), _signed(base | _bits_of(high, 2, 8) << 4, 6))
    assert np.array_equal(_paired("t2", words, 2, 8), _signed(_bits_of(low, 2, 8), 2))


def test_pairs_of_bytes() -> None:
    words = _every_byte(_random_words(256, 2))
    words[:, 1] = words[::-1, 0]
    codes = words.view(np.uint8)
    assert np.array_equal(_paired("q8", words, 2, 8), codes.view(np.int8).astype(np.float32))
    assert np.array_equal(_bits(_paired("fp8", words, 2, 8)), _bits(_e4m3_values()[codes]))


def test_pairs_of_bf16_are_those_of_the_row() -> None:
    words = _random_words(256, 4)
    wanted = bf16_to_fp32(words.view(np.uint16))
    assert np.array_equal(_bits(_paired("bf16", words, 4, 8)), _bits(wanted))


def _e4m3_values() -> NDArray[np.float32]:
    """Of every code; the two of NaN read as +-480."""
    values = e4m3_table().astype(np.float32).copy()
    values[[127, 255]] = 480, -480
    return values


def test_pairs_of_nvfp4_for_every_scale() -> None:
    words = _random_words(256, 2)
    words[:, 1] = np.resize(np.arange(0x7F), 256)
    wanted = _E2M1[_bits_of(words[:, 0], 4, 8)] * e4m3_table()[words[:, 1]][:, None] / np.float32(128)
    assert np.array_equal(_bits(_paired("nvfp4", words, 2, 8)), _bits(wanted))


def test_pairs_of_floats_are_rounded() -> None:
    values = np.random.default_rng(1).standard_normal((256, 8)).astype(np.float32)
    assert np.array_equal(_paired("fp32", _bits(values), 8, 8), bf16_to_fp32(fp32_to_bf16(values)))


def test_words_of_kv_codes_become_neighbours_in_order() -> None:
    words = _every_byte(_random_words(256, 1))
    codes = words.view(np.uint8)
    assert np.array_equal(_paired("int8x4", words, 1, 4), codes.view(np.int8).astype(np.float32))
    assert np.array_equal(_bits(_paired("e4m3x4", words, 1, 4)), _bits(_e4m3_values()[codes]))
    assert np.array_equal(_bits(_paired("e2m1x8", words, 1, 8)), _bits(_E2M1[_bits_of(words[:, 0], 4, 8)]))


# ---- rows of keys and values


def _kv(device: Emulator, row_format: RowFormat, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and decoded rows by the device."""
    count, dim = rows.shape
    layout = row_layout(row_format, dim)
    codes = torch.zeros(count, layout.codes, dtype=layout.code_dtype)
    scales = torch.zeros(count, layout.scales, dtype=layout.scale_dtype)
    decoded = torch.zeros(count, dim)
    plane = Plane(row_format, codes, scales)
    args = _KvArgs(plane_args(plane), rows.data_ptr(), decoded.data_ptr(), count, dim)
    run(device, _KV, "kv_codec", Launch((-(-count // 64), 1, 1), (64, 1, 1)), args, codes, scales, rows, decoded)
    return codes, scales, decoded


def _raw(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.contiguous().view(torch.uint8).numpy()


def _rows(dim: int) -> torch.Tensor:
    """Rows of every size with zeros of both signs, halves that tie, groups of zeros, subnormal and greatest numbers."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((96, dim)) * 10.0 ** np.linspace(-45, 37, 96)[:, None]
    rows[::3] = rng.integers(-254, 255, rows[::3].shape) / 2 * 2.0 ** rng.integers(-20, 10, (32, 1))
    rows[::3, 0] = 127
    rows[::5, ::7], rows[:, 3::11] = 0.0, -0.0
    rows[1, :64], rows[2] = 0.0, -0.0
    rows[4, 5], rows[7, 7] = 3.4e38, -3.4e38
    return torch.from_numpy(rows.astype(np.float32))


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("row_format", RowFormat)
def test_kv_rows_have_the_bytes_of_the_codec(device: Emulator, row_format: RowFormat, dim: int) -> None:
    rows = _rows(dim)
    codes, scales, decoded = _kv(device, row_format, rows)
    wanted_codes, wanted_scales = encode(row_format, rows)
    assert np.array_equal(_raw(codes), _raw(wanted_codes))
    assert np.array_equal(_raw(scales), _raw(wanted_scales))
    assert torch.equal(decoded, decode(row_format, wanted_codes, wanted_scales))


def test_quotients_at_every_tie_of_kv_codes() -> None:
    """Rows whose scale is 1, with all halfway points between codes and their neighbours in fp32."""
    grids = {
        RowFormat.FP8: (e4m3_table()[:127].astype(np.float32), 448.0),
        RowFormat.NVFP4: (_E2M1[:8], 6.0),
        RowFormat.INT8: (np.arange(128, dtype=np.float32), 127.0),
    }
    for row_format, (grid, top) in grids.items():
        ties = (grid[1:] + grid[:-1]) / 2
        near = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(999)), grid])
        near = np.concatenate([near, -near])
        rows = np.zeros((-(-len(near) // 15), 4, 16), np.float32)
        rows[:, :, 0] = top
        rows[:, 0, 1:].flat[: len(near)] = near
        table = torch.from_numpy(rows.reshape(-1, 64))
        codes, scales, _ = _kv(DEVICES["random"], row_format, table)
        wanted_codes, wanted_scales = encode(row_format, table)
        assert np.array_equal(_raw(scales), _raw(wanted_scales)), row_format
        assert np.array_equal(_raw(codes), _raw(wanted_codes)), row_format


@pytest.mark.parametrize("row_format", [fmt for fmt in RowFormat if fmt is not RowFormat.FP32])
@pytest.mark.parametrize("bad", [float("nan"), -float("nan")])
def test_a_nan_is_seen_in_its_row_and_in_no_other(row_format: RowFormat, bad: float) -> None:
    rows = torch.ones(2, 64)
    rows[0, 5] = bad
    codes, _, decoded = _kv(DEVICES["random"], row_format, rows)
    assert bool(decoded[0, 5].isnan())
    if row_format is RowFormat.FP8:
        assert (_raw(codes[0]) & 0x7F == 0x7F).all()
    if row_format is RowFormat.INT8:
        assert not codes[0].any()
    assert bool(decoded[1].isfinite().all())


@pytest.mark.parametrize("row_format", [RowFormat.INT8, RowFormat.FP8, RowFormat.NVFP4])
def test_infinite_numbers_do_not_reach_the_codes_of_others(row_format: RowFormat) -> None:
    rows = torch.ones(2, 64)
    rows[0, 5] = -float("inf")
    codes, scales, _ = _kv(DEVICES["random"], row_format, rows)
    wanted_codes, wanted_scales = encode(row_format, rows)
    assert np.array_equal(_raw(scales), _raw(wanted_scales))
    finite = np.arange(codes.shape[1]) != (2 if row_format is RowFormat.NVFP4 else 5)
    assert np.array_equal(_raw(codes)[:, finite], _raw(wanted_codes)[:, finite])
