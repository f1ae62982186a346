"""The codec against the scalar oracle, the specification's check values, and round-trip properties."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, geometry
from ninfer.artifact.validate import validate
from ninfer.errors import ArtifactError
from tests.artifact import scalar_reference as ref

NAMES = {Format.Q4: "q4", Format.Q5: "q5", Format.Q6: "q6", Format.Q8: "q8", Format.T2: "t2"}
ENCODABLE = [Format.Q4, Format.Q5, Format.Q6, Format.Q8]
EDGE_FLOATS = [0.0, -0.0, 2.0**-149, -(2.0**-126), 2.0**-24, 1.5 * 2.0**-24, 2.0**-133, 6e4, 448.0, -464.0]


def random_rows(seed: int, rows: int, columns: int) -> NDArray[np.float32]:
    """Rows at wildly different magnitudes, with zeros, so that scales cover normals and subnormals."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-40, 12, (rows, columns // 7 + 1)).repeat(7, axis=1)[:, :columns]
    values = np.ldexp(rng.standard_normal((rows, columns)), exponents).astype(np.float32)
    values[rng.random((rows, columns)) < 0.1] = 0
    values[rng.random(rows) < 0.2] = 0
    return values


def scalar_encode(values: NDArray[np.float32], fmt: Format) -> bytes:
    name = NAMES[fmt]
    group = ref.GROUPS[name]
    codes: list[list[int]] = []
    scales: list[list[int]] = []
    for row in values.tolist():
        groups = [ref.absmax_group(name, row[k : k + group]) for k in range(0, len(row), group)]
        scales.append([scale for scale, _ in groups])
        codes.append([code for _, lanes in groups for code in lanes])
    return ref.row_split(name, codes, scales)


@pytest.mark.parametrize("fmt", ENCODABLE)
@pytest.mark.parametrize("columns", [1, 31, 32, 64, 65, 128, 130, 200])
def test_grouped_absmax_is_bit_exact_with_the_scalar_reference(fmt: Format, columns: int) -> None:
    values = random_rows(columns, 5, columns)
    assert codec.encode(values, fmt).tobytes() == scalar_encode(values, fmt)


@pytest.mark.parametrize("fmt", ENCODABLE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_grouped_absmax_on_adversarial_floats(fmt: Format, data: st.DataObject) -> None:
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**18), max_value=2.0**18)
    row = data.draw(st.lists(finite | st.sampled_from(EDGE_FLOATS), min_size=1, max_size=70))
    values = np.array([row], np.float32)
    assert codec.encode(values, fmt).tobytes() == scalar_encode(values, fmt)


@pytest.mark.parametrize("fmt", ENCODABLE)
def test_rounding_ties_and_tiny_scales(fmt: Format) -> None:
    qmax = ref.QMAX[NAMES[fmt]]
    ties = np.arange(-qmax, qmax + 1, dtype=np.float32) + np.float32(0.5)
    rows = np.zeros((4, 256), np.float32)
    rows[0, : len(ties) - 1] = ties[:-1]
    rows[0, 0] = qmax
    rows[1, :4] = [2.0**-149, -(2.0**-149), 0, 2.0**-140]  # scale rounds to +0 and becomes 0x0001
    rows[2, :2] = [qmax * 1.49 * 2.0**-24, -qmax * 1.49 * 2.0**-24]  # subnormal scale: codes must clamp
    rows[3, 128:130] = [65504.0 * qmax, 1.0]
    assert codec.encode(rows, fmt).tobytes() == scalar_encode(rows, fmt)


def test_a_scale_beyond_fp16_is_refused_by_name() -> None:
    values = np.full((2, 64), 65520.0 * 7, np.float32)
    with pytest.raises(ArtifactError, match=r"text/w.*does not fit fp16"):
        codec.encode(values, Format.Q4, "text/w")


@pytest.mark.parametrize("fmt", [*ENCODABLE, Format.FP8_ROW])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_sources_are_refused_by_name(fmt: Format, bad: float) -> None:
    values = np.ones((3, 130), np.float32)
    values[2, 129] = bad
    with pytest.raises(ArtifactError, match=r"text/w.*non-finite"):
        codec.encode(values, fmt, "text/w")
    with pytest.raises(ArtifactError, match=r"text/w.*non-finite"):
        codec.encode(codec.fp32_to_bf16(values), fmt, "text/w")


@pytest.mark.parametrize("fmt", [*ENCODABLE, Format.FP8_ROW])
def test_bf16_sources_encode_like_their_fp32_values(fmt: Format) -> None:
    bits = codec.fp32_to_bf16(random_rows(3, 6, 200))
    wide = codec.bf16_to_fp32(bits)
    assert codec.encode(bits, fmt).tobytes() == codec.encode(wide, fmt).tobytes()


@pytest.mark.parametrize("columns", [1, 7, 64, 300])
def test_fp8_row_maxabs_is_bit_exact_with_the_scalar_reference(columns: int) -> None:
    values = np.concatenate([random_rows(9, 6, columns), np.zeros((1, columns), np.float32)])
    values[0] = 2.0**-133  # the smallest bf16: scale 0x0001, infinite reciprocal
    values[0, ::2] = 0
    expected = [ref.fp8_row(row) for row in values.tolist()]
    encoded = codec.encode(values, Format.FP8_ROW)
    wanted = ref.row_scale([codes for _, codes in expected], [scale for scale, _ in expected])
    assert encoded.tobytes() == wanted
    validate(encoded, Format.FP8_ROW, values.shape)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_fp8_row_maxabs_on_adversarial_rows(row: list[float]) -> None:
    encoded = codec.encode(np.array([row], np.float32), Format.FP8_ROW)
    scale, codes = ref.fp8_row(row)
    assert encoded[: len(row)].tolist() == codes
    assert struct.unpack("<H", encoded[-2:].tobytes()) == (scale,)


@st.composite
def grouped_tensors(draw: st.DrawFn) -> tuple[Format, NDArray[np.int8], NDArray[np.uint16]]:
    fmt = draw(st.sampled_from(list(NAMES)))
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spec = fmt.spec
    codes = rng.integers(spec.qmin, spec.qmax + 1, (rows, columns), np.int8)
    scales = rng.integers(1, 0x7C00, (rows, -(-columns // spec.group)), np.uint16)
    return fmt, codes, scales


@settings(max_examples=80, deadline=None)
@given(grouped_tensors())
def test_row_split_bytes_match_the_scalar_layout_and_round_trip(
    tensor: tuple[Format, NDArray[np.int8], NDArray[np.uint16]],
) -> None:
    fmt, codes, scales = tensor
    target = geometry(fmt, codes.shape)
    data = codec.assemble(target, codec.pack_grouped(codes, scales, fmt))
    assert data.tobytes() == ref.row_split(NAMES[fmt], codes.tolist(), scales.tolist())
    validate(data, fmt, codes.shape)
    back, back_scales = codec.unpack_grouped(codec.byte_source(data, target), target, 0, len(codes))
    assert (back[:, : codes.shape[1]] == codes).all()
    assert (back_scales[:, : scales.shape[1]] == scales).all()
    wanted = scales.view(np.float16).astype(np.float64).repeat(fmt.spec.group, axis=1)[:, : codes.shape[1]] * codes
    assert (codec.decode(data, fmt, codes.shape) == wanted.astype(np.float32)).all()


@pytest.mark.parametrize("fmt", list(NAMES))
def test_every_legal_code_survives_in_every_lane(fmt: Format) -> None:
    spec = fmt.spec
    legal = np.arange(spec.qmin, spec.qmax + 1)
    codes = np.stack([np.roll(np.resize(legal, 128), shift) for shift in range(128)]).astype(np.int8)
    scales = np.full((128, 128 // spec.group), 0x3C00, np.uint16)
    data = codec.assemble(geometry(fmt, codes.shape), codec.pack_grouped(codes, scales, fmt))
    assert (codec.decode(data, fmt, codes.shape) == codes).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**32))
def test_nvfp4_bytes_match_the_scalar_swizzle_and_round_trip(tiles: int, quads: int, seed: int) -> None:
    rows, columns = 128 * tiles, 64 * quads
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (rows, columns), np.uint8)
    scales = rng.integers(1, 0x7F, (rows, columns // 16), np.uint8)
    data = codec.pack_nvfp4(codes, scales, 3.5)
    assert data.tobytes() == ref.block_scale(codes.tolist(), scales.tolist(), 3.5)
    validate(data, Format.NVFP4, codes.shape)
    source = geometry(Format.NVFP4, codes.shape)
    begin, end = sorted(rng.integers(0, rows + 1, 2).tolist())
    if begin < end:
        got = codec.unpack_nvfp4(codec.byte_source(data, source), source, begin, end)
        assert (got[0] == codes[begin:end]).all()
        assert (got[1] == scales[begin:end]).all()
        assert got[2] == np.float32(3.5)


def test_nvfp4_decode_of_the_check_block() -> None:
    codes = np.zeros((128, 64), np.uint8)
    scales = np.zeros((128, 4), np.uint8)
    codes[40, 16:32], scales[40, 1] = 0b0010, 0x7E  # 1.0 at block scale 448
    decoded = codec.decode(codec.pack_nvfp4(codes, scales, 2688.0), Format.NVFP4, (128, 64))
    assert (decoded[40, 16:32] == np.float32(1.0 * 448 / 2688)).all()
    assert np.count_nonzero(decoded) == 16


def test_nvfp4_decode_matches_exact_fractions() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (128, 64), np.uint8)
    scales = rng.integers(1, 0x7F, (128, 4), np.uint8)
    decoded = codec.decode(codec.pack_nvfp4(codes, scales, 6.7), Format.NVFP4, (128, 64))
    divisor = ref.Fraction(float(np.float32(6.7)))
    for n, k in rng.integers(0, (128, 64), (300, 2)).tolist():
        exact = ref.e2m1_value(int(codes[n, k])) * ref.e4m3_value(int(scales[n, k // 16])) / divisor
        assert decoded[n, k] == ref.as_fp32(exact)


def test_fp8_rows_decode_matches_exact_fractions() -> None:
    codes = np.array([[c for c in range(256) if c & 0x7F != 0x7F]] * 3, np.uint8)
    scales = codec.fp32_to_bf16(np.array([1.0, 2.0**-20 * 1.5, 3.0e30], np.float32))
    data = codec.assemble(geometry(Format.FP8_ROW, codes.shape), codec.pack_fp8_rows(codes, scales))
    decoded = codec.decode(data, Format.FP8_ROW, codes.shape)
    for row, scale in enumerate(codec.bf16_to_fp32(scales).tolist()):
        wanted = [ref.as_fp32(ref.e4m3_value(code) * ref.Fraction(scale)) for code in codes[row].tolist()]
        assert decoded[row].tolist() == wanted


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 1, 3, 4), (1,) * 16])
def test_direct_formats_are_bit_exact_at_any_rank(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, shape, np.uint32)
    fp32 = np.asarray(words).view(np.float32)
    data = codec.encode(fp32, Format.FP32)
    assert data.tobytes() == words.tobytes()
    assert codec.decode(data, Format.FP32, shape).tobytes() == words.tobytes()
    ints = np.asarray(words).view(np.int32)
    assert (codec.decode(codec.encode(ints, Format.INT32), Format.INT32, shape) == ints).all()
    halves = np.asarray(rng.integers(0, 2**16, shape, np.uint16))
    data = codec.encode(halves, Format.BF16)
    assert data.tobytes() == halves.tobytes()
    wide = codec.decode(data, Format.BF16, shape)
    assert wide.view(np.uint32).tobytes() == (halves.astype(np.uint32) << 16).tobytes()


def test_direct_formats_refuse_lossy_sources() -> None:
    with pytest.raises(ArtifactError, match="int32"):
        codec.encode(np.zeros(3, np.float32), Format.INT32, "ids")
    with pytest.raises(ArtifactError, match="bf16"):
        codec.encode(np.zeros(3, np.int32), Format.BF16, "norm")
    with pytest.raises(ArtifactError, match="float encoder"):
        codec.encode(np.zeros((1, 128), np.float32), Format.T2, "w")
    with pytest.raises(ArtifactError, match="float encoder"):
        codec.encode(np.zeros((128, 64), np.float32), Format.NVFP4, "w")


def _any_object(fmt: Format, rng: np.random.Generator) -> tuple[Geometry, NDArray[np.uint8]]:
    if fmt is Format.NVFP4:
        shape = (256, 128)
        codes, scales = rng.integers(0, 16, shape, np.uint8), rng.integers(1, 0x7F, (256, 8), np.uint8)
        return geometry(fmt, shape), codec.pack_nvfp4(codes, scales, 2.0)
    if fmt is Format.T2:
        codes = rng.integers(-1, 2, (37, 150), np.int8)
        scales = rng.integers(1, 0x7C00, (37, 2), np.uint16)
        target = geometry(fmt, codes.shape)
        return target, codec.assemble(target, codec.pack_grouped(codes, scales, fmt))
    words = rng.standard_normal((37, 150)).astype(np.float32)
    source = words.view(np.int32) if fmt is Format.INT32 else words
    return geometry(fmt, words.shape), codec.encode(source, fmt)


@pytest.mark.parametrize("fmt", list(Format))
def test_row_and_element_ranges_decode_like_the_whole(fmt: Format) -> None:
    rng = np.random.default_rng(11)
    source, data = _any_object(fmt, rng)
    read = codec.byte_source(data, source)
    whole = codec.decode(data, fmt, source.shape)
    for _ in range(25):
        begin, end = sorted(rng.choice(source.rows + 1, 2, replace=False).tolist())
        assert (codec.decode_rows(read, source, begin, end) == whole[begin:end]).all()
        begin, end = sorted(rng.choice(source.elements + 1, 2, replace=False).tolist())
        assert (codec.decode_elements(read, source, begin, end) == whole.reshape(-1)[begin:end]).all()


@pytest.mark.parametrize("fmt", [*ENCODABLE, Format.FP8_ROW, Format.BF16, Format.FP32])
def test_row_blocks_encode_to_the_same_bytes_as_the_whole(fmt: Format) -> None:
    values = random_rows(2, 23, 140)
    target = geometry(fmt, values.shape)
    out = np.zeros(target.total_bytes, np.uint8)
    for begin in (10, 0, 17):
        end = {0: 10, 10: 17, 17: 23}[begin]
        for offset, data in codec.encode_rows(values[begin:end], fmt).place(target, begin):
            out[offset : offset + data.size] = data
    assert out.tobytes() == codec.encode(values, fmt).tobytes()


def test_large_tensors_cross_internal_blocks_unchanged() -> None:
    values = random_rows(4, 600, 1000)
    data = codec.encode(values, Format.Q5)
    parts = [codec.encode_rows(values[r : r + 1], Format.Q5) for r in range(0, 600, 97)]
    read = codec.byte_source(data, geometry(Format.Q5, values.shape))
    for part, row in zip(parts, range(0, 600, 97), strict=True):
        for offset, bytes_ in part.place(geometry(Format.Q5, values.shape), row):
            assert (read(offset, offset + bytes_.size) == bytes_).all()


def test_decode_refuses_a_wrong_number_of_bytes() -> None:
    with pytest.raises(ArtifactError, match="takes 528 bytes, got 527"):
        codec.decode(np.zeros(527, np.uint8), Format.Q5, (2, 130))
