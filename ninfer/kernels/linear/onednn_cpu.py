"""linear with oneDNN's product over a weight that is packed once, in row tiles; see `tiles` for why.

The two operators are those that torch's own compiler emits for frozen weights. They skip the packing of the weight
that a plain product repeats in every call, which is most of the cost of a product with few rows.
"""

from __future__ import annotations

import torch

from ninfer.kernels.linear.tiles import TILE_ROWS, multiply_by_tiles


def available() -> bool:
    """True when this build of torch has oneDNN and both operators."""
    operators = torch.ops.mkldnn
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch._C._has_mkldnn and all(hasattr(operators, name) for name in names)


def prepare(dense: torch.Tensor) -> torch.Tensor:
    """The weight [N, K] in oneDNN's order: an opaque tensor of about the same size."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(dense, TILE_ROWS)
    return packed


def linear(x: torch.Tensor, matrix: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None) -> None:
    """See the contract in the package's docstring; `matrix` comes from `prepare`."""
    multiply = torch.ops.mkldnn._linear_pointwise.default
    multiply_by_tiles(x, lambda tile: multiply(tile, matrix, None, "none", [], ""), out, residual)
