"""Row sources: anything that yields blocks of rows of a logical matrix, in bounded memory.

Values come as bf16 bit patterns (uint16), float32, int32 or raw codes (uint8), shape [rows, columns].
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ninfer.convert.sources.tensor_file import TensorEntry, TensorReader
from ninfer.models.qwen3_5.inventory import RowBlocks

Rows2D = NDArray[Any]
_DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
}
FLOAT_DTYPES = frozenset({"BF16", "F16", "F32"})


class RowSource(Protocol):
    """`rows` x `columns` values, readable by row range. `source_bytes` is what a full read costs."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def source_bytes(self) -> int: ...

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        """Rows `[begin, end)`."""
        ...


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Selected rows of a tensor seen as a matrix of `row_count` rows. F16 is widened to float32."""

    entry: TensorEntry
    row_count: int
    selection: RowBlocks

    @property
    def rows(self) -> int:
        return self.selection.rows

    @property
    def columns(self) -> int:
        return self.entry.nbytes // self.entry.item_bytes // self.row_count

    @property
    def source_bytes(self) -> int:
        return self.rows * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self.entry.nbytes // self.row_count

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        width = self._row_bytes
        out = np.empty((end - begin) * width, np.uint8)
        at = 0
        for first, last in self.selection.spans(begin, end):
            size = (last - first) * width
            reader.read_into(self.entry, first * width, out[at : at + size])
            at += size
        words = out.view(_DTYPES[self.entry.dtype]).reshape(end - begin, self.columns)
        return words.astype(np.float32) if self.entry.dtype == "F16" else words


@dataclass(frozen=True, slots=True)
class TransposedRows:
    """The transpose of a small source, which is read whole for every block."""

    source: TensorRows

    @property
    def rows(self) -> int:
        return self.source.columns

    @property
    def columns(self) -> int:
        return self.source.rows

    @property
    def source_bytes(self) -> int:
        return self.source.source_bytes

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        whole = self.source.read(reader, 0, self.source.rows)
        return np.ascontiguousarray(whole.T[begin:end])


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Arbitrary rows of a source, in the order of `indices`."""

    source: TensorRows
    indices: tuple[int, ...]

    @property
    def rows(self) -> int:
        return len(self.indices)

    @property
    def columns(self) -> int:
        return self.source.columns

    @property
    def source_bytes(self) -> int:
        return self.source.source_bytes // self.source.rows * self.rows

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        parts = [self.source.read(reader, *run) for run in _runs(self.indices[begin:end])]
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True, eq=False)
class ConstantRows:
    """Values held in memory, shape [rows, columns]."""

    values: Rows2D

    @property
    def rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def columns(self) -> int:
        return int(self.values.shape[1])

    @property
    def source_bytes(self) -> int:
        return int(self.values.nbytes)

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        return self.values[begin:end]


@dataclass(frozen=True, slots=True)
class SlicedRows:
    """Rows `[begin, end)` of another source."""

    source: RowSource
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def columns(self) -> int:
        return self.source.columns

    @property
    def source_bytes(self) -> int:
        return self.source.source_bytes // self.source.rows * self.rows

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        return self.source.read(reader, self.begin + begin, self.begin + end)


@dataclass(frozen=True, slots=True)
class StackedRows:
    """Sources of equal width, one below the other."""

    sources: tuple[RowSource, ...]

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def columns(self) -> int:
        return self.sources[0].columns

    @property
    def source_bytes(self) -> int:
        return sum(source.source_bytes for source in self.sources)

    def read(self, reader: TensorReader, begin: int, end: int) -> Rows2D:
        parts, start = [], 0
        for source in self.sources:
            first, last = max(begin, start), min(end, start + source.rows)
            if first < last:
                parts.append(source.read(reader, first - start, last - start))
            start += source.rows
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive indices as half-open ranges, in order."""
    keyed = itertools.groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    for _, group in keyed:
        run = [index for _, index in group]
        yield run[0], run[-1] + 1
