"""The exact NumPy oracle of every format: encode, pack, unpack and decode, whole or by row ranges.

Row-range functions read through a `ByteSource` (bytes relative to the object's start), so callers stream
tensors of any size with bounded memory. Decoded values are float32 (int32 for INT32). Sources of the
formulas: artifact v3, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import packing, quantise
from ninfer.artifact.floats import F32, U8, U16, bf16_to_fp32, e4m3_table, fp32_to_bf16
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import (
    NVFP4_TILE_ROWS,
    NVFP4_TILE_SCALE_BYTES,
    Geometry,
    Layout,
    PlaneName,
    geometry,
)
from ninfer.errors import ArtifactError

ByteSource = Callable[[int, int], U8]
"""`read(begin, end)` gives bytes `[begin, end)` of one object as uint8, as a view where it can."""

Decoded = NDArray[np.float32] | NDArray[np.int32]
Words = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.int32]

_BLOCK_ELEMENTS = 1 << 18  # keeps the temporaries of one encode or decode step inside the L2 cache
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Consecutive rows in stored form: for each plane a uint8 array [rows, row_stride]."""

    rows: int
    planes: Mapping[PlaneName, U8]

    def place(self, target: Geometry, row_begin: int) -> Iterator[tuple[int, U8]]:
        """(offset in the object, flat bytes) of each plane for rows that start at `row_begin` of `target`.

        Raises:
            ArtifactError: the rows lie outside `target` or were encoded for another format or K.
        """
        if not 0 <= row_begin <= target.rows - self.rows:
            raise ArtifactError(f"rows [{row_begin}, {row_begin + self.rows}) lie outside the {target.rows} rows")
        strides = {plane.name: (self.rows, plane.row_stride) for plane in target.planes}
        if strides != {name: data.shape for name, data in self.planes.items()}:
            raise ArtifactError(f"the rows were not encoded for {target.format.value} {list(target.shape)}")
        for name, data in self.planes.items():
            plane = target.plane(name)
            yield plane.offset + row_begin * plane.row_stride, data.reshape(-1)


def encode_rows(values: Words, fmt: Format, name: str = "tensor") -> EncodedRows:
    """Encode rows of a matrix with the format's reference method.

    Args:
        values: [rows, K]. float32 or bf16 bit patterns (uint16); int32 for INT32 only.
        name: the tensor, for error messages.

    Raises:
        ArtifactError: non-finite source of a quantised format, a scale out of range, a source dtype that
            the format cannot represent, or a format without a float encoder (T2, NVFP4).
    """
    if values.ndim != 2 or 0 in values.shape:
        raise ArtifactError(f"{name}: encode_rows takes a non-empty matrix [rows, K], got {list(values.shape)}")
    if fmt.is_direct:
        words = np.ascontiguousarray(cast_direct(values, fmt, name))
        return EncodedRows(len(words), {PlaneName.VALUES: words.view(np.uint8)})
    source = _float_source(values, fmt, name)
    step = max(1, _BLOCK_ELEMENTS // source.shape[1])
    blocks = [_encode_block(source[r : r + step], fmt, name) for r in range(0, len(source), step)]
    if len(blocks) == 1:
        return blocks[0]
    planes = {plane: np.concatenate([b.planes[plane] for b in blocks]) for plane in blocks[0].planes}
    return EncodedRows(len(values), planes)


def encode(values: Words, fmt: Format, name: str = "tensor") -> U8:
    """Encode a whole tensor to the bytes of its object (flat uint8). Raises like `encode_rows`."""
    target = geometry(fmt, values.shape)
    return assemble(target, encode_rows(values.reshape(target.rows, target.columns), fmt, name))


def assemble(target: Geometry, rows: EncodedRows) -> U8:
    """All rows of an object as its flat bytes, gaps zero."""
    if rows.rows != target.rows:
        raise ArtifactError(f"expected {target.rows} encoded rows, got {rows.rows}")
    out = np.zeros(target.total_bytes, np.uint8)
    for offset, data in rows.place(target, 0):
        out[offset : offset + data.size] = data
    return out


def cast_direct(values: Words, fmt: Format, name: str = "tensor") -> Words:
    """`cast_direct`: the words of a direct format, bit-exact where the source already has that type.

    BF16 takes float32 (rounded to nearest even) or bf16 bits; FP32 the same two; INT32 only int32.
    """
    if fmt is Format.INT32:
        if values.dtype != np.int32:
            raise ArtifactError(f"{name}: cannot store {values.dtype} as int32; convert it explicitly")
        return values
    source = _float_source(values, fmt, name)
    if fmt is Format.BF16:
        return source if source.dtype == np.uint16 else fp32_to_bf16(source.view(np.float32))
    return source if source.dtype == np.float32 else bf16_to_fp32(source.view(np.uint16))


def pack_grouped(codes: NDArray[np.int8], scales: U16, fmt: Format) -> EncodedRows:
    """Pack existing grouped codes (`import_encoded`).

    Args:
        codes: int8 [rows, K], legal for `fmt`.
        scales: fp16 bit patterns uint16 [rows, ceil(K / group)].
    """
    rows, columns = codes.shape
    target = geometry(fmt, (rows, columns))
    wanted = (rows, -(-columns // fmt.spec.group))
    if scales.shape != wanted:
        raise ArtifactError(f"{fmt.value} codes {list(codes.shape)} need scales {list(wanted)}")
    base, high = packing.pack_codes(fmt, _pad_columns(codes, target.padded_columns))
    planes = {PlaneName.CODES: base}
    if high is not None:
        planes[PlaneName.HIGH_BITS] = high
    planes[PlaneName.SCALES] = _pad_columns(scales, target.groups).astype("<u2", copy=False).view(np.uint8)
    return EncodedRows(rows, planes)


def pack_fp8_rows(codes: U8, scales: U16) -> EncodedRows:
    """Pack existing FP8 codes uint8 [rows, K] and bf16 scale bit patterns uint16 [rows]."""
    stored = np.ascontiguousarray(scales.reshape(-1, 1), dtype="<u2").view(np.uint8)
    return EncodedRows(len(codes), {PlaneName.CODES: np.ascontiguousarray(codes), PlaneName.SCALES: stored})


def pack_nvfp4(codes: U8, scales: U8, divisor: float) -> U8:
    """Pack existing NVFP4 data to the bytes of its object.

    Args:
        codes: E2M1 codes uint8 [N, K], one code 0..15 per byte.
        scales: E4M3FN block scales uint8 [N, K / 16], in logical order.
        divisor: the matrix's fp32 divisor (w = e2m1 * scale / divisor), finite and positive.
    """
    target = geometry(Format.NVFP4, codes.shape)
    if scales.shape != (target.rows, target.groups):
        raise ArtifactError(f"nvfp4 codes {list(codes.shape)} need scales {[target.rows, target.groups]}")
    out = np.zeros(target.total_bytes, np.uint8)
    _store(out, target, PlaneName.CODES, packing.pack_nibbles(codes))
    _store(out, target, PlaneName.SCALES, packing.swizzle_nvfp4_scales(scales))
    _store(out, target, PlaneName.DIVISOR, np.array([divisor], "<f4").view(np.uint8))
    return out


def unpack_grouped(read: ByteSource, source: Geometry, begin: int, end: int) -> tuple[NDArray[np.int8], U16]:
    """Rows `[begin, end)` as stored: int8 codes [rows, K_pad] and fp16 bits uint16 [rows, K_pad / group]."""
    high = read_rows(read, source, PlaneName.HIGH_BITS, begin, end) if source.format.spec.high_bits else None
    codes = packing.unpack_codes(source.format, read_rows(read, source, PlaneName.CODES, begin, end), high)
    return codes, read_rows(read, source, PlaneName.SCALES, begin, end).view("<u2")


def unpack_fp8_rows(read: ByteSource, source: Geometry, begin: int, end: int) -> tuple[U8, U16]:
    """Rows `[begin, end)` as stored: E4M3FN codes uint8 [rows, K] and bf16 bits uint16 [rows]."""
    codes = read_rows(read, source, PlaneName.CODES, begin, end)
    return codes, read_rows(read, source, PlaneName.SCALES, begin, end).view("<u2").reshape(-1)


def unpack_nvfp4(read: ByteSource, source: Geometry, begin: int, end: int) -> tuple[U8, U8, np.float32]:
    """Rows `[begin, end)`: E2M1 codes uint8 [rows, K], block scales uint8 [rows, K/16], the fp32 divisor."""
    codes = packing.unpack_nibbles(read_rows(read, source, PlaneName.CODES, begin, end))
    first, last = begin // NVFP4_TILE_ROWS, -(-end // NVFP4_TILE_ROWS)
    scales_at = source.plane(PlaneName.SCALES).offset
    tile_row = source.groups // 4 * NVFP4_TILE_SCALE_BYTES
    swizzled = read(scales_at + first * tile_row, scales_at + last * tile_row)
    skipped = first * NVFP4_TILE_ROWS
    scales = packing.unswizzle_nvfp4_scales(swizzled, source.groups)[begin - skipped : end - skipped]
    divisor_at = source.plane(PlaneName.DIVISOR).offset
    return codes, scales, np.float32(read(divisor_at, divisor_at + 4).copy().view("<f4")[0])


def read_rows(read: ByteSource, source: Geometry, name: PlaneName, begin: int, end: int) -> U8:
    """Stored bytes of rows `[begin, end)` of one plane: uint8 [rows, row_stride]."""
    plane = source.plane(name)
    start, stride = plane.offset, plane.row_stride
    return np.ascontiguousarray(read(start + begin * stride, start + end * stride)).reshape(end - begin, stride)


def decode_rows(read: ByteSource, source: Geometry, begin: int, end: int) -> Decoded:
    """Decoded values of rows `[begin, end)`: [rows, K] float32, or int32 for INT32."""
    step = max(1, _BLOCK_ELEMENTS // source.padded_columns)
    out = _empty_rows(source, end - begin)
    with np.errstate(all="ignore"):  # illegal stored scales may be NaN or 0; `validate` reports them
        for row in range(begin, end, step):
            stop = min(end, row + step)
            out[row - begin : stop - begin] = _decode_block(read, source, row, stop)
    return out


def decode_elements(read: ByteSource, source: Geometry, begin: int, end: int) -> Decoded:
    """Decoded C-order elements `[begin, end)` of the tensor, flat."""
    if source.layout is Layout.CONTIGUOUS:
        width = source.format.spec.code_bits // 8
        return _widen_words(read(begin * width, end * width), source.format)
    first, last = begin // source.columns, -(-end // source.columns)
    rows = decode_rows(read, source, first, last).reshape(-1)
    return rows[begin - first * source.columns : end - first * source.columns]


def decode(data: U8, fmt: Format, shape: tuple[int, ...]) -> Decoded:
    """Decode the bytes of a whole object (flat uint8) to an array of `shape`.

    Raises:
        ArtifactError: `data` has not the encoded size of (fmt, shape).
    """
    source = geometry(fmt, shape)
    return decode_elements(byte_source(data, source), source, 0, source.elements).reshape(shape)


def byte_source(data: U8, source: Geometry) -> ByteSource:
    """A `ByteSource` over the bytes of a whole object, after checking their number."""
    if data.ndim != 1 or data.size != source.total_bytes:
        raise ArtifactError(
            f"{source.format.value} {list(source.shape)} takes {source.total_bytes} bytes, got {data.size}"
        )
    return lambda begin, end: data[begin:end]


def _encode_block(values: quantise.Source, fmt: Format, name: str) -> EncodedRows:
    if fmt is Format.FP8_ROW:
        return pack_fp8_rows(*quantise.fp8_row_maxabs(values, name))
    columns, group = values.shape[1], max(1, fmt.spec.group)
    padded = _pad_columns(values, -(-columns // group) * group)
    codes, scales = quantise.grouped_absmax(padded, fmt, name)
    return pack_grouped(codes[:, :columns], scales, fmt)


def _float_source(values: Words, fmt: Format, name: str) -> quantise.Source:
    contiguous = np.ascontiguousarray(values).reshape(values.shape)
    if values.dtype == np.float32:
        return contiguous.view(np.float32)
    if values.dtype == np.uint16:
        return contiguous.view(np.uint16)
    raise ArtifactError(f"{name}: {fmt.value} takes float32 or bf16 bits (uint16), not {values.dtype}")


def _pad_columns(values: NDArray[Any], columns: int) -> NDArray[Any]:
    missing = columns - values.shape[1]
    padded = np.pad(values, ((0, 0), (0, missing))) if missing else values
    return np.ascontiguousarray(padded)


def _store(out: U8, target: Geometry, name: PlaneName, data: U8) -> None:
    plane = target.plane(name)
    out[plane.offset : plane.offset + plane.size] = data.reshape(-1)


def _empty_rows(source: Geometry, rows: int) -> Decoded:
    shape = (rows, source.columns)
    return np.empty(shape, np.int32) if source.format is Format.INT32 else np.empty(shape, np.float32)


def _widen_words(data: U8, fmt: Format) -> Decoded:
    words = np.ascontiguousarray(data)
    if fmt is Format.BF16:
        return bf16_to_fp32(words.view("<u2"))
    return words.view("<i4").copy() if fmt is Format.INT32 else words.view("<f4").copy()


def _decode_block(read: ByteSource, source: Geometry, begin: int, end: int) -> Decoded:
    if source.layout is Layout.CONTIGUOUS:
        data = read_rows(read, source, PlaneName.VALUES, begin, end)
        return _widen_words(data, source.format).reshape(end - begin, source.columns)
    if source.layout is Layout.ROW_SPLIT:
        return _decode_grouped(*unpack_grouped(read, source, begin, end))[:, : source.columns]
    if source.layout is Layout.ROW_SCALE:
        codes, scales = unpack_fp8_rows(read, source, begin, end)
        return e4m3_table()[codes] * bf16_to_fp32(scales)[:, None]
    return _decode_nvfp4(*unpack_nvfp4(read, source, begin, end))


def _decode_grouped(codes: NDArray[np.int8], scales: U16) -> F32:
    multiplier = scales.view(np.float16).astype(np.float32)[..., None]
    values = codes.astype(np.float32).reshape(*scales.shape, -1)
    np.multiply(values, multiplier, out=values)
    return values.reshape(codes.shape)


def _decode_nvfp4(codes: U8, scales: U8, divisor: np.float32) -> F32:
    values = _E2M1[codes].reshape(*scales.shape, Format.NVFP4.spec.group)
    np.multiply(values, e4m3_table()[scales][..., None], out=values)
    np.divide(values, divisor, out=values)
    return values.reshape(codes.shape)
