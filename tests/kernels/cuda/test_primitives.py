"""The functions of include/*.cuh, each alone: tables of PTX written out here once more, and orders of sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninfer.artifact.floats import bf16_to_fp32, e4m3_table, fp32_to_bf16
from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.jit.build import TARGETS
from ninfer.kernels.philox import Purpose, philox4x32, uniform
from tests.kernels.cuda.probing import DEVICES, pointers, probe, require_compiles, run
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator

pytestmark = NEEDS_EMULATOR

_WARP = probe(
    "warp",
    "warp_sum_float warp_sum_double warp_sum_i32 warp_max_float warp_max_i32 warp_max_u32 block_sum block_max "
    "shuffle shuffle_xor shuffle_up shuffle_down votes place",
    pointers("input", "out", count=True),
)
_MMA = probe("mma", "mma_bf16 mma_f16 mma_s8", pointers("a", "b", "d"))
_MMA_E4M3 = probe("mma", "mma_e4m3", pointers("a", "b", "d"))
_MEMORY = probe(
    "memory",
    "ldmatrix_x4 ldmatrix_x4_trans ldmatrix_x2 cp_async cp_async_early loads",
    pointers("input", "also", "out"),
)
_NUMBERS = probe(
    "numbers",
    "bf16_to_float half_to_float e4m3_to_float e2m1_to_float float_to_bf16 float_to_half pack unpack pack_half "
    "unpack_half constants philox uniform",
    pointers("input", "out", count=True),
)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_RNG = np.random.default_rng(11)


@pytest.fixture(params=list(DEVICES))
def device(request: pytest.FixtureRequest) -> Emulator:
    """Every way in which threads may interleave."""
    chosen: Emulator = DEVICES[request.param]
    return chosen


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", [_WARP, _MMA, _MEMORY, _NUMBERS], ids=lambda source: source.path.stem)
def test_compiles(source: CudaSource, target: str) -> None:
    require_compiles(source, target)


@pytest.mark.parametrize("target", [target for target in TARGETS if int(target.rstrip("a")) >= 89])
def test_compiles_for_tensor_cores_that_know_e4m3(target: str) -> None:
    require_compiles(_MMA_E4M3, target, {"NINFER_E4M3": 1})


# ---- threads together


def _together(device: Emulator, kernel: str, values: NDArray[Any], threads: int, number: int = 0) -> NDArray[Any]:
    out = np.zeros_like(values)
    how = Launch((len(values) // threads, 1, 1), (threads, 1, 1))
    run(device, _WARP, kernel, how, torch.from_numpy(values), torch.from_numpy(out), numbers=(number,))
    return out


def _butterfly(values: NDArray[Any], combine: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Of every 32 values: each with the one 16 lanes away, then 8, 4, 2 and 1."""
    lanes = values.reshape(-1, 32)
    for mask in (16, 8, 4, 2, 1):
        lanes = combine(lanes, lanes[:, np.arange(32) ^ mask])
    return lanes.reshape(-1)


def _uneven(count: int, dtype: type[np.floating]) -> NDArray[Any]:
    """Numbers whose sum depends on the order."""
    return (_RNG.standard_normal(count) * 10.0 ** _RNG.integers(-6, 6, count)).astype(dtype)


@pytest.mark.parametrize(("kernel", "dtype"), [("warp_sum_float", np.float32), ("warp_sum_double", np.float64)])
def test_warp_sums_are_taken_in_one_order(device: Emulator, kernel: str, dtype: type[np.floating]) -> None:
    values = _uneven(192, dtype)
    assert np.array_equal(_together(device, kernel, values, 96), _butterfly(values, np.add))


def test_warp_sums_of_integers_wrap(device: Emulator) -> None:
    values = _RNG.integers(-(2**31), 2**31, 64, dtype=np.int32)
    assert np.array_equal(_together(device, "warp_sum_i32", values, 32), _butterfly(values, np.add))


@pytest.mark.parametrize(("kernel", "dtype"), [("warp_max_i32", np.int32), ("warp_max_u32", np.uint32)])
def test_warp_maxima_of_integers(device: Emulator, kernel: str, dtype: type[np.integer]) -> None:
    info = np.iinfo(dtype)
    values = _RNG.integers(info.min, info.max, 64, dtype=dtype, endpoint=True)
    assert np.array_equal(_together(device, kernel, values, 32), _butterfly(values, np.maximum))


def test_warp_maxima_pass_over_nan_unless_all_are(device: Emulator) -> None:
    values = _uneven(96, np.float32)
    values[3], values[32:64], values[64:] = np.nan, np.nan, -np.inf
    wanted = np.repeat(np.array([np.nanmax(values[:32]), np.nan, -np.inf], np.float32), 32)
    assert np.array_equal(_together(device, "warp_max_float", values, 96), wanted, equal_nan=True)


def _block_sum(values: NDArray[Any]) -> NDArray[Any]:
    warps = _butterfly(values, np.add)[::32]
    return np.repeat(_butterfly(np.pad(warps, (0, 32 - len(warps))), np.add)[:1], len(values))


def test_block_sums_add_the_sums_of_warps_and_leave_their_memory_free(device: Emulator) -> None:
    values = _uneven(256, np.float32)
    wanted = _block_sum(values + _block_sum(values))
    assert np.array_equal(_together(device, "block_sum", values, 256), wanted)


def test_block_maxima(device: Emulator) -> None:
    values = _uneven(192, np.float32)
    wanted = [block.max() - block.min() for block in values.reshape(2, 96)]
    assert np.array_equal(_together(device, "block_max", values, 96), np.repeat(np.array(wanted), 96))


@pytest.mark.parametrize("number", [0, 1, 5, 16, 31])
def test_shuffles(device: Emulator, number: int) -> None:
    values = _RNG.integers(-(2**62), 2**62, 64)
    lanes, rows = np.arange(32), values.reshape(2, 32)
    sources = {
        "shuffle": np.full(32, number),
        "shuffle_xor": lanes ^ number,
        "shuffle_up": np.where(lanes >= number, lanes - number, lanes),
        "shuffle_down": np.where(lanes + number < 32, lanes + number, lanes),
    }
    for kernel, source in sources.items():
        got = _together(device, kernel, values, 64, number)
        assert np.array_equal(got.reshape(2, 32), rows[:, source]), kernel


def test_votes(device: Emulator) -> None:
    values = np.zeros((4, 32), np.int64)
    values[1], values[2, 31], values[3, :31] = 7, 1, 1
    wanted = [0, 0xFFFFFFFF, 1 << 31, 0x7FFFFFFF]
    assert np.array_equal(_together(device, "votes", values.reshape(-1), 64), np.repeat(wanted, 32))


def test_places(device: Emulator) -> None:
    got = _together(device, "place", np.zeros(192, np.int32), 96)
    assert np.array_equal(got, np.tile([100 * w + i for w in range(3) for i in range(32)], 2))


# ---- tensor cores


def _cells(a_rows: int, per_word: int) -> NDArray[np.int64]:
    """PTX's tables of A and B for m16n8k16 of 16-bit and m16n8k32 of 8-bit numbers.

    Returns:
        [32 lanes, numbers of a lane, 2]: where each number lies: (row, k) of A [16, K], or (column, k) of B [K, 8].
    """
    cells = []
    for lane in range(32):
        group, inside = lane >> 2, lane % 4
        for i in range((4 if a_rows else 2) * per_word):
            register, part = divmod(i, per_word)
            row = group + 8 * (register % 2) if a_rows else group
            later = register >= (2 if a_rows else 1)
            cells.append((row, inside * per_word + part + later * 4 * per_word))
    return np.array(cells).reshape(32, -1, 2)


_SUMS = np.array([[(lane >> 2) + 8 * (i >= 2), lane % 4 * 2 + (i & 1)] for lane in range(32) for i in range(4)])


def _registers(matrix: NDArray[Any], cells: NDArray[np.int64]) -> torch.Tensor:
    """A [16, K] or B transposed [8, K], of words as stored, as the registers of 32 lanes."""
    return torch.from_numpy(np.ascontiguousarray(matrix[cells[..., 0], cells[..., 1]]))


def _multiply(device: Emulator, kernel: str, a: NDArray[Any], b: NDArray[Any], d: NDArray[Any]) -> NDArray[Any]:
    """D + A B^T by the kernel; words of A [16, K] and B^T [8, K] as stored, D [16, 8]."""
    per_word = 4 // a.itemsize
    registers = torch.from_numpy(d[_SUMS[:, 0], _SUMS[:, 1]])
    source, macros = (_MMA_E4M3, {"NINFER_E4M3": 1}) if kernel == "mma_e4m3" else (_MMA, {})
    how = Launch((1, 1, 1), (32, 1, 1), macros=macros)
    run(device, source, kernel, how, _registers(a, _cells(1, per_word)), _registers(b, _cells(0, per_word)), registers)
    out = np.zeros_like(d)
    out[_SUMS[:, 0], _SUMS[:, 1]] = registers.numpy()
    return out


@pytest.mark.parametrize("kernel", ["mma_bf16", "mma_f16"])
def test_mma_of_16_bit_numbers(device: Emulator, kernel: str) -> None:
    a, b = (_RNG.integers(-128, 129, (rows, 16)).astype(np.float32) for rows in (16, 8))
    d = _RNG.integers(-1000, 1000, (16, 8)).astype(np.float32)
    x, y = (fp32_to_bf16(m) if kernel == "mma_bf16" else m.astype(np.float16).view(np.uint16) for m in (a, b))
    assert np.array_equal(_multiply(device, kernel, x, y, d), d + a @ b.T)


@pytest.mark.parametrize("kernel", ["mma_bf16", "mma_f16"])
def test_mma_keeps_the_smallest_numbers(kernel: str) -> None:
    """Subnormal operands, each times one in its own place."""
    a, b = np.zeros((16, 16), np.uint16), np.zeros((8, 16), np.uint16)
    a[:, 3], b[:, 3] = np.arange(1, 17) * 5, 0x3F80 if kernel == "mma_bf16" else 0x3C00
    step = 2.0**-133 if kernel == "mma_bf16" else 2.0**-24
    got = _multiply(DEVICES["random"], kernel, a, b, np.zeros((16, 8), np.float32))
    assert np.array_equal(got, np.repeat(a[:, 3:4] * np.float32(step), 8, axis=1))


def test_mma_of_int8_is_exact_and_wraps(device: Emulator) -> None:
    a, b = (_RNG.integers(-128, 128, (rows, 32), dtype=np.int8) for rows in (16, 8))
    a[0], b[0] = -128, -128
    d = _RNG.integers(-(2**31), 2**31, (16, 8), dtype=np.int32)
    d[0, 0] = 2**31 - 1
    assert np.array_equal(_multiply(device, "mma_s8", a, b, d), d + a.astype(np.int32) @ b.T.astype(np.int32))


def test_mma_of_e4m3(device: Emulator) -> None:
    small = np.flatnonzero(np.abs(np.nan_to_num(e4m3_table(), nan=9)) <= 8).astype(np.uint8)
    a, b = (_RNG.choice(small, (rows, 32)) for rows in (16, 8))
    a[:, ::2], b[:, 1::2] = a[:, ::2] & 0xF0 | 0x30, b[:, 1::2] & 0xF8  # few digits, so that sums are exact
    wanted = e4m3_table()[a].astype(np.float64) @ e4m3_table()[b].T.astype(np.float64)
    got = _multiply(device, "mma_e4m3", a, b, np.ones((16, 8), np.float32))
    assert np.allclose(got, wanted + 1, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("name", ["x4", "x4_trans", "x2"])
def test_ldmatrix(device: Emulator, name: str) -> None:
    tile = _RNG.integers(0, 2**16, (128, 8), dtype=np.uint16)
    rows = _RNG.permutation(128)[:32].astype(np.int32)
    out = np.zeros((32, 4), np.uint32)
    how = Launch((1, 1, 1), (32, 1, 1), shared=2048)
    tensors = (torch.from_numpy(array) for array in (tile.view(np.int16), rows * 16, out.view(np.int32)))
    run(device, _MEMORY, f"ldmatrix_{name}", how, *tensors)
    for matrix in range(4 if "x4" in name else 2):
        words = tile[rows[8 * matrix : 8 * matrix + 8]]
        words = words.T if "trans" in name else words
        got = out[:, matrix].copy().view(np.uint16).reshape(8, 8)  # lane 4 r + c holds words 2 c and 2 c + 1 of row r
        assert np.array_equal(got, words)


# ---- memory


def test_copies_arrive_at_their_wait_and_zeros_where_not_valid(device: Emulator) -> None:
    data = _RNG.integers(0, 256, 2048, dtype=np.uint8)
    valid = _RNG.integers(0, 2, 64, dtype=np.int32)
    out = np.zeros(2048, np.uint8)
    tensors = (torch.from_numpy(array) for array in (data, valid, out))
    run(device, _MEMORY, "cp_async", Launch((1, 1, 1), (64, 1, 1), shared=2048), *tensors)
    first, second = data.reshape(2, 64, 16)
    wanted = np.stack([first * valid[:, None], second])
    assert np.array_equal(out.reshape(2, 64, 16), wanted[:, ::-1])


@pytest.mark.parametrize(("cp_async", "arrived"), [("late", False), ("eager", True)])
def test_copies_may_arrive_as_late_as_their_wait_or_at_once(cp_async: str, arrived: bool) -> None:
    data = _RNG.integers(1, 256, 1024, dtype=np.uint8)
    out = np.zeros(2048, np.uint8)
    tensors = (torch.from_numpy(array) for array in (data, np.ones(64, np.int32), out))
    device = Emulator(cp_async="late" if cp_async == "late" else "eager")
    run(device, _MEMORY, "cp_async_early", Launch((1, 1, 1), (64, 1, 1), shared=1024), *tensors)
    assert np.array_equal(out[:1024], data * arrived)
    assert np.array_equal(out[1024:], data)


def test_loads(device: Emulator) -> None:
    data = _RNG.integers(0, 256, 512, dtype=np.uint8)
    out = np.zeros(3456, np.uint8)
    tensors = (torch.from_numpy(array) for array in (data, np.ones(1, np.int32), out))
    run(device, _MEMORY, "loads", Launch((1, 1, 1), (32, 1, 1)), *tensors)
    words = data[:64].view(np.uint16).astype(np.uint32).view(np.uint8)
    assert np.array_equal(out, np.concatenate([*[data] * 4, *[data[:256]] * 2, *[data[:128]] * 2, words, data]))


# ---- numbers


def _convert(
    kernel: str, words: NDArray[Any], outputs: int | None = None, count: int | None = None
) -> NDArray[np.uint32]:
    words = np.ascontiguousarray(words).view(np.uint32)
    out = np.zeros(len(words) if outputs is None else outputs, np.uint32)
    count = len(words) if count is None else count
    how = Launch((-(-count // 256), 1, 1), (256, 1, 1))
    tensors = (torch.from_numpy(array.view(np.int32)) for array in (words, out))
    run(Emulator(), _NUMBERS, kernel, how, *tensors, numbers=(count,))
    return out


def _same(got: NDArray[np.uint32], wanted: NDArray[np.float32]) -> bool:
    """Whether the bits are those of `wanted`, or NaN where it is NaN."""
    nan = np.isnan(wanted)
    return np.array_equal(got[~nan], wanted[~nan].view(np.uint32)) and bool(np.isnan(got[nan].view(np.float32)).all())


def test_every_16_bit_number_becomes_its_float() -> None:
    words = np.arange(65536, dtype=np.uint32)
    assert _same(_convert("bf16_to_float", words), bf16_to_fp32(words.astype(np.uint16)))
    assert _same(_convert("half_to_float", words), words.astype(np.uint16).view(np.float16).astype(np.float32))


def test_every_code_becomes_its_float() -> None:
    codes = np.arange(256, dtype=np.uint32)
    wanted = e4m3_table().astype(np.float32).copy()
    wanted[[127, 255]] = 480, -480
    assert _same(_convert("e4m3_to_float", codes), wanted)
    assert _same(_convert("e2m1_to_float", codes), np.tile(_E2M1, 16))


def _floats() -> NDArray[np.float32]:
    """Numbers of every exponent, every tie of bf16 in one of them, and the special ones."""
    scattered = _RNG.integers(0, 2**32, 20000, dtype=np.uint32)
    ties = np.arange(0x3F800000, 0x40000000, 0x8000, dtype=np.uint32)
    special = np.array([0, 1, 0x7F7FFFFF, 0x7F800000, 0x007FFFFF, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001])
    words = np.concatenate([scattered, ties, ties + 1, ties - 1, special.astype(np.uint32)])
    values = np.concatenate([words, words ^ 0x80000000]).view(np.float32)
    return values[~np.isnan(values)]


def test_floats_are_rounded_to_the_nearest_even() -> None:
    values = _floats()
    assert np.array_equal(_convert("float_to_bf16", values), fp32_to_bf16(values))
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    assert np.array_equal(_convert("float_to_half", values), wanted.view(np.uint16))


@pytest.mark.parametrize("half", [False, True])
def test_pairs_have_the_first_in_the_low_half(half: bool) -> None:
    values = _floats()
    values = values[np.abs(values) < 65504] if half else values
    words = (values.astype(np.float16).view(np.uint16) if half else fp32_to_bf16(values)).astype(np.uint32)
    assert np.array_equal(_convert("pack_half" if half else "pack", values), words | np.roll(words, -1) << 16)
    halves = np.arange(65536, dtype=np.uint32)
    halves = halves[(halves & 0x7FFF) <= (0x7C00 if half else 0x7F80)]  # no NaN
    pairs = halves << 16 | halves[::-1]
    assert np.array_equal(_convert("unpack_half" if half else "unpack", pairs), pairs >> 16 | pairs << 16)


def test_infinity_and_nan() -> None:
    got = _convert("constants", np.zeros(2, np.uint32)).view(np.float32)
    assert got[0] == np.inf
    assert np.isnan(got[1])


def test_philox_is_that_of_the_host() -> None:
    words = _RNG.integers(0, 2**32, (300, 6), dtype=np.uint32)
    words[0], words[1] = 0, 0xFFFFFFFF
    got = _convert("philox", words.reshape(-1), outputs=1200, count=300)
    wanted = [philox4x32(tuple(row[:4]), tuple(row[4:])) for row in words.tolist()]
    assert np.array_equal(got.reshape(300, 4), np.array(wanted, np.uint32))


def test_uniform_is_that_of_the_host() -> None:
    draws = [(s, p, q) for s in (0, 7, 2**64 - 1) for p in (0, 2**32 + 5, 2**64 - 1) for q in Purpose]
    keys = np.array(draws, np.uint64)
    got = _convert("uniform", keys.reshape(-1), outputs=2 * len(keys), count=len(keys)).view(np.float64)
    assert got.tolist() == [uniform(seed, position, purpose) for seed, position, purpose in draws]
