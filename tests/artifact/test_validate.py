"""Stored bytes: every illegal code, scale, padding lane and gap byte is found and named."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import PlaneName, geometry
from ninfer.artifact.validate import validate
from ninfer.errors import ArtifactError

GROUPED = [Format.Q4, Format.Q5, Format.Q6, Format.Q8, Format.T2]


def grouped(fmt: Format, rows: int = 3, columns: int = 150) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    rng = np.random.default_rng(2)
    codes = rng.integers(fmt.spec.qmin, fmt.spec.qmax + 1, (rows, columns), np.int8)
    return codes, np.full((rows, -(-columns // fmt.spec.group)), 0x3C00, np.uint16)


def build(fmt: Format, codes: NDArray[np.int8], scales: NDArray[np.uint16]) -> NDArray[np.uint8]:
    return codec.assemble(geometry(fmt, codes.shape), codec.pack_grouped(codes, scales, fmt))


@pytest.mark.parametrize("fmt", GROUPED)
@pytest.mark.parametrize("bits", [0x7C00, 0x7E01, 0x8000, 0xBC00, 0xFC00])
def test_bad_fp16_scales(fmt: Format, bits: int) -> None:
    codes, scales = grouped(fmt)
    scales[2, 1] = bits
    with pytest.raises(ArtifactError, match=r"w \(.*fp16 scale must be .* \(row 2, group 1\)"):
        validate(build(fmt, codes, scales), fmt, codes.shape, "w")


@pytest.mark.parametrize("fmt", GROUPED)
def test_subnormal_and_largest_scales_are_legal(fmt: Format) -> None:
    codes, scales = grouped(fmt)
    scales[0, 0], scales[1, 0] = 0x0001, 0x7BFF
    data = build(fmt, codes, scales)
    validate(data, fmt, codes.shape)
    assert np.isfinite(codec.decode(data, fmt, codes.shape)).all()


@pytest.mark.parametrize("fmt", GROUPED)
def test_zero_scales_force_zero_codes(fmt: Format) -> None:
    codes, scales = grouped(fmt)
    group = fmt.spec.group
    scales[1, 1] = 0
    codes[1, group : 2 * group] = 0
    validate(build(fmt, codes, scales), fmt, codes.shape)
    codes[1, group] = 1
    with pytest.raises(ArtifactError, match=r"zero scale needs zero codes \(row 1, group 1\)"):
        validate(build(fmt, codes, scales), fmt, codes.shape)


@pytest.mark.parametrize(("fmt", "illegal"), [(Format.Q8, -128), (Format.T2, -2)])
def test_illegal_codes(fmt: Format, illegal: int) -> None:
    codes, scales = grouped(fmt)
    codes[2, 140] = illegal
    with pytest.raises(ArtifactError, match=r"code is below .* \(row 2, lane 140\)"):
        validate(build(fmt, codes, scales), fmt, codes.shape)


@pytest.mark.parametrize("fmt", GROUPED)
def test_padding_lanes_and_groups_must_be_zero(fmt: Format) -> None:
    codes, scales = grouped(fmt)
    wide, wide_scales = grouped(fmt, 3, 256)
    wide[:, 150:], wide_scales[:, scales.shape[1] :] = 0, 0
    wide[:, :150] = codes
    validate(build(fmt, wide, wide_scales), fmt, (3, 150))
    wide[1, 151] = 1
    with pytest.raises(ArtifactError, match=r"padding lanes must hold code 0 \(row 1, padding lane 1\)"):
        validate(build(fmt, wide, wide_scales), fmt, (3, 150))
    if wide_scales.shape[1] > scales.shape[1]:
        wide[1, 151], wide_scales[2, -1] = 0, 1
        with pytest.raises(ArtifactError, match="padding groups must have scale 0"):
            validate(build(fmt, wide, wide_scales), fmt, (3, 150))


@pytest.mark.parametrize("fmt", [*GROUPED, Format.FP8_ROW])
def test_gap_bytes_must_be_zero(fmt: Format) -> None:
    target = geometry(fmt, (3, 100))
    for begin, end in target.gaps():
        data = np.zeros(target.total_bytes, np.uint8)
        validate(data, fmt, (3, 100))
        data[end - 1] = 4
        with pytest.raises(ArtifactError, match=rf"bytes \[{begin}, {end}\) between planes"):
            validate(data, fmt, (3, 100))
    assert list(target.gaps())


@pytest.mark.parametrize(
    ("code", "scale", "message"),
    [
        (0x7F, 0x3F80, r"0x7f and 0xff are illegal \(row 1, lane 2\)"),
        (0xFF, 0x3F80, "0x7f and 0xff are illegal"),
        (0x00, 0x8000, r"bf16 scale must be .* \(row 1, scale 0\)"),
        (0x00, 0x7F80, "bf16 scale must be"),
        (0x00, 0x7FC0, "bf16 scale must be"),
        (0x00, 0xBF80, "bf16 scale must be"),
        (0x01, 0x0000, r"zero scale needs zero codes \(row 1, lane 2\)"),
    ],
)
def test_fp8_rows(code: int, scale: int, message: str) -> None:
    codes, scales = np.zeros((2, 5), np.uint8), np.full(2, 0x3F80, np.uint16)
    codes[1, 2], scales[1] = code, scale
    data = codec.assemble(geometry(Format.FP8_ROW, codes.shape), codec.pack_fp8_rows(codes, scales))
    with pytest.raises(ArtifactError, match=message):
        validate(data, Format.FP8_ROW, codes.shape)


def test_fp8_zero_rows_may_hold_either_zero() -> None:
    codes = np.array([[0x00, 0x80, 0x00]], np.uint8)
    data = codec.assemble(geometry(Format.FP8_ROW, (1, 3)), codec.pack_fp8_rows(codes, np.zeros(1, np.uint16)))
    validate(data, Format.FP8_ROW, (1, 3))
    assert not codec.decode(data, Format.FP8_ROW, (1, 3)).any()


@pytest.mark.parametrize("divisor", [0.0, -1.0, float("inf"), float("nan")])
def test_nvfp4_divisors(divisor: float) -> None:
    data = codec.pack_nvfp4(np.zeros((128, 64), np.uint8), np.zeros((128, 4), np.uint8), divisor)
    with pytest.raises(ArtifactError, match="divisor must be finite and positive"):
        validate(data, Format.NVFP4, (128, 64))


@pytest.mark.parametrize(
    ("code", "scale", "message"),
    [
        (0, 0x7F, r"E4M3 scale must be .* \(row 77, group 2\)"),
        (0, 0x80, "E4M3 scale must be"),
        (0, 0xFF, "E4M3 scale must be"),
        (5, 0x00, r"zero scale needs zero codes \(row 77, group 2\)"),
    ],
)
def test_nvfp4_scales(code: int, scale: int, message: str) -> None:
    codes, scales = np.zeros((128, 64), np.uint8), np.full((128, 4), 0x38, np.uint8)
    codes[77, 33], scales[77, 2] = code, scale
    with pytest.raises(ArtifactError, match=message):
        validate(codec.pack_nvfp4(codes, scales, 1.0), Format.NVFP4, (128, 64))


def test_direct_words_are_all_legal() -> None:
    for fmt, size in ((Format.FP32, 12), (Format.BF16, 6)):
        data = np.full(size, 0xFF, np.uint8)
        validate(data, fmt, (3,))
        assert np.isnan(codec.decode(data, fmt, (3,))).all()


def test_every_plane_byte_is_covered_by_the_geometry() -> None:
    for fmt in (*GROUPED, Format.FP8_ROW):
        target = geometry(fmt, (3, 150))
        covered = sum(plane.size for plane in target.planes) + sum(end - begin for begin, end in target.gaps())
        assert covered == target.total_bytes
        assert target.plane(PlaneName.SCALES).offset % 256 == 0
