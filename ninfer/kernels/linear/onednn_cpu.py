"""linear with oneDNN's product over a weight that is packed once, on row tiles of one fixed height.

A library is free to choose another kernel, and with it another order of additions, for another number of rows. So
every product is computed on exactly `TILE_ROWS` rows, the last tile padded with zeros. Measured on torch 2.13 with
AVX2, K from 1 to 5120, N from 1 to 3584, odd ones included, 1 and 2 threads: within tiles of 4, 8, 16 and 32 rows a
row's bits depend neither on its position nor on its neighbours (they are moreover equal at every height from 1 to 300
and for both thread counts, but the tiles do not rely on that). Milliseconds per call on one thread of a busy machine,
[K -> N], beside torch's matrix-vector product of one row and its matrix product (MKL) of eight:

    rows                  1      4      8     16     32     mv of 1   mm of 8
    [256 -> 768]       0.05   0.06   0.07   0.11   0.18        0.03      0.08
    [1024 -> 3584]      0.5    0.9    1.4    2.5    4.2         0.4       2.4
    [1024 -> 248320]    139    178    218    256    467          77       296

Eight rows cost a lone row some three times its own price at worst, serve a decode batch of eight in one tile, and
leave prefill within a factor of two of the tallest tiles.

The two operators are those that torch's own compiler emits for frozen weights. They skip the packing of the weight
that a plain product repeats in every call, most of the cost of a product with few rows.
"""

from __future__ import annotations

import torch

TILE_ROWS = 8


def available() -> bool:
    """True when this build of torch has oneDNN and both operators."""
    operators = ("_reorder_linear_weight", "_linear_pointwise")
    return torch._C._has_mkldnn and all(hasattr(torch.ops.mkldnn, name) for name in operators)


def prepare(dense: torch.Tensor) -> torch.Tensor:
    """The weight [N, K] in oneDNN's order: an opaque tensor of about the same size."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(dense, TILE_ROWS)
    return packed


def linear(x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    """See the contract in the package's docstring; `matrix` comes from `prepare`."""
    whole = len(x) - len(x) % TILE_ROWS
    for begin in range(0, whole, TILE_ROWS):
        rows = slice(begin, begin + TILE_ROWS)
        _store(_multiply(x[rows], matrix), out[rows], None if residual is None else residual[rows])
    if whole < len(x):
        tile = x.new_zeros((TILE_ROWS, x.shape[1]))
        tile[: len(x) - whole] = x[whole:]
        product = _multiply(tile, matrix)[: len(x) - whole]
        _store(product, out[whole:], None if residual is None else residual[whole:])


def _multiply(tile: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(tile, matrix, None, "none", [], "")
    return product


def _store(product: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    if residual is None:
        out.copy_(product)
    else:
        torch.add(product, residual, out=out)
