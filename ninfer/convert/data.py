"""Where an object's bytes come from, and how a block of its rows is encoded into planes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ninfer.artifact.codec import EncodedRows, pack_fp8_rows
from ninfer.artifact.floats import U8
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import NVFP4_TILE_ROWS, Geometry, PlaneName
from ninfer.artifact.packing import swizzle_nvfp4_scales
from ninfer.convert.methods import Method
from ninfer.convert.sources.rows import RowSource, StackedRows
from ninfer.convert.sources.tensor_file import TensorReader
from ninfer.errors import ConfigError

_E4M3_NAN = 0x7F


@dataclass(frozen=True, slots=True)
class PlainData:
    """Values to encode: bf16 bits, float32 or int32."""

    values: RowSource

    @property
    def rows(self) -> int:
        return self.values.rows

    @property
    def source_bytes(self) -> int:
        return self.values.source_bytes


@dataclass(frozen=True, slots=True)
class Fp8Data:
    """Existing E4M3FN codes [rows, K] and bf16 row scales [rows, 1]."""

    codes: RowSource
    scales: RowSource

    @property
    def rows(self) -> int:
        return self.codes.rows

    @property
    def source_bytes(self) -> int:
        return self.codes.source_bytes + self.scales.source_bytes


@dataclass(frozen=True, slots=True)
class Nvfp4Data:
    """Existing nibble pairs [rows, K / 2], E4M3FN block scales [rows, K / 16] and the matrix's divisor."""

    codes: RowSource
    scales: RowSource
    divisor: np.float32

    @property
    def rows(self) -> int:
        return self.codes.rows

    @property
    def source_bytes(self) -> int:
        return self.codes.source_bytes + self.scales.source_bytes


Data = PlainData | Fp8Data | Nvfp4Data


@dataclass(frozen=True, slots=True)
class NamedData:
    """Part of an object: the parameter (for error messages) and its rows."""

    parameter: str
    data: Data


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `[begin, end)` of `part`, which go to row `target` of the object."""

    part: NamedData
    begin: int
    end: int
    target: int

    @property
    def source_bytes(self) -> int:
        data = self.part.data
        return data.source_bytes * self.end // data.rows - data.source_bytes * self.begin // data.rows


def blocks(parts: Sequence[NamedData], block_bytes: int) -> Iterator[Block]:
    """Cut an object's rows into blocks that read about `block_bytes` of source each.

    NVFP4 parts are stacked first and cut at multiples of 128 rows, because their scales are stored in tiles
    of 128 rows that may straddle two parts.
    """
    target = 0
    for part in _stacked(parts) if isinstance(parts[0].data, Nvfp4Data) else parts:
        rows, size = part.data.rows, part.data.source_bytes
        step = max(1, block_bytes * rows // max(size, 1))
        if isinstance(part.data, Nvfp4Data):
            step = max(NVFP4_TILE_ROWS, step // NVFP4_TILE_ROWS * NVFP4_TILE_ROWS)
        for begin in range(0, rows, step):
            end = min(rows, begin + step)
            yield Block(part, begin, end, target + begin)
        target += rows


def encode_block(block: Block, method: Method, geometry: Geometry, reader: TensorReader) -> list[tuple[int, U8]]:
    """Encode one block to (offset in the object, bytes) pieces.

    Raises:
        ArtifactError: the values cannot be encoded. ConfigError: imported codes are illegal. Both name the parameter.
    """
    data, name = block.part.data, block.part.parameter
    if isinstance(data, PlainData):
        assert method.encode is not None
        values = data.values.read(reader, block.begin, block.end)
        rows = method.encode(values, geometry.format, name)
        return list(rows.place(geometry, block.target))
    if isinstance(data, Fp8Data):
        return list(_import_fp8(block, data, reader, name).place(geometry, block.target))
    return _import_nvfp4(block, data, reader, geometry, name)


def _import_fp8(block: Block, data: Fp8Data, reader: TensorReader, name: str) -> EncodedRows:
    codes = data.codes.read(reader, block.begin, block.end)
    scales = data.scales.read(reader, block.begin, block.end)
    if ((codes & 0x7F) == _E4M3_NAN).any():
        raise ConfigError(f"{name}: the source holds FP8 codes that are NaN")
    # A zero scale makes every weight zero whatever its code; the format wants the codes to say so too.
    codes[(scales == 0).reshape(-1)] &= np.uint8(0x80)
    return pack_fp8_rows(codes, scales.reshape(-1))


def _import_nvfp4(
    block: Block, data: Nvfp4Data, reader: TensorReader, geometry: Geometry, name: str
) -> list[tuple[int, U8]]:
    codes = data.codes.read(reader, block.begin, block.end)
    scales = data.scales.read(reader, block.begin, block.end)
    if (scales >= _E4M3_NAN).any():
        raise ConfigError(f"{name}: the source holds NVFP4 block scales that are negative or NaN")
    by_group = codes.reshape(*scales.shape, 8)
    by_group[scales == 0] &= np.uint8(0x88)
    code_plane, scale_plane = geometry.plane(PlaneName.CODES), geometry.plane(PlaneName.SCALES)
    row_scales = geometry.columns // Format.NVFP4.spec.group
    pieces = [
        (code_plane.offset + block.target * (geometry.columns // 2), codes.reshape(-1)),
        (scale_plane.offset + block.target * row_scales, swizzle_nvfp4_scales(scales)),
    ]
    if block.end == data.rows:
        divisor = np.array([data.divisor], "<f4").view(np.uint8)
        pieces.append((geometry.plane(PlaneName.DIVISOR).offset, divisor))
    return pieces


def _stacked(parts: Sequence[NamedData]) -> tuple[NamedData]:
    data = [part.data for part in parts if isinstance(part.data, Nvfp4Data)]
    codes, scales = tuple(item.codes for item in data), tuple(item.scales for item in data)
    stacked = Nvfp4Data(StackedRows(codes), StackedRows(scales), data[0].divisor)
    return (NamedData(parts[0].parameter, stacked),)
