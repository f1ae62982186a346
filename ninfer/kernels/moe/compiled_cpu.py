"""The mixture-of-experts ops in C++. moe_experts runs all experts of a call in one launch, from one table of weights.

Its products are functions of linear's libraries, so that they are compiled once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.linear.compiled_cpu import A8_SOURCE, A16_SOURCE, Output, StoredMatrix
from ninfer.kernels.native import Kernel, exported
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    from ninfer.kernels.moe.experts import ExpertWeights
    from ninfer.kernels.weights import LinearWeight

SOURCE = Path(__file__).with_name("moe.cpp")
EXPERTS_SOURCE = Path(__file__).with_name("experts.cpp")


class _RouteArgs(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("experts", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
    )


class _SharedAddArgs(ctypes.Structure):
    _fields_ = (
        ("shared", ctypes.c_void_p),
        ("score", ctypes.c_void_p),
        ("routed", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


class _ExpertsArgs(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("experts", ctypes.c_void_p),
        ("a8", ctypes.c_void_p),
        ("a16", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inner", ctypes.c_int64),
    )


class _Weight(ctypes.Structure):
    _fields_ = (("output", Output), ("signs", ctypes.c_void_p), ("a8", ctypes.c_int64))


class _Expert(ctypes.Structure):
    _fields_ = (("gate_up", _Weight), ("down", _Weight))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTable:
    """What all experts multiply by, for C++ (experts.hpp). It points into their weights.

    Attributes:
        experts: the C array.
        a8: whether some weight has its input quantised.
        a16: whether some weight does not.
    """

    experts: ctypes.Array[_Expert]
    a8: bool
    a16: bool


_ROUTE = Kernel(SOURCE, "moe_route", _RouteArgs)
_SHARED_ADD = Kernel(SOURCE, "moe_shared_add", _SharedAddArgs)
_EXPERTS = Kernel(EXPERTS_SOURCE, "moe_experts", _ExpertsArgs)


def prepare(gate_up: Sequence[LinearWeight], down: Sequence[LinearWeight]) -> ExpertTable | None:
    """The table of all experts; None if some weight was prepared for a route that does not read stored planes."""
    if not all(isinstance(weight.matrix, StoredMatrix) for weight in (*gate_up, *down)):
        return None
    pairs = [_Expert(_weight(first), _weight(second)) for first, second in zip(gate_up, down, strict=True)]
    quantised = {bool(weight.a8) for pair in pairs for weight in (pair.gate_up, pair.down)}
    return ExpertTable((_Expert * len(pairs))(*pairs), True in quantised, False in quantised)


def moe_route(body: Route, logits: torch.Tensor, top_k: int, ids_out: torch.Tensor, weights_out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    rows, experts = logits.shape
    args = _RouteArgs(logits.data_ptr(), ids_out.data_ptr(), weights_out.data_ptr(), rows, experts, top_k)
    _ROUTE.launch(body, args, logits, ids_out, weights_out)


def moe_experts(
    body: Route,
    x: torch.Tensor,
    experts: ExpertWeights,
    ids: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    table = experts.table
    assert isinstance(table, ExpertTable), "the experts were prepared for another route"
    tensors = (x, ids, weights, out)
    products = (
        exported(A8_SOURCE, "ninfer_a8_multiply", body) if table.a8 else None,
        exported(A16_SOURCE, "ninfer_a16_multiply", body) if table.a16 else None,
    )
    sizes = (*ids.shape, experts.count, experts.columns, experts.products)
    pointers = (*(tensor.data_ptr() for tensor in tensors), ctypes.addressof(table.experts))
    _EXPERTS.launch(body, _ExpertsArgs(*pointers, *products, *sizes), *tensors, experts)


def moe_shared_add(
    body: Route,
    shared: torch.Tensor,
    score: torch.Tensor,
    routed: torch.Tensor,
    residual: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    tensors = (shared, score, routed, residual, out)
    _SHARED_ADD.launch(body, _SharedAddArgs(*(tensor.data_ptr() for tensor in tensors), *out.shape), *tensors)


def _weight(weight: LinearWeight) -> _Weight:
    matrix = weight.matrix
    assert isinstance(matrix, StoredMatrix)
    signs = None if weight.signs is None else weight.signs.data_ptr()
    output = Output(matrix.address, matrix.count, weight.rows, None, None, 0)
    return _Weight(output, signs, matrix.kernel.source == A8_SOURCE)
