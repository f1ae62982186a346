"""Stored weights made ready for the ops: views of encoded parents, linears, lookup tables, direct tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, PlaneName, geometry
from ninfer.errors import ConfigError
from ninfer.kernels.jit import on_device
from ninfer.kernels.linear import compiled_cpu, cuda, onednn_cpu, torch_cpu
from ninfer.kernels.linear.hadamard import BLOCK as HADAMARD_BLOCK
from ninfer.kernels.linear.plan import Plan, Problem, plan
from ninfer.kernels.native import body_for
from ninfer.kernels.routes import DeviceKind, Route

_DECODE_ROWS = 4096  # bounds the copy that decoding holds beside the result
_Matrix = compiled_cpu.StoredMatrix | cuda.DeviceMatrix | onednn_cpu.PackedMatrix | torch.Tensor
_STORED = (compiled_cpu.StoredMatrix, cuda.DeviceMatrix)
_PREPARE_DENSE: Mapping[Route, Callable[[torch.Tensor], _Matrix]] = MappingProxyType(
    {Route.CPU_TORCH: torch_cpu.prepare, Route.CPU_ONEDNN: onednn_cpu.prepare}
)


@dataclass(frozen=True, slots=True, eq=False)
class WeightView:
    """Rows [row_begin, row_end) of a stored matrix, without a copy.

    Attributes:
        format: how the parent is stored.
        shape: (N, K) of the parent.
        data: uint8, 1-D: the encoded parent as a whole; may be read-only mapped memory, or a device's.

    Raises:
        ConfigError: the format stores no such matrix, the bytes do not have the parent's encoded size, the rows are
            no range of the parent, or an NVFP4 parent is not taken whole (its scales are interleaved over 128 rows).
        ArtifactError: the format cannot store a matrix of this shape.
    """

    format: Format
    shape: tuple[int, int]
    row_begin: int
    row_end: int
    data: torch.Tensor

    def __post_init__(self) -> None:
        what = f"{self.format.value} weight {list(self.shape)}"
        expected = geometry(self.format, self.shape).total_bytes
        if self.data.dtype is not torch.uint8 or self.data.shape != (expected,):
            raise ConfigError(f"{what}: expected {expected} bytes, got {self.data.dtype} {list(self.data.shape)}")
        if not 0 <= self.row_begin < self.row_end <= self.shape[0]:
            raise ConfigError(f"{what}: rows [{self.row_begin}, {self.row_end}) are no range of it")
        if self.format is Format.NVFP4 and self.rows != self.shape[0]:
            raise ConfigError(
                f"{what}: rows [{self.row_begin}, {self.row_end}) asked for, but nvfp4 is consumed as a whole parent; "
                "store these rows as an object of their own"
            )

    @property
    def rows(self) -> int:
        return self.row_end - self.row_begin

    @property
    def columns(self) -> int:
        return self.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class LinearWeight:
    """A weight [rows, columns] in the form that its route multiplies by.

    Attributes:
        formats: the stored formats of its parts, in order.
        nbytes: what one product reads: stored bytes in compiled routes, else the dense values (packed forms differ by
            less than a block of rows).
        signs: f32[columns] of +1 and -1 when the input is Hadamard-rotated first.
        matrix: what the route's `prepare` made; opaque to everyone else.
        allow_a8: whether a route may quantise the input to 8 bits; a permission, never an obligation.
    """

    rows: int
    columns: int
    formats: tuple[Format, ...]
    signs: torch.Tensor | None
    route: Route
    matrix: _Matrix
    nbytes: int
    allow_a8: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TableWeight:
    """A matrix whose rows are looked up by index; stays in its stored form.

    Attributes:
        geometry: of the stored parent.
        planes: the parent's planes as uint8 tensors over the same memory: [rows, row bytes] of this table's rows where
            a row's bytes are contiguous, else flat.
    """

    format: Format
    rows: int
    columns: int
    geometry: Geometry
    planes: Mapping[PlaneName, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Stored bytes that lookups read from."""
        return sum(plane.numel() for plane in self.planes.values())


def linear_routes() -> tuple[Route, ...]:
    """The routes by which this machine can multiply by a prepared weight in its CPU memory, best first."""
    return tuple(choice.route for choice in _plans(torch.empty(0), a8=False))


def prepare_linear(
    parts: Sequence[WeightView],
    *,
    signs: torch.Tensor | None = None,
    allow_a8: bool = False,
    route: Route | None = None,
) -> LinearWeight:
    """Make the rows of all parts, one after another, one weight. Compiled routes read them as they are stored.

    Args:
        signs: f32[K] of +1 and -1 (the auxiliary `hadamard_signs`), or None.
        allow_a8: whether the Uses of all parts permit 8-bit activations.
        route: one of `linear_routes()`; the best when None.

    Raises:
        ConfigError: no parts, different numbers of columns, a format without real numbers, or unusable signs.
    """
    if not parts:
        raise ConfigError("a linear needs at least one stored part")
    columns = parts[0].columns
    for part in parts:
        if part.columns != columns:
            raise ConfigError(f"parts of one linear have {columns} and {part.columns} columns; they must agree")
        if part.format is Format.INT32:
            raise ConfigError("linear cannot multiply by an int32 weight; store it as bf16, fp32 or quantised")
    if signs is not None:
        _check_signs(signs, columns)
    formats = tuple(part.format for part in parts)
    chosen = _choose(parts, allow_a8, route)
    matrix = _prepare(parts, chosen)
    rows = sum(part.rows for part in parts)
    return LinearWeight(
        rows=rows,
        columns=columns,
        formats=formats,
        signs=signs,
        route=chosen.route,
        matrix=matrix,
        nbytes=matrix.nbytes if isinstance(matrix, _STORED) else rows * columns * 4,
        allow_a8=allow_a8,
    )


def prepare_table(view: WeightView) -> TableWeight:
    """Make a stored matrix ready for lookups; nothing is decoded or copied.

    Raises:
        ConfigError: an int32 matrix.
    """
    if view.format is Format.INT32:
        raise ConfigError("embedding cannot look up an int32 table; store it as bf16, fp32 or quantised")
    parent = geometry(view.format, view.shape)
    planes: dict[PlaneName, torch.Tensor] = {}
    for plane in parent.planes:
        flat = view.data[plane.offset : plane.offset + plane.size]
        by_row = flat.view(parent.rows, plane.row_stride)[view.row_begin : view.row_end] if plane.row_stride else flat
        planes[plane.name] = by_row
    return TableWeight(view.format, view.rows, view.columns, parent, MappingProxyType(planes))


def prepare_dense(data: torch.Tensor, fmt: Format, shape: tuple[int, ...]) -> torch.Tensor:
    """Decode a direct tensor of any rank: bf16 and fp32 to fp32, int32 to int32.

    Args:
        data: uint8, 1-D: the bytes of the whole object; the result lies where they do.

    Raises:
        ConfigError: a quantised format.
        ArtifactError: the bytes do not have the encoded size.
    """
    if not fmt.is_direct:
        raise ConfigError(f"a parameter used as it is cannot be stored as {fmt.value}; store it as bf16 or fp32")
    return torch.from_numpy(np.array(codec.decode(data.cpu().numpy(), fmt, shape))).to(data.device)


def _choose(parts: Sequence[WeightView], allow_a8: bool, route: Route | None) -> Plan:
    a8 = allow_a8 and compiled_cpu.A8_FORMATS.issuperset(part.format for part in parts)
    if route is None:
        return _plans(parts[0].data, a8)[0]
    return Plan(route, a8 and route is not Route.CUDA and not Plan(route).dense)


def _plans(data: torch.Tensor, a8: bool) -> tuple[Plan, ...]:
    if on_device(data):
        return plan(Problem(DeviceKind.CUDA, None, False, a8))
    body = body_for(compiled_cpu.A8_SOURCE if a8 else compiled_cpu.A16_SOURCE)
    return plan(Problem(DeviceKind.CPU, body, onednn_cpu.available(), a8))


def _prepare(parts: Sequence[WeightView], chosen: Plan) -> _Matrix:
    if chosen.route is Route.CUDA:
        return cuda.prepare(parts)
    return _PREPARE_DENSE[chosen.route](_dense(parts)) if chosen.dense else compiled_cpu.prepare(parts, chosen.a8)


def _dense(parts: Sequence[WeightView]) -> torch.Tensor:
    """The fp32 values of all rows: [N, K]."""
    dense = torch.empty(sum(part.rows for part in parts), parts[0].columns)
    target = 0
    for part in parts:
        parent = geometry(part.format, part.shape)
        read = codec.byte_source(part.data.numpy(), parent)
        for begin in range(part.row_begin, part.row_end, _DECODE_ROWS):
            end = min(part.row_end, begin + _DECODE_ROWS)
            dense[target : target + end - begin] = torch.from_numpy(codec.decode_rows(read, parent, begin, end))
            target += end - begin
    return dense


def _check_signs(signs: torch.Tensor, columns: int) -> None:
    if columns % HADAMARD_BLOCK:
        raise ConfigError(f"hadamard_signs need a multiple of {HADAMARD_BLOCK} columns; this linear has {columns}")
    if signs.shape != (columns,) or signs.dtype is not torch.float32:
        raise ConfigError(f"hadamard_signs must be float32 [{columns}], got {signs.dtype} {list(signs.shape)}")
    if not bool((signs.abs() == 1.0).all()):
        raise ConfigError("hadamard_signs must all be +1 or -1")
