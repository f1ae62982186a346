"""linear with oneDNN's product over a weight that is packed once, on row tiles of heights proven equal.

A library is free to choose another kernel, and with it another order of additions, for another number of rows or at
another position among them. So rows are multiplied in tiles of a few fixed heights, padded with zeros, and `prepare`
keeps only heights at which this machine, with this weight, gives every position the bits of the row alone. Height 1
is always kept: where no other height is equal, every row is its own call.

Measured on torch 2.13 with AVX2, K from 1 to 5120, N from 1 to 3584, odd ones included, 1 and 2 threads: a row's bits
depend neither on its position, nor on its neighbours, nor on the number of rows from 1 to 300, nor on the threads, so
all heights are kept. Milliseconds per call on one thread of a busy machine, [K -> N], beside torch's matrix-vector
product of one row and its matrix product (MKL) of eight:

    rows                  1      4      8     16     32     mv of 1   mm of 8
    [256 -> 768]       0.05   0.06   0.07   0.11   0.18        0.03      0.08
    [1024 -> 3584]      0.5    0.9    1.4    2.5    4.2         0.4       2.4
    [1024 -> 248320]    139    178    218    256    467          77       296

The two operators are those that torch's own compiler emits for frozen weights. They skip the packing of the weight
that a plain product repeats in every call, most of the cost of a product with few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.linear.hadamard import rotated

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight

HEIGHTS = (1, 4, 8, 16, 32)
_PACKED_FOR_ROWS = 8
_PROBED_PRODUCTS = 64


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A weight [N, K] in oneDNN's opaque order, and the tile heights at which its products are equal, rising from 1."""

    packed: torch.Tensor
    heights: tuple[int, ...]


def available() -> bool:
    """True when this build of torch has oneDNN and both operators."""
    operators = ("_reorder_linear_weight", "_linear_pointwise")
    return torch._C._has_mkldnn and all(hasattr(torch.ops.mkldnn, name) for name in operators)


def prepare(dense: torch.Tensor) -> PackedMatrix:
    """Pack the weight [N, K] and prove the heights. The proof costs far less than decoding a stored weight."""
    packed = torch.ops.mkldnn._reorder_linear_weight(dense, _PACKED_FOR_ROWS)
    rows, columns = dense.shape
    generator = torch.Generator().manual_seed(columns)
    probes = torch.randn(1 + _PROBED_PRODUCTS // rows, columns, generator=generator)
    equal = [height for height in HEIGHTS[1:] if _is_equal(packed, probes, height)]
    return PackedMatrix(packed, (1, *equal))


def linear(x: torch.Tensor, w: LinearWeight, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """See the contract in the package's docstring."""
    assert isinstance(w.matrix, PackedMatrix), "the weight was prepared for another route"
    multiply(rotated(x, w.signs), w.matrix, out, residual)


def projections(x: torch.Tensor, weights: Sequence[LinearWeight], outs: Sequence[torch.Tensor]) -> None:
    """See the contract in the package's docstring."""
    for w, out in zip(weights, outs, strict=True):
        linear(x, w, out)


def multiply(x: torch.Tensor, matrix: PackedMatrix, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    """x times the transpose of what `prepare` packed, in tiles of proven heights."""
    tallest = matrix.heights[-1]
    if len(x) <= tallest:  # a decode batch: spare it the slices
        _tile(x, matrix, out, residual)
        return
    for begin in range(0, len(x), tallest):
        rows = slice(begin, begin + tallest)
        _tile(x[rows], matrix, out[rows], None if residual is None else residual[rows])


def _tile(x: torch.Tensor, matrix: PackedMatrix, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    """At most as many rows as the tallest height, computed at the lowest height that holds them."""
    rows = len(x)
    height = next(height for height in matrix.heights if height >= rows)
    if height == rows:
        product = _multiply(x, matrix.packed)
    else:
        product = _multiply(torch.constant_pad_nd(x, (0, 0, 0, height - rows)), matrix.packed)[:rows]
    if residual is None:
        out.copy_(product)
    else:
        torch.add(product, residual, out=out)


def _is_equal(packed: torch.Tensor, probes: torch.Tensor, height: int) -> bool:
    """Whether a row has the bits it has alone at every position of a tile of this height, for each probe [1, K]."""
    for index in range(len(probes)):
        probe = probes[index : index + 1]
        alone = _multiply(probe, packed)
        if not torch.equal(_multiply(probe.repeat(height, 1), packed), alone.expand(height, -1)):
            return False
    return True


def _multiply(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
    return product
