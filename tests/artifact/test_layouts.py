"""Encoded sizes and plane geometry: the specification's check values and independent formulas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact.formats import Format, known_format
from ninfer.artifact.layouts import (
    Layout,
    PlaneName,
    encoded_size,
    geometry,
    known_layout,
    layout_for,
    plane_spans,
    row_view,
)
from ninfer.errors import ArtifactError

GROUPED = [Format.Q4, Format.Q5, Format.Q6, Format.Q8, Format.T2]


@pytest.mark.parametrize(
    ("fmt", "shape", "size"),
    [
        (Format.Q5, (2, 130), 528),
        (Format.Q4, (7168, 5120), 19_496_960),
        (Format.Q5, (7168, 5120), 24_084_480),
        (Format.FP8_ROW, (14336, 5120), 73_428_992),
        (Format.NVFP4, (14336, 5120), 41_287_684),
        (Format.BF16, (), 2),
        (Format.FP32, (3, 5, 7), 420),
        (Format.INT32, (1,) * 16, 4),
    ],
)
def test_check_values(fmt: Format, shape: tuple[int, ...], size: int) -> None:
    assert encoded_size(fmt, layout_for(fmt), shape) == size


def test_q5_check_planes() -> None:
    planes = plane_spans(Format.Q5, (2, 130))
    assert [(p.name, p.offset, p.size) for p in planes] == [
        (PlaneName.CODES, 0, 256),
        (PlaneName.HIGH_BITS, 256, 64),
        (PlaneName.SCALES, 512, 16),
    ]
    assert geometry(Format.Q5, (2, 130)).padded_columns == 256
    assert list(geometry(Format.Q5, (2, 130)).gaps()) == [(320, 512)]


@given(st.sampled_from(GROUPED), st.integers(1, 5000), st.integers(1, 5000))
def test_row_split_sizes_follow_the_specification(fmt: Format, rows: int, columns: int) -> None:
    group = {"q4": 64, "q5": 64, "q6": 64, "q8": 32, "t2": 128}[fmt.value[:2]]
    high = {"q5": 8, "q6": 16}.get(fmt.value[:2], 0)
    groups = math.ceil(columns / 128) * 128 // group
    high_offset = math.ceil(rows * groups * 32 / 256) * 256
    scale_offset = high_offset + math.ceil(rows * groups * high / 256) * 256
    assert encoded_size(fmt, Layout.ROW_SPLIT, (rows, columns)) == scale_offset + rows * groups * 2
    assert geometry(fmt, (rows, columns)).plane(PlaneName.SCALES).offset == scale_offset


@pytest.mark.parametrize(
    ("fmt", "bits"),
    [
        (Format.BF16, 16),
        (Format.FP32, 32),
        (Format.INT32, 32),
        (Format.Q4, 4.25),
        (Format.Q5, 5.25),
        (Format.Q6, 6.25),
        (Format.Q8, 8.5),
        (Format.T2, 2.125),
        (Format.NVFP4, 4.5),
        (Format.FP8_ROW, 8),
    ],
)
def test_nominal_bits_per_weight_match_the_bytes(fmt: Format, bits: float) -> None:
    shape = (4096, 4096)
    assert fmt.bits_per_weight == bits
    assert encoded_size(fmt, layout_for(fmt), shape) * 8 / 4096**2 == pytest.approx(bits, rel=1e-3)


def test_row_views_keep_the_parents_planes() -> None:
    view = row_view(Format.Q5, (10, 130), 2, 5)
    assert [(s.name, s.begin, s.end) for s in view.spans] == [
        (PlaneName.CODES, 2 * 128, 5 * 128),
        (PlaneName.HIGH_BITS, 1280 + 2 * 32, 1280 + 5 * 32),
        (PlaneName.SCALES, 1792 + 2 * 8, 1792 + 5 * 8),
    ]
    fp8 = row_view(Format.FP8_ROW, (10, 130), 9, 10)
    assert [(s.begin, s.end) for s in fp8.spans] == [(1170, 1300), (1536 + 18, 1536 + 20)]
    direct = row_view(Format.BF16, (10, 3, 2), 1, 3)
    assert [(s.begin, s.end) for s in direct.spans] == [(12, 36)]


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 3), (4, 2), (0, 11)])
def test_row_views_outside_the_parent_are_refused(begin: int, end: int) -> None:
    with pytest.raises(ArtifactError, match="not a range"):
        row_view(Format.Q4, (10, 128), begin, end)


def test_nvfp4_has_no_row_views() -> None:
    with pytest.raises(ArtifactError, match="whole parent"):
        row_view(Format.NVFP4, (128, 64), 0, 128)


@pytest.mark.parametrize(
    ("fmt", "shape", "message"),
    [
        (Format.Q4, (3,), "matrices"),
        (Format.FP8_ROW, (2, 3, 4), "matrices"),
        (Format.NVFP4, (64, 64), "N % 128"),
        (Format.NVFP4, (128, 96), "K % 64"),
        (Format.BF16, (0, 3), "positive"),
        (Format.BF16, (1,) * 17, "0..16"),
        (Format.BF16, (2**63, 2), "2\\^64"),
        (Format.Q8, (2**40, 2**30), "2\\^64"),
    ],
)
def test_impossible_geometries_are_refused(fmt: Format, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        geometry(fmt, shape)


def test_a_format_has_one_layout() -> None:
    with pytest.raises(ArtifactError, match="row_split_k128_v1"):
        geometry(Format.Q4, (2, 128), Layout.CONTIGUOUS)


def test_names_of_the_future_are_unknown_not_errors() -> None:
    assert known_format("q3_g64_fp16") is None
    assert known_layout("row_split_k128_v2") is None
    assert known_format("nvfp4") is Format.NVFP4
    assert known_layout("row_scale_v1") is Layout.ROW_SCALE
