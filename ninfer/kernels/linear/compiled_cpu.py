"""linear in C++: stored planes are multiplied as they lie, several weights of one input in one launch.

Two kernels share one form of arguments (matrix.hpp): `linear_a16` takes fp32 activations and every format, `linear_a8`
quantises the activations to 8 bits and serves weights that permit it. Which one a weight gets is settled when it is
prepared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, PlaneName, geometry
from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight, WeightView

A16_SOURCE = Path(__file__).with_name("a16.cpp")
A8_SOURCE = Path(__file__).with_name("a8.cpp")
HADAMARD_SOURCE = Path(__file__).with_name("hadamard.cpp")

A8_FORMATS = frozenset({Format.Q4, Format.Q5, Format.Q6, Format.Q8, Format.T2})
FORMAT_CODES: Mapping[Format, int] = MappingProxyType(
    {
        Format.BF16: 0,
        Format.FP32: 1,
        Format.Q4: 2,
        Format.Q5: 3,
        Format.Q6: 4,
        Format.Q8: 5,
        Format.T2: 6,
        Format.NVFP4: 7,
        Format.FP8_ROW: 8,
    }
)
_STORE, _RESIDUAL, _SWIGLU = range(3)


class Part(ctypes.Structure):
    """Rows of one stored parent; see matrix.hpp."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("high", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("code_stride", ctypes.c_int64),
        ("high_stride", ctypes.c_int64),
        ("scale_stride", ctypes.c_int64),
        ("divisor", ctypes.c_float),
        ("unused_too", ctypes.c_float),
    )


class Output(ctypes.Structure):
    """One product and what becomes of it; see matrix.hpp."""

    _fields_ = (
        ("parts", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("epilogue", ctypes.c_int64),
    )


class LinearArgs(ctypes.Structure):
    """All products of one input; see matrix.hpp."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


class _HadamardArgs(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("signs", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


_A16 = Kernel(A16_SOURCE, "linear_a16", LinearArgs)
_A8 = Kernel(A8_SOURCE, "linear_a8", LinearArgs)
_HADAMARD = Kernel(HADAMARD_SOURCE, "hadamard", _HadamardArgs)


@dataclass(frozen=True, slots=True, eq=False)
class StoredMatrix:
    """A weight as it is stored.

    Attributes:
        kernel: what multiplies by it.
        parts: the C array of its parts, `count` of them at `address`.
        nbytes: stored bytes of its rows.
        data: the tensors whose memory the parts point to.
    """

    kernel: Kernel
    parts: ctypes.Array[Part]
    address: int
    count: int
    nbytes: int
    data: tuple[torch.Tensor, ...]


def prepare(views: Sequence[WeightView], a8: bool) -> StoredMatrix:
    """Point at the rows of all views, one after another; nothing is decoded or copied."""
    parts = (Part * len(views))(*(part_of(view) for view in views))
    return StoredMatrix(
        kernel=_A8 if a8 else _A16,
        parts=parts,
        address=ctypes.addressof(parts),
        count=len(views),
        nbytes=sum(stored_bytes(view) for view in views),
        data=tuple(view.data for view in views),
    )


def linear(
    body: Route, x: torch.Tensor, w: LinearWeight, out: torch.Tensor, residual: torch.Tensor | None = None
) -> None:
    """See the contract in the package's docstring."""
    target = _output(w, out, residual, _STORE if residual is None else _RESIDUAL)
    _launch(body, _matrix(w).kernel, _rotated(body, x, w.signs), (target,), (w.matrix, out, residual))


def projections(body: Route, x: torch.Tensor, weights: Sequence[LinearWeight], outs: Sequence[torch.Tensor]) -> None:
    """One launch for all weights of a kind and a rotation; see the contract in the package's docstring."""
    kinds: dict[tuple[Kernel, int], list[int]] = {}
    for index, w in enumerate(weights):
        kinds.setdefault((_matrix(w).kernel, id(w.signs)), []).append(index)
    for (kernel, _), members in kinds.items():
        signs = weights[members[0]].signs
        targets = [_output(weights[i], outs[i], None, _STORE) for i in members]
        keep = [owner for i in members for owner in (weights[i].matrix, outs[i])]
        _launch(body, kernel, _rotated(body, x, signs), targets, keep)


def gate_up_swiglu(body: Route, x: torch.Tensor, w: LinearWeight, out: torch.Tensor) -> None:
    """SiLU(gate x) * (up x), the rows of w being gate's, then up's; see the contract in `mlp`."""
    target = _output(w, out, None, _SWIGLU)
    _launch(body, _matrix(w).kernel, _rotated(body, x, w.signs), (target,), (w.matrix, out))


def _launch(body: Route, kernel: Kernel, x: torch.Tensor, targets: Sequence[Output], keep: Sequence[object]) -> None:
    outputs = _array(len(targets))(*targets)
    tokens, columns = x.shape
    args = LinearArgs(x.data_ptr(), ctypes.addressof(outputs), len(targets), tokens, columns)
    kernel.launch(body, args, x, outputs, *keep)


def _output(w: LinearWeight, out: torch.Tensor, residual: torch.Tensor | None, epilogue: int) -> Output:
    matrix = _matrix(w)
    added = None if residual is None else residual.data_ptr()
    return Output(matrix.address, matrix.count, w.rows, out.data_ptr(), added, epilogue)


def _rotated(body: Route, x: torch.Tensor, signs: torch.Tensor | None) -> torch.Tensor:
    """x, or its rotation in memory that a tape keeps like every operand of its steps."""
    if signs is None:
        return x
    out = torch.empty_like(x)
    rows, columns = x.shape
    _HADAMARD.launch(body, _HadamardArgs(x.data_ptr(), signs.data_ptr(), out.data_ptr(), rows, columns), x, signs, out)
    return out


def _matrix(w: LinearWeight) -> StoredMatrix:
    assert isinstance(w.matrix, StoredMatrix), "the weight was prepared for another route"
    return w.matrix


def part_of(view: WeightView) -> Part:
    """The rows of a view as kernels read them; see matrix.hpp."""
    parent = geometry(view.format, view.shape)
    codes, code_stride = _rows(view, parent, PlaneName.VALUES if view.format.is_direct else PlaneName.CODES)
    high, high_stride = _rows(view, parent, PlaneName.HIGH_BITS)
    scales, scale_stride = _rows(view, parent, PlaneName.SCALES)
    divisor = _divisor(view, parent) if view.format is Format.NVFP4 else 1.0
    strides = (code_stride, high_stride, scale_stride)
    return Part(FORMAT_CODES[view.format], 0, view.rows, codes, high, scales, *strides, divisor, 0.0)


def _rows(view: WeightView, parent: Geometry, name: PlaneName) -> tuple[int | None, int]:
    """The address of the view's first row in one plane, and the bytes from row to row; None without such a plane."""
    plane = next((plane for plane in parent.planes if plane.name is name), None)
    if plane is None:
        return None, 0
    return view.data.data_ptr() + plane.offset + view.row_begin * plane.row_stride, plane.row_stride


def _divisor(view: WeightView, parent: Geometry) -> float:
    plane = parent.plane(PlaneName.DIVISOR)
    stored = view.data[plane.offset : plane.offset + plane.size].clone()
    return float(stored.view(torch.float32))


def stored_bytes(view: WeightView) -> int:
    """What the rows of a view take in memory."""
    return sum(plane.size * view.rows // view.shape[0] for plane in geometry(view.format, view.shape).planes)


@cache
def _array(length: int) -> Callable[..., ctypes.Array[Output]]:
    return Output * length
