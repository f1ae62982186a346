"""What an inventory is made of: logical parameters, where they are used, and where they come from."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ninfer.artifact.formats import Format


class SourceRoot(enum.Enum):
    """Which prefix a source tensor's name takes in a checkpoint."""

    TOP = "top"
    """No prefix."""
    TEXT = "text"
    """`model.language_model.` or `model.`."""
    VISION = "vision"
    """`model.visual.`."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """`count` blocks of `size` rows of a source matrix, `stride` rows apart, the first at `begin`.

    A plain range has one block. Attention's fused query/gate projection has one block per head.
    """

    begin: int
    size: int
    count: int = 1
    stride: int = 0

    @property
    def rows(self) -> int:
        return self.size * self.count

    def spans(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Source row ranges, in order, that make up the selected rows `[begin, end)`."""
        while begin < end:
            block, inner = divmod(begin, self.size)
            length = min(self.size - inner, end - begin)
            start = self.begin + block * self.stride + inner
            yield start, start + length
            begin += length


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A parameter's data in a checkpoint: some rows of one tensor.

    Attributes:
        tensor: name below `root`.
        shape: the shape that the source tensor must have.
        rows: which rows, the tensor being seen as a matrix [shape[0] * … , last kept dimensions]: the
            row count is `row_count`, columns are the rest.
        row_count: rows of that matrix.
        transposed: the parameter is the transpose of the selected matrix.
        alternative: another place where a checkpoint may keep the same data.
    """

    root: SourceRoot
    tensor: str
    shape: tuple[int, ...]
    rows: RowBlocks
    row_count: int
    transposed: bool = False
    alternative: SourceSpec | None = None

    @property
    def columns(self) -> int:
        return math.prod(self.shape) // self.row_count


@dataclass(frozen=True, slots=True)
class UseSpec:
    """One multiplication of a parameter with the mathematical input called `input`."""

    input: str


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One logical parameter.

    Attributes:
        name: persistent name, the key of its Binding.
        shape: logical shape.
        uses: every Use the parameter has; empty for parameters that are not projections.
        direct: the only format it may take, or None where any format goes.
        source: where a checkpoint keeps it; None when the converter computes it.
        shares: name of the parameter whose data it is (tied head, draft context projections).
    """

    name: str
    shape: tuple[int, ...]
    uses: tuple[UseSpec, ...] = ()
    direct: Format | None = None
    source: SourceSpec | None = None
    shares: str | None = None

    @property
    def component(self) -> str:
        """Owner, the first path segment (`proposal` for the proposal head)."""
        return self.name.split("/", 1)[0]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class PackingGroup:
    """Parameters stored as one object, rows in this order, when their formats and methods agree.

    When they do not, each of `fallback` is tried for itself; what agrees nowhere stays separate.
    """

    parameters: tuple[str, ...]
    fallback: tuple[tuple[str, ...], ...] = ()


def matrix(root: SourceRoot, tensor: str, rows: int, columns: int) -> SourceSpec:
    """A whole source matrix [rows, columns]."""
    return SourceSpec(root, tensor, (rows, columns), RowBlocks(0, rows), rows)


def matrix_rows(root: SourceRoot, tensor: str, shape: tuple[int, int], rows: RowBlocks) -> SourceSpec:
    """Some rows of a source matrix of `shape`."""
    return SourceSpec(root, tensor, shape, rows, shape[0])


def vector(root: SourceRoot, tensor: str, length: int) -> SourceSpec:
    """A whole source vector [length]."""
    return SourceSpec(root, tensor, (length,), RowBlocks(0, length), length)


def projection(name: str, shape: tuple[int, int], source: SourceSpec, *inputs: str) -> ParameterSpec:
    """A matrix [outputs, inputs] used at each of `inputs`; may take any format."""
    return ParameterSpec(name, shape, tuple(UseSpec(value) for value in inputs), None, source)


def direct_vector(name: str, source: SourceSpec, form: Format = Format.BF16) -> ParameterSpec:
    """A vector stored as plain words."""
    return ParameterSpec(name, (source.rows.rows,), (), form, source)
