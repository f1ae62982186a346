"""Storage layouts of the v3 artifact: where each plane of an encoded tensor lies, byte for byte.

Everything here is integer arithmetic on shapes; no data is touched. Source: artifact v3, section 4.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ninfer.artifact.formats import Format
from ninfer.errors import ArtifactError

U64_MAX = 2**64 - 1
PLANE_ALIGNMENT = 256
ROW_SPLIT_K = 128
BASE_GROUP_BYTES = 32
NVFP4_TILE_ROWS = 128
NVFP4_TILE_K = 64
NVFP4_TILE_SCALE_BYTES = 512


class Layout(enum.Enum):
    """Every layout this release can decode; values are the names written in the directory."""

    CONTIGUOUS = "contiguous_le_v1"
    ROW_SPLIT = "row_split_k128_v1"
    BLOCK_SCALE = "block_scale_k16_m128x4_v1"
    ROW_SCALE = "row_scale_v1"
    RAW_BYTES = "raw_bytes_v1"


_LAYOUTS = {layout.value: layout for layout in Layout}


class PlaneName(enum.Enum):
    """The role of one plane; direct formats have the single plane VALUES."""

    VALUES = "values"
    CODES = "codes"
    HIGH_BITS = "high_bits"
    SCALES = "scales"
    DIVISOR = "divisor"


@dataclass(frozen=True, slots=True)
class Plane:
    """Bytes `[offset, offset + size)` of the object. `row_stride` is 0 where rows are not contiguous."""

    name: PlaneName
    offset: int
    size: int
    row_stride: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Complete byte geometry of one encoded tensor.

    Attributes:
        rows, columns: the tensor as a matrix. Direct formats of rank != 2 use dimension 0 as rows and
            the product of the rest as columns (a scalar is 1 x 1).
        padded_columns: K after padding (row-split pads to a multiple of 128; equal to K elsewhere).
        groups: stored scale groups per row (0 where the format has none).
        planes: in file order.
        total_bytes: the encoded size of the object.
    """

    format: Format
    layout: Layout
    shape: tuple[int, ...]
    rows: int
    columns: int
    padded_columns: int
    groups: int
    planes: tuple[Plane, ...]
    total_bytes: int

    @property
    def elements(self) -> int:
        return self.rows * self.columns

    def plane(self, name: PlaneName) -> Plane:
        """The plane called `name`; KeyError when this format has no such plane."""
        for plane in self.planes:
            if plane.name is name:
                return plane
        raise KeyError(name)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Byte ranges between planes, which the layout requires to be zero."""
        for plane, following in zip(self.planes, self.planes[1:], strict=False):
            end = plane.offset + plane.size
            if end < following.offset:
                yield end, following.offset


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows of one plane: bytes `[begin, end)` of the object, one row every `row_stride` bytes."""

    name: PlaneName
    begin: int
    end: int
    row_stride: int


@dataclass(frozen=True, slots=True)
class RowView:
    """Rows `[row_begin, row_end)` of a parent, without a copy and with the parent's geometry."""

    parent: Geometry
    row_begin: int
    row_end: int
    spans: tuple[RowSpan, ...]


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is >= `value`."""
    return -(-value // alignment) * alignment


def layout_for(fmt: Format) -> Layout:
    """The one layout the v3 artifact defines for `fmt`."""
    if fmt.is_direct:
        return Layout.CONTIGUOUS
    if fmt.is_grouped:
        return Layout.ROW_SPLIT
    return Layout.BLOCK_SCALE if fmt is Format.NVFP4 else Layout.ROW_SCALE


def known_layout(name: str) -> Layout | None:
    """The layout called `name` in a directory, or None for a layout of a later release."""
    return _LAYOUTS.get(name)


@lru_cache(maxsize=1024)
def geometry(fmt: Format, shape: tuple[int, ...], layout: Layout | None = None) -> Geometry:
    """Byte geometry of `shape` stored as `fmt`; remembered, since a model asks for few of them very often.

    Raises:
        ArtifactError: the layout does not store this format, the rank or divisibility is wrong, or the
            size exceeds u64.
    """
    chosen = layout_for(fmt) if layout is None else layout
    if chosen is not layout_for(fmt):
        raise ArtifactError(
            f"format {fmt.value} is stored as {layout_for(fmt).value}, but the layout given is {chosen.value}"
        )
    if len(shape) > 16 or any(dim <= 0 for dim in shape):
        raise ArtifactError(f"expected a shape of 0..16 positive integers, got {list(shape)}")
    if fmt.is_direct:
        result = _contiguous(fmt, shape)
    elif fmt.is_grouped:
        result = _row_split(fmt, shape)
    elif fmt is Format.NVFP4:
        result = _block_scale(shape)
    else:
        result = _row_scale(shape)
    if result.total_bytes > U64_MAX:
        raise ArtifactError(f"{fmt.value} {list(shape)} needs more than 2^64-1 bytes")
    return result


def encoded_size(fmt: Format, layout: Layout, shape: tuple[int, ...]) -> int:
    """Bytes of the object that stores `shape` as (`fmt`, `layout`). Raises like `geometry`."""
    return geometry(fmt, shape, layout).total_bytes


def plane_spans(fmt: Format, shape: tuple[int, ...]) -> tuple[Plane, ...]:
    """The planes of `shape` stored as `fmt`, in file order. Raises like `geometry`."""
    return geometry(fmt, shape).planes


def row_view(fmt: Format, parent_shape: tuple[int, ...], row_begin: int, row_end: int) -> RowView:
    """A view of rows `[row_begin, row_end)` of a contiguous, row-split or row-scale parent.

    Raises:
        ArtifactError: the range is empty or outside the parent, or the format is NVFP4, whose swizzled
            scales are consumed as a whole parent.
    """
    parent = geometry(fmt, parent_shape)
    if not 0 <= row_begin < row_end <= parent.rows:
        raise ArtifactError(f"rows [{row_begin}, {row_end}) are not a range of the parent's {parent.rows} rows")
    if any(plane.row_stride == 0 for plane in parent.planes):
        raise ArtifactError(f"{fmt.value} is consumed as a whole parent; it has no row views")
    spans = tuple(
        RowSpan(p.name, p.offset + row_begin * p.row_stride, p.offset + row_end * p.row_stride, p.row_stride)
        for p in parent.planes
    )
    return RowView(parent, row_begin, row_end, spans)


def _matrix(fmt: Format, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ArtifactError(f"{fmt.value} stores matrices [N, K]; got the shape {list(shape)}")
    return shape[0], shape[1]


def _contiguous(fmt: Format, shape: tuple[int, ...]) -> Geometry:
    rows = shape[0] if shape else 1
    columns = math.prod(shape[1:])
    stride = columns * (fmt.spec.code_bits // 8)
    planes = (Plane(PlaneName.VALUES, 0, rows * stride, stride),)
    return Geometry(fmt, Layout.CONTIGUOUS, shape, rows, columns, columns, 0, planes, rows * stride)


def _row_split(fmt: Format, shape: tuple[int, ...]) -> Geometry:
    rows, columns = _matrix(fmt, shape)
    padded = align_up(columns, ROW_SPLIT_K)
    groups = padded // fmt.spec.group
    strides = {
        PlaneName.CODES: groups * BASE_GROUP_BYTES,
        PlaneName.HIGH_BITS: groups * fmt.spec.group * fmt.spec.high_bits // 8,
        PlaneName.SCALES: groups * 2,
    }
    planes: list[Plane] = []
    end = 0
    for name, stride in strides.items():
        if stride:
            offset = align_up(end, PLANE_ALIGNMENT)
            planes.append(Plane(name, offset, rows * stride, stride))
            end = offset + rows * stride
    return Geometry(fmt, Layout.ROW_SPLIT, shape, rows, columns, padded, groups, tuple(planes), end)


def _block_scale(shape: tuple[int, ...]) -> Geometry:
    rows, columns = _matrix(Format.NVFP4, shape)
    if rows % NVFP4_TILE_ROWS or columns % NVFP4_TILE_K:
        raise ArtifactError(f"nvfp4 needs N % 128 == 0 and K % 64 == 0; got the shape {list(shape)}")
    groups = columns // Format.NVFP4.spec.group
    scales_at = align_up(rows * columns // 2, PLANE_ALIGNMENT)
    divisor_at = scales_at + rows * groups
    planes = (
        Plane(PlaneName.CODES, 0, rows * columns // 2, columns // 2),
        Plane(PlaneName.SCALES, scales_at, rows * groups, 0),
        Plane(PlaneName.DIVISOR, divisor_at, 4, 0),
    )
    return Geometry(Format.NVFP4, Layout.BLOCK_SCALE, shape, rows, columns, columns, groups, planes, divisor_at + 4)


def _row_scale(shape: tuple[int, ...]) -> Geometry:
    rows, columns = _matrix(Format.FP8_ROW, shape)
    scales_at = align_up(rows * columns, PLANE_ALIGNMENT)
    planes = (
        Plane(PlaneName.CODES, 0, rows * columns, columns),
        Plane(PlaneName.SCALES, scales_at, 2 * rows, 2),
    )
    total = scales_at + 2 * rows
    return Geometry(Format.FP8_ROW, Layout.ROW_SCALE, shape, rows, columns, columns, 1, planes, total)
